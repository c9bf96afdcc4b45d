// RUN: alpa-opt %s -split-input-file -alpa-rematerialize=layers=all | FileCheck %s --check-prefixes=CHECK,ALL
// RUN: alpa-opt %s -split-input-file -alpa-rematerialize=layers=none | FileCheck %s --check-prefix=NONE
// RUN: alpa-opt %s -split-input-file -alpa-rematerialize=layers=0 | FileCheck %s --check-prefixes=CHECK,ZERO
// RUN: not alpa-opt %s -split-input-file -alpa-rematerialize=layers=2 2>&1 | FileCheck %s --check-prefix=ERROR

// ERROR: error: alpa-rematerialize: layers has '2'; expected all, none or numbers from 0 to 1

// Gradients read clones; what came into a layer passes a barrier together with the gradient
// that comes from the layer after it. The derivative (cosine) leaves the forward phase.

// NONE-NOT: optimization_barrier
// CHECK-LABEL: func.func @main
func.func @main(%w0: tensor<8x8xf32> {alpa.kind = "state"}, %w1: tensor<8x8xf32> {alpa.kind = "state"}, %x: tensor<4x8xf32> {alpa.kind = "batch"}) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<4x8xf32>) {
  // CHECK: %[[H:.+]] = stablehlo.dot_general %arg2, %arg0, {{.*}}"forward"
  %0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  // CHECK-NOT: cosine %[[H]]
  %d0 = stablehlo.cosine %0 {alpa.eqn = 1 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // CHECK: %[[Y:.+]] = stablehlo.sine %[[H]] {{.*}}"forward"
  %1 = stablehlo.sine %0 {alpa.eqn = 1 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // CHECK: %[[Z:.+]] = stablehlo.dot_general %[[Y]], %arg1, {{.*}}"forward"
  %2 = stablehlo.dot_general %1, %w1, contracting_dims = [1] x [0] {alpa.eqn = 2 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  // ALL: %[[Y1:.+]] = stablehlo.optimization_barrier {alpa.eqn = 2 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"} %[[Y]] :
  // ALL: %[[Z1:.+]] = stablehlo.dot_general %[[Y1]], %arg1, {{.*}}alpa.eqn = 2 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"
  // ALL: dot_general %[[Y1]], %[[Z1]], contracting_dims = [0] x [0] {{.*}}"backward"
  // ALL: %[[G:.+]] = stablehlo.dot_general %[[Z1]], %arg1,
  // ZERO: dot_general %[[Y]], %[[Z]], contracting_dims = [0] x [0] {{.*}}"backward"
  // ZERO: %[[G:.+]] = stablehlo.dot_general %[[Z]], %arg1,
  %3 = stablehlo.dot_general %1, %2, contracting_dims = [0] x [0] {alpa.eqn = 2 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  %4 = stablehlo.dot_general %2, %w1, contracting_dims = [1] x [1] {alpa.eqn = 2 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  // CHECK: %[[IN:.+]]:2 = stablehlo.optimization_barrier {{.*}}alpa.layer = 0 : i64, alpa.phase = "backward"} %arg2, %[[G]] :
  // CHECK: %[[H0:.+]] = stablehlo.dot_general %[[IN]]#0, %arg0, {{.*}}alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"
  // CHECK: %[[D0:.+]] = stablehlo.cosine %[[H0]] {alpa.eqn = 1 : i64, alpa.layer = 0 : i64, alpa.phase = "backward", alpa.recomputes}
  // CHECK: %[[D:.+]] = stablehlo.multiply %[[IN]]#1, %[[D0]] {{.*}}"backward"
  %5 = stablehlo.multiply %4, %d0 {alpa.eqn = 1 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : tensor<4x8xf32>
  // CHECK: dot_general %[[IN]]#0, %[[D]], {{.*}}"backward"
  %6 = stablehlo.dot_general %x, %5, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  // What leaves the step is that of the forward phase.
  // CHECK: return %{{.*}}, %{{.*}}, %[[Z]]
  return %6, %3, %2 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<4x8xf32>
}

// -----

// Bits made without a key would be others the second time.

// CHECK-LABEL: func.func @main
func.func @main(%w: tensor<4xf32> {alpa.kind = "state"}, %x: tensor<4xf32> {alpa.kind = "batch"}) -> tensor<4xf32> {
  %lo = stablehlo.constant {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} dense<0.0> : tensor<f32>
  %hi = stablehlo.constant {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} dense<1.0> : tensor<f32>
  %n = stablehlo.constant {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} dense<4> : tensor<1xi64>
  // CHECK: %[[BITS:.+]] = stablehlo.rng 
  %0 = "stablehlo.rng"(%lo, %hi, %n) {rng_distribution = #stablehlo<rng_distribution UNIFORM>, alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<4xf32>
  %1 = stablehlo.multiply %0, %x {alpa.eqn = 1 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4xf32>
  // CHECK: %[[IN:.+]]:2 = stablehlo.optimization_barrier {{.*}}"backward"} %[[BITS]], %arg1 :
  // CHECK-NOT: stablehlo.rng
  // CHECK: stablehlo.multiply %[[IN]]#0, %[[IN]]#1 {{.*}}"backward"
  %2 = stablehlo.multiply %1, %1 {alpa.eqn = 2 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : tensor<4xf32>
  return %2 : tensor<4xf32>
}

// -----

// Both the clones and the gradients take a row of a stack: there is one slice for both.

// CHECK-LABEL: func.func @main
func.func @main(%w: tensor<2x8x8xf32> {alpa.kind = "state"}, %x: tensor<4x8xf32> {alpa.kind = "batch"}) -> (tensor<8x8xf32>, tensor<4x8xf32>) {
  %s = stablehlo.slice %w [1:2, 0:8, 0:8] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<2x8x8xf32>) -> tensor<1x8x8xf32>
  %r = stablehlo.reshape %s {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
  %0 = stablehlo.dot_general %x, %r, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = stablehlo.sine %0 {alpa.eqn = 1 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  %2 = stablehlo.sine %1 {alpa.eqn = 2 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // CHECK: %[[G:.+]] = stablehlo.cosine {{.*}}alpa.layer = 1 : i64, alpa.phase = "backward"
  %3 = stablehlo.cosine %1 {alpa.eqn = 2 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"} : tensor<4x8xf32>
  // CHECK: %[[IN:.+]]:2 = stablehlo.optimization_barrier {{.*}}alpa.layer = 0 : i64
  // CHECK: stablehlo.slice %arg0 [1:2, {{.*}}"backward"}
  // CHECK: %[[W:.+]] = stablehlo.reshape {{.*}}"backward"}
  // CHECK-NOT: stablehlo.slice
  // CHECK: stablehlo.dot_general %[[IN]]#0, %[[W]], {{.*}}alpa.recomputes
  %4 = stablehlo.multiply %3, %0 {alpa.eqn = 1 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : tensor<4x8xf32>
  %5 = stablehlo.slice %w [1:2, 0:8, 0:8] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : (tensor<2x8x8xf32>) -> tensor<1x8x8xf32>
  %6 = stablehlo.reshape %5 {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
  // CHECK: stablehlo.dot_general {{.*}}, %[[W]], contracting_dims = [1] x [1] {{.*}}"backward"}
  %7 = stablehlo.dot_general %4, %6, contracting_dims = [1] x [1] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %8 = stablehlo.dot_general %x, %4, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  return %8, %7 : tensor<8x8xf32>, tensor<4x8xf32>
}
