// RUN: alpa-opt %s -alpa-test-sharding-rule -verify-diagnostics -o /dev/null

// The reducer decides how parts are combined; initial values go in once.
func.func @reduce(%x: tensor<8x16xf32>, %i: tensor<8x16xi32>, %p: tensor<8x16xi1>, %c: tensor<f32>, %z: tensor<i32>, %t: tensor<i1>) {
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 reduction} once 1}}
  %0 = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 reduction product} once 1}}
  %1 = stablehlo.reduce(%x init: %c) applies stablehlo.multiply across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 reduction maximum} once 1}}
  %2 = stablehlo.reduce(%x init: %c) applies stablehlo.maximum across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 reduction minimum} once 1}}
  %3 = stablehlo.reduce(%i init: %z) applies stablehlo.minimum across dimensions = [1] : (tensor<8x16xi32>, tensor<i32>) -> tensor<8xi32>
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 reduction or} once 1}}
  %4 = stablehlo.reduce(%p init: %t) applies stablehlo.or across dimensions = [1] : (tensor<8x16xi1>, tensor<i1>) -> tensor<8xi1>
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 reduction and} once 1}}
  %5 = stablehlo.reduce(%p init: %t) applies stablehlo.and across dimensions = [1] : (tensor<8x16xi1>, tensor<i1>) -> tensor<8xi1>
  // Of booleans a sum is an or, a product an and.
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 reduction or} once 1}}
  %6 = stablehlo.reduce(%p init: %t) applies stablehlo.add across dimensions = [1] : (tensor<8x16xi1>, tensor<i1>) -> tensor<8xi1>
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 reduction or} once 1}}
  %7 = stablehlo.reduce(%p init: %t) applies stablehlo.maximum across dimensions = [1] : (tensor<8x16xi1>, tensor<i1>) -> tensor<8xi1>
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 reduction and} once 1}}
  %8 = stablehlo.reduce(%p init: %t) applies stablehlo.minimum across dimensions = [1] : (tensor<8x16xi1>, tensor<i1>) -> tensor<8xi1>
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 reduction and} once 1}}
  %9 = stablehlo.reduce(%p init: %t) applies stablehlo.multiply across dimensions = [1] : (tensor<8x16xi1>, tensor<i1>) -> tensor<8xi1>
  // Collectives know no and, or, xor of the bits of integers.
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 sequential}}}
  %10 = stablehlo.reduce(%i init: %z) applies stablehlo.and across dimensions = [1] : (tensor<8x16xi32>, tensor<i32>) -> tensor<8xi32>
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 sequential}}}
  %11 = stablehlo.reduce(%i init: %z) applies stablehlo.or across dimensions = [1] : (tensor<8x16xi32>, tensor<i32>) -> tensor<8xi32>
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 sequential}}}
  %12 = stablehlo.reduce(%i init: %z) applies stablehlo.xor across dimensions = [1] : (tensor<8x16xi32>, tensor<i32>) -> tensor<8xi32>
  // Two dimensions, and none.
  // expected-remark @+1 {{([a, b], []) -> [] {a = 8 reduction, b = 16 reduction} once 1}}
  %13 = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<f32>
  // expected-remark @+1 {{([a, b], []) -> [a, b] {a = 8, b = 16} once 1}}
  %14 = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
  // Bodies that only look like sums.
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 sequential}}}
  %15 = "stablehlo.reduce"(%x, %c) <{dimensions = array<i64: 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %a : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 sequential}}}
  %16 = "stablehlo.reduce"(%x, %c) <{dimensions = array<i64: 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %a : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 sequential}}}
  %17 = "stablehlo.reduce"(%x, %c) <{dimensions = array<i64: 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %c : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  // An argmax has no collective of its own.
  // expected-remark @+1 {{([a, b], [a, b], [], []) -> [a], [a] {a = 8, b = 16 sequential}}}
  %argmax:2 = stablehlo.reduce(%x init: %c), (%i init: %z) across dimensions = [1] : (tensor<8x16xf32>, tensor<8x16xi32>, tensor<f32>, tensor<i32>) -> (tensor<8xf32>, tensor<8xi32>)
   reducer(%a: tensor<f32>, %b: tensor<f32>) (%k: tensor<i32>, %l: tensor<i32>)  {
    %gt = stablehlo.compare GT, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %value = stablehlo.select %gt, %a, %b : tensor<i1>, tensor<f32>
    %index = stablehlo.select %gt, %k, %l : tensor<i1>, tensor<i32>
    stablehlo.return %value, %index : tensor<f32>, tensor<i32>
  }
  return
}

func.func @windows(%x: tensor<8x16xf32>, %c: tensor<f32>, %image: tensor<8x16x16x4xf32>, %pooled: tensor<8x8x8x4xf32>) {
  // A running sum.
  // expected-remark @+1 {{([a, b], []) -> [a, b] {a = 8, b = 16 window}}}
  %0 = "stablehlo.reduce_window"(%x, %c) <{base_dilations = array<i64: 1, 1>, padding = dense<[[0, 0], [15, 0]]> : tensor<2x2xi64>, window_dilations = array<i64: 1, 1>, window_dimensions = array<i64: 1, 16>, window_strides = array<i64: 1, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
  // Pooling of tiles; of windows that overlap; of tiles with something between.
  // expected-remark @+1 {{([a, b.c, d.e, f], []) -> [a, b, d, f] {a = 8, b = 8, c = 2 window, d = 8, e = 2 window, f = 4}}}
  %1 = "stablehlo.reduce_window"(%image, %c) <{padding = dense<0> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8x16x16x4xf32>, tensor<f32>) -> tensor<8x8x8x4xf32>
  // expected-remark @+1 {{([a, b, c, d], []) -> [a, b, c, d] {a = 8, b = 16 window, c = 16 window, d = 4}}}
  %2 = "stablehlo.reduce_window"(%image, %c) <{padding = dense<[[0, 0], [0, 1], [1, 0], [0, 0]]> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 3, 3, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8x16x16x4xf32>, tensor<f32>) -> tensor<8x8x8x4xf32>
  // expected-remark @+1 {{([a, b.c, d.e, f], []) -> [a, b, d, f] {a = 8, b = 4, c = 4 window, d = 4, e = 4 window, f = 4}}}
  %3 = "stablehlo.reduce_window"(%image, %c) <{window_dimensions = array<i64: 1, 2, 3, 1>, window_strides = array<i64: 1, 4, 4, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8x16x16x4xf32>, tensor<f32>) -> tensor<8x4x4x4xf32>
  // Elements spread out, a window spread out, a last tile that is cut off, all moved by one.
  // expected-remark @+1 {{([a, b], []) -> [a, b] {a = 8, b = 16 window}}}
  %4 = "stablehlo.reduce_window"(%x, %c) <{base_dilations = array<i64: 1, 2>, window_dimensions = array<i64: 1, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x31xf32>
  // expected-remark @+1 {{([a, b], []) -> [a, b] {a = 8, b = 16 window}}}
  %5 = "stablehlo.reduce_window"(%x, %c) <{window_dilations = array<i64: 1, 2>, window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 2>, padding = dense<[[0, 0], [0, 1]]> : tensor<2x2xi64>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
  // expected-remark @+1 {{([a, b], []) -> [a, b] {a = 8, b = 16 window}}}
  %6 = "stablehlo.reduce_window"(%x, %c) <{window_dimensions = array<i64: 1, 3>, window_strides = array<i64: 1, 3>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x5xf32>
  // expected-remark @+1 {{([a, b], []) -> [a, b] {a = 8, b = 16 window}}}
  %7 = "stablehlo.reduce_window"(%x, %c) <{padding = dense<[[0, 0], [1, -1]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
  // Gradients of such poolings; one that is only moved.
  // expected-remark @+1 {{([a, b.c, d.e, f], [a, b, d, f], []) -> [a, b.c, d.e, f] {a = 8, b = 8, c = 2 window, d = 8, e = 2 window, f = 4}}}
  %8 = "stablehlo.select_and_scatter"(%image, %pooled, %c) <{padding = dense<0> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.compare GE, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %r : tensor<i1>
  }, {
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8x16x16x4xf32>, tensor<8x8x8x4xf32>, tensor<f32>) -> tensor<8x16x16x4xf32>
  // expected-remark @+1 {{([a, b, c, d], [a, b, c, d], []) -> [a, b, c, d] {a = 8, b = 16 window, c = 16 window, d = 4}}}
  %9 = "stablehlo.select_and_scatter"(%image, %pooled, %c) <{padding = dense<[[0, 0], [0, 1], [1, 0], [0, 0]]> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 3, 3, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.compare GE, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %r : tensor<i1>
  }, {
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8x16x16x4xf32>, tensor<8x8x8x4xf32>, tensor<f32>) -> tensor<8x16x16x4xf32>
  // expected-remark @+1 {{([a, b, c, d], [a, b, c, d], []) -> [a, b, c, d] {a = 8, b = 16 window, c = 16, d = 4}}}
  %10 = "stablehlo.select_and_scatter"(%image, %image, %c) <{padding = dense<[[0, 0], [1, -1], [0, 0], [0, 0]]> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 1, 1, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.compare GE, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %r : tensor<i1>
  }, {
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8x16x16x4xf32>, tensor<8x16x16x4xf32>, tensor<f32>) -> tensor<8x16x16x4xf32>
  return
}
