//===- ChannelCapacity.h - how many sends may be underway --------*- C++ -*-===//

#ifndef ALPA_COMPILER_SCHEDULE_CHANNELCAPACITY_H
#define ALPA_COMPILER_SCHEDULE_CHANNELCAPACITY_H

#include "compiler/Schedule/ProgramTable.h"

#include <optional>

namespace alpa {

/// The least number of messages that each ordered pair of meshes must be able to hold,
/// sent and not yet received, for all programs to run to their ends;
/// none if they do not end whatever it is. At least 1.
std::optional<int64_t> leastChannelCapacity(const ProgramTable &table);

} // namespace alpa

#endif // ALPA_COMPILER_SCHEDULE_CHANNELCAPACITY_H
