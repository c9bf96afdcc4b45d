//===- StageProblem.h - a stage, solved at many prices -----------*- C++ -*-===//
//
// The problem of a stage on a mesh is stated once and solved at different prices
// on memory. A priced problem has no memory limit, so that it is solved exactly
// and fast; its least cost, less the price of all memory there is, bounds the
// seconds of every plan that fits (Lagrange).
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SHARDING_PROBLEM_STAGEPROBLEM_H
#define ALPA_COMPILER_SHARDING_PROBLEM_STAGEPROBLEM_H

#include "compiler/Sharding/Problem/BackwardParts.h"
#include "compiler/Sharding/Problem/StageMemory.h"
#include "compiler/Solver/PricedProblem.h"

#include <map>
#include <memory>
#include <utility>

namespace alpa::sharding {

/// One way to run a stage, with what it takes for any number of micro-batches in
/// flight.
struct StagePoint {
  std::vector<unsigned> choices; // Of the nodes of the stage's problem.
  double seconds = 0;            // Of one micro-batch, with its share of the update.
  double exposedSeconds = 0;     // Of these, while only collectives run that could hide.
  int64_t stateBytes = 0;
  int64_t activationBytes = 0; // Of one micro-batch in flight.
  /// The most that forward and backward hold with one micro-batch in flight, and
  /// that the update holds; and when, in the liveness order.
  int64_t steadyBytes = 0, updateBytes = 0;
  int64_t steadyTime = 0, updateTime = 0;
  /// In the host's memory, as much as they count: with one micro-batch in flight, and of each.
  int64_t hostBytes = 0, hostActivationBytes = 0;
  int64_t hostTime = 0;
  double copySeconds = 0; // Of `seconds`, waiting for copies of activations.
  IntraOpResult times;    // The seconds of its phases alone.

  int64_t steadyPeakBytes(int64_t inFlight) const {
    return steadyBytes + (inFlight - 1) * activationBytes;
  }
  int64_t deviceBytes(int64_t inFlight) const {
    return std::max(steadyPeakBytes(inFlight), updateBytes);
  }
  int64_t hostPeakBytes(int64_t inFlight) const {
    return hostBytes + (inFlight - 1) * hostActivationBytes;
  }
  int64_t peakBytes(int64_t inFlight) const {
    return std::max(deviceBytes(inFlight), hostPeakBytes(inFlight));
  }
  int64_t peakTime(int64_t inFlight) const {
    if (hostPeakBytes(inFlight) > deviceBytes(inFlight))
      return hostTime;
    return steadyPeakBytes(inFlight) >= updateBytes ? steadyTime : updateTime;
  }
};

/// Bytes of some values, for each node and choice.
struct StageUsage {
  std::vector<solver::NodeBytes> ofNode; // Empty for nodes without any.
  int64_t fixedBytes = 0;                // What no choice changes.

  int64_t bytes(llvm::ArrayRef<unsigned> choices) const;
  /// With the least of each node's choices.
  int64_t leastBytes() const;
  void add(const StageUsage &other, int64_t times);
};

class StageProblem {
public:
  /// The error is an op that cannot be planned.
  static llvm::Expected<std::unique_ptr<StageProblem>>
  build(StageView view, const cost::CostModel &model, const IntraOpOptions &options);

  struct Priced {
    std::shared_ptr<StagePoint> point; // Null if nothing is allowed, or none was found.
    double boundSeconds = 0;           // No choices have fewer priced seconds.
  };
  struct Effort {
    double workLimit = 5e8; // Of the solver: about a second.
    double timeLimitSeconds = 60;
    double acceptableGap = 0; // The search ends when the bound is as close, as a part.
    double exposure = 0;      // Of ProblemBuilder::exposedProblem.
  };
  /// `secondsPerByte` of a micro-batch on what `usage` counts.
  llvm::Expected<Priced> solve(const StageUsage *usage, double secondsPerByte,
                               const Effort &effort) const;
  /// A point's seconds as `solve` counts them, without a price: of collectives that are not hidden
  /// a part, the exposure.
  double countedSeconds(const StagePoint &point, double exposure) const;

  /// The run as one stage, once the free problem is solved: where work ends before the
  /// collectives beside it, with these counted more. Bounds are less sharp there, as
  /// between two kinds of plans that mix no further.
  struct Exposed {
    std::shared_ptr<StagePoint> point; // The fastest that was found.
    double boundSeconds = 0;
    double exposure = 0; // That gave the bound.
  };
  llvm::Expected<Exposed> solveExposed(const Priced &free, Effort effort,
                                       std::vector<std::shared_ptr<StagePoint>> &points) const;

  /// Of parameters, gradients, optimizer state and weights that are prepared here, and of the
  /// activations of one micro-batch, without the values in `uncounted`.
  StageUsage stateUsage(const llvm::DenseSet<mlir::Value> &uncounted = {}) const;
  StageUsage activationUsage(const llvm::DenseSet<mlir::Value> &uncounted = {}) const;
  /// Of what ops hand to each other within a function, at the time before the update at which these
  /// choices have the most of it: any stage with these ops holds as much then, beside all state and
  /// activations.
  StageUsage innerUsage(llvm::ArrayRef<unsigned> choices) const;
  /// Of all that is alive at a time of the liveness order.
  StageUsage usageAt(int64_t time, int64_t inFlight) const;

  /// Null if the choices are none of this problem's, or not allowed.
  std::shared_ptr<StagePoint> evaluate(std::vector<unsigned> choices) const;
  /// The fastest within the limit of those that take the choices of `a` up to some
  /// equation of the forward computation and those of `b` from there on, or the
  /// other way round; null if none is.
  std::shared_ptr<StagePoint> mix(const StagePoint &a, const StagePoint &b, int64_t inFlight,
                                  int64_t limitBytes) const;
  /// A point in which equal layers have equal choices, or all but the first or the last one,
  /// that takes `mostSeconds` and `mostBytes` at most; `point` if it is one, null if none was
  /// found. Values that come into the layers are then held as the layers hand them on, but
  /// for layers that differ. Costs are counted at the exposure for the search.
  llvm::Expected<std::shared_ptr<StagePoint>> alignLayers(std::shared_ptr<StagePoint> point,
                                                          double mostSeconds, int64_t mostBytes,
                                                          int64_t inFlight, bool mayDiffer,
                                                          const Effort &effort) const;
  /// What splitting the backward phase makes of a point.
  BackwardParts backwardParts(const StagePoint &point) const {
    return measureBackwardParts(builder, point.choices);
  }
  IntraOpResult result(const StagePoint &point, double boundSeconds, int64_t inFlight) const;
  /// How it holds its values: `specs` of the result.
  llvm::DenseMap<mlir::Value, ShardingSpec> specs(const StagePoint &point) const {
    return heldSpecs(builder, point.choices);
  }

  /// Solves that the clock ended since this was last asked. Not for several threads.
  unsigned takeTimedOut() const { return std::exchange(timedOut, 0); }
  /// What there is to choose, one for each node.
  llvm::ArrayRef<NodeInfo> nodes() const { return builder.getNodes(); }
  const ProblemBuilder &getBuilder() const { return builder; }
  const cost::CostModel &getModel() const { return model; }
  const StageView &getView() const { return view; }
  /// Memory that the problem itself takes here.
  size_t numBytes() const;

private:
  StageProblem(StageView view, const cost::CostModel &model, const IntraOpOptions &options)
      : view(std::move(view)), model(model), options(options),
        builder(this->view, this->model, this->options) {}
  StageUsage usageOf(llvm::function_ref<bool(const LiveItem &)> counts) const;
  bool isPreparedHere(const LiveItem &item) const;
  std::shared_ptr<StagePoint> measure(std::vector<unsigned> choices,
                                      solver::CostSum objective) const;
  void addItem(const LiveItem &item, std::vector<unsigned> &choices,
               solver::NodeBytes &bytes) const;
  /// For each node the bytes of its items by choice, of each kind: what any usage is a sum of.
  std::vector<llvm::SmallVector<solver::NodeBytes, 1>> bytesOfNodes() const;
  /// The problem that counts collectives that can hide as much.
  solver::PricedProblem &priced(double exposure) const;
  std::vector<int64_t> findEquations() const;
  double seconds(solver::CostSum picoseconds, double fixedPicoseconds) const;

  StageView view;
  cost::CostModel model;
  IntraOpOptions options;
  ProblemBuilder builder;
  Liveness liveness; // With one micro-batch in flight.
  int64_t steadyEnd = 0;
  mutable std::map<double, solver::PricedProblem> pricedAt; // By exposure.
  mutable unsigned timedOut = 0;
};

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_PROBLEM_STAGEPROBLEM_H
