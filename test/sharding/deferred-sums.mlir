// Which sums over devices wait for the update, and how they are paid for.
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 micro-batches=8 method=data-parallel" | FileCheck %s
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 micro-batches=8 method=zero-2" | FileCheck %s --check-prefix=ZERO
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 method=data-parallel" | FileCheck %s --check-prefix=ONCE
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 micro-batches=8 method=data-parallel" -alpa-defer-sums -alpa-insert-reshards -alpa-verify-sharding -alpa-lower-to-collectives | FileCheck %s --check-prefix=LOWERED

// Nothing waits where there is one micro-batch.
// ONCE-NOT: unreduced

// The kernel's gradient goes through a transpose and a wider type, the bias's nowhere.
// CHECK: stablehlo.dot_general {{.*}}contracting_dims = [0] x [0] {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, R], unreduced = [1]>], alpa.use_shardings = [#alpa.sharding<[S1, R]>, #alpa.sharding<[S1, R]>]}
// CHECK: stablehlo.transpose {{.*}} {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, R], unreduced = [1]>], alpa.use_shardings
// CHECK: stablehlo.convert {{.*}} {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, R], unreduced = [1]>], alpa.summed_as = #alpa.sharding<[R, R]>, alpa.use_shardings
// CHECK: stablehlo.reduce({{.*}}across dimensions = [0] {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R], unreduced = [1]>], alpa.summed_as = #alpa.sharding<[R]>, alpa.use_shardings
// A result of the step, a loss of digits, and a use in the backward pass do not wait.
// CHECK: stablehlo.dot_general {{.*}} {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, R]>]}
// CHECK: stablehlo.reduce({{.*}} {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R]>]}
// CHECK: stablehlo.reduce({{.*}} {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R]>]}

// Gradients split: the sum is scattered when it is taken, and not before.
// ZERO: stablehlo.convert {{.*}} alpa.shardings = [#alpa.sharding<[R, R], unreduced = [1]>], alpa.summed_as = #alpa.sharding<[{{S1, R|R, S1}}]>

// LOWERED: func.func @main
// LOWERED: %[[TERMS:.+]] = stablehlo.dot_general {{.*}}, batching_dims = [0] x [0], contracting_dims = [1] x [1] {{.*}} -> tensor<1x64x32xbf16>
// LOWERED-NEXT: %[[TURNED:.+]] = stablehlo.transpose %[[TERMS]]
// LOWERED-NEXT: %[[WIDE:.+]] = stablehlo.convert %[[TURNED]]
// LOWERED: %[[OWN:.+]] = stablehlo.reduce(%[[WIDE]] init: {{.*}} -> tensor<32x64xf32>
// LOWERED-NEXT: "stablehlo.all_reduce"(%[[OWN]])
func.func @main(%w: tensor<32x64xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64},
                %b: tensor<32xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64},
                %n: tensor<32xbf16> {alpa.kind = "state", alpa.carried_by = 2 : i64},
                %x: tensor<4096x64xbf16> {alpa.kind = "batch"},
                %dy: tensor<4096x32xbf16> {alpa.kind = "batch"},
                %dz: tensor<4096x32xf32> {alpa.kind = "batch"})
    -> (tensor<32x64xf32>, tensor<32xf32>, tensor<32xbf16>, tensor<64x32xbf16>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0] {alpa.phase = "backward"} : (tensor<4096x64xbf16>, tensor<4096x32xbf16>) -> tensor<64x32xbf16>
  %1 = stablehlo.transpose %0, dims = [1, 0] {alpa.phase = "backward"} : (tensor<64x32xbf16>) -> tensor<32x64xbf16>
  %2 = stablehlo.convert %1 {alpa.phase = "backward"} : (tensor<32x64xbf16>) -> tensor<32x64xf32>
  %3 = stablehlo.reduce(%dz init: %zero) applies stablehlo.add across dimensions = [0] {alpa.phase = "backward"} : (tensor<4096x32xf32>, tensor<f32>) -> tensor<32xf32>
  %4 = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0] {alpa.phase = "backward"} : (tensor<4096x64xbf16>, tensor<4096x32xbf16>) -> tensor<64x32xbf16>
  %5 = stablehlo.reduce(%dz init: %zero) applies stablehlo.add across dimensions = [0] {alpa.phase = "backward"} : (tensor<4096x32xf32>, tensor<f32>) -> tensor<32xf32>
  %6 = stablehlo.convert %5 {alpa.phase = "backward"} : (tensor<32xf32>) -> tensor<32xbf16>
  %7 = stablehlo.reduce(%dz init: %zero) applies stablehlo.add across dimensions = [0] {alpa.phase = "backward"} : (tensor<4096x32xf32>, tensor<f32>) -> tensor<32xf32>
  %8 = stablehlo.tanh %7 {alpa.phase = "backward"} : tensor<32xf32>
  %w1 = stablehlo.subtract %w, %2 {alpa.phase = "update"} : tensor<32x64xf32>
  %b1 = stablehlo.subtract %b, %3 {alpa.phase = "update"} : tensor<32xf32>
  %b2 = stablehlo.subtract %b1, %8 {alpa.phase = "update"} : tensor<32xf32>
  %n1 = stablehlo.subtract %n, %6 {alpa.phase = "update"} : tensor<32xbf16>
  return %w1, %b2, %n1, %4 : tensor<32x64xf32>, tensor<32xf32>, tensor<32xbf16>, tensor<64x32xbf16>
}
