// RUN: alpa-opt %s -alpa-test-sharding-rule -verify-diagnostics -o /dev/null

func.func @shapes(%x: tensor<8x16xf32>, %y: tensor<8x1xf32>) {
  // expected-remark @+1 {{([b, c]) -> [a, b, c] {a = 3, b = 8, c = 16}}}
  %0 = stablehlo.broadcast_in_dim %x, dims = [1, 2] : (tensor<8x16xf32>) -> tensor<3x8x16xf32>
  // A dimension of size 1 that grows is not split in the operand.
  // expected-remark @+1 {{([a, -]) -> [a, b] {a = 8, b = 16}}}
  %1 = stablehlo.broadcast_in_dim %y, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x16xf32>
  // expected-remark @+1 {{([c, a]) -> [a, b, c] {a = 16, b = 3, c = 8}}}
  %2 = stablehlo.broadcast_in_dim %x, dims = [2, 0] : (tensor<8x16xf32>) -> tensor<16x3x8xf32>
  // expected-remark @+1 {{([b, a]) -> [a, b] {a = 16, b = 8}}}
  %3 = stablehlo.transpose %x, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
  return
}

// Split and merged dimensions share their factors from the major side.
func.func @reshapes(%x: tensor<8x16xf32>, %y: tensor<8x1xf32>, %z: tensor<6x4xf32>, %w: tensor<4x6x5xf32>, %e: tensor<0x4xf32>, %u: tensor<3x4xf32>, %one: tensor<1x1xf32>) {
  // expected-remark @+1 {{([a, b.c]) -> [a, b, c] {a = 8, b = 4, c = 4}}}
  %0 = stablehlo.reshape %x : (tensor<8x16xf32>) -> tensor<8x4x4xf32>
  // expected-remark @+1 {{([a, b]) -> [a.b] {a = 8, b = 16}}}
  %1 = stablehlo.reshape %x : (tensor<8x16xf32>) -> tensor<128xf32>
  // expected-remark @+1 {{([a.b, c]) -> [a, b.c] {a = 2, b = 3, c = 4}}}
  %2 = stablehlo.reshape %z : (tensor<6x4xf32>) -> tensor<2x12xf32>
  // Neither 6 nor 4 divides the other: halves match, what is inside of them does not.
  // expected-remark @+1 {{([a.b, b]) -> [a.b, b] {a = 2, b = 3 sequential}}}
  %3 = stablehlo.reshape %z : (tensor<6x4xf32>) -> tensor<4x6xf32>
  // 3 and 4 share nothing, up to where both have 12 elements.
  // expected-remark @+1 {{([a, a]) -> [a, a] {a = 3 sequential}}}
  %4 = stablehlo.reshape %u : (tensor<3x4xf32>) -> tensor<4x3xf32>
  // expected-remark @+1 {{([a.b, b, c]) -> [a.b, b, c] {a = 2, b = 2 sequential, c = 5}}}
  %5 = stablehlo.reshape %w : (tensor<4x6x5xf32>) -> tensor<6x4x5xf32>
  // expected-remark @+1 {{([a, -]) -> [-, a] {a = 8}}}
  %6 = stablehlo.reshape %y : (tensor<8x1xf32>) -> tensor<1x8xf32>
  // expected-remark @+1 {{([-, -]) -> [-, -] {}}}
  %7 = stablehlo.reshape %e : (tensor<0x4xf32>) -> tensor<2x0xf32>
  // expected-remark @+1 {{([-, -]) -> [] {}}}
  %8 = stablehlo.reshape %one : (tensor<1x1xf32>) -> tensor<f32>
  return
}
