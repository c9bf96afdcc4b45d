// Columns of indices that number rows become batching dimensions.
// RUN: alpa-opt %s -alpa-import | FileCheck %s

// As JAX writes x[jnp.arange(4)[:, None], t],
// and z.at[jnp.arange(4)[:, None], t].set(u), whose rows are looked at for negative ones.
// CHECK-LABEL: func.func public @main(
// CHECK-SAME: %[[T:[a-z0-9]+]]: tensor<4x2xi32>
// CHECK: %[[K:.*]] = stablehlo.reshape %[[T]] {{.*}}-> tensor<4x2x1xi32>
// CHECK: "stablehlo.gather"(%{{.*}}, %[[K]])
// CHECK-SAME: collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2
// CHECK: "stablehlo.scatter"(%{{.*}}, %[[K]], %{{.*}})
// CHECK-SAME: indices_are_sorted = false, {{.*}}inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2
// Two batching dimensions, the later one first in the indices, and an index of three that stays.
// CHECK: "stablehlo.gather"
// CHECK-SAME: operand_batching_dims = [0, 1], start_indices_batching_dims = [1, 0], start_index_map = [2], index_vector_dim = 2
// Fewer rows than the dimension has, rows that begin at 1, rows of another dimension of the
// indices, and a number of rows that eight bits do not hold stay indices.
// CHECK: "stablehlo.gather"{{.*}}start_index_map = [0, 1]
// CHECK: "stablehlo.gather"{{.*}}start_index_map = [0, 1]
// CHECK: "stablehlo.gather"{{.*}}start_index_map = [0, 1]
// CHECK: "stablehlo.gather"{{.*}}start_index_map = [0, 1]
// CHECK: stablehlo.while
// CHECK: "stablehlo.gather"{{.*}}start_indices_batching_dims = [0], start_index_map = [1]
func.func public @main(%t: tensor<4x2xi32>, %x: tensor<4x8xf32>, %u: tensor<4x2xf32>, %c: tensor<2x4x8xf32>, %d: tensor<4x2x1xi32>,
                       %long: tensor<5x8xf32>, %many: tensor<200x8xf32>, %at: tensor<200x1xui8>)
    -> (tensor<4x2xf32>, tensor<4x8xf32>, tensor<4x2xf32>, tensor<4x2xf32>, tensor<4x2xf32>, tensor<4x2xf32>, tensor<200xf32>, tensor<4x2xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %rows = stablehlo.iota dim = 0 : tensor<4xi32>
  %line = stablehlo.broadcast_in_dim %rows, dims = [0] : (tensor<4xi32>) -> tensor<4x1xi32>
  %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<i32>) -> tensor<4x1xi32>
  %ends = stablehlo.broadcast_in_dim %four, dims = [] : (tensor<i32>) -> tensor<4x1xi32>
  %is = stablehlo.compare LT, %line, %zeros : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x1xi1>
  %wrapped = stablehlo.add %line, %ends : tensor<4x1xi32>
  %own = stablehlo.select %is, %wrapped, %line : tensor<4x1xi1>, tensor<4x1xi32>
  %mine = stablehlo.broadcast_in_dim %own, dims = [0, 1] : (tensor<4x1xi32>) -> tensor<4x2x1xi32>
  %k = stablehlo.reshape %t : (tensor<4x2xi32>) -> tensor<4x2x1xi32>
  %n = stablehlo.concatenate %mine, %k, dim = 2 : (tensor<4x2x1xi32>, tensor<4x2x1xi32>) -> tensor<4x2x2xi32>
  %0 = "stablehlo.gather"(%x, %n) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1>}> : (tensor<4x8xf32>, tensor<4x2x2xi32>) -> tensor<4x2xf32>
  %1 = "stablehlo.scatter"(%x, %n, %u) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 2>, unique_indices = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    stablehlo.return %b : tensor<f32>
  }) : (tensor<4x8xf32>, tensor<4x2x2xi32>, tensor<4x2xf32>) -> tensor<4x8xf32>

  %both = stablehlo.constant dense<[0, 1]> : tensor<2xi32>
  %layer = stablehlo.broadcast_in_dim %both, dims = [1] : (tensor<2xi32>) -> tensor<4x2x1xi32>
  %three = stablehlo.concatenate %mine, %d, %layer, dim = 2 : (tensor<4x2x1xi32>, tensor<4x2x1xi32>, tensor<4x2x1xi32>) -> tensor<4x2x3xi32>
  %2 = "stablehlo.gather"(%c, %three) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1, 2], start_index_map = [1, 2, 0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 1>}> : (tensor<2x4x8xf32>, tensor<4x2x3xi32>) -> tensor<4x2xf32>

  %3 = "stablehlo.gather"(%long, %n) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1>}> : (tensor<5x8xf32>, tensor<4x2x2xi32>) -> tensor<4x2xf32>
  %from1 = stablehlo.constant dense<[[[1], [1]], [[2], [2]], [[3], [3]], [[4], [4]]]> : tensor<4x2x1xi32>
  %n1 = stablehlo.concatenate %from1, %k, dim = 2 : (tensor<4x2x1xi32>, tensor<4x2x1xi32>) -> tensor<4x2x2xi32>
  %4 = "stablehlo.gather"(%x, %n1) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1>}> : (tensor<4x8xf32>, tensor<4x2x2xi32>) -> tensor<4x2xf32>
  %n2 = stablehlo.concatenate %layer, %k, dim = 2 : (tensor<4x2x1xi32>, tensor<4x2x1xi32>) -> tensor<4x2x2xi32>
  %5 = "stablehlo.gather"(%x, %n2) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1>}> : (tensor<4x8xf32>, tensor<4x2x2xi32>) -> tensor<4x2xf32>
  %short = stablehlo.iota dim = 0 : tensor<200x1xui8>
  %n3 = stablehlo.concatenate %short, %at, dim = 1 : (tensor<200x1xui8>, tensor<200x1xui8>) -> tensor<200x2xui8>
  %6 = "stablehlo.gather"(%many, %n3) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : (tensor<200x8xf32>, tensor<200x2xui8>) -> tensor<200xf32>
  // Rows that a loop hands on as they are.
  %7:3 = stablehlo.while(%i = %zero, %r = %mine, %sum = %0) : tensor<i32>, tensor<4x2x1xi32>, tensor<4x2xf32>
  cond {
    %go = stablehlo.compare LT, %i, %four : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %n4 = stablehlo.concatenate %r, %k, dim = 2 : (tensor<4x2x1xi32>, tensor<4x2x1xi32>) -> tensor<4x2x2xi32>
    %g = "stablehlo.gather"(%x, %n4) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1>}> : (tensor<4x8xf32>, tensor<4x2x2xi32>) -> tensor<4x2xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    %more = stablehlo.add %sum, %g : tensor<4x2xf32>
    stablehlo.return %next, %r, %more : tensor<i32>, tensor<4x2x1xi32>, tensor<4x2xf32>
  }
  return %0, %1, %2, %3, %4, %5, %6, %7#2 : tensor<4x2xf32>, tensor<4x8xf32>, tensor<4x2xf32>, tensor<4x2xf32>, tensor<4x2xf32>, tensor<4x2xf32>, tensor<200xf32>, tensor<4x2xf32>
}
