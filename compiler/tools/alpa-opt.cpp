//===- alpa-opt.cpp - run passes on a StableHLO file ----------------------===//

#include "compiler/BuildInfo.h"
#include "compiler/ParserInput.h"
#include "compiler/Registration.h"
#ifdef ALPA_TEST_PASSES
#include "test/passes/Passes.h"
#endif

#include "mlir/Support/FileUtilities.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "llvm/Support/InitLLVM.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/ToolOutputFile.h"

static int fail(const llvm::Twine &message) {
  llvm::errs() << message << "\n";
  return 1;
}

int main(int argc, char **argv) {
  alpa::printBuildInfoAsVersion();
  mlir::DialectRegistry registry;
  alpa::registerDialects(registry);
  alpa::registerPasses();
#ifdef ALPA_TEST_PASSES
  alpa::registerAlpaTestPasses();
#endif
  auto [input, output] = mlir::registerAndParseCLIOptions(
      argc, argv, "alpa-opt: parallelizing passes on StableHLO\n", registry);
  mlir::MlirOptMainConfig config = mlir::MlirOptMainConfig::createFromCLOptions();
  if (config.shouldShowDialects() || config.shouldListPasses())
    return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, input, output, registry));

  llvm::InitLLVM init(argc, argv);
  std::string message;
  std::unique_ptr<llvm::MemoryBuffer> file = mlir::openInputFile(input, &message);
  if (!file)
    return fail(message);
  if (llvm::Error error = alpa::checkNesting(file->getBuffer(), file->getBufferIdentifier()))
    return fail(llvm::toString(std::move(error)));
  if (std::optional<std::string> packed = alpa::packBooleans(file->getBuffer()))
    file = llvm::MemoryBuffer::getMemBufferCopy(*packed, file->getBufferIdentifier());
  std::unique_ptr<llvm::ToolOutputFile> result = mlir::openOutputFile(output, &message);
  if (!result)
    return fail(message);
  if (mlir::failed(mlir::MlirOptMain(result->os(), std::move(file), registry, config)))
    return 1;
  result->keep();
  return 0;
}
