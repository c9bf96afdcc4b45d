//===- ClusterPresets.cpp - clusters that are known by name ---------------===//
//
// Peaks are the makers' published ones, tensor cores without sparsity: data sheets
// "NVIDIA V100 Tensor Core GPU" (SXM2), "NVIDIA A100 Tensor Core GPU" (SXM), "NVIDIA
// H100 Tensor Core GPU" (SXM), "NVIDIA H200 Tensor Core GPU" (SXM), "NVIDIA DGX
// B200", "NVIDIA GB200 NVL72", "NVIDIA GB300 NVL72", "NVIDIA L40S", "AMD Instinct
// MI300X"; those of DGX A100 and DGX H100; the instance tables of Amazon EC2 P3, P4
// and P5. tf32 is what XLA multiplies float32 in by default, where the device has it. NVLink is
// given per direction, half of the advertised total. Seconds of a step are those by which NCCL
// chooses (its src/graph/tuning.cc: NVLink, PCI and network; NVLS), which hold for InfiniBand; EFA
// has round figures of the usual order, and so have the V100's and the MI300X's links.
//
// What is reached of the peaks: the V100's is fitted to figure 8 of Alpa on one GPU
// (docs/figure8.md), with XLA of 2022, which joined fewer kernels; in mixed precision it is
// near the 83 TFLOP/s of Markidis et al., "NVIDIA Tensor Core Programmability, Performance
// & Precision", IPDPSW 2018. Of a V100's six NVLinks a pair shares two at
// most and four devices four ("NVIDIA DGX-1 With Tesla V100 System Architecture"); of an
// MI300X's seven, one and three. A100 devices and links are fitted to published training runs
// (docs/truth.md); H100 and later ones have been given parts of the same order, which
// one device and few runs judge (docs/truth.md, "On one H100"). A rack of NVL72 has one NVLink
// switch for all of its hosts, which NCCL takes for one; so its links between hosts are NVLinks as
// well.
//
// A device's way to its host's memory is given for all devices that copy in both directions
// at once. It ends where the host's memory does, of which devices are taken to reach four
// fifths: 614 GB/s (two sockets of eight channels of DDR5-4800) for sixteen directions of a DGX
// H100, whose links of 52.8 GB/s (NVIDIA/nvbandwidth, issue 24) are faster; 512 GB/s (LPDDR5X)
// for the four of a Grace with two devices, whose NVLink-C2C reaches 346 GB/s (issue 23, of a
// GH200). Links of PCIe 4.0 move 25 GB/s one way and as much as 16 GB/s each way (issue 53:
// 11 and 25 GB/s side by side), those of PCIe 3.0 that two V100 share half of 12 GB/s. No
// training run has judged these figures yet.
//
//===----------------------------------------------------------------------===//

#include "compiler/CostModel/ClusterPresets.h"
#include "compiler/CostModel/Cluster.h"

using namespace alpa;
using namespace alpa::cost;

// Round figures for virtual devices that share one machine; nothing measured.
static constexpr llvm::StringLiteral kCpuTest = R"(
name: cpu-test
device_types:
  virtual:
    memory_bytes: 2GiB
    memory_bandwidth: 1e10
    peak_flops: {float64: 1e10, float32: 2e10, float16: 2e10, bfloat16: 2e10}
hosts: {count: 2, devices: 4, device_type: virtual,
        host_memory: {bytes: 16GiB, bandwidth: 2e9, latency: 2e-5}}
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
    efficiency: {float32: 0.69, float16: 0.68, bfloat16: 0.69, memory: 0.75}
    multiprocessors: 80
    launch: 5e-6
    compute_capability: 7.0
hosts: {count: 1, devices: 8, device_type: v100,
        host_memory: {bytes: 488GiB, bandwidth: 6GB/s, latency: 20us}}
links:
  intra_host: {bandwidth: 150e9, latency: 3e-6, efficiency: 0.8, groups: {2: 50GB/s, 4: 100GB/s}}
  inter_host: {bandwidth: 3.125e9, latency: 2e-5, efficiency: 0.9}
)";

// 8 A100 of 40 GB with NVSwitch (600 GB/s both ways), four 100 Gbit/s adapters.
static constexpr llvm::StringLiteral kP4d = R"(
name: p4d.24xlarge
device_types:
  a100-40gb:
    memory_bytes: 40GiB
    memory_bandwidth: 1555e9
    peak_flops: {float64: 19.5e12, float32: 19.5e12, tf32: 156e12, float16: 312e12, bfloat16: 312e12, int8: 624e12}
    efficiency: {float64: 0.74, float32: 0.74, tf32: 0.74, float16: 0.74, bfloat16: 0.74, int8: 0.74, attention: 0.75, unaligned: 0.27, memory: 0.85}
    multiprocessors: 108
    launch: 3us
    overlap_slowdown: 0.2
    compute_capability: 8.0
hosts: {count: 1, devices: 8, device_type: a100-40gb, nics: 4,
        host_memory: {bytes: 1152GiB, bandwidth: 16GB/s, latency: 20us}}
links:
  intra_host: {bandwidth: 300e9, latency: 3.4us, efficiency: 0.8, nccl: {ll: 0.6us, ll128: 1.9us}}
  inter_host: {bandwidth: 50e9, latency: 20us, efficiency: 0.9, nccl: {ll: 8us, ll128: 10us}}
)";

// 8 H100 of 80 GB with NVSwitch (900 GB/s both ways), 32 adapters of 100 Gbit/s.
static constexpr llvm::StringLiteral kP5 = R"(
name: p5.48xlarge
device_types:
  h100:
    memory_bytes: 80GiB
    memory_bandwidth: 3350e9
    peak_flops: {float64: 67e12, float32: 67e12, tf32: 494.5e12, float16: 989e12, bfloat16: 989e12, float8: 1979e12, int8: 1979e12}
    efficiency: {float64: 0.7, float32: 0.7, tf32: 0.7, float16: 0.7, bfloat16: 0.7, float8: 0.65, int8: 0.65, attention: 0.75, unaligned: 0.34, memory: 0.85}
    multiprocessors: 132
    launch: 3us
    overlap_slowdown: 0.2
    compute_capability: 9.0
hosts: {count: 1, devices: 8, device_type: h100, nics: 32,
        host_memory: {bytes: 2048GiB, bandwidth: 20GB/s, latency: 20us}}
links:
  intra_host: {bandwidth: 450e9, latency: 3.4us, efficiency: 0.8, nccl: {ll: 0.6us, ll128: 1.9us, nvls: 25us}}
  inter_host: {bandwidth: 400e9, latency: 20us, efficiency: 0.9, nccl: {ll: 8us, ll128: 10us}}
)";

// 8 A100 of 80 GB, eight 200 Gbit/s adapters for compute traffic.
static constexpr llvm::StringLiteral kDgxA100 = R"(
name: dgx-a100
device_types:
  a100-80gb:
    memory_bytes: 80GiB
    memory_bandwidth: 2039e9
    peak_flops: {float64: 19.5e12, float32: 19.5e12, tf32: 156e12, float16: 312e12, bfloat16: 312e12, int8: 624e12}
    efficiency: {float64: 0.74, float32: 0.74, tf32: 0.74, float16: 0.74, bfloat16: 0.74, int8: 0.74, attention: 0.75, unaligned: 0.27, memory: 0.85}
    multiprocessors: 108
    launch: 3us
    overlap_slowdown: 0.2
    compute_capability: 8.0
hosts: {count: 1, devices: 8, device_type: a100-80gb, nics: 8,
        host_memory: {bytes: 2TB, bandwidth: 16GB/s, latency: 20us}}
links:
  intra_host: {bandwidth: 300e9, latency: 3.4us, efficiency: 0.8, nccl: {ll: 0.6us, ll128: 1.9us}}
  inter_host: {bandwidth: 200e9, latency: 14us, efficiency: 0.9, nccl: {ll: 2.7us, ll128: 4us}}
)";

// 8 H100 of 80 GB, eight 400 Gbit/s adapters for compute traffic.
static constexpr llvm::StringLiteral kDgxH100 = R"(
name: dgx-h100
device_types:
  h100:
    memory_bytes: 80GiB
    memory_bandwidth: 3350e9
    peak_flops: {float64: 67e12, float32: 67e12, tf32: 494.5e12, float16: 989e12, bfloat16: 989e12, float8: 1979e12, int8: 1979e12}
    efficiency: {float64: 0.7, float32: 0.7, tf32: 0.7, float16: 0.7, bfloat16: 0.7, float8: 0.65, int8: 0.65, attention: 0.75, unaligned: 0.34, memory: 0.85}
    multiprocessors: 132
    launch: 3us
    overlap_slowdown: 0.2
    compute_capability: 9.0
hosts: {count: 1, devices: 8, device_type: h100, nics: 8,
        host_memory: {bytes: 2TB, bandwidth: 31GB/s, latency: 20us}}
links:
  intra_host: {bandwidth: 450e9, latency: 3.4us, efficiency: 0.8, nccl: {ll: 0.6us, ll128: 1.9us, nvls: 25us}}
  inter_host: {bandwidth: 400e9, latency: 14us, efficiency: 0.9, nccl: {ll: 2.7us, ll128: 4us}}
)";

// 8 H200 of 141 GB, eight 400 Gbit/s adapters.
static constexpr llvm::StringLiteral kDgxH200 = R"(
name: dgx-h200
device_types:
  h200:
    memory_bytes: 141GB
    memory_bandwidth: 4.8TB/s
    peak_flops: {float64: 67TFLOPS, float32: 67TFLOPS, tf32: 494.5TFLOPS, float16: 989TFLOPS, bfloat16: 989TFLOPS, float8: 1979TFLOPS, int8: 1979TFLOPS}
    efficiency: {float64: 0.7, float32: 0.7, tf32: 0.7, float16: 0.7, bfloat16: 0.7, float8: 0.65, int8: 0.65, attention: 0.75, unaligned: 0.34, memory: 0.85}
    multiprocessors: 132
    launch: 3us
    overlap_slowdown: 0.2
    compute_capability: 9.0
hosts: {count: 1, devices: 8, device_type: h200, nics: 8,
        host_memory: {bytes: 2TB, bandwidth: 31GB/s, latency: 20us}}
links:
  intra_host: {bandwidth: 450GB/s, latency: 3.4us, efficiency: 0.8, nccl: {ll: 0.6us, ll128: 1.9us, nvls: 25us}}
  inter_host: {bandwidth: 3200Gb/s, latency: 14us, efficiency: 0.9, nccl: {ll: 2.7us, ll128: 4us}}
)";

// 8 B200 of 180 GB with NVLink 5 (1.8 TB/s both ways), eight 400 Gbit/s adapters.
static constexpr llvm::StringLiteral kDgxB200 = R"(
name: dgx-b200
device_types:
  b200:
    memory_bytes: 180GB
    memory_bandwidth: 8TB/s
    peak_flops: {float64: 37TFLOPS, float32: 75TFLOPS, tf32: 1.1PFLOPS, float16: 2.25PFLOPS, bfloat16: 2.25PFLOPS, float8: 4.5PFLOPS, float4: 9PFLOPS, int8: 4.5PFLOPS}
    efficiency: {float64: 0.7, float32: 0.7, tf32: 0.7, float16: 0.7, bfloat16: 0.7, float8: 0.65, float4: 0.65, int8: 0.65, attention: 0.75, unaligned: 0.34, memory: 0.85}
    multiprocessors: 148
    launch: 3us
    overlap_slowdown: 0.2
    compute_capability: 10.0
hosts: {count: 1, devices: 8, device_type: b200, nics: 8,
        host_memory: {bytes: 2TB, bandwidth: 36GB/s, latency: 20us}}
links:
  intra_host: {bandwidth: 900GB/s, latency: 3.4us, efficiency: 0.8, nccl: {ll: 0.6us, ll128: 1.9us, nvls: 25us}}
  inter_host: {bandwidth: 3200Gb/s, latency: 14us, efficiency: 0.9, nccl: {ll: 2.7us, ll128: 4us}}
)";

// A rack of 72 B200 in 18 hosts, one 400 Gbit/s adapter for each.
static constexpr llvm::StringLiteral kGb200 = R"(
name: gb200-nvl72
device_types:
  gb200:
    memory_bytes: 186GB
    memory_bandwidth: 8TB/s
    peak_flops: {float64: 40TFLOPS, float32: 80TFLOPS, tf32: 1.25PFLOPS, float16: 2.5PFLOPS, bfloat16: 2.5PFLOPS, float8: 5PFLOPS, float4: 10PFLOPS, int8: 5PFLOPS}
    efficiency: {float64: 0.7, float32: 0.7, tf32: 0.7, float16: 0.7, bfloat16: 0.7, float8: 0.65, float4: 0.65, int8: 0.65, attention: 0.75, unaligned: 0.34, memory: 0.85}
    multiprocessors: 148
    launch: 3us
    overlap_slowdown: 0.2
    compute_capability: 10.0
hosts: {count: 18, devices: 4, device_type: gb200, nics: 4,
        host_memory: {bytes: 960GB, bandwidth: 102GB/s, latency: 20us}}
racks: {hosts: 18, nics: 72}
links:
  intra_host: {bandwidth: 900GB/s, latency: 3.4us, efficiency: 0.8, nccl: {ll: 0.6us, ll128: 1.9us, nvls: 25us}}
  inter_host: {bandwidth: 3600GB/s, latency: 3.4us, efficiency: 0.8, nccl: {ll: 0.6us, ll128: 1.9us, nvls: 25us}}
  inter_rack: {bandwidth: 28800Gb/s, latency: 14us, efficiency: 0.9, nccl: {ll: 2.7us, ll128: 4us}}
)";

// A rack of 72 B300 in 18 hosts, one 800 Gbit/s adapter for each.
static constexpr llvm::StringLiteral kGb300 = R"(
name: gb300-nvl72
device_types:
  gb300:
    memory_bytes: 279GB
    memory_bandwidth: 8TB/s
    peak_flops: {float64: 1.3TFLOPS, float32: 80TFLOPS, tf32: 1.25PFLOPS, float16: 2.5PFLOPS, bfloat16: 2.5PFLOPS, float8: 5PFLOPS, float4: 15PFLOPS, int8: 160TFLOPS}
    efficiency: {float64: 0.7, float32: 0.7, tf32: 0.7, float16: 0.7, bfloat16: 0.7, float8: 0.65, float4: 0.65, int8: 0.65, attention: 0.75, unaligned: 0.34, memory: 0.85}
    multiprocessors: 148
    launch: 3us
    overlap_slowdown: 0.2
    compute_capability: 10.3
hosts: {count: 18, devices: 4, device_type: gb300, nics: 4,
        host_memory: {bytes: 960GB, bandwidth: 102GB/s, latency: 20us}}
racks: {hosts: 18, nics: 72}
links:
  intra_host: {bandwidth: 900GB/s, latency: 3.4us, efficiency: 0.8, nccl: {ll: 0.6us, ll128: 1.9us, nvls: 25us}}
  inter_host: {bandwidth: 3600GB/s, latency: 3.4us, efficiency: 0.8, nccl: {ll: 0.6us, ll128: 1.9us, nvls: 25us}}
  inter_rack: {bandwidth: 57600Gb/s, latency: 14us, efficiency: 0.9, nccl: {ll: 2.7us, ll128: 4us}}
)";

// 8 L40S of 48 GB on PCIe 4.0 (32 GB/s a direction), two 200 Gbit/s adapters.
static constexpr llvm::StringLiteral kL40s = R"(
name: l40s
device_types:
  l40s:
    memory_bytes: 48GB
    memory_bandwidth: 864GB/s
    peak_flops: {float32: 91.6TFLOPS, tf32: 183TFLOPS, float16: 362TFLOPS, bfloat16: 362TFLOPS, float8: 733TFLOPS, int8: 733TFLOPS}
    efficiency: {float32: 0.7, tf32: 0.7, float16: 0.7, bfloat16: 0.7, float8: 0.65, int8: 0.65, attention: 0.75, unaligned: 0.34, memory: 0.85}
    multiprocessors: 142
    launch: 3us
    overlap_slowdown: 0.2
    compute_capability: 8.9
hosts: {count: 1, devices: 8, device_type: l40s, nics: 2,
        host_memory: {bytes: 1TB, bandwidth: 16GB/s, latency: 20us}}
links:
  intra_host: {bandwidth: 32GB/s, latency: 5.7us, efficiency: 0.8, nccl: {ll: 1us}}
  inter_host: {bandwidth: 400Gb/s, latency: 14us, efficiency: 0.9, nccl: {ll: 2.7us}}
)";

// 8 MI300X of 192 GB with seven Infinity Fabric links each (448 GB/s a direction).
static constexpr llvm::StringLiteral kMi300x = R"(
name: mi300x
device_types:
  mi300x:
    memory_bytes: 192GB
    memory_bandwidth: 5.3TB/s
    peak_flops: {float64: 163.4TFLOPS, float32: 163.4TFLOPS, tf32: 653.7TFLOPS, float16: 1307TFLOPS, bfloat16: 1307TFLOPS, float8: 2614TFLOPS, int8: 2614TFLOPS}
    efficiency: {float64: 0.5, float32: 0.5, tf32: 0.5, float16: 0.5, bfloat16: 0.5, float8: 0.5, int8: 0.5, memory: 0.8}
    multiprocessors: 304
    launch: 3us
    overlap_slowdown: 0.2
hosts: {count: 1, devices: 8, device_type: mi300x, nics: 8,
        host_memory: {bytes: 2TB, bandwidth: 31GB/s, latency: 20us}}
links:
  intra_host: {bandwidth: 448GB/s, latency: 3us, efficiency: 0.8, groups: {2: 64GB/s, 4: 192GB/s}}
  inter_host: {bandwidth: 3200Gb/s, latency: 5us, efficiency: 0.9}
)";

// p4d.24xlarge with A100 of 80 GB.
static constexpr llvm::StringLiteral kP4de = R"(
name: p4de.24xlarge
device_types:
  a100-80gb:
    memory_bytes: 80GiB
    memory_bandwidth: 2039e9
    peak_flops: {float64: 19.5e12, float32: 19.5e12, tf32: 156e12, float16: 312e12, bfloat16: 312e12, int8: 624e12}
    efficiency: {float64: 0.74, float32: 0.74, tf32: 0.74, float16: 0.74, bfloat16: 0.74, int8: 0.74, attention: 0.75, unaligned: 0.27, memory: 0.85}
    multiprocessors: 108
    launch: 3us
    overlap_slowdown: 0.2
    compute_capability: 8.0
hosts: {count: 1, devices: 8, device_type: a100-80gb, nics: 4,
        host_memory: {bytes: 1152GiB, bandwidth: 16GB/s, latency: 20us}}
links:
  intra_host: {bandwidth: 300e9, latency: 3.4us, efficiency: 0.8, nccl: {ll: 0.6us, ll128: 1.9us}}
  inter_host: {bandwidth: 50e9, latency: 20us, efficiency: 0.9, nccl: {ll: 8us, ll128: 10us}}
)";

static const ClusterPreset kPresets[] = {
    {"cpu-test", kCpuTest},  {"dgx-a100", kDgxA100}, {"dgx-b200", kDgxB200},
    {"dgx-h100", kDgxH100},  {"dgx-h200", kDgxH200}, {"gb200-nvl72", kGb200},
    {"gb300-nvl72", kGb300}, {"l40s", kL40s},        {"mi300x", kMi300x},
    {"p3.16xlarge", kP3},    {"p4d.24xlarge", kP4d}, {"p4de.24xlarge", kP4de},
    {"p5.48xlarge", kP5},
};
static const llvm::StringRef kNames[] = {
    "cpu-test",     "dgx-a100",      "dgx-b200",    "dgx-h100", "dgx-h200",
    "gb200-nvl72",  "gb300-nvl72",   "l40s",        "mi300x",   "p3.16xlarge",
    "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge",
};
static_assert(std::size(kPresets) == std::size(kNames));

llvm::ArrayRef<ClusterPreset> cost::clusterPresetTable() { return kPresets; }
llvm::ArrayRef<llvm::StringRef> cost::clusterPresets() { return kNames; }
