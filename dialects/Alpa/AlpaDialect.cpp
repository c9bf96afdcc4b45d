//===- AlpaDialect.cpp - discardable attributes of the passes -------------===//

#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/Interfaces/FunctionInterfaces.h"
#include "mlir/Transforms/InliningUtils.h"

using namespace mlir;
using namespace alpa;

#include "dialects/Alpa/AlpaDialect.cpp.inc"

namespace {

using Emit = function_ref<InFlightDiagnostic()>;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
/// More ops, layers or values no module has.
constexpr int64_t kMostItems = std::numeric_limits<int32_t>::max();

LogicalResult isInteger(Emit emit, Attribute value, int64_t least, int64_t most = kNoLimit) {
  auto integer = dyn_cast<IntegerAttr>(value);
  if (!integer || !integer.getType().isInteger(64))
    return emit() << "expected a 64-bit integer, got " << value;
  if (integer.getInt() < least)
    return emit() << "expected at least " << least << ", got " << integer.getInt();
  if (integer.getInt() > most)
    return emit() << "expected at most " << most << ", got " << integer.getInt();
  return success();
}

LogicalResult isOneOf(Emit emit, Attribute value, ArrayRef<StringRef> words) {
  auto word = dyn_cast<StringAttr>(value);
  if (word && (words.empty() || llvm::is_contained(words, word.getValue())))
    return success();
  InFlightDiagnostic diagnostic = emit() << "expected ";
  if (words.empty())
    return diagnostic << "a string, got " << value;
  diagnostic << "one of ";
  llvm::interleaveComma(words, diagnostic,
                        [&](StringRef item) { diagnostic << '"' << item << '"'; });
  return diagnostic << ", got " << value;
}

LogicalResult isSharding(Emit emit, Attribute value, Type type) {
  auto sharding = dyn_cast<ShardingAttr>(value);
  if (!sharding)
    return emit() << "expected #alpa.sharding, got " << value;
  return verifySpec(emit, sharding.getSpec(), type);
}

LogicalResult areShardings(Emit emit, Attribute value, TypeRange types) {
  auto array = dyn_cast<ArrayAttr>(value);
  if (!array)
    return emit() << "expected an array, got " << value;
  if (array.size() != types.size())
    return emit() << "expected " << types.size() << " shardings, got " << array.size();
  for (auto [item, type] : llvm::zip_equal(array, types)) {
    if (!isa<ShardingAttr>(item))
      return emit() << "expected #alpa.sharding, got " << item;
    // Tokens and tuples have no dimensions to split.
    if (isa<RankedTensorType>(type) && failed(isSharding(emit, item, type)))
      return failure();
  }
  return success();
}

LogicalResult areStages(Emit emit, Attribute value) {
  auto array = dyn_cast<ArrayAttr>(value);
  if (!array || array.empty())
    return emit() << "expected a list of stages, got " << value;
  for (Attribute item : array)
    if (!isa<StageAttr>(item))
      return emit() << "expected #alpa.stage, got " << item;
  return success();
}

LogicalResult areResults(Emit emit, Attribute value, int64_t numResults) {
  auto numbers = dyn_cast<DenseI64ArrayAttr>(value);
  if (!numbers || llvm::any_of(numbers.asArrayRef(),
                               [&](int64_t number) { return number < 0 || number >= numResults; }))
    return emit() << "expected an array of numbers of results, of which there are " << numResults
                  << ", got " << value;
  return success();
}

LogicalResult arePinAxes(Emit emit, Attribute value) {
  auto meshes = dyn_cast<ArrayAttr>(value);
  if (!meshes || !llvm::all_of(meshes, llvm::IsaPred<ArrayAttr>))
    return emit() << "expected an array of axes for each mesh, got " << value;
  for (Attribute mesh : meshes)
    for (Attribute item : cast<ArrayAttr>(mesh)) {
      auto pair = dyn_cast<ArrayAttr>(item);
      if (!pair || pair.size() != 2 || !isa<StringAttr>(pair[0]) || !isa<IntegerAttr>(pair[1]))
        return emit() << "expected a name and a size, got " << item;
      if (failed(isInteger(emit, pair[1], 2)))
        return failure();
    }
  return success();
}

/// Whether all shardings within the op, but for modules of another mesh and pins, which name axes
/// of the user's, are of axes that the mesh has.
LogicalResult haveAxes(Operation *op, int64_t numAxes) {
  int64_t missing = 0;
  auto isThere = [&](unsigned axis) {
    missing = axis;
    return axis < numAxes;
  };
  auto check = [&](ShardingAttr sharding) {
    const ShardingSpec &spec = sharding.getSpec();
    bool areThere =
        llvm::all_of(spec.unreduced, isThere) &&
        llvm::all_of(spec.dims, [&](const auto &axes) { return llvm::all_of(axes, isThere); });
    return areThere ? WalkResult::advance() : WalkResult::interrupt();
  };
  AttrTypeWalker walker; // Remembers what it has seen.
  walker.addWalk(check);
  auto areThere = [&](auto attributes) {
    return llvm::all_of(attributes, [&](NamedAttribute each) {
      return each.getName() == attr::pin || !walker.walk(each.getValue()).wasInterrupted();
    });
  };
  WalkResult result = op->walk<WalkOrder::PreOrder>([&](Operation *inner) {
    if (inner != op && inner->hasAttr(attr::mesh))
      return WalkResult::skip();
    bool all = true;
    for (NamedAttribute each : inner->getAttrDictionary()) {
      // Of arguments and results.
      auto list = dyn_cast<ArrayAttr>(each.getValue());
      if (list && llvm::all_of(list, llvm::IsaPred<DictionaryAttr>))
        for (auto attributes : list.getAsRange<DictionaryAttr>())
          all = all && areThere(attributes);
      else
        all = all && areThere(ArrayRef(each));
    }
    if (all)
      return WalkResult::advance();
    inner->emitError() << "alpa_attribute_c1: a sharding uses mesh axis " << missing
                       << ", but the mesh has " << numAxes << " axes";
    return WalkResult::interrupt();
  });
  return failure(result.wasInterrupted());
}

/// Nothing if the attribute belongs to no signature.
std::optional<LogicalResult> verifySignature(Emit emit, NamedAttribute attribute, Type type) {
  StringRef name = attribute.getName();
  Attribute value = attribute.getValue();
  if (name == attr::name)
    return isOneOf(emit, value, {});
  if (name == attr::sharding || name == attr::pin)
    return isSharding(emit, value, type);
  if (name == attr::value)
    return isInteger(emit, value, 0, kMostItems);
  if (name == attr::memory)
    return isOneOf(emit, value, {"host"});
  return std::nullopt;
}

} // namespace

LogicalResult AlpaDialect::verifyOperationAttribute(Operation *op, NamedAttribute attribute) {
  StringRef name = attribute.getName();
  Attribute value = attribute.getValue();
  auto emit = [&] { return op->emitError() << "alpa_attribute_c1: `" << name << "`: "; };
  if (name == attr::phase)
    return isOneOf(emit, value, {"prepare", "forward", "barrier", "backward", "update"});
  if (name == attr::eqn || name == attr::layer || name == attr::stage)
    return isInteger(emit, value, 0, kMostItems);
  if (name == attr::shardings || name == attr::madeShardings)
    return areShardings(emit, value, op->getResultTypes());
  if (name == attr::operandShardings || name == attr::useShardings)
    return areShardings(emit, value, op->getOperandTypes());
  if (name == attr::summedAs)
    return op->getNumResults() == 1 ? isSharding(emit, value, op->getResult(0).getType())
                                    : emit() << "expected an op of one result";
  if (name == attr::pin)
    return op->getNumResults() == 1 ? isSharding(emit, value, op->getResult(0).getType())
                                    : emit() << "expected an op of one result";
  if (name == attr::pinAxes)
    return arePinAxes(emit, value);
  if (name == attr::gathersKeys && !isa<UnitAttr>(value))
    return emit() << "expected no value, got " << value;
  if (name == attr::offloaded)
    return areResults(emit, value, op->getNumResults());
  if (name == attr::numMicroBatches)
    return isInteger(emit, value, 1);
  if (name == attr::schedule || name == attr::pinDropped)
    return isOneOf(emit, value, {});
  if (name == attr::mesh) {
    auto mesh = dyn_cast<MeshAttr>(value);
    return mesh ? haveAxes(op, int64_t(mesh.getShape().size()))
                : emit() << "expected #alpa.mesh, got " << value;
  }
  if (name == attr::stages)
    return areStages(emit, value);
  if ((name == attr::predicted || name == attr::planning) && !isa<DictionaryAttr>(value))
    return emit() << "expected a dictionary, got " << value;
  return success();
}

LogicalResult AlpaDialect::verifyRegionArgAttribute(Operation *op, unsigned, unsigned argIndex,
                                                    NamedAttribute attribute) {
  auto function = dyn_cast<FunctionOpInterface>(op);
  if (!function)
    return success();
  StringRef name = attribute.getName();
  auto emit = [&] {
    return op->emitError() << "alpa_attribute_c1: argument " << argIndex << ": `" << name << "`: ";
  };
  if (auto result = verifySignature(emit, attribute, function.getArgumentTypes()[argIndex]))
    return *result;
  if (name == attr::kind)
    return isOneOf(emit, attribute.getValue(), {"state", "batch"});
  if (name != attr::carriedBy)
    return success();
  if (failed(isInteger(emit, attribute.getValue(), 0)))
    return failure();
  int64_t result = cast<IntegerAttr>(attribute.getValue()).getInt();
  if (result >= int64_t(function.getNumResults()))
    return emit() << "there is no result " << result;
  return success();
}

LogicalResult AlpaDialect::verifyRegionResultAttribute(Operation *op, unsigned,
                                                       unsigned resultIndex,
                                                       NamedAttribute attribute) {
  auto function = dyn_cast<FunctionOpInterface>(op);
  if (!function)
    return success();
  StringRef name = attribute.getName();
  auto emit = [&] {
    return op->emitError() << "alpa_attribute_c1: result " << resultIndex << ": `" << name << "`: ";
  };
  if (auto result = verifySignature(emit, attribute, function.getResultTypes()[resultIndex]))
    return *result;
  if (name == attr::reduction)
    return isOneOf(emit, attribute.getValue(), {"sum", "concat"});
  if (name == attr::accumulate)
    return isOneOf(emit, attribute.getValue(), {"sum", "last", "concat"});
  if (name == attr::partOf)
    return isInteger(emit, attribute.getValue(), 0);
  return success();
}

namespace {
/// Attributes of this dialect do not stop a call from being inlined.
struct AlpaInlinerInterface : DialectInlinerInterface {
  using DialectInlinerInterface::DialectInlinerInterface;
};
} // namespace

void AlpaDialect::initialize() {
  registerAttributes();
  registerOps();
  addInterfaces<AlpaInlinerInterface>();
}

bool alpa::isOfPhase(Operation *op, StringRef phase) {
  auto attribute = op->getAttrOfType<StringAttr>(attr::phase);
  return attribute && attribute.getValue() == phase;
}

std::optional<int64_t> alpa::layerOf(Operation *op) {
  auto layer = op->getAttrOfType<IntegerAttr>(attr::layer);
  return layer ? std::optional(layer.getInt()) : std::nullopt;
}

bool alpa::isStateArgument(Value value) {
  auto argument = dyn_cast<BlockArgument>(value);
  if (!argument)
    return false;
  auto function = dyn_cast<FunctionOpInterface>(argument.getOwner()->getParentOp());
  auto kind = function ? function.getArgAttrOfType<StringAttr>(argument.getArgNumber(), attr::kind)
                       : StringAttr();
  return !kind || kind.getValue() != "batch";
}

bool alpa::isHostArgument(Value value) {
  auto argument = dyn_cast<BlockArgument>(value);
  auto function = argument ? dyn_cast<FunctionOpInterface>(argument.getOwner()->getParentOp())
                           : FunctionOpInterface();
  return function && function.getArgAttr(argument.getArgNumber(), attr::memory);
}

static ArrayRef<int64_t> offloadedOf(Operation *op) {
  auto numbers = op->getAttrOfType<DenseI64ArrayAttr>(attr::offloaded);
  return numbers ? numbers.asArrayRef() : ArrayRef<int64_t>();
}

bool alpa::isOffloaded(Value value) {
  auto result = dyn_cast<OpResult>(value);
  return result && llvm::is_contained(offloadedOf(result.getOwner()), result.getResultNumber());
}

void alpa::setOffloaded(OpResult result) {
  if (isOffloaded(result))
    return;
  SmallVector<int64_t> numbers(offloadedOf(result.getOwner()));
  numbers.push_back(result.getResultNumber());
  llvm::sort(numbers);
  result.getOwner()->setAttr(attr::offloaded, DenseI64ArrayAttr::get(result.getContext(), numbers));
}
