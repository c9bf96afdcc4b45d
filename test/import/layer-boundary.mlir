// RUN: alpa-opt %s -split-input-file -alpa-import | FileCheck %s

// A mark of the forward computation stays, with its equation; its gradient goes.

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: %[[H:.+]] = stablehlo.sine %arg0
  %0 = stablehlo.sine %x : tensor<4xf32> loc("jit(f)/jvp(alpa_eqn_0)/sin")
  // CHECK: %[[B:.+]] = stablehlo.optimization_barrier {alpa.boundary, alpa.eqn = 1 : i64, alpa.phase = "forward"} %[[H]]
  %1 = stablehlo.optimization_barrier %0 : tensor<4xf32> loc("jit(f)/jvp(alpa_eqn_1)/vmap(alpa_layer_boundary)/optimization_barrier")
  // CHECK: %[[C:.+]] = stablehlo.cosine %[[B]]
  %2 = stablehlo.cosine %1 : tensor<4xf32> loc("jit(f)/jvp(alpa_eqn_2)/cos")
  %3 = stablehlo.optimization_barrier %2 : tensor<4xf32> loc("jit(f)/transpose(jvp(alpa_eqn_1))/alpa_layer_boundary/optimization_barrier")
  // CHECK: negate %[[C]]
  %4 = stablehlo.negate %3 : tensor<4xf32> loc("jit(f)/transpose(jvp(alpa_eqn_0))/neg")
  return %4 : tensor<4xf32>
}

// -----

// Without gradients every op is an equation. A barrier of another origin is no mark, and a
// mark inside a loop is only in the way.

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: optimization_barrier {alpa.eqn = 0 : i64, alpa.phase = "forward"} %arg0
  %0 = stablehlo.optimization_barrier %x : tensor<4xf32> loc("jit(f)/optimization_barrier")
  // CHECK: optimization_barrier {alpa.boundary, alpa.eqn = 1 : i64, alpa.phase = "forward"} %{{.*}}
  %1 = func.call @mark(%0) : (tensor<4xf32>) -> tensor<4xf32> loc("jit(f)/jit(block)")
  %n = stablehlo.constant dense<3> : tensor<i32>
  %c = stablehlo.constant dense<0> : tensor<i32>
  // CHECK: while
  // CHECK-NOT: optimization_barrier
  %2:2 = stablehlo.while(%i = %c, %v = %1) : tensor<i32>, tensor<4xf32>
    cond {
      %3 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    } do {
      %4 = stablehlo.optimization_barrier %v : tensor<4xf32> loc("jit(f)/while/body/alpa_layer_boundary/optimization_barrier")
      %5 = stablehlo.add %i, %i : tensor<i32>
      stablehlo.return %5, %4 : tensor<i32>, tensor<4xf32>
    }
  return %2#1 : tensor<4xf32>
}

func.func private @mark(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.optimization_barrier %x : tensor<4xf32> loc("alpa_layer_boundary/optimization_barrier")
  return %0 : tensor<4xf32>
}
