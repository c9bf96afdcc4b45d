// RUN: alpa-opt %s --split-input-file --alpa-import | FileCheck %s

// What ends JAX's associative_scan: slices without elements, which are joined and padded.

// CHECK-LABEL: func.func @main
// CHECK-NOT: slice
// CHECK: %[[A:.*]] = stablehlo.tanh %arg0
// CHECK-NOT: concatenate
// CHECK: %[[PAD:.*]] = stablehlo.constant {{.*}} dense<5.0
// CHECK: %[[P:.*]] = stablehlo.broadcast_in_dim %[[PAD]], dims = []
// CHECK-NOT: stablehlo.pad
// CHECK: return %[[A]], %[[P]]
func.func @main(%arg0: tensor<8x1xf32>) -> (tensor<8x1xf32>, tensor<8x2xf32>) {
  %five = stablehlo.constant dense<5.0> : tensor<f32>
  %a = stablehlo.tanh %arg0 : tensor<8x1xf32>
  %none = stablehlo.slice %a [0:8, 0:0] : (tensor<8x1xf32>) -> tensor<8x0xf32>
  %twice = stablehlo.add %none, %none : tensor<8x0xf32>
  %joined = stablehlo.concatenate %a, %twice, dim = 1 : (tensor<8x1xf32>, tensor<8x0xf32>) -> tensor<8x1xf32>
  %padded = stablehlo.pad %twice, %five, low = [0, 2], high = [0, 0], interior = [0, 1] : (tensor<8x0xf32>, tensor<f32>) -> tensor<8x2xf32>
  return %joined, %padded : tensor<8x1xf32>, tensor<8x2xf32>
}

// -----

// Sums and products over nothing, and an update of nothing.

// CHECK-LABEL: func.func @main
// CHECK: %[[ZERO:.*]] = stablehlo.constant {{.*}} : tensor<f32>
// CHECK: %[[SUM:.*]] = stablehlo.broadcast_in_dim %[[ZERO]]
// CHECK: %[[PRODUCT:.*]] = stablehlo.constant {{.*}} dense<0.0{{.*}}> : tensor<8x3xf32>
// CHECK: return %[[SUM]], %[[PRODUCT]], %arg0
func.func @main(%arg0: tensor<8x4xf32>, %empty: tensor<8x0xf32>, %weights: tensor<0x3xf32>) -> (tensor<8xf32>, tensor<8x3xf32>, tensor<8x4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %at = stablehlo.constant dense<0> : tensor<i32>
  %sum = stablehlo.reduce(%empty init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<8x0xf32>, tensor<f32>) -> tensor<8xf32>
  %product = stablehlo.dot_general %empty, %weights, contracting_dims = [1] x [0] : (tensor<8x0xf32>, tensor<0x3xf32>) -> tensor<8x3xf32>
  %same = stablehlo.dynamic_update_slice %arg0, %empty, %at, %at : (tensor<8x4xf32>, tensor<8x0xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
  return %sum, %product, %same : tensor<8xf32>, tensor<8x3xf32>, tensor<8x4xf32>
}

// -----

// What is returned without elements stays, as a broadcast zero.

// CHECK-LABEL: func.func @main
// CHECK: %[[NONE:.*]] = stablehlo.broadcast_in_dim %{{.*}} -> tensor<0x3xcomplex<f64>>
// CHECK: return %[[NONE]]
func.func @main(%arg0: tensor<0x3xcomplex<f64>>) -> tensor<0x3xcomplex<f64>> {
  %n = stablehlo.negate %arg0 : tensor<0x3xcomplex<f64>>
  return %n : tensor<0x3xcomplex<f64>>
}
