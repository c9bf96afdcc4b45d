//===- ChannelCapacity.cpp - how many sends may be underway ---------------===//
//
// Programs always end in the same way whichever mesh is faster, and end with a larger
// capacity if they do with a smaller one: the least one is found by halving.
//
//===----------------------------------------------------------------------===//

#include "compiler/Schedule/ChannelCapacity.h"

#include "dialects/Alpa/AlpaDialect.h"

#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace alpa;

namespace {

/// What waits or lets others go on, in the order of a program.
struct Event {
  enum Kind : uint8_t { Send, Recv, Meet } kind;
  int64_t channel; // The ordered pair of meshes, or the number of the meeting.
  int64_t message;
};

class Channels {
public:
  explicit Channels(ModuleOp module) {
    llvm::DenseMap<int64_t, int64_t> meshes, messages, meetings;
    auto indexOf = [](llvm::DenseMap<int64_t, int64_t> &map, int64_t key) {
      return map.try_emplace(key, int64_t(map.size())).first->second;
    };
    llvm::DenseMap<std::pair<int64_t, int64_t>, int64_t> channels;
    for (auto program : module.getOps<ProgramOp>())
      indexOf(meshes, int64_t(program.getMesh()));
    programs.resize(meshes.size());
    auto channelOf = [&](int64_t from, int64_t to) {
      auto [it, isNew] = channels.try_emplace({from, to}, int64_t(numChannels));
      if (isNew) {
        ++numChannels;
        receivers.push_back(indexOf(meshes, to));
        senders.push_back(indexOf(meshes, from));
      }
      return it->second;
    };
    for (auto program : module.getOps<ProgramOp>()) {
      int64_t mesh = program.getMesh();
      std::vector<Event> &events = programs[indexOf(meshes, mesh)];
      for (Operation &op : *program.getBody()) {
        if (auto send = dyn_cast<SendOp>(op))
          events.push_back(
              {Event::Send, channelOf(mesh, send.getPeer()), indexOf(messages, send.getTag())});
        else if (auto recv = dyn_cast<RecvOp>(op))
          events.push_back(
              {Event::Recv, channelOf(recv.getPeer(), mesh), indexOf(messages, recv.getTag())});
        else if (auto sum = dyn_cast<AllReduceOp>(op)) {
          int64_t meeting = indexOf(meetings, sum.getTag());
          if (meeting == int64_t(members.size()))
            for (int64_t member : members.emplace_back(sum.getMembers()))
              indexOf(meshes, member);
          events.push_back({Event::Meet, meeting, 0});
        }
      }
      longest = std::max(longest, int64_t(events.size()));
    }
    numMessages = messages.size();
    for (auto &list : members)
      for (int64_t &member : list)
        member = meshes.lookup(member);
    programs.resize(meshes.size());
  }

  /// Whether all programs end.
  bool ends(int64_t capacity) const {
    std::vector<size_t> next(programs.size(), 0);
    std::vector<int64_t> underway(numChannels, 0), arrived(members.size(), 0);
    std::vector<bool> isSent(numMessages, false), hasMet(programs.size(), false);
    std::vector<size_t> awake;
    for (size_t mesh = programs.size(); mesh-- > 0;)
      awake.push_back(mesh);
    auto step = [&](size_t mesh, const Event &event) {
      switch (event.kind) {
      case Event::Send:
        if (underway[event.channel] == capacity)
          return false;
        ++underway[event.channel];
        isSent[event.message] = true;
        awake.push_back(receivers[event.channel]);
        return true;
      case Event::Recv:
        if (!isSent[event.message])
          return false;
        if (underway[event.channel]-- == capacity)
          awake.push_back(senders[event.channel]);
        return true;
      case Event::Meet:
        if (!hasMet[mesh]) {
          hasMet[mesh] = true;
          if (++arrived[event.channel] == int64_t(members[event.channel].size()))
            llvm::append_range(awake, members[event.channel]);
        }
        if (arrived[event.channel] < int64_t(members[event.channel].size()))
          return false;
        hasMet[mesh] = false;
        return true;
      }
      return false;
    };
    while (!awake.empty()) {
      size_t mesh = awake.back();
      awake.pop_back();
      while (next[mesh] < programs[mesh].size() && step(mesh, programs[mesh][next[mesh]]))
        ++next[mesh];
    }
    for (auto [program, at] : llvm::zip_equal(programs, next))
      if (at < program.size())
        return false;
    return true;
  }

  int64_t longest = 1; // Events of one program; no channel holds more.

private:
  std::vector<std::vector<Event>> programs;
  std::vector<int64_t> senders, receivers; // Of each channel.
  std::vector<SmallVector<int64_t>> members;
  size_t numChannels = 0, numMessages = 0;
};

} // namespace

std::optional<int64_t> alpa::leastChannelCapacity(ModuleOp module) {
  Channels channels(module);
  int64_t low = 1, high = channels.longest;
  if (!channels.ends(high))
    return std::nullopt;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (channels.ends(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}
