//===- GlibcCompat.cpp - random numbers without a new C library -----------===//
//
// LLVM draws parts of the names of temporary files by arc4random, the only
// function that it needs of glibc 2.36. With this one in its place a wheel runs
// on every machine with glibc 2.34.
//
//===----------------------------------------------------------------------===//

#include <cstdint>
#include <cstdlib>
#include <sys/random.h>

extern "C" uint32_t arc4random() noexcept {
  uint32_t value;
  // So few bytes come whole, once the kernel has gathered entropy at boot.
  if (getrandom(&value, sizeof value, 0) != sizeof value)
    abort();
  return value;
}
