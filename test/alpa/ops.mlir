// Programs and attributes are printed as they are read.
// RUN: alpa-opt %s | alpa-opt | FileCheck %s
// RUN: alpa-opt --mlir-print-op-generic %s | alpa-opt | FileCheck %s

// CHECK: module attributes {
// CHECK-SAME: alpa.stages = [#alpa.stage<mesh = <shape = [1, 2], devices = [0, 1]>, layers = [0, 2]>,
// CHECK-SAME: #alpa.stage<mesh = <shape = [2], devices = [3, 2]>, layers = [2, 3], predicted = {forward_seconds = 1.000000e-03 : f64}, solver = {status = "optimal"}>]
module attributes {alpa.num_micro_batches = 2 : i64, alpa.schedule = "1f1b",
    alpa.stages = [#alpa.stage<mesh = <shape = [1, 2], devices = [0, 1]>, layers = [0, 2]>,
                   #alpa.stage<mesh = <shape = [2], devices = [3, 2]>, layers = [2, 3],
                               predicted = {forward_seconds = 1.0e-3 : f64},
                               solver = {status = "optimal"}>]} {
  // CHECK: module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>}
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
    // CHECK: func.func @forward(%{{.*}}: tensor<4x8x8xf32> {alpa.sharding = #alpa.sharding<[S0, R, S1]>
    func.func @forward(%arg0: tensor<4x8x8xf32> {alpa.sharding = #alpa.sharding<[S0, R, S1]>, alpa.value = 0 : i64})
        -> (tensor<4x8x8xf32> {alpa.accumulate = "sum", alpa.value = 3 : i64}) {
      return %arg0 : tensor<4x8x8xf32>
    }
  }
  // CHECK: alpa.program @mesh_0 on 0 {
  alpa.program @mesh_0 on 0 {
    // CHECK: %[[X:.*]] = alpa.input {arg = 0 : i64, micro_batch = 1 : i64, sharding = #alpa.sharding<[S0, R, R]>} : tensor<4x8x8xf32>
    %x = alpa.input {arg = 0 : i64, micro_batch = 1 : i64, sharding = #alpa.sharding<[S0, R, R]>} : tensor<4x8x8xf32>
    // CHECK: %[[Y:.*]] = alpa.run @stage_0::@forward(%[[X]]) {micro_batch = 1 : i64} : (tensor<4x8x8xf32>) -> tensor<4x8x8xf32>
    %y = alpa.run @stage_0::@forward(%x) {micro_batch = 1 : i64} : (tensor<4x8x8xf32>) -> tensor<4x8x8xf32>
    // CHECK: alpa.send %[[Y]] to 1 tag 4 : tensor<4x8x8xf32>
    alpa.send %y to 1 tag 4 : tensor<4x8x8xf32>
    // CHECK: %[[D:.*]] = alpa.recv from 1 tag 7 {sharding = #alpa.sharding<[R, R, R]>} : tensor<4x8x8xf32>
    %d = alpa.recv from 1 tag 7 {sharding = #alpa.sharding<[R, R, R]>} : tensor<4x8x8xf32>
    // CHECK: %[[S:.*]] = alpa.accumulate %[[Y]], %[[D]] : tensor<4x8x8xf32>
    %s = alpa.accumulate %y, %d : tensor<4x8x8xf32>
    // CHECK: alpa.free %[[X]], %[[Y]], %[[D]] : tensor<4x8x8xf32>, tensor<4x8x8xf32>, tensor<4x8x8xf32>
    alpa.free %x, %y, %d : tensor<4x8x8xf32>, tensor<4x8x8xf32>, tensor<4x8x8xf32>
    // CHECK: %[[Z:.*]] = alpa.zero {sharding = #alpa.sharding<[S0]>} : tensor<8xf32>
    %z = alpa.zero {sharding = #alpa.sharding<[S0]>} : tensor<8xf32>
    // CHECK: %[[T:.*]] = alpa.all_reduce %[[Z]] among [0, 1, 3] tag 9 : tensor<8xf32>
    %t = alpa.all_reduce %z among [0, 1, 3] tag 9 : tensor<8xf32>
    // CHECK: alpa.output %[[S]] {result = 0 : i64} : tensor<4x8x8xf32>
    alpa.output %s {result = 0 : i64} : tensor<4x8x8xf32>
    alpa.free %z, %t : tensor<8xf32>, tensor<8xf32>
  }
  // CHECK: alpa.program @mesh_1 on 1 {
  alpa.program @mesh_1 on 1 {
    // CHECK: %[[Z:.*]] = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<i32>
    %z = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<i32>
    // CHECK: alpa.all_reduce %[[Z]] among [0, 1] tag 9 by @reshard_4, @reshard_5 : tensor<i32>
    %t = alpa.all_reduce %z among [0, 1] tag 9 by @reshard_4, @reshard_5 : tensor<i32>
    alpa.free %z, %t : tensor<i32>, tensor<i32>
  }
  // CHECK: func.func @sum_of_stages(%[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
  func.func @sum_of_stages(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {
    // CHECK: alpa.sum_of_stages %[[A]], %[[B]] of [0, 2] : tensor<f32>
    %0 = alpa.sum_of_stages %a, %b of [0, 2] : tensor<f32>
    return %0 : tensor<f32>
  }
  // A scalar has no dimension to split.
  // CHECK: func.func private @scalar(tensor<f32> {alpa.sharding = #alpa.sharding<[]>})
  func.func private @scalar(tensor<f32> {alpa.sharding = #alpa.sharding<[]>})
  // CHECK: func.func @kernel_of_blocks
  func.func @kernel_of_blocks(%x: tensor<2x4xf32>, %w: tensor<4xf32>) -> tensor<2x4xf32> {
    // CHECK: alpa.map %{{.*}}, %{{.*}} {dims = [array<i64: 0>, array<i64>], levels = 1 : i64} : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32> {
    // CHECK-NEXT: ^bb0(%[[BLOCK:.*]]: tensor<4xf32>, %{{.*}}: tensor<4xf32>):
    // CHECK-NEXT: stablehlo.return %[[BLOCK]] : tensor<4xf32>
    %0 = alpa.map %x, %w {dims = [array<i64: 0>, array<i64>], levels = 1 : i64} : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32> {
    ^bb0(%block: tensor<4xf32>, %weight: tensor<4xf32>):
      stablehlo.return %block : tensor<4xf32>
    }
    return %0 : tensor<2x4xf32>
  }
}
