// CASE gather_rows arg1=between(-3,19)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<8x4x1xi32>) -> tensor<8x4x8xf32> {
  %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<16x8xf32>, tensor<8x4x1xi32>) -> tensor<8x4x8xf32>
  return %0 : tensor<8x4x8xf32>
}

// CASE gather_rows_unsigned arg1=between(0,19)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<8x4x1xui32>) -> tensor<8x4x8xf32> {
  %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<16x8xf32>, tensor<8x4x1xui32>) -> tensor<8x4x8xf32>
  return %0 : tensor<8x4x8xf32>
}

// CASE gather_rows_narrow arg1=between(-3,19)
func.func @main(%arg0: tensor<16x8xi32>, %arg1: tensor<8x4x1xi8>) -> tensor<8x4x8xi32> {
  %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<16x8xi32>, tensor<8x4x1xi8>) -> tensor<8x4x8xi32>
  return %0 : tensor<8x4x8xi32>
}

// CASE gather_rows_bool arg1=between(-3,19)
func.func @main(%arg0: tensor<16x8xi1>, %arg1: tensor<8x4x1xi32>) -> tensor<8x4x8xi1> {
  %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<16x8xi1>, tensor<8x4x1xi32>) -> tensor<8x4x8xi1>
  return %0 : tensor<8x4x8xi1>
}

// CASE gather_along arg1=between(-3,19)
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<8x4x1xi32>) -> tensor<8x4xf32> {
  %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<8x16xf32>, tensor<8x4x1xi32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// CASE gather_pairs arg1=between(-3,17)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<2x8xi32>) -> tensor<8xf32> {
  %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [1, 0]>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<16x8xf32>, tensor<2x8xi32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// CASE gather_slabs arg1=between(-3,15)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<8x4x1xi32>) -> tensor<4x8x8x4xf32> {
  %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [0, 1], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 4, 8>}> : (tensor<16x8xf32>, tensor<8x4x1xi32>) -> tensor<4x8x8x4xf32>
  return %0 : tensor<4x8x8x4xf32>
}

// CASE gather_first arg1=between(-3,15)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<8x4x1xi32>) -> tensor<8x4x16xf32> {
  %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [1], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 16, 1>}> : (tensor<16x8xf32>, tensor<8x4x1xi32>) -> tensor<8x4x16xf32>
  return %0 : tensor<8x4x16xf32>
}

// CASE gather_scalar_index arg1=between(-3,19)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<1xi32>) -> tensor<8xf32> {
  %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [0], collapsed_slice_dims = [0], start_index_map = [0]>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<16x8xf32>, tensor<1xi32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// CASE gather_implicit arg1=between(-3,19)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<8xi32>) -> tensor<8x8xf32> {
  %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<16x8xf32>, tensor<8xi32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE scatter_add_rows rtol=0.0001 arg1=between(-3,19)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<8x4x1xi32>, %arg2: tensor<8x4x8xf32>) -> tensor<16x8xf32> {
  %0 = "stablehlo.scatter"(%arg0, %arg1, %arg2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    %1 = stablehlo.add %arg3, %arg4 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<16x8xf32>, tensor<8x4x1xi32>, tensor<8x4x8xf32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// CASE scatter_maximum_rows rtol=0.0001 arg1=between(-3,19)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<8x4x1xi32>, %arg2: tensor<8x4x8xf32>) -> tensor<16x8xf32> {
  %0 = "stablehlo.scatter"(%arg0, %arg1, %arg2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    %1 = stablehlo.maximum %arg3, %arg4 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<16x8xf32>, tensor<8x4x1xi32>, tensor<8x4x8xf32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// CASE scatter_minimum_rows rtol=0.0001 arg1=between(-3,19)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<8x4x1xi32>, %arg2: tensor<8x4x8xf32>) -> tensor<16x8xf32> {
  %0 = "stablehlo.scatter"(%arg0, %arg1, %arg2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    %1 = stablehlo.minimum %arg3, %arg4 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<16x8xf32>, tensor<8x4x1xi32>, tensor<8x4x8xf32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// CASE scatter_multiply_rows rtol=0.0001 arg1=between(-3,19)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<8x4x1xi32>, %arg2: tensor<8x4x8xf32>) -> tensor<16x8xf32> {
  %0 = "stablehlo.scatter"(%arg0, %arg1, %arg2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    %1 = stablehlo.multiply %arg3, %arg4 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<16x8xf32>, tensor<8x4x1xi32>, tensor<8x4x8xf32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// CASE scatter_add_int rtol=0.0001 arg1=between(-3,19)
func.func @main(%arg0: tensor<16x8xi32>, %arg1: tensor<8x4x1xi32>, %arg2: tensor<8x4x8xi32>) -> tensor<16x8xi32> {
  %0 = "stablehlo.scatter"(%arg0, %arg1, %arg2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%arg3: tensor<i32>, %arg4: tensor<i32>):
    %1 = stablehlo.add %arg3, %arg4 : tensor<i32>
    stablehlo.return %1 : tensor<i32>
  }) : (tensor<16x8xi32>, tensor<8x4x1xi32>, tensor<8x4x8xi32>) -> tensor<16x8xi32>
  return %0 : tensor<16x8xi32>
}

// CASE scatter_or_rows rtol=0.0001 arg1=between(-3,19)
func.func @main(%arg0: tensor<16x8xi1>, %arg1: tensor<8x4x1xi32>, %arg2: tensor<8x4x8xi1>) -> tensor<16x8xi1> {
  %0 = "stablehlo.scatter"(%arg0, %arg1, %arg2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%arg3: tensor<i1>, %arg4: tensor<i1>):
    %1 = stablehlo.or %arg3, %arg4 : tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) : (tensor<16x8xi1>, tensor<8x4x1xi32>, tensor<8x4x8xi1>) -> tensor<16x8xi1>
  return %0 : tensor<16x8xi1>
}

// CASE scatter_set_rows rtol=0.0001 arg1=permuted(32)
func.func @main(%arg0: tensor<32x8xf32>, %arg1: tensor<8x4x1xi32>, %arg2: tensor<8x4x8xf32>) -> tensor<32x8xf32> {
  %0 = "stablehlo.scatter"(%arg0, %arg1, %arg2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = true}> ({
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    stablehlo.return %arg4 : tensor<f32>
  }) : (tensor<32x8xf32>, tensor<8x4x1xi32>, tensor<8x4x8xf32>) -> tensor<32x8xf32>
  return %0 : tensor<32x8xf32>
}

// CASE scatter_along rtol=0.0001 arg1=between(-3,19)
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<8x4x1xi32>, %arg2: tensor<8x4xf32>) -> tensor<8x16xf32> {
  %0 = "stablehlo.scatter"(%arg0, %arg1, %arg2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    %1 = stablehlo.add %arg3, %arg4 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<8x4x1xi32>, tensor<8x4xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CASE scatter_pairs rtol=0.0001 arg1=between(-3,17)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<8x2xi32>, %arg2: tensor<8xf32>) -> tensor<16x8xf32> {
  %0 = "stablehlo.scatter"(%arg0, %arg1, %arg2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [1, 0], index_vector_dim = 1>, unique_indices = false}> ({
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    %1 = stablehlo.add %arg3, %arg4 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<16x8xf32>, tensor<8x2xi32>, tensor<8xf32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// CASE scatter_slabs rtol=0.0001 arg1=between(-3,15)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<8x4x1xi32>, %arg2: tensor<8x4x4x8xf32>) -> tensor<16x8xf32> {
  %0 = "stablehlo.scatter"(%arg0, %arg1, %arg2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2, 3], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    %1 = stablehlo.add %arg3, %arg4 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<16x8xf32>, tensor<8x4x1xi32>, tensor<8x4x4x8xf32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// CASE scatter_first rtol=0.0001 arg1=between(-3,2)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<8x4x1xi32>, %arg2: tensor<8x4x16xf32>) -> tensor<16x8xf32> {
  %0 = "stablehlo.scatter"(%arg0, %arg1, %arg2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [1], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    %1 = stablehlo.add %arg3, %arg4 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<16x8xf32>, tensor<8x4x1xi32>, tensor<8x4x16xf32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// CASE scatter_part_of_window rtol=0.0001 arg1=between(-3,12)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<8x4x2xi32>, %arg2: tensor<8x4x4xf32>) -> tensor<16x8xf32> {
  %0 = "stablehlo.scatter"(%arg0, %arg1, %arg2) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    %1 = stablehlo.add %arg3, %arg4 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<16x8xf32>, tensor<8x4x2xi32>, tensor<8x4x4xf32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}
