//===- BuildInfo.cpp - what this was built from and with ------------------===//

#include "compiler/BuildInfo.h"
#include "compiler/SourceDigest.inc"

#include "llvm/Support/CommandLine.h"
#include "llvm/Support/raw_ostream.h"

const char *const alpa::kBuildInfo = "alpa_mlir " ALPA_VERSION ", sources " ALPA_SOURCE_DIGEST
                                     ", " ALPA_BUILD_TYPE ", " ALPA_CXX ", LLVM " ALPA_LLVM;

void alpa::printBuildInfoAsVersion() {
  llvm::cl::AddExtraVersionPrinter([](llvm::raw_ostream &os) { os << "  " << kBuildInfo << "\n"; });
}
