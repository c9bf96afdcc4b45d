//===- StageSums.cpp - sums of stages in the sliced module ----------------===//

#include "compiler/Schedule/SlicedModule.h"

#include <map>

using namespace mlir;
using namespace alpa;

static bool isUpdate(const StageFunction &function) {
  return function.callee.getLeafReference().getValue().starts_with("update_");
}

LogicalResult alpa::collectSums(SlicedModule &sliced) {
  std::map<int64_t, StageSum> sums;
  LogicalResult result = success();
  forEachFunction(sliced, [&](StageFunction &function, bool) {
    for (const Port &port : function.outputs) {
      if (port.partOf < 0)
        continue;
      auto emit = [&] {
        return function.op.emitError() << "value " << port.id << " is part of sum " << port.partOf;
      };
      StageSum &sum = sums[port.partOf];
      sum.id = port.partOf;
      if (!sum.type)
        sum.type = port.type;
      if (!isUpdate(function))
        result = emit() << " outside of the update; only results of the update are added up";
      else if (port.type != sum.type)
        result = emit() << ": expected " << sum.type << ", got " << port.type;
      else if (sliced.isArgument(sum.id) || sliced.flows.contains(sum.id))
        result = emit() << ", but value " << sum.id << " is made by itself";
      else
        sum.level = std::max(sum.level, levelOf(function));
      sum.parts.push_back({function.stage, port});
    }
  });
  if (failed(result))
    return failure();
  for (auto &[id, sum] : sums) {
    sliced.flows[id]; // No stage and no mesh make it.
    sliced.sums.push_back(std::move(sum));
  }
  llvm::sort(sliced.sums, [](const StageSum &a, const StageSum &b) {
    return std::make_pair(a.level, a.id) < std::make_pair(b.level, b.id);
  });
  return success();
}

LogicalResult alpa::finishSums(SlicedModule &sliced) {
  llvm::DenseMap<int64_t, StageSum *> byId;
  for (StageSum &sum : sliced.sums) {
    byId[sum.id] = &sum;
    if (auto results = sliced.resultsOf.find(sum.id); results != sliced.resultsOf.end())
      return sliced.main.emitError() << "result " << results->second.front() << " is sum " << sum.id
                                     << ", which a function has to pass on";
    llvm::SetVector<int64_t> members = sliced.flows[sum.id].onceMeshes;
    for (auto &[stage, port] : sum.parts)
      members.insert(sliced.stages[stage].meshIndex);
    sum.members = members.takeVector();
    llvm::sort(sum.members);
  }
  LogicalResult result = success();
  forEachFunction(sliced, [&](StageFunction &function, bool) {
    for (const Port &port : function.inputs) {
      const StageSum *sum = byId.lookup(port.id);
      if (!sum)
        continue;
      if (!isUpdate(function))
        result = function.op.emitError() << "uses sum " << sum->id << " before the update makes it";
      else if (port.type != sum->type)
        result = function.op.emitError()
                 << "sum " << sum->id << " is " << sum->type << ", but is taken as " << port.type;
      else if (levelOf(function) <= sum->level)
        result = function.op.emitError() << "uses sum " << sum->id << ", to which update_"
                                         << sum->level << " of a stage still adds";
    }
  });
  return result;
}

ShardingAttr SlicedModule::shardingOf(const StageSum &sum, int64_t mesh) const {
  for (auto [index, stage] : llvm::enumerate(stages))
    if (auto use = inputAt.find({sum.id, int64_t(index)});
        stage.meshIndex == mesh && use != inputAt.end())
      return use->second.sharding;
  for (auto &[stage, port] : sum.parts)
    if (stages[stage].meshIndex == mesh)
      return port.sharding;
  return ShardingAttr();
}
