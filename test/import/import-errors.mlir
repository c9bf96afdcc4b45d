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
