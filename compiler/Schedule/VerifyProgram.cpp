//===- VerifyProgram.cpp - the programs of all meshes work together -------===//

#include "compiler/Schedule/Passes.h"
#include "compiler/Schedule/PeakMemory.h"
#include "compiler/Schedule/ProgramOrder.h"
#include "compiler/Schedule/ProgramTable.h"
#include "compiler/Schedule/SlicedModule.h"

namespace alpa::schedule {
#define GEN_PASS_DEF_ALPAVERIFYPROGRAM
#include "compiler/Schedule/Passes.h.inc"
} // namespace alpa::schedule

using namespace alpa;
using namespace alpa::schedule;
using namespace mlir;

//===----------------------------------------------------------------------===//
// What each function of a step has to be given
//===----------------------------------------------------------------------===//

namespace {

/// A value of micro-batches `from` up to but not including `to`, added up. What there
/// is once a step counts as micro-batch -1.
struct Term {
  int64_t value = -1, from = -1, to = 0;
  bool operator==(const Term &other) const {
    return value == other.value && from == other.from && to == other.to;
  }
};

/// What a buffer is: the sum of its terms, which rise and neither overlap nor touch;
/// zeros without any.
using Content = llvm::SmallVector<Term, 1>;

/// What functions take and give, from the sliced module alone.
class StepValues {
public:
  explicit StepValues(SlicedModule &sliced);

  /// What an argument with this value has to be in a run for `microBatch` (-1 in a
  /// barrier or an update), or a result of the step.
  Content wanted(int64_t value, int64_t microBatch) const;
  /// Whether any micro-batch's version will do instead: a value that does not depend
  /// on the batch.
  bool isSameForAll(int64_t value) const;
  /// Whether a value leaves the step once for each micro-batch.
  bool leavesInParts(int64_t value) const;
  /// Whether two different values may be added up: parts of one sum of stages.
  bool arePartsOfOne(int64_t first, int64_t second) const;

private:
  /// How the versions of a value of micro-batches become one.
  enum class Versions : uint8_t { Once, Summed, Any, Apart };
  struct Known {
    bool perMicroBatch = false, isBatch = false;
    Versions versions = Versions::Once;
    int64_t partOf = -1;                 // The sum of stages that this adds to.
    llvm::SmallVector<int64_t, 0> parts; // Of a sum of stages.
  };
  void read(const StageFunction &function, bool isOnce);
  const Known &at(int64_t value) const { return known.find(value)->second; }

  int64_t numMicroBatches;
  llvm::DenseMap<int64_t, Known> known;
};

} // namespace

StepValues::StepValues(SlicedModule &sliced) : numMicroBatches(sliced.numMicroBatches) {
  for (int64_t argument = 0; argument < int64_t(sliced.numArguments); ++argument) {
    Known &value = known[argument];
    value.isBatch = value.perMicroBatch = sliced.isBatch(argument);
    value.versions = value.isBatch ? Versions::Apart : Versions::Once;
  }
  forEachFunction(sliced, [&](StageFunction &function, bool isOnce) { read(function, isOnce); });
}

void StepValues::read(const StageFunction &function, bool isOnce) {
  for (const Port &port : function.outputs) {
    Known &value = known[port.id];
    value.perMicroBatch = !isOnce;
    if (port.accumulate == "last")
      value.versions = Versions::Any;
    else if (port.accumulate == "concat")
      value.versions = Versions::Apart;
    else
      value.versions = isOnce ? Versions::Once : Versions::Summed;
    value.partOf = port.partOf;
    if (port.partOf >= 0)
      known[port.partOf].parts.push_back(port.id); // `value` may have moved.
  }
}

Content StepValues::wanted(int64_t value, int64_t microBatch) const {
  const Known &info = at(value);
  bool isOnce = microBatch < 0;
  if (!info.parts.empty()) {
    Content parts;
    for (int64_t part : info.parts)
      llvm::append_range(parts, wanted(part, -1));
    llvm::sort(parts, [](const Term &a, const Term &b) { return a.value < b.value; });
    return parts;
  }
  if (!info.perMicroBatch)
    return {{value, -1, 0}};
  if (!isOnce)
    return {{value, microBatch, microBatch + 1}};
  if (info.isBatch) // Of one micro-batch; slicing refuses others.
    return {{value, 0, 1}};
  if (info.versions == Versions::Summed)
    return {{value, 0, numMicroBatches}};
  return {{value, numMicroBatches - 1, numMicroBatches}};
}

bool StepValues::isSameForAll(int64_t value) const { return at(value).versions == Versions::Any; }

bool StepValues::leavesInParts(int64_t value) const {
  const Known &info = at(value);
  return info.perMicroBatch && info.versions == Versions::Apart;
}

bool StepValues::arePartsOfOne(int64_t first, int64_t second) const {
  int64_t sum = at(first).partOf;
  return sum >= 0 && sum == at(second).partOf;
}

/// "value 7 of micro-batch 2", "value 7 added up over micro-batches 0 to 3".
static std::string stringify(const SlicedModule &sliced, ArrayRef<Term> content) {
  if (content.empty())
    return "zeros";
  std::string text;
  for (const Term &term : content) {
    if (!text.empty())
      text += " plus ";
    text += (sliced.isArgument(term.value) ? "argument " : "value ") + std::to_string(term.value);
    if (term.to - term.from > 1)
      text += " added up over micro-batches " + std::to_string(term.from) + " to " +
              std::to_string(term.to - 1);
    else if (term.from >= 0)
      text += " of micro-batch " + std::to_string(term.from);
  }
  return text;
}

//===----------------------------------------------------------------------===//
// Every run gets the values it takes
//===----------------------------------------------------------------------===//

namespace {

class Tracer {
public:
  Tracer(const ProgramTable &table, SlicedModule &sliced)
      : table(table), sliced(sliced), values(sliced), contents(table.numBuffers),
        held(table.numBuffers), sent(table.transfers.size()), summed(table.sums.size()) {}

  LogicalResult trace(ArrayRef<Place> places);

private:
  struct Runs {
    const StageFunction *function;
    bool isOnce;
    std::vector<RunOp> runs; // By micro-batch, or one.
  };
  struct Outputs {
    int64_t value;
    std::vector<OutputOp> outputs; // By micro-batch, or one.
  };

  void listFunctions();
  void listResults();
  LogicalResult visit(const MeshProgram &program, const Instruction &instruction);
  LogicalResult input(const MeshProgram &program, const Instruction &instruction);
  LogicalResult run(const MeshProgram &program, const Instruction &instruction);
  LogicalResult enterRun(Runs &runs, RunOp op, int64_t mesh);
  LogicalResult accumulate(const Instruction &instruction);
  LogicalResult output(const Instruction &instruction);
  LogicalResult allReduce(const Instruction &instruction);
  LogicalResult addTo(Content &sum, ArrayRef<Term> terms, Operation *op);
  LogicalResult checkHeld(Operation *op, uint32_t buffer, ShardingAttr wanted, StringRef what);
  /// Whether a plan of a transfer is from what one mesh holds to another mesh.
  LogicalResult checkPlan(Operation *op, FlatSymbolRefAttr by, ShardingAttr source, uint32_t from,
                          uint32_t to, ShardingAttr target = {});
  MeshAttr meshOf(uint32_t program) const { return sliced.meshes[table.programs[program].mesh]; }
  LogicalResult checkRuns();
  LogicalResult checkOutputs();
  bool isRight(ArrayRef<Term> content, int64_t value, int64_t microBatch) const;

  uint32_t operand(const Instruction &instruction, unsigned index = 0) const {
    return table.operands[instruction.firstOperand + index];
  }

  const ProgramTable &table;
  SlicedModule &sliced;
  StepValues values;
  std::vector<Content> contents; // By buffer.
  std::vector<ShardingAttr> held;
  std::vector<Content> sent, summed; // By transfer, by sum.
  std::vector<Runs> runs;
  llvm::DenseMap<Attribute, uint32_t> runsOf;          // By callee.
  std::vector<Outputs> outputs;                        // By result.
  llvm::DenseMap<Attribute, CrossMeshReshardOp> plans; // By name.
};

} // namespace

void Tracer::listFunctions() {
  forEachFunction(sliced, [&](StageFunction &function, bool isOnce) {
    runsOf[function.callee] = runs.size();
    runs.push_back({&function, isOnce, {}});
    runs.back().runs.resize(isOnce ? 1 : sliced.numMicroBatches);
  });
}

void Tracer::listResults() {
  func::FuncOp main = sliced.main;
  for (unsigned result = 0; result < main.getNumResults(); ++result) {
    int64_t value = cast<IntegerAttr>(main.getResultAttr(result, attr::value)).getInt();
    Outputs &leaving = outputs.emplace_back();
    leaving.value = value;
    leaving.outputs.resize(values.leavesInParts(value) ? sliced.numMicroBatches : 1);
  }
}

LogicalResult Tracer::trace(ArrayRef<Place> places) {
  listFunctions();
  listResults();
  for (auto plan : sliced.module.getOps<CrossMeshReshardOp>())
    plans[FlatSymbolRefAttr::get(plan.getSymNameAttr())] = plan;
  for (Place place : places) {
    const MeshProgram &program = table.programs[place.program];
    if (failed(visit(program, program.instructions[place.position])))
      return failure();
  }
  if (failed(checkRuns()))
    return failure();
  return checkOutputs();
}

LogicalResult Tracer::visit(const MeshProgram &program, const Instruction &instruction) {
  uint32_t result = instruction.firstResult;
  switch (instruction.kind) {
  case InstructionKind::Input:
    return input(program, instruction);
  case InstructionKind::Run:
    return run(program, instruction);
  case InstructionKind::Send: {
    const Transfer &transfer = table.transfers[instruction.meeting];
    sent[instruction.meeting] = contents[operand(instruction)];
    SendOp send = transfer.send;
    return checkPlan(send, send.getByAttr(), held[operand(instruction)], transfer.from,
                     transfer.to);
  }
  case InstructionKind::Recv:
    contents[result] = std::move(sent[instruction.meeting]);
    held[result] = cast<RecvOp>(instruction.op).getSharding();
    return success();
  case InstructionKind::Accumulate:
    return accumulate(instruction);
  case InstructionKind::Zero:
    held[result] = cast<ZeroOp>(instruction.op).getSharding();
    return success();
  case InstructionKind::AllReduce:
    return allReduce(instruction);
  case InstructionKind::Reshard: {
    auto reshard = cast<ReshardOp>(instruction.op);
    contents[result] = contents[operand(instruction)];
    held[result] = reshard.getTo();
    return checkHeld(reshard, operand(instruction), reshard.getFrom(), "the instruction");
  }
  case InstructionKind::Free:
    for (uint32_t buffer : table.operandsOf(instruction))
      contents[buffer] = Content();
    return success();
  case InstructionKind::Output:
    return output(instruction);
  }
  return success();
}

LogicalResult Tracer::input(const MeshProgram &program, const Instruction &instruction) {
  auto op = cast<InputOp>(instruction.op);
  int64_t argument = op.getArg();
  if (argument >= int64_t(sliced.numArguments))
    return op.emitError() << "alpa_programs_c5: the step has " << sliced.numArguments
                          << " arguments, got argument " << argument;
  bool isBatch = sliced.isBatch(argument);
  std::optional<uint64_t> microBatch = op.getMicroBatch();
  if (isBatch && (!microBatch || int64_t(*microBatch) >= sliced.numMicroBatches))
    return op.emitError() << "alpa_programs_c5: argument " << argument
                          << " is a batch: expected a micro-batch below " << sliced.numMicroBatches;
  if (!isBatch && microBatch)
    return op.emitError() << "alpa_programs_c5: argument " << argument
                          << " is state and has no micro-batches";
  func::FuncOp main = sliced.main;
  if (main.getArgumentTypes()[argument] != op.getBuffer().getType())
    return op.emitError() << "alpa_programs_c5: argument " << argument << " is a "
                          << main.getArgumentTypes()[argument] << ", got "
                          << op.getBuffer().getType();
  int64_t owner = sliced.flows.find(argument)->second.mesh;
  if (!isBatch && owner != program.mesh)
    return op.emitError() << "alpa_programs_c5: argument " << argument << " lies on mesh " << owner
                          << "; mesh " << program.mesh << " has to receive it";
  int64_t version = isBatch ? int64_t(*microBatch) : -1;
  contents[instruction.firstResult] = {{argument, version, version + 1}};
  held[instruction.firstResult] = op.getSharding();
  return success();
}

bool Tracer::isRight(ArrayRef<Term> content, int64_t value, int64_t microBatch) const {
  Content wanted = values.wanted(value, microBatch);
  if (content == ArrayRef<Term>(wanted))
    return true;
  return microBatch < 0 && values.isSameForAll(value) && content.size() == 1 &&
         content.front().value == value && content.front().to - content.front().from == 1;
}

LogicalResult Tracer::checkHeld(Operation *op, uint32_t buffer, ShardingAttr wanted,
                                StringRef what) {
  if (!held[buffer] || held[buffer] == wanted)
    return success();
  return op->emitError() << "alpa_programs_c5: the buffer is held as " << held[buffer] << ", "
                         << what << " takes " << wanted;
}

LogicalResult Tracer::enterRun(Runs &info, RunOp op, int64_t mesh) {
  int64_t home = sliced.stages[info.function->stage].meshIndex;
  if (home != mesh)
    return op.emitError() << "alpa_programs_c4: stage " << info.function->stage << " lies on mesh "
                          << home << ", not on mesh " << mesh;
  int64_t microBatch = op.getMicroBatch() ? int64_t(*op.getMicroBatch()) : -1;
  if (info.isOnce ? microBatch != -1 : microBatch < 0 || microBatch >= sliced.numMicroBatches)
    return op.emitError() << "alpa_programs_c4: expected "
                          << (info.isOnce ? "no micro-batch" : "a micro-batch below ")
                          << (info.isOnce ? "" : std::to_string(sliced.numMicroBatches));
  RunOp &known = info.runs[std::max<int64_t>(microBatch, 0)];
  if (known) {
    InFlightDiagnostic diagnostic = op.emitError() << "alpa_programs_c4: the function runs again";
    diagnostic.attachNote(known.getLoc()) << "the first one is here";
    return diagnostic;
  }
  known = op;
  return success();
}

LogicalResult Tracer::run(const MeshProgram &program, const Instruction &instruction) {
  auto op = cast<RunOp>(instruction.op);
  auto it = runsOf.find(op.getCallee());
  if (it == runsOf.end())
    return op.emitError() << "alpa_programs_c4: " << op.getCallee()
                          << " is not a function of a stage";
  Runs &info = runs[it->second];
  if (failed(enterRun(info, op, program.mesh)))
    return failure();
  int64_t microBatch = info.isOnce ? -1 : int64_t(*op.getMicroBatch());
  for (auto [index, port] : llvm::enumerate(info.function->inputs)) {
    uint32_t buffer = operand(instruction, index);
    if (!isRight(contents[buffer], port.id, microBatch)) {
      InFlightDiagnostic diagnostic = op.emitError()
                                      << "alpa_programs_c5: operand " << index << " has to be "
                                      << stringify(sliced, values.wanted(port.id, microBatch))
                                      << ", got " << stringify(sliced, contents[buffer]);
      diagnostic.attachNote(op.getInputs()[index].getLoc()) << "the operand is made here";
      return diagnostic;
    }
    if (failed(checkHeld(op, buffer, port.sharding, "the function")))
      return failure();
  }
  for (auto [index, port] : llvm::enumerate(info.function->outputs)) {
    contents[instruction.firstResult + index] = {{port.id, microBatch, microBatch + 1}};
    held[instruction.firstResult + index] = port.sharding;
  }
  return success();
}

/// Adds terms to a sum; none may be there already.
LogicalResult Tracer::addTo(Content &sum, ArrayRef<Term> terms, Operation *op) {
  for (const Term &term : terms) {
    if (!sum.empty() && sum.front().value != term.value &&
        !values.arePartsOfOne(sum.front().value, term.value))
      return op->emitError() << "alpa_programs_c5: " << stringify(sliced, sum) << " and "
                             << stringify(sliced, term) << " do not add up to one value";
    auto *it = llvm::partition_point(sum, [&](const Term &other) {
      return std::make_pair(other.value, other.from) < std::make_pair(term.value, term.from);
    });
    bool overlaps =
        (it != sum.end() && it->value == term.value && it->from < term.to) ||
        (it != sum.begin() && std::prev(it)->value == term.value && std::prev(it)->to > term.from);
    if (overlaps)
      return op->emitError() << "alpa_programs_c5: " << stringify(sliced, term)
                             << " is added twice to " << stringify(sliced, sum);
    it = sum.insert(it, term);
    // Neighbours become one.
    if (auto *after = std::next(it);
        after != sum.end() && after->value == it->value && after->from == it->to) {
      it->to = after->to;
      sum.erase(after);
    }
    if (it != sum.begin() && std::prev(it)->value == it->value && std::prev(it)->to == it->from) {
      std::prev(it)->to = it->to;
      sum.erase(it);
    }
  }
  return success();
}

LogicalResult Tracer::accumulate(const Instruction &instruction) {
  uint32_t left = operand(instruction), right = operand(instruction, 1);
  Content sum = contents[left];
  if (failed(addTo(sum, contents[right], instruction.op)) ||
      failed(checkHeld(instruction.op, right, held[left], "the sum")))
    return failure();
  contents[instruction.firstResult] = std::move(sum);
  held[instruction.firstResult] = held[left];
  return success();
}

LogicalResult Tracer::checkPlan(Operation *op, FlatSymbolRefAttr by, ShardingAttr source,
                                uint32_t from, uint32_t to, ShardingAttr target) {
  CrossMeshReshardOp plan = by ? plans.lookup(by) : CrossMeshReshardOp();
  if (!plan)
    return success();
  bool sameMeshes = plan.getSourceMesh() == meshOf(from) && plan.getTargetMesh() == meshOf(to);
  if (sameMeshes && plan.getSource() == source && (!target || plan.getTarget() == target))
    return success();
  InFlightDiagnostic diagnostic = op->emitError() << "alpa_programs_c3: " << by;
  if (!sameMeshes)
    diagnostic << " is not from mesh " << table.programs[from].mesh << " to mesh "
               << table.programs[to].mesh;
  else if (plan.getSource() != source)
    diagnostic << " is from " << plan.getSource() << ", but the buffer is held as " << source;
  else
    diagnostic << " leads to " << plan.getTarget() << ", but the sum is held as " << target;
  diagnostic.attachNote(plan.getLoc()) << "it is here";
  return diagnostic;
}

/// All members stand here when the first of them goes on.
LogicalResult Tracer::allReduce(const Instruction &instruction) {
  Content &total = summed[instruction.meeting];
  const MeshSum &sum = table.sums[instruction.meeting];
  if (total.empty())
    for (auto [op, buffer] : llvm::zip_equal(sum.ops, sum.buffers))
      if (failed(addTo(total, contents[buffer], op)))
        return failure();
  contents[instruction.firstResult] = total;
  ShardingAttr mine = held[operand(instruction)];
  held[instruction.firstResult] = mine;
  // To the first member, which adds up, and back.
  auto op = cast<AllReduceOp>(instruction.op);
  auto *first = llvm::find_if(sum.ops, [](AllReduceOp member) {
    int64_t mesh = cast<ProgramOp>(member->getParentOp()).getMesh();
    return mesh == member.getMembers().front();
  });
  size_t adder = first - sum.ops.begin();
  size_t self = llvm::find(sum.ops, op) - sum.ops.begin();
  ShardingAttr theirs = held[sum.buffers[adder]];
  if (failed(checkPlan(op, op.getToAttr(), mine, sum.programs[self], sum.programs[adder], theirs)))
    return failure();
  return checkPlan(op, op.getBackAttr(), theirs, sum.programs[adder], sum.programs[self], mine);
}

LogicalResult Tracer::output(const Instruction &instruction) {
  auto op = cast<OutputOp>(instruction.op);
  if (op.getResult() >= outputs.size())
    return op.emitError() << "alpa_programs_c7: the step has " << outputs.size()
                          << " results, got result " << op.getResult();
  Outputs &leaving = outputs[op.getResult()];
  bool inParts = values.leavesInParts(leaving.value);
  std::optional<uint64_t> part = op.getMicroBatch();
  if (inParts != part.has_value() || (part && *part >= leaving.outputs.size()))
    return op.emitError() << "alpa_programs_c7: result " << op.getResult() << " leaves "
                          << (inParts
                                  ? "in a part for each of " +
                                        std::to_string(leaving.outputs.size()) + " micro-batches"
                                  : "as a whole");
  OutputOp &known = leaving.outputs[part.value_or(0)];
  if (known) {
    InFlightDiagnostic diagnostic = op.emitError() << "alpa_programs_c7: the result leaves again";
    diagnostic.attachNote(known.getLoc()) << "the first one is here";
    return diagnostic;
  }
  known = op;
  int64_t microBatch = part ? int64_t(*part) : -1;
  const Content &content = contents[operand(instruction)];
  if (isRight(content, leaving.value, microBatch))
    return success();
  return op.emitError() << "alpa_programs_c7: result " << op.getResult() << " has to be "
                        << stringify(sliced, values.wanted(leaving.value, microBatch)) << ", got "
                        << stringify(sliced, content);
}

LogicalResult Tracer::checkRuns() {
  for (Runs &info : runs)
    for (auto [microBatch, run] : llvm::enumerate(info.runs))
      if (!run) {
        func::FuncOp function = info.function->op;
        InFlightDiagnostic diagnostic = function.emitError() << "alpa_programs_c4: never runs";
        if (!info.isOnce)
          diagnostic << " for micro-batch " << microBatch;
        return diagnostic;
      }
  return success();
}

LogicalResult Tracer::checkOutputs() {
  func::FuncOp main = sliced.main;
  for (auto [result, leaving] : llvm::enumerate(outputs))
    for (auto [microBatch, output] : llvm::enumerate(leaving.outputs))
      if (!output) {
        InFlightDiagnostic diagnostic = main.emitError()
                                        << "alpa_programs_c7: result " << result << " never leaves";
        if (values.leavesInParts(leaving.value))
          diagnostic << " for micro-batch " << microBatch;
        return diagnostic;
      }
  return success();
}

/// Follows what every buffer holds through all programs in the order of `places`:
/// which value, of which micro-batches, held how. Fails at the first instruction that
/// takes something else than the sliced module says (alpa_programs_c4, c5 and c7).
static LogicalResult traceValues(const ProgramTable &table, SlicedModule &sliced,
                                 ArrayRef<Place> places) {
  return Tracer(table, sliced).trace(places);
}

//===----------------------------------------------------------------------===//
// The programs of all meshes work together
//===----------------------------------------------------------------------===//

namespace {

struct VerifyProgram : schedule::impl::AlpaVerifyProgramBase<VerifyProgram> {
  using Base::Base;

  void runOnOperation() override {
    if (failed(verify()))
      signalPassFailure();
  }

private:
  LogicalResult verify() {
    FailureOr<int64_t> capacity = capacityOf(getOperation());
    if (failed(capacity))
      return failure();
    FailureOr<ProgramTable> table = readPrograms(getOperation());
    if (failed(table))
      return failure();
    numInstructions = table->numInstructions();
    ProgramOrder order(*table, *capacity);
    if (!order.run())
      return order.reportCycle();
    // Transfers can be checked by themselves; what runs and leaves follows from a step.
    if (!hasStep(*table))
      return success();
    FailureOr<SlicedModule> sliced = readSlicedModule(getOperation());
    if (failed(sliced) || failed(checkMeshes(*table, *sliced)) ||
        failed(traceValues(*table, *sliced, order.places)))
      return failure();
    return checkMemory(*table, *sliced, order.places, *capacity);
  }

  FailureOr<int64_t> capacityOf(ModuleOp module) const {
    int64_t capacity = channelCapacity;
    auto given = module->getAttrOfType<IntegerAttr>(attr::channelCapacity);
    if (!channelCapacity.hasValue())
      capacity = given ? given.getInt() : unboundedCapacity;
    if (capacity < 1 && capacity != unboundedCapacity)
      return module.emitError() << "the capacity of channels is " << capacity
                                << "; expected at least 1 message";
    return capacity;
  }

  bool hasStep(const ProgramTable &table) {
    ModuleOp module = getOperation();
    if (module.lookupSymbol("main") || module.lookupSymbol("stage_0"))
      return true;
    for (const MeshProgram &program : table.programs)
      for (const Instruction &instruction : program.instructions)
        if (instruction.kind == InstructionKind::Run)
          return true;
    return false;
  }

  LogicalResult checkMeshes(const ProgramTable &table, const SlicedModule &sliced) {
    for (const MeshProgram &program : table.programs)
      if (program.mesh >= int64_t(sliced.meshes.size()))
        return ProgramOp(program.op).emitError()
               << "alpa_programs_c1: mesh " << program.mesh << " has no stage";
    return success();
  }

  LogicalResult checkMemory(const ProgramTable &table, SlicedModule &sliced, ArrayRef<Place> places,
                            int64_t capacity) {
    for (auto [program, peak] :
         llvm::zip_equal(table.programs, peakMemory(table, sliced, places, capacity))) {
      peakBytes.updateMax(peak.bytes);
      if (!peak.exceeds)
        continue;
      InFlightDiagnostic diagnostic = peak.exceeds->emitError()
                                      << "alpa_programs_c8: a device of mesh " << program.mesh
                                      << " needs " << peak.exceedingBytes
                                      << " bytes here, but its program promises at most "
                                      << *promisedBytes(program.op);
      for (auto [bytes, maker] : peak.largest)
        diagnostic.attachNote(maker->getLoc()) << "a buffer of " << bytes << " bytes";
      return diagnostic;
    }
    return success();
  }
};

} // namespace
