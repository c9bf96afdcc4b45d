//===- SeparateExamples.cpp - attention by the lengths of examples --------===//
//
// A call of Transformer Engine gets the lengths of its examples as sums over the examples before,
// [batch + 1], of which it reads differences. The running sum is found by what it computes: JAX
// writes one in several ways.
//
//===----------------------------------------------------------------------===//

#include "compiler/Analysis/Calls/AttentionCall.h"
#include "compiler/Analysis/PartSizes.h"
#include "compiler/Analysis/PlainOps.h"
#include "compiler/Import/ExpandKernels.h"

#include "mlir/IR/Matchers.h"
#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/DenseMap.h"

using namespace alpa;
using namespace alpa::importer;
using namespace mlir;
using analysis::AttentionCall;
using analysis::isSplatOf;
using analysis::PlainOps;
namespace hlo = mlir::stablehlo;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

namespace {

/// Says which elements of one tensor each element of another is the sum of.
class SumsOfElements {
public:
  /// Element i of the result is a set of elements of `source`; nothing if an element counts twice,
  /// or if there are several tensors that are added up.
  using Sums = std::vector<llvm::BitVector>;
  const Sums *of(Value value);

  Value source;

private:
  std::optional<Sums> find(Value value);
  std::optional<Sums> leaf(Value value);
  std::optional<Sums> windows(hlo::ReduceWindowOp op);
  bool isTaken(Operation *op);

  llvm::DenseMap<Value, std::unique_ptr<Sums>> known; // None where it is not known.
};

} // namespace

/// A constant of zeros, also before conversions are folded.
static bool isZero(Value value) {
  while (auto op = value.getDefiningOp<hlo::ConvertOp>())
    value = op.getOperand();
  if (auto op = value.getDefiningOp<hlo::BroadcastInDimOp>())
    return isZero(op.getOperand());
  return isSplatOf(value, 0);
}

constexpr int64_t kMostElements = 2048; // Of tensors that are looked into.

/// The places of a tensor one after another, in row-major order.
static bool advance(SmallVectorImpl<int64_t> &place, ArrayRef<int64_t> shape) {
  for (size_t dim = shape.size(); dim-- > 0;) {
    if (++place[dim] < shape[dim])
      return true;
    place[dim] = 0;
  }
  return false;
}

static size_t indexOf(ArrayRef<int64_t> place, ArrayRef<int64_t> shape) {
  int64_t index = 0;
  for (auto [at, size] : llvm::zip_equal(place, shape))
    index = index * size + at;
  return static_cast<size_t>(index);
}

static bool isSum(Region &body) {
  return body.hasOneBlock() && body.front().getOperations().size() == 2 &&
         isa<hlo::AddOp>(body.front().front());
}

/// Whether the op only adds up and moves elements.
bool SumsOfElements::isTaken(Operation *op) {
  auto isWide = [](Value value) {
    auto type = dyn_cast<IntegerType>(typeOf(value).getElementType());
    return type && type.getWidth() >= 32;
  };
  if (isa<hlo::ReshapeOp, hlo::SliceOp, hlo::ConcatenateOp, hlo::AddOp>(op))
    return llvm::none_of(op->getOperands(), [](Value value) {
      return matchPattern(value, m_Constant()) && !isZero(value);
    });
  if (isa<hlo::ConvertOp>(op))
    return isWide(op->getOperand(0)) && isWide(op->getResult(0));
  if (isa<hlo::PadOp>(op))
    return isZero(op->getOperand(1));
  if (auto window = dyn_cast<hlo::ReduceWindowOp>(op))
    return op->getNumResults() == 1 && isZero(op->getOperand(1)) && isSum(op->getRegion(0)) &&
           llvm::all_of(window.getBaseDilations().value_or(ArrayRef<int64_t>()),
                        [](int64_t step) { return step == 1; });
  return false;
}

const SumsOfElements::Sums *SumsOfElements::of(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  if (!type || !type.hasStaticShape() || type.getNumElements() > kMostElements)
    return nullptr;
  auto it = known.find(value);
  if (it == known.end()) {
    std::optional<Sums> sums = find(value);
    it = known.try_emplace(value, sums ? std::make_unique<Sums>(std::move(*sums)) : nullptr).first;
  }
  return it->second.get();
}

std::optional<SumsOfElements::Sums> SumsOfElements::leaf(Value value) {
  if (source && source != value)
    return std::nullopt;
  source = value;
  auto count = static_cast<unsigned>(typeOf(value).getNumElements());
  Sums sums(count, llvm::BitVector(kMostElements));
  for (unsigned i = 0; i < count; ++i)
    sums[i].set(i);
  return sums;
}

std::optional<SumsOfElements::Sums> SumsOfElements::find(Value value) {
  RankedTensorType type = typeOf(value);
  Sums sums(static_cast<size_t>(type.getNumElements()), llvm::BitVector(kMostElements));
  if (isZero(value) || sums.empty())
    return sums;
  Operation *op = value.getDefiningOp();
  if (!op || !isTaken(op))
    return leaf(value);
  if (auto window = dyn_cast<hlo::ReduceWindowOp>(op))
    return windows(window);
  SmallVector<const Sums *> in;
  for (Value operand : op->getOperands()) {
    in.push_back(of(operand));
    if (!in.back())
      return std::nullopt;
  }
  if (isa<hlo::ReshapeOp, hlo::ConvertOp>(op))
    return *in[0];
  if (isa<hlo::AddOp>(op)) {
    for (auto [sum, lhs, rhs] : llvm::zip_equal(sums, *in[0], *in[1])) {
      if (lhs.anyCommon(rhs))
        return std::nullopt;
      sum = lhs;
      sum |= rhs;
    }
    return sums;
  }
  if (auto join = dyn_cast<hlo::ConcatenateOp>(op)) {
    auto dim = static_cast<size_t>(join.getDimension());
    int64_t start = 0;
    for (auto [operand, given] : llvm::zip_equal(op->getOperands(), in)) {
      ArrayRef<int64_t> shape = typeOf(operand).getShape();
      SmallVector<int64_t> place(shape.size(), 0);
      for (const llvm::BitVector &sum : *given) {
        SmallVector<int64_t> to(place);
        to[dim] += start;
        sums[indexOf(to, type.getShape())] = sum;
        advance(place, shape);
      }
      start += shape[dim];
    }
    return sums;
  }
  ArrayRef<int64_t> shape = typeOf(op->getOperand(0)).getShape();
  if (auto slice = dyn_cast<hlo::SliceOp>(op)) {
    SmallVector<int64_t> place(shape.size(), 0);
    for (llvm::BitVector &sum : sums) {
      SmallVector<int64_t> from(slice.getStartIndices());
      for (size_t dim = 0; dim < from.size(); ++dim)
        from[dim] += place[dim] * slice.getStrides()[dim];
      sum = (*in[0])[indexOf(from, shape)];
      advance(place, type.getShape());
    }
    return sums;
  }
  auto pad = cast<hlo::PadOp>(op);
  SmallVector<int64_t> place(shape.size(), 0);
  for (const llvm::BitVector &sum : *in[0]) {
    SmallVector<int64_t> to(place);
    bool isInside = true;
    for (size_t dim = 0; dim < to.size(); ++dim) {
      to[dim] = pad.getEdgePaddingLow()[dim] + place[dim] * (1 + pad.getInteriorPadding()[dim]);
      isInside &= to[dim] >= 0 && to[dim] < type.getDimSize(static_cast<unsigned>(dim));
    }
    if (isInside)
      sums[indexOf(to, type.getShape())] = sum;
    advance(place, shape);
  }
  return sums;
}

std::optional<SumsOfElements::Sums> SumsOfElements::windows(hlo::ReduceWindowOp op) {
  Operation *held = op;
  const Sums *in = of(held->getOperand(0));
  ArrayRef<int64_t> shape = typeOf(held->getOperand(0)).getShape(),
                    window = op.getWindowDimensions();
  RankedTensorType type = typeOf(held->getResult(0));
  auto padding = op.getPadding();
  if (!in)
    return std::nullopt;
  SmallVector<int64_t> low(shape.size(), 0), strides(shape.size(), 1), dilations(shape.size(), 1);
  if (padding)
    for (size_t dim = 0; dim < shape.size(); ++dim)
      low[dim] = padding->getValues<int64_t>()[{static_cast<uint64_t>(dim), 0}];
  if (auto given = op.getWindowStrides())
    strides.assign(given->begin(), given->end());
  if (auto given = op.getWindowDilations())
    dilations.assign(given->begin(), given->end());
  Sums sums(static_cast<size_t>(type.getNumElements()), llvm::BitVector(kMostElements));
  SmallVector<int64_t> place(shape.size(), 0);
  for (llvm::BitVector &sum : sums) {
    SmallVector<int64_t> within(shape.size(), 0);
    do {
      SmallVector<int64_t> from(shape.size());
      bool isInside = true;
      for (size_t dim = 0; dim < from.size(); ++dim) {
        from[dim] = place[dim] * strides[dim] + within[dim] * dilations[dim] - low[dim];
        isInside &= from[dim] >= 0 && from[dim] < shape[dim];
      }
      if (!isInside)
        continue;
      const llvm::BitVector &next = (*in)[indexOf(from, shape)];
      if (sum.anyCommon(next))
        return std::nullopt;
      sum |= next;
    } while (advance(within, window));
    advance(place, type.getShape());
  }
  return sums;
}

/// The tensor whose elements are the differences of neighbours.
static Value differencesOf(Value value) {
  SumsOfElements found;
  const SumsOfElements::Sums *sums = found.of(value);
  if (!sums || !found.source ||
      typeOf(found.source).getNumElements() + 1 != static_cast<int64_t>(sums->size()))
    return {};
  for (unsigned i = 0; i + 1 < sums->size(); ++i) {
    llvm::BitVector next = (*sums)[i];
    if (next.test(i))
      return {};
    next.set(i);
    if (next != (*sums)[i + 1])
      return {};
  }
  return found.source;
}

unsigned importer::separateExamples(Operation *function) {
  unsigned separated = 0;
  function->walk([&](hlo::CustomCallOp op) {
    std::optional<AttentionCall> call = AttentionCall::read(op);
    if (!call || !call->isTransformerEngine || call->hasOwnLengths)
      return;
    Operation *held = op;
    PlainOps plain(held);
    for (int operand : call->unread) {
      RankedTensorType type = typeOf(held->getOperand(operand));
      held->setOperand(operand, plain.splat(0, type));
    }
    Value ofQueries = differencesOf(held->getOperand(call->queryLengths)),
          ofKeys = differencesOf(held->getOperand(call->keyLengths));
    if (!ofQueries || !ofKeys)
      return;
    for (auto [operand, lengths] :
         {std::pair(call->queryLengths, ofQueries), {call->keyLengths, ofKeys}}) {
      Type element = typeOf(held->getOperand(operand)).getElementType();
      Value shaped =
          typeOf(lengths).getRank() == 1 ? lengths : plain.reshape(lengths, {call->batch});
      held->setOperand(operand, plain.convert(shaped, element));
    }
    call->setOwnLengths(true);
    ++separated;
  });
  return separated;
}
