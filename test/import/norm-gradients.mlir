// RUN: alpa-opt %s -alpa-import | FileCheck %s
// RUN: alpa-opt %s -alpa-import -alpa-expand-kernels | FileCheck %s --check-prefix=PLAIN

// Gradients of a norm's weights are sums over all rows: in ops of their own, they leave a call
// that needs its own rows only.
// CHECK-LABEL: func.func public @main
// CHECK:       %[[X:.*]] = stablehlo.subtract %arg1,
// CHECK:       %[[NORMED:.*]] = stablehlo.multiply %[[X]],
// CHECK:       %[[TERMS:.*]] = stablehlo.multiply %arg0, %[[NORMED]]
// CHECK:       %[[GAMMA:.*]] = stablehlo.reduce(%[[TERMS]] init: {{.*}} stablehlo.add across dimensions = [0, 1]
// CHECK:       %[[BETA:.*]] = stablehlo.reduce(%arg0 init: {{.*}} stablehlo.add across dimensions = [0, 1]
// CHECK:       %[[CALL:.*]]:4 = stablehlo.custom_call @te_norm_backward_ffi
// CHECK:       return %[[CALL]]#0, %[[GAMMA]], %[[BETA]]

// Without a GPU the call becomes what it computes.
// PLAIN-LABEL: func.func public @main
// PLAIN-NOT:   custom_call
func.func public @main(%dz: tensor<8x16x32xf32>, %x: tensor<8x16x32xf32>, %mean: tensor<8x16xf32>, %inverse: tensor<8x16xf32>, %gamma: tensor<32xf32>) -> (tensor<8x16x32xf32>, tensor<32xf32>, tensor<32xf32>) {
  %0:4 = stablehlo.custom_call @te_norm_backward_ffi(%dz, %x, %mean, %inverse, %gamma) {mhlo.backend_config = {norm_type = 0 : i64, zero_centered_gamma = false}} : (tensor<8x16x32xf32>, tensor<8x16x32xf32>, tensor<8x16xf32>, tensor<8x16xf32>, tensor<32xf32>) -> (tensor<8x16x32xf32>, tensor<32xf32>, tensor<32xf32>, tensor<64xui8>)
  return %0#0, %0#1, %0#2 : tensor<8x16x32xf32>, tensor<32xf32>, tensor<32xf32>
}
