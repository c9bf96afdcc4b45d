//===- CostModel.cpp - seconds for compute ----------------------------------===//
//
// The roofline model (Williams, Waterman, Patterson, CACM 2009).
//
//===----------------------------------------------------------------------===//

#include "compiler/CostModel/CostModel.h"

#include "llvm/ADT/StringSwitch.h"

#include <algorithm>

using namespace alpa;

/// Rates are looked up by NumPy's names; MLIR's are understood as well.
static llvm::StringRef canonicalDtype(llvm::StringRef dtype) {
  return llvm::StringSwitch<llvm::StringRef>(dtype)
      .Case("f64", "float64")
      .Case("f32", "float32")
      .Case("f16", "float16")
      .Case("bf16", "bfloat16")
      .Cases({"i8", "ui8", "uint8"}, "int8")
      .StartsWith("float8", "float8")
      .StartsWith("f8", "float8")
      .Case("complex128", "float64")
      .Case("complex64", "float32")
      .Default(dtype);
}

double CostModel::computeSeconds(double flops, double bytes, llvm::StringRef dtype) const {
  const llvm::StringMap<double> &peaks = mesh.device.peakFlopsPerSecond;
  auto peak = peaks.find(canonicalDtype(dtype));
  if (peak == peaks.end())
    peak = peaks.find("float32"); // Integers and types without a rate of their own.
  double seconds = 0;
  if (flops > 0 && peak != peaks.end())
    seconds = flops / peak->second;
  if (bytes > 0 && mesh.device.memoryBandwidthBytesPerSecond > 0)
    seconds = std::max(seconds, bytes / mesh.device.memoryBandwidthBytesPerSecond);
  return seconds;
}
