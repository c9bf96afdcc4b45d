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
