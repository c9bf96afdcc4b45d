// RUN: alpa-opt %s -alpa-explain-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 most=0" -o /dev/null | FileCheck %s
// RUN: alpa-opt %s -alpa-explain-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=8 most=0" -o /dev/null | FileCheck %s --check-prefix=LINE

// Two axes of the program are never the same devices: of four parts and two, one is held.
// A group of axes may be what its axes are not one by one.

// CHECK: sharding constraints
// CHECK-NEXT: w P(None, 'model'), 1 values: dropped, since a mesh of 2 x 2 has no axes left for the 4 parts of 'model'
// CHECK-NEXT: x P('data', None), 1 values: held as [S0, R]
// CHECK-NEXT: step.py:1 P(('data', 'model'), None), 1 values: dropped, since a mesh of 2 x 2 has no axes left for the 8 parts of 'data', 'model'

// LINE: sharding constraints
// LINE-NEXT: w P(None, 'model'), 1 values: dropped
// LINE-NEXT: x P('data', None), 1 values: dropped
// LINE-NEXT: step.py:1 P(('data', 'model'), None), 1 values: held as [S0, R]

module attributes {alpa.pin_axes = [[["data", 2], ["model", 4]]]} {
func.func @main(%w: tensor<16x32xf32> {alpa.kind = "state", alpa.name = "w", alpa.pin = #alpa.sharding<[R, S1]>},
                %x: tensor<16x16xf32> {alpa.kind = "batch", alpa.name = "x", alpa.pin = #alpa.sharding<[S0, R]>}) -> tensor<16x32xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.phase = "forward"} : (tensor<16x16xf32>, tensor<16x32xf32>) -> tensor<16x32xf32>
  %1 = "stablehlo.optimization_barrier"(%0) {alpa.phase = "forward", alpa.pin = #alpa.sharding<[S01, R]>} : (tensor<16x32xf32>) -> tensor<16x32xf32> loc("step.py":1:1)
  %2 = stablehlo.tanh %1 {alpa.phase = "forward"} : tensor<16x32xf32>
  return %2 : tensor<16x32xf32>
}
}
