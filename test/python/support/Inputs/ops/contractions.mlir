// CASE dot rtol=0.0001
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<16x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE dot_int rtol=0.0001
func.func @main(%arg0: tensor<8x16xi32>, %arg1: tensor<16x8xi32>) -> tensor<8x8xi32> {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x16xi32>, tensor<16x8xi32>) -> tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE dot_transposed rtol=0.0001
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<8x16xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [0] x [1] : (tensor<16x8xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE dot_batched rtol=0.0001
func.func @main(%arg0: tensor<8x4x8xf32>, %arg1: tensor<8x8x4xf32>) -> tensor<8x4x4xf32> {
  %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<8x4x8xf32>, tensor<8x8x4xf32>) -> tensor<8x4x4xf32>
  return %0 : tensor<8x4x4xf32>
}

// CASE dot_many rtol=0.0001
func.func @main(%arg0: tensor<2x4x4x2x8xf32>, %arg1: tensor<4x2x8x2x4xf32>) -> tensor<4x2x8x8xf32> {
  %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [1, 0] x [0, 3], contracting_dims = [2, 3] x [4, 1] : (tensor<2x4x4x2x8xf32>, tensor<4x2x8x2x4xf32>) -> tensor<4x2x8x8xf32>
  return %0 : tensor<4x2x8x8xf32>
}

// CASE dot_vectors rtol=0.0001
func.func @main(%arg0: tensor<16xf32>, %arg1: tensor<16xf32>) -> tensor<f32> {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [0] x [0] : (tensor<16xf32>, tensor<16xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// CASE dot_outer rtol=0.0001
func.func @main(%arg0: tensor<8xf32>, %arg1: tensor<8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [] x [] : (tensor<8xf32>, tensor<8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE dot_bf16 rtol=0.0001
func.func @main(%arg0: tensor<8x8xbf16>, %arg1: tensor<8x8xbf16>) -> tensor<8x8xf32> {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<8x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE dot_uneven rtol=0.0001
func.func @main(%arg0: tensor<6x10xf32>, %arg1: tensor<10x3xf32>) -> tensor<6x3xf32> {
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<6x10xf32>, tensor<10x3xf32>) -> tensor<6x3xf32>
  return %0 : tensor<6x3xf32>
}

// CASE conv_same rtol=0.0001
func.func @main(%arg0: tensor<8x6x6x8xf32>, %arg1: tensor<3x3x8x8xf32>) -> tensor<8x6x6x8xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<8x6x6x8xf32>, tensor<3x3x8x8xf32>) -> tensor<8x6x6x8xf32>
  return %0 : tensor<8x6x6x8xf32>
}

// CASE conv_strided rtol=0.0001
func.func @main(%arg0: tensor<8x8x8x4xf32>, %arg1: tensor<3x3x4x8xf32>) -> tensor<8x4x4x8xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2], pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<8x8x8x4xf32>, tensor<3x3x4x8xf32>) -> tensor<8x4x4x8xf32>
  return %0 : tensor<8x4x4x8xf32>
}

// CASE conv_point rtol=0.0001
func.func @main(%arg0: tensor<4x8x8x4xf32>, %arg1: tensor<1x1x4x8xf32>) -> tensor<4x8x8x8xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<4x8x8x4xf32>, tensor<1x1x4x8xf32>) -> tensor<4x8x8x8xf32>
  return %0 : tensor<4x8x8x8xf32>
}

// CASE conv_point_strided rtol=0.0001
func.func @main(%arg0: tensor<4x16x8x4xf32>, %arg1: tensor<1x1x4x8xf32>) -> tensor<4x8x8x8xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<4x16x8x4xf32>, tensor<1x1x4x8xf32>) -> tensor<4x8x8x8xf32>
  return %0 : tensor<4x8x8x8xf32>
}

// CASE conv_patches rtol=0.0001
func.func @main(%arg0: tensor<4x16x16x4xf32>, %arg1: tensor<2x2x4x8xf32>) -> tensor<4x8x8x8xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<4x16x16x4xf32>, tensor<2x2x4x8xf32>) -> tensor<4x8x8x8xf32>
  return %0 : tensor<4x8x8x8xf32>
}

// CASE conv_patches_reversed rtol=0.0001
func.func @main(%arg0: tensor<4x16x8x4xf32>, %arg1: tensor<2x1x4x8xf32>) -> tensor<4x8x8x8xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 1], reverse = [true, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<4x16x8x4xf32>, tensor<2x1x4x8xf32>) -> tensor<4x8x8x8xf32>
  return %0 : tensor<4x8x8x8xf32>
}

// CASE conv_spread rtol=0.0001
func.func @main(%arg0: tensor<4x6x6x8xf32>, %arg1: tensor<3x3x8x8xf32>) -> tensor<4x6x6x8xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[2, 2], [2, 2]], rhs_dilate = [2, 2]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<4x6x6x8xf32>, tensor<3x3x8x8xf32>) -> tensor<4x6x6x8xf32>
  return %0 : tensor<4x6x6x8xf32>
}

// CASE conv_fractional rtol=0.0001
func.func @main(%arg0: tensor<4x4x4x8xf32>, %arg1: tensor<3x3x8x8xf32>) -> tensor<4x8x8x8xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, 2], [1, 2]], lhs_dilate = [2, 2]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<4x4x4x8xf32>, tensor<3x3x8x8xf32>) -> tensor<4x8x8x8xf32>
  return %0 : tensor<4x8x8x8xf32>
}

// CASE conv_moved rtol=0.0001
func.func @main(%arg0: tensor<4x8x8x8xf32>, %arg1: tensor<1x1x8x8xf32>) -> tensor<4x8x8x8xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, -1], [-1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<4x8x8x8xf32>, tensor<1x1x8x8xf32>) -> tensor<4x8x8x8xf32>
  return %0 : tensor<4x8x8x8xf32>
}

// CASE conv_grouped rtol=0.0001
func.func @main(%arg0: tensor<8x4x4x16xf32>, %arg1: tensor<3x3x2x16xf32>) -> tensor<8x4x4x16xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 8 : i64} : (tensor<8x4x4x16xf32>, tensor<3x3x2x16xf32>) -> tensor<8x4x4x16xf32>
  return %0 : tensor<8x4x4x16xf32>
}

// CASE conv_depthwise rtol=0.0001
func.func @main(%arg0: tensor<8x4x4x8xf32>, %arg1: tensor<3x3x1x16xf32>) -> tensor<8x4x4x16xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 8 : i64} : (tensor<8x4x4x8xf32>, tensor<3x3x1x16xf32>) -> tensor<8x4x4x16xf32>
  return %0 : tensor<8x4x4x16xf32>
}

// CASE conv_grouped_uneven rtol=0.0001
func.func @main(%arg0: tensor<8x4x4x6xf32>, %arg1: tensor<3x3x2x6xf32>) -> tensor<8x4x4x6xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 3 : i64} : (tensor<8x4x4x6xf32>, tensor<3x3x2x6xf32>) -> tensor<8x4x4x6xf32>
  return %0 : tensor<8x4x4x6xf32>
}

// CASE conv_batch_grouped rtol=0.0001
func.func @main(%arg0: tensor<16x4x4x8xf32>, %arg1: tensor<3x3x8x16xf32>) -> tensor<2x4x4x16xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 8 : i64, feature_group_count = 1 : i64} : (tensor<16x4x4x8xf32>, tensor<3x3x8x16xf32>) -> tensor<2x4x4x16xf32>
  return %0 : tensor<2x4x4x16xf32>
}

// CASE conv_kernel_gradient rtol=0.0001
func.func @main(%arg0: tensor<8x6x6x4xf32>, %arg1: tensor<8x6x6x8xf32>) -> tensor<3x3x4x8xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<8x6x6x4xf32>, tensor<8x6x6x8xf32>) -> tensor<3x3x4x8xf32>
  return %0 : tensor<3x3x4x8xf32>
}

// CASE conv_channels_first rtol=0.0001
func.func @main(%arg0: tensor<8x8x6x6xf32>, %arg1: tensor<8x8x3x3xf32>) -> tensor<8x8x6x6xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<8x8x6x6xf32>, tensor<8x8x3x3xf32>) -> tensor<8x8x6x6xf32>
  return %0 : tensor<8x8x6x6xf32>
}

// CASE conv_no_window rtol=0.0001
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, f]x[i, o]->[b, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE ragged_rows rtol=0.0001 arg2=groups(16)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<4x8x8xf32>, %arg2: tensor<4xi32>) -> tensor<16x8xf32> {
  %0 = "chlo.ragged_dot"(%arg0, %arg1, %arg2) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<16x8xf32>, tensor<4x8x8xf32>, tensor<4xi32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// CASE ragged_sums rtol=0.0001 arg2=groups(16)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<16x8xf32>, %arg2: tensor<4xi32>) -> tensor<4x8x8xf32> {
  %0 = "chlo.ragged_dot"(%arg0, %arg1, %arg2) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0], lhs_ragged_dimensions = [0]>}> : (tensor<16x8xf32>, tensor<16x8xf32>, tensor<4xi32>) -> tensor<4x8x8xf32>
  return %0 : tensor<4x8x8xf32>
}

// CASE ragged_rows_without_group rtol=0.0001 arg2=groups(12)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<4x8x8xf32>, %arg2: tensor<4xi32>) -> tensor<16x8xf32> {
  %0 = "chlo.ragged_dot"(%arg0, %arg1, %arg2) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<16x8xf32>, tensor<4x8x8xf32>, tensor<4xi32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// CASE ragged_sums_without_group rtol=0.0001 arg2=groups(12)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<16x8xf32>, %arg2: tensor<4xi32>) -> tensor<4x8x8xf32> {
  %0 = "chlo.ragged_dot"(%arg0, %arg1, %arg2) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0], lhs_ragged_dimensions = [0]>}> : (tensor<16x8xf32>, tensor<16x8xf32>, tensor<4xi32>) -> tensor<4x8x8xf32>
  return %0 : tensor<4x8x8xf32>
}

// CASE grouped_rows_masked rtol=0.0001 arg2=integers(-1,5)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<4x8x8xf32>, %arg2: tensor<16xi32>) -> tensor<16x8xf32> {
  %0 = alpa.grouped_dot %arg0, %arg1 of %arg2 {contracting = 1 : i64} : (tensor<16x8xf32>, tensor<4x8x8xf32>, tensor<16xi32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// CASE grouped_sums_masked rtol=0.0001 arg2=integers(-1,5)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<16x8xf32>, %arg2: tensor<16xi32>) -> tensor<4x8x8xf32> {
  %0 = alpa.grouped_sum %arg0, %arg1 of %arg2 : (tensor<16x8xf32>, tensor<16x8xf32>, tensor<16xi32>) -> tensor<4x8x8xf32>
  return %0 : tensor<4x8x8xf32>
}

// CASE grouped_rows rtol=0.0001 arg2=integers(-1,5)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<4x8x8xf32>, %arg2: tensor<16xi32>) -> tensor<16x8xf32> {
  %0 = alpa.grouped_dot %arg0, %arg1 of %arg2 {contracting = 2 : i64} : (tensor<16x8xf32>, tensor<4x8x8xf32>, tensor<16xi32>) -> tensor<16x8xf32>
  return %0 : tensor<16x8xf32>
}

// CASE grouped_sums rtol=0.0001 arg2=integers(-1,5)
func.func @main(%arg0: tensor<16x8xf32>, %arg1: tensor<16x8xf32>, %arg2: tensor<16xi32>) -> tensor<4x8x8xf32> {
  %0 = alpa.grouped_sum %arg0, %arg1 of %arg2 : (tensor<16x8xf32>, tensor<16x8xf32>, tensor<16xi32>) -> tensor<4x8x8xf32>
  return %0 : tensor<4x8x8xf32>
}

// CASE grouped_sums_of_batches rtol=0.0001 arg2=integers(-1,5)
func.func @main(%arg0: tensor<4x8x8xf32>, %arg1: tensor<4x8x8xf32>, %arg2: tensor<4x8xi32>) -> tensor<4x4x8x8xf32> {
  %0 = alpa.grouped_sum %arg0, %arg1 of %arg2 : (tensor<4x8x8xf32>, tensor<4x8x8xf32>, tensor<4x8xi32>) -> tensor<4x4x8x8xf32>
  return %0 : tensor<4x4x8x8xf32>
}

// CASE grouped_rows_in_a_loop rtol=0.0001 arg2=integers(-1,9)
func.func @main(%arg0: tensor<2048x8xf32>, %arg1: tensor<8x8x8xf32>, %arg2: tensor<2048xi32>) -> tensor<2048x8xf32> {
  %0 = alpa.grouped_dot %arg0, %arg1 of %arg2 {contracting = 2 : i64} : (tensor<2048x8xf32>, tensor<8x8x8xf32>, tensor<2048xi32>) -> tensor<2048x8xf32>
  return %0 : tensor<2048x8xf32>
}

// CASE grouped_sums_in_a_loop rtol=0.0001 arg2=integers(-1,9)
func.func @main(%arg0: tensor<8192x8xf32>, %arg1: tensor<8192x8xf32>, %arg2: tensor<8192xi32>) -> tensor<8x8x8xf32> {
  %0 = alpa.grouped_sum %arg0, %arg1 of %arg2 : (tensor<8192x8xf32>, tensor<8192x8xf32>, tensor<8192xi32>) -> tensor<8x8x8xf32>
  return %0 : tensor<8x8x8xf32>
}
