// RUN: alpa-opt %s -verify-diagnostics -split-input-file

func.func @f(%a: tensor<f32>) {
  // expected-error @+1 {{chlo_top_k_c1: the operand is a scalar}}
  %0:2 = chlo.top_k(%a, k = 1) : tensor<f32> -> (tensor<f32>, tensor<i32>)
  return
}

// -----

func.func @f(%a: tensor<4x8xf32>) {
  // expected-error @+1 {{chlo_top_k_c1: got k = 9, but the last dimension has size 8}}
  %0:2 = chlo.top_k(%a, k = 9) : tensor<4x8xf32> -> (tensor<4x9xf32>, tensor<4x9xi32>)
  return
}

// -----

func.func @f(%a: tensor<4x8xf32>) {
  // expected-error @+1 {{chlo_top_k_c2: got values of type 'tensor<4x8xf32>', expected 'tensor<4x3xf32>'}}
  %0:2 = chlo.top_k(%a, k = 3) : tensor<4x8xf32> -> (tensor<4x8xf32>, tensor<4x3xi32>)
  return
}

// -----

func.func @f(%a: tensor<4xi32>) {
  // expected-error @+1 {{must be ranked tensor of floating-point or complex-type values}}
  %0 = chlo.acos %a : tensor<4xi32> -> tensor<4xi32>
  return
}
