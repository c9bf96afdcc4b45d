//===- StackedRows.cpp - tensors made of rows of a dimension ---------------===//

#include "compiler/Import/StackedRows.h"

#include "dialects/StableHLO/StableHLOOps.h"

using namespace mlir;
using namespace alpa;
using namespace alpa::importer;
namespace hlo = mlir::stablehlo;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

/// The operand of a concatenation that holds exactly these rows.
static Value findPart(hlo::ConcatenateOp concat, int64_t dim, int64_t start, int64_t size) {
  if (int64_t(concat.getDimension()) != dim)
    return nullptr;
  for (Value part : concat.getInputs()) {
    int64_t rows = typeOf(part).getDimSize(dim);
    if (start == 0 && rows == size)
      return part;
    start -= rows;
    if (start < 0)
      break;
  }
  return nullptr;
}

Value importer::rowsOf(OpBuilder &builder, Value whole, int64_t dim, int64_t start, int64_t size,
                       DictionaryAttr attributes, Location loc) {
  RankedTensorType type = typeOf(whole);
  if (size == type.getDimSize(dim))
    return whole;
  if (auto concat = whole.getDefiningOp<hlo::ConcatenateOp>())
    if (Value part = findPart(concat, dim, start, size))
      return part;
  SmallVector<int64_t> starts(type.getRank(), 0), limits(type.getShape()),
      strides(type.getRank(), 1), shape(type.getShape());
  starts[dim] = start;
  limits[dim] = start + size;
  shape[dim] = size;
  auto slice = hlo::SliceOp::create(
      builder, loc, type.clone(shape), whole, builder.getDenseI64ArrayAttr(starts),
      builder.getDenseI64ArrayAttr(limits), builder.getDenseI64ArrayAttr(strides));
  slice->setDiscardableAttrs(attributes);
  return slice;
}

std::optional<int64_t> importer::takenRow(Operation *op) {
  auto slice = dyn_cast<hlo::SliceOp>(op);
  if (!slice || typeOf(slice.getOperand()).getRank() == 0)
    return std::nullopt;
  ArrayRef<int64_t> whole = typeOf(slice.getOperand()).getShape();
  ArrayRef<int64_t> part = typeOf(slice.getResult()).getShape();
  if (part[0] != 1 || whole[0] == 1 || whole.drop_front() != part.drop_front())
    return std::nullopt;
  return slice.getStartIndices()[0];
}

bool importer::isStack(Operation *op) {
  auto concat = dyn_cast<hlo::ConcatenateOp>(op);
  return concat && concat.getDimension() == 0 && concat.getInputs().size() > 1 &&
         llvm::all_of(concat.getInputs(),
                      [](Value part) { return typeOf(part).getDimSize(0) == 1; });
}
