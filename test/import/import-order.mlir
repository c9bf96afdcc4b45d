// RUN: alpa-opt %s -split-input-file -alpa-import | FileCheck %s

// One forward and one backward computation, then the update. What is not in that order is one
// program, all of it forward, with an equation for each op.

// A loss behind a gradient: the second forward computation reads the first backward one.

// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: stablehlo.sine {{.*}}{alpa.eqn = 0 : i64, alpa.phase = "forward"}
  %0 = stablehlo.sine %x : tensor<4xf32> loc("jit(f)/transpose(jvp(alpa_eqn_4))/sin")
  // CHECK-NEXT: stablehlo.cosine {{.*}}{alpa.eqn = 1 : i64, alpa.phase = "forward"}
  %1 = stablehlo.cosine %0 : tensor<4xf32> loc("jit(f)/jvp(alpa_eqn_7)/cos")
  // CHECK-NEXT: stablehlo.tanh {{.*}}{alpa.eqn = 2 : i64, alpa.phase = "forward"}
  %2 = stablehlo.tanh %1 : tensor<4xf32> loc("jit(f)/transpose(jvp(alpa_eqn_7))/tanh")
  return %2 : tensor<4xf32>
}

// -----

// A loss of the next weights, as of two optimizers in one step. The constant is repeated for
// each of the equations that now read it.

// CHECK-LABEL: func.func public @main
func.func public @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<2x4xf32> {alpa.kind = "batch"}) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // CHECK-NOT: "backward"
  // CHECK-NOT: "update"
  // CHECK: stablehlo.sine {{.*}}{alpa.eqn = 0 : i64
  %0 = stablehlo.sine %x : tensor<2x4xf32> loc("jit(f)/jvp(alpa_eqn_0)/sin")
  // CHECK: stablehlo.constant {alpa.eqn = 1 : i64
  // CHECK: stablehlo.reduce({{.*}}{alpa.eqn = 1 : i64
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32> loc("jit(f)/transpose(jvp(alpa_eqn_0))/sum")
  // CHECK: stablehlo.subtract {{.*}}{alpa.eqn = 2 : i64
  %2 = stablehlo.subtract %w, %1 : tensor<4xf32> loc("jit(f)/sub")
  // CHECK: stablehlo.cosine {{.*}}{alpa.eqn = 3 : i64
  %3 = stablehlo.cosine %2 : tensor<4xf32> loc("jit(f)/jvp(alpa_eqn_0)/cos")
  // CHECK: stablehlo.subtract {{.*}}{alpa.eqn = 4 : i64
  %4 = stablehlo.subtract %2, %3 : tensor<4xf32> loc("jit(f)/sub")
  // CHECK-NOT: "backward"
  // CHECK-NOT: "update"
  // CHECK: return
  return %4 : tensor<4xf32>
}

// -----

// In order, it stays as it is named; what lies between two backward ops is backward.

// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK-NEXT: stablehlo.sine {{.*}}{alpa.eqn = 7 : i64, alpa.phase = "forward"}
  %0 = stablehlo.sine %x : tensor<4xf32> loc("jit(f)/jvp(alpa_eqn_7)/sin")
  // CHECK-NEXT: stablehlo.cosine {{.*}}{alpa.eqn = 7 : i64, alpa.phase = "backward"}
  %1 = stablehlo.cosine %0 : tensor<4xf32> loc("jit(f)/transpose(jvp(alpa_eqn_7))/cos")
  // CHECK-NEXT: stablehlo.negate {{.*}}{alpa.eqn = 7 : i64, alpa.phase = "backward"}
  %2 = stablehlo.negate %1 : tensor<4xf32> loc("jit(f)/neg")
  // CHECK-NEXT: stablehlo.cosine {{.*}}{alpa.eqn = 3 : i64, alpa.phase = "backward"}
  %3 = stablehlo.cosine %2 : tensor<4xf32> loc("jit(f)/transpose(jvp(alpa_eqn_3))/cos")
  // CHECK-NEXT: stablehlo.tanh {{.*}}{alpa.phase = "update"}
  %4 = stablehlo.tanh %3 : tensor<4xf32> loc("jit(f)/tanh")
  return %4 : tensor<4xf32>
}
