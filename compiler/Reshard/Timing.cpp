//===- Timing.cpp - what a plan takes -------------------------------------===//
//
// Steps of one level flow at the same time: those that read what was cut, then those
// that read what they made, and so on. Whoever shares a link is done when the link
// is, for all of its level.
//
//===----------------------------------------------------------------------===//

#include "compiler/Reshard/Timing.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;
using namespace alpa::reshard;

namespace {

class Clock {
public:
  Clock(llvm::ArrayRef<PlanStep> steps, const TransferProblem &problem,
        const cost::Network &network)
      : steps(steps), problem(problem), network(network), busy(network.numLinks()) {}

  Timing run();

private:
  struct Message {
    cost::Hop hop;
    double bytes = 0;
  };
  struct Placed {
    int64_t device = 0;
    unsigned level = 0;
    double ready = 0;
    Box box;
  };

  llvm::SmallVector<Message, 8> messagesOf(const PlanStep &step) const;
  double secondsOf(const Message &message) const {
    return message.bytes * network.secondsPerByteOf(message.hop);
  }
  void load();
  void take(const PlanStep &step);

  llvm::ArrayRef<PlanStep> steps;
  const TransferProblem &problem;
  const cost::Network &network;
  std::vector<Placed> tiles;
  std::vector<double> busy;                     // Seconds of each link.
  std::vector<std::vector<double>> busyAtLevel; // For steps that read tiles of that level.
  Timing timing;
};

} // namespace

/// From each device to the next, along a chain or around a ring.
llvm::SmallVector<Clock::Message, 8> Clock::messagesOf(const PlanStep &step) const {
  llvm::SmallVector<Message, 8> messages;
  double bytes = double(problem.bytes(step.box));
  if (step.kind == StepKind::Tile)
    return messages;
  int64_t from = tiles[step.operands.front()].device;
  if (step.kind != StepKind::AllGather) {
    for (int64_t device : step.devices) {
      messages.push_back({network.hop(from, device), bytes});
      from = device;
    }
    return messages;
  }
  // A device hands on all parts but that of the next one, which has it.
  for (size_t i = 0, count = step.operands.size(); i < count; ++i) {
    const Placed &next = tiles[step.operands[(i + 1) % count]];
    messages.push_back(
        {network.hop(step.devices[i], next.device), bytes - double(problem.bytes(next.box))});
  }
  return messages;
}

/// Where tiles lie, and what the steps of each level put on the links.
void Clock::load() {
  for (const PlanStep &step : steps) {
    unsigned level = 0;
    for (int64_t operand : step.operands)
      level = std::max(level, tiles[operand].level);
    if (step.kind != StepKind::Tile && busyAtLevel.size() <= level)
      busyAtLevel.resize(level + 1, std::vector<double>(network.numLinks()));
    for (const Message &message : messagesOf(step)) {
      for (unsigned link : message.hop.links()) {
        double seconds = message.bytes * network.secondsPerByteOf(link);
        busy[link] += seconds;
        busyAtLevel[level][link] += seconds;
        timing.seconds = std::max(timing.seconds, busy[link] + message.hop.latencySeconds);
      }
      if (message.hop.leavesHost())
        timing.slowBytes += int64_t(message.bytes);
    }
    for (int64_t device : step.devices)
      tiles.push_back({device, step.kind == StepKind::Tile ? 0 : level + 1, 0, step.box});
  }
}

void Clock::take(const PlanStep &step) {
  auto made = llvm::MutableArrayRef(tiles).slice(step.firstTile, step.devices.size());
  auto messages = messagesOf(step);
  unsigned level = 0;
  double start = 0;
  for (int64_t operand : step.operands) {
    level = std::max(level, tiles[operand].level);
    start = std::max(start, tiles[operand].ready);
  }
  double shared = 0; // Until the links are done with all of the level.
  for (const Message &message : messages)
    for (unsigned link : message.hop.links())
      shared = std::max(shared, busyAtLevel[level][link] + message.hop.latencySeconds);
  double way = 0, slowest = 0, latency = 0;
  for (auto [i, message] : llvm::enumerate(messages)) {
    double seconds = secondsOf(message);
    slowest = std::max(slowest, seconds);
    latency = std::max(latency, message.hop.latencySeconds);
    if (step.kind == StepKind::AllGather)
      continue;
    // The first chunk's way here, and the others behind it.
    double chunks = double(step.chunks);
    way += message.hop.latencySeconds + seconds / chunks;
    made[i].ready = start + std::max(shared, way + slowest * (chunks - 1) / chunks);
  }
  if (step.kind == StepKind::AllGather)
    for (Placed &tile : made)
      tile.ready = start + std::max(shared, slowest + double(messages.size() - 1) * latency);
  for (const Placed &tile : made)
    timing.seconds = std::max(timing.seconds, tile.ready);
}

Timing Clock::run() {
  load();
  for (const PlanStep &step : steps)
    if (step.kind != StepKind::Tile)
      take(step);
  return timing;
}

Timing reshard::timePlan(llvm::ArrayRef<PlanStep> steps, const TransferProblem &problem,
                         const cost::Network &network) {
  return Clock(steps, problem, network).run();
}
