//===- StageMemory.cpp - bytes that a sharded stage keeps -----------------===//

#include "compiler/Sharding/Problem/StageMemory.h"

#include "llvm/ADT/STLExtras.h"
#include <cmath>
#include <map>
#include <numeric>

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;

static int64_t localBytes(double bytes, PackedSpec spec, llvm::ArrayRef<int64_t> meshShape) {
  return static_cast<int64_t>(std::ceil(bytes / spec.numPieces(meshShape)));
}

/// What an item needs beside the buffers of others.
static int64_t ownBytes(const ProblemBuilder &builder, const LiveItem &item, double bytes,
                        PackedSpec spec) {
  int64_t own = item.copies * localBytes(bytes, spec, builder.getMeshShape());
  if (item.isOnHost)
    own = static_cast<int64_t>(std::ceil(static_cast<double>(own) * builder.hostByteWeight()));
  return own > item.fittingBytes ? own : 0;
}

int64_t sharding::itemBytes(const ProblemBuilder &builder, const LiveItem &item,
                            llvm::ArrayRef<unsigned> choices) {
  const ValueInfo &info = builder.getValues()[item.value];
  PackedSpec spec = builder.specOf(info, choices);
  if (item.replaces >= 0) {
    const ValueInfo &old = builder.getValues()[item.replaces];
    if (old.node == info.node && builder.specOf(old, choices) == spec)
      return 0;
  }
  return ownBytes(builder, item, info.bytes, spec);
}

MemoryUse sharding::measureMemory(const ProblemBuilder &builder, const Liveness &liveness,
                                  llvm::ArrayRef<unsigned> choices) {
  MemoryUse use;
  use.microBatchesInFlight = liveness.microBatchesInFlight;
  std::vector<int64_t> change(liveness.numTimes() + 1, 0), inner(liveness.numTimes() + 1, 0);
  for (const LiveItem &item : liveness.items) {
    if (item.isOnHost) {
      const ValueInfo &info = builder.getValues()[item.value];
      use.hostBytes += item.copies * localBytes(info.bytes, builder.specOf(info, choices),
                                                builder.getMeshShape());
    }
    int64_t bytes = itemBytes(builder, item, choices);
    change[item.life.begin] += bytes;
    change[item.life.end] -= bytes;
    if (item.isInner) {
      inner[item.life.begin] += bytes;
      inner[item.life.end] -= bytes;
    }
    if (item.lifetime == Lifetime::State)
      use.stateBytes += bytes;
    else if (item.lifetime == Lifetime::Activation)
      (item.isOnHost ? use.hostActivationBytes : use.activationBytes) += bytes;
  }
  use.activationBytes /= std::max<int64_t>(1, use.microBatchesInFlight);
  use.hostActivationBytes /= std::max<int64_t>(1, use.microBatchesInFlight);
  int64_t live = 0, liveInner = 0;
  unsigned phase = 0;
  for (int64_t time = 0; time < liveness.numTimes(); ++time) {
    while (phase + 1 < kNumPhases && time >= liveness.phaseEnd[phase])
      ++phase;
    liveInner += inner[time];
    use.scratchBytes[phase] = std::max(use.scratchBytes[phase], liveInner);
    live += change[time];
    use.bytesAt.push_back(live);
    if (time < liveness.end())
      use.deviceBytes = std::max(use.deviceBytes, live);
    if (live > use.peakBytes) {
      use.peakBytes = live;
      use.peakTime = time;
    }
  }
  return use;
}

namespace {

/// Bytes for each choice of a node; one entry for what no choice changes.
using Usage = std::vector<int64_t>;

class MemoryAdder {
public:
  MemoryAdder(solver::Problem &problem, const ProblemBuilder &builder, const Liveness &liveness)
      : problem(problem), builder(builder), liveness(liveness), items(liveness.items) {}

  std::vector<int64_t> run(llvm::ArrayRef<int64_t> wanted) {
    for (const LiveItem &item : items)
      usageOf.push_back(findUsage(item));
    if (wanted.empty()) {
      findMoments();
      dropDominated();
    } else {
      moments.assign(wanted.begin(), wanted.end());
    }
    addNodes();
    return moments;
  }

private:
  unsigned findUsage(const LiveItem &item) {
    const ValueInfo &info = builder.getValues()[item.value];
    bool isAliased = item.replaces >= 0 && info.node == builder.getValues()[item.replaces].node;
    unsigned other = isAliased ? builder.getValues()[item.replaces].table + 1 : 0;
    auto [it, isNew] =
        usageIndex.try_emplace({info.node < 0 ? 0 : info.table + 1, other, item.copies,
                                item.fittingBytes, info.bytes, item.isOnHost},
                               usages.size());
    if (!isNew)
      return it->second;
    Usage usage;
    if (info.node < 0) {
      usage = {isAliased ? 0 : ownBytes(builder, item, info.bytes, {})};
    } else {
      const SpecTable &table = builder.getTables()[info.table];
      llvm::SmallVector<int64_t> sizes;
      for (PackedSpec spec : table.specs)
        sizes.push_back(ownBytes(builder, item, info.bytes, spec));
      for (uint16_t entry : table.index)
        usage.push_back(sizes[entry]);
      if (isAliased) {
        const SpecTable &old = builder.getTables()[other - 1];
        for (size_t choice = 0; choice < usage.size(); ++choice)
          if (old.specs[old.index[choice]] == table.specs[table.index[choice]])
            usage[choice] = 0;
      }
    }
    least.push_back(*llvm::min_element(usage));
    most.push_back(*llvm::max_element(usage));
    usages.push_back(std::move(usage));
    return it->second;
  }

  /// Times at which a value is born and the next change is a death: between them
  /// less is live.
  void findMoments() {
    std::vector<char> begins(liveness.numTimes() + 1, 0), ends(liveness.numTimes() + 1, 0);
    for (auto [item, usage] : llvm::zip_equal(items, usageOf)) {
      if (most[usage] == 0)
        continue;
      begins[item.life.begin] = 1;
      ends[item.life.end] = 1;
    }
    int64_t lastBegin = -1;
    for (int64_t time = 0; time <= liveness.numTimes(); ++time) {
      if (ends[time] && lastBegin >= 0) {
        moments.push_back(lastBegin);
        lastBegin = -1;
      }
      if (begins[time])
        lastBegin = time;
    }
    constexpr size_t kLong = 16;
    liveAt.resize(moments.size());
    longBegins.assign(moments.size() + 1, 0);
    longEnds.assign(moments.size() + 1, 0);
    longBytes.assign(moments.size() + 1, 0);
    for (unsigned index = 0; index < items.size(); ++index) {
      if (most[usageOf[index]] == 0)
        continue;
      auto [begin, end] = momentsOf(items[index]);
      if (end - begin <= kLong) {
        for (size_t m = begin; m < end; ++m)
          liveAt[m].push_back(index);
        continue;
      }
      ++longBegins[begin];
      ++longEnds[end];
      longBytes[begin] += least[usageOf[index]];
    }
    // Counts of all moments up to one.
    std::partial_sum(longBegins.begin(), longBegins.end(), longBegins.begin());
    std::partial_sum(longEnds.begin(), longEnds.end(), longEnds.begin());
    std::partial_sum(longBytes.begin(), longBytes.end(), longBytes.begin());
  }

  std::pair<size_t, size_t> momentsOf(const LiveItem &item) const {
    auto at = [&](int64_t time) { return llvm::lower_bound(moments, time) - moments.begin(); };
    return {at(item.life.begin), at(item.life.end)};
  }

  /// Whether moment p surely never needs more than moment q. Values that live for
  /// long are not listed at each moment: what matters is that all of p's live at q.
  bool isDominated(size_t p, size_t q) {
    if (p < q ? longEnds[q] > longEnds[p] : longBegins[p] > longBegins[q])
      return false;
    onlyP.clear();
    onlyQ.clear();
    std::set_difference(liveAt[p].begin(), liveAt[p].end(), liveAt[q].begin(), liveAt[q].end(),
                        std::back_inserter(onlyP));
    std::set_difference(liveAt[q].begin(), liveAt[q].end(), liveAt[p].begin(), liveAt[p].end(),
                        std::back_inserter(onlyQ));
    int64_t bonus = p < q ? longBytes[q] - longBytes[p] : 0; // That only q has.
    int64_t leastOfP = 0, mostOfP = 0, leastOfQ = bonus, mostOfQ = bonus;
    for (unsigned item : onlyP) {
      leastOfP += least[usageOf[item]];
      mostOfP += most[usageOf[item]];
    }
    for (unsigned item : onlyQ) {
      leastOfQ += least[usageOf[item]];
      mostOfQ += most[usageOf[item]];
    }
    if (leastOfP > leastOfQ || mostOfP > mostOfQ)
      return false;
    if (mostOfP <= leastOfQ)
      return true;
    // By how much p exceeds q, node by node.
    std::map<int, Usage> excess;
    auto count = [&](unsigned item, int64_t sign) {
      const Usage &usage = usages[usageOf[item]];
      Usage &sum = excess[builder.getValues()[items[item].value].node];
      sum.resize(usage.size());
      for (size_t choice = 0; choice < usage.size(); ++choice)
        sum[choice] += sign * usage[choice];
    };
    for (unsigned item : onlyP)
      count(item, 1);
    for (unsigned item : onlyQ)
      count(item, -1);
    int64_t total = -bonus;
    for (const auto &[node, sum] : excess)
      total += *llvm::max_element(sum);
    return total <= 0;
  }

  void dropDominated() {
    // The fullest first: they rule out the most.
    std::vector<std::pair<int64_t, size_t>> order;
    for (size_t m = 0; m < moments.size(); ++m) {
      int64_t sum = 0;
      for (unsigned item : liveAt[m])
        sum += least[usageOf[item]];
      sum += longBytes[m];
      order.push_back({-sum, m});
    }
    llvm::sort(order);
    llvm::SmallVector<size_t> kept;
    for (auto [sum, m] : order)
      if (llvm::none_of(kept, [&, m = m](size_t other) { return isDominated(m, other); }))
        kept.push_back(m);
    llvm::sort(kept);
    std::vector<int64_t> times;
    for (size_t m : kept)
      times.push_back(moments[m]);
    moments = std::move(times);
  }

  void addNodes() {
    using Life = std::pair<size_t, size_t>;
    std::map<std::pair<int, Life>, Usage> sums;
    for (unsigned index = 0; index < items.size(); ++index) {
      Life life = momentsOf(items[index]);
      const Usage &usage = usages[usageOf[index]];
      if (life.first == life.second || most[usageOf[index]] == 0)
        continue;
      Usage &sum = sums[{builder.getValues()[items[index].value].node, life}];
      sum.resize(usage.size());
      for (size_t choice = 0; choice < usage.size(); ++choice)
        sum[choice] += usage[choice];
    }
    // The longest life of each node is its own.
    std::map<int, Life> own;
    for (const auto &[key, usage] : sums) {
      auto [it, isNew] = own.try_emplace(key.first, key.second);
      if (!isNew && key.second.second - key.second.first > it->second.second - it->second.first)
        it->second = key.second;
    }
    for (auto &[key, usage] : sums) {
      auto [node, life] = key;
      solver::Interval interval{static_cast<int64_t>(life.first),
                                static_cast<int64_t>(life.second)};
      if (node < 0)
        problem.nodes.push_back({"whole values", {interval}, {0}, std::move(usage)});
      else if (own[node] == life) {
        problem.nodes[node].intervals = {interval};
        problem.nodes[node].usagesBytes = std::move(usage);
      } else {
        addFollower(node, interval, usage);
      }
    }
  }

  void addFollower(int node, solver::Interval interval, const Usage &usage) {
    Usage distinct = usage;
    llvm::sort(distinct);
    distinct.erase(llvm::unique(distinct), distinct.end());
    solver::ProblemEdge edge{
        static_cast<unsigned>(node), static_cast<unsigned>(problem.nodes.size()), {}};
    edge.costs.reserve(usage.size() * distinct.size());
    for (int64_t bytes : usage)
      for (int64_t other : distinct)
        edge.costs.push_back(bytes == other ? 0 : solver::kForbiddenCost);
    problem.nodes.push_back({problem.nodes[node].name + ", values that follow",
                             {interval},
                             std::vector<int64_t>(distinct.size(), 0),
                             std::move(distinct)});
    if (problem.nodes.back().costs.size() > 1)
      problem.edges.push_back(std::move(edge));
  }

  solver::Problem &problem;
  const ProblemBuilder &builder;
  const Liveness &liveness;
  const std::vector<LiveItem> &items;
  std::vector<Usage> usages;
  std::vector<int64_t> least, most; // Of each usage.
  std::map<std::tuple<unsigned, unsigned, int64_t, int64_t, double, bool>, unsigned> usageIndex;
  std::vector<unsigned> usageOf;             // Of each item.
  std::vector<int64_t> moments;              // Times, rising.
  std::vector<std::vector<unsigned>> liveAt; // Short-lived items.
  // Up to each moment: long-lived items born and gone, and least bytes of the former.
  std::vector<int64_t> longBegins, longEnds, longBytes;
  std::vector<unsigned> onlyP, onlyQ;
};

} // namespace

std::vector<int64_t> sharding::addMemory(solver::Problem &problem, const ProblemBuilder &builder,
                                         const Liveness &liveness, int64_t limitBytes,
                                         llvm::ArrayRef<int64_t> times) {
  problem.usageLimitBytes = limitBytes;
  return MemoryAdder(problem, builder, liveness).run(times);
}
