// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,4" | FileCheck %s --check-prefix=SAME
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=4,2" | FileCheck %s --check-prefix=TURNED
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2,2" | FileCheck %s --check-prefix=THREE
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=8" | FileCheck %s --check-prefix=LINE
// RUN: alpa-opt %s -alpa-explain-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,4 most=0" -o /dev/null | FileCheck %s --check-prefix=WHY
// RUN: alpa-opt %s -alpa-explain-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=8 most=0" -o /dev/null | FileCheck %s --check-prefix=WHY-LINE
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,4 method=zero-3" | FileCheck %s --check-prefix=SAME
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,4" -alpa-insert-reshards -alpa-verify-sharding | FileCheck %s --check-prefix=DONE

// An axis of the program is the same axes of a mesh in all constraints.

// SAME: func.func @main(%{{.*}}: tensor<64x256xf32> {alpa.kind = "state", alpa.name = "w", alpa.pin = #alpa.sharding<[R, S1]>, alpa.sharding = #alpa.sharding<[R, S1]>}
// SAME: alpa.pin = #alpa.sharding<[S0, S1]>{{.*}}alpa.shardings = [#alpa.sharding<[S0, S1]>]
// SAME: alpa.pin = #alpa.sharding<[S1, R]>{{.*}}alpa.shardings = [#alpa.sharding<[S1, R]>]
// SAME: alpa.pin = #alpa.sharding<[S01, R]>{{.*}}alpa.shardings = [#alpa.sharding<[S01, R]>]
// SAME: alpa.pin_open = array<i64: 0>{{.*}}alpa.shardings = [#alpa.sharding<[{{R|S0}}, S1]>]

// TURNED: alpa.pin = #alpa.sharding<[R, S1]>, alpa.sharding = #alpa.sharding<[R, S0]>
// TURNED: alpa.pin = #alpa.sharding<[S0, S1]>{{.*}}alpa.shardings = [#alpa.sharding<[S1, S0]>]
// TURNED: alpa.pin = #alpa.sharding<[S1, R]>{{.*}}alpa.shardings = [#alpa.sharding<[S0, R]>]
// TURNED: alpa.pin = #alpa.sharding<[S01, R]>{{.*}}alpa.shardings = [#alpa.sharding<[S01, R]>]
// TURNED: alpa.pin_open = array<i64: 0>{{.*}}alpa.shardings = [#alpa.sharding<[{{R|S1}}, S0]>]

// Four parts are two axes of two.

// THREE: alpa.pin = #alpa.sharding<[R, S1]>, alpa.sharding = #alpa.sharding<[R, S12]>
// THREE: alpa.pin = #alpa.sharding<[S0, S1]>{{.*}}alpa.shardings = [#alpa.sharding<[S0, S12]>]
// THREE: alpa.pin = #alpa.sharding<[S1, R]>{{.*}}alpa.shardings = [#alpa.sharding<[S12, R]>]
// THREE: alpa.pin = #alpa.sharding<[S01, R]>{{.*}}alpa.shardings = [#alpa.sharding<[S012, R]>]

// Both axes together are one of eight; what names one of them is dropped.

// LINE: alpa.pin = #alpa.sharding<[S01, R]>{{.*}}alpa.shardings = [#alpa.sharding<[S0, R]>]

// WHY: sharding constraints, which cost {{[0-9.]+}} us a step
// WHY-NEXT: w P(None, 'model'), 1 values: held as [R, S1]
// WHY-NEXT: step.py:7 P('data', 'model'), 1 values: held as [S0, S1]
// WHY-NEXT: step.py:8 P('model', None), 1 values: held as [S1, R]
// WHY-NEXT: step.py:9 P(('data', 'model'), None), 1 values: held as [S01, R]
// WHY-NEXT: step.py:10 P(UNCONSTRAINED, 'model'), 1 values: held as [{{R|S0}}, S1]
// WHY-NEXT: step.py:11 P('data'), 1 values: dropped, since 2 parts do not divide dimension 0, which is 3

// WHY-LINE: sharding constraints, which cost
// WHY-LINE-NEXT: w P(None, 'model'), 1 values: dropped, since a mesh of 8 has no axes left for the 4 parts of 'model'
// WHY-LINE-NEXT: step.py:7 P('data', 'model'), 1 values: dropped, since a mesh of 8 has no axes left for the 2 parts of 'data'
// WHY-LINE-NEXT: step.py:8
// WHY-LINE-NEXT: step.py:9 P(('data', 'model'), None), 1 values: held as [S0, R]

// What pins asked for is an alpa.reshard where the value is made otherwise, and nothing else.

// DONE: func.func @main
// DONE-NOT: optimization_barrier
// DONE: return

module attributes {alpa.pin_axes = [[["data", 2], ["model", 4]]]} {
func.func @main(
    %w: tensor<64x256xf32> {alpa.kind = "state", alpa.name = "w", alpa.pin = #alpa.sharding<[R, S1]>},
    %x: tensor<64x64xf32> {alpa.kind = "batch"}, %b: tensor<3xf32> {alpa.kind = "batch"})
    -> (tensor<64x256xf32>, tensor<3xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.phase = "forward"} : (tensor<64x64xf32>, tensor<64x256xf32>) -> tensor<64x256xf32>
  %1 = "stablehlo.optimization_barrier"(%0) {alpa.phase = "forward", alpa.pin = #alpa.sharding<[S0, S1]>} : (tensor<64x256xf32>) -> tensor<64x256xf32> loc("step.py":7:1)
  %2 = stablehlo.tanh %1 {alpa.phase = "forward"} : tensor<64x256xf32>
  %3 = "stablehlo.optimization_barrier"(%2) {alpa.phase = "forward", alpa.pin = #alpa.sharding<[S1, R]>} : (tensor<64x256xf32>) -> tensor<64x256xf32> loc("step.py":8:1)
  %4 = stablehlo.cosine %3 {alpa.phase = "forward"} : tensor<64x256xf32>
  %5 = "stablehlo.optimization_barrier"(%4) {alpa.phase = "forward", alpa.pin = #alpa.sharding<[S01, R]>} : (tensor<64x256xf32>) -> tensor<64x256xf32> loc("step.py":9:1)
  %6 = stablehlo.sine %5 {alpa.phase = "forward"} : tensor<64x256xf32>
  %7 = "stablehlo.optimization_barrier"(%6) {alpa.phase = "forward", alpa.pin = #alpa.sharding<[R, S1]>, alpa.pin_open = array<i64: 0>} : (tensor<64x256xf32>) -> tensor<64x256xf32> loc("step.py":10:1)
  %8 = stablehlo.tanh %7 {alpa.phase = "forward"} : tensor<64x256xf32>
  %9 = stablehlo.tanh %b {alpa.phase = "forward"} : tensor<3xf32>
  %10 = "stablehlo.optimization_barrier"(%9) {alpa.phase = "forward", alpa.pin = #alpa.sharding<[S0]>} : (tensor<3xf32>) -> tensor<3xf32> loc("step.py":11:1)
  return %8, %10 : tensor<64x256xf32>, tensor<3xf32>
}
}
