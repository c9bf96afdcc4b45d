//===- AlpaReshardOps.cpp - verifiers of transfers between meshes ---------===//

#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Alpa/Box.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

#include <map>
#include <set>

using namespace mlir;
using namespace alpa;

LogicalResult BroadcastOp::inferReturnTypes(MLIRContext *, std::optional<Location>,
                                            ValueRange operands, DictionaryAttr attributes,
                                            OpaqueProperties properties, RegionRange,
                                            SmallVectorImpl<Type> &types) {
  Adaptor adaptor(operands, attributes, properties);
  types.assign(adaptor.getDevices().size(), adaptor.getTile().getType());
  return success();
}

namespace {

/// A tile that a step made, and where it lies.
struct PlacedTile {
  int64_t device = 0;
  Box box;
  Operation *step = nullptr;
  bool isGathered = false; // The whole that it became part of takes its place.
};

/// Walks the steps once, and knows after each where all tiles lie.
class PlanVerifier {
public:
  explicit PlanVerifier(CrossMeshReshardOp op)
      : op(op), type(op.getTensorType()), sources(shards(type, op.getSourceMesh(), op.getSource())),
        targets(shards(type, op.getTargetMesh(), op.getTarget())) {}

  LogicalResult verify();

private:
  using Shards = std::map<int64_t, Box>; // By device, of which files may say any number.

  LogicalResult verify(TileOp tile);
  LogicalResult verify(SendTileOp send);
  LogicalResult verify(BroadcastOp broadcast);
  LogicalResult verify(AllGatherOp gather);
  LogicalResult copy(Operation *step, StringRef name, Value tile, int64_t device, Value result);
  LogicalResult verifyCover(int64_t device, const Box &shard, ArrayRef<const PlacedTile *> tiles);

  static Shards shards(RankedTensorType type, MeshAttr mesh, ShardingAttr sharding) {
    Shards boxes;
    for (auto [index, device] : llvm::enumerate(mesh.getDevices()))
      boxes[device] = shardOf(type.getShape(), mesh.getShape(), sharding.getSpec(), index);
    return boxes;
  }
  /// The shard that the device wants; null if it is not in the target mesh.
  const Box *wanted(int64_t device) const {
    auto it = targets.find(device);
    return it == targets.end() ? nullptr : &it->second;
  }
  InFlightDiagnostic outside(Operation *step, StringRef label, const Box &box, int64_t device,
                             const Box &shard) {
    return step->emitOpError() << label << ": " << box.str() << " is not in the shard of device "
                               << device << ", " << shard.str();
  }

  CrossMeshReshardOp op;
  RankedTensorType type;
  Shards sources, targets;
  llvm::MapVector<Value, PlacedTile> placed;
};

} // namespace

LogicalResult PlanVerifier::verify() {
  for (Operation &step : *op.getBody()) {
    LogicalResult result =
        llvm::TypeSwitch<Operation *, LogicalResult>(&step)
            .Case<TileOp, SendTileOp, BroadcastOp, AllGatherOp>([&](auto s) { return verify(s); })
            .Default([](Operation *other) {
              return other->emitError() << "alpa_cross_mesh_reshard_c2: `" << other->getName()
                                        << "` is not a step of a plan";
            });
    if (failed(result))
      return failure();
  }
  if (!op.isPlanned() || type.getNumElements() == 0)
    return success();
  std::map<int64_t, SmallVector<const PlacedTile *>> lying;
  for (auto &[value, tile] : placed)
    if (const Box *shard = wanted(tile.device);
        shard && !tile.isGathered && shard->contains(tile.box))
      lying[tile.device].push_back(&tile);
  for (auto &[device, shard] : targets)
    if (failed(verifyCover(device, shard, lying[device])))
      return failure();
  return success();
}

LogicalResult PlanVerifier::verify(TileOp tile) {
  int64_t device = tile.getDevice();
  auto held = sources.find(device);
  if (held == sources.end())
    return tile.emitOpError() << "alpa_tile_c1: device " << device << " is not in the source mesh "
                              << op.getSourceMesh();
  RankedTensorType cut = tile.getTile().getType();
  if (cut.getElementType() != type.getElementType() || cut.getRank() != type.getRank() ||
      !cut.hasStaticShape() || int64_t(tile.getOffsets().size()) != type.getRank())
    return tile.emitOpError() << "alpa_tile_c2: expected a part of " << type << ", got " << cut
                              << " at " << tile.getOffsets().size() << " offsets";
  Box box = Box::at(tile.getOffsets(), cut.getShape());
  if (!held->second.contains(box))
    return outside(tile, "alpa_tile_c2", box, device, held->second);
  if (cut.getNumElements() == 0)
    return tile.emitOpError("alpa_tile_c3: the tile has no elements");
  if (const Box *shard = wanted(device); shard && intersect(*shard, box) && !shard->contains(box))
    return tile.emitOpError() << "alpa_tile_c3: " << box.str()
                              << " lies partly in the shard that device " << device << " wants, "
                              << shard->str();
  placed[tile.getTile()] = {device, box, tile};
  return success();
}

LogicalResult PlanVerifier::copy(Operation *step, StringRef name, Value tile, int64_t device,
                                 Value result) {
  PlacedTile from = placed.lookup(tile);
  const Box *shard = wanted(device);
  if (!shard)
    return step->emitOpError() << name << "_c1: device " << device << " is not in the target mesh "
                               << op.getTargetMesh();
  if (device == from.device) {
    InFlightDiagnostic diagnostic = step->emitOpError() << name << "_c1: the tile lies on device "
                                                        << device << " already";
    diagnostic.attachNote(from.step->getLoc()) << "it is made here";
    return diagnostic;
  }
  if (!shard->contains(from.box))
    return outside(step, (name + "_c2").str(), from.box, device, *shard);
  placed[result] = {device, from.box, step};
  return success();
}

LogicalResult PlanVerifier::verify(SendTileOp send) {
  return copy(send, "alpa_send_tile", send.getTile(), send.getDevice(), send.getCopy());
}

LogicalResult PlanVerifier::verify(BroadcastOp broadcast) {
  if (int64_t(broadcast.getChunks()) < 1)
    return broadcast.emitOpError() << "alpa_broadcast_c1: expected at least one chunk, got "
                                   << int64_t(broadcast.getChunks());
  if (broadcast.getDevices().empty())
    return broadcast.emitOpError("alpa_broadcast_c1: expected at least one device");
  std::set<int64_t> seen;
  for (auto [device, result] : llvm::zip_equal(broadcast.getDevices(), broadcast.getCopies())) {
    if (!seen.insert(device).second)
      return broadcast.emitOpError()
             << "alpa_broadcast_c1: device " << device << " is in the chain twice";
    if (failed(copy(broadcast, "alpa_broadcast", broadcast.getTile(), device, result)))
      return failure();
  }
  return success();
}

LogicalResult PlanVerifier::verify(AllGatherOp gather) {
  if (gather.getTiles().size() < 2)
    return gather.emitOpError() << "alpa_all_gather_c1: expected at least two tiles, got "
                                << gather.getTiles().size();
  std::set<int64_t> devices;
  SmallVector<Box> parts;
  Box whole;
  int64_t elements = 0;
  for (Value operand : gather.getTiles()) {
    PlacedTile &tile = placed[operand];
    if (!wanted(tile.device))
      return gather.emitOpError() << "alpa_all_gather_c1: device " << tile.device
                                  << " is not in the target mesh " << op.getTargetMesh();
    if (!devices.insert(tile.device).second)
      return gather.emitOpError() << "alpa_all_gather_c1: two tiles lie on device " << tile.device;
    if (tile.isGathered)
      return gather.emitOpError() << "alpa_all_gather_c1: the tile on device " << tile.device
                                  << " was gathered before";
    tile.isGathered = true;
    if (whole.rank() != tile.box.rank() || parts.empty())
      whole = tile.box;
    for (size_t dim = 0; dim < whole.rank(); ++dim) {
      whole.begin[dim] = std::min(whole.begin[dim], tile.box.begin[dim]);
      whole.end[dim] = std::max(whole.end[dim], tile.box.end[dim]);
    }
    for (const Box &part : parts)
      if (intersect(part, tile.box))
        return gather.emitOpError()
               << "alpa_all_gather_c2: " << part.str() << " and " << tile.box.str() << " overlap";
    parts.push_back(tile.box);
    elements += tile.box.elements();
  }
  if (elements != whole.elements())
    return gather.emitOpError() << "alpa_all_gather_c2: the tiles have " << elements
                                << " elements, but the box around them, " << whole.str() << ", has "
                                << whole.elements();
  RankedTensorType expected = type.clone(whole.sizes());
  if (gather.getWholes().size() != gather.getTiles().size() ||
      llvm::any_of(gather.getWholes().getTypes(), [&](Type got) { return got != expected; }))
    return gather.emitOpError() << "alpa_all_gather_c2: expected " << gather.getTiles().size()
                                << " results of type " << expected;
  for (auto [operand, result] : llvm::zip_equal(gather.getTiles(), gather.getWholes())) {
    int64_t device = placed[operand].device;
    if (!wanted(device)->contains(whole))
      return outside(gather, "alpa_all_gather_c3", whole, device, *wanted(device));
    placed[result] = {device, whole, gather};
  }
  return success();
}

/// Tiles are compared along the dimension in which they begin at the most places.
LogicalResult PlanVerifier::verifyCover(int64_t device, const Box &shard,
                                        ArrayRef<const PlacedTile *> tiles) {
  size_t along = 0, most = 0;
  for (size_t dim = 0; dim < shard.rank(); ++dim) {
    llvm::DenseSet<int64_t> begins;
    for (const PlacedTile *tile : tiles)
      begins.insert(tile->box.begin[dim]);
    if (begins.size() > most) {
      most = begins.size();
      along = dim;
    }
  }
  SmallVector<const PlacedTile *> sorted(tiles);
  if (shard.rank() > 0)
    llvm::sort(sorted, [&](const PlacedTile *a, const PlacedTile *b) {
      return a->box.begin[along] < b->box.begin[along];
    });
  int64_t elements = 0;
  for (auto [i, tile] : llvm::enumerate(sorted)) {
    elements += tile->box.elements();
    for (const PlacedTile *next : ArrayRef(sorted).drop_front(i + 1)) {
      if (shard.rank() > 0 && next->box.begin[along] >= tile->box.end[along])
        break;
      if (!intersect(tile->box, next->box))
        continue;
      auto [first, second] = std::pair(tile, next);
      if (second->step->isBeforeInBlock(first->step))
        std::swap(first, second);
      InFlightDiagnostic diagnostic = second->step->emitOpError()
                                      << "alpa_cross_mesh_reshard_c3: device " << device
                                      << " has elements of " << second->box.str() << " already";
      diagnostic.attachNote(first->step->getLoc()) << "it gets " << first->box.str() << " here";
      return diagnostic;
    }
  }
  if (elements == shard.elements())
    return success();
  return op.emitOpError() << "alpa_cross_mesh_reshard_c3: device " << device << " gets " << elements
                          << " of the " << shard.elements() << " elements of its shard, "
                          << shard.str();
}

LogicalResult CrossMeshReshardOp::verify() {
  RankedTensorType type = getTensorType();
  constexpr StringLiteral label = "alpa_cross_mesh_reshard_c1: ";
  if (!type.hasStaticShape())
    return emitOpError() << label << "expected known sizes, got " << type;
  int64_t bits = 128; // More than any element has.
  for (int64_t size : type.getShape())
    if (llvm::MulOverflow(bits, std::max<int64_t>(size, 1), bits))
      return emitOpError() << label << type << " has too many elements";
  auto check = [&](StringRef what, ShardingAttr sharding, MeshAttr mesh) {
    return verifySpec([&] { return emitOpError() << label << what << ": "; }, sharding.getSpec(),
                      type, mesh.getShape());
  };
  if (failed(check("source", getSource(), getSourceMesh())))
    return failure();
  return check("target", getTarget(), getTargetMesh());
}

LogicalResult CrossMeshReshardOp::verifyRegions() { return PlanVerifier(*this).verify(); }
