// RUN: alpa-opt %s -alpa-undo-sorts -split-input-file | FileCheck %s

// The best expert of each of 8 rows, twice: rows are gathered in the experts' order, go through
// two products and an activation, and back into the old order.
// CHECK-LABEL: func.func @there_and_back
// CHECK-SAME: (%[[X:.*]]: tensor<4x6xf32>, %[[W:.*]]: tensor<3x6x6xf32>, %[[P:.*]]: tensor<4x3xf32>)
// CHECK:     %[[TOP:.*]], %[[CHOSEN:.*]] = chlo.top_k(%[[P]], k = 2)
// CHECK:     %[[KEY:.*]] = stablehlo.reshape %[[CHOSEN]] : (tensor<4x2xi32>) -> tensor<8xi32>
// CHECK:     %[[SPREAD:.*]] = stablehlo.broadcast_in_dim %[[X]], dims = [0, 2]
// CHECK:     %[[ROWS:.*]] = stablehlo.reshape %[[SPREAD]] : (tensor<4x2x6xf32>) -> tensor<8x6xf32>
// CHECK:     %[[H:.*]] = alpa.grouped_dot %[[ROWS]], %[[W]] of %[[KEY]] {contracting = 1 : i64}
// CHECK:     %[[A:.*]] = stablehlo.tanh %[[H]]
// CHECK:     %[[Y:.*]] = alpa.grouped_dot %[[A]], %[[W]] of %[[KEY]] {contracting = 2 : i64}
// CHECK:     return %[[Y]]
// CHECK-NOT: stablehlo.sort
func.func @there_and_back(%x: tensor<4x6xf32>, %w: tensor<3x6x6xf32>, %p: tensor<4x3xf32>) -> tensor<8x6xf32> {
  %values, %chosen = chlo.top_k(%p, k = 2) : tensor<4x3xf32> -> (tensor<4x2xf32>, tensor<4x2xi32>)
  %key = stablehlo.reshape %chosen : (tensor<4x2xi32>) -> tensor<8xi32>
  %count = stablehlo.iota dim = 0 : tensor<8xi32>
  %order:2 = "stablehlo.sort"(%key, %count) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<8xi32>, tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>)
  // As many rows as each expert has.
  %zero = stablehlo.constant dense<0> : tensor<3xi32>
  %one = stablehlo.constant dense<1> : tensor<8xi32>
  %at = stablehlo.broadcast_in_dim %key, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
  %sizes = "stablehlo.scatter"(%zero, %at, %one) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %sum = stablehlo.add %a, %b : tensor<i32>
    stablehlo.return %sum : tensor<i32>
  }) : (tensor<3xi32>, tensor<8x1xi32>, tensor<8xi32>) -> tensor<3xi32>
  %two = stablehlo.constant dense<2> : tensor<8xi32>
  %token = stablehlo.divide %order#1, %two : tensor<8xi32>
  %from = stablehlo.reshape %token : (tensor<8xi32>) -> tensor<8x1xi32>
  %xs = "stablehlo.gather"(%x, %from) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<4x6xf32>, tensor<8x1xi32>) -> tensor<8x6xf32>
  %h = "chlo.ragged_dot"(%xs, %w, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<3xi32>) -> tensor<8x6xf32>
  %t = stablehlo.tanh %h : tensor<8x6xf32>
  %ys = "chlo.ragged_dot"(%t, %w, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [2], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<3xi32>) -> tensor<8x6xf32>
  %inverse:2 = "stablehlo.sort"(%order#1, %count) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<8xi32>, tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>)
  %back = stablehlo.reshape %inverse#1 : (tensor<8xi32>) -> tensor<8x1xi32>
  %y = "stablehlo.gather"(%ys, %back) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<8x6xf32>, tensor<8x1xi32>) -> tensor<8x6xf32>
  return %y : tensor<8x6xf32>
}

// -----

// Integers of 64 bits: the order and the counts are of them, and sizes of fewer.
// CHECK-LABEL: func.func @wide
// CHECK-NOT:   stablehlo.sort
// CHECK:       alpa.grouped_dot
// CHECK-NOT:   stablehlo.sort
func.func @wide(%x: tensor<8x6xf64>, %w: tensor<3x6x6xf64>, %p: tensor<8x3xf64>) -> tensor<8x6xf64> {
  %values, %chosen = chlo.top_k(%p, k = 1) : tensor<8x3xf64> -> (tensor<8x1xf64>, tensor<8x1xi32>)
  %flat = stablehlo.reshape %chosen : (tensor<8x1xi32>) -> tensor<8xi32>
  %key = stablehlo.convert %flat : (tensor<8xi32>) -> tensor<8xi64>
  %count = stablehlo.iota dim = 0 : tensor<8xi64>
  %order:2 = "stablehlo.sort"(%key, %count) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i64>, %b: tensor<i64>, %c: tensor<i64>, %d: tensor<i64>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i64>, tensor<i64>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<8xi64>, tensor<8xi64>) -> (tensor<8xi64>, tensor<8xi64>)
  %zero = stablehlo.constant dense<0> : tensor<3xi64>
  %one = stablehlo.constant dense<1> : tensor<8xi64>
  %at = stablehlo.broadcast_in_dim %key, dims = [0] : (tensor<8xi64>) -> tensor<8x1xi64>
  %counts = "stablehlo.scatter"(%zero, %at, %one) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
  ^bb0(%a: tensor<i64>, %b: tensor<i64>):
    %sum = stablehlo.add %a, %b : tensor<i64>
    stablehlo.return %sum : tensor<i64>
  }) : (tensor<3xi64>, tensor<8x1xi64>, tensor<8xi64>) -> tensor<3xi64>
  %sizes = stablehlo.convert %counts : (tensor<3xi64>) -> tensor<3xi32>
  %narrow = stablehlo.convert %order#1 : (tensor<8xi64>) -> tensor<8xi32>
  %from = stablehlo.reshape %narrow : (tensor<8xi32>) -> tensor<8x1xi32>
  %xs = "stablehlo.gather"(%x, %from) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<8x6xf64>, tensor<8x1xi32>) -> tensor<8x6xf64>
  %ys = "chlo.ragged_dot"(%xs, %w, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<8x6xf64>, tensor<3x6x6xf64>, tensor<3xi32>) -> tensor<8x6xf64>
  %none = stablehlo.constant dense<0.0> : tensor<8x6xf64>
  %y = "stablehlo.scatter"(%none, %from, %ys) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
  ^bb0(%a: tensor<f64>, %b: tensor<f64>):
    %sum = stablehlo.add %a, %b : tensor<f64>
    stablehlo.return %sum : tensor<f64>
  }) : (tensor<8x6xf64>, tensor<8x1xi32>, tensor<8x6xf64>) -> tensor<8x6xf64>
  return %y : tensor<8x6xf64>
}

// -----

// Counts that went through a width too small for them are other sizes.
// CHECK-LABEL: func.func @narrow
// CHECK:       stablehlo.sort
// CHECK:       alpa.grouped_dot {{.*}}ordered = 3
func.func @narrow(%x: tensor<8x6xf64>, %w: tensor<3x6x6xf64>, %p: tensor<8x3xf64>) -> tensor<8x6xf64> {
  %values, %chosen = chlo.top_k(%p, k = 1) : tensor<8x3xf64> -> (tensor<8x1xf64>, tensor<8x1xi32>)
  %key = stablehlo.reshape %chosen : (tensor<8x1xi32>) -> tensor<8xi32>
  %count = stablehlo.iota dim = 0 : tensor<8xi32>
  %order:2 = "stablehlo.sort"(%key, %count) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<8xi32>, tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>)
  %zero = stablehlo.constant dense<0> : tensor<3xi64>
  %one = stablehlo.constant dense<1> : tensor<8xi64>
  %at = stablehlo.broadcast_in_dim %key, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
  %counts = "stablehlo.scatter"(%zero, %at, %one) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
  ^bb0(%a: tensor<i64>, %b: tensor<i64>):
    %sum = stablehlo.add %a, %b : tensor<i64>
    stablehlo.return %sum : tensor<i64>
  }) : (tensor<3xi64>, tensor<8x1xi32>, tensor<8xi64>) -> tensor<3xi64>
  %bytes = stablehlo.convert %counts : (tensor<3xi64>) -> tensor<3xi8>
  %sizes = stablehlo.convert %bytes : (tensor<3xi8>) -> tensor<3xi32>
  %from = stablehlo.reshape %order#1 : (tensor<8xi32>) -> tensor<8x1xi32>
  %xs = "stablehlo.gather"(%x, %from) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<8x6xf64>, tensor<8x1xi32>) -> tensor<8x6xf64>
  %ys = "chlo.ragged_dot"(%xs, %w, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<8x6xf64>, tensor<3x6x6xf64>, tensor<3xi32>) -> tensor<8x6xf64>
  %none = stablehlo.constant dense<0.0> : tensor<8x6xf64>
  %y = "stablehlo.scatter"(%none, %from, %ys) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
  ^bb0(%a: tensor<f64>, %b: tensor<f64>):
    %sum = stablehlo.add %a, %b : tensor<f64>
    stablehlo.return %sum : tensor<f64>
  }) : (tensor<8x6xf64>, tensor<8x1xi32>, tensor<8x6xf64>) -> tensor<8x6xf64>
  return %y : tensor<8x6xf64>
}

// -----

// Sorts are kept of which a product stays in order: its sizes are not known to count the keys,
// keys may be any numbers, or its rows go on in the sort's order. The group of a row follows from
// the sizes then.
// CHECK-LABEL: func.func @other_sizes
// CHECK:       stablehlo.sort
// CHECK:       alpa.grouped_dot {{.*}}ordered = 3
func.func @other_sizes(%x: tensor<8x6xf32>, %w: tensor<3x6x6xf32>, %p: tensor<8x3xf32>, %sizes: tensor<3xi32>) -> tensor<6xf32> {
  %values, %chosen = chlo.top_k(%p, k = 1) : tensor<8x3xf32> -> (tensor<8x1xf32>, tensor<8x1xi32>)
  %key = stablehlo.reshape %chosen : (tensor<8x1xi32>) -> tensor<8xi32>
  %count = stablehlo.iota dim = 0 : tensor<8xi32>
  %order:2 = "stablehlo.sort"(%key, %count) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<8xi32>, tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>)
  %from = stablehlo.reshape %order#1 : (tensor<8xi32>) -> tensor<8x1xi32>
  %xs = "stablehlo.gather"(%x, %from) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<8x6xf32>, tensor<8x1xi32>) -> tensor<8x6xf32>
  %h = "chlo.ragged_dot"(%xs, %w, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<3xi32>) -> tensor<8x6xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x6xf32>, tensor<f32>) -> tensor<6xf32>
  return %sum : tensor<6xf32>
}

// -----

// CHECK-LABEL: func.func @any_keys
// CHECK:       stablehlo.sort
// CHECK:       alpa.grouped_dot {{.*}}ordered = 3
//
// With keys that are clamped, the sum over rows needs no order.
// CHECK-LABEL: func.func @bounded_keys
// CHECK-SAME:  (%[[X:.*]]: tensor<8x6xf32>, %[[W:.*]]: tensor<3x6x6xf32>, %[[GIVEN:.*]]: tensor<8xi32>)
// CHECK:       %[[KEY:.*]] = stablehlo.clamp
// CHECK:       %[[H:.*]] = alpa.grouped_dot %[[X]], %[[W]] of %[[KEY]]
// CHECK:       stablehlo.reduce(%[[H]] init:
// CHECK-NOT:   stablehlo.sort
func.func @any_keys(%x: tensor<8x6xf32>, %w: tensor<3x6x6xf32>, %key: tensor<8xi32>) -> tensor<6xf32> {
  %count = stablehlo.iota dim = 0 : tensor<8xi32>
  %order:2 = "stablehlo.sort"(%key, %count) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<8xi32>, tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>)
  %spread = stablehlo.broadcast_in_dim %key, dims = [0] : (tensor<8xi32>) -> tensor<8x3xi32>
  %each = stablehlo.iota dim = 1 : tensor<8x3xi32>
  %is = stablehlo.compare EQ, %spread, %each, SIGNED : (tensor<8x3xi32>, tensor<8x3xi32>) -> tensor<8x3xi1>
  %ones = stablehlo.convert %is : (tensor<8x3xi1>) -> tensor<8x3xi32>
  %none = stablehlo.constant dense<0> : tensor<i32>
  %sizes = stablehlo.reduce(%ones init: %none) applies stablehlo.add across dimensions = [0] : (tensor<8x3xi32>, tensor<i32>) -> tensor<3xi32>
  %from = stablehlo.reshape %order#1 : (tensor<8xi32>) -> tensor<8x1xi32>
  %xs = "stablehlo.gather"(%x, %from) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<8x6xf32>, tensor<8x1xi32>) -> tensor<8x6xf32>
  %h = "chlo.ragged_dot"(%xs, %w, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<3xi32>) -> tensor<8x6xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x6xf32>, tensor<f32>) -> tensor<6xf32>
  return %sum : tensor<6xf32>
}
func.func @bounded_keys(%x: tensor<8x6xf32>, %w: tensor<3x6x6xf32>, %given: tensor<8xi32>) -> tensor<6xf32> {
  %least = stablehlo.constant dense<0> : tensor<8xi32>
  %most = stablehlo.constant dense<2> : tensor<8xi32>
  %key = stablehlo.clamp %least, %given, %most : tensor<8xi32>
  %count = stablehlo.iota dim = 0 : tensor<8xi32>
  %order:2 = "stablehlo.sort"(%key, %count) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<8xi32>, tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>)
  %spread = stablehlo.broadcast_in_dim %key, dims = [0] : (tensor<8xi32>) -> tensor<8x3xi32>
  %each = stablehlo.iota dim = 1 : tensor<8x3xi32>
  %is = stablehlo.compare EQ, %spread, %each, SIGNED : (tensor<8x3xi32>, tensor<8x3xi32>) -> tensor<8x3xi1>
  %ones = stablehlo.convert %is : (tensor<8x3xi1>) -> tensor<8x3xi32>
  %none = stablehlo.constant dense<0> : tensor<i32>
  %sizes = stablehlo.reduce(%ones init: %none) applies stablehlo.add across dimensions = [0] : (tensor<8x3xi32>, tensor<i32>) -> tensor<3xi32>
  %from = stablehlo.reshape %order#1 : (tensor<8xi32>) -> tensor<8x1xi32>
  %xs = "stablehlo.gather"(%x, %from) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<8x6xf32>, tensor<8x1xi32>) -> tensor<8x6xf32>
  %h = "chlo.ragged_dot"(%xs, %w, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<3xi32>) -> tensor<8x6xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x6xf32>, tensor<f32>) -> tensor<6xf32>
  return %sum : tensor<6xf32>
}

// However many rows there are: `order // 2`, of which the sign is asked for, is each token twice.
// CHECK-LABEL: func.func @many_rows
// CHECK-SAME:  (%[[X:.*]]: tensor<33554432x6xf32>
// CHECK:       %[[SPREAD:.*]] = stablehlo.broadcast_in_dim %[[X]], dims = [0, 2]
// CHECK:       %[[ROWS:.*]] = stablehlo.reshape %[[SPREAD]]
// CHECK:       alpa.grouped_dot %[[ROWS]]
// CHECK-NOT:   stablehlo.sort
func.func @many_rows(%x: tensor<33554432x6xf32>, %w: tensor<3x6x6xf32>, %given: tensor<67108864xi32>) -> tensor<6xf32> {
  %least = stablehlo.constant dense<0> : tensor<67108864xi32>
  %most = stablehlo.constant dense<2> : tensor<67108864xi32>
  %key = stablehlo.clamp %least, %given, %most : tensor<67108864xi32>
  %count = stablehlo.iota dim = 0 : tensor<67108864xi32>
  %order:2 = "stablehlo.sort"(%key, %count) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<67108864xi32>, tensor<67108864xi32>) -> (tensor<67108864xi32>, tensor<67108864xi32>)
  %spread = stablehlo.broadcast_in_dim %key, dims = [0] : (tensor<67108864xi32>) -> tensor<67108864x3xi32>
  %each = stablehlo.iota dim = 1 : tensor<67108864x3xi32>
  %is = stablehlo.compare EQ, %spread, %each, SIGNED : (tensor<67108864x3xi32>, tensor<67108864x3xi32>) -> tensor<67108864x3xi1>
  %ones = stablehlo.convert %is : (tensor<67108864x3xi1>) -> tensor<67108864x3xi32>
  %none = stablehlo.constant dense<0> : tensor<i32>
  %sizes = stablehlo.reduce(%ones init: %none) applies stablehlo.add across dimensions = [0] : (tensor<67108864x3xi32>, tensor<i32>) -> tensor<3xi32>
  %two = stablehlo.constant dense<2> : tensor<67108864xi32>
  %none_i = stablehlo.constant dense<0> : tensor<67108864xi32>
  %one_i = stablehlo.constant dense<1> : tensor<67108864xi32>
  %half = stablehlo.divide %order#1, %two : tensor<67108864xi32>
  %sign = stablehlo.sign %order#1 : tensor<67108864xi32>
  %differs = stablehlo.compare NE, %sign, %one_i, SIGNED : (tensor<67108864xi32>, tensor<67108864xi32>) -> tensor<67108864xi1>
  %rest = stablehlo.remainder %order#1, %two : tensor<67108864xi32>
  %odd = stablehlo.compare NE, %rest, %none_i, SIGNED : (tensor<67108864xi32>, tensor<67108864xi32>) -> tensor<67108864xi1>
  %below = stablehlo.and %differs, %odd : tensor<67108864xi1>
  %less_one = stablehlo.subtract %half, %one_i : tensor<67108864xi32>
  %token = stablehlo.select %below, %less_one, %half : tensor<67108864xi1>, tensor<67108864xi32>
  %from = stablehlo.reshape %token : (tensor<67108864xi32>) -> tensor<67108864x1xi32>
  %xs = "stablehlo.gather"(%x, %from) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<33554432x6xf32>, tensor<67108864x1xi32>) -> tensor<67108864x6xf32>
  %h = "chlo.ragged_dot"(%xs, %w, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<67108864x6xf32>, tensor<3x6x6xf32>, tensor<3xi32>) -> tensor<67108864x6xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<67108864x6xf32>, tensor<f32>) -> tensor<6xf32>
  return %sum : tensor<6xf32>
}

// `jnp.clip` is a maximum and a minimum.
// CHECK-LABEL: func.func @clipped_keys
// CHECK:       %[[LOW:.*]] = stablehlo.maximum
// CHECK:       %[[KEY:.*]] = stablehlo.minimum
// CHECK:       alpa.grouped_dot {{.*}} of %[[KEY]]
// CHECK-NOT:   stablehlo.sort
func.func @clipped_keys(%x: tensor<8x6xf32>, %w: tensor<3x6x6xf32>, %given: tensor<8xi32>) -> tensor<6xf32> {
  %least = stablehlo.constant dense<0> : tensor<8xi32>
  %most = stablehlo.constant dense<2> : tensor<8xi32>
  %above = stablehlo.maximum %least, %given : tensor<8xi32>
  %key = stablehlo.minimum %most, %above : tensor<8xi32>
  %count = stablehlo.iota dim = 0 : tensor<8xi32>
  %order:2 = "stablehlo.sort"(%key, %count) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<8xi32>, tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>)
  %spread = stablehlo.broadcast_in_dim %key, dims = [0] : (tensor<8xi32>) -> tensor<8x3xi32>
  %each = stablehlo.iota dim = 1 : tensor<8x3xi32>
  %is = stablehlo.compare EQ, %spread, %each, SIGNED : (tensor<8x3xi32>, tensor<8x3xi32>) -> tensor<8x3xi1>
  %ones = stablehlo.convert %is : (tensor<8x3xi1>) -> tensor<8x3xi32>
  %none = stablehlo.constant dense<0> : tensor<i32>
  %sizes = stablehlo.reduce(%ones init: %none) applies stablehlo.add across dimensions = [0] : (tensor<8x3xi32>, tensor<i32>) -> tensor<3xi32>
  %from = stablehlo.reshape %order#1 : (tensor<8xi32>) -> tensor<8x1xi32>
  %xs = "stablehlo.gather"(%x, %from) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<8x6xf32>, tensor<8x1xi32>) -> tensor<8x6xf32>
  %h = "chlo.ragged_dot"(%xs, %w, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<3xi32>) -> tensor<8x6xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x6xf32>, tensor<f32>) -> tensor<6xf32>
  return %sum : tensor<6xf32>
}

// -----

// CHECK-LABEL: func.func @goes_on_sorted
// CHECK:       stablehlo.sort
// CHECK:       alpa.grouped_dot {{.*}}ordered = 3
func.func @goes_on_sorted(%x: tensor<8x6xf32>, %w: tensor<3x6x6xf32>, %p: tensor<8x3xf32>) -> tensor<8x6xf32> {
  %values, %chosen = chlo.top_k(%p, k = 1) : tensor<8x3xf32> -> (tensor<8x1xf32>, tensor<8x1xi32>)
  %key = stablehlo.reshape %chosen : (tensor<8x1xi32>) -> tensor<8xi32>
  %count = stablehlo.iota dim = 0 : tensor<8xi32>
  %order:2 = "stablehlo.sort"(%key, %count) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<8xi32>, tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>)
  %spread = stablehlo.broadcast_in_dim %key, dims = [0] : (tensor<8xi32>) -> tensor<8x3xi32>
  %each = stablehlo.iota dim = 1 : tensor<8x3xi32>
  %is = stablehlo.compare EQ, %spread, %each, SIGNED : (tensor<8x3xi32>, tensor<8x3xi32>) -> tensor<8x3xi1>
  %ones = stablehlo.convert %is : (tensor<8x3xi1>) -> tensor<8x3xi32>
  %none = stablehlo.constant dense<0> : tensor<i32>
  %sizes = stablehlo.reduce(%ones init: %none) applies stablehlo.add across dimensions = [0] : (tensor<8x3xi32>, tensor<i32>) -> tensor<3xi32>
  %from = stablehlo.reshape %order#1 : (tensor<8xi32>) -> tensor<8x1xi32>
  %xs = "stablehlo.gather"(%x, %from) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<8x6xf32>, tensor<8x1xi32>) -> tensor<8x6xf32>
  %h = "chlo.ragged_dot"(%xs, %w, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<3xi32>) -> tensor<8x6xf32>
  return %h : tensor<8x6xf32>
}

// -----

// For a platform without the op, groups follow from sizes alone.
// CHECK-LABEL: func.func @without_the_op
// CHECK-SAME:  (%[[X:.*]]: tensor<8x6xf32>, %[[W:.*]]: tensor<3x6x6xf32>, %{{.*}}: tensor<3xi32>)
// CHECK:       %[[IS_BEHIND:.*]] = stablehlo.compare GE, %{{.*}} -> tensor<8x3xi1>
// CHECK:       %[[ONES:.*]] = stablehlo.convert %[[IS_BEHIND]]
// CHECK:       %[[GROUPS:.*]] = stablehlo.reduce(%[[ONES]] init: %{{.*}}) applies stablehlo.add across dimensions = [1]
// CHECK:       alpa.grouped_dot %[[X]], %[[W]] of %[[GROUPS]] {contracting = 1 : i64, ordered = 3 : i64}
func.func @without_the_op(%x: tensor<8x6xf32>, %w: tensor<3x6x6xf32>, %sizes: tensor<3xi32>) -> tensor<8x6xf32> {
  %h = "chlo.ragged_dot"(%x, %w, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<3xi32>) -> tensor<8x6xf32>
  return %h : tensor<8x6xf32>
}

// -----

// Batches of rows, each sorted by itself, with weights of all: rounds of a loop that are mapped.
// CHECK-LABEL: func.func @rounds
// CHECK-SAME:  (%[[X:.*]]: tensor<2x4x6xf32>, %[[W:.*]]: tensor<3x6x6xf32>, %[[P:.*]]: tensor<2x4x3xf32>)
// CHECK-NOT:   stablehlo.sort
// CHECK:       %[[KEY:.*]] = stablehlo.reshape %{{.*}} : (tensor<2x4x1xi32>) -> tensor<2x4xi32>
// CHECK:       %[[ROWS:.*]] = stablehlo.reshape %[[X]] : (tensor<2x4x6xf32>) -> tensor<8x6xf32>
// CHECK:       %[[IDS:.*]] = stablehlo.reshape %[[KEY]] : (tensor<2x4xi32>) -> tensor<8xi32>
// CHECK:       %[[Y:.*]] = alpa.grouped_dot %[[ROWS]], %[[W]] of %[[IDS]]
// CHECK:       stablehlo.reshape %[[Y]] : (tensor<8x6xf32>) -> tensor<2x4x6xf32>
// CHECK-NOT:   stablehlo.sort
func.func @rounds(%x: tensor<2x4x6xf32>, %w: tensor<3x6x6xf32>, %p: tensor<2x4x3xf32>) -> tensor<2x4x6xf32> {
  %values, %chosen = chlo.top_k(%p, k = 1) : tensor<2x4x3xf32> -> (tensor<2x4x1xf32>, tensor<2x4x1xi32>)
  %key = stablehlo.reshape %chosen : (tensor<2x4x1xi32>) -> tensor<2x4xi32>
  %count = stablehlo.iota dim = 1 : tensor<2x4xi32>
  %order:2 = "stablehlo.sort"(%key, %count) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<2x4xi32>, tensor<2x4xi32>) -> (tensor<2x4xi32>, tensor<2x4xi32>)
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %at = stablehlo.broadcast_in_dim %key, dims = [0, 1] : (tensor<2x4xi32>) -> tensor<2x4x1xi32>
  %one = stablehlo.constant dense<1> : tensor<2x4xi32>
  %zero = stablehlo.constant dense<0> : tensor<2x3xi32>
  %sizes = "stablehlo.scatter"(%zero, %at, %one) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %sum = stablehlo.add %a, %b : tensor<i32>
    stablehlo.return %sum : tensor<i32>
  }) : (tensor<2x3xi32>, tensor<2x4x1xi32>, tensor<2x4xi32>) -> tensor<2x3xi32>
  %from = stablehlo.reshape %order#1 : (tensor<2x4xi32>) -> tensor<2x4x1xi32>
  %xs = "stablehlo.gather"(%x, %from) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 6>}> : (tensor<2x4x6xf32>, tensor<2x4x1xi32>) -> tensor<2x4x6xf32>
  %ws = stablehlo.broadcast_in_dim %w, dims = [1, 2, 3] : (tensor<3x6x6xf32>) -> tensor<2x3x6x6xf32>
  %h = "chlo.ragged_dot"(%xs, %ws, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [2], lhs_ragged_dimensions = [1], rhs_group_dimensions = [1]>}> : (tensor<2x4x6xf32>, tensor<2x3x6x6xf32>, tensor<2x3xi32>) -> tensor<2x4x6xf32>
  %inverse:2 = "stablehlo.sort"(%order#1, %count) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<2x4xi32>, tensor<2x4xi32>) -> (tensor<2x4xi32>, tensor<2x4xi32>)
  %back = stablehlo.reshape %inverse#1 : (tensor<2x4xi32>) -> tensor<2x4x1xi32>
  %y = "stablehlo.gather"(%h, %back) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 6>}> : (tensor<2x4x6xf32>, tensor<2x4x1xi32>) -> tensor<2x4x6xf32>
  return %y : tensor<2x4x6xf32>
}

// -----

// The same, with sizes that are sums of comparisons.
// CHECK-LABEL: func.func @counted_rounds
// CHECK-SAME:  (%[[X:.*]]: tensor<2x4x6xf32>, %[[W:.*]]: tensor<3x6x6xf32>, %[[P:.*]]: tensor<2x4x3xf32>)
// CHECK-NOT:   stablehlo.sort
// CHECK:       %[[KEY:.*]] = stablehlo.reshape %{{.*}} : (tensor<2x4x1xi32>) -> tensor<2x4xi32>
// CHECK:       %[[ROWS:.*]] = stablehlo.reshape %[[X]] : (tensor<2x4x6xf32>) -> tensor<8x6xf32>
// CHECK:       %[[IDS:.*]] = stablehlo.reshape %[[KEY]] : (tensor<2x4xi32>) -> tensor<8xi32>
// CHECK:       %[[Y:.*]] = alpa.grouped_dot %[[ROWS]], %[[W]] of %[[IDS]]
// CHECK:       stablehlo.reshape %[[Y]] : (tensor<8x6xf32>) -> tensor<2x4x6xf32>
// CHECK-NOT:   stablehlo.sort
func.func @counted_rounds(%x: tensor<2x4x6xf32>, %w: tensor<3x6x6xf32>, %p: tensor<2x4x3xf32>) -> tensor<2x4x6xf32> {
  %values, %chosen = chlo.top_k(%p, k = 1) : tensor<2x4x3xf32> -> (tensor<2x4x1xf32>, tensor<2x4x1xi32>)
  %key = stablehlo.reshape %chosen : (tensor<2x4x1xi32>) -> tensor<2x4xi32>
  %count = stablehlo.iota dim = 1 : tensor<2x4xi32>
  %order:2 = "stablehlo.sort"(%key, %count) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<2x4xi32>, tensor<2x4xi32>) -> (tensor<2x4xi32>, tensor<2x4xi32>)
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %counts = stablehlo.reshape %chosen : (tensor<2x4x1xi32>) -> tensor<2x4xi32>
  %numbers = stablehlo.iota dim = 2 : tensor<2x4x3xi32>
  %each = stablehlo.broadcast_in_dim %counts, dims = [0, 1] : (tensor<2x4xi32>) -> tensor<2x4x3xi32>
  %is = stablehlo.compare EQ, %each, %numbers, SIGNED : (tensor<2x4x3xi32>, tensor<2x4x3xi32>) -> tensor<2x4x3xi1>
  %ones = stablehlo.convert %is : (tensor<2x4x3xi1>) -> tensor<2x4x3xi32>
  %sizes = stablehlo.reduce(%ones init: %c0) applies stablehlo.add across dimensions = [1] : (tensor<2x4x3xi32>, tensor<i32>) -> tensor<2x3xi32>
  %from = stablehlo.reshape %order#1 : (tensor<2x4xi32>) -> tensor<2x4x1xi32>
  %xs = "stablehlo.gather"(%x, %from) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 6>}> : (tensor<2x4x6xf32>, tensor<2x4x1xi32>) -> tensor<2x4x6xf32>
  %ws = stablehlo.broadcast_in_dim %w, dims = [1, 2, 3] : (tensor<3x6x6xf32>) -> tensor<2x3x6x6xf32>
  %h = "chlo.ragged_dot"(%xs, %ws, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [2], lhs_ragged_dimensions = [1], rhs_group_dimensions = [1]>}> : (tensor<2x4x6xf32>, tensor<2x3x6x6xf32>, tensor<2x3xi32>) -> tensor<2x4x6xf32>
  %inverse:2 = "stablehlo.sort"(%order#1, %count) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<2x4xi32>, tensor<2x4xi32>) -> (tensor<2x4xi32>, tensor<2x4xi32>)
  %back = stablehlo.reshape %inverse#1 : (tensor<2x4xi32>) -> tensor<2x4x1xi32>
  %y = "stablehlo.gather"(%h, %back) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 6>}> : (tensor<2x4x6xf32>, tensor<2x4x1xi32>) -> tensor<2x4x6xf32>
  return %y : tensor<2x4x6xf32>
}

// -----

// Sizes that count the keys of both batches in turn: rows stay sorted, and get the group that
// the sizes of their batch say.
// CHECK-LABEL: func.func @mixed_rounds
// CHECK:       stablehlo.sort
// CHECK:       %[[ENDS:.*]] = stablehlo.reduce(%{{.*}} init: %{{.*}}) applies stablehlo.add across dimensions = [2]
// CHECK:       stablehlo.broadcast_in_dim %[[ENDS]], dims = [0, 2] : (tensor<2x3xi32>) -> tensor<2x4x3xi32>
// CHECK:       alpa.grouped_dot
// CHECK:       stablehlo.sort
func.func @mixed_rounds(%x: tensor<2x4x6xf32>, %w: tensor<3x6x6xf32>, %p: tensor<2x4x3xf32>) -> tensor<2x4x6xf32> {
  %values, %chosen = chlo.top_k(%p, k = 1) : tensor<2x4x3xf32> -> (tensor<2x4x1xf32>, tensor<2x4x1xi32>)
  %key = stablehlo.reshape %chosen : (tensor<2x4x1xi32>) -> tensor<2x4xi32>
  %count = stablehlo.iota dim = 1 : tensor<2x4xi32>
  %order:2 = "stablehlo.sort"(%key, %count) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<2x4xi32>, tensor<2x4xi32>) -> (tensor<2x4xi32>, tensor<2x4xi32>)
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %turned = stablehlo.reshape %key : (tensor<2x4xi32>) -> tensor<4x2xi32>
  %numbers = stablehlo.iota dim = 2 : tensor<2x4x3xi32>
  %each = stablehlo.broadcast_in_dim %turned, dims = [1, 0] : (tensor<4x2xi32>) -> tensor<2x4x3xi32>
  %is = stablehlo.compare EQ, %each, %numbers, SIGNED : (tensor<2x4x3xi32>, tensor<2x4x3xi32>) -> tensor<2x4x3xi1>
  %ones = stablehlo.convert %is : (tensor<2x4x3xi1>) -> tensor<2x4x3xi32>
  %sizes = stablehlo.reduce(%ones init: %c0) applies stablehlo.add across dimensions = [1] : (tensor<2x4x3xi32>, tensor<i32>) -> tensor<2x3xi32>
  %from = stablehlo.reshape %order#1 : (tensor<2x4xi32>) -> tensor<2x4x1xi32>
  %xs = "stablehlo.gather"(%x, %from) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 6>}> : (tensor<2x4x6xf32>, tensor<2x4x1xi32>) -> tensor<2x4x6xf32>
  %ws = stablehlo.broadcast_in_dim %w, dims = [1, 2, 3] : (tensor<3x6x6xf32>) -> tensor<2x3x6x6xf32>
  %h = "chlo.ragged_dot"(%xs, %ws, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [2], lhs_ragged_dimensions = [1], rhs_group_dimensions = [1]>}> : (tensor<2x4x6xf32>, tensor<2x3x6x6xf32>, tensor<2x3xi32>) -> tensor<2x4x6xf32>
  %inverse:2 = "stablehlo.sort"(%order#1, %count) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<2x4xi32>, tensor<2x4xi32>) -> (tensor<2x4xi32>, tensor<2x4xi32>)
  %back = stablehlo.reshape %inverse#1 : (tensor<2x4xi32>) -> tensor<2x4x1xi32>
  %y = "stablehlo.gather"(%h, %back) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 6>}> : (tensor<2x4x6xf32>, tensor<2x4x1xi32>) -> tensor<2x4x6xf32>
  return %y : tensor<2x4x6xf32>
}

// -----

// The keys are computed again, behind a barrier, as a backward pass does that was given the rows
// of a product: rows of the first sort's order meet those of the second. What rounds to the own
// type, or chooses always the same, makes no other keys.
// CHECK-LABEL: func.func @computed_again
// CHECK-SAME:  (%[[X:.*]]: tensor<8x6xf32>, %[[W:.*]]: tensor<3x6x6xf32>, %[[P:.*]]: tensor<8x3xf32>)
// CHECK:       %{{.*}}, %[[CHOSEN:.*]] = chlo.top_k
// CHECK:       %[[KEY:.*]] = stablehlo.reshape %[[CHOSEN]]
// CHECK:       %[[H:.*]] = alpa.grouped_dot %[[X]], %[[W]] of %[[KEY]]
// CHECK-NOT:   top_k
// CHECK:       %[[BOTH:.*]] = stablehlo.multiply %[[H]], %[[X]]
// CHECK:       %[[Y:.*]] = alpa.grouped_dot %[[BOTH]], %[[W]] of %[[KEY]]
// CHECK:       stablehlo.reduce(%[[Y]] init:
// CHECK-NOT:   stablehlo.sort
//
// Keys of other probabilities are others.
// CHECK-LABEL: func.func @other_keys
// CHECK-COUNT-2: stablehlo.sort
func.func @computed_again(%x: tensor<8x6xf32>, %w: tensor<3x6x6xf32>, %p: tensor<8x3xf32>) -> tensor<6xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %highest = stablehlo.reduce(%p init: %zero) applies stablehlo.maximum across dimensions = [1] {alpa.eqn = 1 : i64} : (tensor<8x3xf32>, tensor<f32>) -> tensor<8xf32>
  %most = stablehlo.broadcast_in_dim %highest, dims = [0] : (tensor<8xf32>) -> tensor<8x3xf32>
  %all = stablehlo.constant dense<true> : tensor<i1>
  %never = stablehlo.negate %most : tensor<8x3xf32>
  %sums = stablehlo.subtract %p, %most : tensor<8x3xf32>
  %same = stablehlo.reduce_precision %sums, format = e8m23 : tensor<8x3xf32>
  %share = stablehlo.select %all, %same, %never : tensor<i1>, tensor<8x3xf32>
  %values, %chosen = chlo.top_k(%share, k = 1) : tensor<8x3xf32> -> (tensor<8x1xf32>, tensor<8x1xi32>)
  %key = stablehlo.reshape %chosen : (tensor<8x1xi32>) -> tensor<8xi32>
  %count = stablehlo.iota dim = 0 : tensor<8xi32>
  %order:2 = "stablehlo.sort"(%key, %count) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<8xi32>, tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>)
  %spread = stablehlo.broadcast_in_dim %key, dims = [0] : (tensor<8xi32>) -> tensor<8x3xi32>
  %each = stablehlo.iota dim = 1 : tensor<8x3xi32>
  %is = stablehlo.compare EQ, %spread, %each, SIGNED : (tensor<8x3xi32>, tensor<8x3xi32>) -> tensor<8x3xi1>
  %ones = stablehlo.convert %is : (tensor<8x3xi1>) -> tensor<8x3xi32>
  %none = stablehlo.constant dense<0> : tensor<i32>
  %sizes = stablehlo.reduce(%ones init: %none) applies stablehlo.add across dimensions = [0] : (tensor<8x3xi32>, tensor<i32>) -> tensor<3xi32>
  %from = stablehlo.reshape %order#1 : (tensor<8xi32>) -> tensor<8x1xi32>
  %xs = "stablehlo.gather"(%x, %from) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<8x6xf32>, tensor<8x1xi32>) -> tensor<8x6xf32>
  %h = "chlo.ragged_dot"(%xs, %w, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<3xi32>) -> tensor<8x6xf32>
  %again:2 = stablehlo.optimization_barrier %p, %x : tensor<8x3xf32>, tensor<8x6xf32>
  %highest.1 = stablehlo.reduce(%again#0 init: %zero) applies stablehlo.maximum across dimensions = [1] {alpa.eqn = 2 : i64} : (tensor<8x3xf32>, tensor<f32>) -> tensor<8xf32>
  %most.1 = stablehlo.broadcast_in_dim %highest.1, dims = [0] : (tensor<8xf32>) -> tensor<8x3xf32>
  %share.1 = stablehlo.subtract %again#0, %most.1 : tensor<8x3xf32>
  %values.1, %chosen.1 = chlo.top_k(%share.1, k = 1) : tensor<8x3xf32> -> (tensor<8x1xf32>, tensor<8x1xi32>)
  %key.1 = stablehlo.reshape %chosen.1 : (tensor<8x1xi32>) -> tensor<8xi32>
  %order.1:2 = "stablehlo.sort"(%key.1, %count) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<8xi32>, tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>)
  %spread.1 = stablehlo.broadcast_in_dim %key.1, dims = [0] : (tensor<8xi32>) -> tensor<8x3xi32>
  %is.1 = stablehlo.compare EQ, %spread.1, %each, SIGNED : (tensor<8x3xi32>, tensor<8x3xi32>) -> tensor<8x3xi1>
  %ones.1 = stablehlo.convert %is.1 : (tensor<8x3xi1>) -> tensor<8x3xi32>
  %sizes.1 = stablehlo.reduce(%ones.1 init: %none) applies stablehlo.add across dimensions = [0] : (tensor<8x3xi32>, tensor<i32>) -> tensor<3xi32>
  %from.1 = stablehlo.reshape %order.1#1 : (tensor<8xi32>) -> tensor<8x1xi32>
  %xs.1 = "stablehlo.gather"(%x, %from.1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<8x6xf32>, tensor<8x1xi32>) -> tensor<8x6xf32>
  %both = stablehlo.multiply %h, %xs.1 : tensor<8x6xf32>
  %y = "chlo.ragged_dot"(%both, %w, %sizes.1) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<3xi32>) -> tensor<8x6xf32>
  %sum = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x6xf32>, tensor<f32>) -> tensor<6xf32>
  return %sum : tensor<6xf32>
}
func.func @other_keys(%x: tensor<8x6xf32>, %w: tensor<3x6x6xf32>, %p: tensor<8x3xf32>, %q: tensor<8x3xf32>) -> tensor<6xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %values, %chosen = chlo.top_k(%p, k = 1) : tensor<8x3xf32> -> (tensor<8x1xf32>, tensor<8x1xi32>)
  %key = stablehlo.reshape %chosen : (tensor<8x1xi32>) -> tensor<8xi32>
  %count = stablehlo.iota dim = 0 : tensor<8xi32>
  %order:2 = "stablehlo.sort"(%key, %count) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<8xi32>, tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>)
  %spread = stablehlo.broadcast_in_dim %key, dims = [0] : (tensor<8xi32>) -> tensor<8x3xi32>
  %each = stablehlo.iota dim = 1 : tensor<8x3xi32>
  %is = stablehlo.compare EQ, %spread, %each, SIGNED : (tensor<8x3xi32>, tensor<8x3xi32>) -> tensor<8x3xi1>
  %ones = stablehlo.convert %is : (tensor<8x3xi1>) -> tensor<8x3xi32>
  %none = stablehlo.constant dense<0> : tensor<i32>
  %sizes = stablehlo.reduce(%ones init: %none) applies stablehlo.add across dimensions = [0] : (tensor<8x3xi32>, tensor<i32>) -> tensor<3xi32>
  %from = stablehlo.reshape %order#1 : (tensor<8xi32>) -> tensor<8x1xi32>
  %xs = "stablehlo.gather"(%x, %from) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<8x6xf32>, tensor<8x1xi32>) -> tensor<8x6xf32>
  %h = "chlo.ragged_dot"(%xs, %w, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<3xi32>) -> tensor<8x6xf32>
  %values.1, %chosen.1 = chlo.top_k(%q, k = 1) : tensor<8x3xf32> -> (tensor<8x1xf32>, tensor<8x1xi32>)
  %key.1 = stablehlo.reshape %chosen.1 : (tensor<8x1xi32>) -> tensor<8xi32>
  %order.1:2 = "stablehlo.sort"(%key.1, %count) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<8xi32>, tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>)
  %from.1 = stablehlo.reshape %order.1#1 : (tensor<8xi32>) -> tensor<8x1xi32>
  %xs.1 = "stablehlo.gather"(%x, %from.1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 6>}> : (tensor<8x6xf32>, tensor<8x1xi32>) -> tensor<8x6xf32>
  %both = stablehlo.multiply %h, %xs.1 : tensor<8x6xf32>
  %sum = stablehlo.reduce(%both init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x6xf32>, tensor<f32>) -> tensor<6xf32>
  return %sum : tensor<6xf32>
}
