//===- Pins.cpp - shardings that the user's program asks for --------------===//

#include "compiler/Import/Subset.h"

#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Sdy/SdyOps.h"

using namespace alpa;
using namespace mlir;

namespace {
/// One sharding of the program, in the compiler's terms.
struct Pin {
  ShardingSpec spec;
  SmallVector<int64_t> open;
};

class PinReader {
public:
  explicit PinReader(ModuleOp module) : module(module) {}

  /// False after an error; nothing for a sharding on no mesh at all.
  bool read(Location location, sdy::TensorShardingAttr sharding, std::optional<Pin> &pin);
  std::optional<SmallVector<int64_t>> shape; // Of the one mesh.

private:
  ModuleOp module;
};
} // namespace

bool PinReader::read(Location location, sdy::TensorShardingAttr sharding, std::optional<Pin> &pin) {
  auto mesh = dyn_cast<sdy::MeshAttr>(sharding.getMeshOrRef());
  if (!mesh)
    if (auto op =
            module.lookupSymbol<sdy::MeshOp>(cast<FlatSymbolRefAttr>(sharding.getMeshOrRef())))
      mesh = op.getMesh();
  if (!mesh) {
    emitError(location) << "refers to a mesh that the module does not define";
    return false;
  }
  SmallVector<int64_t> sizes;
  for (sdy::MeshAxisAttr axis : mesh.getAxes())
    sizes.push_back(axis.getSize());
  if (llvm::all_of(sizes, [](int64_t size) { return size == 1; }))
    return true; // JAX's mark on typed random keys.
  if (shape && *shape != sizes) {
    emitError(location) << "asks for a sharding on a mesh of another shape than others before; "
                           "pinned shardings must share one mesh";
    return false;
  }
  shape = sizes;
  pin.emplace();
  for (auto [index, dim] : llvm::enumerate(sharding.getDimShardings())) {
    auto &axes = pin->spec.dims.emplace_back();
    for (sdy::AxisRefAttr axis : dim.getAxes()) {
      if (!axis.isFullAxis()) {
        emitError(location) << "splits a dimension by a part of mesh axis \"" << axis.getName()
                            << "\"; only whole axes can be pinned";
        return false;
      }
      const auto *found = llvm::find_if(mesh.getAxes(), [&](sdy::MeshAxisAttr other) {
        return other.getName() == axis.getName();
      });
      axes.push_back(found - mesh.getAxes().begin());
    }
    if (!dim.getIsClosed())
      pin->open.push_back(index);
  }
  return true;
}

LogicalResult alpa::keepShardingAnnotations(ModuleOp module, func::FuncOp main) {
  PinReader reader(module);
  MLIRContext *context = module.getContext();
  for (BlockArgument argument : main.getArguments()) {
    auto sharding =
        main.getArgAttrOfType<sdy::TensorShardingAttr>(argument.getArgNumber(), "sdy.sharding");
    std::optional<Pin> pin;
    if (!sharding)
      continue;
    if (!reader.read(argument.getLoc(), sharding, pin))
      return failure();
    if (pin)
      main.setArgAttr(argument.getArgNumber(), attr::sharding,
                      ShardingAttr::get(context, pin->spec));
  }
  SmallVector<sdy::ShardingConstraintOp> constraints;
  main.walk([&](sdy::ShardingConstraintOp op) { constraints.push_back(op); });
  for (sdy::ShardingConstraintOp op : constraints) {
    std::optional<Pin> pin;
    if (!reader.read(op.getLoc(), op.getSharding(), pin))
      return failure();
    if (!pin)
      continue;
    if (op->getParentOp() != main)
      return op.emitOpError() << "stands inside of a loop or branch, where a sharding cannot be "
                                 "pinned; put it on the operands or results";
    OpBuilder builder(op);
    OperationState state(op.getLoc(), "stablehlo.optimization_barrier");
    state.addOperands(op.getInput());
    state.addTypes(op.getType());
    Operation *barrier = builder.create(state);
    barrier->setAttr(attr::pin, ShardingAttr::get(context, pin->spec));
    if (!pin->open.empty())
      barrier->setAttr(attr::pinOpen, builder.getDenseI64ArrayAttr(pin->open));
    op.getResult().replaceAllUsesWith(barrier->getResult(0));
    op.erase();
  }
  if (reader.shape)
    module->setAttr(attr::pinMesh, Builder(context).getDenseI64ArrayAttr(*reader.shape));
  return success();
}
