//===- PeakMemory.cpp - the most bytes that devices need for a step -------===//

#include "compiler/Schedule/PeakMemory.h"

#include "compiler/Analysis/ShardingRule.h"

#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/MapVector.h"
#include <deque>

using namespace mlir;
using namespace alpa;
using namespace alpa::schedule;

namespace {

constexpr uint32_t none = ~0u;
constexpr size_t numNamed = 3; // Buffers that a message names.

/// For each program how many of its instructions are known to be done.
using Clock = std::vector<uint32_t>;

void mergeInto(Clock &clock, const Clock &other) {
  for (auto [mine, theirs] : llvm::zip_equal(clock, other))
    mine = std::max(mine, theirs);
}

/// Sizes of what a function takes and gives; equal forms have equal numbers.
struct FunctionSizes {
  SmallVector<uint32_t> inputForms, outputForms;
  SmallVector<uint32_t> given; // Inputs whose buffers outputs take.
  SmallVector<int64_t> outputBytes;
  uint32_t numForms = 0;
  int64_t scratchBytes = 0;
};

struct MeshState {
  Clock clock;
  int64_t live = 0;
  std::vector<uint32_t> untaken; // Freed buffers that may still wait for a receiver.
  PeakMemory peak;
};

class MemoryWalk {
public:
  MemoryWalk(const ProgramTable &table, SlicedModule &sliced, int64_t capacity);
  std::vector<PeakMemory> walk(ArrayRef<Place> places);

private:
  void listFunction(const StageFunction &function);
  void findGiven();
  void visit(Place place);
  void run(Place place, const Instruction &instruction);
  void make(MeshState &state, uint32_t buffer, int64_t count) {
    bytes[buffer] = count;
    state.live += count;
  }
  void free(MeshState &state, uint32_t buffer);
  bool isTaken(const MeshState &state, uint32_t buffer) const;
  void send(Place place, const Instruction &instruction);
  void receive(Place place, const Instruction &instruction);
  void meet(Place place, const Instruction &instruction);
  void learn(MeshState &state, const Clock &clock);
  void note(Place place, int64_t count);
  int64_t sizeOf(Type type, ShardingAttr sharding, MeshAttr mesh);
  MeshAttr meshOf(uint32_t program) const { return sliced.meshes[table.programs[program].mesh]; }
  bool isState(InputOp op) const { return !sliced.isBatch(op.getArg()); }

  const ProgramTable &table;
  const SlicedModule &sliced;
  int64_t capacity;
  std::vector<MeshState> states;
  std::vector<int64_t> bytes;                         // By buffer; what a free gives back.
  std::vector<bool> isAdded;                          // By buffer: a run adds it to a sum.
  std::vector<uint32_t> lastSend, sendBefore;         // By buffer, by transfer: how it was sent.
  std::vector<uint32_t> receivedAt;                   // By transfer: position of the receive.
  std::vector<Clock> sentClocks, sumClocks;           // By transfer, by sum.
  std::vector<std::deque<Clock>> receipts;            // By channel, if its capacity is bounded.
  std::vector<int64_t> numSent;                       // By channel.
  llvm::DenseMap<Attribute, FunctionSizes> functions; // By callee.
};

} // namespace

MemoryWalk::MemoryWalk(const ProgramTable &table, SlicedModule &sliced, int64_t capacity)
    : table(table), sliced(sliced), capacity(capacity), states(table.programs.size()),
      bytes(table.numBuffers), isAdded(table.numBuffers), lastSend(table.numBuffers, none),
      sendBefore(table.transfers.size(), none), receivedAt(table.transfers.size()),
      sentClocks(table.transfers.size()), sumClocks(table.sums.size()), receipts(table.numChannels),
      numSent(table.numChannels) {
  forEachFunction(sliced, [&](StageFunction &function, bool) { listFunction(function); });
  findGiven();
  for (auto [index, program] : llvm::enumerate(table.programs)) {
    states[index].clock.resize(table.programs.size());
    for (auto [position, instruction] : llvm::enumerate(program.instructions)) {
      if (instruction.kind == InstructionKind::Recv)
        receivedAt[instruction.meeting] = position;
      if (auto input = dyn_cast<InputOp>(instruction.op);
          input && isState(input) && !input->hasAttr(attr::memory))
        make(states[index], instruction.firstResult,
             sizeOf(input.getBuffer().getType(), input.getSharding(), meshOf(index)));
    }
    states[index].peak.bytes = states[index].live;
  }
}

int64_t MemoryWalk::sizeOf(Type type, ShardingAttr sharding, MeshAttr mesh) {
  return int64_t(analysis::getTensorBytes(type)) / sharding.getSpec().numPieces(mesh.getShape());
}

/// What the search foresaw that the function holds besides arguments and results.
static int64_t scratchBytes(const SlicedModule &sliced, const StageFunction &function) {
  auto stages = sliced.module->getAttrOfType<ArrayAttr>(attr::stages);
  auto stage = stages && size_t(function.stage) < stages.size()
                   ? dyn_cast<StageAttr>(stages[function.stage])
                   : StageAttr();
  DictionaryAttr predicted = stage ? stage.getPredicted() : DictionaryAttr();
  StringRef name = function.callee.getLeafReference().getValue();
  StringRef phase = name.split('_').first; // backward_input has what backward has.
  Attribute value;
  if (predicted)
    for (StringRef key : {name, phase})
      if (!value)
        value = predicted.get((key + "_scratch_bytes").str());
  if (auto number = dyn_cast_or_null<IntegerAttr>(value))
    return number.getInt();
  if (auto number = dyn_cast_or_null<FloatAttr>(value))
    return int64_t(number.getValueAsDouble());
  return 0;
}

void MemoryWalk::listFunction(const StageFunction &function) {
  FunctionSizes &info = functions[function.callee];
  llvm::DenseMap<std::tuple<Type, Attribute, unsigned>, uint32_t> forms;
  auto formOf = [&](const Port &port) {
    return forms.try_emplace({port.type, port.sharding, unsigned(port.isOnHost)}, forms.size())
        .first->second;
  };
  MeshAttr mesh = sliced.stages[function.stage].mesh;
  for (const Port &port : function.inputs)
    info.inputForms.push_back(formOf(port));
  for (const Port &port : function.outputs) {
    info.outputForms.push_back(formOf(port));
    info.outputBytes.push_back(port.isOnHost ? 0 : sizeOf(port.type, port.sharding, mesh));
  }
  info.numForms = forms.size();
  info.scratchBytes = scratchBytes(sliced, function);
}

/// Whether a result is a term that the function itself adds to a sum, which is there
/// (program_merge.fold_sums).
static bool isAddedByRun(Value result) {
  bool isAdded = false;
  if (cast<TensorType>(result.getType()).getElementType().isInteger(1))
    return false;
  for (OpOperand &use : result.getUses()) {
    if (isa<FreeOp>(use.getOwner()))
      continue;
    auto accumulate = dyn_cast<AccumulateOp>(use.getOwner());
    if (isAdded || !accumulate || use.getOperandNumber() != 1)
      return false;
    Operation *left = accumulate.getLeft().getDefiningOp();
    isAdded = left && left->getBlock() == result.getDefiningOp()->getBlock() &&
              left->isBeforeInBlock(result.getDefiningOp());
    if (!isAdded)
      return false;
  }
  return isAdded;
}

/// Whether no one reads a run's argument later, and its buffer may be another's then
/// (executor.donations): the caller keeps what no result replaces, and what was sent may
/// not be received yet.
static bool isLastReadBy(OpOperand &argument, func::FuncOp main) {
  Operation *run = argument.getOwner();
  auto next = dyn_cast_or_null<FreeOp>(run->getNextNode());
  if (!next || !llvm::is_contained(next->getOperands(), argument.get()) ||
      llvm::count(run->getOperands(), argument.get()) > 1)
    return false;
  if (auto input = argument.get().getDefiningOp<InputOp>();
      input && !main.getArgAttr(input.getArg(), attr::carriedBy))
    return false;
  return llvm::none_of(argument.get().getUsers(),
                       [](Operation *user) { return isa<SendOp, AllReduceOp>(user); });
}

/// What runs add to sums, and of each function the arguments whose buffers its results
/// take: those that every run is the last to read. A result to which a run adds takes the buffer of
/// its sum.
void MemoryWalk::findGiven() {
  struct Found {
    llvm::BitVector dying, summed;
  };
  llvm::MapVector<Attribute, Found> found;
  for (const MeshProgram &program : table.programs)
    for (const Instruction &instruction : program.instructions) {
      auto run = dyn_cast<RunOp>(instruction.op);
      if (!run)
        continue;
      auto [it, isNew] = found.try_emplace(run.getCallee());
      Found &all = it->second;
      if (isNew) {
        all.dying.resize(run->getNumOperands(), true);
        all.summed.resize(run->getNumResults());
      }
      for (OpOperand &argument : run->getOpOperands())
        if (all.dying[argument.getOperandNumber()] && !isLastReadBy(argument, sliced.main))
          all.dying.reset(argument.getOperandNumber());
      for (OpResult result : run->getResults())
        if (isAddedByRun(result)) {
          all.summed.set(result.getResultNumber());
          isAdded[instruction.firstResult + result.getResultNumber()] = true;
        }
    }
  for (auto &[callee, all] : found) {
    FunctionSizes &info = functions[callee];
    SmallVector<int64_t> wanted(info.numForms);
    for (auto [index, form] : llvm::enumerate(info.outputForms))
      wanted[form] += !all.summed[index];
    for (unsigned index : all.dying.set_bits())
      if (int64_t &left = wanted[info.inputForms[index]]; left > 0) {
        --left;
        info.given.push_back(index);
      }
  }
}

std::vector<PeakMemory> MemoryWalk::walk(ArrayRef<Place> places) {
  for (Place place : places)
    visit(place);
  std::vector<PeakMemory> peaks;
  for (MeshState &state : states)
    peaks.push_back(std::move(state.peak));
  return peaks;
}

void MemoryWalk::visit(Place place) {
  MeshState &state = states[place.program];
  const Instruction &instruction = table.programs[place.program].instructions[place.position];
  uint32_t result = instruction.firstResult;
  auto operand = [&] { return table.operands[instruction.firstOperand]; };
  switch (instruction.kind) {
  case InstructionKind::Input: {
    auto input = cast<InputOp>(instruction.op);
    if (!isState(input))
      make(state, result,
           sizeOf(input.getBuffer().getType(), input.getSharding(), meshOf(place.program)));
    break;
  }
  case InstructionKind::Run:
    run(place, instruction);
    break;
  case InstructionKind::Send:
    send(place, instruction);
    break;
  case InstructionKind::Recv:
    receive(place, instruction);
    break;
  case InstructionKind::Accumulate: {
    const auto &instructions = table.programs[place.program].instructions;
    uint32_t left = operand();
    if (place.position + 1 < instructions.size() &&
        instructions[place.position + 1].kind == InstructionKind::Free &&
        llvm::is_contained(table.operandsOf(instructions[place.position + 1]), left) &&
        lastSend[left] == none) {
      bytes[result] = bytes[left];
      bytes[left] = 0;
    } else {
      make(state, result, bytes[left]);
    }
    break;
  }
  case InstructionKind::Zero: {
    auto zero = cast<ZeroOp>(instruction.op);
    make(state, result,
         sizeOf(zero.getBuffer().getType(), zero.getSharding(), meshOf(place.program)));
    break;
  }
  case InstructionKind::Reshard: {
    auto reshard = cast<ReshardOp>(instruction.op);
    make(state, result, sizeOf(reshard.getType(), reshard.getTo(), meshOf(place.program)));
    break;
  }
  case InstructionKind::AllReduce:
    meet(place, instruction);
    break;
  case InstructionKind::Free:
    for (uint32_t buffer : table.operandsOf(instruction))
      free(state, buffer);
    break;
  case InstructionKind::Output:
    break; // The caller's from here on, but still on the device.
  }
  state.clock[place.program] = place.position + 1;
  note(place, state.live);
}

void MemoryWalk::run(Place place, const Instruction &instruction) {
  MeshState &state = states[place.program];
  const FunctionSizes &info = functions.find(cast<RunOp>(instruction.op).getCallee())->second;
  ArrayRef<uint32_t> operands = table.operandsOf(instruction);
  for (uint32_t index : info.given) {
    state.live -= bytes[operands[index]];
    bytes[operands[index]] = 0;
  }
  for (auto [index, count] : llvm::enumerate(info.outputBytes)) {
    uint32_t buffer = instruction.firstResult + index;
    make(state, buffer, isAdded[buffer] ? 0 : count);
  }
  note(place, state.live + info.scratchBytes);
}

bool MemoryWalk::isTaken(const MeshState &state, uint32_t buffer) const {
  for (uint32_t transfer = lastSend[buffer]; transfer != none; transfer = sendBefore[transfer])
    if (state.clock[table.transfers[transfer].to] <= receivedAt[transfer])
      return false;
  return true;
}

void MemoryWalk::free(MeshState &state, uint32_t buffer) {
  if (isTaken(state, buffer))
    state.live -= bytes[buffer];
  else
    state.untaken.push_back(buffer);
}

/// What another program knows becomes known here, such as that messages were received.
void MemoryWalk::learn(MeshState &state, const Clock &clock) {
  mergeInto(state.clock, clock);
  llvm::erase_if(state.untaken, [&](uint32_t buffer) {
    bool taken = isTaken(state, buffer);
    if (taken)
      state.live -= bytes[buffer];
    return taken;
  });
}

void MemoryWalk::send(Place place, const Instruction &instruction) {
  MeshState &state = states[place.program];
  uint32_t transfer = instruction.meeting;
  // With as many messages under way as may be, one of them was received first.
  std::deque<Clock> &taken = receipts[table.transfers[transfer].channel];
  if (capacity >= 0 && numSent[table.transfers[transfer].channel]++ >= capacity) {
    learn(state, taken.front());
    taken.pop_front();
  }
  uint32_t buffer = table.operands[instruction.firstOperand];
  sendBefore[transfer] = lastSend[buffer];
  lastSend[buffer] = transfer;
  sentClocks[transfer] = state.clock;
  sentClocks[transfer][place.program] = place.position + 1;
}

void MemoryWalk::receive(Place place, const Instruction &instruction) {
  MeshState &state = states[place.program];
  learn(state, sentClocks[instruction.meeting]);
  Clock().swap(sentClocks[instruction.meeting]);
  if (capacity >= 0) {
    auto &taken = receipts[table.transfers[instruction.meeting].channel];
    taken.push_back(state.clock);
    taken.back()[place.program] = place.position + 1;
  }
  auto recv = cast<RecvOp>(instruction.op);
  make(state, instruction.firstResult,
       sizeOf(recv.getBuffer().getType(), recv.getSharding(), meshOf(place.program)));
}

void MemoryWalk::meet(Place place, const Instruction &instruction) {
  MeshState &state = states[place.program];
  Clock &clock = sumClocks[instruction.meeting];
  if (clock.empty()) { // All members stand here.
    clock.resize(states.size());
    for (uint32_t member : table.sums[instruction.meeting].programs)
      mergeInto(clock, states[member].clock);
  }
  learn(state, clock);
  make(state, instruction.firstResult, bytes[table.operands[instruction.firstOperand]]);
}

void MemoryWalk::note(Place place, int64_t count) {
  const MeshProgram &program = table.programs[place.program];
  PeakMemory &peak = states[place.program].peak;
  peak.bytes = std::max(peak.bytes, count);
  std::optional<int64_t> promised = promisedBytes(program.op);
  if (!promised || count <= *promised || peak.exceeds)
    return;
  peak.exceeds = program.instructions[place.position].op;
  peak.exceedingBytes = count;
  // Buffers of later instructions have no bytes yet, freed ones are not looked for.
  for (uint32_t position = 0; position <= place.position; ++position) {
    const Instruction &instruction = program.instructions[position];
    for (unsigned i = 0; i < instruction.op->getNumResults(); ++i) {
      bool ended = llvm::any_of(instruction.op->getResult(i).getUsers(), [&](Operation *user) {
        return isa<FreeOp>(user) && user->isBeforeInBlock(peak.exceeds);
      });
      if (!ended)
        peak.largest.push_back({bytes[instruction.firstResult + i], instruction.op});
    }
  }
  std::sort(peak.largest.begin(), peak.largest.end(), [](auto &a, auto &b) {
    return a.first != b.first ? a.first > b.first : a.second->isBeforeInBlock(b.second);
  });
  if (peak.largest.size() > numNamed)
    peak.largest.truncate(numNamed);
}

static constexpr StringLiteral kPeakBytes = "peak_bytes";

void schedule::promiseBytes(ProgramOp program, int64_t bytes) {
  program->setAttr(kPeakBytes, Builder(program.getContext()).getI64IntegerAttr(bytes));
}

std::optional<int64_t> schedule::promisedBytes(ProgramOp program) {
  auto peak = program->getAttrOfType<IntegerAttr>(kPeakBytes);
  return peak ? std::optional(peak.getInt()) : std::nullopt;
}

std::vector<PeakMemory> schedule::peakMemory(const ProgramTable &table, SlicedModule &sliced,
                                             ArrayRef<Place> places, int64_t capacity) {
  return MemoryWalk(table, sliced, capacity).walk(places);
}
