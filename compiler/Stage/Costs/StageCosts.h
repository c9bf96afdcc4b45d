//===- StageCosts.h - seconds and bytes of possible stages -------*- C++ -*-===//
//
// A stage (a run of layers on one view of a submesh) is solved only when a plan
// that could be the best one needs it. Until then a bound stands in: what a
// stage's solution does to each layer could be done to that layer alone, so that
// it is no faster than its layers one after the other, whatever price their bytes
// have, less the price of all memory there is; and n devices do no layer in less
// than an n-th of what one of them takes. docs/stage-costs.md says more.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_STAGE_COSTS_STAGECOSTS_H
#define ALPA_COMPILER_STAGE_COSTS_STAGECOSTS_H

#include "compiler/Sharding/Explain/Explain.h"
#include "compiler/Sharding/Methods/ConstraintPins.h"
#include "compiler/Stage/Costs/LayerBounds.h"
#include "compiler/Stage/Costs/LayerRangeEquivalence.h"
#include "compiler/Stage/Costs/StageStore.h"
#include "compiler/Stage/Search/StageDp.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace alpa::stage {

/// What is known of equal runs of layers on one mesh, whatever the memory limit.
struct SolvedRun {
  std::shared_ptr<sharding::StageProblem> problem; // While it is remembered.
  sharding::StageProblem::Priced free; // Without memory limit; no point before it is solved.
  /// The bound of the run as one stage, 0 before it is known, and how collectives that can
  /// hide are counted for it. As a part of a stage it has the bound of `free`: its collectives
  /// may be hidden by other layers.
  double boundSeconds = 0, exposure = 0;
  std::vector<std::shared_ptr<sharding::StagePoint>> points;
  std::map<uint64_t, LayerFacts> layers; // Of a single layer, by how its bytes count.
  /// Of points, where they were asked for.
  std::map<std::shared_ptr<sharding::StagePoint>, sharding::BackwardParts> parts;
  unsigned usedAt = 0;

  double bound() const { return std::max(boundSeconds, free.boundSeconds); }
};

/// Solved runs by their keys and meshes, for searches one after another among the same meshes.
struct SolvedRuns {
  std::map<std::pair<LayerRangeKey, unsigned>, SolvedRun> runs;
  unsigned clock = 0; // Of `usedAt`.
};

/// The layers of a step as one function has them.
struct WrittenLayers {
  explicit WrittenLayers(LayerOps opsOfLayer);

  LayerOps opsOfLayer;
  std::shared_ptr<sharding::OpTable> table; // Of their ops.
};

/// And which of their ranges are alike, for searches one after another.
struct KnownLayers : WrittenLayers {
  /// `describe` says what a filter of plans may look at beside the ops of a stage, so that stages
  /// that it treats differently do not share a solution; with `allDiffer` no two are alike.
  explicit KnownLayers(LayerOps opsOfLayer, const DescribeValue &describe = nullptr,
                       bool allDiffer = false);

  LayerRangeEquivalence ranges;
};

struct StageCostOptions {
  int64_t numMicroBatches = 1;
  std::vector<int64_t> memoryBytes; // Of one device of each mesh, for plans.
  int64_t mostInFlight = 1;         // Micro-batches whose activations a stage may have to keep.
  double workLimit = 3e10;          // Of the solver for one stage, at most.
  double timeLimitSeconds = 600;    // The outer bound.
  bool makesLoops = false;          // Of equal layers, behind the search.
  /// Up to so many solves of single layers are made at the beginning, of all views: that takes
  /// little time, and more of what is found is true from the first run of the DP on.
  size_t mostAtOnce = 256;
  /// How far, as a part, a stage's plan may be above its bound until the end.
  double tolerance = 0.01;
  /// What a method leaves of the plans, for each variant and mesh (those of the first
  /// variant come first); empty for everything.
  std::vector<sharding::PlanFilter> filters;
  /// Where solved stages are kept from search to search, or null; and what decides
  /// them beside their ops, their mesh and these options.
  std::shared_ptr<const StageStore> store;
  /// What searches before found, and this one adds to; or null.
  std::shared_ptr<SolvedRuns> known;
  bool wantsParts = false; // Of most of what is solved (`partsOf`).
  std::string methodKey;
  /// What a filter goes by on each mesh beside the ops of a stage; empty for nothing.
  std::vector<std::string> pinKeys;
};

/// Runs work on several threads. The error is that of the first number that has one.
llvm::Error forAll(mlir::MLIRContext *context, size_t count,
                   llvm::function_ref<llvm::Error(size_t)> work);

class StageCosts {
public:
  /// `variants` are other ways to write the same layers (with rematerialization, say).
  /// `views[i]` are the views of submesh i, as indices into `meshes`.
  StageCosts(mlir::MLIRContext *context, std::vector<std::shared_ptr<const KnownLayers>> variants,
             std::vector<cost::LogicalMesh> meshes, std::vector<llvm::SmallVector<unsigned>> views,
             StageCostOptions options);

  /// Solves that the clock ended: on a faster machine they might have found more.
  unsigned numTimedOut() const;
  unsigned numLayers() const { return variants.front()->ranges.numLayers(); }
  /// Stages that could be asked for, those among them that differ, problems that were
  /// stated, and solutions that served another stage.
  size_t numPossible() const;
  /// What was solved so far: layers of all problems together.
  size_t work() const { return solvedLayers; }
  size_t numSolved() const { return solvedCount; }
  size_t numReused() const { return reusedCount; }
  /// Runs that the store knew.
  size_t numLoaded() const { return loadedCount; }
  /// Puts what is new into the store, and what is known where later searches find it.
  void keep();

  /// First bounds, from the single layers, or where these are many from what they take on a
  /// single device. The error is an op that cannot be planned.
  llvm::Error prepare();
  /// Bounds from the single layers on every view, where those that requests rest on are not
  /// enough: for `weightPart`, or where few requests are made at a time.
  llvm::Error askAll();
  /// From now on, as if memory were no matter.
  void ignoreMemory();
  /// From now on stages share the memory of their mesh: the part of one with so many micro-batches
  /// in flight. The name is that of the function, for the store.
  void shareMemory(std::function<double(int64_t inFlight)> partOf, std::string name);
  /// For `orderPipeline`: the context's threads.
  schedule::ForEach forEach() const;
  unsigned numVariants() const { return variants.size(); }
  /// The least bytes of all layers together in a variant on a mesh, as bounds have them.
  LayerBounds::Bytes leastBytes(unsigned variant, unsigned mesh) const {
    return bounds->sumOf(variant * meshes.size() + mesh, 0, numLayers()).least;
  }

  /// Of all layers one after another, each on whichever of the meshes is the fastest for it.
  double leastSeconds(llvm::ArrayRef<unsigned> meshesOfViews) const;

  /// A choice of the DP, with so many micro-batches in flight.
  struct Request {
    unsigned id;
    int64_t inFlight;
  };
  /// Whether nothing but a bound is behind a choice.
  bool isHope(unsigned id) const { return id % kSlots == kHope; }
  unsigned numLayersOf(unsigned id) const {
    auto [lo, hi] = examples[classOf(id)];
    return hi - lo;
  }
  /// Solves the requests, several at a time; those whose bounds can still be sharpened
  /// by prices of their layers get these instead.
  llvm::Error solve(llvm::ArrayRef<Request> requests);
  /// Spends more time on solutions that are further above their bounds than
  /// `tolerance`, once for each. Whether any got better.
  llvm::Expected<bool> improve(llvm::ArrayRef<Request> requests);
  /// From now on; solutions may be improved once more where it falls.
  void setTolerance(double part);
  double tolerance() const { return options.tolerance; }
  /// The fastest known solution for so many micro-batches in flight; none if none fits.
  std::optional<StageChoice> known(unsigned id, int64_t inFlight) const;

  /// Choices after what was solved; with `onlySolved`, without anything that is only a
  /// bound.
  void refresh(bool onlySolved);
  llvm::ArrayRef<StageChoice> choices(unsigned lo, unsigned hi, unsigned submesh) const;

  unsigned variantOfChoice(unsigned id) const { return variantOf(wayOf(id)); }
  /// The plan's layers as they are written now, of whatever variants, and a filter for
  /// each mesh. From then on only `details` and `explainPins` may be asked.
  void settle(LayerOps layers, std::vector<sharding::PlanFilter> filters);
  const cost::LogicalMesh &meshOf(unsigned id) const { return meshes[meshIndex(wayOf(id))]; }
  /// The solution behind a known choice.
  const sharding::StagePoint &pointOf(unsigned id) const;
  /// What splitting its backward phase makes of it.
  llvm::Expected<sharding::BackwardParts> partsOf(unsigned id);
  /// Choices of planned stages with equal layers split alike where that takes at most a part of
  /// `slack` longer, or the choices themselves.
  llvm::Expected<std::vector<StageChoice>> align(llvm::ArrayRef<PlannedStage> stages,
                                                 llvm::ArrayRef<int64_t> inFlight, double slack);
  /// The part of a run's seconds that is the weight part of its backward phase; from
  /// the single layers, on the view on which they are fastest.
  double weightPart(unsigned lo, unsigned hi, unsigned submesh) const;
  /// Ways to run layers on one view, as `refresh` was told to list them.
  llvm::ArrayRef<StageChoice> choicesOn(unsigned lo, unsigned hi, unsigned mesh);
  /// The solutions behind the choices of planned stages with so many micro-batches in flight,
  /// computed anew for their own ops, and where their time goes.
  struct Detail {
    std::shared_ptr<sharding::IntraOpResult> result;
    sharding::Explanation explanation;
  };
  llvm::Expected<std::vector<Detail>> details(llvm::ArrayRef<PlannedStage> stages,
                                              llvm::ArrayRef<int64_t> inFlight) const;
  /// Seconds in which a mesh moves what one of its stages made of a micro-batch to where another
  /// one of them wants it. Of stages that are written in one variant; else they count as alike.
  llvm::Expected<double> moveSeconds(const PlannedStage &from, const PlannedStage &to);
  /// The first of these alone.
  llvm::Expected<std::shared_ptr<sharding::IntraOpResult>> result(const PlannedStage &stage,
                                                                  int64_t inFlight) const;
  using FilterOn =
      llvm::function_ref<llvm::Expected<sharding::PlanFilter>(const cost::LogicalMesh &)>;
  /// Adds what became of the program's sharding constraints in a planned stage; `views` are all
  /// of its submesh, and `free` is what is left of the plans on one of them without constraints.
  llvm::Error explainPins(sharding::Explanation &explanation, const PlannedStage &stage,
                          int64_t inFlight, const sharding::IntraOpResult &result,
                          const sharding::ConstraintPins &pins, llvm::ArrayRef<unsigned> views,
                          FilterOn free) const;

private:
  static constexpr unsigned kSlots = 64;
  static constexpr unsigned kHope = kSlots - 1;

  struct Answer {
    int slot = -1; // Of `chosen`; -1 if nothing fits.
    double boundSeconds = 0;
    bool isImproved = false;
  };
  /// What is known of a class of layer ranges on one way.
  struct Run : SolvedRun {
    std::vector<std::shared_ptr<sharding::StagePoint>> chosen;
    std::map<int64_t, Answer> answers; // By micro-batches in flight.
    double solveSeconds = 0;           // Spent by this process; none where the store knew it.
    /// Chosen points that move values where they come into equal layers, with bounds on the
    /// seconds of such points.
    std::map<unsigned, double> moving;
    /// Chosen points with equal layers split alike, by the points and micro-batches in flight
    /// for which they were looked for.
    std::map<std::pair<unsigned, int64_t>, unsigned> aligned;
    bool isRestored = false; // What the store knows is here.
    bool isNew = false;      // There is more than the store knows.
    unsigned timedOut = 0;   // Solves that the clock ended: not for the store.
  };

  sharding::StageProblem::Effort effort(double exposure = 0) const;
  void count(Run &run) const;
  unsigned classOfLayer(unsigned layer) const {
    return classes[layer * (numLayers() + 1) + layer + 1];
  }
  unsigned numWays() const { return variants.size() * meshes.size(); }
  unsigned wayOf(unsigned id) const { return id / kSlots % numWays(); }
  unsigned classOf(unsigned id) const { return id / kSlots / numWays(); }
  /// A way is a variant on a mesh.
  unsigned variantOf(unsigned way) const { return way / meshes.size(); }
  unsigned meshIndex(unsigned way) const { return way % meshes.size(); }
  cost::CostModel modelOf(unsigned way) const { return cost::CostModel(meshes[meshIndex(way)]); }
  /// Of a device, for a stage with so many micro-batches in flight.
  int64_t memoryOf(unsigned way, int64_t inFlight) const {
    int64_t bytes = options.memoryBytes[meshIndex(way)];
    return isLimited(way) && partOf ? int64_t(double(bytes) * partOf(inFlight)) : bytes;
  }
  bool isLimited(unsigned way) const {
    return options.memoryBytes[meshIndex(way)] < std::numeric_limits<int64_t>::max();
  }
  void forgetAnswers();
  sharding::IntraOpOptions intraOpOptions(unsigned way) const;
  const WrittenLayers &layersOf(unsigned variant) const {
    return settled ? *settled : *variants[variant];
  }
  sharding::StageView viewOf(unsigned lo, unsigned hi, unsigned way) const;
  /// Of the problem of a chosen point.
  sharding::IntraOpOptions intraOpOptions(unsigned id, const sharding::StageView &view) const;
  llvm::Expected<Detail> detail(const PlannedStage &stage, int64_t inFlight, bool explains) const;
  llvm::Expected<std::unique_ptr<sharding::StageProblem>> build(unsigned lo, unsigned hi,
                                                                unsigned way) const;
  llvm::Expected<unsigned> alignRun(Run &run, unsigned rangeClass, unsigned way, unsigned slot,
                                    int64_t inFlight, double slack) const;
  llvm::Error alignMoving(Run &run, unsigned rangeClass, unsigned way, double mostSeconds,
                          int64_t mostBytes, int64_t inFlight, int &slot) const;
  std::pair<LayerRangeKey, unsigned> cacheKey(unsigned rangeClass, unsigned way) const;
  std::string nameOf(unsigned rangeClass, unsigned way) const;
  void restore(Run &run, unsigned rangeClass, unsigned way);
  llvm::SmallVector<unsigned> layersLike(unsigned example, unsigned way) const;
  llvm::Error askLayer(Run &run, unsigned layer, unsigned way) const;
  llvm::Error boundBySingleDevices();
  llvm::Error ask(const std::set<unsigned> &ways);
  llvm::Error askFor(llvm::ArrayRef<Request> requests);
  void boundOtherVariants(unsigned way);
  /// A price curve of a single layer, null until it is traced.
  struct WantedCurve {
    unsigned layer, index;
    std::shared_ptr<PriceCurve> curve;
  };
  using WantedCurves = std::map<std::pair<unsigned, unsigned>, std::vector<WantedCurve>>;
  llvm::Expected<std::vector<Request>> priceLayers(llvm::ArrayRef<Request> requests,
                                                   WantedCurves &curves);
  llvm::Error traceCurves(Run &run, unsigned rangeClass, unsigned way,
                          llvm::MutableArrayRef<WantedCurve> curves) const;
  void takeCurves(const WantedCurves &curves);
  llvm::Error state(Run &run, unsigned rangeClass, unsigned way) const;
  llvm::Error countExposed(Run &run) const;
  llvm::Error answer(Run &run, unsigned rangeClass, unsigned way, int64_t inFlight) const;
  bool canImprove(const Run &run, unsigned way, int64_t inFlight) const;
  llvm::Expected<bool> improve(Run &run, unsigned rangeClass, unsigned way, int64_t inFlight) const;
  int slotOf(Run &run, std::shared_ptr<sharding::StagePoint> point) const;
  void forgetProblems();
  void remember();
  void addLevel(int64_t inFlight);
  void touch(unsigned rangeClass, unsigned way);
  void touchAll(unsigned way);
  void listChoices(unsigned rangeClass, llvm::ArrayRef<unsigned> views, bool onlySolved,
                   std::vector<StageChoice> &list) const;
  const Run *findRun(unsigned rangeClass, unsigned way) const;
  using HeldValues = llvm::DenseMap<mlir::Value, ShardingSpec>;
  llvm::Expected<const HeldValues *> heldValues(const PlannedStage &stage);
  /// A value that a layer makes for each micro-batch, and the layers that read it then.
  struct HandedValue {
    mlir::Value value;
    llvm::SmallVector<unsigned, 2> readers;
  };
  llvm::ArrayRef<HandedValue> handedBy(unsigned variant, unsigned layer);

  mlir::MLIRContext *context;
  std::vector<std::shared_ptr<const KnownLayers>> variants;
  std::optional<WrittenLayers> settled; // All of them, once a plan is written.
  std::vector<cost::LogicalMesh> meshes;
  std::vector<llvm::SmallVector<unsigned>> views;
  StageCostOptions options;
  std::vector<unsigned> classes;                       // By lo and hi, of all variants together.
  std::vector<std::pair<unsigned, unsigned>> examples; // A run of each class.
  std::vector<std::vector<unsigned>> parts;            // Classes of each class by variant.
  /// Single layers that count alike, by variant and layer: numbers of them.
  std::vector<std::vector<unsigned>> layerKinds;
  std::unique_ptr<LayerBounds> bounds;
  /// By way and layer: what devices take and hold if they share a single device's. Empty if all
  /// was asked for at once.
  std::vector<std::vector<LayerBounds::Layer>> shares;
  std::vector<char> isAsked; // By way: whether its single layers are solved.
  std::map<std::pair<unsigned, unsigned>, Run> runs; // By class and way.
  /// By choice and layers; and by those of both stages.
  std::map<std::array<unsigned, 3>, HeldValues> held;
  std::map<std::array<unsigned, 6>, double> moves;
  std::map<std::pair<unsigned, unsigned>, std::vector<HandedValue>> handed; // By variant and layer.
  /// Numbers of micro-batches in flight that are told apart; each stands for all up to
  /// the next.
  std::vector<int64_t> levels;
  /// By class and submesh: with bounds, and of solutions alone.
  struct Table {
    std::vector<std::vector<StageChoice>> choices;
    std::vector<char> isCurrent;
  };
  std::array<Table, 2> tables, tablesOfMeshes; // The latter by class and mesh, on demand.
  bool shown = false;
  std::function<double(int64_t)> partOf; // Null for all of the memory.
  std::string partName;
  std::vector<std::string> meshKeys; // For the store, if there is one.
  size_t solvedCount = 0, reusedCount = 0, solvedLayers = 0;
  std::atomic<size_t> loadedCount = 0;
  unsigned clock = 0;
};

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_COSTS_STAGECOSTS_H
