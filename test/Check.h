//===- Check.h - conditions of C++ tests -------------------------*- C++ -*-===//

#ifndef ALPA_TEST_CHECK_H
#define ALPA_TEST_CHECK_H

#include "llvm/Support/raw_ostream.h"

static int failures = 0;

/// Prints the place of a condition that does not hold, and counts it.
#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      llvm::errs() << __FILE__ << ":" << __LINE__ << ": not true: " #condition "\n";               \
      ++failures;                                                                                  \
    }                                                                                              \
  } while (false)

#endif // ALPA_TEST_CHECK_H
