// RUN: alpa-opt %s -alpa-cluster-layers=layers=2 | FileCheck %s

// Indices that a few ops make of constants are made again in each layer and phase that reads them.

// CHECK-LABEL: func.func @main
func.func @main(%w0: tensor<8x8xf32> {alpa.kind = "state"}, %w1: tensor<2x8xf32> {alpa.kind = "state"}, %x: tensor<4x8xf32> {alpa.kind = "batch"}) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %i = stablehlo.iota dim = 0 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8xf32>
  %s = stablehlo.sine %i {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [1] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8xf32>) -> tensor<4x8xf32>
  %0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  // CHECK: sine {{.*}}alpa.eqn = 2 : i64, alpa.layer = [[L:[01]]] : i64, alpa.phase = "forward"
  // CHECK: %[[B:.*]] = stablehlo.broadcast_in_dim {{.*}}alpa.eqn = 2 : i64, alpa.layer = [[L]] : i64, alpa.phase = "forward"
  // CHECK: multiply %{{.*}}, %[[B]] {{.*}}alpa.eqn = 2 : i64, alpa.layer = [[L]] : i64, alpa.phase = "forward"
  %1 = stablehlo.multiply %0, %b {alpa.eqn = 2 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  %n = stablehlo.slice %1 [0:4, 0:2] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>) -> tensor<4x2xf32>
  %2 = stablehlo.dot_general %n, %w1, contracting_dims = [1] x [0] {alpa.eqn = 3 : i64, alpa.phase = "forward"} : (tensor<4x2xf32>, tensor<2x8xf32>) -> tensor<4x8xf32>
  // CHECK: sine {{.*}}alpa.eqn = 4 : i64, alpa.layer = [[L:[01]]] : i64, alpa.phase = "forward"
  // CHECK: %[[B:.*]] = stablehlo.broadcast_in_dim {{.*}}alpa.eqn = 4 : i64, alpa.layer = [[L]] : i64, alpa.phase = "forward"
  // CHECK: multiply %{{.*}}, %[[B]] {{.*}}alpa.eqn = 4 : i64, alpa.layer = [[L]] : i64, alpa.phase = "forward"
  %3 = stablehlo.multiply %2, %b {alpa.eqn = 4 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // CHECK: sine {{.*}}alpa.eqn = 4 : i64, alpa.layer = [[L:[01]]] : i64, alpa.phase = "backward"
  // CHECK: %[[B:.*]] = stablehlo.broadcast_in_dim {{.*}}alpa.eqn = 4 : i64, alpa.layer = [[L]] : i64, alpa.phase = "backward"
  // CHECK: multiply %{{.*}}, %[[B]] {{.*}}alpa.eqn = 4 : i64, alpa.layer = [[L]] : i64, alpa.phase = "backward"
  %4 = stablehlo.multiply %3, %b {alpa.eqn = 4 : i64, alpa.phase = "backward"} : tensor<4x8xf32>
  return %3, %4 : tensor<4x8xf32>, tensor<4x8xf32>
}
