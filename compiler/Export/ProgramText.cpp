//===- ProgramText.cpp - instruction lists as lines of text ---------------===//
//
// A step has many micro-batches, and each adds up a gradient for every weight:
// neighbouring sums become one instruction, and slots are given out such that
// lists of them are ranges.
//
//===----------------------------------------------------------------------===//

#include "compiler/Export/ProgramText.h"

#include "compiler/Export/AttributeJson.h"

#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/FormatVariadic.h"

#include <queue>

using namespace mlir;
using namespace alpa;
using namespace alpa::exporter;

namespace {

/// The lowest unused number for each buffer.
class Slots {
public:
  int64_t add(Value buffer) {
    int64_t slot = count;
    if (unused.empty()) {
      ++count;
    } else {
      slot = unused.top();
      unused.pop();
    }
    slots[buffer] = slot;
    return slot;
  }
  int64_t at(Value buffer) const { return slots.lookup(buffer); }
  void hand(Value from, Value to) { slots[to] = at(from); }
  void release(Value buffer) { unused.push(at(buffer)); }
  int64_t size() const { return count; }

private:
  llvm::DenseMap<Value, int64_t> slots;
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> unused;
  int64_t count = 0;
};

/// " 3 5-9": numbers that follow each other are a range.
std::string slotList(ArrayRef<int64_t> slots) {
  std::string text;
  for (size_t i = 0; i < slots.size();) {
    size_t end = i + 1;
    while (end < slots.size() && slots[end] == slots[end - 1] + 1)
      ++end;
    text += " " + std::to_string(slots[i]);
    if (end - i > 1)
      text += "-" + std::to_string(slots[end - 1]);
    i = end;
  }
  return text;
}

class Writer {
public:
  Writer(MeshAttr mesh, const llvm::DenseMap<Attribute, int64_t> &reshards)
      : mesh(mesh), reshards(reshards) {}

  ProgramText write(ProgramOp program) {
    Block &body = *program.getBody();
    for (auto it = body.begin(); it != body.end();) {
      auto begin = it;
      if (isa<AccumulateOp>(*it))
        it = writeSums(it, body.end());
      else
        write(*it++);
      numRead += std::distance(begin, it);
      text.ends.resize(text.lines.size(), numRead);
    }
    text.slots = slots.size();
    return std::move(text);
  }

private:
  void write(Operation &op);
  Block::iterator writeSums(Block::iterator it, Block::iterator end);
  void writeFree(ArrayRef<Value> buffers);

  std::string microBatch(std::optional<int64_t> index) const {
    return index ? " mb " + std::to_string(*index) : "";
  }
  std::string tensor(Value buffer, ShardingAttr sharding) const {
    return tensorText(buffer.getType(), sharding, mesh);
  }
  std::string listOf(ValueRange buffers) const {
    return slotList(llvm::map_to_vector(buffers, [&](Value buffer) { return slots.at(buffer); }));
  }

  MeshAttr mesh;
  const llvm::DenseMap<Attribute, int64_t> &reshards;
  Slots slots;
  uint32_t numRead = 0; // Instructions.
  ProgramText text;
};

} // namespace

void Writer::write(Operation &op) {
  auto line = [&](const char *form, auto &&...fields) {
    text.lines.push_back(llvm::formatv(form, fields...).str());
  };
  llvm::TypeSwitch<Operation *>(&op)
      .Case([&](InputOp input) {
        line("input {0} = arg {1}{2}: {3}", slots.add(input.getBuffer()), input.getArg(),
             microBatch(input.getMicroBatch()),
             tensorText(input.getBuffer().getType(), input.getSharding(), mesh,
                        input->hasAttr(attr::memory)));
      })
      .Case([&](RunOp run) {
        StringRef stage = run.getCallee().getRootReference().getValue();
        stage.consume_front("stage_");
        std::string inputs = listOf(run.getInputs());
        for (Value buffer : run.getOutputs())
          slots.add(buffer);
        line("run {0}.{1}{2}:{3} ->{4}", stage, run.getCallee().getLeafReference().getValue(),
             microBatch(run.getMicroBatch()), inputs, listOf(run.getOutputs()));
      })
      .Case([&](SendOp send) {
        line("send {0} to {1} tag {2} by {3}", slots.at(send.getBuffer()), send.getPeer(),
             send.getTag(), reshards.lookup(send.getByAttr()));
      })
      .Case([&](RecvOp recv) {
        line("recv {0} from {1} tag {2} by {3}: {4}", slots.add(recv.getBuffer()), recv.getPeer(),
             recv.getTag(), reshards.lookup(recv.getByAttr()),
             tensor(recv.getBuffer(), recv.getSharding()));
      })
      .Case([&](ZeroOp zero) {
        line("zero {0}: {1}", slots.add(zero.getBuffer()),
             tensor(zero.getBuffer(), zero.getSharding()));
      })
      .Case([&](AllReduceOp sum) {
        std::string members, by;
        for (int64_t member : sum.getMembers())
          members += " " + std::to_string(member);
        if (sum.getToAttr())
          by = llvm::formatv(" by {0} {1}", reshards.lookup(sum.getToAttr()),
                             reshards.lookup(sum.getBackAttr()));
        line("all_reduce {0} = {1} among{2} tag {3}{4}", slots.add(sum.getSum()),
             slots.at(sum.getBuffer()), members, sum.getTag(), by);
      })
      .Case([&](ReshardOp reshard) {
        line("reshard {0} = {1}: {2}", slots.add(reshard.getResult()),
             slots.at(reshard.getOperand()), tensor(reshard.getResult(), reshard.getTo()));
      })
      .Case([&](OutputOp output) {
        line("output {0} = result {1}{2}", slots.at(output.getBuffer()), output.getResult(),
             microBatch(output.getMicroBatch()));
      })
      .Case([&](FreeOp free) { writeFree(llvm::to_vector(free.getBuffers())); });
}

void Writer::writeFree(ArrayRef<Value> buffers) {
  if (buffers.empty())
    return;
  SmallVector<int64_t> freed;
  for (Value buffer : buffers) {
    freed.push_back(slots.at(buffer));
    slots.release(buffer);
  }
  llvm::sort(freed);
  text.lines.push_back("free" + slotList(freed));
}

/// Sums that do not read each other, with the frees between them. A sum takes the
/// slot of its left operand if that is freed.
Block::iterator Writer::writeSums(Block::iterator it, Block::iterator end) {
  llvm::SetVector<Value> freed;
  llvm::SetVector<Value> sums;
  SmallVector<Value> lefts, rights;
  for (; it != end; ++it) {
    if (auto free = dyn_cast<FreeOp>(*it)) {
      freed.insert(free.getBuffers().begin(), free.getBuffers().end());
      continue;
    }
    auto sum = dyn_cast<AccumulateOp>(*it);
    if (!sum || sums.contains(sum.getLeft()) || sums.contains(sum.getRight()))
      break;
    sums.insert(sum.getSum());
    lefts.push_back(sum.getLeft());
    rights.push_back(sum.getRight());
  }
  std::string operands = listOf(lefts) + " +" + listOf(rights);
  for (auto [sum, left] : llvm::zip_equal(sums, lefts))
    if (freed.remove(left))
      slots.hand(left, sum);
    else
      slots.add(sum);
  // Only now, so that a sum is not taken for freed: it may be of no use to anybody.
  text.lines.push_back("accumulate" + listOf(sums.getArrayRef()) + " =" + operands);
  writeFree(freed.getArrayRef());
  return it;
}

ProgramText exporter::programText(ProgramOp program, MeshAttr mesh,
                                  const llvm::DenseMap<Attribute, int64_t> &reshards) {
  return Writer(mesh, reshards).write(program);
}

std::vector<std::string> exporter::orderText(const schedule::ProgramTable &table,
                                             ArrayRef<schedule::Place> places,
                                             ArrayRef<ProgramText> programs) {
  std::vector<std::string> lines;
  SmallVector<size_t> written(programs.size(), 0); // Lines of each program.
  int64_t last = std::numeric_limits<int64_t>::max(), count = 0;
  auto flush = [&] {
    if (count > 1)
      lines.back() += "*" + std::to_string(count);
    count = 0;
  };
  for (schedule::Place place : places) {
    const std::vector<uint32_t> &ends = programs[place.program].ends;
    size_t &next = written[place.program];
    for (; next < ends.size() && ends[next] <= place.position + 1; ++next) {
      int64_t mesh = table.programs[place.program].mesh;
      if (mesh != last) {
        flush();
        if (mesh < last)
          lines.push_back(std::to_string(mesh));
        else
          lines.back() += " " + std::to_string(mesh);
        last = mesh;
      }
      ++count;
    }
  }
  flush();
  return lines;
}
