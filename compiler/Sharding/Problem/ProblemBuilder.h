//===- ProblemBuilder.h - a stage as an optimization problem -----*- C++ -*-===//
//
// Ops that split work in ways of their own (dots, convolutions, gathers, and
// inputs) are nodes. Every other op follows its deepest operand: its specs are a
// function of that operand's node's choice, worked out once per distinct spec.
// Three kinds of values have no node to follow yet and are settled by those who
// use them:
//   Free  made of constants alone: made anew wherever it is used, at no cost
//   View  a broadcast to more elements: its operand is what is resharded
//   Lazy  anything made only of Free, View or replicated values: takes the spec
//         that its first user asks for
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SHARDING_PROBLEM_PROBLEMBUILDER_H
#define ALPA_COMPILER_SHARDING_PROBLEM_PROBLEMBUILDER_H

#include "compiler/Sharding/Problem/IntraOp.h"
#include "compiler/Sharding/Problem/OpFacts.h"
#include "compiler/Sharding/Problem/Reshard.h"
#include "compiler/Sharding/Problem/Strategies.h"
#include "compiler/Sharding/Problem/SumCompletion.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "llvm/ADT/DenseSet.h"
#include <map>

namespace alpa::sharding {

/// A spec per choice of a node, as distinct specs and an index per choice.
struct SpecTable {
  llvm::SmallVector<PackedSpec> specs;
  std::vector<uint16_t> index;
};

enum class ValueKind : uint8_t { Settled, Free, View, Lazy };

/// `node` is -1 for a value that is replicated whatever is chosen.
struct ValueInfo {
  mlir::Value value;
  ValueKind kind = ValueKind::Settled;
  int node = -1;
  unsigned table = 0;
  unsigned depth = 0;
  double bytes = 0;
  // How the op makes it, where a filter has it held otherwise at once.
  int madeNode = -1;
  unsigned madeTable = 0;
  bool isMoved = false;
  /// The value, held as terms of a sum, of which this is the sum as the update reads
  /// it: another entry of the same value; or -1.
  int sumOf = -1;
  /// Terms that an op makes which leads, or that links pass on from one: worth a
  /// choice of how their sum is held.
  bool isLed = false;
  /// What a choice of the op that makes the value works with besides, where that is more than
  /// `OpInfo::scratchFits`: no value of the stage.
  bool isScratch = false;
  bool isInput = false;
  bool isHostActivation = false;
  bool isOfState = false;   // Made of state and constants alone, such as a weight in bfloat16.
  bool isAsked = false;     // Some user has said how it wants this Free or View value.
  bool materialized = true; // False if its users compute it on the fly.
  /// Values in memory that whoever computes it reads: itself if materialized.
  llvm::SmallVector<unsigned, 2> reads;
  llvm::SmallVector<unsigned, 1> spread; // Those of them that a broadcast repeats.
  /// Values whose rows the kernel that makes it has in registers: those that it reduces.
  llvm::SmallVector<unsigned, 2> rows;
};

/// What the kernel of an op moves to and from memory.
struct MemoryTraffic {
  /// Of an operand, or of what that is computed from on the fly.
  struct Read {
    unsigned operand = 0;
    double bytes = 0;
    bool isSpread = false; // Read whole, though a broadcast of it is split.
    bool isOfRows = false; // In registers, where the operand's rows are whole.
  };
  struct Write {
    unsigned result = 0;
    double bytes = 0;
  };
  llvm::SmallVector<Read, 2> reads;
  llvm::SmallVector<Write, 1> writes;
  bool isPart = false; // Of a kernel that another op launches, or nothing.
};

struct OpInfo {
  mlir::Operation *op = nullptr;
  const OpFacts *facts = nullptr;
  OpPhase phase = OpPhase::Forward;
  const analysis::ShardingRule *rule = nullptr;
  double flops = 0;
  bool fusible = false;
  const analysis::AttentionCall *attention = nullptr; // In one kernel; or null.
  llvm::ArrayRef<unsigned> deferrable;                // Factors whose sums may wait for the update.
  int link = -1;                                      // Operand whose terms it passes on, or -1.
  llvm::SmallVector<unsigned> operands, results;      // Indices of values.
  int scratch = -1;                                   // Likewise, or -1.
  int64_t scratchFits = 0;                            // Bytes of it that choices need anyway.
  MemoryTraffic traffic;                              // Once the op leads or follows.
};

/// What one device does for an op, but for collectives.
struct LocalWork {
  double flops = 0;
  double bytes = 0;      // To and from memory.
  bool launches = false; // A kernel of its own.
};

struct NodeInfo {
  std::string name;
  mlir::Value value;                                  // Result 0 of the leading op, or the input.
  std::array<std::vector<int64_t>, kNumPhases> costs; // Picoseconds, once.
  std::array<std::vector<int64_t>, kNumPhases> hideable; // Likewise, as if nothing hid them.
  std::vector<Strategy> strategies;                      // Of a leading op, one per choice.
  std::vector<int64_t> heldPrices;                       // Nominal; part of the costs.
  std::vector<int64_t> hostCosts; // Of an input's way from its host's memory; part of the costs.
  size_t numChoices() const { return costs[0].size(); }
};

/// `user` wants operand `operand` with the spec of `table` at its node's choice.
struct OperandDemand {
  unsigned value = 0;
  mlir::Operation *user = nullptr;
  unsigned operand = 0;
  int node = -1;
  unsigned table = 0;
  OpPhase phase = OpPhase::Forward;
  bool charged = false; // A second demand like it costs nothing more.
  int product = -1;     // Node of a dot that may run beside the gather of its operand, or -1.
};

/// How an op that costs anything follows a node: `tensor`, an operand or result of
/// its rule, has the specs of `table`. A leading op has its node's strategies.
struct OpPart {
  unsigned op = 0;
  int node = -1;
  unsigned table = 0;
  bool leads = false;
  analysis::TensorFactors tensor;
};

/// A state argument and the value of the stage that replaces it.
struct CarriedValue {
  unsigned argument = 0;
  unsigned value = 0;
};

/// A value of the stage that waits for its backward phase in the host's memory.
struct HostActivation {
  unsigned value = 0;
  bool isLast = false;  // The last one that goes there: nothing runs beside its copy.
  bool isFirst = false; // Of the first piece that comes back, likewise.
};

/// Seconds of one run of each phase. Collectives whose results nothing waits for at once
/// (gathers of weights, sums of gradients) run beside other work of their phase, and
/// count as much as they slow it down (CostModel::hiddenPart). What is left when that
/// work has ended is exposed. Copies of activations run beside all work of their phase.
struct PhaseSeconds {
  std::array<double, kNumPhases> seconds{}; // With what is exposed.
  double exposedInStep = 0;                 // All runs of all phases; in no cost of the problem.
  /// Of the copies of activations, likewise: what the phases wait for them, and the rest.
  double copiesInStep = 0, hiddenCopiesInStep = 0;
};

/// Values of an op's body that carry pins, and what they are made of; values that no factor
/// splits, or of bodies within the body, are not among them.
llvm::SmallVector<std::pair<mlir::Value, analysis::TensorFactors>> pinsOfBody(mlir::Operation *op);

class ProblemBuilder {
public:
  ProblemBuilder(const StageView &stage, const cost::CostModel &model,
                 const IntraOpOptions &options)
      : stage(stage), model(model), options(options), meshShape(model.getMesh().shape),
        opTable(stage.table ? stage.table : std::make_shared<OpTable>()),
        multiplies8Bits(model.getMesh().device.peakFlopsPerSecond.count("float8")) {}

  llvm::Error build();
  /// The problem without memory, once built. Its matrices are large; copy it only
  /// to change it.
  const solver::Problem &getProblem() const { return problem; }

  /// Index of a value of the stage, or -1.
  int find(mlir::Value value) const;
  PackedSpec specOf(const ValueInfo &info, llvm::ArrayRef<unsigned> choices) const;
  PackedSpec specOf(int node, unsigned table, llvm::ArrayRef<unsigned> choices) const;
  PhaseSeconds phaseSeconds(llvm::ArrayRef<unsigned> choices) const;
  /// A problem whose cost is no more than the seconds of any choices, as that of
  /// getProblem() is. That one counts all work, and of collectives that can hide what
  /// they slow down; with `exposure` 1 this one counts those collectives, and of the
  /// work what they lose to it; between 0 and 1 it counts parts of both.
  solver::Problem exposedProblem(double exposure) const;
  /// What such a problem's choices cost.
  solver::CostSum exposedObjective(llvm::ArrayRef<unsigned> choices, double exposure) const;
  /// What no choice changes of such a problem.
  int64_t fixedPicoseconds(double exposure = 0) const;

  llvm::ArrayRef<int64_t> getMeshShape() const { return meshShape; }
  const std::vector<OpInfo> &getOps() const { return ops; }
  const std::vector<ValueInfo> &getValues() const { return values; }
  const std::vector<SpecTable> &getTables() const { return tables; }
  const std::vector<NodeInfo> &getNodes() const { return nodes; }
  const std::vector<OperandDemand> &getDemands() const { return demands; }
  const std::vector<CarriedValue> &getCarried() const { return carried; }
  bool isInStage(mlir::Operation *op) const { return opIndex.count(op); }

  /// For explanations: the parts of the costs above.
  const std::vector<OpPart> &getParts() const { return parts; }
  Strategy strategyOf(const OpPart &part, const RuleProjection &projection,
                      llvm::ArrayRef<unsigned> choices) const;
  int64_t picoseconds(const OpInfo &info, const RuleProjection &projection,
                      const Strategy &strategy) const;
  /// Of a dot or a convolution.
  cost::Product shapeOfProduct(const OpInfo &info, const RuleProjection &projection,
                               const Strategy &strategy) const;
  /// Nothing of loops, whose costs are those of their bodies.
  LocalWork workOf(const OpInfo &info, const RuleProjection &projection,
                   const Strategy &strategy) const;
  /// Of attention whose tokens are split: what it costs to send keys and values round, beyond the
  /// kernels that run beside it; nothing for other ops.
  llvm::SmallVector<CollectiveUse> ringUses(const OpInfo &info, const RuleProjection &projection,
                                            const Strategy &strategy) const;
  /// What completes the sums that the op gives; of several results those that are read.
  llvm::SmallVector<CollectiveUse> sumUses(const OpInfo &info, const RuleProjection &projection,
                                           const Strategy &strategy) const;
  TensorReshards &reshardsOf(const ValueInfo &value) const;
  /// What it costs in a phase to move a value.
  int64_t movePicoseconds(const ValueInfo &value, PackedSpec from, PackedSpec to,
                          OpPhase phase) const;
  /// What a charged demand costs, with what its product hides of it.
  int64_t demandPicoseconds(const OperandDemand &demand, llvm::ArrayRef<unsigned> choices) const;
  /// What running beside pieces of its product saves of a demand's gather.
  int64_t savedOf(const OperandDemand &demand, llvm::ArrayRef<unsigned> choices) const;
  /// The same of the scatter of a dot's result.
  int64_t savedOf(const OpInfo &info, const RuleProjection &projection,
                  const Strategy &strategy) const;
  /// The part of its seconds that a move of the value, or a sum that the op completes, costs.
  double paidPart(const ValueInfo &value, OpPhase phase) const;
  double paidPart(const OpInfo &info) const;
  /// How the terms of a value with `sumOf` become what the update reads.
  SumCompletion completionOf(const ValueInfo &sum, llvm::ArrayRef<unsigned> choices) const;
  /// How often the ops of a phase run in a step.
  int64_t weight(OpPhase phase) const { return runsOnce(phase) ? 1 : options.numMicroBatches; }
  /// Whether a value of the stage is state in the host's memory.
  bool isOnHost(const ValueInfo &value) const {
    return value.isInput && isHostArgument(value.value);
  }
  llvm::ArrayRef<HostActivation> getHostActivations() const { return hostActivations; }
  /// Bytes of a device that count as much as one of its part of the host's memory: both limits
  /// are one then.
  double hostByteWeight() const;
  /// What copies between devices and their host take in a step; those back run beside others.
  int64_t hostPicoseconds(llvm::ArrayRef<unsigned> choices) const;
  /// The value in memory that a result is another name for, unless it is moved; or -1.
  int aliasOf(const OpInfo &info, unsigned result) const;

private:
  bool isAlias(const OpInfo &info) const; // All of its results are.
  /// Of the sums that an op completes, as if nothing hid them; 0 if nothing does.
  /// Devices that share the tokens of attention, and the axes that they lie along.
  std::pair<int64_t, llvm::SmallVector<unsigned>> ringOf(const OpInfo &info,
                                                         const Strategy &strategy) const;
  /// What one device has of a value that is split as a tensor of the op's rule.
  double localBytes(unsigned value, const analysis::TensorFactors &tensor,
                    const RuleProjection &projection, const Strategy &strategy) const;
  /// The same of the keys and values of attention, and of their gradients in float32.
  double localKeys(const OpInfo &info, const RuleProjection &projection,
                   const Strategy &strategy) const;
  double localKeySums(const OpInfo &info, const RuleProjection &projection,
                      const Strategy &strategy) const;
  double gatheredSeconds(const OpInfo &info, const RuleProjection &projection,
                         const Strategy &strategy) const;
  double attentionSeconds(const OpInfo &info, const RuleProjection &projection,
                          const Strategy &strategy) const;
  /// Adds to `strategies` those that gather keys and values where that is faster; others are never
  /// better.
  void addGathers(const OpInfo &info, const RuleProjection &projection,
                  std::vector<Strategy> &strategies) const;
  /// Of what gathers take, and make backward, on one device.
  void addScratch(OpInfo &info, const RuleProjection &projection, int node,
                  llvm::ArrayRef<Strategy> strategies);
  double groupedSeconds(const OpInfo &info, const RuleProjection &projection,
                        const Strategy &strategy) const;
  int64_t hideablePicoseconds(const OpInfo &info, const RuleProjection &projection,
                              const Strategy &strategy) const;
  void findStateValues(const OpInfo &info);
  void findHostActivations();
  void addHostCopies(llvm::ArrayRef<unsigned> choices, PhaseSeconds &result) const;
  void findValuesForUpdate();
  bool isComputedInUsers(const OpInfo &info) const;
  void findReads(const OpInfo &info);
  MemoryTraffic trafficOf(const OpInfo &info) const;
  double localFlops(const OpInfo &info, const RuleProjection &projection,
                    const Strategy &strategy) const;

  struct Pending {
    unsigned value;
    mlir::Operation *user;
    unsigned operand;
    int node;
    unsigned table;
    OpPhase phase;
  };

  llvm::Error collectOps();
  void addNodesToProblem();
  llvm::Error collectPins();
  unsigned addValue(mlir::Value value);
  /// A value of the stage, or an input, which gets a node of its own.
  unsigned valueOf(mlir::Value value);
  /// The same as an op of that phase reads it: the update reads completed sums.
  unsigned valueFor(OpPhase phase, mlir::Value value);
  unsigned addTable(const std::vector<uint32_t> &codes);
  /// The table whose entry at each choice is `specs` at `base`'s entry.
  unsigned deriveTable(unsigned base, llvm::ArrayRef<PackedSpec> specs);
  int addNode(mlir::Value value, size_t numChoices);

  void visit(const OpInfo &info);
  bool losesAxes(const OpInfo &info, const analysis::TensorFactors &tensor,
                 const SpecTable &table) const;
  void forward(const OpInfo &info);
  /// Charges the way of state from its host's memory.
  void chargeHostCopy(const ValueInfo &value);
  /// Gives the value a node that chooses among all its specs.
  void setAnySpec(unsigned value);
  void lead(const OpInfo &info);
  /// Makes the op follow `node`: `tensor`, an operand or result of its rule, has
  /// the specs of `table`. A second request for a View only passes on demands.
  void settle(const OpInfo &info, const analysis::TensorFactors &tensor, int node, unsigned table,
              bool isFirst, OpPhase phase);
  /// What an op does that has `tensor` as `spec`.
  Strategy strategyFor(const OpInfo &info, const RuleProjection &projection,
                       const analysis::TensorFactors &tensor, PackedSpec spec) const;
  /// Puts off the sums that can wait, if the op's result does.
  void deferSums(const OpInfo &info, Strategy &strategy) const;
  /// Adds the sum of a value that the update reads, if it is held as terms.
  void addSum(unsigned value);
  SumCompletion completion(const ValueInfo &value, PackedSpec from, PackedSpec to) const;
  /// Works off `pending`; no recursion, chains of values can be long.
  void demand();
  void charge(const Pending &request);
  void setSettled(unsigned value, int node, unsigned table);
  void moveAtOnce(const ValueInfo &value);
  /// Whether the filter lets the value be held so.
  bool isAllowed(mlir::Value value, PackedSpec spec) const;
  bool isAllowed(const OpInfo &info, const RuleProjection &projection,
                 const Strategy &strategy) const;
  /// Of the strategies of a loop or branch, those that hold values of its body as pins say, pin
  /// by pin where there are any.
  void keepPinsOfBody(const OpInfo &info, const RuleProjection &projection,
                      std::vector<Strategy> &strategies) const;
  /// The value's specs that are even, keep random keys whole and pass the filter.
  std::vector<uint32_t> possibleSpecs(mlir::Value value);
  /// What is paid is a cost of the problem; what of it could hide counts in full beside it.
  enum class Count : uint8_t { Paid, Hideable };
  void addEdge(unsigned a, unsigned tableA, unsigned b, unsigned tableB,
               llvm::ArrayRef<int64_t> matrix, int64_t times, Count count = Count::Paid);
  /// Adds the moves of a value to the costs of their two nodes, or of one.
  void addMoves(const ValueInfo &value, int from, unsigned fromTable, int to, unsigned toTable,
                OpPhase phase);
  /// Takes off what the pieces of a product save of the gather that it demands.
  void addSavings(const OperandDemand &demand);
  int64_t savedOf(const OperandDemand &demand, PackedSpec from, unsigned choice) const;
  /// The product of a dot whose operand or result is cut along a dimension with that factor;
  /// nothing if it cannot be.
  std::optional<cost::CollectiveMatmul> matmulOf(const OpInfo &info,
                                                 const RuleProjection &projection,
                                                 const Strategy &strategy,
                                                 const analysis::DimFactors &cut) const;
  /// Cost per spec of one table and of the other; empty if none costs anything.
  const std::vector<int64_t> &reshardCosts(unsigned from, unsigned to, const ValueInfo &value);
  int64_t reshardPicoseconds(const ValueInfo &value, PackedSpec from, PackedSpec to) const;
  std::vector<int64_t> &nodeCosts(int node, OpPhase phase, Count count);
  void addNodeCosts(int node, OpPhase phase, unsigned table, llvm::ArrayRef<int64_t> costs,
                    Count count = Count::Paid);
  /// A cost of which `hideable` could hide, at an exposure.
  int64_t counted(int64_t cost, double hideable, double exposure) const;
  int64_t nodeCost(unsigned node, unsigned choice, double exposure) const;
  int64_t edgeCost(unsigned edge, size_t pair, double exposure) const;
  void carryState();
  bool isReplicated(unsigned table) const {
    return tables[table].specs.size() == 1 && tables[table].specs[0] == PackedSpec{};
  }

  const StageView &stage;
  const cost::CostModel &model;
  const IntraOpOptions &options;
  llvm::ArrayRef<int64_t> meshShape;
  std::shared_ptr<OpTable> opTable; // Of the facts of `ops`.
  bool multiplies8Bits;

  std::vector<OpInfo> ops;
  llvm::DenseMap<mlir::Operation *, unsigned> opIndex;
  std::vector<ValueInfo> values;
  llvm::DenseMap<mlir::Value, unsigned> valueIndex;
  std::vector<SpecTable> tables;
  std::map<std::vector<uint32_t>, unsigned> tableIndex, derivedIndex;
  std::vector<NodeInfo> nodes;
  std::vector<HostActivation> hostActivations;
  std::array<int64_t, kNumPhases> fixedCosts{}, fixedHideable{};
  int64_t fixedHostCost = 0; // Of `fixedCosts`.
  solver::Problem problem;
  std::map<unsigned, std::vector<int64_t>> hideableEdges; // Costs of edges that have any.
  llvm::DenseMap<std::pair<unsigned, unsigned>, unsigned> edgeIndex;
  std::vector<OperandDemand> demands;
  std::vector<OpPart> parts;
  mutable ReshardPlanner reshards{model};
  mutable llvm::DenseMap<mlir::Type, TensorReshards *> reshardsOfTypes;
  std::map<std::tuple<unsigned, unsigned, TensorReshards *>, std::vector<int64_t>> reshardIndex;
  llvm::DenseSet<std::pair<uint64_t, uint64_t>> charged;
  std::vector<CarriedValue> carried;
  WaitingValues waiting; // Whose sums may wait for the update, with several micro-batches.
  llvm::DenseSet<mlir::Value> forUpdate; // Of the backward phase, on which only the update rests.
  /// Of a value that kernels of the update read, the first of them: those of one weight are one.
  llvm::DenseMap<unsigned, mlir::Operation *> updateReaders;
  /// What reductions read, with their phases and dimensions; and those that read what another
  /// one does, whose kernel makes both results (the moments of a batch norm).
  std::set<std::vector<unsigned>> reductions;
  llvm::DenseSet<mlir::Operation *> reducedBeside;
  llvm::DenseMap<unsigned, unsigned> sums; // By the value that is held as terms.
  llvm::SmallVector<Pending> pending;
  llvm::DenseMap<mlir::Value, PackedSpec> pinned;
  bool isFiltered = false;
  std::string failure; // The first thing that the filter leaves no way for.
};

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_PROBLEM_PROBLEMBUILDER_H
