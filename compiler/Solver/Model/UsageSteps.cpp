//===- UsageSteps.cpp - a variable's bytes over time ----------------------===//

#include "compiler/Solver/Model/UsageSteps.h"
#include "compiler/Solver/Presolve/Presolve.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;

Profile::Profile(const Variable &variable) {
  if (variable.uses.size() == 1) {
    // Its ranges are all alike.
    const Use &use = variable.uses.front();
    for (MomentRange range : use.life)
      if (range.begin < range.end)
        all.push_back({range, use.bytes});
    return;
  }
  struct Event {
    unsigned moment;
    unsigned use;
    bool begins;
  };
  std::vector<Event> events;
  for (unsigned u = 0; u < variable.uses.size(); ++u)
    for (MomentRange range : variable.uses[u].life) {
      events.push_back({range.begin, u, true});
      events.push_back({range.end, u, false});
    }
  llvm::sort(events, [](const Event &x, const Event &y) {
    return std::tie(x.moment, x.use, x.begins) < std::tie(y.moment, y.use, y.begins);
  });
  std::vector<int64_t> bytes(variable.numChoices(), 0);
  for (size_t i = 0; i < events.size(); ++i) {
    const std::vector<int64_t> &change = variable.uses[events[i].use].bytes;
    for (size_t c = 0; c < bytes.size(); ++c)
      bytes[c] += events[i].begins ? change[c] : -change[c];
    bool last = i + 1 == events.size() || events[i + 1].moment != events[i].moment;
    if (last && i + 1 < events.size() && llvm::any_of(bytes, [](int64_t b) { return b != 0; }))
      all.push_back({{events[i].moment, events[i + 1].moment}, bytes});
  }
}

bool Profile::usesNoMore(unsigned better, unsigned choice) const {
  return llvm::all_of(all,
                      [&](const Step &step) { return step.bytes[better] <= step.bytes[choice]; });
}
