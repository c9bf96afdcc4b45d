//===- Explain.h - why a stage is split as it is -----------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SHARDING_EXPLAIN_EXPLAIN_H
#define ALPA_COMPILER_SHARDING_EXPLAIN_EXPLAIN_H

#include "compiler/Sharding/Problem/ProblemBuilder.h"
#include "compiler/Sharding/Problem/Strategies.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "llvm/Support/raw_ostream.h"
#include <optional>

namespace alpa::sharding {

/// What one op, or the move of one value, costs in a step, micro-batches included.
struct ExplainedOp {
  std::optional<int64_t> layer;
  std::string name;  // "stablehlo.dot_general", or "argument" for an input that moves.
  std::string where; // JAX's name for it, or of the argument.
  std::string phase;
  std::string specs; // "([S0, R], [R, R]) -> [S0, R]"
  std::string types; // "(8x64xf32, 64x64xf32) -> 8x64xf32", as `specs`; none of a move.
  int64_t computePicoseconds = 0;
  int64_t communicationPicoseconds = 0; // Sums, and operands moved to where it wants them.
  double trafficBytes = 0;              // To and from a device's memory, in a step.
  int64_t kernels = 0;                  // Launched in a step.
  int decision = -1;                    // That it follows, if any.
  bool isWhole = false;                 // Computed by every device of several.
  int64_t wholePicoseconds = 0;         // Of its computation, what sharing it would save.
  int64_t unalignedPicoseconds = 0;     // And rows of multiples of 16 bytes.
  bool maySplit = false;                // Another choice of the decision has devices share it.
  /// Of a product: in how many parts devices share it, if fewer than there are devices.
  int64_t parts = 0;
  std::string line;         // "model.py:12", if known.
  std::string target;       // Of a call.
  bool mayHaveRule = false; // A rule could split the call.
  std::string wholeCall;    // Of a call whose rule is known: why it runs whole.
  std::string wholeTokens;  // Of attention that devices compute alike: why they share no tokens.
};

/// A node of the problem.
struct ExplainedDecision {
  std::optional<int64_t> layer; // Of the op; of an argument the first that uses it.
  std::string name, where, phase;
  std::string chosen;
  std::string types;              // "(8x64xf32, 64x64xf32) -> 8x64xf32", as `chosen` has specs.
  std::vector<std::string> reads; // For each operand of an op the argument that it is, or nothing.
  int64_t picoseconds = 0;        // Of the choice, with what follows it, without moves to others.
  unsigned choices = 0;
  /// The best plan found with another choice here, the decisions beside it
  /// re-optimized in turn and all others as they are; memory is left out of it.
  std::string runnerUp; // Empty if there is no other choice.
  solver::CostSum runnerUpObjective = 0;
};

/// All runs of one collective along one mesh axis.
struct ExplainedTraffic {
  cost::Collective collective = cost::Collective::AllReduce;
  int axis = -1; // A permute may cross several.
  int64_t count = 0;
  double bytes = 0; // Full buffers on one device, as the cost model counts them.
  int64_t picoseconds = 0;
};

/// What one mesh axis splits of the forward products of activations and weights: picoseconds of
/// their computation, by the dimension that it splits. What it splits not at all is in none.
struct ExplainedAxis {
  int64_t data = 0;     // The first dimension of activations that is not 1: examples.
  int64_t sequence = 0; // Another one that the weights do not have.
  int64_t tensor = 0;   // One of the weights: of their inputs, or of their outputs.
  int64_t expert = 0;   // One of both that the result has, too.
  /// Bytes of arguments that the axis splits as they are held: of those that forward or backward
  /// ops read, and of those that the update alone does, such as moments.
  double weightBytes = 0, optimizerBytes = 0;
};

/// A sharding constraint of the program, for all values that come to the same.
struct ExplainedConstraint {
  std::string line;    // "model.py:12", if known, or the name of an argument.
  std::string wants;   // "P('data', None)"
  std::string held;    // "[S0, R]"; empty if it was dropped.
  std::string dropped; // Why.
  int64_t count = 0;   // Values.
};

struct Explanation {
  std::vector<ExplainedOp> ops; // Those that cost anything.
  std::vector<ExplainedDecision> decisions;
  std::vector<ExplainedTraffic> traffic;
  std::vector<ExplainedAxis> axes; // Of the mesh.
  int64_t productPicoseconds = 0;  // Of all products that `axes` is about.
  /// Of `computePicoseconds`: what products would save if all devices shared them.
  int64_t repeatedPicoseconds = 0;
  /// Of `computePicoseconds`: what products would save whose rows were multiples of 16 bytes.
  int64_t unalignedPicoseconds = 0;
  /// Of a step: what layers take that are computed again, with their communication.
  int64_t recomputedPicoseconds = 0;
  /// Of a step: what it costs to move weights in each micro-batch, and to gather new ones.
  int64_t weightMovePicoseconds = 0, newWeightPicoseconds = 0;
  double weightBytes = 0, optimizerBytes = 0;
  /// How values of bodies are held that carry pins.
  llvm::DenseMap<mlir::Value, ShardingSpec> bodySpecs;
  std::vector<ExplainedConstraint> constraints;
  /// What those that are kept cost in a step: with them, less the best that was found without.
  std::optional<double> constraintSeconds;
  int64_t computePicoseconds = 0;
  int64_t communicationPicoseconds = 0;
  /// Of collectives that run beside other work: what costs nothing, and what is left of them
  /// when that has ended. What they slow it down is in `communicationPicoseconds`.
  int64_t hiddenPicoseconds = 0, exposedPicoseconds = 0;
  int64_t heldPicoseconds = 0; // The nominal price on held bytes.
  /// Of copies between devices and their host's memory: that the step waits for, and the rest.
  int64_t hostPicoseconds = 0, hiddenHostPicoseconds = 0;
  solver::CostSum objective = 0; // The problem's, for these choices, and what is exposed.
  int64_t fixedPicoseconds = 0;  // What no choice changes: part of the step, not of the objective.

  void print(llvm::raw_ostream &os, llvm::StringRef onlyOp, size_t most) const;
  mlir::DictionaryAttr toAttribute(mlir::MLIRContext *context) const;
};

/// "model.py:12", the innermost line of the program; empty if none is known.
std::string lineOf(mlir::Operation *op);

/// Takes a solution apart. `choices` are those of the problem's nodes.
Explanation explainChoices(const ProblemBuilder &builder, const cost::CostModel &model,
                           llvm::ArrayRef<unsigned> choices);
/// States the problem anew. `choices` are those of buildIntraOpProblem's nodes.
llvm::Expected<Explanation> explainIntraOp(const StageView &stage, const cost::CostModel &model,
                                           const IntraOpOptions &options,
                                           llvm::ArrayRef<unsigned> choices);

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_EXPLAIN_EXPLAIN_H
