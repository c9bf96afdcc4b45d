//===- BuildShardingProblem.cpp - @main's problem as a file ---------------===//

#include "compiler/Sharding/Passes.h"
#include "compiler/Sharding/WholeStepProblem.h"
#include "dialects/Common/Diagnostics.h"
#include "mlir/Support/FileUtilities.h"
#include "llvm/Support/ToolOutputFile.h"

namespace alpa::sharding {
#define GEN_PASS_DEF_BUILDSHARDINGPROBLEM
#include "compiler/Sharding/Passes.h.inc"
} // namespace alpa::sharding

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;

namespace {

struct BuildShardingProblem
    : public sharding::impl::BuildShardingProblemBase<BuildShardingProblem> {
  using BuildShardingProblemBase::BuildShardingProblemBase;

  void runOnOperation() override {
    if (llvm::Error error = run()) {
      withError(getOperation().emitError(), std::move(error));
      signalPassFailure();
    }
  }

private:
  llvm::Error run();
};

} // namespace

llvm::Error BuildShardingProblem::run() {
  if (output.empty())
    return llvm::createStringError("option 'output' is missing; give a file for the problem");
  llvm::Expected<WholeStepProblem> stage = readWholeStepProblem(
      getOperation(),
      {cluster, {meshShape.begin(), meshShape.end()}, method, microBatches, memoryLimit});
  if (!stage)
    return stage.takeError();
  llvm::Expected<solver::Problem> problem =
      buildIntraOpProblem(stage->view, *stage->model, stage->options);
  if (!problem)
    return problem.takeError();
  numNodes = problem->nodes.size();
  numEdges = problem->edges.size();
  std::string message;
  std::unique_ptr<llvm::ToolOutputFile> file = openOutputFile(output, &message);
  if (!file)
    return llvm::createStringError(message);
  file->os() << solver::printProblem(*problem) << "\n";
  file->keep();
  return llvm::Error::success();
}
