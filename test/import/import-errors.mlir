// RUN: alpa-opt %s -split-input-file -verify-diagnostics -alpa-import

// expected-error @below {{the module has no function @main to import}}
module {
}

// -----

func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{calls @f, which calls itself; recursion cannot be planned}}
  %0 = func.call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func private @g(tensor<4xf32>) -> tensor<4xf32>
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @below {{calls @g, which has no body}}
  %0 = func.call @g(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func public @main() -> tensor<ui32> {
  // expected-error @below {{belongs to a program that is already partitioned}}
  %0 = stablehlo.partition_id : tensor<ui32>
  return %0 : tensor<ui32>
}

// -----

// expected-error @below {{argument 1 needs alpa.kind = "state" or "batch"}}
func.func public @main(%a: tensor<4xf32> {alpa.kind = "state"}, %b: tensor<4xf32>) {
  return
}

// -----

// expected-error @below {{argument 0 is of kind "batch" but has no dimension to split}}
func.func public @main(%a: tensor<f32> {alpa.kind = "batch"}) {
  return
}

// -----

// expected-error @below {{result 0 carries both argument 0 and argument 1}}
func.func public @main(%a: tensor<f32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %b: tensor<f32> {alpa.kind = "state", alpa.carried_by = 0 : i64}) -> tensor<f32> {
  return %a : tensor<f32>
}

// -----

func.func public @main(%x: tensor<4xf32>, %n: tensor<1xi32>) -> tensor<?xf32> {
  // expected-error @below {{has sizes that do not follow from constants and types; write the step for arrays of fixed shapes}}
  %0 = stablehlo.dynamic_reshape %x, %n : (tensor<4xf32>, tensor<1xi32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// -----

func.func public @main(%x: tensor<4xf32>) -> tensor<?xf32> {
  %n = stablehlo.constant dense<5> : tensor<1xi32>
  // expected-error @below {{reshape_c2: expected a result of 4 elements, got 5}}
  %0 = stablehlo.dynamic_reshape %x, %n : (tensor<4xf32>, tensor<1xi32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// -----

func.func public @main(%x: tensor<4xf32>) -> tensor<?xf32> {
  // 127 + 1 is -128 of i8.
  %a = stablehlo.constant dense<127> : tensor<1xi8>
  %b = stablehlo.constant dense<1> : tensor<1xi8>
  %n = stablehlo.add %a, %b : tensor<1xi8>
  // expected-error @below {{has sizes that do not follow from constants and types}}
  %0 = stablehlo.dynamic_reshape %x, %n : (tensor<4xf32>, tensor<1xi8>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// -----

func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "stablehlo.map"(%x) <{dimensions = array<i64: 0>}> ({
  ^bb0(%a: tensor<f32>):
    // expected-error @below {{is in a stablehlo.map, but does not act element by element; write the computation over whole arrays, as jax.vmap does}}
    %1 = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %2 = stablehlo.slice %1 [0:1] : (tensor<2xf32>) -> tensor<1xf32>
    %3 = stablehlo.reshape %2 : (tensor<1xf32>) -> tensor<f32>
    stablehlo.return %3 : tensor<f32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func public @main(%x: tensor<4x3xf32>, %s: tensor<f32>) -> tensor<4xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  // expected-error @below {{reads in its body a value that is computed outside of it; make it an operand, or compute it in the body}}
  %0 = stablehlo.reduce(%x init: %z) across dimensions = [1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<4xf32>
    reducer(%a: tensor<f32>, %b: tensor<f32>) {
      %m = stablehlo.minimum %a, %s : tensor<f32>
      stablehlo.return %m : tensor<f32>
    }
  return %0 : tensor<4xf32>
}

// -----

func.func public @main(%x: tensor<2x2xf32>) -> tensor<2x2xf32> {
  // expected-error @below {{is the resource 'weights', which the file does not have; write it as `dense<..>`}}
  %w = stablehlo.constant dense_resource<weights> : tensor<2x2xf32>
  %0 = stablehlo.add %x, %w : tensor<2x2xf32>
  return %0 : tensor<2x2xf32>
}

// -----

// expected-error @below {{argument 0 is donated to result 7 : i32, but there are 1 results}}
func.func public @main(%x: tensor<2xf32> {tf.aliasing_output = 7 : i32}) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}
