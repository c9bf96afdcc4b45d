// RUN: alpa-opt %s -alpa-import -split-input-file -verify-diagnostics | FileCheck %s

// A kernel in a shard_map: the tracer writes a call of what it does with one block.
// CHECK-LABEL: func.func @main
// CHECK:       %[[Y:.*]] = alpa.map %{{.*}}, %{{.*}} {alpa.{{.*}}dims = [array<i64: 0>, array<i64>], levels = 1 : i64} : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32> {
// CHECK-NEXT:  ^bb0(%[[BLOCK:.*]]: tensor<8xf32>, %[[WEIGHT:.*]]: tensor<8xf32>):
// CHECK-NEXT:    %[[MADE:.*]] = stablehlo.custom_call @kernel(%[[BLOCK]], %[[WEIGHT]])
// CHECK-NEXT:    %[[SUM:.*]] = stablehlo.add %[[MADE]], %[[BLOCK]]
// CHECK-NEXT:    stablehlo.return %[[SUM]] : tensor<8xf32>
// CHECK:       return %[[Y]]
// CHECK-NOT:   func.func
func.func @main(%x: tensor<2x8xf32>, %w: tensor<8xf32>) -> tensor<2x8xf32> {
  %y = stablehlo.custom_call @alpa.map(%x, %w) {called_computations = [@block], alpa.map_dims = [array<i64: 0>, array<i64>], alpa.map_levels = 1 : i64} : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}
func.func private @block(%x: tensor<8xf32>, %w: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.custom_call @kernel(%x, %w) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %1 = func.call @inner(%0, %x) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
func.func private @inner(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.add %x, %y : tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  // expected-error @below {{a kernel with side effects is in a shard_map}}
  %y = stablehlo.custom_call @alpa.map(%x) {called_computations = [@block], alpa.map_dims = [array<i64: 0>], alpa.map_levels = 1 : i64} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}
func.func private @block(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = stablehlo.custom_call @kernel(%x) {has_side_effect = true} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
