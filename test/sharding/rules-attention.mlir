// RUN: alpa-opt %s -alpa-test-sharding-rule -verify-diagnostics -o /dev/null

// Calls of cuDNN's fused attention: examples, heads in groups that share their keys, and tokens, of
// which a device has halves from both ends.
func.func @grouped_heads(%q: tensor<4x16x8x2xbf16>, %k: tensor<4x16x4x2xbf16>, %v: tensor<4x16x4x2xbf16>) -> tensor<4x8x16x2xbf16> {
  // expected-remark @below {{([a, d.e, b.c, -], [a, d.e, b, -], [a, d.e, b, -]) -> [a, b.c, d.e, -], [a, b.c, d.e], [-] {a = 4, b = 4, c = 2 sequential, d = 8 ring, e = 2 sequential} heavy}}
  %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\224\22, \228\22, \2216\22, \2216\22]}, \22mask_type\22: \22CAUSAL\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.0, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}"} : (tensor<4x16x8x2xbf16>, tensor<4x16x4x2xbf16>, tensor<4x16x4x2xbf16>) -> (tensor<4x8x16x2xbf16>, tensor<4x8x16xf32>, tensor<0xui8>)
  return %0#0 : tensor<4x8x16x2xbf16>
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
