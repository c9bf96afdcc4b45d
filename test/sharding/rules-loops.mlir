// RUN: alpa-opt %s -alpa-test-sharding-rule -verify-diagnostics -o /dev/null

// A scanned layer: rows are carried whole through, features are summed in every
// iteration and cannot be split twice; the stack of weights is read at the counter.
func.func @scan(%w: tensor<5x16x16xf32>, %x: tensor<8x16xf32>) {
  // expected-remark @+1 {{() -> [] {}}}
  %zero = stablehlo.constant dense<0> : tensor<i32>
  // expected-remark @+1 {{() -> [] {}}}
  %one = stablehlo.constant dense<1> : tensor<i32>
  // expected-remark @+1 {{() -> [] {}}}
  %five = stablehlo.constant dense<5> : tensor<i32>
  // expected-remark @+1 {{([], [a, -], [-, -, -]) captures [], [], [] -> [], [a, -], [-, -, -] {a = 8} heavy}}
  %0:3 = stablehlo.while(%i = %zero, %h = %x, %ws = %w) : tensor<i32>, tensor<8x16xf32>, tensor<5x16x16xf32>
  cond {
    %1 = stablehlo.compare LT, %i, %five, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.dynamic_slice %ws, %i, %zero, %zero, sizes = [1, 16, 16] : (tensor<5x16x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x16xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x16x16xf32>) -> tensor<16x16xf32>
    %3 = stablehlo.dot_general %h, %2, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %4 = stablehlo.tanh %3 : tensor<8x16xf32>
    %5 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %5, %4, %ws : tensor<i32>, tensor<8x16xf32>, tensor<5x16x16xf32>
  }
  return
}

// Two layers: what is between them is split, and summed by the second. The matrices
// are used from outside.
func.func @captured(%w1: tensor<16x32xf32>, %w2: tensor<32x16xf32>, %x: tensor<8x16xf32>) {
  // expected-remark @+1 {{() -> [] {}}}
  %zero = stablehlo.constant dense<0> : tensor<i32>
  // expected-remark @+1 {{() -> [] {}}}
  %one = stablehlo.constant dense<1> : tensor<i32>
  // expected-remark @+1 {{() -> [] {}}}
  %five = stablehlo.constant dense<5> : tensor<i32>
  // expected-remark @+1 {{([], [a, c]) captures [], [c, b], [b, c], [] -> [], [a, c] {a = 8, b = 32, c = 16} heavy}}
  %0:2 = stablehlo.while(%i = %zero, %h = %x) : tensor<i32>, tensor<8x16xf32>
  cond {
    %1 = stablehlo.compare LT, %i, %five, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.dot_general %h, %w1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
    %2 = stablehlo.tanh %1 : tensor<8x32xf32>
    %3 = stablehlo.dot_general %2, %w2, contracting_dims = [1] x [0] : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
    %4 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %4, %3 : tensor<i32>, tensor<8x16xf32>
  }
  return
}

// The rows of the table and the rows of the indices are one class, because both are
// added to one vector; one axis for both would look up each device's rows in its part
// of the table only.
func.func @crossing(%table: tensor<8xf32>, %i: tensor<8x1xi32>, %y: tensor<8xf32>) {
  // expected-remark @+1 {{() -> [] {}}}
  %false = stablehlo.constant dense<false> : tensor<i1>
  // expected-remark @+1 {{([-], [a]) captures [], [-, -] -> [-], [a] {a = 8}}}
  %0:2 = stablehlo.while(%t = %table, %s = %y) : tensor<8xf32>, tensor<8xf32>
  cond {
    stablehlo.return %false : tensor<i1>
  } do {
    %1 = "stablehlo.gather"(%t, %i) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<8xf32>, tensor<8x1xi32>) -> tensor<8xf32>
    %2 = stablehlo.add %t, %1 : tensor<8xf32>
    stablehlo.return %2, %s : tensor<8xf32>, tensor<8xf32>
  }
  return
}

// Branches agree on what they return; the branch that does not transpose keeps rows
// and columns apart, the one that does not return its operand has nothing to keep.
func.func @branches(%index: tensor<i32>, %x: tensor<8x16xf32>, %w: tensor<16x4xf32>, %y: tensor<8x4xf32>) {
  // expected-remark @+1 {{([]) captures [a, c], [c, b], [a, b] -> [a, b], [a, c] {a = 8, b = 4, c = 16} heavy}}
  %0:2 = "stablehlo.case"(%index) ({
    %1 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    stablehlo.return %1, %x : tensor<8x4xf32>, tensor<8x16xf32>
  }, {
    %1 = stablehlo.negate %x : tensor<8x16xf32>
    stablehlo.return %y, %1 : tensor<8x4xf32>, tensor<8x16xf32>
  }) : (tensor<i32>) -> (tensor<8x4xf32>, tensor<8x16xf32>)
  // A body that says what device it runs on is not looked into.
  // expected-remark @+1 {{([]) -> [-, -] {}}}
  %2 = "stablehlo.case"(%index) ({
    %3 = stablehlo.partition_id : tensor<ui32>
    stablehlo.return %x : tensor<8x16xf32>
  }) : (tensor<i32>) -> tensor<8x16xf32>
  return
}

// A loop in a loop: the inner one keeps columns; rows are sorted. The vector that it
// also carries is another factor of it, and could not be split by the same axis.
func.func @nested(%x: tensor<8x16xf32>, %b: tensor<16xf32>) {
  // expected-remark @+1 {{() -> [] {}}}
  %true = stablehlo.constant dense<true> : tensor<i1>
  // expected-remark @+1 {{([-, a]) captures [], [b] -> [-, a] {a = 16, b = 16}}}
  %0 = stablehlo.while(%h = %x) : tensor<8x16xf32>
  cond {
    stablehlo.return %true : tensor<i1>
  } do {
    %1:2 = stablehlo.while(%k = %h, %v = %b) : tensor<8x16xf32>, tensor<16xf32>
    cond {
      stablehlo.return %true : tensor<i1>
    } do {
      %2 = "stablehlo.sort"(%k) <{dimension = 0 : i64, is_stable = true}> ({
      ^bb0(%l: tensor<f32>, %r: tensor<f32>):
        %5 = stablehlo.compare LT, %l, %r, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %5 : tensor<i1>
      }) : (tensor<8x16xf32>) -> tensor<8x16xf32>
      stablehlo.return %2, %v : tensor<8x16xf32>, tensor<16xf32>
    }
    %3 = stablehlo.tanh %1#0 : tensor<8x16xf32>
    stablehlo.return %3 : tensor<8x16xf32>
  }
  return
}

// Levels of a kernel that is called for each block are parallel, and blocks whole.
func.func @kernel_of_blocks(%x: tensor<2x4x8xf32>, %w: tensor<4x8xf32>, %s: tensor<f32>) -> tensor<2x4x6xf32> {
  // expected-remark @+1 {{([a, b, -], [b, -], []) -> [a, b, -], [a, b] {a = 2, b = 4} heavy}}
  %0:2 = alpa.map %x, %w, %s {dims = [array<i64: 0, 1>, array<i64: 1>, array<i64>], levels = 2 : i64} : (tensor<2x4x8xf32>, tensor<4x8xf32>, tensor<f32>) -> (tensor<2x4x6xf32>, tensor<2x4xf32>) {
  ^bb0(%block: tensor<8xf32>, %weight: tensor<8xf32>, %scale: tensor<f32>):
    %1:2 = stablehlo.custom_call @kernel(%block, %weight, %scale) : (tensor<8xf32>, tensor<8xf32>, tensor<f32>) -> (tensor<6xf32>, tensor<f32>)
    stablehlo.return %1#0, %1#1 : tensor<6xf32>, tensor<f32>
  }
  return %0#0 : tensor<2x4x6xf32>
}
