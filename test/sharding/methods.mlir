// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=data-parallel" | FileCheck %s --check-prefix=DP
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=zero-2" | FileCheck %s --check-prefix=ZERO2
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=zero-3" | FileCheck %s --check-prefix=ZERO3
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=megatron" | FileCheck %s --check-prefix=MEGATRON
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=heuristic" | FileCheck %s --check-prefix=HEURISTIC
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=expert-parallel" | FileCheck %s --check-prefix=EXPERT
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=expert-zero-2" | FileCheck %s --check-prefix=EXPERT-ZERO
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=manual" | FileCheck %s --check-prefix=MANUAL
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2,2 method=zero-3" | FileCheck %s --check-prefix=THREE
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=megatron-zero-1" | FileCheck %s --check-prefix=MEGATRON-ZERO1
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=megatron-zero-3" | FileCheck %s --check-prefix=MEGATRON-ZERO3
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=hybrid-zero-3" | FileCheck %s --check-prefix=HYBRID
// RUN: not alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=4 method=hybrid-zero-3" 2>&1 | FileCheck %s --check-prefix=HYBRID-ONE-AXIS
// RUN: not alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=4 method=megatron" 2>&1 | FileCheck %s --check-prefix=ONE-AXIS
// RUN: not alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=4,1 method=manual" 2>&1 | FileCheck %s --check-prefix=OTHER-MESH
// RUN: not alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=zero-4" 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// RUN: not alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=data-parallel memory-limit=3000000" 2>&1 | FileCheck %s --check-prefix=MISFIT

// A training step of a perceptron whose second layer has four experts, with
// momentum: %w and %e are parameters, %mw and %me the optimizer's state.

// ONE-AXIS: error: method 'megatron' needs a mesh of two axes or more, the last for tensors; this one has one
// HYBRID-ONE-AXIS: error: method 'hybrid-zero-3' needs a mesh of two axes or more, the last for state; this one has one
// OTHER-MESH: error: method 'manual': the step's shardings are for a mesh of [2, 2], but this one is [4, 1]; give the mesh's shape
// UNKNOWN: error: unknown method 'zero-4', expected one of auto, data-parallel, zero-2, zero-3, megatron, megatron-sequence, megatron-zero-1, megatron-zero-3, hybrid-zero-3, expert-parallel, expert-zero-2, heuristic, manual
// MISFIT: error: no sharding of @main fits in 3000000 bytes a device

// The batch over all devices; both dots of the gradients are summed whole.
// DP-LABEL: func.func @main
// DP-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, R]>
// DP-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, R, R]>
// DP-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, R]>
// DP-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, R, R]>
// DP-SAME: tensor<64x256xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S01, R]>
// DP: stablehlo.dot_general {{.*}}alpa.phase = "forward", alpa.shardings = [#alpa.sharding<[S01, R]>]
// DP: stablehlo.dot_general {{.*}}alpa.phase = "forward", alpa.shardings = [#alpa.sharding<[R, S01, R]>]
// DP: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, R, R]>]
// DP: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, S01, R]>]
// DP: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, R]>]
// DP: stablehlo.subtract {{.*}}alpa.phase = "update", alpa.shardings = [#alpa.sharding<[R, R]>]

// Parameters whole; gradients scattered to where the momentum is, and the new
// parameters gathered.
// ZERO2-LABEL: func.func @main
// ZERO2-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, R]>
// ZERO2-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, R, R]>
// ZERO2-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[[MW:[^>]*S0[^>]*]]>
// ZERO2-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[[ME:[^>]*S0[^>]*]]>
// ZERO2-SAME: tensor<64x256xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S01, R]>
// ZERO2-SAME: -> (tensor<256x512xf32> {alpa.sharding = #alpa.sharding<[R, R]>}
// ZERO2: stablehlo.dot_general {{.*}}alpa.phase = "forward", alpa.shardings = [#alpa.sharding<[S01, R]>]
// ZERO2: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[[ME]]>]
// ZERO2: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, S01, R]>]
// ZERO2: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[[MW]]>]
// ZERO2: stablehlo.add {{.*}}alpa.phase = "update", alpa.shardings = [#alpa.sharding<[[MW]]>]
// ZERO2: stablehlo.subtract {{.*}}alpa.phase = "update", alpa.shardings = [#alpa.sharding<[[MW]]>]

// Parameters split too, and gathered for use; the batch is split all the same.
// ZERO3-LABEL: func.func @main
// ZERO3-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[[W:[^>]*S0[^>]*]]>
// ZERO3-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[[E:[^>]*S0[^>]*]]>
// ZERO3-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[[W]]>
// ZERO3-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[[E]]>
// ZERO3-SAME: tensor<64x256xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S01, R]>
// ZERO3: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[S01, R]>], alpa.use_shardings = [#alpa.sharding<[S01, R]>, #alpa.sharding<[R, R]>]
// ZERO3: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[[E]]>]
// ZERO3: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[[W]]>]
// ZERO3: stablehlo.subtract {{.*}}alpa.phase = "update", alpa.shardings = [#alpa.sharding<[[W]]>]

// The same over three axes.
// THREE-LABEL: func.func @main
// THREE-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[[W3:[^>]*S[^>]*]]>
// THREE-SAME: tensor<64x256xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S012, R]>
// THREE: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[S012, R]>], alpa.use_shardings = [#alpa.sharding<[S012, R]>, #alpa.sharding<[R, R]>]
// THREE: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[[W3]]>]

// Parameters as megatron has them, optimizer state over all devices.
// MEGATRON-ZERO1-LABEL: func.func @main
// MEGATRON-ZERO1-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, S1]>
// MEGATRON-ZERO1-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, S1, R]>
// MEGATRON-ZERO1-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S0, S1]>
// MEGATRON-ZERO1-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S0, S1, R]>
// MEGATRON-ZERO1-SAME: tensor<64x256xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S0, R]>
// MEGATRON-ZERO1: stablehlo.dot_general {{.*}}alpa.phase = "forward", alpa.shardings = [#alpa.sharding<[S0, S1]>]
// MEGATRON-ZERO1: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[S0, S1, R]>]

// Parameters over all devices too, gathered over the batch's axis for use.
// MEGATRON-ZERO3-LABEL: func.func @main
// MEGATRON-ZERO3-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S0, S1]>
// MEGATRON-ZERO3-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S0, S1, R]>
// MEGATRON-ZERO3-SAME: tensor<64x256xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S0, R]>
// MEGATRON-ZERO3: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[S0, S1]>], alpa.use_shardings = [#alpa.sharding<[S0, R]>, #alpa.sharding<[R, S1]>]

// State over the last axis alone, the batch over both.
// HYBRID-LABEL: func.func @main
// HYBRID-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[[HW:[^>]*S1[^>]*]]>
// HYBRID-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[[HE:[^>]*S1[^>]*]]>
// HYBRID-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[[HW]]>
// HYBRID-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[[HE]]>
// HYBRID-SAME: tensor<64x256xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S01, R]>
// HYBRID: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[S01, R]>], alpa.use_shardings = [#alpa.sharding<[S01, R]>, #alpa.sharding<[R, R]>]
// HYBRID: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[[HE]]>]

// The first layer by columns, the second by rows; examples over the first axis.
// MEGATRON-LABEL: func.func @main
// MEGATRON-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, S1]>
// MEGATRON-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, S1, R]>
// MEGATRON-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, S1]>
// MEGATRON-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, S1, R]>
// MEGATRON-SAME: tensor<64x256xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S0, R]>
// MEGATRON: stablehlo.dot_general {{.*}}alpa.phase = "forward", alpa.shardings = [#alpa.sharding<[S0, S1]>]
// MEGATRON: stablehlo.dot_general {{.*}}alpa.phase = "forward", alpa.shardings = [#alpa.sharding<[R, S0, R]>]
// MEGATRON: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, S1, R]>]
// MEGATRON: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, S0, S1]>]
// MEGATRON: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, S1]>]

// The largest dimension of each input, and what follows from it.
// HEURISTIC-LABEL: func.func @main
// HEURISTIC-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, S01]>
// HEURISTIC-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, S01, R]>
// HEURISTIC-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, S01]>
// HEURISTIC-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, S01, R]>
// HEURISTIC-SAME: tensor<64x256xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, S01]>
// HEURISTIC: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[R, S01]>], alpa.use_shardings = [#alpa.sharding<[R, R]>, #alpa.sharding<[R, S01]>]
// HEURISTIC: stablehlo.dot_general {{.*}}alpa.phase = "forward", alpa.shardings = [#alpa.sharding<[R, R, R]>]
// HEURISTIC: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, S01, R]>]

// Experts over all devices, with their optimizer state; the rest is data parallel,
// and the examples go to their experts and back.
// EXPERT-LABEL: func.func @main
// EXPERT-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, R]>
// EXPERT-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S01, R, R]>
// EXPERT-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, R]>
// EXPERT-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S01, R, R]>
// EXPERT-SAME: tensor<64x256xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S01, R]>
// EXPERT: stablehlo.dot_general {{.*}}alpa.phase = "forward", alpa.shardings = [#alpa.sharding<[S01, R]>]
// EXPERT: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[S01, R, R]>], alpa.use_shardings = [#alpa.sharding<[R, S01, R]>, #alpa.sharding<[S01, R, R]>]
// EXPERT: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[S01, R, R]>]
// EXPERT: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[S01, R, R]>]
// EXPERT: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, R]>]

// The experts' own, and everything else as zero-2 does.
// EXPERT-ZERO-LABEL: func.func @main
// EXPERT-ZERO-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[R, R]>
// EXPERT-ZERO-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S01, R, R]>
// EXPERT-ZERO-SAME: tensor<256x512xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[[EZ:[^>]*S0[^>]*]]>
// EXPERT-ZERO-SAME: tensor<4x512x128xf32> {{{[^}]*}}alpa.sharding = #alpa.sharding<[S01, R, R]>
// EXPERT-ZERO: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[S01, R, R]>]
// EXPERT-ZERO: stablehlo.dot_general {{.*}}alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[[EZ]]>]

// Dimension 0 of the activation is pinned, dimension 1 may be split further.
// MANUAL: optimization_barrier{{.*}}alpa.pin = {{.*}}alpa.shardings = [#alpa.sharding<[S1, {{R|S0}}]>]

module attributes {alpa.pin_mesh = array<i64: 2, 2>} {
func.func @main(
    %w: tensor<256x512xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state"},
    %e: tensor<4x512x128xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state"},
    %mw: tensor<256x512xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state"},
    %me: tensor<4x512x128xf32> {alpa.carried_by = 3 : i64, alpa.kind = "state"},
    %x: tensor<64x256xf32> {alpa.kind = "batch"})
    -> (tensor<256x512xf32>, tensor<4x512x128xf32>, tensor<256x512xf32>, tensor<4x512x128xf32>) {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.phase = "forward"} : (tensor<64x256xf32>, tensor<256x512xf32>) -> tensor<64x512xf32>
  %a = stablehlo.tanh %h {alpa.phase = "forward"} : tensor<64x512xf32>
  %p = "stablehlo.optimization_barrier"(%a) {alpa.phase = "forward", alpa.pin = #alpa.sharding<[S1, R]>, alpa.pin_open = array<i64: 1>} : (tensor<64x512xf32>) -> tensor<64x512xf32>
  // The examples in four groups, one for each expert.
  %g = stablehlo.reshape %p {alpa.phase = "forward"} : (tensor<64x512xf32>) -> tensor<16x4x512xf32>
  %y = stablehlo.dot_general %g, %e, batching_dims = [1] x [0], contracting_dims = [2] x [1] {alpa.phase = "forward"} : (tensor<16x4x512xf32>, tensor<4x512x128xf32>) -> tensor<4x16x128xf32>
  %de = stablehlo.dot_general %g, %y, batching_dims = [1] x [0], contracting_dims = [0] x [1] {alpa.phase = "backward"} : (tensor<16x4x512xf32>, tensor<4x16x128xf32>) -> tensor<4x512x128xf32>
  %dg = stablehlo.dot_general %y, %e, batching_dims = [0] x [0], contracting_dims = [2] x [2] {alpa.phase = "backward"} : (tensor<4x16x128xf32>, tensor<4x512x128xf32>) -> tensor<4x16x512xf32>
  %t = stablehlo.transpose %dg, dims = [1, 0, 2] {alpa.phase = "backward"} : (tensor<4x16x512xf32>) -> tensor<16x4x512xf32>
  %da = stablehlo.reshape %t {alpa.phase = "backward"} : (tensor<16x4x512xf32>) -> tensor<64x512xf32>
  %dh = stablehlo.multiply %da, %a {alpa.phase = "backward"} : tensor<64x512xf32>
  %dw = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] {alpa.phase = "backward"} : (tensor<64x256xf32>, tensor<64x512xf32>) -> tensor<256x512xf32>
  %mw1 = stablehlo.add %mw, %dw {alpa.phase = "update"} : tensor<256x512xf32>
  %me1 = stablehlo.add %me, %de {alpa.phase = "update"} : tensor<4x512x128xf32>
  %w1 = stablehlo.subtract %w, %mw1 {alpa.phase = "update"} : tensor<256x512xf32>
  %e1 = stablehlo.subtract %e, %me1 {alpa.phase = "update"} : tensor<4x512x128xf32>
  return %w1, %e1, %mw1, %me1 : tensor<256x512xf32>, tensor<4x512x128xf32>, tensor<256x512xf32>, tensor<4x512x128xf32>
}
}
