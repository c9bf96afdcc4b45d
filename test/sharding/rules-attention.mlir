// RUN: alpa-opt %s -alpa-test-sharding-rule -verify-diagnostics -o /dev/null

// Calls of cuDNN's fused attention: examples, heads in groups that share their keys, and tokens, of
// which a device has halves from both ends.
func.func @grouped_heads(%q: tensor<4x16x8x2xbf16>, %k: tensor<4x16x4x2xbf16>, %v: tensor<4x16x4x2xbf16>) -> tensor<4x8x16x2xbf16> {
  // expected-remark @below {{([a, d.e, b.c, -], [a, d.e, b, -], [a, d.e, b, -]) -> [a, b.c, d.e, -], [a, b.c, d.e], [-] {a = 4, b = 4, c = 2 sequential, d = 8 ring, e = 2 sequential} heavy}}
  %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\224\22, \228\22, \2216\22, \2216\22]}, \22mask_type\22: \22CAUSAL\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.0, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}"} : (tensor<4x16x8x2xbf16>, tensor<4x16x4x2xbf16>, tensor<4x16x4x2xbf16>) -> (tensor<4x8x16x2xbf16>, tensor<4x8x16xf32>, tensor<0xui8>)
  return %0#0 : tensor<4x8x16x2xbf16>
}

// A bias is split by its queries, lengths by examples.
func.func @bias_and_lengths(%q: tensor<4x16x8x2xbf16>, %k: tensor<4x16x4x2xbf16>, %v: tensor<4x16x4x2xbf16>, %bias: tensor<1x8x16x16xbf16>, %lengths: tensor<4xi32>) -> tensor<4x8x16x2xbf16> {
  // expected-remark @below {{([a, d, b.c, -], [a, d, b, -], [a, d, b, -], [-, b.c, d, -], [a], [a]) -> [a, b.c, d, -], [a, b.c, d], [-] {a = 4, b = 4, c = 2 sequential, d = 16 ring} heavy}}
  %0:3 = stablehlo.custom_call @__cudnn$fmhaScaleBiasSoftmax(%q, %k, %v, %bias, %lengths, %lengths) {api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\224\22, \228\22, \2216\22, \2216\22]}, \22mask_type\22: \22PADDING\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.0, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}"} : (tensor<4x16x8x2xbf16>, tensor<4x16x4x2xbf16>, tensor<4x16x4x2xbf16>, tensor<1x8x16x16xbf16>, tensor<4xi32>, tensor<4xi32>) -> (tensor<4x8x16x2xbf16>, tensor<4x8x16xf32>, tensor<0xui8>)
  return %0#0 : tensor<4x8x16x2xbf16>
}

// Packed sequences of each example.
func.func @own_sequences(%q: tensor<2x16x2x8xbf16>, %k: tensor<2x16x1x8xbf16>, %lengths: tensor<2x3xi32>, %offsets: tensor<2x4xi32>) -> (tensor<2x2x16x8xbf16>, tensor<2x2x16xf32>) {
  // expected-remark @below {{([a, d.e, c, -], [a, d.e, b, -], [a, d.e, b, -], [a, -], [a, -], [a, -], [a, -]) -> [a, c, d.e, -], [a, c, d.e], [-] {a = 2, b = 1, c = 2 sequential, d = 8 ring, e = 2 sequential} heavy}}
  %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %k, %lengths, %lengths, %offsets, %offsets) {api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\222\22, \222\22, \2216\22, \2216\22]}, \22mask_type\22: \22PADDING_CAUSAL\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.0, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 3, \22is_paged_attention\22: false, \22own_sequences\22: true}}"} : (tensor<2x16x2x8xbf16>, tensor<2x16x1x8xbf16>, tensor<2x16x1x8xbf16>, tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x4xi32>, tensor<2x4xi32>) -> (tensor<2x2x16x8xbf16>, tensor<2x2x16xf32>, tensor<0xui8>)
  return %0#0, %0#1 : tensor<2x2x16x8xbf16>, tensor<2x2x16xf32>
}

// Masks of dropout are drawn by place: the kernel stays whole.
func.func @dropout(%q: tensor<4x16x8x2xbf16>, %k: tensor<4x16x4x2xbf16>, %v: tensor<4x16x4x2xbf16>) -> tensor<4x8x16x2xbf16> {
  // expected-remark @below {{([a, -, b.c, -], [a, -, b, -], [a, -, b, -]) -> [a, b.c, -, -], [a, b.c, -], [-] {a = 4 sequential, b = 4 sequential, c = 2 sequential} heavy}}
  %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmaxDropout(%q, %k, %v) {api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\224\22, \228\22, \2216\22, \2216\22]}, \22mask_type\22: \22CAUSAL\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.5, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}"} : (tensor<4x16x8x2xbf16>, tensor<4x16x4x2xbf16>, tensor<4x16x4x2xbf16>) -> (tensor<4x8x16x2xbf16>, tensor<4x8x16xf32>, tensor<0xui8>)
  return %0#0 : tensor<4x8x16x2xbf16>
}

// Configurations that are not understood are those of any call.
func.func @unknown(%q: tensor<4x16x8x2xbf16>, %k: tensor<4x16x4x2xbf16>, %v: tensor<4x16x4x2xbf16>) -> tensor<4x8x16x2xbf16> {
  // expected-remark @below {{([-, -, -, -], [-, -, -, -], [-, -, -, -]) -> [-, -, -, -], [-, -, -], [-] {}}}
  %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {api_version = 2 : i32, backend_config = "{"} : (tensor<4x16x8x2xbf16>, tensor<4x16x4x2xbf16>, tensor<4x16x4x2xbf16>) -> (tensor<4x8x16x2xbf16>, tensor<4x8x16xf32>, tensor<0xui8>)
  // expected-remark @below {{([-, -, -, -], [-, -, -, -], [-, -, -, -]) -> [-, -, -, -], [-, -, -], [-] {}}}
  %1:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\224\22, \228\22, \2216\22, \2216\22]}, \22mask_type\22: \22ALIBI\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.0, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}"} : (tensor<4x16x8x2xbf16>, tensor<4x16x4x2xbf16>, tensor<4x16x4x2xbf16>) -> (tensor<4x8x16x2xbf16>, tensor<4x8x16xf32>, tensor<0xui8>)
  // expected-remark @below {{([-, -, -, -]) -> [-, -] {}}}
  %2 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q) : (tensor<4x16x8x2xbf16>) -> tensor<4x16xbf16>
  return %0#0 : tensor<4x8x16x2xbf16>
}

// Transformer Engine: keys and values in one tensor, lengths of each example.
func.func @te_forward(%q: tensor<3x8x4x8xf32>, %kv: tensor<3x8x2x2x8xf32>, %lengths: tensor<3xi32>, %seed: tensor<2xui32>, %none: tensor<0xf32>, %empty: tensor<0xi32>) -> (tensor<3x8x4x8xf32>, tensor<3x4x8x1xf32>) {
  // expected-remark @below {{([a, -, b.c, -], [a, -, -, b, -], [-], [-], [-], [a], [a], [-], [-], [-], [-], [-], [-]) -> [a, -, b.c, -], [a, b.c, -, -], [-, -], [-] {a = 3, b = 2, c = 2 sequential} heavy}}
  %0:4 = stablehlo.custom_call @te_fused_attn_forward_ffi(%q, %kv, %none, %none, %seed, %lengths, %lengths, %empty, %empty, %empty, %empty, %empty, %empty) {mhlo.backend_config = {alpa.own_lengths, bias_type = 0 : i64, dropout_probability = 0.0 : f64, mask_type = 1 : i64, qkv_layout = 7 : i64, scaling_factor = 1.0 : f64, window_size_left = -1 : i64, window_size_right = -1 : i64}} : (tensor<3x8x4x8xf32>, tensor<3x8x2x2x8xf32>, tensor<0xf32>, tensor<0xf32>, tensor<2xui32>, tensor<3xi32>, tensor<3xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>) -> (tensor<3x8x4x8xf32>, tensor<3x4x8x1xf32>, tensor<1x4xui32>, tensor<64xui8>)
  return %0#0, %0#1 : tensor<3x8x4x8xf32>, tensor<3x4x8x1xf32>
}

// Sums of lengths are those of all examples; heads are independent.
func.func @te_forward_of_sums(%qkv: tensor<3x8x3x4x8xf32>, %lengths: tensor<4xi32>, %seed: tensor<2xui32>, %none: tensor<0xf32>, %empty: tensor<0xi32>) -> (tensor<3x8x4x8xf32>, tensor<3x4x8x1xf32>) {
  // expected-remark @below {{([a, -, -, b, -], [-], [-], [-], [-], [-], [-], [-], [-], [-], [-], [-], [-]) -> [a, -, b, -], [a, b, -, -], [-, -], [-] {a = 3 sequential, b = 4, c = 1 sequential} heavy}}
  %0:4 = stablehlo.custom_call @te_fused_attn_forward_ffi(%qkv, %none, %none, %none, %seed, %lengths, %lengths, %empty, %empty, %empty, %empty, %empty, %empty) {mhlo.backend_config = {bias_type = 0 : i64, dropout_probability = 0.0 : f64, mask_type = 1 : i64, qkv_layout = 5 : i64, scaling_factor = 1.0 : f64, window_size_left = -1 : i64, window_size_right = -1 : i64}} : (tensor<3x8x3x4x8xf32>, tensor<0xf32>, tensor<0xf32>, tensor<0xf32>, tensor<2xui32>, tensor<4xi32>, tensor<4xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>) -> (tensor<3x8x4x8xf32>, tensor<3x4x8x1xf32>, tensor<1x4xui32>, tensor<64xui8>)
  return %0#0, %0#1 : tensor<3x8x4x8xf32>, tensor<3x4x8x1xf32>
}

// The gradient of a bias is a sum over the examples and heads that share it, which split the others.
func.func @bias_gradient(%q: tensor<4x16x8x2xbf16>, %s: tensor<4x8x16xf32>, %d: tensor<4x16x8x2xbf16>, %all: tensor<1x1x16x16xbf16>, %heads: tensor<1x8x16x16xbf16>) -> (tensor<1x1x16x16xbf16>, tensor<1x8x16x16xbf16>) {
  // expected-remark @below {{([a, d, b, -], [a, d, b, -], [a, d, b, -], [a, b, d], [a, d, b, -], [-, -, d, -], [a, d, b, -]) -> [a, b, d, -], [a, b, d, -], [a, b, d, -], [-, -, d, -], [-] {a = 4 reduction, b = 8 reduction, c = 1 sequential, d = 16 ring} heavy}}
  %0:5 = stablehlo.custom_call @__cudnn$fmhaScaleBiasSoftmaxBackward(%q, %q, %q, %s, %d, %all, %d) {api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\224\22, \228\22, \2216\22, \2216\22]}, \22mask_type\22: \22NO_MASK\22, \22bmm2_grad_gemm2_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.0, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}"} : (tensor<4x16x8x2xbf16>, tensor<4x16x8x2xbf16>, tensor<4x16x8x2xbf16>, tensor<4x8x16xf32>, tensor<4x16x8x2xbf16>, tensor<1x1x16x16xbf16>, tensor<4x16x8x2xbf16>) -> (tensor<4x8x16x2xbf16>, tensor<4x8x16x2xbf16>, tensor<4x8x16x2xbf16>, tensor<1x1x16x16xbf16>, tensor<0xui8>)
  // expected-remark @below {{([a, d, b, -], [a, d, b, -], [a, d, b, -], [a, b, d], [a, d, b, -], [-, b, d, -], [a, d, b, -]) -> [a, b, d, -], [a, b, d, -], [a, b, d, -], [-, b, d, -], [-] {a = 4 reduction, b = 8, c = 1 sequential, d = 16 ring} heavy}}
  %1:5 = stablehlo.custom_call @__cudnn$fmhaScaleBiasSoftmaxBackward(%q, %q, %q, %s, %d, %heads, %d) {api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\224\22, \228\22, \2216\22, \2216\22]}, \22mask_type\22: \22NO_MASK\22, \22bmm2_grad_gemm2_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.0, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}"} : (tensor<4x16x8x2xbf16>, tensor<4x16x8x2xbf16>, tensor<4x16x8x2xbf16>, tensor<4x8x16xf32>, tensor<4x16x8x2xbf16>, tensor<1x8x16x16xbf16>, tensor<4x16x8x2xbf16>) -> (tensor<4x8x16x2xbf16>, tensor<4x8x16x2xbf16>, tensor<4x8x16x2xbf16>, tensor<1x8x16x16xbf16>, tensor<0xui8>)
  // Of a gradient that nobody reads, no sum is made.
  // expected-remark @below {{([a, d, b, -], [a, d, b, -], [a, d, b, -], [a, b, d], [a, d, b, -], [-, -, d, -], [a, d, b, -]) -> [a, b, d, -], [a, b, d, -], [a, b, d, -], [-, -, d, -], [-] {a = 4, b = 8, c = 1 sequential, d = 16 ring} heavy}}
  %2:5 = stablehlo.custom_call @__cudnn$fmhaScaleBiasSoftmaxBackward(%q, %q, %q, %s, %d, %all, %d) {api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\224\22, \228\22, \2216\22, \2216\22]}, \22mask_type\22: \22NO_MASK\22, \22bmm2_grad_gemm2_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.0, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}"} : (tensor<4x16x8x2xbf16>, tensor<4x16x8x2xbf16>, tensor<4x16x8x2xbf16>, tensor<4x8x16xf32>, tensor<4x16x8x2xbf16>, tensor<1x1x16x16xbf16>, tensor<4x16x8x2xbf16>) -> (tensor<4x8x16x2xbf16>, tensor<4x8x16x2xbf16>, tensor<4x8x16x2xbf16>, tensor<1x1x16x16xbf16>, tensor<0xui8>)
  return %0#3, %1#3 : tensor<1x1x16x16xbf16>, tensor<1x8x16x16xbf16>
}
