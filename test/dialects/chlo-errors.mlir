// RUN: alpa-opt %s -verify-diagnostics -split-input-file

func.func @f(%a: tensor<f32>) {
  // expected-error @+1 {{top_k_c1: expected an operand with a dimension, got 'tensor<f32>'}}
  %0:2 = chlo.top_k(%a, k = 1) : tensor<f32> -> (tensor<f32>, tensor<i32>)
  return
}

// -----

func.func @f(%a: tensor<4x8xf32>) {
  // expected-error @+1 {{top_k_c2: expected k from 0 to 8, got 9}}
  %0:2 = chlo.top_k(%a, k = 9) : tensor<4x8xf32> -> (tensor<4x9xf32>, tensor<4x9xi32>)
  return
}

// -----

func.func @f(%a: tensor<4x8xf32>) {
  // expected-error @+1 {{top_k_c3: expected results of shape 'tensor<4x3xf32>' and its indices, got 'tensor<4x8xf32>'}}
  %0:2 = chlo.top_k(%a, k = 3) : tensor<4x8xf32> -> (tensor<4x8xf32>, tensor<4x3xi32>)
  return
}

// -----

func.func @f(%a: tensor<4xi32>) {
  // expected-error @+1 {{must be ranked tensor of floating-point or complex of f32 or f64 values}}
  %0 = chlo.acos %a : tensor<4xi32> -> tensor<4xi32>
  return
}

// -----

func.func @f(%a: tensor<6x4xf32>, %b: tensor<2x5x5xf32>, %g: tensor<2xi32>) {
  // expected-error @+1 {{ragged_dot_c2: dimensions of lhs and rhs do not pair up}}
  %0 = "chlo.ragged_dot"(%a, %b, %g) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<6x4xf32>, tensor<2x5x5xf32>, tensor<2xi32>) -> tensor<6x5xf32>
  return
}

// -----

func.func @f(%a: tensor<6x4xf32>, %b: tensor<2x4x5xf32>, %g: tensor<2xi32>) {
  // expected-error @+1 {{ragged_dot_c3: rhs has no dimension 7}}
  %0 = "chlo.ragged_dot"(%a, %b, %g) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [7], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<6x4xf32>, tensor<2x4x5xf32>, tensor<2xi32>) -> tensor<6x5xf32>
  return
}
