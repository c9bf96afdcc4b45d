//===- Verify.h - what verifiers of several ops ask --------------*- C++ -*-===//

#ifndef ALPA_DIALECTS_STABLEHLO_VERIFY_H
#define ALPA_DIALECTS_STABLEHLO_VERIFY_H

#include "dialects/StableHLO/StableHLOOps.h"

namespace mlir::stablehlo {

inline RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

/// Sizes agree if they are equal or one is not known.
inline bool sizesAgree(int64_t a, int64_t b) {
  return a == b || ShapedType::isDynamic(a) || ShapedType::isDynamic(b);
}
bool shapesAgree(ArrayRef<int64_t> a, ArrayRef<int64_t> b);
/// Element types are equal and shapes agree.
bool typesAgree(Type a, Type b);

/// Every dimension lies in [0, rank), each at most once.
LogicalResult verifyDims(Operation *op, StringRef label, StringRef what, ArrayRef<int64_t> dims,
                         int64_t rank);
/// Every dimension lies in [0, rank).
LogicalResult verifyRange(Operation *op, StringRef label, StringRef what, ArrayRef<int64_t> dims,
                          int64_t rank);
/// No dimension stands in the lists twice.
LogicalResult verifyUnique(Operation *op, StringRef label, StringRef what, ArrayRef<int64_t> dims,
                           ArrayRef<int64_t> more = {});
LogicalResult verifySorted(Operation *op, StringRef label, StringRef what, ArrayRef<int64_t> dims);
/// The list has `size` entries.
LogicalResult verifySize(Operation *op, StringRef label, StringRef what, size_t got, size_t size);
/// The result `got` agrees with what the op computes.
LogicalResult verifyResult(Operation *op, StringRef label, Type got, Type expected);
/// All values are scalars of one integer type.
LogicalResult verifyIndices(Operation *op, StringRef label, ValueRange indices);

/// A region that takes scalars of the element types and returns scalars of `results`.
LogicalResult verifyScalarRegion(Operation *op, StringRef label, StringRef what, Region &region,
                                 ArrayRef<Type> arguments, ArrayRef<Type> results);
/// Whether numbers of one type may be accumulated in the other: floating-point
/// numbers in any, integers and complex numbers in one that is not narrower.
bool isPromotable(Type from, Type to);
/// A region that combines pairs of scalars of each element type to one; other
/// accumulation types are allowed, if the results have them.
LogicalResult verifyReducer(Operation *op, StringRef label, Region &region, ArrayRef<Type> elements,
                            TypeRange results);

/// One dimension of a window that slides.
struct WindowDim {
  int64_t size = 1, stride = 1, low = 0, high = 0, baseDilation = 1, windowDilation = 1;
};

/// Reads and checks the attributes of a window of `rank` dimensions; absent ones
/// have their neutral value.
FailureOr<SmallVector<WindowDim>> readWindow(Operation *op, StringRef label,
                                             ArrayRef<int64_t> sizes,
                                             std::optional<ArrayRef<int64_t>> strides,
                                             std::optional<DenseIntElementsAttr> padding,
                                             std::optional<ArrayRef<int64_t>> baseDilations,
                                             std::optional<ArrayRef<int64_t>> windowDilations);
/// How many places a window has in a dimension of `size`.
int64_t countPlaces(int64_t size, const WindowDim &dim);

/// What is asked of groups: rows of device numbers. Labels that are empty are of
/// constraints that an op does not have.
struct GroupLabels {
  StringRef unique;  // No device is in two groups.
  StringRef sizes;   // Groups are of one size: no -1 fills a row.
  StringRef numbers; // Devices are numbered from 0, and all are listed.
};
LogicalResult verifyGroups(Operation *op, GroupLabels labels, DenseIntElementsAttr groups);

} // namespace mlir::stablehlo

#endif // ALPA_DIALECTS_STABLEHLO_VERIFY_H
