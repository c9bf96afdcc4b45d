// RUN: alpa-opt %s -split-input-file -alpa-import="pin-shardings" | FileCheck %s
// RUN: not alpa-opt %s -split-input-file -alpa-import="pin-shardings keep-shardings" 2>&1 | FileCheck %s --check-prefix=BOTH

// BOTH: error: keep-shardings and pin-shardings exclude each other

// Axes are numbered over all meshes; those of one device split nothing.

// CHECK-LABEL: module attributes {alpa.pin_axes =
// CHECK-SAME: {{\[\[}}
// CHECK-SAME{LITERAL}: ["x", 2], ["y", 4]], [["all", 8]]]}
// CHECK-NOT: sdy.
// CHECK: func.func @main(%[[X:.*]]: tensor<8x16xf32> {alpa.kind = "state", alpa.pin = #alpa.sharding<[S01, R]>, alpa.pin_open = array<i64: 1>}
// CHECK: %[[A:.*]] = stablehlo.tanh %[[X]]
// CHECK: %[[B:.*]] = stablehlo.optimization_barrier {{.*}}alpa.pin = #alpa.sharding<[S0, R]>} %[[A]]
// CHECK: %[[C:.*]] = stablehlo.optimization_barrier {{.*}}alpa.pin = #alpa.sharding<[R, S1]>, alpa.pin_open = array<i64: 0>} %[[B]]
// CHECK: %[[D:.*]] = stablehlo.optimization_barrier {{.*}}alpa.pin = #alpa.sharding<[R, S2]>} %[[C]]
// CHECK: stablehlo.case
// CHECK: stablehlo.optimization_barrier {{.*}}alpa.pin = #alpa.sharding<[S10, R]>} %[[D]]
sdy.mesh @mesh = <["x"=2, "one"=1, "y"=4]>
sdy.mesh @other = <["all"=8]>
sdy.mesh @single = <["x"=1, "y"=1]>
sdy.mesh @empty_mesh = <[]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {?}]>}, %i: tensor<i32>) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %x : tensor<8x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {"one"}]> : tensor<8x16xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{?}, {"y"}]> : tensor<8x16xf32>
  %3 = sdy.sharding_constraint %2 <@other, [{}, {"all"}]> : tensor<8x16xf32>
  %4 = sdy.sharding_constraint %3 <@empty_mesh, [{}, {}]> : tensor<8x16xf32>
  %5 = sdy.sharding_constraint %4 <@single, [{"x"}, {}]> : tensor<8x16xf32>
  %6 = "stablehlo.case"(%i) ({
    %7 = sdy.sharding_constraint %5 <@mesh, [{"y", "x"}, {}]> : tensor<8x16xf32>
    stablehlo.return %7 : tensor<8x16xf32>
  }) : (tensor<i32>) -> tensor<8x16xf32>
  return %6 : tensor<8x16xf32>
}

// -----

// A mesh of one device says nothing at all.

// CHECK-LABEL: module {
// CHECK-NOT: alpa.pin
// CHECK-NOT: optimization_barrier
// CHECK: return
sdy.mesh @mesh = <["x"=1, "y"=1]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x16xf32> {
  %0 = sdy.sharding_constraint %x <@mesh, [{"x"}, {}]> : tensor<8x16xf32>
  %1 = stablehlo.tanh %0 : tensor<8x16xf32>
  return %1 : tensor<8x16xf32>
}

// -----

// Part of an axis is an axis of its own.

// CHECK-LABEL: module attributes {alpa.pin_axes =
// CHECK-SAME: {{\[\[}}
// CHECK-SAME{LITERAL}: ["x", 8]], [["x", 8], ["x:(1)2", 2]]]}
// CHECK: alpa.pin = #alpa.sharding<[S1, R]>
sdy.mesh @mesh = <["x"=8]>
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = sdy.sharding_constraint %x <@mesh, [{"x":(1)2}, {}]> : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
