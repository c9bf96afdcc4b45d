//===- CostModel.cpp - seconds for compute ----------------------------------===//
//
// The roofline model (Williams, Waterman, Patterson, CACM 2009).
//
//===----------------------------------------------------------------------===//

#include "compiler/CostModel/CostModel.h"

#include "llvm/ADT/StringSwitch.h"

#include <algorithm>
#include <optional>

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

/// The slowest of the mesh's device types, if all were measured.
template <typename Lookup>
static std::optional<double> slowest(const LogicalMesh &mesh, double size, Lookup tableOf) {
  std::optional<double> seconds;
  for (const std::string &type : mesh.deviceTypes) {
    const CostTable *table = tableOf(type);
    if (!table)
      return std::nullopt;
    seconds = std::max(seconds.value_or(0), table->at(size));
  }
  return seconds;
}

double CostModel::computeSeconds(double flops, double bytes, llvm::StringRef dtype,
                                 bool isMatmul) const {
  dtype = canonicalDtype(dtype);
  std::optional<double> arithmetic, memory;
  if (mesh.profile && isMatmul && flops > 0)
    arithmetic = slowest(mesh, flops, [&](const std::string &type) {
      auto it = mesh.profile->matmul.find({type, dtype.str()});
      return it == mesh.profile->matmul.end() ? nullptr : &it->second;
    });
  if (mesh.profile && bytes > 0)
    memory = slowest(mesh, bytes, [&](const std::string &type) {
      auto it = mesh.profile->memory.find(type);
      return it == mesh.profile->memory.end() ? nullptr : &it->second;
    });
  double rate = mesh.device.reachableFlopsPerSecond(dtype);
  if (!arithmetic)
    arithmetic = flops > 0 && rate > 0 ? flops / rate : 0;
  rate = mesh.device.reachableBytesPerSecond();
  if (!memory)
    memory = bytes > 0 && rate > 0 ? bytes / rate : 0;
  return std::max(*arithmetic, *memory);
}
