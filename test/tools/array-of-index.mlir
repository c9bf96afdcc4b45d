// RUN: not alpa-opt %s 2>&1 | FileCheck %s
// RUN: sed 's/array<index>/array< !word : 1>/' %s > %t && not alpa-opt %t 2>&1 | FileCheck %s
// RUN: sed 's/array<index>/array<i64>/' %s > %t && alpa-opt %t

// MLIR's reader would crash.
// CHECK: :[[#@LINE+4]]:{{[0-9]+}}: error: an array holds numbers of i1, i8, .., i64, f32 or f64, not index or what a name stands for
!word = index

func.func @f(%a: tensor<f32>) {
  %0 = "stablehlo.broadcast_in_dim"(%a) <{broadcast_dimensions = array<index>}> : (tensor<f32>) -> tensor<4xf32>
  return
}
