// RUN: alpa-opt %s -alpa-test-sharding-rule -verify-diagnostics -o /dev/null

// Dots: batch dimensions, rows, columns and a sum; several of each.
func.func @dots(%x: tensor<8x4x16xf32>, %y: tensor<8x16x2xf32>, %v: tensor<16xf32>, %b: tensor<4x6xi1>, %c: tensor<6x8xi1>, %s: tensor<2x3x4x5x6xf32>, %t: tensor<3x5x7x2x4xf32>) {
  // expected-remark @+1 {{([a, b, d], [a, d, c]) -> [a, b, c] {a = 8, b = 4, c = 2, d = 16 reduction} heavy}}
  %0 = stablehlo.dot_general %x, %y, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<8x4x16xf32>, tensor<8x16x2xf32>) -> tensor<8x4x2xf32>
  // A vector on either side, and a product of all pairs.
  // expected-remark @+1 {{([a], [a]) -> [] {a = 16 reduction} heavy}}
  %1 = stablehlo.dot_general %v, %v, contracting_dims = [0] x [0] : (tensor<16xf32>, tensor<16xf32>) -> tensor<f32>
  // expected-remark @+1 {{([a], [b]) -> [a, b] {a = 16, b = 16} heavy}}
  %2 = stablehlo.dot_general %v, %v, contracting_dims = [] x [] : (tensor<16xf32>, tensor<16xf32>) -> tensor<16x16xf32>
  // expected-remark @+1 {{([b, a, e, f, c], [a, f, d, b, e]) -> [a, b, c, d] {a = 3, b = 2, c = 6, d = 7, e = 4 reduction, f = 5 reduction} heavy}}
  %3 = stablehlo.dot_general %s, %t, batching_dims = [1, 0] x [0, 3], contracting_dims = [2, 3] x [4, 1] : (tensor<2x3x4x5x6xf32>, tensor<3x5x7x2x4xf32>) -> tensor<3x2x6x7xf32>
  // Booleans are summed by or.
  // expected-remark @+1 {{([a, c], [c, b]) -> [a, b] {a = 4, b = 8, c = 6 reduction or} heavy}}
  %4 = stablehlo.dot_general %b, %c, contracting_dims = [1] x [0] : (tensor<4x6xi1>, tensor<6x8xi1>) -> tensor<4x8xi1>
  return
}

func.func @convolutions(%image: tensor<8x16x16x4xf32>, %kernel: tensor<3x3x4x6xf32>, %grouped: tensor<3x3x2x6xf32>, %point: tensor<1x1x4x6xf32>, %patch: tensor<4x4x4x6xf32>, %one: tensor<8x1x1x4xf32>) {
  // The image's height and width stay whole under a padded window.
  // expected-remark @+1 {{([b, f, h, d], [g, i, d, e]) -> [b, f, h, e] {a = 1, b = 8, c = 1, d = 4 reduction, e = 6, f = 16 window, g = 3 window, h = 16 window, i = 3 window} heavy}}
  %0 = stablehlo.convolution(%image, %kernel) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<8x16x16x4xf32>, tensor<3x3x4x6xf32>) -> tensor<8x16x16x6xf32>
  // Groups of features are split, features of a group are not.
  // expected-remark @+1 {{([b, f, h, c.d], [g, i, d, c.e]) -> [b, f, h, c.e] {a = 1, b = 8, c = 2, d = 2 reduction, e = 3, f = 16 window, g = 3 window, h = 16 window, i = 3 window} heavy}}
  %1 = stablehlo.convolution(%image, %grouped) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 2 : i64} : (tensor<8x16x16x4xf32>, tensor<3x3x2x6xf32>) -> tensor<8x16x16x6xf32>
  // Groups of the batch, which come out as features.
  // expected-remark @+1 {{([a.b, f, h, d], [g, i, d, a.e]) -> [b, f, h, a.e] {a = 2, b = 4, c = 1, d = 4 reduction, e = 3, f = 16 window, g = 3 window, h = 16 window, i = 3 window} heavy}}
  %2 = stablehlo.convolution(%image, %kernel) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 2 : i64, feature_group_count = 1 : i64} : (tensor<8x16x16x4xf32>, tensor<3x3x4x6xf32>) -> tensor<4x16x16x6xf32>
  // A window of one element.
  // expected-remark @+1 {{([b, f, h, d], [g, i, d, e]) -> [b, f, h, e] {a = 1, b = 8, c = 1, d = 4 reduction, e = 6, f = 16, g = 1 window, h = 16, i = 1 window} heavy}}
  %3 = stablehlo.convolution(%image, %point) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<8x16x16x4xf32>, tensor<1x1x4x6xf32>) -> tensor<8x16x16x6xf32>
  // Patches side by side, and one element of each tile of two.
  // expected-remark @+1 {{([b, f.g, i.j, d], [h, k, d, e]) -> [b, f, i, e] {a = 1, b = 8, c = 1, d = 4 reduction, e = 6, f = 4, g = 4 window, h = 4 window, i = 4, j = 4 window, k = 4 window} heavy}}
  %4 = stablehlo.convolution(%image, %patch) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [4, 4]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<8x16x16x4xf32>, tensor<4x4x4x6xf32>) -> tensor<8x4x4x6xf32>
  // expected-remark @+1 {{([b, f.g, i.j, d], [h, k, d, e]) -> [b, f, i, e] {a = 1, b = 8, c = 1, d = 4 reduction, e = 6, f = 8, g = 2 window, h = 1 window, i = 8, j = 2 window, k = 1 window} heavy}}
  %5 = stablehlo.convolution(%image, %point) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<8x16x16x4xf32>, tensor<1x1x4x6xf32>) -> tensor<8x8x8x6xf32>
  // Tiles only look apart: zeros between the elements, a window spread wider than its
  // stride, an image moved by one.
  // expected-remark @+1 {{([b, f, h, d], [g, i, d, e]) -> [b, f, h, e] {a = 1, b = 8, c = 1, d = 4 reduction, e = 6, f = 16 window, g = 1 window, h = 16 window, i = 1 window} heavy}}
  %6 = stablehlo.convolution(%image, %point) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {lhs_dilate = [2, 2]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<8x16x16x4xf32>, tensor<1x1x4x6xf32>) -> tensor<8x31x31x6xf32>
  // expected-remark @+1 {{([b, f, h, d], [g, i, d, e]) -> [b, f, h, e] {a = 1, b = 8, c = 1, d = 4 reduction, e = 6, f = 16 window, g = 3 window, h = 16 window, i = 3 window} heavy}}
  %7 = stablehlo.convolution(%image, %kernel) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [4, 4], pad = [[0, 1], [0, 1]], rhs_dilate = [2, 2]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<8x16x16x4xf32>, tensor<3x3x4x6xf32>) -> tensor<8x4x4x6xf32>
  // expected-remark @+1 {{([b, f, h, d], [g, i, d, e]) -> [b, f, h, e] {a = 1, b = 8, c = 1, d = 4 reduction, e = 6, f = 16 window, g = 1 window, h = 16 window, i = 1 window} heavy}}
  %8 = stablehlo.convolution(%image, %point) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {pad = [[1, -1], [-1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<8x16x16x4xf32>, tensor<1x1x4x6xf32>) -> tensor<8x16x16x6xf32>
  return
}

func.func @ragged(%rows: tensor<16x8xf32>, %groups: tensor<4x8x6xf32>, %sizes: tensor<4xi32>, %y: tensor<16x6xf32>, %b: tensor<4x16x8xf32>, %c: tensor<4x8x6xf32>) {
  // Rows with a matrix for each group, a sum for each group, a batch of groups.
  // expected-remark @+1 {{([a, c], [-, c, b], [-]) -> [a, b] {a = 16, b = 6, c = 8 reduction} heavy}}
  %0 = "chlo.ragged_dot"(%rows, %groups, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<16x8xf32>, tensor<4x8x6xf32>, tensor<4xi32>) -> tensor<16x6xf32>
  // expected-remark @+1 {{([d, b], [d, c], [-]) -> [a, b, c] {a = 4 sequential, b = 8, c = 6, d = 16 reduction} heavy}}
  %1 = "chlo.ragged_dot"(%rows, %y, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0], lhs_ragged_dimensions = [0], rhs_group_dimensions = []>}> : (tensor<16x8xf32>, tensor<16x6xf32>, tensor<4xi32>) -> tensor<4x8x6xf32>
  // expected-remark @+1 {{([a, b, d], [a, d, c], [-]) -> [a, b, c] {a = 4 sequential, b = 16, c = 6, d = 8 reduction} heavy}}
  %2 = "chlo.ragged_dot"(%b, %c, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = []>}> : (tensor<4x16x8xf32>, tensor<4x8x6xf32>, tensor<4xi32>) -> tensor<4x16x6xf32>
  return
}

func.func @grouped(%rows: tensor<16x8xf32>, %weights: tensor<4x8x6xf32>, %groups: tensor<16xi32>, %y: tensor<16x6xf32>) {
  // A device that knows some groups gives the rows of these; gradients of the others' weights
  // it does not make.
  // expected-remark @+1 {{([a, d], [c, d, b], [a]) -> [a, b] {a = 16, b = 6, c = 4 reduction, d = 8 reduction} heavy}}
  %0 = alpa.grouped_dot %rows, %weights of %groups {contracting = 1 : i64} : (tensor<16x8xf32>, tensor<4x8x6xf32>, tensor<16xi32>) -> tensor<16x6xf32>
  // expected-remark @+1 {{([a, d], [c, b, d], [a]) -> [a, b] {a = 16, b = 8, c = 4 reduction, d = 6 reduction} heavy}}
  %1 = alpa.grouped_dot %y, %weights of %groups {contracting = 2 : i64} : (tensor<16x6xf32>, tensor<4x8x6xf32>, tensor<16xi32>) -> tensor<16x8xf32>
  // expected-remark @+1 {{([d, b], [d, c], [d]) -> [a, b, c] {a = 4, b = 8, c = 6, d = 16 reduction} heavy}}
  %2 = alpa.grouped_sum %rows, %y of %groups : (tensor<16x8xf32>, tensor<16x6xf32>, tensor<16xi32>) -> tensor<4x8x6xf32>
  return
}
