// RUN: alpa-opt %s -split-input-file -alpa-import | FileCheck %s

// Attention reads differences of sums over the examples before: it gets the lengths, and nothing
// that it does not read.
// CHECK-LABEL: func.func @main
// CHECK-NOT:   stablehlo.reduce_window
// CHECK:       stablehlo.custom_call @te_fused_attn_forward_ffi(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %arg1, %arg1,
// CHECK-SAME:  alpa.own_lengths
func.func @main(%q: tensor<3x8x4x8xf32>, %lengths: tensor<3xi32>, %seed: tensor<2xui32>, %ids: tensor<3x8xi32>) -> tensor<3x8x4x8xf32> {
  %none = stablehlo.constant dense<0.0> : tensor<0xf32>
  %empty = stablehlo.constant dense<0> : tensor<0xi32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %first = stablehlo.constant dense<0> : tensor<1xi32>
  %sums = "stablehlo.reduce_window"(%lengths, %zero) <{padding = dense<[[2, 0]]> : tensor<1x2xi64>, window_dimensions = array<i64: 3>}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %s = stablehlo.add %a, %b : tensor<i32>
    stablehlo.return %s : tensor<i32>
  }) : (tensor<3xi32>, tensor<i32>) -> tensor<3xi32>
  %cu = stablehlo.concatenate %first, %sums, dim = 0 : (tensor<1xi32>, tensor<3xi32>) -> tensor<4xi32>
  %0:4 = stablehlo.custom_call @te_fused_attn_forward_ffi(%q, %q, %q, %none, %seed, %cu, %cu, %empty, %empty, %ids, %ids, %ids, %ids) {mhlo.backend_config = {attn_heads = 4 : i64, bias_batch = 0 : i64, bias_heads = 0 : i64, bias_type = 0 : i64, dropout_probability = 0.0 : f64, input_batch = 3 : i64, mask_type = 1 : i64, num_gqa_groups = 4 : i64, qkv_layout = 9 : i64, scaling_factor = 1.0 : f64, window_size_left = -1 : i64, window_size_right = -1 : i64}} : (tensor<3x8x4x8xf32>, tensor<3x8x4x8xf32>, tensor<3x8x4x8xf32>, tensor<0xf32>, tensor<2xui32>, tensor<4xi32>, tensor<4xi32>, tensor<0xi32>, tensor<0xi32>, tensor<3x8xi32>, tensor<3x8xi32>, tensor<3x8xi32>, tensor<3x8xi32>) -> (tensor<3x8x4x8xf32>, tensor<3x4x8x1xf32>, tensor<1x4xui32>, tensor<64xui8>)
  return %0#0 : tensor<3x8x4x8xf32>
}

// -----

// Sums that count an example twice are not those of lengths.
// CHECK-LABEL: func.func @main
// CHECK:       stablehlo.add
// CHECK:       stablehlo.custom_call @te_fused_attn_forward_ffi
// CHECK-NOT:   alpa.own_lengths
func.func @main(%q: tensor<1x8x4x8xf32>, %lengths: tensor<1xi32>, %seed: tensor<2xui32>) -> tensor<1x8x4x8xf32> {
  %none = stablehlo.constant dense<0.0> : tensor<0xf32>
  %empty = stablehlo.constant dense<0> : tensor<0xi32>
  %first = stablehlo.constant dense<0> : tensor<1xi32>
  %twice = stablehlo.add %lengths, %lengths : tensor<1xi32>
  %cu = stablehlo.concatenate %first, %twice, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %0:4 = stablehlo.custom_call @te_fused_attn_forward_ffi(%q, %q, %q, %none, %seed, %cu, %cu, %empty, %empty, %empty, %empty, %empty, %empty) {mhlo.backend_config = {attn_heads = 4 : i64, bias_batch = 0 : i64, bias_heads = 0 : i64, bias_type = 0 : i64, dropout_probability = 0.0 : f64, input_batch = 1 : i64, mask_type = 1 : i64, num_gqa_groups = 4 : i64, qkv_layout = 9 : i64, scaling_factor = 1.0 : f64, window_size_left = -1 : i64, window_size_right = -1 : i64}} : (tensor<1x8x4x8xf32>, tensor<1x8x4x8xf32>, tensor<1x8x4x8xf32>, tensor<0xf32>, tensor<2xui32>, tensor<2xi32>, tensor<2xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>) -> (tensor<1x8x4x8xf32>, tensor<1x4x8x1xf32>, tensor<1x4xui32>, tensor<64xui8>)
  return %0#0 : tensor<1x8x4x8xf32>
}

// -----

// The largest element is at least the one of before.
// CHECK-LABEL: func.func @main
// CHECK:       %[[SCALE:.*]] = stablehlo.divide %{{.*}}, %arg1
// CHECK:       %[[MOST:.*]] = stablehlo.reduce({{.*}} stablehlo.maximum across dimensions = [0, 1]
// CHECK:       %[[HELD:.*]] = stablehlo.maximum %{{.*}}, %arg2
// CHECK:       %[[BIAS:.*]] = stablehlo.reduce({{.*}} stablehlo.add across dimensions = [0]
// CHECK:       %[[CALL:.*]]:7 = stablehlo.custom_call @te_dbias_quantize_ffi
// CHECK:       return %[[CALL]]#0, %[[SCALE]], %[[HELD]], %{{.*}} :
func.func @main(%x: tensor<16x32xbf16>, %scale: tensor<1xf32>, %most: tensor<1xf32>, %none: tensor<0xui32>) -> (tensor<16x32xf8E4M3FN>, tensor<1xf32>, tensor<1xf32>, tensor<32xbf16>) {
  %0:7 = stablehlo.custom_call @te_dbias_quantize_ffi(%x, %scale, %most, %none, %most, %most) {mhlo.backend_config = {flatten_axis = 1 : i64, is_dbias = true, q_layout = 0 : i64, scaling_mode = 1 : i64, stochastic_rounding = false, use_rht = false}} : (tensor<16x32xbf16>, tensor<1xf32>, tensor<1xf32>, tensor<0xui32>, tensor<1xf32>, tensor<1xf32>) -> (tensor<16x32xf8E4M3FN>, tensor<1xf8E4M3FN>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<32xbf16>, tensor<64xf32>)
  return %0#0, %0#2, %0#4, %0#5 : tensor<16x32xf8E4M3FN>, tensor<1xf32>, tensor<1xf32>, tensor<32xbf16>
}

// -----

// 0.5 * 8 experts / 2 / 16 tokens / 16 tokens.
// CHECK-LABEL: func.func @main
// CHECK-DAG:   stablehlo.constant {{.*}}dense<7.812500e-03> : tensor<f32>
// CHECK-NOT:   custom_call
func.func @main(%p: tensor<16x8xf32>, %n: tensor<8xi32>) -> (tensor<f32>, tensor<16x8xf32>) {
  %0:2 = stablehlo.custom_call @te_fused_moe_aux_loss_forward_ffi(%p, %n) {mhlo.backend_config = {coeff = 5.0e-01 : f64, topk = 2 : i64}} : (tensor<16x8xf32>, tensor<8xi32>) -> (tensor<f32>, tensor<2xf32>)
  %1 = stablehlo.custom_call @te_fused_moe_aux_loss_backward_ffi(%0#1, %n, %0#0) : (tensor<2xf32>, tensor<8xi32>, tensor<f32>) -> tensor<16x8xf32>
  return %0#0, %1 : tensor<f32>, tensor<16x8xf32>
}
