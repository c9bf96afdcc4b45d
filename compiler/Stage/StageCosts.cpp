//===- StageCosts.cpp - seconds and bytes of possible stages --------------===//

#include "compiler/Stage/StageCosts.h"

#include "mlir/IR/Threading.h"
#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace alpa;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

double alpa::microBatchSeconds(const IntraOpResult &result, int64_t numMicroBatches) {
  return result.forwardSeconds + result.backwardSeconds + result.updateSeconds / numMicroBatches;
}

StageCosts::StageCosts(llvm::ArrayRef<llvm::SmallVector<Operation *>> opsOfLayer,
                       std::vector<LogicalMesh> meshes,
                       std::vector<llvm::SmallVector<unsigned>> views, StageCostOptions options)
    : opsOfLayer(opsOfLayer.begin(), opsOfLayer.end()), meshes(std::move(meshes)),
      views(std::move(views)), options(options) {
  for (llvm::ArrayRef<Operation *> ops : opsOfLayer)
    if (!ops.empty())
      for (Operation &op : *ops.front()->getBlock())
        position.try_emplace(&op, position.size());
  for (unsigned lo = 0; lo < numLayers(); ++lo)
    for (unsigned hi = lo + 1; hi <= numLayers(); ++hi)
      for (unsigned mesh = 0; mesh < this->meshes.size(); ++mesh) {
        Stage &stage = stages.emplace_back();
        stage.lo = lo;
        stage.hi = hi;
        stage.mesh = mesh;
      }
}

/// Runs that start at earlier layers come first: n + (n - 1) + ... of them.
size_t StageCosts::stageAt(unsigned lo, unsigned hi, unsigned mesh) const {
  size_t n = numLayers(), before = lo == 0 ? 0 : lo * n - size_t(lo) * (lo - 1) / 2;
  return (before + hi - lo - 1) * meshes.size() + mesh;
}

std::vector<StageCosts::Request> StageCosts::singleLayers() const {
  std::vector<Request> requests;
  for (unsigned layer = 0; layer < numLayers(); ++layer)
    for (unsigned mesh = 0; mesh < meshes.size(); ++mesh)
      if (size_t stage = stageAt(layer, layer + 1, mesh); stages[stage].solutions.empty())
        requests.push_back({unsigned(stage * kSlots), 1});
  return requests;
}

llvm::Error StageCosts::solve(MLIRContext *context, llvm::ArrayRef<Request> requests) {
  std::vector<std::unique_ptr<IntraOpResult>> results(requests.size());
  std::vector<std::string> errors(requests.size());
  parallelFor(context, 0, requests.size(), [&](size_t i) {
    const Stage &stage = stages[requests[i].id / kSlots];
    StageView view;
    for (unsigned layer = stage.lo; layer < stage.hi; ++layer)
      llvm::append_range(view.ops, opsOfLayer[layer]);
    llvm::sort(view.ops,
               [&](Operation *a, Operation *b) { return position.lookup(a) < position.lookup(b); });
    IntraOpOptions intraOp;
    intraOp.numMicroBatches = options.numMicroBatches;
    intraOp.timeLimitSeconds = options.timeLimitSeconds;
    if (requests[i].id % kSlots == kUnsolved) {
      intraOp.memoryLimitBytes = options.memoryBytes;
      intraOp.microBatchesInFlight = requests[i].inFlight;
    }
    llvm::Expected<IntraOpResult> result =
        solveIntraOp(view, CostModel(meshes[stage.mesh]), intraOp);
    if (!result)
      errors[i] = llvm::toString(result.takeError());
    else if (result->solution.status != SolveStatus::Infeasible)
      results[i] = std::make_unique<IntraOpResult>(std::move(*result));
  });
  for (std::string &error : errors)
    if (!error.empty())
      return llvm::createStringError(error);
  for (auto [request, result] : llvm::zip(requests, results)) {
    Stage &stage = stages[request.id / kSlots];
    ++solvedCount;
    if (!result && !stage.solutions.empty())
      stage.infeasibleFrom = std::min(stage.infeasibleFrom, request.inFlight);
    stage.solutions.push_back(std::move(result));
  }
  return llvm::Error::success();
}

StageChoice StageCosts::choiceOf(const IntraOpResult &result, unsigned id) const {
  return {microBatchSeconds(result, options.numMicroBatches), result.stateBytes,
          result.activationBytes, result.temporaryBytes, id};
}

void StageCosts::bound(Stage &stage) {
  unsigned id = unsigned(&stage - stages.data()) * kSlots;
  if (!stage.solutions.empty()) {
    stage.bound = stage.solutions.front() ? choiceOf(*stage.solutions.front(), id)
                                          : StageChoice{kInfinity, 0, 0, 0, id};
    return;
  }
  stage.bound = {0, 0, 0, 0, id};
  for (unsigned middle = stage.lo + 1; middle < stage.hi; ++middle) {
    const StageChoice &left = stages[stageAt(stage.lo, middle, stage.mesh)].bound;
    const StageChoice &right = stages[stageAt(middle, stage.hi, stage.mesh)].bound;
    stage.bound.seconds = std::max(stage.bound.seconds, left.seconds + right.seconds);
    // Parts can share weights and boundary values: less than their sum is certain.
    stage.bound.stateBytes = std::max({stage.bound.stateBytes, left.stateBytes, right.stateBytes});
    stage.bound.activationBytes =
        std::max({stage.bound.activationBytes, left.activationBytes, right.activationBytes});
  }
}

void StageCosts::listChoices(size_t index, bool onlySolved, std::vector<StageChoice> &list) const {
  const Stage &stage = stages[index];
  if (stage.bound.seconds == kInfinity || (onlySolved && stage.solutions.empty()))
    return;
  list.push_back(stage.bound);
  if (stage.solutions.empty() || stage.bound.peakBytes(options.mostInFlight) <= options.memoryBytes)
    return;
  // The fastest solution does not always fit: slower ones that do.
  for (unsigned slot = 1; slot < stage.solutions.size(); ++slot)
    if (stage.solutions[slot])
      list.push_back(choiceOf(*stage.solutions[slot], index * kSlots + slot));
  if (onlySolved || stage.solutions.size() >= kUnsolved || stage.infeasibleFrom <= 1)
    return;
  // Might fit with fewer micro-batches in flight than were seen not to.
  StageChoice hope{stage.bound.seconds, 0, 0, 0, unsigned(index * kSlots + kUnsolved)};
  if (stage.infeasibleFrom < std::numeric_limits<int64_t>::max())
    hope.activationBytes = options.memoryBytes / (stage.infeasibleFrom - 1);
  list.push_back(hope);
}

void StageCosts::refresh(bool onlySolved) {
  for (unsigned length = 1; length <= numLayers(); ++length)
    for (unsigned lo = 0; lo + length <= numLayers(); ++lo)
      for (unsigned mesh = 0; mesh < meshes.size(); ++mesh)
        bound(stages[stageAt(lo, lo + length, mesh)]);
  table.assign(size_t(numLayers()) * (numLayers() + 1) * views.size(), {});
  for (unsigned lo = 0; lo < numLayers(); ++lo)
    for (unsigned hi = lo + 1; hi <= numLayers(); ++hi)
      for (auto [submesh, meshesOfSubmesh] : llvm::enumerate(views))
        for (unsigned mesh : meshesOfSubmesh)
          listChoices(stageAt(lo, hi, mesh), onlySolved,
                      table[(size_t(lo) * (numLayers() + 1) + hi) * views.size() + submesh]);
}

llvm::ArrayRef<StageChoice> StageCosts::choices(unsigned lo, unsigned hi, unsigned submesh) const {
  return table[(size_t(lo) * (numLayers() + 1) + hi) * views.size() + submesh];
}

const IntraOpResult *StageCosts::result(unsigned id) const {
  const Stage &stage = stages[id / kSlots];
  unsigned slot = id % kSlots;
  return slot < stage.solutions.size() && slot != kUnsolved ? stage.solutions[slot].get() : nullptr;
}
