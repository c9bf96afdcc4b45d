// RUN: alpa-opt %s -alpa-test-sharding-rule -verify-diagnostics -o /dev/null

func.func @elementwise(%x: tensor<8x16xf32>, %p: tensor<i1>) {
  // expected-remark @+1 {{([a, b], [a, b]) -> [a, b] {a = 8, b = 16}}}
  %0 = stablehlo.add %x, %x : tensor<8x16xf32>
  // expected-remark @+1 {{([], [a, b], [a, b]) -> [a, b] {a = 8, b = 16}}}
  %1 = stablehlo.select %p, %x, %0 : tensor<i1>, tensor<8x16xf32>
  // expected-remark @+1 {{([a, b]) -> [a, b] {a = 8, b = 16}}}
  %2 = chlo.square %1 : tensor<8x16xf32> -> tensor<8x16xf32>
  // expected-remark @+1 {{() -> [a, b] {a = 8, b = 16}}}
  %3 = stablehlo.iota dim = 1 : tensor<8x16xi32>
  // Each operand passes through on its own.
  // expected-remark @+1 {{([a, b], [c, d]) -> [a, b], [c, d] {a = 8, b = 16, c = 8, d = 16}}}
  %4:2 = stablehlo.optimization_barrier %x, %3 : tensor<8x16xf32>, tensor<8x16xi32>
  return
}

func.func @shapes(%x: tensor<8x16xf32>, %y: tensor<8x1xf32>, %z: tensor<6x4xf32>) {
  // expected-remark @+1 {{([b, c]) -> [a, b, c] {a = 3, b = 8, c = 16}}}
  %0 = stablehlo.broadcast_in_dim %x, dims = [1, 2] : (tensor<8x16xf32>) -> tensor<3x8x16xf32>
  // A dimension of size 1 that grows is not split in the operand.
  // expected-remark @+1 {{([a, -]) -> [a, b] {a = 8, b = 16}}}
  %1 = stablehlo.broadcast_in_dim %y, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x16xf32>
  // expected-remark @+1 {{([b, a]) -> [a, b] {a = 16, b = 8}}}
  %2 = stablehlo.transpose %x, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
  // expected-remark @+1 {{([a, b.c]) -> [a, b, c] {a = 8, b = 4, c = 4}}}
  %3 = stablehlo.reshape %x : (tensor<8x16xf32>) -> tensor<8x4x4xf32>
  // expected-remark @+1 {{([a, b]) -> [a.b] {a = 8, b = 16}}}
  %4 = stablehlo.reshape %x : (tensor<8x16xf32>) -> tensor<128xf32>
  // expected-remark @+1 {{([a.b, c]) -> [a, b.c] {a = 2, b = 3, c = 4}}}
  %5 = stablehlo.reshape %z : (tensor<6x4xf32>) -> tensor<2x12xf32>
  // Neither 6 nor 4 divides the other: nothing is split.
  // expected-remark @+1 {{([a, a]) -> [a, a] {a = 6 sequential}}}
  %6 = stablehlo.reshape %z : (tensor<6x4xf32>) -> tensor<4x6xf32>
  // expected-remark @+1 {{([a, -]) -> [-, a] {a = 8}}}
  %7 = stablehlo.reshape %y : (tensor<8x1xf32>) -> tensor<1x8xf32>
  return
}

func.func @slices(%x: tensor<8x16xf32>, %row: tensor<1x16xf32>, %i: tensor<i32>, %c: tensor<f32>) {
  // expected-remark @+1 {{([a, b]) -> [a, b] {a = 8, b = 2 sequential}}}
  %0 = stablehlo.slice %x [0:8, 2:4] : (tensor<8x16xf32>) -> tensor<8x2xf32>
  // expected-remark @+1 {{([a, b]) -> [a, b] {a = 8, b = 16 sequential}}}
  %1 = stablehlo.reverse %x, dims = [1] : tensor<8x16xf32>
  // expected-remark @+1 {{([a, b], [a, b], [], []) -> [a, b] {a = 8 sequential, b = 16}}}
  %2 = stablehlo.dynamic_update_slice %x, %row, %i, %i : (tensor<8x16xf32>, tensor<1x16xf32>, tensor<i32>, tensor<i32>) -> tensor<8x16xf32>
  // expected-remark @+1 {{([a, b], [], []) -> [a, b] {a = 1 sequential, b = 16}}}
  %3 = stablehlo.dynamic_slice %x, %i, %i, sizes = [1, 16] : (tensor<8x16xf32>, tensor<i32>, tensor<i32>) -> tensor<1x16xf32>
  // expected-remark @+1 {{([a, b], []) -> [a, b] {a = 8, b = 18 sequential}}}
  %4 = stablehlo.pad %x, %c, low = [0, 1], high = [0, 1], interior = [0, 0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x18xf32>
  // Same size, but every row moves.
  // expected-remark @+1 {{([a, b], []) -> [a, b] {a = 8 sequential, b = 16}}}
  %5 = stablehlo.pad %x, %c, low = [1, 0], high = [-1, 0], interior = [0, 0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
  // expected-remark @+1 {{([a, b], [a, b]) -> [a, b] {a = 8, b = 32 sequential}}}
  %6 = stablehlo.concatenate %x, %x, dim = 1 : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x32xf32>
  // expected-remark @+1 {{([a, b]) -> [a, b] {a = 8, b = 9 sequential}}}
  %7 = stablehlo.fft %x, type = RFFT, length = [16] : (tensor<8x16xf32>) -> tensor<8x9xcomplex<f32>>
  // expected-remark @+1 {{([a, b]) -> [a, b], [a, b] {a = 8, b = 3 sequential}}}
  %values, %indices = chlo.top_k(%x, k = 3) : tensor<8x16xf32> -> (tensor<8x3xf32>, tensor<8x3xi32>)
  return
}

func.func @contractions(%x: tensor<8x4x16xf32>, %y: tensor<8x16x2xf32>, %image: tensor<8x16x16x4xf32>, %kernel: tensor<3x3x4x6xf32>, %grouped: tensor<3x3x2x6xf32>) {
  // expected-remark @+1 {{([a, b, d], [a, d, c]) -> [a, b, c] {a = 8, b = 4, c = 2, d = 16 reduction} heavy}}
  %0 = stablehlo.dot_general %x, %y, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<8x4x16xf32>, tensor<8x16x2xf32>) -> tensor<8x4x2xf32>
  // expected-remark @+1 {{([b, f, i, d], [g, j, d, e]) -> [b, h, k, e] {a = 1 sequential, b = 8, c = 1, d = 4 reduction, e = 6, f = 16 window}}
  %1 = stablehlo.convolution(%image, %kernel) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<8x16x16x4xf32>, tensor<3x3x4x6xf32>) -> tensor<8x16x16x6xf32>
  // expected-remark @+1 {{([b, f, i, c.d], [g, j, d, c.e]) -> [b, h, k, c.e] {a = 1 sequential, b = 8, c = 2, d = 2 reduction, e = 3}}
  %2 = stablehlo.convolution(%image, %grouped) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 2 : i64} : (tensor<8x16x16x4xf32>, tensor<3x3x2x6xf32>) -> tensor<8x16x16x6xf32>
  return
}

func.func @reductions(%x: tensor<8x16xf32>, %i: tensor<8x16xi32>, %c: tensor<f32>, %z: tensor<i32>, %image: tensor<8x16x16x4xf32>) {
  // expected-remark @+1 {{([a, b], []) -> [a] {a = 8, b = 16 reduction}}}
  %0 = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  // An argmax has no collective of its own.
  // expected-remark @+1 {{([a, b], [a, b], [], []) -> [a], [a] {a = 8, b = 16 sequential}}}
  %1:2 = stablehlo.reduce(%x init: %c), (%i init: %z) across dimensions = [1] : (tensor<8x16xf32>, tensor<8x16xi32>, tensor<f32>, tensor<i32>) -> (tensor<8xf32>, tensor<8xi32>)
   reducer(%a: tensor<f32>, %b: tensor<f32>) (%k: tensor<i32>, %l: tensor<i32>)  {
    %5 = stablehlo.compare GT, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %6 = stablehlo.select %5, %a, %b : tensor<i1>, tensor<f32>
    %7 = stablehlo.select %5, %k, %l : tensor<i1>, tensor<i32>
    stablehlo.return %6, %7 : tensor<f32>, tensor<i32>
  }
  // A running sum.
  // expected-remark @+1 {{([a, b], []) -> [a, b] {a = 8, b = 16 window}}}
  %2 = "stablehlo.reduce_window"(%x, %c) <{base_dilations = array<i64: 1, 1>, padding = dense<[[0, 0], [15, 0]]> : tensor<2x2xi64>, window_dilations = array<i64: 1, 1>, window_dimensions = array<i64: 1, 16>, window_strides = array<i64: 1, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %5 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %5 : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
  // expected-remark @+1 {{([a, b, c, d], []) -> [a, b, c, d] {a = 8, b = 16 window, c = 16 window, d = 4}}}
  %3 = "stablehlo.reduce_window"(%image, %c) <{padding = dense<0> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %5 = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %5 : tensor<f32>
  }) : (tensor<8x16x16x4xf32>, tensor<f32>) -> tensor<8x8x8x4xf32>
  // expected-remark @+1 {{([a, b, c, d], [a, b, c, d], []) -> [a, b, c, d] {a = 8, b = 16 window, c = 16 window, d = 4}}}
  %4 = "stablehlo.select_and_scatter"(%image, %3, %c) <{padding = dense<0> : tensor<4x2xi64>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %5 = stablehlo.compare GE, %a, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %5 : tensor<i1>
  }, {
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %5 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %5 : tensor<f32>
  }) : (tensor<8x16x16x4xf32>, tensor<8x8x8x4xf32>, tensor<f32>) -> tensor<8x16x16x4xf32>
  // expected-remark @+1 {{([a, b]) -> [a, b] {a = 8, b = 16 sequential}}}
  %sorted = "stablehlo.sort"(%x) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %5 = stablehlo.compare LT, %a, %b, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %5 : tensor<i1>
  }) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return
}

func.func @indexing(%table: tensor<32x16xf32>, %i: tensor<8x4x1xi32>, %rows: tensor<8x4x16xf32>, %x: tensor<8x32xf32>) {
  // An embedding: rows of the table add up over devices that hold parts of it.
  // expected-remark @+1 {{([d, c], [a, b, -]) -> [a, b, c] {a = 8, b = 4, c = 16, d = 32 reduction}}}
  %0 = "stablehlo.gather"(%table, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<32x16xf32>, tensor<8x4x1xi32>) -> tensor<8x4x16xf32>
  // Along an axis: dimension 0 is walked through by operand and indices alike.
  // expected-remark @+1 {{([a, c], [a, b, -]) -> [a, b] {a = 8, b = 4, c = 32 reduction}}}
  %1 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<8x32xf32>, tensor<8x4x1xi32>) -> tensor<8x4xf32>
  // expected-remark @+1 {{([d, c], [a, b, -], [a, b, c]) -> [d, c] {a = 8 reduction, b = 4 reduction, c = 16, d = 32}}}
  %2 = "stablehlo.scatter"(%table, %i, %rows) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %5 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %5 : tensor<f32>
  }) : (tensor<32x16xf32>, tensor<8x4x1xi32>, tensor<8x4x16xf32>) -> tensor<32x16xf32>
  // Overwriting does not add up.
  // expected-remark @+1 {{([d, c], [a, b, -], [a, b, c]) -> [d, c] {a = 8 sequential, b = 4 sequential, c = 16, d = 32}}}
  %3 = "stablehlo.scatter"(%table, %i, %rows) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    stablehlo.return %b : tensor<f32>
  }) : (tensor<32x16xf32>, tensor<8x4x1xi32>, tensor<8x4x16xf32>) -> tensor<32x16xf32>
  return
}

func.func @opaque(%x: tensor<8xf32>, %i: tensor<i32>) {
  // expected-remark @+1 {{([-]) -> [-] {}}}
  %0 = stablehlo.custom_call @f(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return
}
