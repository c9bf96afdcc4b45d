// RUN: alpa-opt %s -alpa-cluster-layers=layers=2 | FileCheck %s

// Weights are converted before anything is computed. Each conversion goes to the layer that
// reads it, and so does its gradient's.

// CHECK-LABEL: func.func @main
func.func @main(%w0: tensor<8x8xf32> {alpa.kind = "state"}, %w1: tensor<8x8xf32> {alpa.kind = "state"}, %x: tensor<4x8xbf16> {alpa.kind = "batch"}) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  // CHECK: convert %arg0 {{.*}}alpa.layer = 0 :
  %0 = stablehlo.convert %w0 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x8xf32>) -> tensor<8x8xbf16>
  // CHECK: convert %arg1 {{.*}}alpa.layer = 1 :
  %1 = stablehlo.convert %w1 {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x8xf32>) -> tensor<8x8xbf16>
  %2 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  %3 = stablehlo.sine %2 {alpa.eqn = 3 : i64, alpa.phase = "forward"} : tensor<4x8xbf16>
  %4 = stablehlo.dot_general %3, %1, contracting_dims = [1] x [0] {alpa.eqn = 4 : i64, alpa.phase = "forward"} : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  %5 = stablehlo.dot_general %3, %4, contracting_dims = [0] x [0] {alpa.eqn = 4 : i64, alpa.phase = "backward"} : (tensor<4x8xbf16>, tensor<4x8xbf16>) -> tensor<8x8xbf16>
  // CHECK: convert %{{.*}}alpa.layer = 1 : i64, alpa.phase = "backward"
  %6 = stablehlo.convert %5 {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8x8xbf16>) -> tensor<8x8xf32>
  %7 = stablehlo.dot_general %4, %1, contracting_dims = [1] x [1] {alpa.eqn = 4 : i64, alpa.phase = "backward"} : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  %8 = stablehlo.cosine %7 {alpa.eqn = 3 : i64, alpa.phase = "backward"} : tensor<4x8xbf16>
  %9 = stablehlo.dot_general %x, %8, contracting_dims = [0] x [0] {alpa.eqn = 2 : i64, alpa.phase = "backward"} : (tensor<4x8xbf16>, tensor<4x8xbf16>) -> tensor<8x8xbf16>
  // CHECK: convert %{{.*}}alpa.layer = 0 : i64, alpa.phase = "backward"
  %10 = stablehlo.convert %9 {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x8xbf16>) -> tensor<8x8xf32>
  return %10, %6 : tensor<8x8xf32>, tensor<8x8xf32>
}
