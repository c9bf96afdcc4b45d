// RUN: alpa-opt %s -verify-diagnostics -split-input-file

// expected-error @+1 {{sdy_mesh_c1: axis "x" has size 0, expected a positive one}}
sdy.mesh @mesh = <["x"=0]>

// -----

// expected-error @+1 {{sdy_mesh_c2: axis "x" stands twice}}
sdy.mesh @mesh = <["x"=2, "x"=2]>

// -----

// expected-error @+1 {{sdy_mesh_c3: got 3 device ids, expected 2}}
sdy.mesh @mesh = <["x"=2], device_ids=[0, 1, 2]>

// -----

// expected-error @+1 {{sdy_mesh_c3: device ids are not a permutation of 0 to 1}}
sdy.mesh @mesh = <["x"=2], device_ids=[1, 1]>

// -----

func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{expected `replicated` or `unreduced`, got `partial`}}
  %0 = sdy.sharding_constraint %a <@mesh, [{}], partial={"x"}> : tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{expected a priority such as `p1`}}
  %0 = sdy.sharding_constraint %a <@mesh, [{"x"}q]> : tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{`?` must stand last}}
  %0 = sdy.sharding_constraint %a <@mesh, [{?, "x"}]> : tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{sdy_manual_computation_c1: got 0 in_shardings, expected 1}}
  sdy.manual_computation(%a) in_shardings=[] out_shardings=[] manual_axes={} (%x: tensor<8xf32>) {
    sdy.return
  } : (tensor<8xf32>) -> ()
  return
}

// -----

func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{sdy_manual_computation_c2: got 0 body arguments, expected 1}}
  sdy.manual_computation(%a) in_shardings=[<@mesh, [{}]>] out_shardings=[] manual_axes={} () {
    sdy.return
  } : (tensor<8xf32>) -> ()
  return
}

// -----

func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{sdy_manual_computation_c2: got 1 returned values, expected 0}}
  sdy.manual_computation(%a) in_shardings=[<@mesh, [{}]>] out_shardings=[] manual_axes={} (%x: tensor<8xf32>) {
    sdy.return %x : tensor<8xf32>
  } : (tensor<8xf32>) -> ()
  return
}
