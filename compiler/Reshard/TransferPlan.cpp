//===- TransferPlan.cpp - the steps of a transfer between meshes ----------===//

#include "compiler/Reshard/TransferPlan.h"

using namespace alpa;
using namespace alpa::reshard;

PlanStep &PlanBuilder::add(StepKind kind, llvm::ArrayRef<int64_t> operands,
                           llvm::ArrayRef<int64_t> devices, const Box &box) {
  PlanStep step;
  step.kind = kind;
  step.operands.assign(operands.begin(), operands.end());
  step.devices.assign(devices.begin(), devices.end());
  step.firstTile = int64_t(placed.size());
  step.box = box;
  for (int64_t device : devices)
    placed.emplace_back(device, steps.size());
  return steps.emplace_back(std::move(step));
}

int64_t PlanBuilder::cut(int64_t device, const Box &box) {
  auto [it, isNew] = cuts.try_emplace({device, box}, int64_t(placed.size()));
  if (isNew)
    add(StepKind::Tile, {}, {device}, box);
  return it->second;
}

int64_t PlanBuilder::send(int64_t tile, int64_t device) {
  Box box = boxOf(tile);
  return add(StepKind::Send, {tile}, {device}, box).firstTile;
}

int64_t PlanBuilder::broadcast(int64_t tile, llvm::ArrayRef<int64_t> devices, int64_t chunks) {
  if (devices.size() == 1)
    return send(tile, devices.front());
  Box box = boxOf(tile);
  PlanStep &step = add(StepKind::Broadcast, {tile}, devices, box);
  step.chunks = chunks;
  return step.firstTile;
}

int64_t PlanBuilder::allGather(llvm::ArrayRef<int64_t> tiles, const Box &whole) {
  llvm::SmallVector<int64_t> devices;
  for (int64_t tile : tiles)
    devices.push_back(deviceOf(tile));
  return add(StepKind::AllGather, tiles, devices, whole).firstTile;
}

/// " 3 5-9": numbers that follow each other are a range.
static std::string ranges(llvm::ArrayRef<int64_t> numbers) {
  std::string text;
  for (size_t i = 0, end = 0; i < numbers.size(); i = end) {
    for (end = i + 1; end < numbers.size() && numbers[end] == numbers[end - 1] + 1;)
      ++end;
    text += " " + std::to_string(numbers[i]);
    if (end - i > 1)
      text += "-" + std::to_string(numbers[end - 1]);
  }
  return text;
}

static std::string line(const PlanStep &step) {
  std::string first = std::to_string(step.firstTile);
  int64_t last = step.firstTile + int64_t(step.devices.size()) - 1;
  std::string made = " " + first + (last > step.firstTile ? "-" + std::to_string(last) : "");
  std::string devices;
  for (int64_t device : step.devices)
    devices += " " + std::to_string(device);
  switch (step.kind) {
  case StepKind::Tile:
    return "tile" + made + " on" + devices + " " + step.box.str();
  case StepKind::Send:
    return "send" + made + " =" + ranges(step.operands) + " to" + devices;
  case StepKind::Broadcast:
    return "broadcast" + made + " =" + ranges(step.operands) + " to" + devices + " chunks " +
           std::to_string(step.chunks);
  case StepKind::AllGather:
    return "all_gather" + made + " =" + ranges(step.operands);
  }
  llvm_unreachable("all kinds are above");
}

std::vector<std::string> TransferPlan::lines() const {
  std::vector<std::string> lines;
  for (const PlanStep &step : steps)
    lines.push_back(line(step));
  return lines;
}
