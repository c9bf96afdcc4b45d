// RUN: alpa-opt %s -alpa-expand-kernels -split-input-file -verify-diagnostics | FileCheck %s

// Scores, the causal mask, a softmax and the product with values, in float32.

// CHECK-LABEL: func.func @forward
// CHECK:         %[[S:.*]] = stablehlo.dot_general %{{.*}}, %{{.*}}, batching_dims = [0, 1] x [0, 1], contracting_dims = [4] x [3] : (tensor<4x4x2x16x2xf32>, tensor<4x4x16x2xf32>) -> tensor<4x4x2x16x16xf32>
// CHECK:         stablehlo.multiply %[[S]]
// CHECK:         stablehlo.compare GE
// CHECK:         stablehlo.exponential
// CHECK:         stablehlo.dot_general {{.*}} contracting_dims = [4] x [2] : (tensor<4x4x2x16x16xf32>, tensor<4x4x16x2xf32>) -> tensor<4x4x2x16x2xf32>
// CHECK-NOT:     custom_call
func.func @forward(%q: tensor<4x16x8x2xbf16>, %k: tensor<4x16x4x2xbf16>, %v: tensor<4x16x4x2xbf16>) -> tensor<4x8x16x2xbf16> {
  %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\224\22, \228\22, \2216\22, \2216\22]}, \22mask_type\22: \22CAUSAL\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.0, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}"} : (tensor<4x16x8x2xbf16>, tensor<4x16x4x2xbf16>, tensor<4x16x4x2xbf16>) -> (tensor<4x8x16x2xbf16>, tensor<4x8x16xf32>, tensor<0xui8>)
  return %0#0 : tensor<4x8x16x2xbf16>
}

// -----

// Calls that are not known stay.
// CHECK-LABEL: func.func @other
// CHECK:         stablehlo.custom_call @other
func.func @other(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.custom_call @other(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @dropout(%q: tensor<4x16x8x2xbf16>, %k: tensor<4x16x4x2xbf16>, %v: tensor<4x16x4x2xbf16>) -> tensor<4x8x16x2xbf16> {
  // expected-error @below {{fused attention with dropout has no form in plain ops}}
  %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmaxDropout(%q, %k, %v) {api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\224\22, \228\22, \2216\22, \2216\22]}, \22mask_type\22: \22CAUSAL\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.5, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}"} : (tensor<4x16x8x2xbf16>, tensor<4x16x4x2xbf16>, tensor<4x16x4x2xbf16>) -> (tensor<4x8x16x2xbf16>, tensor<4x8x16xf32>, tensor<0xui8>)
  return %0#0 : tensor<4x8x16x2xbf16>
}
