//===- PartSizes.h - ops on parts of their tensors --------------*- C++ -*-===//

#ifndef ALPA_COMPILER_ANALYSIS_PARTSIZES_H
#define ALPA_COMPILER_ANALYSIS_PARTSIZES_H

#include "compiler/Analysis/ShardingRule.h"

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"

namespace alpa::analysis {

/// Sets the sizes that attributes repeat (limits of slices, groups of convolutions, ..)
/// of an op that was cloned from `whole` and given parts of its operands, along
/// dimensions that the op takes as they are.
void fitSizes(mlir::Operation *part, mlir::Operation *whole);

/// A number in every element of a tensor.
mlir::DenseElementsAttr splatOf(int64_t number, mlir::RankedTensorType type);

/// What the reducer leaves everything as it is with, as a scalar.
mlir::DenseElementsAttr neutralOf(Reducer reducer, mlir::Type element);
/// The op that combines two of its values.
llvm::StringRef nameOf(Reducer reducer, mlir::Type element);

/// Whether the value is a constant, or spread from one, of nothing but that number
/// (0 or 1), or of what leaves everything as it is.
bool isSplatOf(mlir::Value value, int64_t number);
bool isNeutral(mlir::Value value, Reducer reducer);

} // namespace alpa::analysis

#endif // ALPA_COMPILER_ANALYSIS_PARTSIZES_H
