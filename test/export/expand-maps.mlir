// RUN: alpa-opt %s -alpa-expand-maps | FileCheck %s

// A device with one block calls the kernel for it.
// CHECK-LABEL: func.func @one_block
// CHECK-SAME:  (%[[X:.*]]: tensor<1x1x8xf32>, %[[W:.*]]: tensor<8xf32>)
// CHECK-NEXT:  %[[BLOCK:.*]] = stablehlo.reshape %[[X]] : (tensor<1x1x8xf32>) -> tensor<8xf32>
// CHECK-NEXT:  %[[MADE:.*]]:2 = stablehlo.custom_call @kernel(%[[BLOCK]], %[[W]])
// CHECK-NEXT:  %[[Y:.*]] = stablehlo.reshape %[[MADE]]#0 : (tensor<8xf32>) -> tensor<1x1x8xf32>
// CHECK-NEXT:  %[[N:.*]] = stablehlo.reshape %[[MADE]]#1 : (tensor<i32>) -> tensor<1x1xi32>
// CHECK-NEXT:  return %[[Y]], %[[N]]
func.func @one_block(%x: tensor<1x1x8xf32>, %w: tensor<8xf32>) -> (tensor<1x1x8xf32>, tensor<1x1xi32>) {
  %y:2 = alpa.map %x, %w {dims = [array<i64: 0, 1>, array<i64>], levels = 2 : i64} : (tensor<1x1x8xf32>, tensor<8xf32>) -> (tensor<1x1x8xf32>, tensor<1x1xi32>) {
  ^bb0(%block: tensor<8xf32>, %weight: tensor<8xf32>):
    %0:2 = stablehlo.custom_call @kernel(%block, %weight) : (tensor<8xf32>, tensor<8xf32>) -> (tensor<8xf32>, tensor<i32>)
    stablehlo.return %0#0, %0#1 : tensor<8xf32>, tensor<i32>
  }
  return %y#0, %y#1 : tensor<1x1x8xf32>, tensor<1x1xi32>
}

// One with several cuts them out, the last level first; the second operand has no first level.
// CHECK-LABEL: func.func @several
// CHECK-SAME:  (%[[X:.*]]: tensor<2x2x8xf32>, %[[W:.*]]: tensor<2x8xf32>)
// CHECK:       stablehlo.slice %[[X]] [0:1, 1:2, 0:8]
// CHECK:       stablehlo.slice %[[W]] [1:2, 0:8]
// CHECK:       stablehlo.custom_call @kernel
// CHECK:       stablehlo.slice %[[X]] [1:2, 0:1, 0:8]
// CHECK:       stablehlo.slice %[[W]] [0:1, 0:8]
// CHECK:       stablehlo.custom_call @kernel
// CHECK:       %[[ALL:.*]] = stablehlo.concatenate {{.*}} dim = 0 : {{.*}} -> tensor<4x8xf32>
// CHECK-NEXT:  stablehlo.reshape %[[ALL]] : (tensor<4x8xf32>) -> tensor<2x2x8xf32>
func.func @several(%x: tensor<2x2x8xf32>, %w: tensor<2x8xf32>) -> tensor<2x2x8xf32> {
  %y = alpa.map %x, %w {dims = [array<i64: 0, 1>, array<i64: 1>], levels = 2 : i64} : (tensor<2x2x8xf32>, tensor<2x8xf32>) -> tensor<2x2x8xf32> {
  ^bb0(%block: tensor<8xf32>, %weight: tensor<8xf32>):
    %0 = stablehlo.custom_call @kernel(%block, %weight) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    stablehlo.return %0 : tensor<8xf32>
  }
  return %y : tensor<2x2x8xf32>
}

// Attention of Transformer Engine reads sums of the lengths before.
// CHECK-LABEL: func.func @lengths
// CHECK-SAME:  %[[LENGTHS:[^:,]*]]: tensor<3xi32>
// CHECK:       %[[SPREAD:.*]] = stablehlo.broadcast_in_dim %[[LENGTHS]], dims = [1] : (tensor<3xi32>) -> tensor<4x3xi32>
// CHECK:       %[[BEFORE:.*]] = stablehlo.select %{{.*}}, %[[SPREAD]], %{{.*}}
// CHECK:       %[[SUMS:.*]] = stablehlo.reduce(%[[BEFORE]] init: {{.*}} stablehlo.add across dimensions = [1] : (tensor<4x3xi32>, tensor<i32>) -> tensor<4xi32>
// CHECK:       stablehlo.custom_call @te_fused_attn_forward_ffi(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %[[SUMS]], %
// CHECK-NOT:   alpa.own_lengths
func.func @lengths(%q: tensor<3x8x4x8xf32>, %lengths: tensor<3xi32>, %seed: tensor<2xui32>) -> tensor<3x8x4x8xf32> {
  %none = stablehlo.constant dense<0.0> : tensor<0xf32>
  %empty = stablehlo.constant dense<0> : tensor<0xi32>
  %0:4 = stablehlo.custom_call @te_fused_attn_forward_ffi(%q, %q, %q, %none, %seed, %lengths, %lengths, %empty, %empty, %empty, %empty, %empty, %empty) {mhlo.backend_config = {alpa.own_lengths, bias_type = 0 : i64, dropout_probability = 0.0 : f64, mask_type = 1 : i64, qkv_layout = 9 : i64, scaling_factor = 1.0 : f64, window_size_left = -1 : i64, window_size_right = -1 : i64}} : (tensor<3x8x4x8xf32>, tensor<3x8x4x8xf32>, tensor<3x8x4x8xf32>, tensor<0xf32>, tensor<2xui32>, tensor<3xi32>, tensor<3xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>, tensor<0xi32>) -> (tensor<3x8x4x8xf32>, tensor<3x4x8x1xf32>, tensor<1x4xui32>, tensor<64xui8>)
  return %0#0 : tensor<3x8x4x8xf32>
}

// Each example with packed sequences is a call of its own, whose statistics, by sequences, are put
// in the order of tokens.
// CHECK-LABEL: func.func @own_sequences
// CHECK:     %[[LENGTHS:.*]] = stablehlo.reshape {{.*}} : (tensor<3xi32>) -> tensor<1x3xi32>
// CHECK:     %[[CALL:.*]]:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax
// CHECK-NOT: own_sequences
// CHECK-SAME: (tensor<1x16x2x8xbf16>, tensor<1x16x1x8xbf16>, tensor<1x16x1x8xbf16>, tensor<1x3xi32>, tensor<1x3xi32>, tensor<1x4xi32>, tensor<1x4xi32>) -> (tensor<1x2x16x8xbf16>, tensor<3x2x16xf32>, tensor<0xui8>)
// CHECK:     "stablehlo.gather"(%[[CALL]]#1, {{.*}} -> tensor<16x2xf32>
// CHECK:     stablehlo.custom_call @__cudnn$fmhaSoftmax
// CHECK:     stablehlo.concatenate {{.*}} -> tensor<2x2x16x8xbf16>
// CHECK:     stablehlo.concatenate {{.*}} -> tensor<2x2x16xf32>
func.func @own_sequences(%q: tensor<2x16x2x8xbf16>, %k: tensor<2x16x1x8xbf16>, %lengths: tensor<2x3xi32>, %offsets: tensor<2x4xi32>) -> (tensor<2x2x16x8xbf16>, tensor<2x2x16xf32>) {
  %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %k, %lengths, %lengths, %offsets, %offsets) {api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\222\22, \222\22, \2216\22, \2216\22]}, \22mask_type\22: \22PADDING_CAUSAL\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.0, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 3, \22is_paged_attention\22: false, \22own_sequences\22: true}}"} : (tensor<2x16x2x8xbf16>, tensor<2x16x1x8xbf16>, tensor<2x16x1x8xbf16>, tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x4xi32>, tensor<2x4xi32>) -> (tensor<2x2x16x8xbf16>, tensor<2x2x16xf32>, tensor<0xui8>)
  return %0#0, %0#1 : tensor<2x2x16x8xbf16>, tensor<2x2x16xf32>
}
