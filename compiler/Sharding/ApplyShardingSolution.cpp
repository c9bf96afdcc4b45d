//===- ApplyShardingSolution.cpp - choices of @main's problem on its ops --===//

#include "compiler/ParserInput.h"
#include "compiler/Sharding/Passes.h"
#include "compiler/Sharding/WholeStepProblem.h"
#include "dialects/Common/Diagnostics.h"
#include "mlir/Support/FileUtilities.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"

namespace alpa::sharding {
#define GEN_PASS_DEF_APPLYSHARDINGSOLUTION
#include "compiler/Sharding/Passes.h.inc"
} // namespace alpa::sharding

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;

namespace {

struct ApplyShardingSolution
    : public sharding::impl::ApplyShardingSolutionBase<ApplyShardingSolution> {
  using ApplyShardingSolutionBase::ApplyShardingSolutionBase;

  void runOnOperation() override {
    if (llvm::Error error = run()) {
      withError(getOperation().emitError(), std::move(error));
      signalPassFailure();
    }
  }

private:
  llvm::Expected<std::vector<unsigned>> readChoices() const;
  llvm::Error run();
};

} // namespace

llvm::Expected<std::vector<unsigned>> ApplyShardingSolution::readChoices() const {
  if (solution.empty())
    return llvm::createStringError("option 'solution' is missing; give a file of choices");
  std::string message;
  std::unique_ptr<llvm::MemoryBuffer> file = openInputFile(solution, &message);
  if (!file)
    return llvm::createStringError(message);
  auto fail = [&](const std::string &what) {
    return llvm::createStringError(solution + ": " + what);
  };
  if (llvm::Error error = checkNesting(file->getBuffer(), solution))
    return error;
  llvm::Expected<llvm::json::Value> value = llvm::json::parse(file->getBuffer());
  if (!value)
    return fail("not valid JSON: " + llvm::toString(value.takeError()));
  const llvm::json::Array *list = value->getAsArray();
  if (!list)
    return fail("expected a list of choices, one for each node");
  std::vector<unsigned> choices;
  for (auto [node, entry] : llvm::enumerate(*list)) {
    std::optional<int64_t> choice = entry.getAsInteger();
    if (!choice || *choice < 0 || *choice > std::numeric_limits<int32_t>::max())
      return fail("the choice of node " + std::to_string(node) + " is not a number of a choice");
    choices.push_back(*choice);
  }
  return choices;
}

llvm::Error ApplyShardingSolution::run() {
  llvm::Expected<std::vector<unsigned>> choices = readChoices();
  if (!choices)
    return choices.takeError();
  llvm::Expected<WholeStepProblem> stage = readWholeStepProblem(
      getOperation(),
      {cluster, {meshShape.begin(), meshShape.end()}, method, microBatches, memoryLimit});
  if (!stage)
    return stage.takeError();
  llvm::Expected<IntraOpResult> result =
      applyChoices(stage->view, *stage->model, stage->options, *choices);
  if (!result)
    return result.takeError();
  annotateMain(*stage, *result);
  return llvm::Error::success();
}
