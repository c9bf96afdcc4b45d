// RUN: alpa-opt %s -split-input-file -alpa-copy-host-state | FileCheck %s

// Two moments of a weight are a piece; the third piece waits for the results of the first.
// CHECK-LABEL: func.func @update_0
// CHECK-SAME: %arg0: tensor<4xf32> {alpa.memory = "host", mhlo.memory_kind = "pinned_host"}
// CHECK-SAME: -> (tensor<4xf32> {alpa.memory = "host", mhlo.memory_kind = "pinned_host"}
// CHECK-DAG: %[[M0:.*]] = stablehlo.custom_call @annotate_device_placement(%arg0) {{.*}}_xla_buffer_placement = "device"
// CHECK-DAG: %[[V0:.*]] = stablehlo.custom_call @annotate_device_placement(%arg1) {{.*}}_xla_buffer_placement = "device"
// CHECK-DAG: %[[M1:.*]] = stablehlo.custom_call @annotate_device_placement(%arg2) {{.*}}_xla_buffer_placement = "device"
// CHECK-DAG: %[[N0:.*]] = stablehlo.add %[[M0]], %[[V0]]
// CHECK-DAG: %[[N1:.*]] = stablehlo.negate %[[V0]]
// CHECK-DAG: %[[B:.*]]:3 = stablehlo.optimization_barrier %arg3, %[[N0]], %[[N1]]
// CHECK-DAG: %[[M2:.*]] = stablehlo.custom_call @annotate_device_placement(%[[B]]#0) {{.*}}_xla_buffer_placement = "device"
// CHECK-DAG: stablehlo.negate %[[M2]]
// CHECK-DAG: stablehlo.negate %[[M1]]
// CHECK-DAG: %[[R0:.*]] = stablehlo.custom_call @annotate_device_placement(%[[N0]]) {{.*}}_xla_buffer_placement = "pinned_host"
// CHECK-DAG: %[[R1:.*]] = stablehlo.custom_call @annotate_device_placement(%[[N1]]) {{.*}}_xla_buffer_placement = "pinned_host"
// CHECK: return %[[R0]], %[[R1]]
func.func @update_0(%m0: tensor<4xf32> {alpa.memory = "host"}, %v0: tensor<4xf32> {alpa.memory = "host"}, %m1: tensor<4xf32> {alpa.memory = "host"}, %m2: tensor<4xf32> {alpa.memory = "host"}) -> (tensor<4xf32> {alpa.memory = "host"}, tensor<4xf32> {alpa.memory = "host"}, tensor<4xf32> {alpa.memory = "host"}, tensor<4xf32> {alpa.memory = "host"}) {
  %0 = stablehlo.add %m0, %v0 : tensor<4xf32>
  %2 = stablehlo.negate %m1 : tensor<4xf32>
  %3 = stablehlo.negate %m2 : tensor<4xf32>
  %1 = stablehlo.negate %v0 : tensor<4xf32>
  return %0, %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----

// Next values that depend on all of the state: one piece, which waits for nothing. What is
// handed on stays where it is.
// CHECK-LABEL: func.func @update_0
// CHECK-NOT: optimization_barrier
// CHECK-COUNT-3: _xla_buffer_placement = "device"
// CHECK-COUNT-3: _xla_buffer_placement = "pinned_host"
// CHECK: return {{.*}}, %arg3
func.func @update_0(%a: tensor<4xf32> {alpa.memory = "host"}, %b: tensor<4xf32> {alpa.memory = "host"}, %c: tensor<4xf32> {alpa.memory = "host"}, %d: tensor<4xf32> {alpa.memory = "host"}) -> (tensor<4xf32> {alpa.memory = "host"}, tensor<4xf32> {alpa.memory = "host"}, tensor<4xf32> {alpa.memory = "host"}, tensor<4xf32> {alpa.memory = "host"}) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.multiply %a, %b : tensor<4xf32>
  %1 = stablehlo.multiply %0, %c : tensor<4xf32>
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %4 = stablehlo.add %a, %3 : tensor<4xf32>
  %5 = stablehlo.add %b, %3 : tensor<4xf32>
  %6 = stablehlo.add %c, %3 : tensor<4xf32>
  return %4, %5, %6, %d : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
