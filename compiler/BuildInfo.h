//===- BuildInfo.h - what this was built from and with ----------*- C++ -*-===//

#ifndef ALPA_COMPILER_BUILDINFO_H
#define ALPA_COMPILER_BUILDINFO_H

namespace alpa {

/// One line: version, digest of the C++ sources, build type, compiler, LLVM. It has no date and no
/// path, so the native module and the programs of one build have the same.
extern const char *const kBuildInfo;

/// Makes `--version` of a program print that line too.
void printBuildInfoAsVersion();

} // namespace alpa

#endif // ALPA_COMPILER_BUILDINFO_H
