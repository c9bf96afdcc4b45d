//===- SearchSpace.h - which stages the search may choose -------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_SEARCH_SEARCHSPACE_H
#define ALPA_COMPILER_STAGE_SEARCH_SEARCHSPACE_H

#include "compiler/CostModel/Cluster.h"

#include <optional>
#include <vector>

namespace alpa::stage {

/// What may be chosen from: submeshes, and the views of each.
struct SearchSpace {
  std::vector<cost::Submesh> submeshes;
  std::vector<cost::LogicalMesh> meshes;
  std::vector<llvm::SmallVector<unsigned>> views; // Of each submesh, into `meshes`.
  /// Stages by hand: one submesh for each stage, in order.
  bool manual = false;
  std::vector<std::pair<unsigned, unsigned>> layerRanges; // Empty or one for each stage.
};

/// Reads layers of stages such as "0-2": all layers in order, as many as are said. Errors name the
/// entry.
llvm::Error readLayerRanges(llvm::ArrayRef<std::string> texts, std::optional<unsigned> numLayers,
                            std::vector<std::pair<unsigned, unsigned>> &ranges);
/// "1x2" on any hosts where it fits, or "1x2@v100" on those of a device type.
llvm::Expected<cost::Submesh> readSubmesh(const cost::Cluster &cluster, llvm::StringRef text);

/// All submeshes of the cluster and their views of up to so many axes.
SearchSpace wholeSearchSpace(const cost::Cluster &cluster, unsigned meshAxes);

/// Adds a submesh and its views, unless it is there.
void addSubmesh(SearchSpace &space, const cost::Cluster &cluster, const cost::Submesh &submesh,
                unsigned meshAxes);
/// Takes out the submeshes that are not kept, and views that only they have.
void keepSubmeshes(SearchSpace &space, llvm::function_ref<bool(const cost::Submesh &)> keep);

/// Adds the views that have the axes of others in another order, for methods that
/// do not treat all axes alike.
void addTurnedViews(const cost::Cluster &cluster, SearchSpace &space);

/// Reads `submeshes` ("1x2"), `meshShapes` ("2x1") and `layerRanges` ("0-2"); the
/// latter two are empty or have one entry for each submesh, and for each of its
/// `stagesPerMesh` stages. Errors name the entry.
llvm::Expected<SearchSpace>
manualSearchSpace(const cost::Cluster &cluster, unsigned numLayers, unsigned meshAxes,
                  llvm::ArrayRef<std::string> submeshes, llvm::ArrayRef<std::string> meshShapes,
                  llvm::ArrayRef<std::string> layerRanges, unsigned stagesPerMesh = 1);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_SEARCH_SEARCHSPACE_H
