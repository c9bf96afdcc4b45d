// RUN: alpa-opt %s -split-input-file -alpa-offload-state=least-bytes=64 | FileCheck %s
// RUN: alpa-opt %s -split-input-file -alpa-offload-state | FileCheck %s --check-prefix=SMALL

// State that the update alone reads goes to the host: not what the forward phase reads, not
// counters, and not what another result of the step is, too.
// SMALL-NOT: alpa.memory
// CHECK-LABEL: func.func @main
// CHECK-SAME: %arg0: tensor<4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state"}
// CHECK-SAME: %arg1: tensor<4x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.memory = "host"}
// CHECK-SAME: %arg2: tensor<4x4xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state"}
// CHECK-SAME: %arg3: tensor<f32> {alpa.carried_by = 3 : i64, alpa.kind = "state"}
func.func @main(%w: tensor<4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state"}, %m: tensor<4x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state"}, %v: tensor<4x4xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state"}, %n: tensor<f32> {alpa.carried_by = 3 : i64, alpa.kind = "state"}, %x: tensor<4x4xf32> {alpa.kind = "batch"}) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>, tensor<4x4xf32>) {
  %0 = stablehlo.add %x, %w {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : tensor<4x4xf32>
  %1 = stablehlo.negate %0 {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : tensor<4x4xf32>
  %2 = stablehlo.add %m, %1 {alpa.layer = 0 : i64, alpa.phase = "update"} : tensor<4x4xf32>
  %3 = stablehlo.add %v, %1 {alpa.layer = 0 : i64, alpa.phase = "update"} : tensor<4x4xf32>
  %4 = stablehlo.add %w, %2 {alpa.layer = 0 : i64, alpa.phase = "update"} : tensor<4x4xf32>
  %5 = stablehlo.add %n, %n {alpa.layer = 0 : i64, alpa.phase = "update"} : tensor<f32>
  return %4, %2, %3, %5, %3 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>, tensor<4x4xf32>
}

// -----

// What ops of several layers read may be wanted on several meshes.
// CHECK-LABEL: func.func @main
// CHECK-NOT: alpa.memory
func.func @main(%m: tensor<4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state"}, %g: tensor<4x4xf32> {alpa.kind = "batch"}) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %0 = stablehlo.add %m, %g {alpa.layer = 0 : i64, alpa.phase = "update"} : tensor<4x4xf32>
  %1 = stablehlo.negate %m {alpa.layer = 1 : i64, alpa.phase = "update"} : tensor<4x4xf32>
  return %0, %1 : tensor<4x4xf32>, tensor<4x4xf32>
}
