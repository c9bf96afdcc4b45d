// RUN: alpa-opt %s -alpa-test-sharding-rule -verify-diagnostics -o /dev/null

func.func @elementwise(%x: tensor<8x16xf32>, %p: tensor<i1>, %q: tensor<8x16xi1>, %c: tensor<f32>, %s: tensor<f32>, %i: tensor<8x4xi8>, %z: tensor<8x16xcomplex<f32>>) {
  // expected-remark @+1 {{([a, b], [a, b]) -> [a, b] {a = 8, b = 16}}}
  %0 = stablehlo.add %x, %x : tensor<8x16xf32>
  // A scalar predicate or bound is needed whole, one for each element is split too.
  // expected-remark @+1 {{([], [a, b], [a, b]) -> [a, b] {a = 8, b = 16}}}
  %1 = stablehlo.select %p, %x, %0 : tensor<i1>, tensor<8x16xf32>
  // expected-remark @+1 {{([a, b], [a, b], [a, b]) -> [a, b] {a = 8, b = 16}}}
  %2 = stablehlo.select %q, %x, %0 : tensor<8x16xi1>, tensor<8x16xf32>
  // expected-remark @+1 {{([], [a, b], []) -> [a, b] {a = 8, b = 16}}}
  %3 = stablehlo.clamp %c, %x, %c : (tensor<f32>, tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
  // expected-remark @+1 {{([a, b], [a, b], [a, b]) -> [a, b] {a = 8, b = 16}}}
  %4 = stablehlo.clamp %x, %0, %1 : tensor<8x16xf32>
  // expected-remark @+1 {{([a, b]) -> [a, b] {a = 8, b = 16}}}
  %5 = chlo.square %1 : tensor<8x16xf32> -> tensor<8x16xf32>
  // expected-remark @+1 {{([a, b], [a, b]) -> [a, b] {a = 8, b = 16}}}
  %6 = stablehlo.compare LT, %x, %0, FLOAT : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xi1>
  // expected-remark @+1 {{([a, b]) -> [a, b] {a = 8, b = 16}}}
  %7 = stablehlo.real %z : (tensor<8x16xcomplex<f32>>) -> tensor<8x16xf32>
  // expected-remark @+1 {{() -> [a, b] {a = 8, b = 16}}}
  %8 = stablehlo.iota dim = 1 : tensor<8x16xi32>
  // expected-remark @+1 {{() -> [a, b] {a = 8, b = 16}}}
  %9 = stablehlo.constant dense<1.0> : tensor<8x16xf32>
  // expected-remark @+1 {{([a, b]) -> [a, b] {a = 8, b = 16}}}
  %10 = stablehlo.reduce_precision %x, format = e8m7 : tensor<8x16xf32>
  // expected-remark @+1 {{([], []) -> [] {}}}
  %11 = stablehlo.add %s, %s : tensor<f32>
  // Each operand passes through on its own.
  // expected-remark @+1 {{([a, b], [c, d]) -> [a, b], [c, d] {a = 8, b = 16, c = 8, d = 16}}}
  %12:2 = stablehlo.optimization_barrier %x, %8 : tensor<8x16xf32>, tensor<8x16xi32>
  // The bytes of one element stay together.
  // expected-remark @+1 {{([a, -]) -> [a] {a = 8}}}
  %13 = stablehlo.bitcast_convert %i : (tensor<8x4xi8>) -> tensor<8xi32>
  // expected-remark @+1 {{([a, b]) -> [a, b, -] {a = 8, b = 16}}}
  %14 = stablehlo.bitcast_convert %x : (tensor<8x16xf32>) -> tensor<8x16x4xi8>
  return
}

// Whole: what is not looked into, and what parts cannot make alike.
func.func @whole(%x: tensor<8xf32>, %i: tensor<i32>, %key: tensor<2xui64>, %a: tensor<f32>, %shape: tensor<1xi64>) {
  // expected-remark @+1 {{([-]) -> [-] {}}}
  %0 = stablehlo.custom_call @f(%x) : (tensor<8xf32>) -> tensor<8xf32>
  // expected-remark @+1 {{([-]) -> [-], [-] {}}}
  %1:2 = stablehlo.rng_bit_generator %key, algorithm = THREE_FRY : (tensor<2xui64>) -> (tensor<2xui64>, tensor<8xui32>)
  // expected-remark @+1 {{([], [], [-]) -> [-] {}}}
  %2 = stablehlo.rng %a, %a, %shape, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<8xf32>
  // expected-remark @+1 {{([-]) -> [] {}}}
  %3 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<8xf32>) -> tensor<i32>
  // expected-remark @+1 {{([-], []) -> [] {}}}
  %4 = stablehlo.tuple %x, %i : tuple<tensor<8xf32>, tensor<i32>>
  // Devices are not the single-device program's to speak of.
  // expected-remark @+1 {{no rule}}
  %5 = stablehlo.partition_id : tensor<ui32>
  return
}
