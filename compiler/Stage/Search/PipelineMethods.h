//===- PipelineMethods.h - pipelines that are known by name ------*- C++ -*-===//
//
// A pipeline method is a part of all divisions of a model into stages and of a
// cluster into submeshes, as a method of compiler/Sharding/Methods/Methods.h is a part of
// all shardings. The search does the rest, so that plans compare.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_STAGE_SEARCH_PIPELINEMETHODS_H
#define ALPA_COMPILER_STAGE_SEARCH_PIPELINEMETHODS_H

#include "compiler/Sharding/Methods/Methods.h"
#include "compiler/Stage/Search/SearchSpace.h"

#include <functional>

namespace alpa::stage {

/// The registry; "auto", which restricts nothing, comes first.
llvm::ArrayRef<sharding::MethodInfo> pipelineMethodTable();
/// An error that lists the choices for a name that is none of them.
llvm::Error checkPipelineMethod(llvm::StringRef name);

/// Whether layers [lo, hi) may be a stage on the submesh of that index; null for
/// always.
using StageRule = std::function<bool(unsigned lo, unsigned hi, unsigned submesh)>;

/// The most layers one after another that do about as much each: the blocks of a model. An
/// embedding or a head beside them goes with its neighbour where stages have as many layers each.
struct Blocks {
  unsigned begin = 0, end = 0;
};
Blocks findBlocks(llvm::ArrayRef<double> flopsOfLayer);

/// What a method leaves: plans all of whose stages follow one of the rules, the same
/// for all stages, so many of which share a mesh. Submeshes that no rule allows are taken out of
/// `space`. The error says why the model or the cluster has no such plan.
llvm::Expected<std::vector<StageRule>> applyPipelineMethod(llvm::StringRef method,
                                                           const cost::Cluster &cluster,
                                                           llvm::ArrayRef<double> flopsOfLayer,
                                                           SearchSpace &space,
                                                           unsigned stagesPerMesh = 1);

/// The rules alone, among the submeshes that are left; none if no plan follows the method.
std::vector<StageRule> pipelineRules(llvm::StringRef method, const cost::Cluster &cluster,
                                     llvm::ArrayRef<double> flopsOfLayer, const SearchSpace &space,
                                     unsigned stagesPerMesh);

/// Families of even plans: all stages on submeshes of one shape, or of as many
/// layers each.
std::vector<StageRule> evenRules(const cost::Cluster &cluster, unsigned numLayers,
                                 const SearchSpace &space);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_SEARCH_PIPELINEMETHODS_H
