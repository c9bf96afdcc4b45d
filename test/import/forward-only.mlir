// RUN: alpa-opt %s -split-input-file -alpa-import | FileCheck %s

// A step without gradients is forward as a whole, whether or not it still holds samples; an
// equation without a tag belongs to its first reader, or to the last that it reads.

// CHECK-LABEL: func.func @main
func.func @main(%w: tensor<8xf32> {alpa.kind = "state"}, %x: tensor<4x8xf32> {alpa.kind = "batch"}) -> (tensor<4x8xf32> {alpa.reduction = "concat"}, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %size = stablehlo.constant dense<64.0> : tensor<f32>
  // CHECK: broadcast_in_dim {{.*}}alpa.eqn = 0 : i64, alpa.phase = "forward"
  %0 = stablehlo.broadcast_in_dim %w, dims = [1] : (tensor<8xf32>) -> tensor<4x8xf32> loc("jit(f)/alpa_eqn_0/b")
  // CHECK: multiply {{.*}}alpa.eqn = 1 : i64, alpa.phase = "forward"
  %1 = stablehlo.multiply %x, %0 : tensor<4x8xf32> loc("jit(f)/alpa_eqn_1/mul")
  // An op without a name belongs to the first equation that reads it.
  // CHECK: negate {{.*}}alpa.eqn = 5 : i64, alpa.phase = "forward"
  %2 = stablehlo.negate %1 : tensor<4x8xf32> loc("jit(f)/neg")
  // CHECK: reduce({{.*}}alpa.eqn = 5 : i64, alpa.phase = "forward"
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<f32> loc("jit(f)/alpa_eqn_5/sum")
  // CHECK: divide {{.*}}alpa.eqn = 5 : i64, alpa.phase = "forward"
  %4 = stablehlo.divide %3, %size : tensor<f32> loc("jit(f)/div")
  // CHECK: exponential {{.*}}alpa.eqn = 5 : i64, alpa.phase = "forward"
  %5 = stablehlo.exponential %4 : tensor<f32> loc("jit(f)/exp")
  // CHECK: sine {{.*}}alpa.eqn = 5 : i64, alpa.phase = "forward"
  %6 = stablehlo.sine %2 : tensor<4x8xf32> loc("jit(f)/sin")
  return %6, %5 : tensor<4x8xf32>, tensor<f32>
}

// -----

// Ops of a function that an equation calls are of that equation, whatever they are named there.

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<4xf32> {alpa.kind = "batch"}) -> (tensor<4xf32> {alpa.reduction = "concat"}) {
  // CHECK: sine {{.*}}alpa.eqn = 7 : i64, alpa.phase = "forward"
  %0 = call @g(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("jit(f)/alpa_eqn_7/call")
  return %0 : tensor<4xf32>
}
func.func private @g(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.sine %x : tensor<4xf32> loc("jit(g)/sin")
  return %0 : tensor<4xf32>
}
