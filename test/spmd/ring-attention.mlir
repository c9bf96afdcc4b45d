// RUN: alpa-opt %s -split-input-file -alpa-lower-to-collectives | FileCheck %s

// Tokens of causal attention on four devices: halves 0 and 7, 1 and 6, .. of the tokens after an
// exchange, one causal kernel, then a loop for the steps in the middle, whose kernels are of all
// queries and the early keys, or of the late queries and all keys, and the last step.
// CHECK-LABEL: func.func @attention
// CHECK-SAME: (%[[Q:.*]]: tensor<1x4x2x8xbf16>
// CHECK:     stablehlo.collective_permute
// CHECK-SAME: {{\[\[}}0, 0], [1, 2], [2, 3], [3, 1]]
// CHECK:     stablehlo.collective_permute
// CHECK-SAME: {{\[\[}}0, 1], [1, 3], [2, 2], [3, 0]]
// CHECK:     stablehlo.custom_call @__cudnn$fmhaSoftmax
// CHECK-SAME: CAUSAL
// CHECK-SAME: -> (tensor<1x2x4x8xbf16>, tensor<1x2x4xf32>, tensor<0xui8>)
// CHECK:     stablehlo.while
// CHECK:       stablehlo.collective_permute
// CHECK-SAME: {{\[\[}}0, 1], [1, 2], [2, 3], [3, 0]]
// CHECK:       "stablehlo.case"
// CHECK:         stablehlo.custom_call @__cudnn$fmhaSoftmax
// CHECK-SAME: NO_MASK
// CHECK-SAME: (tensor<1x4x2x8xbf16>, tensor<1x2x1x8xbf16>, tensor<1x2x1x8xbf16>)
// CHECK:         stablehlo.custom_call @__cudnn$fmhaSoftmax
// CHECK-SAME: (tensor<1x2x2x8xbf16>, tensor<1x4x1x8xbf16>, tensor<1x4x1x8xbf16>)
// CHECK:     "stablehlo.case"
module attributes {alpa.mesh = #alpa.mesh<shape = [1, 4], devices = [0, 1, 2, 3]>} {
  func.func @attention(%q: tensor<1x16x2x8xbf16> {alpa.sharding = #alpa.sharding<[R, S1, R, R]>}, %k: tensor<1x16x1x8xbf16> {alpa.sharding = #alpa.sharding<[R, S1, R, R]>}, %v: tensor<1x16x1x8xbf16> {alpa.sharding = #alpa.sharding<[R, S1, R, R]>}) -> (tensor<1x2x16x8xbf16> {alpa.sharding = #alpa.sharding<[R, R, S1, R]>}) {
    %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {alpa.shardings = [#alpa.sharding<[R, R, S1, R]>, #alpa.sharding<[R, R, S1]>, #alpa.sharding<[R]>], api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\221\22, \222\22, \2216\22, \2216\22]}, \22mask_type\22: \22CAUSAL\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.0, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}"} : (tensor<1x16x2x8xbf16>, tensor<1x16x1x8xbf16>, tensor<1x16x1x8xbf16>) -> (tensor<1x2x16x8xbf16>, tensor<1x2x16xf32>, tensor<0xui8>)
    return %0#0 : tensor<1x2x16x8xbf16>
  }
}

// -----

// The same with all keys and values gathered: each half of the queries sees its own keys, which is
// causal, and those before it, as many as the length says.
// CHECK-LABEL: func.func @gathered
// CHECK:     stablehlo.all_gather
// CHECK-SAME: {{\[\[}}0, 1, 2, 3]]
// CHECK-SAME: -> tensor<1x16x1x8xbf16>
// CHECK:     stablehlo.all_gather
// CHECK-NOT: stablehlo.while
// CHECK:     stablehlo.custom_call @__cudnn$fmhaSoftmax
// CHECK-SAME: \22CAUSAL\22
// CHECK-SAME: (tensor<1x2x2x8xbf16>, tensor<1x2x1x8xbf16>, tensor<1x2x1x8xbf16>)
// CHECK:     stablehlo.custom_call @__cudnn$fmhaSoftmax
// CHECK-SAME: \22PADDING\22
// CHECK-SAME: (tensor<1x2x2x8xbf16>, tensor<1x16x1x8xbf16>, tensor<1x16x1x8xbf16>, tensor<1xi32>, tensor<1xi32>)
// CHECK:     stablehlo.custom_call @__cudnn$fmhaSoftmax
// CHECK-SAME: \22CAUSAL\22
// CHECK:     stablehlo.custom_call @__cudnn$fmhaSoftmax
// CHECK-SAME: \22PADDING\22
module attributes {alpa.mesh = #alpa.mesh<shape = [1, 4], devices = [0, 1, 2, 3]>} {
  func.func @gathered(%q: tensor<1x16x2x8xbf16> {alpa.sharding = #alpa.sharding<[R, S1, R, R]>}, %k: tensor<1x16x1x8xbf16> {alpa.sharding = #alpa.sharding<[R, S1, R, R]>}, %v: tensor<1x16x1x8xbf16> {alpa.sharding = #alpa.sharding<[R, S1, R, R]>}) -> (tensor<1x2x16x8xbf16> {alpa.sharding = #alpa.sharding<[R, R, S1, R]>}) {
    %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {alpa.gathers_keys, alpa.shardings = [#alpa.sharding<[R, R, S1, R]>, #alpa.sharding<[R, R, S1]>, #alpa.sharding<[R]>], api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\221\22, \222\22, \2216\22, \2216\22]}, \22mask_type\22: \22CAUSAL\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.0, \22sliding_window_length\22: 0, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}"} : (tensor<1x16x2x8xbf16>, tensor<1x16x1x8xbf16>, tensor<1x16x1x8xbf16>) -> (tensor<1x2x16x8xbf16>, tensor<1x2x16xf32>, tensor<0xui8>)
    return %0#0 : tensor<1x2x16x8xbf16>
  }
}

// -----

// A window of seven tokens on four devices of four: the keys of six tokens before come from two
// devices. Three of them all queries see; of the others a later query sees fewer, which is causal
// in reverse. On the first devices they are not all there.
// CHECK-LABEL: func.func @window
// CHECK-SAME: (%[[Q:.*]]: tensor<1x4x2x8xbf16>
// CHECK:     stablehlo.slice {{.*}}[0:1, 2:4, 0:1, 0:8]
// CHECK:     stablehlo.collective_permute
// CHECK-SAME: {{\[\[}}0, 2], [1, 3]]
// CHECK:     stablehlo.collective_permute
// CHECK-SAME: {{\[\[}}0, 1], [1, 2], [2, 3]]
// CHECK:     stablehlo.custom_call @__cudnn$fmhaSoftmax(%[[Q]],
// CHECK-SAME: \22CAUSAL\22
// CHECK-SAME: sliding_window_length\22:0
// CHECK-SAME: (tensor<1x4x2x8xbf16>, tensor<1x4x1x8xbf16>, tensor<1x4x1x8xbf16>)
// CHECK:     stablehlo.reverse
// CHECK:     stablehlo.custom_call @__cudnn$fmhaSoftmax
// CHECK-SAME: \22PADDING_CAUSAL\22
// CHECK-SAME: (tensor<1x3x2x8xbf16>, tensor<1x3x1x8xbf16>, tensor<1x3x1x8xbf16>, tensor<1xi32>, tensor<1xi32>)
// CHECK:     stablehlo.custom_call @__cudnn$fmhaSoftmax
// CHECK-SAME: \22PADDING\22
// CHECK-SAME: (tensor<1x4x2x8xbf16>, tensor<1x3x1x8xbf16>, tensor<1x3x1x8xbf16>, tensor<1xi32>, tensor<1xi32>)
module attributes {alpa.mesh = #alpa.mesh<shape = [1, 4], devices = [0, 1, 2, 3]>} {
  func.func @window(%q: tensor<1x16x2x8xbf16> {alpa.sharding = #alpa.sharding<[R, S1, R, R]>}, %k: tensor<1x16x1x8xbf16> {alpa.sharding = #alpa.sharding<[R, S1, R, R]>}, %v: tensor<1x16x1x8xbf16> {alpa.sharding = #alpa.sharding<[R, S1, R, R]>}) -> (tensor<1x2x16x8xbf16> {alpa.sharding = #alpa.sharding<[R, R, S1, R]>}) {
    %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {alpa.shardings = [#alpa.sharding<[R, R, S1, R]>, #alpa.sharding<[R, R, S1]>, #alpa.sharding<[R]>], api_version = 2 : i32, backend_config = "{\22operation_queue_id\22: \220\22, \22cudnn_fmha_backend_config\22: {\22fmha_scale\22: 0.5, \22intermediate_tensor_shape\22: {\22element_type\22: \22BF16\22, \22dimensions\22: [\221\22, \222\22, \2216\22, \2216\22]}, \22mask_type\22: \22CAUSAL\22, \22bmm1_dot_dimension_numbers\22: {\22lhs_batch_dimensions\22: [\220\22, \222\22]}, \22dropout_rate\22: 0.0, \22sliding_window_length\22: 7, \22max_seg_per_batch\22: 1, \22is_paged_attention\22: false}}"} : (tensor<1x16x2x8xbf16>, tensor<1x16x1x8xbf16>, tensor<1x16x1x8xbf16>) -> (tensor<1x2x16x8xbf16>, tensor<1x2x16xf32>, tensor<0xui8>)
    return %0#0 : tensor<1x2x16x8xbf16>
  }
}
