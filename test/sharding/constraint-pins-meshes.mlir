// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,4" | FileCheck %s

// Axes of different meshes may be the same devices.

// CHECK: alpa.pin = #alpa.sharding<[R, S1]>, alpa.sharding = #alpa.sharding<[R, S1]>
// CHECK: alpa.pin = #alpa.sharding<[S2, R]>, alpa.sharding = #alpa.sharding<[S01, R]>
// CHECK: alpa.pin = #alpa.sharding<[S0, R]>{{.*}}alpa.shardings = [#alpa.sharding<[S0, R]>]

module attributes {alpa.pin_axes = [[["data", 2], ["model", 4]], [["all", 8]]]} {
func.func @main(%w: tensor<16x32xf32> {alpa.kind = "state", alpa.pin = #alpa.sharding<[R, S1]>},
                %x: tensor<16x16xf32> {alpa.kind = "batch", alpa.pin = #alpa.sharding<[S2, R]>}) -> tensor<16x32xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.phase = "forward"} : (tensor<16x16xf32>, tensor<16x32xf32>) -> tensor<16x32xf32>
  %1 = "stablehlo.optimization_barrier"(%0) {alpa.phase = "forward", alpa.pin = #alpa.sharding<[S0, R]>} : (tensor<16x32xf32>) -> tensor<16x32xf32>
  %2 = stablehlo.tanh %1 {alpa.phase = "forward"} : tensor<16x32xf32>
  return %2 : tensor<16x32xf32>
}
}
