// A scatter that adds one slice for each place of its batching dimensions to zeros becomes a
// choice by a comparison of indices.
// RUN: alpa-opt %s -alpa-import | FileCheck %s

// As JAX writes the gradient of jnp.take_along_axis(x, labels[:, None], -1).
// CHECK-LABEL: func.func public @main(
// CHECK-SAME: %[[LABELS:[a-z0-9]+]]: tensor<4x1x1xi32>{{.*}}, %[[G:[a-z0-9]+]]: tensor<4x1xf32>
// CHECK: %[[INDEX:.*]] = stablehlo.reshape %[[LABELS]] {{.*}}: (tensor<4x1x1xi32>) -> tensor<4xi32>
// CHECK: %[[WANTED:.*]] = stablehlo.broadcast_in_dim %[[INDEX]], dims = [0] {{.*}}-> tensor<4x8xi32>
// CHECK: %[[PLACES:.*]] = stablehlo.iota dim = 1 {{.*}}: tensor<4x8xi32>
// CHECK: %[[IS:.*]] = stablehlo.compare EQ, %[[WANTED]], %[[PLACES]]
// CHECK: %[[SLICE:.*]] = stablehlo.reshape %[[G]] {{.*}}: (tensor<4x1xf32>) -> tensor<4xf32>
// CHECK: %[[ADDED:.*]] = stablehlo.broadcast_in_dim %[[SLICE]], dims = [0] {{.*}}-> tensor<4x8xf32>
// CHECK: %[[ZEROS:.*]] = stablehlo.broadcast_in_dim %{{.*}}, dims = [] {{.*}}: (tensor<f32>) -> tensor<4x8xf32>
// CHECK: stablehlo.select %[[IS]], %[[ADDED]], %[[ZEROS]]
// One row of a matrix, of two indices one after the other; the window is a dimension of its own.
// CHECK: stablehlo.slice %{{.*}} [0:1]
// CHECK: stablehlo.slice %{{.*}} [1:2]
// CHECK: stablehlo.and
// CHECK: stablehlo.select {{.*}}tensor<4x8x3xf32>
// Several indices for one place, an extreme, other than zeros, indices that may be too few, and
// a window that is smaller than the dimension stay scatters.
// CHECK-COUNT-5: "stablehlo.scatter"
// CHECK-NOT: "stablehlo.scatter"
func.func public @main(%labels: tensor<4x1x1xi32>, %g: tensor<4x1xf32>, %pair: tensor<2xi32>, %row: tensor<3xf32>,
                       %many: tensor<4x2x1xi32>, %gs: tensor<4x2xf32>, %x: tensor<4x8xf32>, %few: tensor<1x1xi8>,
                       %one: tensor<1xf32>, %part: tensor<1x5xf32>, %at: tensor<1x1xi32>)
    -> (tensor<4x8xf32>, tensor<4x8x3xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<200xf32>, tensor<4x8xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
  %cube = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<4x8x3xf32>
  %line = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<200xf32>
  %0 = "stablehlo.scatter"(%zeros, %labels, %g) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<4x8xf32>, tensor<4x1x1xi32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %1 = "stablehlo.scatter"(%cube, %pair, %row) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 0>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<4x8x3xf32>, tensor<2xi32>, tensor<3xf32>) -> tensor<4x8x3xf32>
  %2 = "stablehlo.scatter"(%zeros, %many, %gs) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<4x8xf32>, tensor<4x2x1xi32>, tensor<4x2xf32>) -> tensor<4x8xf32>
  %3 = "stablehlo.scatter"(%zeros, %labels, %g) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<4x8xf32>, tensor<4x1x1xi32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %4 = "stablehlo.scatter"(%x, %labels, %g) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<4x8xf32>, tensor<4x1x1xi32>, tensor<4x1xf32>) -> tensor<4x8xf32>
  %5 = "stablehlo.scatter"(%line, %few, %one) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<200xf32>, tensor<1x1xi8>, tensor<1xf32>) -> tensor<200xf32>
  %6 = "stablehlo.scatter"(%zeros, %at, %part) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<4x8xf32>, tensor<1x1xi32>, tensor<1x5xf32>) -> tensor<4x8xf32>
  return %0, %1, %2, %3, %4, %5, %6 : tensor<4x8xf32>, tensor<4x8x3xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<200xf32>, tensor<4x8xf32>
}
