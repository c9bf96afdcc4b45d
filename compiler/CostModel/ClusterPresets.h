//===- ClusterPresets.h - clusters that are known by name --------*- C++ -*-===//

#ifndef ALPA_COMPILER_COSTMODEL_CLUSTERPRESETS_H
#define ALPA_COMPILER_COSTMODEL_CLUSTERPRESETS_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"

namespace alpa::cost {

struct ClusterPreset {
  llvm::StringRef name;
  llvm::StringRef yaml;
};

llvm::ArrayRef<ClusterPreset> clusterPresetTable();

} // namespace alpa::cost

#endif // ALPA_COMPILER_COSTMODEL_CLUSTERPRESETS_H
