//===- KernelTime.cpp - seconds of what a device computes -----------------===//
//
// The roofline model (Williams, Waterman, Patterson, CACM 2009).
//
//===----------------------------------------------------------------------===//

#include "compiler/CostModel/CostModel.h"

#include "llvm/ADT/StringSwitch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

using namespace alpa;
using namespace alpa::cost;

/// Rates are looked up by NumPy's names; MLIR's are understood as well. Of several types with
/// slashes between them counts the first that the device computes in.
static llvm::StringRef canonicalDtype(llvm::StringRef dtype, const DeviceType &device) {
  while (true) {
    auto [first, others] = dtype.split('/');
    bool hasBlocks = device.computeCapability == 0 || device.computeCapability >= 10;
    llvm::StringRef rate = first == "mxfp8" ? "float8" : first == "nvfp4" ? "float4" : first;
    if (others.empty() || (device.peakFlopsPerSecond.count(rate) && (rate == first || hasBlocks))) {
      dtype = rate;
      break;
    }
    dtype = others;
  }
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

/// Blocks of the result that one multiprocessor computes at a time, and the part of
/// its rate that each reaches: larger ones load less for each product.
namespace {
struct Tile {
  double rows, columns, rate;
};
} // namespace
static constexpr Tile kTiles[] = {{256, 128, 1},   {128, 256, 1},   {128, 128, 0.95},
                                  {256, 64, 0.88}, {64, 256, 0.88}, {128, 64, 0.8},
                                  {64, 128, 0.8},  {64, 64, 0.65}};
/// So much of the inner dimension takes as long as to begin and to end a tile.
static constexpr double kTileOverhead = 128;

/// Whether the tiles above are those of a dtype: other products than those of tensor
/// cores have smaller ones, which leave less of a device idle.
static bool hasTensorCores(const DeviceType &device, llvm::StringRef dtype) {
  if (dtype == "float32" && device.peakFlopsPerSecond.count("tf32"))
    return false;
  double since = dtype == "float16" ? 7.0 : dtype == "int8" ? 7.2 : 8.0;
  return device.computeCapability == 0 || device.computeCapability >= since;
}

/// Tiles go over the multiprocessors in waves. Where there are few, several of them
/// may share the inner dimension of one tile.
double CostModel::productSeconds(const Product &product, double rate) const {
  double parts = static_cast<double>(mesh.device.multiprocessors);
  double best = std::numeric_limits<double>::infinity();
  for (const Tile &tile : kTiles) {
    double tiles = product.count * std::ceil(product.rows / tile.rows) *
                   std::ceil(product.columns / tile.columns);
    for (double split : {1.0, 2.0, 4.0, 8.0}) {
      double waves = std::ceil(tiles * split / parts);
      double inner = std::ceil(product.inner / split) + kTileOverhead;
      best = std::min(best, waves * 2 * tile.rows * tile.columns * inner / tile.rate);
    }
  }
  return best * parts / rate;
}

double CostModel::alignedPart(const Product &product, llvm::StringRef dtype) const {
  int64_t bytes = llvm::StringSwitch<int64_t>(canonicalDtype(dtype, mesh.device))
                      .Cases({"float16", "bfloat16"}, 2)
                      .Cases({"float8", "int8"}, 1)
                      .Default(16);
  return product.alignment * bytes % 16 == 0 ? 1 : mesh.device.unalignedPart();
}

double CostModel::computeSeconds(double flops, double bytes, llvm::StringRef dtype,
                                 const std::optional<Product> &product) const {
  dtype = canonicalDtype(dtype, mesh.device);
  std::optional<double> arithmetic, memory;
  // What was measured of float32 are dots as XLA makes them by default.
  bool isExact = dtype == "float32" && mesh.device.peakFlopsPerSecond.count("tf32");
  if (mesh.profile && product && flops > 0 && !isExact)
    arithmetic = slowest(mesh, flops, [&](const std::string &type) {
      auto it = mesh.profile->matmul.find({type, dtype == "tf32" ? "float32" : dtype.str()});
      return it == mesh.profile->matmul.end() ? nullptr : &it->second;
    });
  if (mesh.profile && bytes > 0)
    memory = slowest(mesh, bytes, [&](const std::string &type) {
      auto it = mesh.profile->memory.find(type);
      return it == mesh.profile->memory.end() ? nullptr : &it->second;
    });
  double rate = mesh.device.reachableFlopsPerSecond(dtype);
  if (!arithmetic) {
    bool isKnown = flops > 0 && rate > 0;
    // XLA makes a sum of products of a dot whose rows or columns are one.
    bool hasTiles = product && product->rows > 1 && product->columns > 1;
    if (isKnown && hasTiles && mesh.device.multiprocessors > 0 &&
        hasTensorCores(mesh.device, dtype))
      arithmetic = productSeconds(*product, rate);
    else
      arithmetic = isKnown ? flops / rate : 0;
    if (product)
      *arithmetic /= alignedPart(*product, dtype);
  }
  rate = mesh.device.reachableBytesPerSecond();
  if (!memory)
    memory = bytes > 0 && rate > 0 ? bytes / rate : 0;
  return std::max(*arithmetic, *memory);
}

double CostModel::attentionSeconds(double flops, double bytes, llvm::StringRef dtype) const {
  double rate = mesh.device.reachableFlopsPerSecond(canonicalDtype(dtype, mesh.device)) *
                mesh.device.attentionPart();
  double arithmetic = rate > 0 ? flops / rate : 0;
  return std::max({arithmetic, computeSeconds(0, bytes, dtype), mesh.device.launchSeconds});
}

double CostModel::kernelSeconds(double flops, double bytes, llvm::StringRef dtype,
                                const std::optional<Product> &product) const {
  return std::max(computeSeconds(flops, bytes, dtype, product), mesh.device.launchSeconds);
}
