// RUN: alpa-opt %s -split-input-file -alpa-import | FileCheck %s

// What only results of the step want and averaging does not commute with waits for the update,
// wherever the program computes it; means themselves do not.

// CHECK-LABEL: func.func @main
func.func @main(%w: tensor<8xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<4x8xf32> {alpa.kind = "batch"}) -> (tensor<8xf32>, tensor<f32> {alpa.reduction = "mean"}, tensor<f32> {alpa.reduction = "mean"}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %size = stablehlo.constant dense<32.0> : tensor<f32>
  %0 = stablehlo.broadcast_in_dim %w, dims = [1] : (tensor<8xf32>) -> tensor<4x8xf32> loc("jit(f)/jvp(alpa_eqn_0)/b")
  %1 = stablehlo.multiply %x, %0 : tensor<4x8xf32> loc("jit(f)/jvp(alpa_eqn_1)/mul")
  // CHECK: reduce(%{{.*}} alpa.phase = "forward"
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<f32> loc("jit(f)/jvp(alpa_eqn_2)/sum")
  // CHECK: %[[LOSS:.+]] = stablehlo.divide {{.*}}alpa.phase = "forward"
  %3 = stablehlo.divide %2, %size : tensor<f32> loc("jit(f)/jvp(alpa_eqn_3)/div")
  // CHECK: %[[P:.+]] = stablehlo.exponential %[[LOSS]] {alpa.phase = "update"}
  %4 = stablehlo.exponential %3 : tensor<f32> loc("jit(f)/jvp(alpa_eqn_4)/exp")
  // CHECK: %[[Q:.+]] = stablehlo.add %[[P]], %[[P]] {alpa.phase = "update"}
  %5 = stablehlo.add %4, %4 : tensor<f32> loc("jit(f)/jvp(alpa_eqn_5)/add")
  %6 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4x8xf32>, tensor<f32>) -> tensor<8xf32> loc("jit(f)/transpose(jvp(alpa_eqn_1))/sum")
  %7 = stablehlo.subtract %w, %6 : tensor<8xf32> loc("jit(f)/sub")
  return %7, %3, %5 : tensor<8xf32>, tensor<f32>, tensor<f32>
}

// -----

// Statistics that the state carries are made in each micro-batch; so is what gradients read,
// and what is made of integers, which cannot be averaged.

// CHECK-LABEL: func.func @main
func.func @main(%s: tensor<8xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<4x8xf32> {alpa.kind = "batch"}, %n: tensor<4xi32> {alpa.kind = "batch"}) -> (tensor<8xf32>, tensor<8xf32> {alpa.reduction = "mean"}, tensor<f32> {alpa.reduction = "mean"}, tensor<f32> {alpa.reduction = "mean"}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %none = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<4x8xf32>, tensor<f32>) -> tensor<8xf32> loc("jit(f)/jvp(alpa_eqn_0)/sum")
  // CHECK: sqrt %{{.*}}alpa.phase = "forward"
  %1 = stablehlo.sqrt %0 : tensor<8xf32> loc("jit(f)/jvp(alpa_eqn_1)/sqrt")
  %2 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<f32> loc("jit(f)/jvp(alpa_eqn_2)/sum")
  // CHECK: sine %{{.*}}alpa.phase = "forward"
  %3 = stablehlo.sine %2 : tensor<f32> loc("jit(f)/jvp(alpa_eqn_3)/sin")
  %4 = stablehlo.reduce(%n init: %none) applies stablehlo.add across dimensions = [0] : (tensor<4xi32>, tensor<i32>) -> tensor<i32> loc("jit(f)/jvp(alpa_eqn_4)/sum")
  // CHECK: maximum {{.*}}alpa.phase = "forward"
  %5 = stablehlo.maximum %4, %none : tensor<i32> loc("jit(f)/jvp(alpa_eqn_5)/max")
  // CHECK: convert {{.*}}alpa.phase = "forward"
  %6 = stablehlo.convert %5 : (tensor<i32>) -> tensor<f32> loc("jit(f)/jvp(alpa_eqn_6)/convert")
  %7 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<8xf32> loc("jit(f)/transpose(jvp(alpa_eqn_3))/b")
  return %1, %7, %3, %6 : tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>
}
