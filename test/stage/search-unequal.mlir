// Hosts of two kinds: two of four fast devices, one of four slow ones.
// RUN: echo '{device_types: {fast: {memory_bytes: 1GiB, memory_bandwidth: 1e12, peak_flops: {float32: 2e10}}, slow: {memory_bytes: 512MiB, memory_bandwidth: 1e12, peak_flops: {float32: 1e10}}}, hosts: [{devices: 4, device_type: fast}, {devices: 4, device_type: slow}, {devices: 4, device_type: fast}], links: {intra_host: {bandwidth: 1e12, latency: 0}, inter_host: {bandwidth: 1e11, latency: 0}}}' > %t.yaml

// Each stage lies on devices of its type, and takes their time.
// RUN: alpa-opt %s -alpa-search-stages="cluster=%t.yaml submeshes=1x1@slow,1x1@fast" | FileCheck %s --check-prefix=TYPES
// TYPES: shape = [1, 1], devices = [4]>, layers = [0, 1]
// TYPES-SAME: forward_seconds = 0.003145728 : f64
// TYPES-SAME: shape = [1, 1], devices = [0]>, layers = [1, 3]
// TYPES-SAME: forward_seconds = 0.003145728 : f64

// Without a type they go where they fit; as slow as the slowest.
// RUN: alpa-opt %s -alpa-search-stages="cluster=%t.yaml submeshes=2x4@fast,1x4" | FileCheck %s --check-prefix=ANY
// ANY: devices = [0, 1, 2, 3, 8, 9, 10, 11]>
// ANY-SAME: devices = [4, 5, 6, 7]>
// RUN: alpa-opt %s -alpa-search-stages="cluster=%t.yaml submeshes=3x4" | FileCheck %s --check-prefix=ALL
// ALL: devices = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]>

// The slow host is of no use: what takes it waits for it.
// RUN: alpa-opt %s -alpa-search-stages="cluster=%t.yaml" | FileCheck %s --check-prefix=AUTO
// AUTO: alpa.stages = [#alpa.stage<mesh = <shape = [{{[0-9, ]+}}], devices = [0, 1, 2, 3, 8, 9, 10, 11]>, layers = [0, 3]

// RUN: not alpa-opt %s -alpa-search-stages="cluster=%t.yaml submeshes=2x4@slow" 2>&1 | FileCheck %s --check-prefix=FEW
// FEW: error: alpa-search-stages: submesh '2x4@slow' is no part of cluster '': it must be devices of one host, or all devices of several hosts
// RUN: not alpa-opt %s -alpa-search-stages="cluster=%t.yaml submeshes=1x2@other" 2>&1 | FileCheck %s --check-prefix=OTHER
// OTHER: error: alpa-search-stages: submesh '1x2@other' names no device type of cluster '': fast, slow
module {
  func.func @main(%w: tensor<256x256xf32> {alpa.kind = "state"}, %x: tensor<240x256xf32> {alpa.kind = "batch"}) -> tensor<240x256xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<240x256xf32>, tensor<256x256xf32>) -> tensor<240x256xf32>
    %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : (tensor<240x256xf32>, tensor<256x256xf32>) -> tensor<240x256xf32>
    %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] {alpa.eqn = 2 : i64, alpa.layer = 2 : i64, alpa.phase = "forward"} : (tensor<240x256xf32>, tensor<256x256xf32>) -> tensor<240x256xf32>
    return %2 : tensor<240x256xf32>
  }
}
