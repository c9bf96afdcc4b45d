// A step of narrower numbers.
// RUN: alpa-opt %s --alpa-lower-precision -split-input-file -verify-diagnostics | FileCheck %s -DLOW=bf16
// RUN: not alpa-opt %s --alpa-lower-precision=dtype=float16 -split-input-file 2>/dev/null | FileCheck %s -DLOW=f16
// RUN: not alpa-opt %s --alpa-lower-precision=dtype=float64 -split-input-file 2>&1 | FileCheck %s --check-prefix=OPTION
// OPTION: alpa-lower-precision: dtype must be bfloat16 or float16, got 'float64'

// Floating-point numbers of any wider type, and what the sizes say stays.

// CHECK: func.func @main
// CHECK-SAME: (%{{.*}}: tensor<8x8x[[LOW]]> {{.*}}, %{{.*}}: tensor<4x3x8x[[LOW]]> {{.*}}, %{{.*}}: tensor<12xi32> {{.*}}) -> (tensor<12x[[LOW]]>, tensor<12xi32>)
func.func @main(%w: tensor<8x8xf32> {alpa.kind = "state"},
                %x: tensor<4x3x8xf64> {alpa.kind = "batch"},
                %i: tensor<12xi32> {alpa.kind = "batch"}) -> (tensor<12xf32>, tensor<12xi32>) {
  // CHECK: stablehlo.reshape {{.*}} -> tensor<12x8x[[LOW]]>
  %0 = stablehlo.reshape %x : (tensor<4x3x8xf64>) -> tensor<12x8xf64>
  // CHECK: stablehlo.convert {{.*}}tensor<12x8x[[LOW]]>
  %c = stablehlo.convert %0 : (tensor<12x8xf64>) -> tensor<12x8xf32>
  // The algorithm named the types of before.
  // CHECK: stablehlo.dot_general
  // CHECK-NOT: algorithm
  // CHECK-SAME: -> tensor<12x8x[[LOW]]>
  %1 = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = f32, rhs_precision_type = f32, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<12x8xf32>, tensor<8x8xf32>) -> tensor<12x8xf32>
  // CHECK: stablehlo.constant dense<1.250000e-01> : tensor<[[LOW]]>
  %n = stablehlo.constant dense<0.125> : tensor<f32>
  %2 = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<f32>) -> tensor<12x8xf32>
  %3 = stablehlo.multiply %1, %2 : tensor<12x8xf32>
  // CHECK: stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %k = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // Regions as well.
  // CHECK: stablehlo.reduce(%{{.*}} applies stablehlo.add {{.*}} -> tensor<12x[[LOW]]>
  %7 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<12x8xf32>, tensor<f32>) -> tensor<12xf32>
  // Bits of 32 make no number of 16, but their conversion is as long.
  // CHECK: %[[BITS:.+]] = stablehlo.convert {{.*}}(tensor<12x[[LOW]]>) -> tensor<12xi32>
  %8 = stablehlo.bitcast_convert %7 : (tensor<12xf32>) -> tensor<12xi32>
  // CHECK: stablehlo.add %{{.*}}, %[[BITS]] : tensor<12xi32>
  %9 = stablehlo.add %i, %8 : tensor<12xi32>
  return %7, %9 : tensor<12xf32>, tensor<12xi32>
}

// -----

// What is narrow already, and what is narrower, stays.

// CHECK: func.func @main(%{{.*}}: tensor<4xf16>, %{{.*}}: tensor<4xf8E4M3FN>
func.func @main(%a: tensor<4xf16>, %b: tensor<4xf8E4M3FN>) -> (tensor<4xf16>, tensor<4xf8E4M3FN>) {
  return %a, %b : tensor<4xf16>, tensor<4xf8E4M3FN>
}

// -----

// expected-error @below {{alpa-lower-precision: complex numbers have no form in bfloat16}}
func.func @main(%a: tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>> {
  return %a : tensor<4xcomplex<f32>>
}

// -----

// expected-error @below {{alpa-lower-precision: the module has no function @main}}
module {
}

// -----

// expected-error @below {{alpa-lower-precision: an op does not allow the new types}}
func.func @main() -> tensor<4xf32> {
  %0 = stablehlo.constant sparse<0, 1.0> : tensor<4xf32>
  return %0 : tensor<4xf32>
}
