// RUN: alpa-opt %s -split-input-file -alpa-prepare-weights=least-elements=16 | FileCheck %s
// RUN: alpa-opt %s -split-input-file -alpa-prepare-weights="least-elements=16 gather=true" | FileCheck %s --check-prefix=GATHER
// RUN: alpa-opt %s -split-input-file -alpa-prepare-weights | FileCheck %s --check-prefix=SMALL

// A conversion runs once; so does one that jax.checkpoint writes again, behind its barrier.
// Transposes stay with their readers, and so do small values.
// SMALL-LABEL: func.func @main
// SMALL-NOT: "prepare"

// CHECK-LABEL: func.func @main
// CHECK: %[[W:.*]] = stablehlo.convert %arg0 {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "prepare"}
// CHECK-NEXT: stablehlo.dot_general %arg2, %[[W]]
// CHECK-NOT: stablehlo.convert %{{.*}}tensor<4x4xbf16>
// CHECK: %[[T:.*]] = stablehlo.transpose %[[W]]
// CHECK-SAME: "backward"
// CHECK: stablehlo.dot_general %{{.*}}, %[[T]]
// CHECK: stablehlo.convert %arg1 {{.*}}"forward"
// GATHER-LABEL: func.func @main
// GATHER: stablehlo.convert %arg0 {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.movable, alpa.phase = "prepare"}
func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state"}, %b: tensor<4xf32> {alpa.kind = "state"}, %x: tensor<2x4xbf16> {alpa.kind = "batch"}) -> (tensor<2x4xbf16>, tensor<2x4xbf16>) {
  %0 = stablehlo.convert %w {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xbf16>
  %2:2 = "stablehlo.optimization_barrier"(%w, %1) {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : (tensor<4x4xf32>, tensor<2x4xbf16>) -> (tensor<4x4xf32>, tensor<2x4xbf16>)
  %3 = stablehlo.convert %2#0 {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  %4 = stablehlo.transpose %3, dims = [1, 0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : (tensor<4x4xbf16>) -> tensor<4x4xbf16>
  %5 = stablehlo.dot_general %2#1, %4, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : (tensor<2x4xbf16>, tensor<4x4xbf16>) -> tensor<2x4xbf16>
  %6 = stablehlo.convert %b {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<4xf32>) -> tensor<4xbf16>
  %7 = stablehlo.broadcast_in_dim %6, dims = [1] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<4xbf16>) -> tensor<2x4xbf16>
  %8 = stablehlo.add %1, %7 {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<2x4xbf16>
  return %8, %5 : tensor<2x4xbf16>, tensor<2x4xbf16>
}

// -----

// Of several layers it is the first one's. A row of a stack is no value of its own; what reads the
// batch, what is larger than state, and results of the step are none.
// GATHER-LABEL: func.func @main
// CHECK-LABEL: func.func @main
// CHECK: %[[ROW:.*]] = stablehlo.slice %arg0
// CHECK-SAME: alpa.layer = 0 : i64, alpa.phase = "prepare"
// CHECK: stablehlo.slice %arg0
// CHECK-SAME: alpa.layer = 1 : i64, alpa.phase = "forward"
// CHECK: stablehlo.negate %[[ROW]]
// CHECK-SAME: alpa.layer = 0 : i64, alpa.phase = "prepare"
// CHECK: stablehlo.dot_general
// CHECK: stablehlo.pad
// CHECK-SAME: "forward"
// CHECK: stablehlo.multiply
// CHECK-SAME: "forward"
// CHECK: stablehlo.exponential
// CHECK-SAME: "forward"
func.func @main(%w: tensor<2x4x4xf32> {alpa.kind = "state"}, %x: tensor<4x4xf32> {alpa.kind = "batch"}) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<40x4xf32>, tensor<2x4x4xf32>) {
  %0 = stablehlo.slice %w [0:1, 0:4, 0:4] {alpa.eqn = 0 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : (tensor<2x4x4xf32>) -> tensor<1x4x4xf32>
  %1 = stablehlo.negate %0 {alpa.eqn = 0 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : tensor<1x4x4xf32>
  %2 = stablehlo.reshape %1 {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
  %3 = stablehlo.reshape %0 {alpa.eqn = 0 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
  %4 = stablehlo.dot_general %x, %2, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %z = stablehlo.constant {alpa.eqn = 0 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} dense<0.0> : tensor<f32>
  %5 = stablehlo.pad %3, %z, low = [0, 0], high = [36, 0], interior = [0, 0] {alpa.eqn = 0 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : (tensor<4x4xf32>, tensor<f32>) -> tensor<40x4xf32>
  %6 = stablehlo.multiply %4, %3 {alpa.eqn = 0 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : tensor<4x4xf32>
  %7 = stablehlo.exponential %w {alpa.eqn = 0 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : tensor<2x4x4xf32>
  return %4, %6, %5, %7 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<40x4xf32>, tensor<2x4x4xf32>
}

// -----

// Weights that are read as they are have a name of their own only where that may be held
// otherwise.
// CHECK-LABEL: func.func @main
// CHECK-NEXT: stablehlo.dot_general %arg1, %arg0
// GATHER-LABEL: func.func @main
// GATHER-NEXT: %[[W:.*]] = stablehlo.optimization_barrier {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.movable, alpa.phase = "prepare"} %arg0
// GATHER-NEXT: stablehlo.dot_general %arg1, %[[W]]
func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state"}, %x: tensor<2x4xf32> {alpa.kind = "batch"}) -> tensor<2x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

// -----

// Of a weight in 8 bits these are prepared, and its scale: products make the rest as they load it.
// CHECK-LABEL: func.func @main
// CHECK: %[[SCALE:.*]] = stablehlo.reduce
// CHECK-SAME: "prepare"
// CHECK: %[[WHOLE:.*]] = stablehlo.broadcast_in_dim %[[SCALE]]{{.*}}"forward"
// CHECK: %[[NARROW:.*]] = stablehlo.convert
// CHECK-SAME: "prepare"
// CHECK-SAME: tensor<4x4xf8E4M3FN>
// CHECK: stablehlo.convert %[[NARROW]]
// CHECK-SAME: "forward"
// CHECK: stablehlo.multiply %{{.*}}, %[[WHOLE]]
// CHECK-SAME: "forward"
// CHECK: stablehlo.dot_general
// GATHER-LABEL: func.func @main
func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state"}, %x: tensor<2x4xf32> {alpa.kind = "batch"}) -> tensor<2x4xf32> {
  %z = stablehlo.constant {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce"(%w, %z) <{dimensions = array<i64: 0, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %m = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %m : tensor<f32>
  }) {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<4x4xf32>, tensor<f32>) -> tensor<f32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<f32>) -> tensor<4x4xf32>
  %2 = stablehlo.divide %w, %1 {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4x4xf32>
  %3 = stablehlo.convert %2 {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<4x4xf32>) -> tensor<4x4xf8E4M3FN>
  %4 = stablehlo.convert %3 {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<4x4xf8E4M3FN>) -> tensor<4x4xf32>
  %5 = stablehlo.multiply %4, %1 {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4x4xf32>
  %6 = stablehlo.dot_general %x, %5, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  return %6 : tensor<2x4xf32>
}
