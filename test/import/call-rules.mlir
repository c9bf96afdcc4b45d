// RUN: alpa-opt %s -split-input-file -alpa-import -verify-diagnostics | FileCheck %s

// Shardy's rule becomes ours where leading dimensions are independent; sizes follow from shapes
// where they can. A user's goes before it.
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<8x4x16xf32>) -> (tensor<8x4x16xf32>, tensor<8x4x16xf32>, tensor<8x16xf32>) {
  // CHECK: custom_call @batched(%{{.*}}) {{{.*}}alpa.sharding_rule = "i j k -> i l m need_replication={j, k, l, m}"
  // CHECK-NOT: sdy.sharding_rule
  %0 = stablehlo.custom_call @batched(%x) {mhlo.frontend_attributes = {num_batch_dims = "1"}, sdy.sharding_rule = #sdy.op_sharding_rule<([i, j, k])->([i, l, m]) {i=8, j=4, k=16, l=4, m=16}, custom>} : (tensor<8x4x16xf32>) -> tensor<8x4x16xf32>
  // CHECK: custom_call @given(%{{.*}}) {{{.*}}alpa.sharding_rule = "a b c -> a b c"
  %1 = stablehlo.custom_call @given(%x) {mhlo.frontend_attributes = {num_batch_dims = "1"}, alpa.sharding_rule = "a b c -> a b c", sdy.sharding_rule = #sdy.op_sharding_rule<([i, j, k])->([i, l, m]) {i=8, j=4, k=16, l=4, m=16}>} : (tensor<8x4x16xf32>) -> tensor<8x4x16xf32>
  // CHECK: custom_call @summed(%{{.*}}) {{{.*}}alpa.sharding_rule = "i j (k z_1) -> i (k z_1) {z_1=4} reduction={j} need_replication={j, k, z_1}"
  %2 = stablehlo.custom_call @summed(%x) {mhlo.frontend_attributes = {num_batch_dims = "1"}, sdy.sharding_rule = #sdy.op_sharding_rule<([i, j, kz_1])->([i, kz_1]) {i=8, j=4, k=4, z_1=4} reduction={j}>} : (tensor<8x4x16xf32>) -> tensor<8x16xf32>
  // CHECK: custom_call @communicates(%{{.*}}) {alpa.eqn = {{[^,]*}}, alpa.phase = {{[^,]*}}} :
  %3 = stablehlo.custom_call @communicates(%2) {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=16}>} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0, %1, %3 : tensor<8x4x16xf32>, tensor<8x4x16xf32>, tensor<8x16xf32>
}

// -----

func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error @+1 {{@f: sharding rule "a b -> a b c": result 0 has 2 dimensions, the rule 3 (column 8)}}
  %0 = stablehlo.custom_call @f(%x) {alpa.sharding_rule = "a b -> a b c"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error @+1 {{@f: sharding rule "a b -> b a": factor 'b' is 8 in result 0 and 4 before}}
  %0 = stablehlo.custom_call @f(%x) {alpa.sharding_rule = "a b -> b a"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error @+1 {{@f: sharding rule "a b, c -> a b": the call has 1 operands, the rule 2}}
  %0 = stablehlo.custom_call @f(%x) {alpa.sharding_rule = "a b, c -> a b"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error @+1 {{@f: sharding rule "a % -> a b": column 3: expected a name, '(', ',' or '->'}}
  %0 = stablehlo.custom_call @f(%x) {alpa.sharding_rule = "a % -> a b"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error @+1 {{@f: sharding rule "a b -> a b reduction={k}": column 23: no dimension has the factor 'k'}}
  %0 = stablehlo.custom_call @f(%x) {alpa.sharding_rule = "a b -> a b reduction={k}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error @+1 {{@f: sharding rule "a (b c) -> a (b c)": give the size of factor 'b', such as {b=64}}}
  %0 = stablehlo.custom_call @f(%x) {alpa.sharding_rule = "a (b c) -> a (b c)"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error @+1 {{@f: sharding rule "a (b c) -> a (b c) {c=3}": factors (b c) do not make up the 4 elements of operand 0}}
  %0 = stablehlo.custom_call @f(%x) {alpa.sharding_rule = "a (b c) -> a (b c) {c=3}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error @+1 {{factor 'b' is summed over and in a result}}
  %0 = stablehlo.custom_call @f(%x) {alpa.sharding_rule = "a b -> a b reduction={b}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error @+1 {{has side effects and a sharding rule}}
  %0 = stablehlo.custom_call @f(%x) {alpa.sharding_rule = "a b -> a b", has_side_effect = true} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

// The number of blocks stands in the call.
func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error @+1 {{@__gpu$xla.gpu.triton: sharding rule "a b -> a b need_replication={b}" splits a kernel that was compiled for the shapes of the whole call}}
  %0 = stablehlo.custom_call @__gpu$xla.gpu.triton(%x) {mhlo.backend_config = {grid_x = 8 : i32}, alpa.sharding_rule = "a b -> a b need_replication={b}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // CHECK: alpa.flops = 1.000000e+09
  %0 = stablehlo.custom_call @mosaic_gpu_v2(%x) {alpa.flops = 1.0e9 : f64, alpa.sharding_rule = "a b -> a b need_replication={a, b}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
