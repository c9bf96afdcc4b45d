//===- ClusterPresets.cpp - clusters that are known by name ---------------===//
//
// Figures are the makers' published peaks: "NVIDIA V100 Tensor Core GPU" data
// sheet (SXM2 column), "NVIDIA A100 Tensor Core GPU" data sheet (SXM), "NVIDIA
// H100 Tensor Core GPU" data sheet (SXM), the data sheets of DGX A100 and DGX
// H100, and the instance tables of Amazon EC2 P3, P4 and P5. Tensor-core rates
// are without sparsity. float32 is TF32 where the device has it, since that is
// what XLA uses for dots by default. NVLink is given per direction, half of the
// advertised total. Latencies are not published; they are round figures of the
// usual order (a few microseconds a step within a host, more between hosts).
//
// Efficiencies are measured ones: for the V100 dots of 83 TFLOP/s in mixed and a
// seventh of that in single precision (Markidis et al., "NVIDIA Tensor Core
// Programmability, Performance & Precision", IPDPSW 2018), and copies of 750 GB/s
// (Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking",
// 2018). Devices without one are taken at their peaks; measure a profile.
//
//===----------------------------------------------------------------------===//

#include "compiler/CostModel/ClusterPresets.h"
#include "compiler/CostModel/Cluster.h"

using namespace alpa;

// Round figures for virtual devices that share one machine; nothing measured.
static constexpr llvm::StringLiteral kCpuTest = R"(
name: cpu-test
device_types:
  virtual:
    memory_bytes: 2GiB
    memory_bandwidth: 1e10
    peak_flops: {float64: 1e10, float32: 2e10, float16: 2e10, bfloat16: 2e10}
hosts: {count: 2, devices: 4, device_type: virtual}
links:
  intra_host: {bandwidth: 4e9, latency: 2e-5}
  inter_host: {bandwidth: 1e9, latency: 1e-4}
)";

// 8 V100 SXM2 of 16 GB with NVLink (300 GB/s both ways), 25 Gbit/s network.
static constexpr llvm::StringLiteral kP3 = R"(
name: p3.16xlarge
device_types:
  v100:
    memory_bytes: 16GiB
    memory_bandwidth: 900e9
    peak_flops: {float64: 7.8e12, float32: 15.7e12, float16: 125e12, bfloat16: 15.7e12}
    efficiency: {float32: 0.755, float16: 0.664, bfloat16: 0.755, memory: 0.833}
hosts: {count: 1, devices: 8, device_type: v100}
links:
  intra_host: {bandwidth: 150e9, latency: 3e-6}
  inter_host: {bandwidth: 3.125e9, latency: 2e-5}
)";

// 8 A100 of 40 GB with NVSwitch (600 GB/s both ways), four 100 Gbit/s adapters.
static constexpr llvm::StringLiteral kP4d = R"(
name: p4d.24xlarge
device_types:
  a100-40gb:
    memory_bytes: 40GiB
    memory_bandwidth: 1555e9
    peak_flops: {float64: 19.5e12, float32: 156e12, float16: 312e12, bfloat16: 312e12}
hosts: {count: 1, devices: 8, device_type: a100-40gb, nics: 4}
links:
  intra_host: {bandwidth: 300e9, latency: 3e-6}
  inter_host: {bandwidth: 50e9, latency: 1e-5}
)";

// 8 H100 of 80 GB with NVSwitch (900 GB/s both ways), 32 adapters of 100 Gbit/s.
static constexpr llvm::StringLiteral kP5 = R"(
name: p5.48xlarge
device_types:
  h100:
    memory_bytes: 80GiB
    memory_bandwidth: 3350e9
    peak_flops: {float64: 67e12, float32: 494.5e12, float16: 989e12, bfloat16: 989e12, float8: 1979e12}
hosts: {count: 1, devices: 8, device_type: h100, nics: 32}
links:
  intra_host: {bandwidth: 450e9, latency: 3e-6}
  inter_host: {bandwidth: 400e9, latency: 1e-5}
)";

// 8 A100 of 80 GB, eight 200 Gbit/s adapters for compute traffic.
static constexpr llvm::StringLiteral kDgxA100 = R"(
name: dgx-a100
device_types:
  a100-80gb:
    memory_bytes: 80GiB
    memory_bandwidth: 2039e9
    peak_flops: {float64: 19.5e12, float32: 156e12, float16: 312e12, bfloat16: 312e12}
hosts: {count: 1, devices: 8, device_type: a100-80gb, nics: 8}
links:
  intra_host: {bandwidth: 300e9, latency: 3e-6}
  inter_host: {bandwidth: 200e9, latency: 5e-6}
)";

// 8 H100 of 80 GB, eight 400 Gbit/s adapters for compute traffic.
static constexpr llvm::StringLiteral kDgxH100 = R"(
name: dgx-h100
device_types:
  h100:
    memory_bytes: 80GiB
    memory_bandwidth: 3350e9
    peak_flops: {float64: 67e12, float32: 494.5e12, float16: 989e12, bfloat16: 989e12, float8: 1979e12}
hosts: {count: 1, devices: 8, device_type: h100, nics: 8}
links:
  intra_host: {bandwidth: 450e9, latency: 3e-6}
  inter_host: {bandwidth: 400e9, latency: 5e-6}
)";

static const ClusterPreset kPresets[] = {
    {"cpu-test", kCpuTest}, {"dgx-a100", kDgxA100}, {"dgx-h100", kDgxH100},
    {"p3.16xlarge", kP3},   {"p4d.24xlarge", kP4d}, {"p5.48xlarge", kP5},
};
static const llvm::StringRef kNames[] = {
    "cpu-test", "dgx-a100", "dgx-h100", "p3.16xlarge", "p4d.24xlarge", "p5.48xlarge",
};
static_assert(std::size(kPresets) == std::size(kNames));

llvm::ArrayRef<ClusterPreset> alpa::clusterPresetTable() { return kPresets; }
llvm::ArrayRef<llvm::StringRef> alpa::clusterPresets() { return kNames; }
