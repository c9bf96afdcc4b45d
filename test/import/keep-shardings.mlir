// RUN: not alpa-opt %s -split-input-file -alpa-import="keep-shardings" 2>%t.err | FileCheck %s
// RUN: FileCheck %s --check-prefix=ERROR < %t.err
// RUN: alpa-opt %s -split-input-file -alpa-import 2>&1 | FileCheck %s --check-prefix=DROP

// DROP-NOT: alpa.pin
// DROP-NOT: sdy.

// CHECK: module attributes {alpa.pin_mesh = array<i64: 2, 4>}
// CHECK-NOT: sdy.
// CHECK: func.func @main(%[[X:.*]]: tensor<8x16xf32> {alpa.kind = "state", alpa.sharding = #alpa.sharding<[S01, R]>}
// CHECK: %[[A:.*]] = stablehlo.tanh %[[X]]
// CHECK: %[[B:.*]] = stablehlo.optimization_barrier {{.*}}alpa.pin = #alpa.sharding<[S0, R]>} %[[A]]
// CHECK: %[[C:.*]] = stablehlo.optimization_barrier {{.*}}alpa.pin = #alpa.sharding<[R, S1]>, alpa.pin_open = array<i64: 0>} %[[B]]
// CHECK: return %[[C]]
sdy.mesh @mesh = <["x"=2, "y"=4]>
sdy.mesh @empty_mesh = <[]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %x : tensor<8x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8x16xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{?}, {"y"}]> : tensor<8x16xf32>
  // JAX's mark on random keys.
  %3 = sdy.sharding_constraint %2 <@empty_mesh, [{}, {}]> : tensor<8x16xf32>
  return %3 : tensor<8x16xf32>
}

// -----

sdy.mesh @a = <["x"=2, "y"=4]>
sdy.mesh @b = <["x"=8]>
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = sdy.sharding_constraint %x <@a, [{"x"}, {}]> : tensor<8x16xf32>
  // ERROR: error: {{.*}}asks for a sharding on a mesh of another shape than others before; pinned shardings must share one mesh
  %1 = sdy.sharding_constraint %0 <@b, [{"x"}, {}]> : tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}

// -----

sdy.mesh @a = <["x"=8]>
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  // ERROR: error: {{.*}}splits a dimension by a part of mesh axis "x"; only whole axes can be pinned
  %0 = sdy.sharding_constraint %x <@a, [{"x":(1)2}, {}]> : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// -----

sdy.mesh @a = <["x"=8]>
func.func @main(%x: tensor<8xf32>, %i: tensor<i32>) -> tensor<8xf32> {
  %0 = "stablehlo.case"(%i) ({
    // ERROR: error: {{.*}}stands inside of a loop or branch, where a sharding cannot be pinned; put it on the operands or results
    %1 = sdy.sharding_constraint %x <@a, [{"x"}]> : tensor<8xf32>
    stablehlo.return %1 : tensor<8xf32>
  }) : (tensor<i32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
