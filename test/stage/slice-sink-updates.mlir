// Elementwise work of the update that only what follows a sum over stages reads is done there:
// no function hands a value of a weight's size to the next one.
// RUN: alpa-opt %s --alpa-slice-stages | FileCheck %s

// CHECK: module @stage_0
// CHECK: func.func @update_0
// CHECK-NOT: stablehlo.multiply
// CHECK: stablehlo.reduce
// CHECK-NOT: stablehlo.multiply
// CHECK: return %{{[^,]*}} : tensor<f32>
// CHECK: func.func @update_1
// CHECK: stablehlo.multiply
// CHECK: stablehlo.add
// CHECK: return %{{.*}} : tensor<f32>, tensor<8x8xf32>
// What is a result of the step too stays where it was.
// CHECK: module @stage_1
// CHECK: func.func @update_0
// CHECK: stablehlo.multiply
module attributes {alpa.num_micro_batches = 1 : i64, alpa.stages = [
    #alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>,
    #alpa.stage<mesh = <shape = [1], devices = [1]>, layers = [1, 2]>]} {
  func.func @main(
      %m0: tensor<8x8xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64},
      %m1: tensor<8x8xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64},
      %x: tensor<8x8xf32> {alpa.kind = "batch"}) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {
    %zero = stablehlo.constant {alpa.phase = "update", alpa.stage = 0 : i64} dense<0.0> : tensor<f32>
    %h = stablehlo.tanh %x {alpa.phase = "forward", alpa.stage = 0 : i64} : tensor<8x8xf32>
    %y = stablehlo.tanh %h {alpa.phase = "forward", alpa.stage = 1 : i64} : tensor<8x8xf32>
    %n0 = stablehlo.reduce(%m0 init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.phase = "update", alpa.stage = 0 : i64} : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
    %n1 = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.phase = "update", alpa.stage = 1 : i64} : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
    %n = stablehlo.add %n0, %n1 {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
    %d0 = stablehlo.multiply %m0, %m0 {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<8x8xf32>
    %b0 = stablehlo.broadcast_in_dim %n, dims = [] {alpa.phase = "update", alpa.stage = 0 : i64} : (tensor<f32>) -> tensor<8x8xf32>
    %next0 = stablehlo.add %d0, %b0 {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<8x8xf32>
    %d1 = stablehlo.multiply %m1, %m1 {alpa.phase = "update", alpa.stage = 1 : i64} : tensor<8x8xf32>
    %b1 = stablehlo.broadcast_in_dim %n, dims = [] {alpa.phase = "update", alpa.stage = 1 : i64} : (tensor<f32>) -> tensor<8x8xf32>
    %next1 = stablehlo.add %d1, %b1 {alpa.phase = "update", alpa.stage = 1 : i64} : tensor<8x8xf32>
    return %next0, %next1, %d1 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
  }
}
