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
