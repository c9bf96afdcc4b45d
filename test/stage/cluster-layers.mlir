// RUN: alpa-opt %s -split-input-file -alpa-cluster-layers=layers=2 | FileCheck %s

// Two dots: a layer each. Backward ops go with their equations, update ops with their weights;
// the counter and the global norm go to layer 0, and each layer broadcasts the norm itself.

// CHECK-LABEL: func.func @main
func.func @main(%w0: tensor<8x8xf32> {alpa.kind = "state"}, %w1: tensor<8x8xf32> {alpa.kind = "state"}, %m1: tensor<8x8xf32> {alpa.kind = "state"}, %n: tensor<i32> {alpa.kind = "state"}, %x: tensor<4x8xf32> {alpa.kind = "batch"}) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<i32>) {
  // CHECK: dot_general {{.*}}alpa.layer = 0 : i64, alpa.phase = "forward"
  %0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  // CHECK: sine {{.*}}alpa.layer = 0 : i64, alpa.phase = "forward"
  %1 = stablehlo.sine %0 {alpa.eqn = 1 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // CHECK: dot_general {{.*}}alpa.layer = 1 : i64, alpa.phase = "forward"
  %2 = stablehlo.dot_general %1, %w1, contracting_dims = [1] x [0] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  // CHECK: dot_general {{.*}}alpa.layer = 1 : i64, alpa.phase = "backward"
  %3 = stablehlo.dot_general %1, %2, contracting_dims = [0] x [0] {alpa.eqn = 2 : i64, alpa.phase = "backward"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  // CHECK: dot_general {{.*}}alpa.layer = 1 : i64, alpa.phase = "backward"
  %4 = stablehlo.dot_general %2, %w1, contracting_dims = [1] x [1] {alpa.eqn = 2 : i64, alpa.phase = "backward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  // CHECK: cosine {{.*}}alpa.layer = 0 : i64, alpa.phase = "backward"
  %5 = stablehlo.cosine %4 {alpa.eqn = 1 : i64, alpa.phase = "backward"} : tensor<4x8xf32>
  // The tag says equation 2, data flow says that layer 0 has begun.
  // CHECK: negate {{.*}}alpa.layer = 0 : i64, alpa.phase = "backward"
  %6 = stablehlo.negate %5 {alpa.eqn = 2 : i64, alpa.phase = "backward"} : tensor<4x8xf32>
  // CHECK: dot_general {{.*}}alpa.layer = 0 : i64, alpa.phase = "backward"
  %7 = stablehlo.dot_general %x, %6, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %zero = stablehlo.constant {alpa.phase = "update"} dense<0.0> : tensor<f32>
  // CHECK: %[[N0:.+]] = stablehlo.reduce{{.*}}alpa.layer = 0 : i64, alpa.phase = "update"
  %8 = stablehlo.reduce(%7 init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.phase = "update"} : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
  // CHECK: %[[N1:.+]] = stablehlo.reduce{{.*}}alpa.layer = 1 : i64, alpa.phase = "update"
  %9 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.phase = "update"} : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
  // CHECK: %[[NORM:.+]] = stablehlo.add %[[N1]], %[[N0]] {alpa.layer = 0 : i64, alpa.phase = "update"}
  %10 = stablehlo.add %9, %8 {alpa.phase = "update"} : tensor<f32>
  %11 = stablehlo.broadcast_in_dim %10, dims = [] {alpa.phase = "update"} : (tensor<f32>) -> tensor<8x8xf32>
  // CHECK: %[[B0:.+]] = stablehlo.broadcast_in_dim %[[NORM]], {{.*}}alpa.layer = 0 : i64, alpa.phase = "update"
  // CHECK: stablehlo.multiply %{{.+}}, %[[B0]] {alpa.layer = 0 : i64, alpa.phase = "update"}
  %12 = stablehlo.multiply %7, %11 {alpa.phase = "update"} : tensor<8x8xf32>
  // CHECK: %[[B1:.+]] = stablehlo.broadcast_in_dim %[[NORM]], {{.*}}alpa.layer = 1 : i64, alpa.phase = "update"
  // CHECK: stablehlo.multiply %{{.+}}, %[[B1]] {alpa.layer = 1 : i64, alpa.phase = "update"}
  %13 = stablehlo.multiply %3, %11 {alpa.phase = "update"} : tensor<8x8xf32>
  // Optimizer state goes where the weight is that it moves.
  // CHECK: stablehlo.negate %arg2 {alpa.layer = 1 : i64, alpa.phase = "update"}
  %14 = stablehlo.negate %m1 {alpa.phase = "update"} : tensor<8x8xf32>
  // CHECK: stablehlo.add {{.*}}alpa.layer = 1 : i64, alpa.phase = "update"
  %15 = stablehlo.add %14, %13 {alpa.phase = "update"} : tensor<8x8xf32>
  // CHECK: stablehlo.add %arg3, %arg3 {alpa.layer = 0 : i64, alpa.phase = "update"}
  %16 = stablehlo.add %n, %n {alpa.phase = "update"} : tensor<i32>
  return %12, %13, %15, %16 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<i32>
}

// -----

// A weight of both layers: the sum of its gradients waits for the update, on the first layer, where the weight is.

// CHECK-LABEL: func.func @main
func.func @main(%w: tensor<8x8xf32> {alpa.kind = "state"}, %x: tensor<4x8xf32> {alpa.kind = "batch"}) -> tensor<8x8xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  // CHECK: %[[G1:.+]] = stablehlo.dot_general {{.*}}alpa.layer = 1 : i64, alpa.phase = "backward"
  %2 = stablehlo.dot_general %0, %1, contracting_dims = [0] x [0] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  // CHECK: %[[G0:.+]] = stablehlo.dot_general {{.*}}alpa.layer = 0 : i64, alpa.phase = "backward"
  %3 = stablehlo.dot_general %x, %1, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  // CHECK: stablehlo.add %[[G1]], %[[G0]] {alpa.layer = 0 : i64, alpa.phase = "update"}
  %4 = stablehlo.add %2, %3 {alpa.eqn = 0 : i64, alpa.phase = "backward"} : tensor<8x8xf32>
  %5 = stablehlo.subtract %w, %4 {alpa.phase = "update"} : tensor<8x8xf32>
  return %5 : tensor<8x8xf32>
}
