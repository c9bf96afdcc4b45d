//===- Fragments.cpp - parts that balance senders and receivers -----------===//

#include "compiler/Reshard/Fragments.h"

#include "compiler/Reshard/LinkBalance.h"
#include "compiler/Reshard/TransferStrategies.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>
#include <map>

using namespace alpa;
using namespace alpa::reshard;

namespace {

/// A piece that is less than this part of a latency is not worth a cut.
constexpr double kLeastLatencies = 0.05;

/// The link for each part of a piece: up to which fraction of it.
using Line = llvm::SmallVector<std::pair<double, unsigned>, 2>;

/// Pieces that may take the same links, and a line for each of them.
struct Group {
  llvm::SmallVector<unsigned, 4> links;
  llvm::SmallVector<size_t, 4> pieces; // Numbers, rising.
};

class Cutter {
public:
  Cutter(llvm::ArrayRef<TransferPiece> pieces, const TransferProblem &problem,
         const cost::Network &network, std::vector<double> &busy)
      : pieces(pieces), problem(problem), network(network), busy(busy) {}

  std::vector<Fragment> cut();

private:
  enum class End { Out, Near, In };
  using Key = std::pair<int64_t, llvm::SmallVector<int64_t, 4>>; // Host or -1, and devices.

  void addWays(size_t index);
  void assign(std::map<Key, Group> &groups, std::map<std::pair<size_t, int64_t>, Line> &lines);
  void cut(size_t index, std::vector<Fragment> &fragments);
  std::vector<Box> boxes(const TransferPiece &piece, std::vector<double> ends) const;
  void join(std::map<Key, Group> &groups, int64_t host, llvm::ArrayRef<int64_t> devices,
            size_t index, End end);

  llvm::ArrayRef<TransferPiece> pieces;
  const TransferProblem &problem;
  const cost::Network &network;
  std::vector<double> &busy;
  std::vector<Fragment> whole; // One for each piece, without links.
  std::map<Key, Group> outs, nears, ins;
  std::map<std::pair<size_t, int64_t>, Line> outLines, nearLines, inLines; // By piece and host.
};

unsigned linkAt(const Line &line, double fraction) {
  for (auto [end, link] : line)
    if (fraction < end)
      return link;
  return line.back().second;
}

} // namespace

void Cutter::join(std::map<Key, Group> &groups, int64_t host, llvm::ArrayRef<int64_t> devices,
                  size_t index, End end) {
  Group &group = groups[{host, llvm::SmallVector<int64_t, 4>(devices)}];
  if (group.links.empty())
    for (int64_t device : devices) {
      unsigned link = end == End::Out    ? network.adapterOut(device)
                      : end == End::Near ? network.deviceOut(device)
                                         : network.adapterIn(device);
      if (!llvm::is_contained(group.links, link))
        group.links.push_back(link);
    }
  group.pieces.push_back(index);
}

/// Finds the hosts that want a piece, and with whom it competes for links.
void Cutter::addWays(size_t index) {
  const TransferPiece &piece = pieces[index];
  Fragment &fragment = whole.emplace_back();
  fragment.piece = &piece;
  llvm::SmallVector<int64_t, 4> givers = piece.holders;
  for (llvm::ArrayRef<int64_t> receivers : byHost(piece.receivers, network)) {
    int64_t host = network.hostOf(receivers.front());
    llvm::SmallVector<int64_t, 4> holders;
    llvm::copy_if(piece.holders, std::back_inserter(holders),
                  [&](int64_t holder) { return network.hostOf(holder) == host; });
    bool isFar = holders.empty();
    auto &way = (isFar ? fragment.far : fragment.near).emplace_back();
    way.receivers.assign(receivers.begin(), receivers.end());
    if (isFar) {
      join(ins, host, receivers, index, End::In);
    } else {
      join(nears, host, holders, index, End::Near);
      givers.append(receivers.begin(), receivers.end());
    }
  }
  if (!fragment.far.empty())
    join(outs, -1, givers, index, End::Out);
}

/// Balances the groups, and lays their pieces and shares side by side.
void Cutter::assign(std::map<Key, Group> &groups,
                    std::map<std::pair<size_t, int64_t>, Line> &lines) {
  std::vector<LinkDemand> demands;
  for (auto &[key, group] : groups) {
    LinkDemand &demand = demands.emplace_back();
    demand.links = group.links;
    for (size_t index : group.pieces)
      demand.bytes += double(problem.bytes(pieces[index].box));
  }
  auto shares = balance(demands, network.allSecondsPerByte(), busy);
  size_t number = 0;
  for (auto &[key, group] : groups) {
    llvm::ArrayRef<Share> line = shares[number++];
    double left = line.empty() ? 0 : line.front().bytes; // Of the first share.
    for (size_t index : group.pieces) {
      double bytes = double(problem.bytes(pieces[index].box)), done = 0;
      Line &parts = lines[{index, key.first}];
      // What rounding leaves belongs to the share before.
      while (line.size() > 1 && done + left < bytes * (1 - 1e-6)) {
        done += left;
        if (done > bytes * 1e-6)
          parts.emplace_back(done / bytes, line.front().link);
        line = line.drop_front();
        left = line.front().bytes;
      }
      left -= bytes - done;
      parts.emplace_back(1.0, line.front().link);
    }
  }
}

/// Cuts along the dimension in which whole elements come closest to these fractions.
std::vector<Box> Cutter::boxes(const TransferPiece &piece, std::vector<double> ends) const {
  llvm::sort(ends);
  size_t along = 0;
  double least = 2;
  for (size_t dim = 0; dim < piece.box.rank(); ++dim) {
    double size = double(piece.box.size(dim)), error = 0;
    for (double end : ends)
      error = std::max(error, std::abs(end - std::round(end * size) / size));
    if (error < least - 1e-9) {
      least = error;
      along = dim;
    }
  }
  std::vector<Box> parts;
  Box rest = piece.box;
  for (double end : ends) {
    if (piece.box.rank() == 0)
      break;
    int64_t at = piece.box.begin[along] + std::llround(end * double(piece.box.size(along)));
    if (at <= rest.begin[along] || at >= rest.end[along])
      continue;
    Box part = rest;
    part.end[along] = rest.begin[along] = at;
    parts.push_back(std::move(part));
  }
  parts.push_back(std::move(rest));
  return parts;
}

void Cutter::cut(size_t index, std::vector<Fragment> &fragments) {
  const Fragment &uncut = whole[index];
  const TransferPiece &piece = *uncut.piece;
  std::vector<double> ends;
  auto add = [&](const Line &line) {
    for (auto [end, link] : line)
      if (end < 1)
        ends.push_back(end);
  };
  if (!uncut.far.empty())
    add(outLines[{index, -1}]);
  for (const auto &way : uncut.far)
    add(inLines[{index, network.hostOf(way.receivers.front())}]);
  for (const auto &way : uncut.near)
    add(nearLines[{index, network.hostOf(way.receivers.front())}]);
  double seconds = 0, latency = 0;
  for (const auto *ways : {&uncut.far, &uncut.near})
    for (const auto &way : *ways) {
      cost::Hop hop = network.hop(piece.holders.front(), way.receivers.front());
      seconds = std::max(seconds, double(problem.bytes(piece.box)) * network.secondsPerByteOf(hop));
      latency = std::max(latency, hop.latencySeconds);
    }
  if (seconds < kLeastLatencies * latency)
    ends.clear();
  double elements = double(piece.box.elements());
  int64_t before = 0;
  for (Box &box : boxes(piece, std::move(ends))) {
    Fragment &fragment = fragments.emplace_back(uncut);
    int64_t size = box.elements();
    double middle = (double(before) + double(size) / 2) / elements;
    before += size;
    fragment.box = std::move(box);
    if (!fragment.far.empty())
      fragment.out = linkAt(outLines[{index, -1}], middle);
    for (auto &way : fragment.far)
      way.link = linkAt(inLines[{index, network.hostOf(way.receivers.front())}], middle);
    for (auto &way : fragment.near)
      way.link = linkAt(nearLines[{index, network.hostOf(way.receivers.front())}], middle);
  }
}

std::vector<Fragment> Cutter::cut() {
  for (size_t index = 0; index < pieces.size(); ++index)
    addWays(index);
  assign(ins, inLines);
  assign(nears, nearLines);
  assign(outs, outLines);
  std::vector<Fragment> fragments;
  for (size_t index = 0; index < pieces.size(); ++index)
    cut(index, fragments);
  return fragments;
}

std::vector<Fragment> reshard::cutFragments(llvm::ArrayRef<TransferPiece> pieces,
                                            const TransferProblem &problem,
                                            const cost::Network &network,
                                            std::vector<double> &busy) {
  return Cutter(pieces, problem, network, busy).cut();
}
