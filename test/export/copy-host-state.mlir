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

// -----

// Activations go to the host as they are made, by layer. Gradients of a layer wait for all that the
// layer behind it makes, and so do the copies of the layer before.
// CHECK-LABEL: func.func @forward
// CHECK-SAME: tensor<4xf32> {alpa.layer = 0 : i64, alpa.memory = "host", mhlo.memory_kind = "pinned_host"}
// CHECK: %[[Y:.*]] = stablehlo.tanh
// CHECK: %[[H:.*]] = stablehlo.custom_call @annotate_device_placement(%[[Y]]) {{.*}}_xla_buffer_placement = "pinned_host"
// CHECK: return %[[Y]], %[[H]]
func.func @forward(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32> {alpa.layer = 0 : i64, alpa.memory = "host"}) {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  return %0, %0 : tensor<4xf32>, tensor<4xf32>
}

// CHECK-LABEL: func.func @backward
// CHECK-DAG: %[[D2:.*]] = stablehlo.custom_call @annotate_device_placement(%arg3) {{.*}}_xla_buffer_placement = "device"
// CHECK-DAG: %[[D1:.*]] = stablehlo.custom_call @annotate_device_placement(%arg2) {{.*}}_xla_buffer_placement = "device"
// CHECK-DAG: %[[G2:.*]] = stablehlo.multiply %arg0, %[[D2]]
// CHECK-DAG: %[[W2:.*]] = stablehlo.add %[[G2]], %[[G2]]
// CHECK-DAG: %[[B:.*]]:3 = stablehlo.optimization_barrier %arg1, %[[G2]], %[[W2]]
// CHECK-DAG: %[[G1:.*]] = stablehlo.multiply %[[B]]#1, %[[D1]]
// CHECK-DAG: %[[D0:.*]] = stablehlo.custom_call @annotate_device_placement(%[[B]]#0) {{.*}}_xla_buffer_placement = "device"
// CHECK-DAG: %[[C:.*]] = stablehlo.optimization_barrier %[[G1]]
// CHECK-DAG: %[[G0:.*]] = stablehlo.multiply %[[C]], %[[D0]]
// CHECK: return %[[G0]], %[[W2]]
func.func @backward(%g: tensor<4xf32>, %a0: tensor<4xf32> {alpa.layer = 0 : i64, alpa.memory = "host"}, %a1: tensor<4xf32> {alpa.layer = 1 : i64, alpa.memory = "host"}, %a2: tensor<4xf32> {alpa.layer = 2 : i64, alpa.memory = "host"}) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.multiply %g, %a2 : tensor<4xf32>
  %1 = stablehlo.add %0, %0 : tensor<4xf32>
  %2 = stablehlo.multiply %0, %a1 : tensor<4xf32>
  %3 = stablehlo.multiply %2, %a0 : tensor<4xf32>
  return %3, %1 : tensor<4xf32>, tensor<4xf32>
}
