// Costs that no problem can hold, of many micro-batches on a cluster that hardly computes or sends:
// the search counts them in a larger unit, up to as dear as a choice gets, and finds a plan.
// RUN: printf 'device_types: {d: {memory_bytes: 1GiB, memory_bandwidth: 1e-6, peak_flops: {float32: 1e-3}}}\nhosts: {devices: 4, device_type: d}\nlinks: {intra_host: {bandwidth: 1e-9, latency: 1e3}, inter_host: {bandwidth: 1e-9, latency: 1e3}}\n' > %t.yaml
// RUN: alpa-opt %s -alpa-search-stages="cluster=%t.yaml num-micro-batches=100000 submeshes=1x4" | FileCheck %s
// RUN: alpa-opt %s -alpa-search-stages="cluster=%t.yaml num-micro-batches=100000 submeshes=1x4 memory-fraction=3e-5" | FileCheck %s
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%t.yaml mesh-shape=1,4 micro-batches=100000" | FileCheck %s --check-prefix=MESH

// MESH: alpa.predicted
// CHECK: solver = {{{.*}}status = "{{optimal|feasible}}"
// CHECK: func.func @main
module {
  func.func @main(%w: tensor<64x64xf32> {alpa.kind = "state"}, %x: tensor<32x64xf32> {alpa.kind = "batch"}) -> tensor<32x64xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %1 = stablehlo.tanh %0 {alpa.eqn = 1 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<32x64xf32>
    %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] {alpa.eqn = 2 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    return %2 : tensor<32x64xf32>
  }
}
