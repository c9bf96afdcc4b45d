// CASE te_layer_norm
func.func @main(%arg0: tensor<8x16x32xf32>, %arg1: tensor<1xf32>, %arg2: tensor<32xf32>, %arg3: tensor<32xf32>) -> (tensor<8x16x32xf32>, tensor<8x16xf32>, tensor<8x16xf32>) {
  %0:8 = stablehlo.custom_call @te_norm_forward_ffi(%arg0, %arg1, %arg2, %arg3) {mhlo.backend_config = {epsilon = 1.000000e-05 : f64, is_2x = false, norm_type = 0 : i64, scaling_mode = 0 : i64, sm_margin = 0 : i64, zero_centered_gamma = false}} : (tensor<8x16x32xf32>, tensor<1xf32>, tensor<32xf32>, tensor<32xf32>) -> (tensor<8x16x32xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<64xui8>)
  return %0#0, %0#5, %0#6 : tensor<8x16x32xf32>, tensor<8x16xf32>, tensor<8x16xf32>
}

// CASE te_layer_norm_gradient
func.func @main(%arg0: tensor<8x16x32xf32>, %arg1: tensor<8x16x32xf32>, %arg2: tensor<8x16xf32>, %arg3: tensor<8x16xf32>, %arg4: tensor<32xf32>) -> tensor<8x16x32xf32> {
  %0:4 = stablehlo.custom_call @te_norm_backward_ffi(%arg0, %arg1, %arg2, %arg3, %arg4) {mhlo.backend_config = {norm_type = 0 : i64, sm_margin = 0 : i64, zero_centered_gamma = false}} : (tensor<8x16x32xf32>, tensor<8x16x32xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<32xf32>) -> (tensor<8x16x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<64xui8>)
  return %0#0 : tensor<8x16x32xf32>
}

// CASE te_rms_norm
func.func @main(%arg0: tensor<8x16x32xf32>, %arg1: tensor<1xf32>, %arg2: tensor<32xf32>, %arg3: tensor<1xf32>) -> (tensor<8x16x32xf32>, tensor<8x16xf32>) {
  %0:8 = stablehlo.custom_call @te_norm_forward_ffi(%arg0, %arg1, %arg2, %arg3) {mhlo.backend_config = {epsilon = 1.000000e-05 : f64, is_2x = false, norm_type = 1 : i64, scaling_mode = 0 : i64, sm_margin = 0 : i64, zero_centered_gamma = true}} : (tensor<8x16x32xf32>, tensor<1xf32>, tensor<32xf32>, tensor<1xf32>) -> (tensor<8x16x32xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<8x16xf32>, tensor<64xui8>)
  return %0#0, %0#6 : tensor<8x16x32xf32>, tensor<8x16xf32>
}

// CASE te_rms_norm_gradient
func.func @main(%arg0: tensor<8x16x32xf32>, %arg1: tensor<8x16x32xf32>, %arg2: tensor<1xf32>, %arg3: tensor<8x16xf32>, %arg4: tensor<32xf32>) -> tensor<8x16x32xf32> {
  %0:4 = stablehlo.custom_call @te_norm_backward_ffi(%arg0, %arg1, %arg2, %arg3, %arg4) {mhlo.backend_config = {norm_type = 1 : i64, sm_margin = 0 : i64, zero_centered_gamma = true}} : (tensor<8x16x32xf32>, tensor<8x16x32xf32>, tensor<1xf32>, tensor<8x16xf32>, tensor<32xf32>) -> (tensor<8x16x32xf32>, tensor<32xf32>, tensor<1xf32>, tensor<64xui8>)
  return %0#0 : tensor<8x16x32xf32>
}

// CASE te_scaled_softmax
func.func @main(%arg0: tensor<8x8x64x16xf32>) -> tensor<8x8x64x16xf32> {
  %0 = stablehlo.custom_call @te_scaled_softmax_forward_ffi(%arg0) {mhlo.backend_config = {scale_factor = 5.000000e-01 : f64}} : (tensor<8x8x64x16xf32>) -> tensor<8x8x64x16xf32>
  return %0 : tensor<8x8x64x16xf32>
}

// CASE te_scaled_masked_softmax_of_each arg1=integers(0,2)
func.func @main(%arg0: tensor<8x8x64x16xf32>, %arg1: tensor<8x1x64x16xui8>) -> tensor<8x8x64x16xf32> {
  %0 = stablehlo.custom_call @te_scaled_masked_softmax_forward_ffi(%arg0, %arg1) {mhlo.backend_config = {scale_factor = 5.000000e-01 : f64}} : (tensor<8x8x64x16xf32>, tensor<8x1x64x16xui8>) -> tensor<8x8x64x16xf32>
  return %0 : tensor<8x8x64x16xf32>
}

// CASE te_scaled_masked_softmax_of_all arg1=integers(0,2)
func.func @main(%arg0: tensor<8x8x64x16xf32>, %arg1: tensor<1x1x64x16xui8>) -> tensor<8x8x64x16xf32> {
  %0 = stablehlo.custom_call @te_scaled_masked_softmax_forward_ffi(%arg0, %arg1) {mhlo.backend_config = {scale_factor = 5.000000e-01 : f64}} : (tensor<8x8x64x16xf32>, tensor<1x1x64x16xui8>) -> tensor<8x8x64x16xf32>
  return %0 : tensor<8x8x64x16xf32>
}

// CASE te_causal_softmax
func.func @main(%arg0: tensor<8x8x16x16xf32>) -> tensor<8x8x16x16xf32> {
  %0 = stablehlo.custom_call @te_scaled_upper_triang_masked_softmax_forward_ffi(%arg0) {mhlo.backend_config = {scale_factor = 5.000000e-01 : f64}} : (tensor<8x8x16x16xf32>) -> tensor<8x8x16x16xf32>
  return %0 : tensor<8x8x16x16xf32>
}

// CASE te_scaled_softmax_gradient
func.func @main(%arg0: tensor<8x8x64x16xf32>, %arg1: tensor<8x8x64x16xf32>) -> tensor<8x8x64x16xf32> {
  %0 = stablehlo.custom_call @te_scaled_softmax_backward_ffi(%arg0, %arg1) {mhlo.backend_config = {scale_factor = 5.000000e-01 : f64}} : (tensor<8x8x64x16xf32>, tensor<8x8x64x16xf32>) -> tensor<8x8x64x16xf32>
  return %0 : tensor<8x8x64x16xf32>
}

// CASE te_scaled_masked_softmax_gradient
func.func @main(%arg0: tensor<8x8x64x16xf32>, %arg1: tensor<8x8x64x16xf32>) -> tensor<8x8x64x16xf32> {
  %0 = stablehlo.custom_call @te_scaled_masked_softmax_backward_ffi(%arg0, %arg1) {mhlo.backend_config = {scale_factor = 5.000000e-01 : f64}} : (tensor<8x8x64x16xf32>, tensor<8x8x64x16xf32>) -> tensor<8x8x64x16xf32>
  return %0 : tensor<8x8x64x16xf32>
}

// CASE te_causal_softmax_gradient
func.func @main(%arg0: tensor<8x8x16x16xf32>, %arg1: tensor<8x8x16x16xf32>) -> tensor<8x8x16x16xf32> {
  %0 = stablehlo.custom_call @te_scaled_upper_triang_masked_softmax_backward_ffi(%arg0, %arg1) {mhlo.backend_config = {scale_factor = 5.000000e-01 : f64}} : (tensor<8x8x16x16xf32>, tensor<8x8x16x16xf32>) -> tensor<8x8x16x16xf32>
  return %0 : tensor<8x8x16x16xf32>
}

// CASE te_product
func.func @main(%arg0: tensor<8x16x32xf32>, %arg1: tensor<1xf32>, %arg2: tensor<32x16xf32>) -> tensor<8x16x16xf32> {
  %none = stablehlo.constant dense<0.0> : tensor<0xf32>
  %one = stablehlo.constant dense<1.0> : tensor<1xf32>
  %0:2 = stablehlo.custom_call @te_gemm_v2_ffi(%arg0, %arg1, %arg2, %arg1, %none, %one, %one) {mhlo.backend_config = {config = {collective_op = 0 : i64, lhs_axis_boundary = 2 : i64, lhs_transposed = false, rhs_axis_boundary = 1 : i64, rhs_transposed = false, scaling_mode = 0 : i64, use_split_accumulator = false}}} : (tensor<8x16x32xf32>, tensor<1xf32>, tensor<32x16xf32>, tensor<1xf32>, tensor<0xf32>, tensor<1xf32>, tensor<1xf32>) -> (tensor<8x16x16xf32>, tensor<64xui8>)
  return %0#0 : tensor<8x16x16xf32>
}

// CASE te_product_with_bias
func.func @main(%arg0: tensor<8x16x32xf32>, %arg1: tensor<1xf32>, %arg2: tensor<32x16xf32>, %arg3: tensor<16xf32>) -> tensor<8x16x16xf32> {
  %one = stablehlo.constant dense<1.0> : tensor<1xf32>
  %0:2 = stablehlo.custom_call @te_gemm_v2_ffi(%arg0, %arg1, %arg2, %arg1, %arg3, %one, %one) {mhlo.backend_config = {config = {collective_op = 0 : i64, lhs_axis_boundary = 2 : i64, lhs_transposed = false, rhs_axis_boundary = 1 : i64, rhs_transposed = false, scaling_mode = 0 : i64, use_split_accumulator = false}}} : (tensor<8x16x32xf32>, tensor<1xf32>, tensor<32x16xf32>, tensor<1xf32>, tensor<16xf32>, tensor<1xf32>, tensor<1xf32>) -> (tensor<8x16x16xf32>, tensor<64xui8>)
  return %0#0 : tensor<8x16x16xf32>
}

// CASE te_product_gradient_of_rows
func.func @main(%arg0: tensor<8x16x16xf32>, %arg1: tensor<1xf32>, %arg2: tensor<32x16xf32>) -> tensor<8x16x32xf32> {
  %none = stablehlo.constant dense<0.0> : tensor<0xf32>
  %one = stablehlo.constant dense<1.0> : tensor<1xf32>
  %0:2 = stablehlo.custom_call @te_gemm_v2_ffi(%arg0, %arg1, %arg2, %arg1, %none, %one, %one) {mhlo.backend_config = {config = {collective_op = 0 : i64, lhs_axis_boundary = 2 : i64, lhs_transposed = false, rhs_axis_boundary = 1 : i64, rhs_transposed = true, scaling_mode = 0 : i64, use_split_accumulator = false}}} : (tensor<8x16x16xf32>, tensor<1xf32>, tensor<32x16xf32>, tensor<1xf32>, tensor<0xf32>, tensor<1xf32>, tensor<1xf32>) -> (tensor<8x16x32xf32>, tensor<64xui8>)
  return %0#0 : tensor<8x16x32xf32>
}

// CASE te_product_gradient_of_weights
func.func @main(%arg0: tensor<8x16x32xf32>, %arg1: tensor<1xf32>, %arg2: tensor<8x16x16xf32>) -> tensor<32x16xf32> {
  %none = stablehlo.constant dense<0.0> : tensor<0xf32>
  %one = stablehlo.constant dense<1.0> : tensor<1xf32>
  %0:2 = stablehlo.custom_call @te_gemm_v2_ffi(%arg0, %arg1, %arg2, %arg1, %none, %one, %one) {mhlo.backend_config = {config = {collective_op = 0 : i64, lhs_axis_boundary = 2 : i64, lhs_transposed = true, rhs_axis_boundary = 2 : i64, rhs_transposed = false, scaling_mode = 0 : i64, use_split_accumulator = false}}} : (tensor<8x16x32xf32>, tensor<1xf32>, tensor<8x16x16xf32>, tensor<1xf32>, tensor<0xf32>, tensor<1xf32>, tensor<1xf32>) -> (tensor<32x16xf32>, tensor<64xui8>)
  return %0#0 : tensor<32x16xf32>
}

// CASE block_scaled_dot
func.func @main(%arg0: tensor<2x16x64xf32>, %arg1: tensor<2x8x64xf32>, %arg2: tensor<2x16x8xf32>, %arg3: tensor<2x8x8xf32>) -> tensor<2x16x8xf32> {
  %0 = stablehlo.custom_call @__op$block_scaled_dot(%arg0, %arg1, %arg2, %arg3) {backend_config = "{\22scaled_dot_backend_config\22: {\22lhs_batch_dimensions\22: [0], \22rhs_batch_dimensions\22: [0], \22dequantize_type\22: \22F32\22}}"} : (tensor<2x16x64xf32>, tensor<2x8x64xf32>, tensor<2x16x8xf32>, tensor<2x8x8xf32>) -> tensor<2x16x8xf32>
  return %0 : tensor<2x16x8xf32>
}

// CASE kernel_of_blocks
func.func @main(%arg0: tensor<4x2x8xf32>, %arg1: tensor<2x8xf32>) -> (tensor<4x2x8xf32>, tensor<4x2xf32>) {
  %0:2 = alpa.map %arg0, %arg1 {dims = [array<i64: 0, 1>, array<i64: 1>], levels = 2 : i64} : (tensor<4x2x8xf32>, tensor<2x8xf32>) -> (tensor<4x2x8xf32>, tensor<4x2xf32>) {
  ^bb0(%block: tensor<8xf32>, %weight: tensor<8xf32>):
    %1 = stablehlo.multiply %block, %weight : tensor<8xf32>
    %2 = stablehlo.dot_general %1, %weight, contracting_dims = [0] x [0] : (tensor<8xf32>, tensor<8xf32>) -> tensor<f32>
    stablehlo.return %1, %2 : tensor<8xf32>, tensor<f32>
  }
  return %0#0, %0#1 : tensor<4x2x8xf32>, tensor<4x2xf32>
}

// CASE te_attention arg3=integers(1,9)
func.func @main(%arg0: tensor<8x8x4x8xf32>, %arg1: tensor<8x8x2x8xf32>, %arg2: tensor<8x8x2x8xf32>, %arg3: tensor<8xi32>) -> (tensor<8x8x4x8xf32>, tensor<8x4x8x1xf32>) {
  %none = stablehlo.constant dense<0.0> : tensor<0xf32>
  %empty = stablehlo.constant dense<0> : tensor<0xi32>
  %seed = stablehlo.constant dense<0> : tensor<2xui32>
  %0:4 = stablehlo.custom_call @te_fused_attn_forward_ffi(%arg0, %arg1, %arg2, %none, %seed, %arg3, %arg3, %empty, %empty, %empty, %empty, %empty, %empty) {mhlo.backend_config = {alpa.own_lengths, bias_type = 0 : i64, dropout_probability = 0.000000e+00 : f64, mask_type = 3 : i64, qkv_layout = 9 : i64, scaling_factor = 5.000000e-01 : f64, window_size_left = -1 : i64, window_size_right = -1 : i64}} : (tensor<8x8x4x8xf32>, tensor<8x8x2x8xf32>, tensor<8x8x2x8xf32>, tensor<0xf32>, tensor<2xui32>, tensor<8xi32>, tensor<8xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>) -> (tensor<8x8x4x8xf32>, tensor<8x4x8x1xf32>, tensor<1x4xui32>, tensor<64xui8>)
  return %0#0, %0#1 : tensor<8x8x4x8xf32>, tensor<8x4x8x1xf32>
}

// CASE te_quantize
func.func @main(%arg0: tensor<8x16x32xf32>) -> (tensor<8x16x32xf32>, tensor<16x32x8xf32>) {
  %scale = stablehlo.constant dense<2.0> : tensor<1xf32>
  %0:7 = stablehlo.custom_call @te_dbias_quantize_ffi(%arg0, %scale) {mhlo.backend_config = {flatten_axis = 1 : i64, is_dbias = false, q_layout = 2 : i64, scaling_mode = 1 : i64}} : (tensor<8x16x32xf32>, tensor<1xf32>) -> (tensor<8x16x32xf8E4M3FN>, tensor<16x32x8xf8E4M3FN>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>)
  %1 = stablehlo.convert %0#0 : (tensor<8x16x32xf8E4M3FN>) -> tensor<8x16x32xf32>
  %2 = stablehlo.convert %0#1 : (tensor<16x32x8xf8E4M3FN>) -> tensor<16x32x8xf32>
  return %1, %2 : tensor<8x16x32xf32>, tensor<16x32x8xf32>
}

// CASE te_product_of_8_bits
func.func @main(%arg0: tensor<8x16x32xf32>, %arg1: tensor<1xf32>, %arg2: tensor<32x32xf32>) -> tensor<8x16x32xf32> {
  %lhs = stablehlo.convert %arg0 : (tensor<8x16x32xf32>) -> tensor<8x16x32xf8E4M3FN>
  %rhs = stablehlo.convert %arg2 : (tensor<32x32xf32>) -> tensor<32x32xf8E4M3FN>
  %none = stablehlo.constant dense<0.0> : tensor<0xf32>
  %one = stablehlo.constant dense<1.0> : tensor<1xf32>
  %0:2 = stablehlo.custom_call @te_gemm_v2_ffi(%lhs, %arg1, %rhs, %arg1, %none, %one, %one) {mhlo.backend_config = {config = {collective_op = 0 : i64, lhs_axis_boundary = 2 : i64, lhs_transposed = false, rhs_axis_boundary = 1 : i64, rhs_transposed = true, scaling_mode = 1 : i64, use_split_accumulator = false}}} : (tensor<8x16x32xf8E4M3FN>, tensor<1xf32>, tensor<32x32xf8E4M3FN>, tensor<1xf32>, tensor<0xf32>, tensor<1xf32>, tensor<1xf32>) -> (tensor<8x16x32xf32>, tensor<64xui8>)
  return %0#0 : tensor<8x16x32xf32>
}
