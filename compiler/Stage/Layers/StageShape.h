//===- StageShape.h - which stages are the same problem ----------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_LAYERS_STAGESHAPE_H
#define ALPA_COMPILER_STAGE_LAYERS_STAGESHAPE_H

#include "mlir/IR/Operation.h"
#include "llvm/ADT/ArrayRef.h"

#include <vector>

namespace alpa::stage {

/// A stage up to the names of its values. Stages with equal `words` pose the same
/// intra-operator problem: equal ops with equal attributes, types and phases,
/// connected alike, that read the same kinds of values from outside and whose
/// results are used outside in the same phases. The n-th values, and the n-th
/// ops, of two such stages correspond.
struct StageShape {
  std::vector<uintptr_t> words;
  std::vector<mlir::Value> values;
  std::vector<mlir::Operation *> ops;
};

/// `ops` are top-level ops of one function, in program order.
StageShape describeStage(llvm::ArrayRef<mlir::Operation *> ops);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_LAYERS_STAGESHAPE_H
