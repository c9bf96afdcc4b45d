// RUN: alpa-opt %s -alpa-test-sharding-rule -verify-diagnostics -o /dev/null

func.func @slices(%x: tensor<8x16xf32>, %row: tensor<1x16xf32>, %i: tensor<i32>, %c: tensor<f32>, %v: tensor<8xf32>, %w: tensor<2xf32>) {
  // A dimension taken whole is split, a part or every second element of one is not.
  // expected-remark @+1 {{([a, b]) -> [a, b] {a = 8, b = 2 sequential}}}
  %0 = stablehlo.slice %x [0:8, 2:4] : (tensor<8x16xf32>) -> tensor<8x2xf32>
  // expected-remark @+1 {{([a, b]) -> [a, b] {a = 4 sequential, b = 16}}}
  %1 = stablehlo.slice %x [0:8:2, 0:16] : (tensor<8x16xf32>) -> tensor<4x16xf32>
  // expected-remark @+1 {{([a, b], [], []) -> [a, b] {a = 1 sequential, b = 16}}}
  %2 = stablehlo.dynamic_slice %x, %i, %i, sizes = [1, 16] : (tensor<8x16xf32>, tensor<i32>, tensor<i32>) -> tensor<1x16xf32>
  // expected-remark @+1 {{([a, b], [a, b], [], []) -> [a, b] {a = 8 sequential, b = 16}}}
  %3 = stablehlo.dynamic_update_slice %x, %row, %i, %i : (tensor<8x16xf32>, tensor<1x16xf32>, tensor<i32>, tensor<i32>) -> tensor<8x16xf32>
  // expected-remark @+1 {{([a], [a], []) -> [a] {a = 8 sequential}}}
  %4 = stablehlo.dynamic_update_slice %v, %w, %i : (tensor<8xf32>, tensor<2xf32>, tensor<i32>) -> tensor<8xf32>
  // expected-remark @+1 {{([a, b], []) -> [a, b] {a = 8, b = 18 sequential}}}
  %5 = stablehlo.pad %x, %c, low = [0, 1], high = [0, 1], interior = [0, 0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x18xf32>
  // Same size, but every row moves.
  // expected-remark @+1 {{([a, b], []) -> [a, b] {a = 8 sequential, b = 16}}}
  %6 = stablehlo.pad %x, %c, low = [1, 0], high = [-1, 0], interior = [0, 0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
  // expected-remark @+1 {{([a, b], []) -> [a, b] {a = 15 sequential, b = 16}}}
  %7 = stablehlo.pad %x, %c, low = [0, 0], high = [0, 0], interior = [1, 0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<15x16xf32>
  // expected-remark @+1 {{([a, b], [a, b]) -> [a, b] {a = 8, b = 32 sequential}}}
  %8 = stablehlo.concatenate %x, %x, dim = 1 : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x32xf32>
  // expected-remark @+1 {{([a, b]) -> [a, b] {a = 8, b = 16 sequential}}}
  %9 = stablehlo.reverse %x, dims = [1] : tensor<8x16xf32>
  return
}

// Along the sorted dimension every element may go anywhere.
func.func @sorts(%x: tensor<8x16xf32>, %i: tensor<8x16xi32>) {
  // expected-remark @+1 {{([a, b], [a, b]) -> [a, b], [a, b] {a = 8, b = 16 sequential}}}
  %0:2 = "stablehlo.sort"(%x, %i) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>, %k: tensor<i32>, %l: tensor<i32>):
    %5 = stablehlo.compare LT, %a, %b, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %5 : tensor<i1>
  }) : (tensor<8x16xf32>, tensor<8x16xi32>) -> (tensor<8x16xf32>, tensor<8x16xi32>)
  // expected-remark @+1 {{([a, b]) -> [a, b] {a = 8 sequential, b = 16}}}
  %1 = "stablehlo.sort"(%x) <{dimension = -2 : i64, is_stable = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %5 = stablehlo.compare LT, %a, %b, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %5 : tensor<i1>
  }) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  // expected-remark @+1 {{([a, b]) -> [a, b], [a, b] {a = 8, b = 3 sequential}}}
  %values, %indices = chlo.top_k(%x, k = 3) : tensor<8x16xf32> -> (tensor<8x3xf32>, tensor<8x3xi32>)
  return
}

// Batches of vectors and matrices; of an equation also its right-hand sides.
func.func @transforms(%x: tensor<8x16xf32>, %m: tensor<8x4x4xf32>, %b: tensor<8x4x6xf32>, %c: tensor<8x6x4xf32>, %z: tensor<8x4x4xcomplex<f32>>) {
  // expected-remark @+1 {{([a, b]) -> [a, b] {a = 8, b = 9 sequential}}}
  %0 = stablehlo.fft %x, type = RFFT, length = [16] : (tensor<8x16xf32>) -> tensor<8x9xcomplex<f32>>
  // expected-remark @+1 {{([a, b, c]) -> [a, b, c] {a = 8, b = 4 sequential, c = 4 sequential}}}
  %1 = stablehlo.fft %z, type = FFT, length = [4, 4] : (tensor<8x4x4xcomplex<f32>>) -> tensor<8x4x4xcomplex<f32>>
  // expected-remark @+1 {{([a, b, c]) -> [a, b, c] {a = 8, b = 4 sequential, c = 4 sequential}}}
  %2 = stablehlo.cholesky %m, lower = true : tensor<8x4x4xf32>
  // expected-remark @+1 {{([a, b, b], [a, b, c]) -> [a, b, c] {a = 8, b = 4 sequential, c = 6}}}
  %3 = "stablehlo.triangular_solve"(%m, %b) <{left_side = true, lower = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}> : (tensor<8x4x4xf32>, tensor<8x4x6xf32>) -> tensor<8x4x6xf32>
  // expected-remark @+1 {{([a, b, b], [a, c, b]) -> [a, c, b] {a = 8, b = 4 sequential, c = 6}}}
  %4 = "stablehlo.triangular_solve"(%m, %c) <{left_side = false, lower = true, transpose_a = #stablehlo<transpose TRANSPOSE>, unit_diagonal = false}> : (tensor<8x4x4xf32>, tensor<8x6x4xf32>) -> tensor<8x6x4xf32>
  return
}
