// RUN: alpa-opt %s -verify-diagnostics -split-input-file

// expected-error @+1 {{sdy_mesh_c1: expected a positive size of axis "x", got 0}}
sdy.mesh @mesh = <["x"=0]>

// -----

// expected-error @+1 {{sdy_mesh_c1: axis "x" is named twice}}
sdy.mesh @mesh = <["x"=2, "x"=2]>

// -----

// expected-error @+1 {{sdy_mesh_c2: expected 2 device ids, got 3}}
sdy.mesh @mesh = <["x"=2], device_ids=[0, 1, 2]>

// -----

// expected-error @+1 {{sdy_mesh_c2: device id 1 is negative or named twice}}
sdy.mesh @mesh = <["x"=2], device_ids=[1, 1]>

// -----

func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{expected replicated or unreduced, got partial}}
  %0 = sdy.sharding_constraint %a <@mesh, [{}], partial={"x"}> : tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{expected a priority such as p0}}
  %0 = sdy.sharding_constraint %a <@mesh, [{"x"}q]> : tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{expected nothing behind `?`}}
  %0 = sdy.sharding_constraint %a <@mesh, [{?, "x"}]> : tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<8x8xf32>) {
  // expected-error @+1 {{sdy_sharding_c1: axis "x" is used twice}}
  %0 = sdy.sharding_constraint %a <@mesh, [{"x"}, {"x"}]> : tensor<8x8xf32>
  return
}

// -----

func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{sdy_sharding_constraint_c1: there is no mesh @mesh}}
  %0 = sdy.sharding_constraint %a <@mesh, [{}]> : tensor<8xf32>
  return
}

// -----

sdy.mesh @mesh = <["x"=2]>
func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{sdy_sharding_constraint_c1: the mesh has no axis "y"}}
  %0 = sdy.sharding_constraint %a <@mesh, [{"y"}]> : tensor<8xf32>
  return
}

// -----

sdy.mesh @mesh = <["x"=2]>
func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{sdy_reshard_c2: expected 1 entries, got 2}}
  %0 = sdy.reshard %a <@mesh, [{"x"}, {}]> : tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{sdy_manual_computation_c1: expected 1 and 0 shardings, got 0 and 0}}
  sdy.manual_computation(%a) in_shardings=[] out_shardings=[] manual_axes={} (%x: tensor<8xf32>) {
    sdy.return
  } : (tensor<8xf32>) -> ()
  return
}

// -----

func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{sdy_manual_computation_c2: expected a body from 1 values to 0}}
  sdy.manual_computation(%a) in_shardings=[<@mesh, [{}]>] out_shardings=[] manual_axes={} (%x: tensor<8xf32>) {
    sdy.return %x : tensor<8xf32>
  } : (tensor<8xf32>) -> ()
  return
}

// -----

// expected-error @+2 {{unregistered operation 'sdy.all_gather'}}
// expected-note @+1 {{supported sdy ops: manual_computation, mesh, reshard, return, sharding_constraint}}
"sdy.all_gather"() : () -> ()
