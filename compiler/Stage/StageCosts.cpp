//===- StageCosts.cpp - seconds and bytes of possible stages --------------===//

#include "compiler/Stage/StageCosts.h"

#include "mlir/IR/Threading.h"
#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace alpa;

static constexpr double kFirstLookSeconds = 1;
static constexpr double kInfinity = std::numeric_limits<double>::infinity();

double alpa::microBatchSeconds(const IntraOpResult &result, int64_t numMicroBatches) {
  return result.forwardSeconds + result.backwardSeconds + result.updateSeconds / numMicroBatches;
}

StageCosts::StageCosts(llvm::ArrayRef<llvm::SmallVector<Operation *>> opsOfLayer,
                       std::vector<LogicalMesh> meshes,
                       std::vector<llvm::SmallVector<unsigned>> views, StageCostOptions options)
    : opsOfLayer(opsOfLayer.begin(), opsOfLayer.end()), meshes(std::move(meshes)),
      views(std::move(views)), options(std::move(options)) {
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

const StageShape &StageCosts::shapeOf(const Stage &stage) {
  auto [it, inserted] = shapes.try_emplace({stage.lo, stage.hi});
  if (inserted) {
    llvm::SmallVector<Operation *> ops;
    for (unsigned layer = stage.lo; layer < stage.hi; ++layer)
      llvm::append_range(ops, opsOfLayer[layer]);
    llvm::sort(ops,
               [&](Operation *a, Operation *b) { return position.lookup(a) < position.lookup(b); });
    it->second = describeStage(ops);
    if (options.describe)
      options.describe(it->second, it->second.words);
  }
  return it->second;
}

llvm::Error StageCosts::solve(MLIRContext *context, llvm::ArrayRef<Request> requests) {
  struct Job {
    ProblemKey key;
    const StageShape *shape;
    std::string error;
    std::shared_ptr<IntraOpResult> result;
  };
  std::vector<Job> jobs;
  std::vector<ProblemKey> keys;
  std::map<ProblemKey, bool> started;
  for (const Request &request : requests) {
    const Stage &stage = stages[request.id / kSlots];
    const StageShape &shape = shapeOf(stage);
    unsigned shapeClass = shapeClasses.try_emplace(shape.words, shapeClasses.size()).first->second;
    unsigned slot = request.id % kSlots;
    keys.push_back({shapeClass, stage.mesh, slot == kUnsolved ? request.inFlight : 0, slot != 0});
    if (!solved.count(keys.back()) && started.try_emplace(keys.back()).second)
      jobs.push_back({keys.back(), &shape, {}, {}});
  }
  parallelFor(context, 0, jobs.size(), [&](size_t i) {
    Job &job = jobs[i];
    IntraOpOptions intraOp;
    intraOp.numMicroBatches = options.numMicroBatches;
    // Most stages turn out to be of no use: a first look is short.
    intraOp.timeLimitSeconds = std::get<3>(job.key)
                                   ? options.timeLimitSeconds
                                   : std::min(options.timeLimitSeconds, kFirstLookSeconds);
    if (int64_t inFlight = std::get<2>(job.key)) {
      intraOp.memoryLimitBytes = options.memoryBytes[std::get<1>(job.key)];
      intraOp.microBatchesInFlight = inFlight;
    }
    if (!options.filters.empty())
      intraOp.filter = options.filters[std::get<1>(job.key)];
    StageView view;
    view.ops.assign(job.shape->ops.begin(), job.shape->ops.end());
    llvm::Expected<IntraOpResult> result =
        solveIntraOp(view, CostModel(meshes[std::get<1>(job.key)]), intraOp);
    if (!result)
      job.error = llvm::toString(result.takeError());
    else if (result->solution.status != SolveStatus::Infeasible)
      job.result = std::make_shared<IntraOpResult>(std::move(*result));
  });
  for (Job &job : jobs) {
    if (!job.error.empty())
      return llvm::createStringError(job.error);
    solved[job.key] = {job.shape, job.result};
  }
  solvedCount += jobs.size();
  reusedCount += requests.size() - jobs.size();
  for (auto [request, key] : llvm::zip_equal(requests, keys)) {
    Stage &stage = stages[request.id / kSlots];
    const Solved &answer = solved[key];
    const StageShape &shape = shapeOf(stage);
    if (!answer.result && !stage.solutions.empty())
      stage.infeasibleFrom = std::min(stage.infeasibleFrom, request.inFlight);
    stage.solutions.push_back(!answer.result || answer.shape == &shape
                                  ? answer.result
                                  : std::make_shared<IntraOpResult>(
                                        translateResult(*answer.result, *answer.shape, shape)));
  }
  return llvm::Error::success();
}

llvm::Expected<Explanation> StageCosts::explain(unsigned id) {
  const Stage &stage = stages[id / kSlots];
  IntraOpOptions intraOp;
  intraOp.numMicroBatches = options.numMicroBatches;
  if (!options.filters.empty())
    intraOp.filter = options.filters[stage.mesh];
  const StageShape &shape = shapeOf(stage);
  StageView view;
  view.ops.assign(shape.ops.begin(), shape.ops.end());
  return explainIntraOp(view, CostModel(meshes[stage.mesh]), intraOp, result(id)->solution.choices);
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
    if (stage.provisional)
      stage.bound.seconds *= 1 - stage.solutions.front()->solution.gap;
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
  if (stage.provisional)
    list.push_back(choiceOf(*stage.solutions.front(), index * kSlots));
  if (!stage.provisional || !onlySolved) {
    list.push_back(stage.bound);
    list.back().id = index * kSlots + (stage.provisional ? kRefined : 0);
  }
  int64_t memoryBytes = options.memoryBytes[stage.mesh];
  if (stage.solutions.empty() || stage.bound.peakBytes(options.mostInFlight) <= memoryBytes)
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
    hope.activationBytes = memoryBytes / (stage.infeasibleFrom - 1);
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
  return slot < stage.solutions.size() && slot < kUnsolved ? stage.solutions[slot].get() : nullptr;
}
