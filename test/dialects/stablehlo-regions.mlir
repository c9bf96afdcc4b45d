// RUN: alpa-opt %s | alpa-opt | FileCheck %s
// RUN: alpa-opt %s -mlir-print-op-generic -mlir-print-debuginfo | alpa-opt | FileCheck %s

// CHECK-LABEL: func.func @reduce
// CHECK-SAME: %[[A:.*]]: tensor<4x5xf32>, %[[I:.*]]: tensor<f32>
func.func @reduce(%a: tensor<4x5xf32>, %i: tensor<f32>) {
  // CHECK: stablehlo.reduce(%[[A]] init: %[[I]]) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x5xf32>, tensor<f32>) -> tensor<f32>
  %0 = stablehlo.reduce(%a init: %i) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x5xf32>, tensor<f32>) -> tensor<f32>
  // CHECK: stablehlo.reduce(%[[A]] init: %[[I]]) applies stablehlo.maximum across dimensions = [] {note} : (tensor<4x5xf32>, tensor<f32>) -> tensor<4x5xf32>
  %1 = stablehlo.reduce(%a init: %i) applies stablehlo.maximum across dimensions = [] {note} : (tensor<4x5xf32>, tensor<f32>) -> tensor<4x5xf32>
  // The order of operands matters, so this is not `applies`.
  // CHECK: stablehlo.reduce(%[[A]] init: %[[I]]) across dimensions = [0] : (tensor<4x5xf32>, tensor<f32>) -> tensor<5xf32>
  // CHECK-NEXT: reducer(%[[X:.*]]: tensor<f32>, %[[Y:.*]]: tensor<f32>) {
  // CHECK-NEXT: stablehlo.subtract %[[Y]], %[[X]] : tensor<f32>
  %2 = stablehlo.reduce(%a init: %i) across dimensions = [0] : (tensor<4x5xf32>, tensor<f32>) -> tensor<5xf32>
   reducer(%x: tensor<f32>, %y: tensor<f32>) {
    %3 = stablehlo.subtract %y, %x : tensor<f32>
    stablehlo.return %3 : tensor<f32>
  }
  // CHECK: %{{.*}}:2 = stablehlo.reduce(%[[A]] init: %[[I]]), (%[[A]] init: %[[I]]) across dimensions = [1] : (tensor<4x5xf32>, tensor<4x5xf32>, tensor<f32>, tensor<f32>) -> (tensor<4xf32>, tensor<4xf32>)
  // CHECK-NEXT: reducer(%[[X0:.*]]: tensor<f32>, %[[Y0:.*]]: tensor<f32>) (%[[X1:.*]]: tensor<f32>, %[[Y1:.*]]: tensor<f32>) {
  // CHECK-NEXT: stablehlo.add %[[X0]], %[[Y0]] : tensor<f32>
  // CHECK-NEXT: stablehlo.multiply %[[X1]], %[[Y1]] : tensor<f32>
  %4:2 = stablehlo.reduce(%a init: %i), (%a init: %i) across dimensions = [1] : (tensor<4x5xf32>, tensor<4x5xf32>, tensor<f32>, tensor<f32>) -> (tensor<4xf32>, tensor<4xf32>)
   reducer(%x0: tensor<f32>, %y0: tensor<f32>) (%x1: tensor<f32>, %y1: tensor<f32>) {
    %5 = stablehlo.add %x0, %y0 : tensor<f32>
    %6 = stablehlo.multiply %x1, %y1 : tensor<f32>
    stablehlo.return %5, %6 : tensor<f32>, tensor<f32>
  }
  return
}

// CHECK-LABEL: func.func @control
// CHECK-SAME: %[[A:.*]]: tensor<4xf32>, %[[N:.*]]: tensor<i32>
func.func @control(%a: tensor<4xf32>, %n: tensor<i32>) {
  // CHECK: %{{.*}}:2 = stablehlo.while(%[[ARG:iterArg]] = %[[N]], %[[REST:iterArg_.*]] = %[[A]]) : tensor<i32>, tensor<4xf32> attributes {note}
  // CHECK-NEXT: cond {
  // CHECK: stablehlo.compare LT, %[[ARG]], %[[N]]
  // CHECK: } do {
  // CHECK: stablehlo.return %[[N]], %[[REST]] : tensor<i32>, tensor<4xf32>
  %0:2 = stablehlo.while(%i = %n, %x = %a) : tensor<i32>, tensor<4xf32> attributes {note}
  cond {
    %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    stablehlo.return %n, %x : tensor<i32>, tensor<4xf32>
  }
  // CHECK: stablehlo.while()
  // CHECK-NEXT: cond {
  stablehlo.while()
  cond {
    %2 = stablehlo.constant dense<false> : tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    stablehlo.return
  }
  // CHECK: "stablehlo.case"(%[[N]]) ({
  // CHECK-NEXT: stablehlo.return %[[A]] : tensor<4xf32>
  // CHECK-NEXT: }, {
  %3 = "stablehlo.case"(%n) ({
    stablehlo.return %a : tensor<4xf32>
  }, {
    %4 = stablehlo.negate %a : tensor<4xf32>
    stablehlo.return %4 : tensor<4xf32>
  }) : (tensor<i32>) -> tensor<4xf32>
  return
}

// CHECK-LABEL: func.func @windows
func.func @windows(%a: tensor<8xf32>, %s: tensor<4xf32>, %i: tensor<f32>, %x: tensor<2x1xi32>, %u: tensor<2xf32>) {
  // CHECK: "stablehlo.reduce_window"(%{{.*}}, %{{.*}}) <{padding = dense<0> : tensor<1x2xi64>, window_dimensions = array<i64: 2>, window_strides = array<i64: 2>}> ({
  %0 = "stablehlo.reduce_window"(%a, %i) <{padding = dense<0> : tensor<1x2xi64>, window_dimensions = array<i64: 2>, window_strides = array<i64: 2>}> ({
  ^bb0(%l: tensor<f32>, %r: tensor<f32>):
    %1 = stablehlo.add %l, %r : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<8xf32>, tensor<f32>) -> tensor<4xf32>
  // CHECK: "stablehlo.select_and_scatter"(%{{.*}}, %{{.*}}, %{{.*}}) <{window_dimensions = array<i64: 2>, window_strides = array<i64: 2>}> ({
  %2 = "stablehlo.select_and_scatter"(%a, %s, %i) <{window_dimensions = array<i64: 2>, window_strides = array<i64: 2>}> ({
  ^bb0(%l: tensor<f32>, %r: tensor<f32>):
    %3 = stablehlo.compare GE, %l, %r : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %3 : tensor<i1>
  }, {
  ^bb0(%l: tensor<f32>, %r: tensor<f32>):
    %4 = stablehlo.add %l, %r : tensor<f32>
    stablehlo.return %4 : tensor<f32>
  }) : (tensor<8xf32>, tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
  // CHECK: "stablehlo.scatter"(%{{.*}}, %{{.*}}, %{{.*}}) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
  %5 = "stablehlo.scatter"(%a, %x, %u) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
  ^bb0(%l: tensor<f32>, %r: tensor<f32>):
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8xf32>, tensor<2x1xi32>, tensor<2xf32>) -> tensor<8xf32>
  // CHECK: %{{.*}}:2 = "stablehlo.sort"(%{{.*}}, %{{.*}}) <{dimension = 0 : i64, is_stable = true}> ({
  %6:2 = "stablehlo.sort"(%a, %a) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%l: tensor<f32>, %r: tensor<f32>, %p: tensor<f32>, %q: tensor<f32>):
    %7 = stablehlo.compare LT, %l, %r : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %7 : tensor<i1>
  }) : (tensor<8xf32>, tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>)
  return
}

// CHECK-LABEL: func.func @collectives
func.func @collectives(%a: tensor<4xf32>) {
  // CHECK: stablehlo.partition_id : tensor<ui32>
  %0 = stablehlo.partition_id : tensor<ui32>
  // CHECK: stablehlo.replica_id : tensor<ui32>
  %1 = stablehlo.replica_id : tensor<ui32>
  // CHECK: "stablehlo.all_gather"(%{{.*}}) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<{{\[\[}}0, 1{{\]\]}}> : tensor<1x2xi64>, use_global_device_ids}>
  %2 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : (tensor<4xf32>) -> tensor<8xf32>
  // CHECK: "stablehlo.all_reduce"
  %3 = "stablehlo.all_reduce"(%a) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
  ^bb0(%l: tensor<f32>, %r: tensor<f32>):
    %4 = stablehlo.add %l, %r : tensor<f32>
    stablehlo.return %4 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: "stablehlo.reduce_scatter"
  %5 = "stablehlo.reduce_scatter"(%a) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, scatter_dimension = 0 : i64}> ({
  ^bb0(%l: tensor<f32>, %r: tensor<f32>):
    %6 = stablehlo.add %l, %r : tensor<f32>
    stablehlo.return %6 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<2xf32>
  // CHECK: "stablehlo.all_to_all"
  %7 = "stablehlo.all_to_all"(%a) <{concat_dimension = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 0 : i64}> : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: "stablehlo.collective_permute"
  %8 = "stablehlo.collective_permute"(%a) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: "stablehlo.collective_broadcast"
  %9 = "stablehlo.collective_broadcast"(%a) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// Sizes that are known in some places only.
// CHECK-LABEL: func.func @mixed
// CHECK-SAME: %[[A:.*]]: tensor<4x?xf32>, %[[N:.*]]: tensor<i32>, %[[P:.*]]: tensor<i1>
func.func @mixed(%a: tensor<4x?xf32>, %n: tensor<i32>, %p: tensor<i1>) {
  // CHECK: %{{.*}}:2 = stablehlo.while(%[[I:.*]] : tensor<i32> = %[[N]], %[[X:.*]] : tensor<?x3xf32> = %[[A]]) : tensor<i32>, tensor<4x?xf32> -> tensor<i32>, tensor<?x?xf32> attributes {note}
  // CHECK: stablehlo.compare LT, %[[I]], %[[N]]
  // CHECK: } do (%[[J:.*]]: tensor<i32>, %[[Y:.*]]: tensor<4x3xf32>) {
  // CHECK-NEXT: stablehlo.return %[[J]], %[[Y]] : tensor<i32>, tensor<4x3xf32>
  %0:2 = "stablehlo.while"(%n, %a) ({
  ^bb0(%i: tensor<i32>, %x: tensor<?x3xf32>):
    %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }, {
  ^bb0(%j: tensor<i32>, %y: tensor<4x3xf32>):
    stablehlo.return %j, %y : tensor<i32>, tensor<4x3xf32>
  }) {note} : (tensor<i32>, tensor<4x?xf32>) -> (tensor<i32>, tensor<?x?xf32>)
  // CHECK: stablehlo.negate %[[A]] : (tensor<4x?xf32>) -> tensor<?x3xf32>
  %2 = stablehlo.negate %a : (tensor<4x?xf32>) -> tensor<?x3xf32>
  // CHECK: "stablehlo.if"(%[[P]]) ({
  %3 = "stablehlo.if"(%p) ({
    stablehlo.return %a : tensor<4x?xf32>
  }, {
    stablehlo.return %2 : tensor<?x3xf32>
  }) : (tensor<i1>) -> tensor<?x?xf32>
  // CHECK: "stablehlo.map"(%[[A]]) <{dimensions = array<i64: 0, 1>}> ({
  %4 = "stablehlo.map"(%a) <{dimensions = array<i64: 0, 1>}> ({
  ^bb0(%x: tensor<f32>):
    stablehlo.return %x : tensor<f32>
  }) : (tensor<4x?xf32>) -> tensor<4x?xf32>
  return
}
