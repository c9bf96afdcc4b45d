//===- TransferProblem.cpp - what goes from one mesh to another -----------===//

#include "compiler/Reshard/TransferProblem.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/MathExtras.h"

#include <map>

using namespace alpa;
using namespace alpa::reshard;
using llvm::Twine;

static llvm::Error checkTensor(llvm::ArrayRef<int64_t> shape, const MeshTensor &tensor,
                               llvm::StringRef what) {
  auto fail = [&](const Twine &problem) {
    return llvm::createStringError(Twine(what) + ": " + problem);
  };
  if (tensor.meshShape.empty() || tensor.meshShape.size() > 3)
    return fail("expected one to three mesh axes, got " + Twine(tensor.meshShape.size()));
  int64_t devices = 1;
  for (int64_t size : tensor.meshShape)
    if (size < 1 || llvm::MulOverflow(devices, size, devices))
      return fail("a mesh axis of size " + Twine(size));
  if (devices != int64_t(tensor.devices.size()))
    return fail("the mesh needs " + Twine(devices) + " devices, got " +
                Twine(tensor.devices.size()));
  llvm::SmallVector<int64_t> sorted(tensor.devices);
  llvm::sort(sorted);
  for (size_t i = 1; i < sorted.size(); ++i)
    if (sorted[i] == sorted[i - 1])
      return fail("device " + Twine(sorted[i]) + " is there twice");
  const ShardingSpec &spec = tensor.spec;
  if (!spec.unreduced.empty())
    return fail("sums along mesh axis " + Twine(spec.unreduced.front()) + " are not taken yet");
  if (spec.dims.size() != shape.size())
    return fail("the sharding has " + Twine(spec.dims.size()) + " entries, the tensor " +
                Twine(shape.size()) + " dimensions");
  llvm::SmallVector<bool, 3> used(tensor.meshShape.size());
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    int64_t pieces = 1;
    for (unsigned axis : spec.dims[dim]) {
      if (axis >= used.size())
        return fail("the sharding uses mesh axis " + Twine(axis) + ", but the mesh has " +
                    Twine(used.size()) + " axes");
      if (used[axis])
        return fail("mesh axis " + Twine(axis) + " splits twice");
      used[axis] = true;
      pieces *= tensor.meshShape[axis];
    }
    if (shape[dim] % pieces != 0)
      return fail("dimension " + Twine(dim) + " of size " + Twine(shape[dim]) +
                  " is not divisible by its " + Twine(pieces) + " pieces");
  }
  return llvm::Error::success();
}

llvm::Error reshard::checkProblem(const TransferProblem &problem) {
  int64_t bytes = problem.elementBytes;
  if (bytes < 1)
    return llvm::createStringError("elements of " + Twine(bytes) + " bytes");
  for (int64_t size : problem.shape)
    if (size < 0 || llvm::MulOverflow(bytes, std::max<int64_t>(size, 1), bytes))
      return llvm::createStringError("a dimension of size " + Twine(size));
  if (llvm::Error error = checkTensor(problem.shape, problem.source, "source"))
    return error;
  return checkTensor(problem.shape, problem.target, "target");
}

static std::map<Box, llvm::SmallVector<int64_t, 4>> shards(llvm::ArrayRef<int64_t> shape,
                                                           const MeshTensor &tensor) {
  std::map<Box, llvm::SmallVector<int64_t, 4>> devices;
  for (auto [index, device] : llvm::enumerate(tensor.devices))
    devices[shardOf(shape, tensor.meshShape, tensor.spec, index)].push_back(device);
  return devices;
}

std::vector<TransferPiece> reshard::commonPieces(const TransferProblem &problem) {
  std::vector<TransferPiece> pieces;
  auto held = shards(problem.shape, problem.source), wanted = shards(problem.shape, problem.target);
  for (auto &[source, holders] : held)
    for (auto &[target, wishers] : wanted) {
      std::optional<Box> box = intersect(source, target);
      if (!box)
        continue;
      TransferPiece &piece = pieces.emplace_back();
      piece.box = std::move(*box);
      piece.holders = holders;
      for (int64_t device : wishers)
        (llvm::is_contained(holders, device) ? piece.keepers : piece.receivers).push_back(device);
    }
  llvm::sort(pieces, [](const TransferPiece &a, const TransferPiece &b) { return a.box < b.box; });
  return pieces;
}
