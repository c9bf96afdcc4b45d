// RUN: alpa-opt %s -split-input-file -verify-diagnostics -alpa-verify-sharding

module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @operand(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, S1]>}, %w: tensor<16x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>}) -> (tensor<8x4xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}) {
    // expected-error @below {{alpa_verify_sharding_c3: no strategy of the op has these shardings: operand 1 is [R, R], expected [S1, R]}}
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.shardings = [#alpa.sharding<[S0, R]>]} : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }
}

// -----

module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @result(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}) -> (tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, S1]>}) {
    // expected-error @below {{c3: no strategy of the op has these shardings: operand 0 is [S0, R], expected [S0, S1]}}
    %0 = stablehlo.tanh %x {alpa.shardings = [#alpa.sharding<[S0, S1]>]} : tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }
}

// -----

module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @partial(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, S1]>}) -> (tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}) {
    // No sum is left open: tanh of parts is not a part of a sum.
    // expected-error @below {{c3: no strategy of the op has these shardings: result 0 is [S0, R], expected [S0, S1]}}
    %0 = stablehlo.tanh %x {alpa.shardings = [#alpa.sharding<[S0, R]>]} : tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }
}

// -----

module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @sequential(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, S1]>}) -> (tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, S1]>}) {
    // expected-error @below {{c3: no strategy of the op has these shardings: operand 0 is [S0, S1], expected [S0, R]}}
    %0 = stablehlo.reverse %x, dims = [1] {alpa.shardings = [#alpa.sharding<[S0, S1]>]} : tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }
}

// -----

module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @uneven(%x: tensor<6x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}) -> (tensor<6x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}) {
    // expected-error @below {{c1: dimension 0 of 'tensor<6x16xf32>' is not divisible by its 4 pieces}}
    %0 = alpa.reshard %x {from = #alpa.sharding<[S0, R]>, through = [#alpa.sharding<[S01, R]>], to = #alpa.sharding<[S0, R]>} : tensor<6x16xf32>
    return %0 : tensor<6x16xf32>
  }
}

// -----

module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @step(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S01, R]>}) -> (tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[R, R]>}) {
    // expected-error @below {{c4: from [S01, R] to [R, R] is not one step}}
    %0 = alpa.reshard %x {from = #alpa.sharding<[S01, R]>, to = #alpa.sharding<[R, R]>} : tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }
}

// -----

module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @returned(%x: tensor<8xf32> {alpa.sharding = #alpa.sharding<[S0]>}) -> (tensor<8xf32> {alpa.sharding = #alpa.sharding<[R]>}) {
    // expected-error @below {{c5: value 0 is held as [S0], expected [R]}}
    return %x : tensor<8xf32>
  }
}

// -----

module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @early(%x: tensor<8xf32> {alpa.sharding = #alpa.sharding<[S0]>}) -> (tensor<8xf32> {alpa.sharding = #alpa.sharding<[S0]>}) {
    // expected-error @below {{c2: expected an op with `alpa.shardings` and without `alpa.use_shardings`; run alpa-insert-reshards first}}
    %0 = stablehlo.tanh %x : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// expected-error @below {{no module has an `alpa.mesh`; run alpa-solve-sharding, or alpa-slice-stages first}}
module {
}
