//===- Explain.cpp - why a stage is split as it is ------------------------===//

#include "compiler/Sharding/Explain/Explain.h"

#include "compiler/Analysis/Calls/CallRule.h"
#include "compiler/Analysis/RuleBuilder.h"
#include "compiler/Sharding/Problem/ProblemBuilder.h"
#include "compiler/Sharding/Problem/Reshard.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/Operation.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/Path.h"

#include <cmath>
#include <optional>
#include <string>

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;
using cost::Collective;
using solver::CostSum;
using solver::ProblemEdge;

//===----------------------------------------------------------------------===//
// What explanations call ops and values
//===----------------------------------------------------------------------===//

/// JAX's name for an op (null: the one that makes the value), or the name of an argument.
static std::string whereIs(Value value, Operation *op) {
  if (auto argument = llvm::dyn_cast_or_null<BlockArgument>(value)) {
    auto function = llvm::dyn_cast<FunctionOpInterface>(argument.getOwner()->getParentOp());
    auto name = function
                    ? function.getArgAttrOfType<StringAttr>(argument.getArgNumber(), attr::name)
                    : StringAttr();
    return name ? name.getValue().str() : llvm::formatv("{0}", argument.getArgNumber()).str();
  }
  if (!op && value)
    op = value.getDefiningOp();
  std::string where;
  if (op)
    op->getLoc()->walk([&](Location location) {
      if (auto name = llvm::dyn_cast<NameLoc>(location)) {
        where = name.getName().str();
        return WalkResult::interrupt();
      }
      if (auto file = llvm::dyn_cast<FileLineColLoc>(location); file && where.empty())
        where = llvm::formatv("line {0}", file.getLine()).str();
      return WalkResult::advance();
    });
  return where;
}

/// The op's, such as "stablehlo.add", or "argument".
static std::string nameOf(Value value, Operation *op) {
  if (!op && value)
    op = value.getDefiningOp();
  return op ? op->getName().getStringRef().str() : "argument";
}

std::string sharding::lineOf(Operation *op) {
  std::string line;
  op->getLoc()->walk([&](Location location) {
    auto file = llvm::dyn_cast<FileLineColLoc>(location);
    if (!file)
      return WalkResult::advance();
    line = llvm::formatv("{0}:{1}", llvm::sys::path::filename(file.getFilename().getValue()),
                         file.getLine());
    return WalkResult::interrupt();
  });
  return line;
}

/// The layer of the op that makes a value; of an argument the first layer that uses it.
static std::optional<int64_t> layerOf(Value value) {
  if (Operation *op = value.getDefiningOp())
    return layerOf(op);
  std::optional<int64_t> first;
  for (Operation *user : value.getUsers())
    if (std::optional<int64_t> layer = layerOf(user); layer && (!first || *layer < *first))
      first = layer;
  return first;
}

/// "8x64xf32".
static std::string typeText(Type type) {
  std::string text;
  llvm::raw_string_ostream os(text);
  if (auto tensor = llvm::dyn_cast<RankedTensorType>(type)) {
    for (int64_t size : tensor.getShape())
      os << size << "x";
    type = tensor.getElementType();
  }
  os << type;
  return text;
}

/// "(8x64xf32, 64xf32) -> 8x64xf32".
static std::string typesText(Operation *op) {
  auto list = [](TypeRange types) { return llvm::join(llvm::map_range(types, typeText), ", "); };
  return "(" + list(op->getOperandTypes()) + ") -> " + list(op->getResultTypes());
}

/// The argument that a value is, in another precision or form; else nothing.
static BlockArgument argumentBehind(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (op->getNumOperands() != 1 || op->getNumRegions() > 0)
      return {};
    value = op->getOperand(0);
  }
  return llvm::cast<BlockArgument>(value);
}

static std::string argumentOf(Value value) {
  BlockArgument argument = argumentBehind(value);
  return argument ? whereIs(argument, nullptr) : "";
}

/// Whether an argument of @main is state of the step.
static bool isState(BlockArgument argument) {
  auto main = llvm::dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp());
  if (!main)
    return false;
  auto kind = main.getArgAttrOfType<StringAttr>(argument.getArgNumber(), attr::kind);
  return kind && kind.getValue() == "state";
}

/// The dimension of a tensor that a factor is in; -1 if it is in none.
static int64_t dimensionOf(const analysis::TensorFactors &tensor, unsigned factor) {
  for (auto [dim, factors] : llvm::enumerate(tensor))
    if (llvm::is_contained(factors, factor))
      return static_cast<int64_t>(dim);
  return -1;
}

//===----------------------------------------------------------------------===//
// Why a stage is split as it is
//===----------------------------------------------------------------------===//

namespace {

class Explainer {
public:
  Explainer(const ProblemBuilder &builder, const cost::CostModel &model,
            llvm::ArrayRef<unsigned> choices)
      : builder(builder), model(model), choices(choices), problem(builder.getProblem()) {
    for (const OpPart &part : builder.getParts())
      if (part.leads && part.node >= 0)
        leaders[part.node] = &part;
  }

  Explanation run() {
    explanation.axes.resize(builder.getMeshShape().size());
    addOps();
    addHeldState();
    addMoves();
    addHeldPrices();
    addRecomputed();
    addExposed();
    addDecisions();
    addRunnersUp();
    explanation.objective = objectiveOf(choices) + explanation.exposedPicoseconds + copyPicoseconds;
    explanation.fixedPicoseconds = builder.fixedPicoseconds();
    return std::move(explanation);
  }

private:
  void addOps();
  /// Whether any choice of the op's decision has devices share it.
  bool maySplit(const OpPart &part, const RuleProjection &projection);
  /// What the mesh's axes split, if the op multiplies activations by weights.
  void addAxes(const OpInfo &info, const Strategy &strategy, int64_t picoseconds);
  /// What they split of weights and moments.
  void addHeldState();
  void addMoves();
  void addMove(const ValueInfo &value, PackedSpec from, PackedSpec to, OpPhase phase,
               Operation *user, int64_t saved = 0);
  void addSum(const ValueInfo &sum);
  void addHeldPrices();
  void addRecomputed();
  void addExposed();
  /// Of a collective of so many picoseconds in a step what is paid, but for what a product
  /// saves of it.
  int64_t pay(int64_t picoseconds, double part, int64_t saved = 0);
  void addDecisions();
  void addRunnersUp();
  void addTraffic(Collective collective, int axis, int64_t count, double bytes,
                  int64_t picoseconds);
  CostSum objectiveOf(llvm::ArrayRef<unsigned> assignment) const;
  std::string specsOf(const OpInfo &info, const Strategy &strategy) const;
  std::string textOf(Value value, PackedSpec spec) const {
    return spec.unpack(analysis::shapeOf(value).size(), builder.getMeshShape().size()).str();
  }

  const ProblemBuilder &builder;
  const cost::CostModel &model;
  llvm::ArrayRef<unsigned> choices;
  const solver::Problem &problem;
  llvm::DenseMap<int, const OpPart *> leaders; // By the node that decides about them.
  Explanation explanation;
  int64_t copyPicoseconds = 0; // Of copies of activations, as far as a step waits for them.
  llvm::DenseMap<Operation *, size_t> rowOf;
};

} // namespace

std::string Explainer::specsOf(const OpInfo &info, const Strategy &strategy) const {
  RuleProjection projection(*info.rule, builder.getMeshShape());
  std::string text = "(";
  for (auto [i, value, tensor] : llvm::enumerate(info.op->getOperands(), info.rule->operands))
    text += (i ? ", " : "") + textOf(value, projection.toSpec(tensor, strategy.axes));
  text += ") -> ";
  for (auto [i, value, tensor] : llvm::enumerate(info.op->getResults(), info.rule->results)) {
    PackedSpec spec = projection.toSpec(tensor, strategy.axes);
    text += (i ? ", " : "") + textOf(value, i == 0 ? scatteredSpec(spec, strategy) : spec);
  }
  return strategy.gathersKeys ? text + ", keys gathered" : text;
}

void Explainer::addTraffic(Collective collective, int axis, int64_t count, double bytes,
                           int64_t picoseconds) {
  auto found = llvm::find_if(explanation.traffic, [&](const ExplainedTraffic &traffic) {
    return traffic.collective == collective && traffic.axis == axis;
  });
  if (found == explanation.traffic.end()) {
    explanation.traffic.push_back({collective, axis, 0, 0, 0});
    found = std::prev(explanation.traffic.end());
  }
  found->count += count;
  found->bytes += bytes;
  found->picoseconds += picoseconds;
  explanation.communicationPicoseconds += picoseconds;
}

int64_t Explainer::pay(int64_t picoseconds, double part, int64_t saved) {
  int64_t paid =
      (part == 1 ? picoseconds : std::llround(static_cast<double>(picoseconds) * part)) - saved;
  explanation.hiddenPicoseconds += picoseconds - paid;
  return paid;
}

void Explainer::addRecomputed() {
  for (auto [op, index] : rowOf)
    if (op->hasAttr(attr::recomputes))
      explanation.recomputedPicoseconds += explanation.ops[index].computePicoseconds +
                                           explanation.ops[index].communicationPicoseconds;
}

void Explainer::addExposed() {
  PhaseSeconds run = builder.phaseSeconds(choices);
  explanation.exposedPicoseconds = toPicoseconds(run.exposedInStep);
  copyPicoseconds = toPicoseconds(run.copiesInStep);
  explanation.hostPicoseconds = builder.hostPicoseconds(choices) + copyPicoseconds;
  explanation.hiddenHostPicoseconds = toPicoseconds(run.hiddenCopiesInStep);
  explanation.hiddenPicoseconds -= explanation.exposedPicoseconds;
}

/// Why a call whose rule is known runs whole.
static StringRef whyWhole(const OpInfo &info, bool maySplit) {
  if (maySplit)
    return "moves for a split would cost more";
  StringRef why = info.attention ? info.attention->whyWhole() : "";
  return !why.empty() ? why
                      : "the mesh divides nothing that it splits, or the method keeps that whole";
}

void Explainer::addOps() {
  int64_t numDevices = 1;
  for (int64_t size : builder.getMeshShape())
    numDevices *= size;
  bool isSeveral = numDevices > 1;
  int64_t launchPicoseconds = toPicoseconds(model.getMesh().device.launchSeconds);
  for (const OpPart &part : builder.getParts()) {
    const OpInfo &info = builder.getOps()[part.op];
    RuleProjection projection(*info.rule, builder.getMeshShape());
    Strategy strategy = builder.strategyOf(part, projection, choices);
    for (const auto &[value, tensor] : pinsOfBody(info.op))
      explanation.bodySpecs[value] = projection.toSpec(tensor, strategy.axes)
                                         .unpack(tensor.size(), builder.getMeshShape().size());
    int64_t times = builder.weight(info.phase);
    ExplainedOp row;
    row.computePicoseconds = times * builder.picoseconds(info, projection, strategy);
    if (info.rule->work.empty()) {
      LocalWork work = builder.workOf(info, projection, strategy);
      row.trafficBytes = static_cast<double>(times) * work.bytes;
      row.kernels = work.launches ? times : 0;
    }
    llvm::SmallVector<CollectiveUse> uses;
    if (!info.rule->work.empty())
      uses = bodyUses(*info.rule, strategy.axes, projection, model);
    else if (row.computePicoseconds > 0) {
      uses = builder.ringUses(info, projection, strategy);
      llvm::append_range(uses, builder.sumUses(info, projection, strategy));
    }
    int64_t saved = uses.empty() ? 0 : times * builder.savedOf(info, projection, strategy);
    for (const CollectiveUse &use : uses) { // One, where anything is saved.
      int64_t picoseconds = pay(times * toPicoseconds(use.seconds), builder.paidPart(info), saved);
      row.communicationPicoseconds += picoseconds;
      row.computePicoseconds -= picoseconds;
      addTraffic(use.collective, static_cast<int>(use.axis),
                 times * static_cast<int64_t>(use.times),
                 static_cast<double>(times) * use.times * use.bytes, picoseconds);
    }
    explanation.computePicoseconds += row.computePicoseconds;
    addAxes(info, strategy, row.computePicoseconds);
    row.name = nameOf(Value(), info.op);
    row.where = whereIs(Value(), info.op);
    row.phase = phaseName(info.phase);
    row.layer = layerOf(info.op);
    row.specs = specsOf(info, strategy);
    row.types = typesText(info.op);
    row.decision = part.node;
    int64_t shares = projection.numShares(strategy.axes);
    row.isWhole = isSeveral && shares == 1;
    if (row.isWhole) {
      int64_t least = std::min(row.computePicoseconds, row.kernels * launchPicoseconds);
      row.wholePicoseconds =
          row.computePicoseconds - std::max(least, row.computePicoseconds / numDevices);
      row.maySplit = maySplit(part, projection);
    }
    if (info.rule->heavy && !info.attention) {
      double part = model.alignedPart(builder.shapeOfProduct(info, projection, strategy),
                                      info.facts->computeType);
      row.unalignedPicoseconds = std::llround(row.computePicoseconds * (1 - part));
      explanation.unalignedPicoseconds += row.unalignedPicoseconds;
    }
    if (info.rule->heavy && shares < numDevices) {
      row.parts = shares;
      explanation.repeatedPicoseconds +=
          row.computePicoseconds - row.computePicoseconds * shares / numDevices;
      if (info.attention)
        row.wholeTokens = info.attention->whyTokensStay().str();
    }
    row.line = lineOf(info.op);
    if (auto call = llvm::dyn_cast<stablehlo::CustomCallOp>(info.op)) {
      row.target = call.getCallTargetName().str();
      bool isKnown = analysis::isKnownCall(call);
      row.mayHaveRule = !isKnown && analysis::mayHaveCallRule(call);
      if (isKnown && row.isWhole)
        row.wholeCall = whyWhole(info, row.maySplit).str();
    }
    if (auto map = llvm::dyn_cast<MapOp>(info.op))
      map.getBody().walk([&](stablehlo::CustomCallOp call) {
        row.target = call.getCallTargetName().str();
        return mlir::WalkResult::interrupt();
      });
    rowOf[info.op] = explanation.ops.size();
    explanation.ops.push_back(std::move(row));
  }
}

bool Explainer::maySplit(const OpPart &part, const RuleProjection &projection) {
  if (part.node < 0)
    return false;
  llvm::SmallVector<unsigned> plan(choices);
  for (auto [choice, cost] : llvm::enumerate(problem.nodes[part.node].costs)) {
    plan[part.node] = static_cast<unsigned>(choice);
    if (cost < solver::kForbiddenCost &&
        projection.numShares(builder.strategyOf(part, projection, plan).axes) > 1)
      return true;
  }
  return false;
}

void Explainer::addAxes(const OpInfo &info, const Strategy &strategy, int64_t picoseconds) {
  if (info.phase != OpPhase::Forward ||
      !llvm::isa<stablehlo::DotGeneralOp, stablehlo::ConvolutionOp>(info.op))
    return;
  auto isOfWeights = [&](unsigned number) {
    const ValueInfo &read = builder.getValues()[number];
    // A tied embedding may be converted by another stage, which owns it.
    Value value = read.value;
    for (Operation *op = value.getDefiningOp(); op && op->getNumOperands() == 1;
         op = value.getDefiningOp())
      value = op->getOperand(0);
    auto argument = llvm::dyn_cast<BlockArgument>(value);
    return read.isOfState || (argument && isState(argument));
  };
  bool isLeft = isOfWeights(info.operands[0]), isRight = isOfWeights(info.operands[1]);
  if (isLeft == isRight)
    return;
  const analysis::TensorFactors &weight = info.rule->operands[isLeft ? 0 : 1];
  const analysis::TensorFactors &activation = info.rule->operands[isLeft ? 1 : 0];
  explanation.productPicoseconds += picoseconds;
  // The rounds of a micro-batch of one round are a dimension of size 1.
  llvm::ArrayRef<int64_t> sizes = analysis::shapeOf(info.op->getOperand(isLeft ? 1 : 0));
  int64_t first = llvm::find_if(sizes, [](int64_t size) { return size > 1; }) - sizes.begin();
  for (auto [axis, row] : llvm::enumerate(explanation.axes)) {
    int16_t split = strategy.axes.factor[axis];
    if (split < 0)
      continue;
    int64_t ofActivation = dimensionOf(activation, split);
    if (dimensionOf(weight, split) < 0)
      (ofActivation == first ? row.data : row.sequence) += picoseconds;
    else
      (ofActivation >= 0 && dimensionOf(info.rule->results[0], split) >= 0 ? row.expert
                                                                           : row.tensor) +=
          picoseconds;
  }
}

void Explainer::addHeldState() {
  llvm::ArrayRef<int64_t> meshShape = builder.getMeshShape();
  for (const ValueInfo &value : builder.getValues()) {
    auto argument = llvm::dyn_cast<BlockArgument>(value.value);
    if (!argument || value.sumOf >= 0 || !isState(argument))
      continue;
    bool isOptimizer = llvm::all_of(argument.getUsers(), [](Operation *user) {
      return opPhaseOf(user) == OpPhase::Update || user->hasTrait<OpTrait::IsTerminator>();
    });
    (isOptimizer ? explanation.optimizerBytes : explanation.weightBytes) += value.bytes;
    ShardingSpec held =
        builder.specOf(value, choices).unpack(analysis::shapeOf(argument).size(), meshShape.size());
    for (const auto &dim : held.dims)
      for (unsigned axis : dim) {
        ExplainedAxis &row = explanation.axes[axis];
        (isOptimizer ? row.optimizerBytes : row.weightBytes) += value.bytes;
      }
  }
}

void Explainer::addMove(const ValueInfo &value, PackedSpec from, PackedSpec to, OpPhase phase,
                        Operation *user, int64_t saved) {
  if (from == to)
    return;
  llvm::ArrayRef<int64_t> meshShape = builder.getMeshShape();
  size_t rank = analysis::shapeOf(value.value).size();
  ShardingSpec held = from.unpack(rank, meshShape.size());
  auto steps = builder.reshardsOf(value).path(held, to.unpack(rank, meshShape.size()));
  if (!steps)
    return; // Of forbidden cost: no solution has it.
  int64_t times = builder.weight(phase), sum = 0;
  for (const ReshardStep &step : *steps) {
    double localBytes = value.bytes / static_cast<double>(held.numPieces(meshShape));
    held = step.spec;
    if (step.kind == ReshardKind::Slice)
      continue;
    int64_t picoseconds =
        pay(times * step.picoseconds, builder.paidPart(value, phase), times * saved);
    saved = 0; // It was of the only step.
    sum += picoseconds;
    double bytes = static_cast<double>(times) * localBytes;
    switch (step.kind) {
    case ReshardKind::AllGather:
      addTraffic(Collective::AllGather, static_cast<int>(step.axis), times,
                 bytes * static_cast<double>(meshShape[step.axis]), picoseconds);
      break;
    case ReshardKind::AllToAll:
      addTraffic(Collective::AllToAll, static_cast<int>(step.axis), times, bytes, picoseconds);
      break;
    default:
      addTraffic(Collective::Permute, -1, times, bytes, picoseconds);
    }
  }
  if (value.isOfState && !runsOnce(phase))
    explanation.weightMovePicoseconds += sum;
  bool gathers = llvm::any_of(
      *steps, [](const ReshardStep &step) { return step.kind == ReshardKind::AllGather; });
  if (gathers && phase == OpPhase::Update)
    explanation.newWeightPicoseconds += sum;
  // A move belongs to the op that asked for it, else to the one that made the value.
  Operation *owner = user ? user : value.value.getDefiningOp();
  auto row = rowOf.find(owner);
  if (owner && row != rowOf.end()) {
    explanation.ops[row->second].communicationPicoseconds += sum;
    return;
  }
  ExplainedOp added;
  added.name = nameOf(value.value, user);
  added.where = whereIs(user ? Value() : value.value, user);
  added.phase = phaseName(phase);
  added.layer = owner ? layerOf(owner) : layerOf(value.value);
  added.specs = textOf(value.value, from) + " -> " + textOf(value.value, to);
  added.communicationPicoseconds = sum;
  added.decision = value.node;
  explanation.ops.push_back(std::move(added));
}

/// The sum of terms that waited for the update.
void Explainer::addSum(const ValueInfo &sum) {
  SumCompletion completion = builder.completionOf(sum, choices);
  if (completion.picoseconds == 0)
    return;
  PackedSpec terms = builder.specOf(builder.getValues()[sum.sumOf], choices);
  int64_t picoseconds = 0;
  for (const CollectiveUse &use : completion.uses) {
    addTraffic(use.collective, static_cast<int>(use.axis), 1, use.bytes,
               toPicoseconds(use.seconds));
    picoseconds += toPicoseconds(use.seconds);
  }
  if (!completion.uses.empty()) {
    ExplainedOp row;
    row.name = nameOf(sum.value, nullptr);
    row.where = whereIs(sum.value, nullptr);
    row.phase = phaseName(OpPhase::Update);
    row.layer = layerOf(sum.value);
    row.specs = textOf(sum.value, terms) + " -> " + textOf(sum.value, completion.summed);
    row.communicationPicoseconds = picoseconds;
    row.decision = sum.node;
    explanation.ops.push_back(std::move(row));
  }
  addMove(sum, completion.summed, builder.specOf(sum, choices), OpPhase::Update, nullptr);
}

void Explainer::addMoves() {
  for (const ValueInfo &value : builder.getValues())
    if (value.sumOf >= 0)
      addSum(value);
  for (const OperandDemand &demand : builder.getDemands()) {
    if (!demand.charged)
      continue;
    const ValueInfo &value = builder.getValues()[demand.value];
    addMove(value, builder.specOf(value, choices),
            builder.specOf(demand.node, demand.table, choices), demand.phase, demand.user,
            builder.savedOf(demand, choices));
  }
  for (const ValueInfo &value : builder.getValues())
    if (value.isMoved && value.madeNode >= 0)
      addMove(value, builder.specOf(value.madeNode, value.madeTable, choices),
              builder.specOf(value, choices), opPhaseOf(value.value.getDefiningOp()), nullptr);
}

void Explainer::addHeldPrices() {
  for (auto [node, choice] : llvm::zip_equal(builder.getNodes(), choices))
    if (!node.heldPrices.empty())
      explanation.heldPicoseconds += node.heldPrices[choice];
}

void Explainer::addDecisions() {
  // The table of the value that a node without an op of its own decides about.
  llvm::DenseMap<int, const ValueInfo *> valueOf;
  for (const ValueInfo &value : builder.getValues())
    if (value.node >= 0 && builder.getNodes()[value.node].value == value.value)
      valueOf[value.node] = &value;
  for (auto [index, node, choice] : llvm::enumerate(builder.getNodes(), choices)) {
    ExplainedDecision row;
    const OpPart *part = leaders.lookup(static_cast<int>(index));
    Operation *op = part ? builder.getOps()[part->op].op : nullptr;
    row.name = nameOf(node.value, op);
    row.where = whereIs(op ? Value() : node.value, op);
    if (Operation *maker = op ? op : node.value.getDefiningOp())
      row.phase = phaseName(opPhaseOf(maker));
    row.layer = op ? layerOf(op) : layerOf(node.value);
    row.types = op ? typesText(op) : typeText(node.value.getType());
    if (op)
      for (Value operand : op->getOperands())
        row.reads.push_back(argumentOf(operand));
    row.choices = node.numChoices();
    row.picoseconds = problem.nodes[index].costs[choice];
    if (part)
      row.chosen = specsOf(builder.getOps()[part->op], node.strategies[choice]);
    else if (const ValueInfo *value = valueOf.lookup(static_cast<int>(index)))
      row.chosen = textOf(value->value, builder.specOf(*value, choices));
    explanation.decisions.push_back(std::move(row));
  }
}

CostSum Explainer::objectiveOf(llvm::ArrayRef<unsigned> assignment) const {
  CostSum sum = 0;
  for (auto [node, choice] : llvm::zip_equal(problem.nodes, assignment))
    sum += node.costs[choice];
  for (const ProblemEdge &edge : problem.edges)
    sum += edge.costs[assignment[edge.a] * problem.nodes[edge.b].costs.size() + assignment[edge.b]];
  return sum;
}

/// Looks at every other choice of a node with every neighbour at its best for it
/// alone; the best of these is then made a plan: neighbours are set one after
/// another, each against all that is set, and that plan's true cost counts.
void Explainer::addRunnersUp() {
  size_t count = problem.nodes.size();
  std::vector<llvm::SmallVector<unsigned>> edgesOf(count);
  for (auto [index, edge] : llvm::enumerate(problem.edges)) {
    edgesOf[edge.a].push_back(index);
    edgesOf[edge.b].push_back(index);
  }
  auto costOf = [&](const ProblemEdge &edge, unsigned node, unsigned choice, unsigned other) {
    size_t columns = problem.nodes[edge.b].costs.size();
    return edge.a == node ? edge.costs[choice * columns + other]
                          : edge.costs[other * columns + choice];
  };
  auto neighbour = [](const ProblemEdge &edge, unsigned node) {
    return edge.a == node ? edge.b : edge.a;
  };
  std::vector<unsigned> plan(choices.begin(), choices.end());
  // A node's costs by choice, against what `plan` has around it.
  auto conditional = [&](unsigned node) {
    std::vector<CostSum> costs(problem.nodes[node].costs.begin(), problem.nodes[node].costs.end());
    for (unsigned index : edgesOf[node]) {
      const ProblemEdge &edge = problem.edges[index];
      for (unsigned choice = 0; choice < costs.size(); ++choice)
        costs[choice] += costOf(edge, node, choice, plan[neighbour(edge, node)]);
    }
    return costs;
  };
  std::vector<std::vector<CostSum>> settled(count);
  for (unsigned node = 0; node < count; ++node)
    settled[node] = conditional(node);
  CostSum objective = objectiveOf(choices);
  for (unsigned node = 0; node < count; ++node) {
    ExplainedDecision &row = explanation.decisions[node];
    if (row.choices < 2)
      continue;
    CostSum best = 0;
    int bestChoice = -1;
    for (unsigned choice = 0; choice < row.choices; ++choice) {
      if (choice == choices[node] || problem.nodes[node].costs[choice] >= solver::kForbiddenCost)
        continue;
      CostSum cost = problem.nodes[node].costs[choice];
      for (unsigned index : edgesOf[node]) {
        const ProblemEdge &edge = problem.edges[index];
        unsigned other = neighbour(edge, node);
        CostSum least = 0;
        for (unsigned j = 0; j < settled[other].size(); ++j) {
          CostSum here = settled[other][j] - costOf(edge, node, choices[node], j) +
                         costOf(edge, node, choice, j);
          if (j == 0 || here < least)
            least = here;
        }
        cost += least - settled[other][choices[other]];
      }
      if (bestChoice < 0 || cost < best) {
        best = cost;
        bestChoice = static_cast<int>(choice);
      }
    }
    if (bestChoice < 0)
      continue;
    plan[node] = bestChoice;
    CostSum change = settled[node][bestChoice] - settled[node][choices[node]];
    llvm::SmallVector<unsigned> moved;
    for (unsigned index : edgesOf[node]) {
      unsigned other = neighbour(problem.edges[index], node);
      std::vector<CostSum> costs = conditional(other);
      auto least = llvm::min_element(costs);
      if (*least >= costs[plan[other]])
        continue;
      change += *least - costs[plan[other]];
      plan[other] = least - costs.begin();
      moved.push_back(other);
    }
    if (objective + change < solver::kForbiddenCost) {
      row.runnerUpObjective = objective + change;
      const NodeInfo &info = builder.getNodes()[node];
      Operation *op = info.value.getDefiningOp();
      if (!info.strategies.empty() && op) {
        if (const OpPart *part = leaders.lookup(static_cast<int>(node)))
          row.runnerUp = specsOf(builder.getOps()[part->op], info.strategies[bestChoice]);
      } else if (int index = builder.find(info.value); index >= 0) {
        const ValueInfo &value = builder.getValues()[index];
        if (value.node == static_cast<int>(node))
          row.runnerUp = textOf(value.value, builder.specOf(value, plan));
      }
    }
    plan[node] = choices[node];
    for (unsigned other : moved)
      plan[other] = choices[other];
  }
}

Strategy ProblemBuilder::strategyOf(const OpPart &part, const RuleProjection &projection,
                                    llvm::ArrayRef<unsigned> choices) const {
  if (part.leads)
    return part.node < 0 ? Strategy() : nodes[part.node].strategies[choices[part.node]];
  PackedSpec spec =
      part.node < 0 ? tables[part.table].specs[0] : specOf(part.node, part.table, choices);
  return strategyFor(ops[part.op], projection, part.tensor, spec);
}

Explanation sharding::explainChoices(const ProblemBuilder &builder, const cost::CostModel &model,
                                     llvm::ArrayRef<unsigned> choices) {
  return Explainer(builder, model, choices).run();
}

llvm::Expected<Explanation> sharding::explainIntraOp(const StageView &stage,
                                                     const cost::CostModel &model,
                                                     const IntraOpOptions &options,
                                                     llvm::ArrayRef<unsigned> choices) {
  ProblemBuilder builder(stage, model, options);
  if (llvm::Error error = builder.build())
    return error;
  const std::vector<NodeInfo> &nodes = builder.getNodes();
  if (choices.size() != nodes.size())
    return llvm::createStringError("the problem has %zu nodes, but there are %zu choices",
                                   nodes.size(), choices.size());
  for (auto [node, choice] : llvm::zip_equal(nodes, choices))
    if (choice >= node.numChoices())
      return llvm::createStringError("%s has %zu choices, but choice %u is to be explained",
                                     node.name.c_str(), node.numChoices(), choice);
  return explainChoices(builder, model, choices);
}

//===----------------------------------------------------------------------===//
// Explanations for people and plans
//===----------------------------------------------------------------------===//

static std::string formatTime(double picoseconds) {
  double magnitude = picoseconds < 0 ? -picoseconds : picoseconds;
  if (magnitude >= 1e12)
    return llvm::formatv("{0:F3} s", picoseconds * 1e-12);
  if (magnitude >= 1e9)
    return llvm::formatv("{0:F3} ms", picoseconds * 1e-9);
  return llvm::formatv("{0:F3} us", picoseconds * 1e-6);
}

static std::string describeOp(llvm::StringRef name, llvm::StringRef where, llvm::StringRef phase) {
  return (name + (where.empty() ? "" : " " + where) + (phase.empty() ? "" : ", " + phase)).str();
}

void Explanation::print(llvm::raw_ostream &os, llvm::StringRef onlyOp, size_t most) const {
  auto isWanted = [&](llvm::StringRef name, llvm::StringRef where) {
    return onlyOp.empty() || name.contains(onlyOp) || where.contains(onlyOp);
  };
  int64_t total = computePicoseconds + communicationPicoseconds + exposedPicoseconds +
                  heldPicoseconds + hostPicoseconds;
  os << llvm::formatv("a step takes {0}: {1} of computation, {2} of communication, {3} as the "
                      "price of held bytes\n",
                      formatTime(total), formatTime(computePicoseconds),
                      formatTime(communicationPicoseconds), formatTime(heldPicoseconds));
  if (hiddenPicoseconds + exposedPicoseconds > 0)
    os << llvm::formatv("{0} of communication more are hidden by other work; {1} are left when "
                        "that has ended\n",
                        formatTime(hiddenPicoseconds), formatTime(exposedPicoseconds));
  if (hostPicoseconds > 0)
    os << llvm::formatv("{0} are copies between devices and the memory of their hosts\n",
                        formatTime(hostPicoseconds));
  if (hiddenHostPicoseconds > 0)
    os << llvm::formatv("{0} of such copies more are hidden by other work\n",
                        formatTime(hiddenHostPicoseconds));
  os << llvm::formatv("the problem's objective is {0}; {1} no choice can change\n",
                      formatTime(static_cast<double>(objective)), formatTime(fixedPicoseconds));
  os << "\ncommunication\n";
  std::vector<ExplainedTraffic> sorted = traffic;
  llvm::sort(sorted, [](const ExplainedTraffic &a, const ExplainedTraffic &b) {
    return std::make_tuple(-a.picoseconds, a.collective, a.axis) <
           std::make_tuple(-b.picoseconds, b.collective, b.axis);
  });
  for (const ExplainedTraffic &row : sorted)
    os << llvm::formatv("  {0,-20} {1,-8} {2,6} times {3,12:F3} MB {4,12}\n",
                        cost::collectiveNames()[static_cast<size_t>(row.collective)],
                        row.axis < 0 ? "any axis" : llvm::formatv("axis {0}", row.axis).str(),
                        row.count, row.bytes * 1e-6, formatTime(row.picoseconds));

  if (!constraints.empty()) {
    os << "\nsharding constraints";
    if (constraintSeconds)
      os << llvm::formatv(", which cost {0} a step", formatTime(*constraintSeconds * 1e12));
    os << "\n";
  }
  for (const ExplainedConstraint &row : constraints)
    os << llvm::formatv("  {0} {1}, {2} values: {3}\n", row.line, row.wants, row.count,
                        row.held.empty() ? "dropped, since " + row.dropped : "held as " + row.held);

  std::vector<const ExplainedOp *> dear;
  for (const ExplainedOp &row : ops)
    if (isWanted(row.name, row.where) && row.computePicoseconds + row.communicationPicoseconds > 0)
      dear.push_back(&row);
  auto costOf = [](const ExplainedOp *row) {
    return row->computePicoseconds + row->communicationPicoseconds;
  };
  llvm::sort(dear, [&](const ExplainedOp *a, const ExplainedOp *b) {
    return std::make_pair(-costOf(a), a) < std::make_pair(-costOf(b), b);
  });
  os << llvm::formatv("\nops by cost, {0} of {1}\n", std::min(most, dear.size()), dear.size());
  for (const ExplainedOp *row : llvm::ArrayRef(dear).take_front(most))
    os << llvm::formatv("  {0,12} computing {1,12} communicating  {2}\n      {3}\n",
                        formatTime(row->computePicoseconds),
                        formatTime(row->communicationPicoseconds),
                        describeOp(row->name, row->where, row->phase), row->specs);

  std::vector<const ExplainedDecision *> shown;
  for (const ExplainedDecision &row : decisions)
    if (isWanted(row.name, row.where))
      shown.push_back(&row);
  llvm::sort(shown, [](const ExplainedDecision *a, const ExplainedDecision *b) {
    return std::make_pair(-a->picoseconds, a) < std::make_pair(-b->picoseconds, b);
  });
  os << llvm::formatv("\ndecisions by cost, {0} of {1}\n", std::min(most, shown.size()),
                      shown.size());
  for (const ExplainedDecision *row : llvm::ArrayRef(shown).take_front(most)) {
    os << llvm::formatv("  {0,12}  {1}: one of {2}\n      chosen    {3}\n",
                        formatTime(row->picoseconds), describeOp(row->name, row->where, row->phase),
                        row->choices, row->chosen);
    if (!row->runnerUp.empty())
      os << llvm::formatv("      runner-up {0}: the step takes {1} more\n", row->runnerUp,
                          formatTime(static_cast<double>(row->runnerUpObjective - objective)));
  }
}

DictionaryAttr Explanation::toAttribute(MLIRContext *context) const {
  Builder builder(context);
  auto named = [&](StringRef name, Attribute value) { return builder.getNamedAttr(name, value); };
  auto seconds = [&](double picoseconds) { return builder.getF64FloatAttr(picoseconds * 1e-12); };
  auto text = [&](StringRef value) { return builder.getStringAttr(value); };
  auto number = [&](int64_t value) { return builder.getI64IntegerAttr(value); };
  SmallVector<Attribute> trafficRows, axisRows, opRows, decisionRows;
  for (const ExplainedAxis &row : axes)
    axisRows.push_back(builder.getDictionaryAttr(
        {named("data", seconds(row.data)), named("sequence", seconds(row.sequence)),
         named("tensor", seconds(row.tensor)), named("expert", seconds(row.expert)),
         named("weight_bytes", builder.getF64FloatAttr(row.weightBytes)),
         named("optimizer_bytes", builder.getF64FloatAttr(row.optimizerBytes))}));
  for (const ExplainedTraffic &row : traffic) {
    SmallVector<NamedAttribute> fields = {
        named("collective", text(cost::collectiveNames()[static_cast<size_t>(row.collective)])),
        named("count", number(row.count)), named("bytes", builder.getF64FloatAttr(row.bytes)),
        named("seconds", seconds(row.picoseconds))};
    if (row.axis >= 0)
      fields.push_back(named("axis", number(row.axis)));
    trafficRows.push_back(builder.getDictionaryAttr(fields));
  }
  for (const ExplainedOp &row : ops) {
    if (row.computePicoseconds + row.communicationPicoseconds == 0)
      continue;
    SmallVector<NamedAttribute> fields = {
        named("op", text(row.name)),
        named("where", text(row.where)),
        named("phase", text(row.phase)),
        named("specs", text(row.specs)),
        named("compute_seconds", seconds(row.computePicoseconds)),
        named("communication_seconds", seconds(row.communicationPicoseconds)),
        named("memory_traffic_bytes", builder.getF64FloatAttr(row.trafficBytes)),
        named("kernels", number(row.kernels))};
    if (row.isWhole) {
      fields.push_back(named("whole", builder.getBoolAttr(true)));
      fields.push_back(named("whole_seconds", seconds(row.wholePicoseconds)));
      if (row.maySplit)
        fields.push_back(named("may_split", builder.getBoolAttr(true)));
    }
    if (row.parts)
      fields.push_back(named("parts", number(row.parts)));
    if (row.unalignedPicoseconds > 0)
      fields.push_back(named("unaligned_seconds", seconds(row.unalignedPicoseconds)));
    if (!row.types.empty())
      fields.push_back(named("types", text(row.types)));
    if (!row.line.empty())
      fields.push_back(named("line", text(row.line)));
    if (!row.target.empty())
      fields.push_back(named("target", text(row.target)));
    if (row.mayHaveRule)
      fields.push_back(named("may_have_rule", builder.getBoolAttr(true)));
    if (!row.wholeCall.empty())
      fields.push_back(named("whole_call", text(row.wholeCall)));
    if (!row.wholeTokens.empty())
      fields.push_back(named("whole_tokens", text(row.wholeTokens)));
    if (row.layer)
      fields.push_back(named("layer", number(*row.layer)));
    if (row.decision >= 0)
      fields.push_back(named("decision", number(row.decision)));
    opRows.push_back(builder.getDictionaryAttr(fields));
  }
  for (const ExplainedDecision &row : decisions) {
    SmallVector<NamedAttribute> fields = {
        named("op", text(row.name)),       named("where", text(row.where)),
        named("phase", text(row.phase)),   named("choices", number(row.choices)),
        named("chosen", text(row.chosen)), named("seconds", seconds(row.picoseconds)),
        named("types", text(row.types))};
    if (row.layer)
      fields.push_back(named("layer", number(*row.layer)));
    if (llvm::any_of(row.reads, [](const std::string &name) { return !name.empty(); })) {
      SmallVector<StringRef> reads(row.reads.begin(), row.reads.end());
      fields.push_back(named("reads", builder.getStrArrayAttr(reads)));
    }
    if (!row.runnerUp.empty()) {
      fields.push_back(named("runner_up", text(row.runnerUp)));
      fields.push_back(named("runner_up_more_seconds",
                             seconds(static_cast<double>(row.runnerUpObjective - objective))));
    }
    decisionRows.push_back(builder.getDictionaryAttr(fields));
  }
  SmallVector<Attribute> constraintRows;
  for (const ExplainedConstraint &row : constraints)
    constraintRows.push_back(builder.getDictionaryAttr(
        {named("line", text(row.line)), named("wants", text(row.wants)),
         named("count", number(row.count)),
         row.held.empty() ? named("dropped", text(row.dropped)) : named("held", text(row.held))}));
  SmallVector<NamedAttribute> parts(
      {named("compute_seconds", seconds(computePicoseconds)),
       named("communication_seconds", seconds(communicationPicoseconds)),
       named("hidden_communication_seconds", seconds(hiddenPicoseconds)),
       named("exposed_communication_seconds", seconds(exposedPicoseconds)),
       named("held_bytes_seconds", seconds(heldPicoseconds)),
       named("host_seconds", seconds(hostPicoseconds)),
       named("hidden_host_seconds", seconds(hiddenHostPicoseconds)),
       named("objective_seconds", seconds(static_cast<double>(objective))),
       named("fixed_seconds", seconds(fixedPicoseconds)),
       named("communication", builder.getArrayAttr(trafficRows)),
       named("product_seconds", seconds(productPicoseconds)),
       named("repeated_seconds", seconds(repeatedPicoseconds)),
       named("unaligned_seconds", seconds(unalignedPicoseconds)),
       named("recomputed_seconds", seconds(recomputedPicoseconds)),
       named("weight_move_seconds", seconds(weightMovePicoseconds)),
       named("new_weight_seconds", seconds(newWeightPicoseconds)),
       named("weight_bytes", builder.getF64FloatAttr(weightBytes)),
       named("optimizer_bytes", builder.getF64FloatAttr(optimizerBytes)),
       named("axes", builder.getArrayAttr(axisRows)),
       named("ops", builder.getArrayAttr(opRows)),
       named("decisions", builder.getArrayAttr(decisionRows))});
  if (!constraints.empty())
    parts.push_back(named("constraints", builder.getArrayAttr(constraintRows)));
  if (constraintSeconds)
    parts.push_back(named("constraints_seconds", builder.getF64FloatAttr(*constraintSeconds)));
  return builder.getDictionaryAttr(parts);
}
