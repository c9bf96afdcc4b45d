// RUN: alpa-opt %s -split-input-file -alpa-split-batch="micro-batches=4 allow-barrier=false" -verify-diagnostics | FileCheck %s

// A call whose rule has the batch as a factor runs on each micro-batch, with a part of its work.
// CHECK-LABEL: func.func @main
func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4x4xf32>, tensor<8x4xf32>) {
  // CHECK: custom_call @f(%{{.*}}, %{{.*}}) {{{.*}}alpa.flops = 6.400000e+01 : f64{{.*}}} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %h = stablehlo.custom_call @f(%x, %w) {alpa.eqn = 0 : i64, alpa.flops = 256.0 : f64, alpa.phase = "forward", alpa.sharding_rule = "b k, k n -> b n"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  return %w, %y : tensor<4x4xf32>, tensor<8x4xf32>
}

// -----

// Behind another factor of its dimension the batch stays whole.
func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4x4xf32>, tensor<16x4xf32>) {
  %0 = stablehlo.broadcast_in_dim %x, dims = [1, 2] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>) -> tensor<2x8x4xf32>
  %1 = stablehlo.reshape %0 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<2x8x4xf32>) -> tensor<16x4xf32>
  // expected-error @below {{`stablehlo.custom_call` mixes the batch with another dimension}}
  %h = stablehlo.custom_call @f(%1) {alpa.eqn = 0 : i64, alpa.phase = "forward", alpa.sharding_rule = "(h b) d -> (h b) d {b=8}"} : (tensor<16x4xf32>) -> tensor<16x4xf32>
  %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<16x4xf32>, tensor<4x4xf32>) -> tensor<16x4xf32>
  return %w, %y : tensor<4x4xf32>, tensor<16x4xf32>
}

// -----

// So does it where a result does not say what becomes of it.
func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4x4xf32>, tensor<8x4xf32>) {
  // expected-error @below {{`stablehlo.custom_call` needs all examples of the batch at once}}
  %h:2 = stablehlo.custom_call @f(%x) {alpa.eqn = 0 : i64, alpa.phase = "forward", alpa.sharding_rule = "b k -> b k, k"} : (tensor<8x4xf32>) -> (tensor<8x4xf32>, tensor<4xf32>)
  %y = stablehlo.dot_general %h#0, %w, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  return %w, %y : tensor<4x4xf32>, tensor<8x4xf32>
}

// -----

// Sizes of groups count examples of the whole batch.
func.func @main(%w: tensor<2x4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %s: tensor<2xi32> {alpa.kind = "state", alpa.carried_by = 1 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<2x4x4xf32>, tensor<2xi32>, tensor<8x4xf32>) {
  // expected-error @below {{`chlo.ragged_dot` has groups of the whole batch's examples}}
  %y = "chlo.ragged_dot"(%x, %w, %s) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<2x4x4xf32>, tensor<2xi32>) -> tensor<8x4xf32>
  return %w, %s, %y : tensor<2x4x4xf32>, tensor<2xi32>, tensor<8x4xf32>
}
