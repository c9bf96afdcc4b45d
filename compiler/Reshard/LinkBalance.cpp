//===- LinkBalance.cpp - even loads of links ------------------------------===//
//
// First the loads: each demand in turn takes its bytes back and pours them over its
// links like water, lowest first, until nothing moves. That is descent on a convex
// function of the loads, one block at a time, and ends where the loads are as even
// as they can be. Then the shares: a flow from demands to links that fills each link
// up to its load, along paths that are as full as possible, so that they are few.
//
//===----------------------------------------------------------------------===//

#include "compiler/Reshard/LinkBalance.h"

#include "llvm/ADT/STLExtras.h"

#include <limits>

using namespace alpa;
using namespace alpa::reshard;

namespace {

constexpr unsigned kRounds = 100;
constexpr double kTolerance = 1e-7; // Of the bytes of all demands.

/// One demand's bytes for each of its links.
using Poured = std::vector<llvm::SmallVector<double, 4>>;

/// Raises the links to one level of seconds; returns how many bytes changed places.
double pour(const LinkDemand &demand, llvm::ArrayRef<double> secondsPerByte,
            llvm::MutableArrayRef<double> bytes, std::vector<double> &busy) {
  llvm::SmallVector<std::pair<double, size_t>> levels; // Without this demand.
  for (auto [i, link] : llvm::enumerate(demand.links))
    levels.emplace_back(busy[link] - bytes[i] * secondsPerByte[link], i);
  llvm::sort(levels);
  // With the lowest links of a rate of so many bytes a second, the level is that at
  // which they hold the demand.
  double rate = 0, held = 0, level = 0;
  for (size_t count = 0; count < levels.size(); ++count) {
    if (count > 0 && levels[count].first >= level)
      break;
    double each = 1 / secondsPerByte[demand.links[levels[count].second]];
    rate += each;
    held += each * levels[count].first;
    level = (demand.bytes + held) / rate;
  }
  double moved = 0;
  for (auto [base, i] : levels) {
    unsigned link = demand.links[i];
    double now = std::max(0.0, level - base) / secondsPerByte[link];
    moved += std::abs(now - bytes[i]);
    busy[link] = base + now * secondsPerByte[link];
    bytes[i] = now;
  }
  return moved;
}

/// Bytes from demands to links, each link having room for some.
class Flow {
public:
  Flow(llvm::ArrayRef<LinkDemand> demands, std::vector<double> room)
      : demands(demands), room(std::move(room)), on(this->room.size()) {
    for (const LinkDemand &demand : demands)
      shares.emplace_back(demand.links.size(), 0.0);
    for (auto [d, demand] : llvm::enumerate(demands))
      for (auto [i, link] : llvm::enumerate(demand.links))
        on[link].push_back({unsigned(d), unsigned(i)});
  }

  void route(double smallest) {
    for (unsigned d = 0; d < demands.size(); ++d) {
      double left = demands[d].bytes;
      while (left > smallest) {
        double pushed = push(d, left, smallest);
        if (pushed <= 0)
          break;
        left -= pushed;
      }
      if (left > 0 && !shares[d].empty()) // Rounding.
        *llvm::max_element(shares[d]) += left;
    }
  }

  Poured shares;

private:
  double push(unsigned from, double most, double smallest);

  llvm::ArrayRef<LinkDemand> demands;
  std::vector<double> room;
  std::vector<std::vector<std::pair<unsigned, unsigned>>> on; // Demands that may use a link.
};

} // namespace

/// Along a shortest path to a link with room: a link without any hands over what
/// another demand has there, if that demand finds room elsewhere.
double Flow::push(unsigned from, double most, double smallest) {
  struct Visit {
    int64_t link;   // By which the demand was reached, or -1.
    unsigned index; // Of that link among the demand's.
  };
  std::vector<std::optional<Visit>> reached(demands.size());
  std::vector<std::pair<unsigned, unsigned>> through(room.size()); // Demand and index before.
  std::vector<bool> seen(room.size());
  reached[from] = Visit{-1, 0};
  std::vector<unsigned> queue = {from};
  int64_t end = -1;
  for (size_t next = 0; next < queue.size() && end < 0; ++next) {
    unsigned d = queue[next];
    double widest = smallest;
    for (auto [i, link] : llvm::enumerate(demands[d].links)) {
      if (seen[link])
        continue;
      seen[link] = true;
      through[link] = {d, unsigned(i)};
      if (room[link] > widest) {
        widest = std::min(room[link], most);
        end = link;
        if (widest == most)
          break;
      }
      for (auto [other, index] : on[link])
        if (!reached[other] && shares[other][index] > smallest) {
          reached[other] = Visit{int64_t(link), index};
          queue.push_back(other);
        }
    }
  }
  if (end < 0)
    return 0;
  double amount = std::min(most, room[end]);
  for (int64_t link = end; link >= 0;) {
    auto [d, index] = through[link];
    const Visit &visit = *reached[d];
    if (visit.link >= 0)
      amount = std::min(amount, shares[d][visit.index]);
    link = visit.link;
  }
  room[end] -= amount;
  for (int64_t link = end; link >= 0;) {
    auto [d, index] = through[link];
    shares[d][index] += amount;
    const Visit &visit = *reached[d];
    if (visit.link >= 0)
      shares[d][visit.index] -= amount;
    link = visit.link;
  }
  return amount;
}

std::vector<llvm::SmallVector<Share, 2>> reshard::balance(llvm::ArrayRef<LinkDemand> demands,
                                                          llvm::ArrayRef<double> secondsPerByte,
                                                          std::vector<double> &busy) {
  double total = 0;
  Poured poured;
  for (const LinkDemand &demand : demands) {
    total += demand.bytes;
    poured.emplace_back(demand.links.size(), 0.0);
  }
  for (unsigned round = 0; round < kRounds; ++round) {
    double moved = 0;
    for (auto [demand, bytes] : llvm::zip_equal(demands, poured))
      moved += pour(demand, secondsPerByte, bytes, busy);
    if (moved <= kTolerance * total)
      break;
  }
  std::vector<double> room(busy.size());
  for (auto [demand, bytes] : llvm::zip_equal(demands, poured))
    for (auto [link, part] : llvm::zip_equal(demand.links, bytes))
      room[link] += part;
  Flow flow(demands, std::move(room));
  flow.route(kTolerance * total);
  std::vector<llvm::SmallVector<Share, 2>> shares(demands.size());
  for (auto [d, demand] : llvm::enumerate(demands))
    for (auto [link, bytes] : llvm::zip_equal(demand.links, flow.shares[d]))
      if (bytes > 0)
        shares[d].push_back({link, bytes});
  return shares;
}
