// RUN: alpa-opt %s -alpa-test-sharding-rule -verify-diagnostics -o /dev/null

// Calls of Transformer Engine. Rows of norms are independent; a mean of squares has no mean.

func.func @layer_norm(%arg0: tensor<8x16x32xf32>, %arg1: tensor<1xf32>, %arg2: tensor<32xf32>, %arg3: tensor<32xf32>) -> (tensor<8x16x32xf32>, tensor<8x16xf32>, tensor<8x16xf32>) {
  // expected-remark @below {{([a, b, -], [-], [-], [-]) -> [a, b, -], [-], [-], [-], [-], [a, b], [a, b], [-] {a = 8, b = 16}}}
  %0:8 = stablehlo.custom_call @te_norm_forward_ffi(%arg0, %arg1, %arg2, %arg3) {mhlo.backend_config = {epsilon = 1.000000e-05 : f64, is_2x = false, norm_type = 0 : i64, scaling_mode = 0 : i64, zero_centered_gamma = false}} : (tensor<8x16x32xf32>, tensor<1xf32>, tensor<32xf32>, tensor<32xf32>) -> (tensor<8x16x32xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<64xui8>)
  return %0#0, %0#5, %0#6 : tensor<8x16x32xf32>, tensor<8x16xf32>, tensor<8x16xf32>
}

func.func @rms_norm(%arg0: tensor<8x16x32xf32>, %arg1: tensor<1xf32>, %arg2: tensor<1xf32>, %arg3: tensor<32xf32>, %arg4: tensor<1xf32>) -> (tensor<8x16x32xf32>, tensor<8x16xf32>) {
  // expected-remark @below {{([a, b, -], [-], [-], [-], [-]) -> [a, b, -], [-], [-], [-], [-], [-], [a, b], [-] {a = 8, b = 16}}}
  %0:8 = stablehlo.custom_call @te_norm_forward_ffi(%arg0, %arg1, %arg2, %arg3, %arg4) {mhlo.backend_config = {epsilon = 1.000000e-05 : f64, is_2x = false, norm_type = 1 : i64, scaling_mode = 0 : i64, zero_centered_gamma = false}} : (tensor<8x16x32xf32>, tensor<1xf32>, tensor<1xf32>, tensor<32xf32>, tensor<1xf32>) -> (tensor<8x16x32xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<8x16xf32>, tensor<64xui8>)
  return %0#0, %0#6 : tensor<8x16x32xf32>, tensor<8x16xf32>
}

func.func @layer_norm_gradient(%arg0: tensor<8x16x32xf32>, %arg1: tensor<8x16x32xf32>, %arg2: tensor<8x16xf32>, %arg3: tensor<8x16xf32>, %arg4: tensor<32xf32>) -> tensor<8x16x32xf32> {
  // expected-remark @below {{([a, b, -], [a, b, -], [a, b], [a, b], [-]) -> [a, b, -], [-], [-], [-] {a = 8, b = 16}}}
  %0:4 = stablehlo.custom_call @te_norm_backward_ffi(%arg0, %arg1, %arg2, %arg3, %arg4) {mhlo.backend_config = {norm_type = 0 : i64, zero_centered_gamma = false}} : (tensor<8x16x32xf32>, tensor<8x16x32xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<32xf32>) -> (tensor<8x16x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<64xui8>)
  return %0#0 : tensor<8x16x32xf32>
}

// Gradients of weights are sums over all rows, largest elements are those of all.

func.func @gradient_of_weight(%arg0: tensor<8x16x32xf32>, %arg1: tensor<8x16x32xf32>, %arg2: tensor<8x16xf32>, %arg3: tensor<8x16xf32>, %arg4: tensor<32xf32>) -> (tensor<8x16x32xf32>, tensor<32xf32>) {
  // expected-remark @below {{([-, -, -], [-, -, -], [-, -], [-, -], [-]) -> [-, -, -], [-], [-], [-] {}}}
  %0:4 = stablehlo.custom_call @te_norm_backward_ffi(%arg0, %arg1, %arg2, %arg3, %arg4) {mhlo.backend_config = {norm_type = 0 : i64, zero_centered_gamma = false}} : (tensor<8x16x32xf32>, tensor<8x16x32xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<32xf32>) -> (tensor<8x16x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<64xui8>)
  return %0#0, %0#1 : tensor<8x16x32xf32>, tensor<32xf32>
}

func.func @largest(%arg0: tensor<8x16x32xf32>, %arg1: tensor<1xf32>, %arg2: tensor<32xf32>, %arg3: tensor<32xf32>) -> (tensor<8x16x32xf32>, tensor<1xf32>) {
  // expected-remark @below {{([-, -, -], [-], [-], [-]) -> [-, -, -], [-], [-], [-], [-], [-, -], [-, -], [-] {}}}
  %0:8 = stablehlo.custom_call @te_norm_forward_ffi(%arg0, %arg1, %arg2, %arg3) {mhlo.backend_config = {epsilon = 1.000000e-05 : f64, is_2x = false, norm_type = 0 : i64, scaling_mode = 0 : i64, zero_centered_gamma = false}} : (tensor<8x16x32xf32>, tensor<1xf32>, tensor<32xf32>, tensor<32xf32>) -> (tensor<8x16x32xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<64xui8>)
  return %0#0, %0#4 : tensor<8x16x32xf32>, tensor<1xf32>
}

// Quantized calls, and other forms, are calls like any others.

func.func @quantized(%arg0: tensor<8x16x32xf32>, %arg1: tensor<1xf32>, %arg2: tensor<32xf32>, %arg3: tensor<32xf32>) -> tensor<8x16x32xf32> {
  // expected-remark @below {{([-, -, -], [-], [-], [-]) -> [-, -, -], [-], [-], [-], [-], [-, -], [-, -], [-] {}}}
  %0:8 = stablehlo.custom_call @te_norm_forward_ffi(%arg0, %arg1, %arg2, %arg3) {mhlo.backend_config = {epsilon = 1.000000e-05 : f64, is_2x = false, norm_type = 0 : i64, scaling_mode = 1 : i64, zero_centered_gamma = false}} : (tensor<8x16x32xf32>, tensor<1xf32>, tensor<32xf32>, tensor<32xf32>) -> (tensor<8x16x32xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<64xui8>)
  return %0#0 : tensor<8x16x32xf32>
}

func.func @other_form(%arg0: tensor<8x16x32xf32>, %arg1: tensor<32xf32>) -> tensor<8x16x32xf32> {
  // expected-remark @below {{([-, -, -], [-]) -> [-, -, -], [-, -] {}}}
  %0:2 = stablehlo.custom_call @te_norm_forward_ffi(%arg0, %arg1) {mhlo.backend_config = {epsilon = 1.000000e-05 : f64, is_2x = false, norm_type = 0 : i64, scaling_mode = 0 : i64, zero_centered_gamma = false}} : (tensor<8x16x32xf32>, tensor<32xf32>) -> (tensor<8x16x32xf32>, tensor<8x16xf32>)
  return %0#0 : tensor<8x16x32xf32>
}

// A part of a call with side effects would have them once more.
func.func @side_effect(%arg0: tensor<8x8x64x16xf32>) -> tensor<8x8x64x16xf32> {
  // expected-remark @below {{([-, -, -, -]) -> [-, -, -, -] {}}}
  %0 = stablehlo.custom_call @te_scaled_softmax_forward_ffi(%arg0) {has_side_effect = true, mhlo.backend_config = {scale_factor = 5.000000e-01 : f64}} : (tensor<8x8x64x16xf32>) -> tensor<8x8x64x16xf32>
  return %0 : tensor<8x8x64x16xf32>
}

// Softmax of [batch, heads, queries, keys]: a part has whole blocks of the kernel's threads, of
// queries, or of heads and examples where queries see those before them.

func.func @softmax(%arg0: tensor<8x8x64x16xf32>) -> tensor<8x8x64x16xf32> {
  // expected-remark @below {{([a, b.c, d.e, -]) -> [a, b.c, d.e, -] {a = 8, b = 2, c = 4 sequential, d = 4, e = 16 sequential}}}
  %0 = stablehlo.custom_call @te_scaled_softmax_forward_ffi(%arg0) {mhlo.backend_config = {scale_factor = 5.000000e-01 : f64}} : (tensor<8x8x64x16xf32>) -> tensor<8x8x64x16xf32>
  return %0 : tensor<8x8x64x16xf32>
}

func.func @masked(%arg0: tensor<8x8x64x16xf32>, %arg1: tensor<8x1x64x16xui8>) -> tensor<8x8x64x16xf32> {
  // expected-remark @below {{([a, b.c, d.e, -], [a, -, d.e, -]) -> [a, b.c, d.e, -] {a = 8, b = 2, c = 4 sequential, d = 4, e = 16 sequential}}}
  %0 = stablehlo.custom_call @te_scaled_masked_softmax_forward_ffi(%arg0, %arg1) {mhlo.backend_config = {scale_factor = 5.000000e-01 : f64}} : (tensor<8x8x64x16xf32>, tensor<8x1x64x16xui8>) -> tensor<8x8x64x16xf32>
  return %0 : tensor<8x8x64x16xf32>
}

func.func @causal(%arg0: tensor<8x8x16x16xf32>) -> tensor<8x8x16x16xf32> {
  // expected-remark @below {{([a.b, c, d, -]) -> [a.b, c, d, -] {a = 4, b = 2 sequential, c = 8 sequential, d = 16 sequential}}}
  %0 = stablehlo.custom_call @te_scaled_upper_triang_masked_softmax_forward_ffi(%arg0) {mhlo.backend_config = {scale_factor = 5.000000e-01 : f64}} : (tensor<8x8x16x16xf32>) -> tensor<8x8x16x16xf32>
  return %0 : tensor<8x8x16x16xf32>
}

func.func @causal_gradient(%arg0: tensor<8x8x16x16xf32>, %arg1: tensor<8x8x16x16xf32>) -> tensor<8x8x16x16xf32> {
  // expected-remark @below {{([a.b, c, d, -], [a.b, c, d, -]) -> [a.b, c, d, -] {a = 4, b = 2 sequential, c = 8 sequential, d = 16 sequential}}}
  %0 = stablehlo.custom_call @te_scaled_upper_triang_masked_softmax_backward_ffi(%arg0, %arg1) {mhlo.backend_config = {scale_factor = 5.000000e-01 : f64}} : (tensor<8x8x16x16xf32>, tensor<8x8x16x16xf32>) -> tensor<8x8x16x16xf32>
  return %0 : tensor<8x8x16x16xf32>
}

// Activations, with two inputs of each element where they are gated.

func.func @activation(%arg0: tensor<8x16x2x32xf32>, %arg1: tensor<1xf32>) -> tensor<8x16x32xf32> {
  // expected-remark @below {{([a, b, -, c], [-]) -> [a, b, c], [-], [-], [-], [-] {a = 8, b = 16, c = 32}}}
  %0:5 = stablehlo.custom_call @te_act_lu_ffi(%arg0, %arg1) {mhlo.backend_config = {act_enum = 1 : i64, is_2x = false, scaling_mode = 0 : i64}} : (tensor<8x16x2x32xf32>, tensor<1xf32>) -> (tensor<8x16x32xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>)
  return %0#0 : tensor<8x16x32xf32>
}

func.func @activation_gradient(%arg0: tensor<8x16x32xf32>, %arg1: tensor<8x16x2x32xf32>, %arg2: tensor<1xf32>) -> tensor<8x16x2x32xf32> {
  // expected-remark @below {{([a, b, c], [a, b, -, c], [-]) -> [a, b, -, c], [-], [-], [-], [-], [-], [-] {a = 8, b = 16, c = 32}}}
  %0:7 = stablehlo.custom_call @te_dact_dbias_quantize_ffi(%arg0, %arg1, %arg2) {mhlo.backend_config = {act_enum = 1 : i64, is_2x = false, is_dbias = false, scaling_mode = 0 : i64}} : (tensor<8x16x32xf32>, tensor<8x16x2x32xf32>, tensor<1xf32>) -> (tensor<8x16x2x32xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>)
  return %0#0 : tensor<8x16x2x32xf32>
}

// Products, and the gradients of their weights. A bias goes along with the columns; behind GELU no
// terms can be summed.
func.func @product(%l: tensor<8x16x32xf32>, %s: tensor<1xf32>, %r: tensor<32x16xf32>, %b: tensor<0xf32>) -> tensor<8x16x16xf32> {
  // expected-remark @below {{([b, c, a], [-], [a, d], [-], [-], [-], [-]) -> [b, c, d], [-] {a = 32 reduction, b = 8, c = 16, d = 16} heavy}}
  %0:2 = stablehlo.custom_call @te_gemm_v2_ffi(%l, %s, %r, %s, %b, %s, %s) {mhlo.backend_config = {config = {collective_op = 0 : i64, lhs_axis_boundary = 2 : i64, lhs_transposed = false, rhs_axis_boundary = 1 : i64, rhs_transposed = false, scaling_mode = 0 : i64, use_split_accumulator = false}}} : (tensor<8x16x32xf32>, tensor<1xf32>, tensor<32x16xf32>, tensor<1xf32>, tensor<0xf32>, tensor<1xf32>, tensor<1xf32>) -> (tensor<8x16x16xf32>, tensor<64xui8>)
  return %0#0 : tensor<8x16x16xf32>
}

func.func @gradient_of_weights(%l: tensor<8x16x32xf32>, %s: tensor<1xf32>, %r: tensor<8x16x16xf32>, %b: tensor<0xf32>) -> tensor<32x16xf32> {
  // expected-remark @below {{([a, b, c], [-], [a, b, d], [-], [-], [-], [-]) -> [c, d], [-] {a = 8 reduction, b = 16 reduction, c = 32, d = 16} heavy}}
  %0:2 = stablehlo.custom_call @te_gemm_v2_ffi(%l, %s, %r, %s, %b, %s, %s) {mhlo.backend_config = {config = {collective_op = 0 : i64, lhs_axis_boundary = 2 : i64, lhs_transposed = true, rhs_axis_boundary = 2 : i64, rhs_transposed = false, scaling_mode = 0 : i64, use_split_accumulator = false}}} : (tensor<8x16x32xf32>, tensor<1xf32>, tensor<8x16x16xf32>, tensor<1xf32>, tensor<0xf32>, tensor<1xf32>, tensor<1xf32>) -> (tensor<32x16xf32>, tensor<64xui8>)
  return %0#0 : tensor<32x16xf32>
}

func.func @biased(%l: tensor<8x16x32xf32>, %s: tensor<1xf32>, %r: tensor<32x16xf32>, %b: tensor<16xf32>) -> tensor<8x16x16xf32> {
  // expected-remark @below {{([b, c, a], [-], [a, d], [-], [d], [-], [-]) -> [b, c, d], [-] {a = 32 reduction, b = 8, c = 16, d = 16} once 4 heavy}}
  %0:2 = stablehlo.custom_call @te_gemm_v2_ffi(%l, %s, %r, %s, %b, %s, %s) {mhlo.backend_config = {config = {collective_op = 0 : i64, lhs_axis_boundary = 2 : i64, lhs_transposed = false, rhs_axis_boundary = 1 : i64, rhs_transposed = false, scaling_mode = 0 : i64, use_split_accumulator = false}}} : (tensor<8x16x32xf32>, tensor<1xf32>, tensor<32x16xf32>, tensor<1xf32>, tensor<16xf32>, tensor<1xf32>, tensor<1xf32>) -> (tensor<8x16x16xf32>, tensor<64xui8>)
  return %0#0 : tensor<8x16x16xf32>
}

func.func @gelu(%l: tensor<8x16x32xf32>, %s: tensor<1xf32>, %r: tensor<32x16xf32>, %b: tensor<16xf32>, %g: tensor<0xf32>) -> (tensor<8x16x16xf32>, tensor<8x16x16xf32>) {
  // expected-remark @below {{([b, c, a], [-], [a, d], [-], [d], [-], [-], [-]) -> [b, c, d], [-], [b, c, d], [-] {a = 32 sequential, b = 8, c = 16, d = 16} heavy}}
  %0:4 = stablehlo.custom_call @te_gemm_ffi(%l, %s, %r, %s, %b, %g, %s, %s) {mhlo.backend_config = {collective_op = 0 : i64, fuse_bias = true, fuse_gelu = true, grad = false, lhs_axis_boundary = 2 : i64, lhs_transposed = false, rhs_axis_boundary = 1 : i64, rhs_transposed = false, scaling_mode = 0 : i64, use_split_accumulator = false}} : (tensor<8x16x32xf32>, tensor<1xf32>, tensor<32x16xf32>, tensor<1xf32>, tensor<16xf32>, tensor<0xf32>, tensor<1xf32>, tensor<1xf32>) -> (tensor<8x16x16xf32>, tensor<0xf32>, tensor<8x16x16xf32>, tensor<64xui8>)
  return %0#0, %0#2 : tensor<8x16x16xf32>, tensor<8x16x16xf32>
}

// The gradient of the bias is a sum of all rows.
func.func @gradient_of_bias(%l: tensor<8x16x32xf32>, %s: tensor<1xf32>, %r: tensor<32x16xf32>, %b: tensor<16xf32>, %g: tensor<0xf32>) -> tensor<8x16x16xf32> {
  // expected-remark @below {{([-, -, -], [-], [-, -], [-], [-], [-], [-], [-]) -> [-, -, -], [-], [-], [-] {}}}
  %0:4 = stablehlo.custom_call @te_gemm_ffi(%l, %s, %r, %s, %b, %g, %s, %s) {mhlo.backend_config = {collective_op = 0 : i64, fuse_bias = true, fuse_gelu = false, grad = true, lhs_axis_boundary = 2 : i64, lhs_transposed = false, rhs_axis_boundary = 1 : i64, rhs_transposed = false, scaling_mode = 0 : i64, use_split_accumulator = false}} : (tensor<8x16x32xf32>, tensor<1xf32>, tensor<32x16xf32>, tensor<1xf32>, tensor<16xf32>, tensor<0xf32>, tensor<1xf32>, tensor<1xf32>) -> (tensor<8x16x16xf32>, tensor<16xf32>, tensor<0xf32>, tensor<64xui8>)
  return %0#0 : tensor<8x16x16xf32>
}

// Of products of 8 bits, parts keep rows of 16 elements.
func.func @product_of_8_bits(%l: tensor<8x32x64xf8E4M3FN>, %s: tensor<1xf32>, %r: tensor<48x64xf8E4M3FN>, %b: tensor<0xf32>) -> tensor<8x32x48xf32> {
  // expected-remark @below {{([c, d.e, a.b], [-], [f.g, a.b], [-], [-], [-], [-]) -> [c, d.e, f.g], [-] {a = 4 reduction, b = 16 sequential, c = 8, d = 2, e = 16 sequential, f = 3, g = 16 sequential} heavy}}
  %0:2 = stablehlo.custom_call @te_gemm_v2_ffi(%l, %s, %r, %s, %b, %s, %s) {mhlo.backend_config = {config = {collective_op = 0 : i64, lhs_axis_boundary = 2 : i64, lhs_transposed = false, rhs_axis_boundary = 1 : i64, rhs_transposed = true, scaling_mode = 1 : i64, use_split_accumulator = false}}} : (tensor<8x32x64xf8E4M3FN>, tensor<1xf32>, tensor<48x64xf8E4M3FN>, tensor<1xf32>, tensor<0xf32>, tensor<1xf32>, tensor<1xf32>) -> (tensor<8x32x48xf32>, tensor<64xui8>)
  return %0#0 : tensor<8x32x48xf32>
}

// With one scale, an element is quantized by itself.
func.func @quantize(%x: tensor<8x16x32xf32>, %s: tensor<1xf32>) -> (tensor<8x16x32xf8E4M3FN>, tensor<32x8x16xf8E4M3FN>) {
  // expected-remark @below {{([a, b, c], [-]) -> [a, b, c], [c, a, b], [-], [-], [-], [c], [-, -] {a = 8, b = 16, c = 32}}}
  %0:7 = stablehlo.custom_call @te_dbias_quantize_ffi(%x, %s) {mhlo.backend_config = {flatten_axis = -1 : i64, is_dbias = true, q_layout = 2 : i64, scaling_mode = 1 : i64}} : (tensor<8x16x32xf32>, tensor<1xf32>) -> (tensor<8x16x32xf8E4M3FN>, tensor<32x8x16xf8E4M3FN>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<32xf32>, tensor<8x32xf32>)
  return %0#0, %0#1 : tensor<8x16x32xf8E4M3FN>, tensor<32x8x16xf8E4M3FN>
}

// The largest of all elements needs them all.
func.func @quantize_with_largest(%x: tensor<8x32xf32>, %s: tensor<1xf32>) -> (tensor<8x32xf8E4M3FN>, tensor<1xf32>) {
  // expected-remark @below {{([-, -], [-]) -> [-, -], [-], [-], [-], [-], [-], [-] {}}}
  %0:7 = stablehlo.custom_call @te_dbias_quantize_ffi(%x, %s) {mhlo.backend_config = {flatten_axis = -1 : i64, is_dbias = false, q_layout = 0 : i64, scaling_mode = 1 : i64}} : (tensor<8x32xf32>, tensor<1xf32>) -> (tensor<8x32xf8E4M3FN>, tensor<1xf8E4M3FN>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>)
  return %0#0, %0#4 : tensor<8x32xf8E4M3FN>, tensor<1xf32>
}

// With scales of blocks parts are whole blocks, 128 elements of rows and of columns.
func.func @quantize_blocks(%x: tensor<4x256x512xbf16>, %s: tensor<1xf32>) -> (tensor<4x256x512xf8E4M3FN>, tensor<4x256x512xf8E4M3FN>, tensor<4x256x16xui8>, tensor<4x8x512xui8>) {
  // expected-remark @below {{([a, b.h.i, d.f.g], [-]) -> [a, b.h.i, d.f.g], [a, b.h.i, d.f.g], [a, b.h.i, d.f], [a, b.h, d.f.g], [-], [-], [-] {a = 4, b = 2, c = 128 sequential, d = 4, e = 128 sequential, f = 4 sequential, g = 32 sequential, h = 4 sequential, i = 32 sequential}}}
  %0:7 = stablehlo.custom_call @te_dbias_quantize_ffi(%x, %s) {mhlo.backend_config = {flatten_axis = 2 : i64, is_dbias = false, q_layout = 2 : i64, scaling_mode = 2 : i64}} : (tensor<4x256x512xbf16>, tensor<1xf32>) -> (tensor<4x256x512xf8E4M3FN>, tensor<4x256x512xf8E4M3FN>, tensor<4x256x16xui8>, tensor<4x8x512xui8>, tensor<1xf32>, tensor<1xbf16>, tensor<1xf32>)
  return %0#0, %0#1, %0#2, %0#3 : tensor<4x256x512xf8E4M3FN>, tensor<4x256x512xf8E4M3FN>, tensor<4x256x16xui8>, tensor<4x8x512xui8>
}

// Padded scales are those of the whole.
func.func @quantize_padded_blocks(%x: tensor<96x128xbf16>, %s: tensor<1xf32>) -> (tensor<96x128xf8E4M3FN>, tensor<128x4xui8>) {
  // expected-remark @below {{([-, -], [-]) -> [-, -], [-], [-, -], [-], [-], [-], [-] {}}}
  %0:7 = stablehlo.custom_call @te_dbias_quantize_ffi(%x, %s) {mhlo.backend_config = {flatten_axis = 1 : i64, is_dbias = false, q_layout = 0 : i64, scaling_mode = 2 : i64}} : (tensor<96x128xbf16>, tensor<1xf32>) -> (tensor<96x128xf8E4M3FN>, tensor<1xf8E4M3FN>, tensor<128x4xui8>, tensor<1xui8>, tensor<1xf32>, tensor<1xbf16>, tensor<1xf32>)
  return %0#0, %0#2 : tensor<96x128xf8E4M3FN>, tensor<128x4xui8>
}

func.func @router(%logits: tensor<64x8xf32>, %bias: tensor<8xf32>) -> (tensor<64x8xf32>, tensor<64x1xui8>, tensor<64x8xf32>) {
  // expected-remark @below {{([a, -], [-]) -> [a, -], [a, -], [a, -] {a = 64}}}
  %0:3 = stablehlo.custom_call @te_fused_topk_with_score_function_forward_ffi(%logits, %bias) {mhlo.backend_config = {topk = 2 : i64}} : (tensor<64x8xf32>, tensor<8xf32>) -> (tensor<64x8xf32>, tensor<64x1xui8>, tensor<64x8xf32>)
  return %0#0, %0#1, %0#2 : tensor<64x8xf32>, tensor<64x1xui8>, tensor<64x8xf32>
}
