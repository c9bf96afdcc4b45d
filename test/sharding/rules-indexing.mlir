// RUN: alpa-opt %s -alpa-test-sharding-rule -verify-diagnostics -o /dev/null

func.func @gathers(%table: tensor<32x16xf32>, %i: tensor<8x4x1xi32>, %x: tensor<8x32xf32>, %pairs: tensor<8x2xi32>, %flags: tensor<32x16xi1>) {
  // An embedding: rows of the table add up over devices that hold parts of it.
  // expected-remark @+1 {{([d, c], [a, b, -]) -> [a, b, c] {a = 8, b = 4, c = 16, d = 32 reduction}}}
  %0 = "stablehlo.gather"(%table, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<32x16xf32>, tensor<8x4x1xi32>) -> tensor<8x4x16xf32>
  // Booleans by or.
  // expected-remark @+1 {{([d, c], [a, b, -]) -> [a, b, c] {a = 8, b = 4, c = 16, d = 32 reduction or}}}
  %1 = "stablehlo.gather"(%flags, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<32x16xi1>, tensor<8x4x1xi32>) -> tensor<8x4x16xi1>
  // Along an axis: dimension 0 is walked through by operand and indices alike.
  // expected-remark @+1 {{([a, c], [a, b, -]) -> [a, b] {a = 8, b = 4, c = 32 reduction}}}
  %2 = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<8x32xf32>, tensor<8x4x1xi32>) -> tensor<8x4xf32>
  // Two coordinates, either may be split.
  // expected-remark @+1 {{([b, c], [a, -]) -> [a] {a = 8, b = 32 reduction, c = 16 reduction}}}
  %3 = "stablehlo.gather"(%table, %pairs) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<32x16xf32>, tensor<8x2xi32>) -> tensor<8xf32>
  // Slices of a part of a dimension, wherever they start; result dimensions in front.
  // expected-remark @+1 {{([c, d], [a, b, -]) -> [c, d, a, b] {a = 8, b = 4, c = 32 sequential, d = 16}}}
  %4 = "stablehlo.gather"(%table, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [0, 1], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 4, 16>}> : (tensor<32x16xf32>, tensor<8x4x1xi32>) -> tensor<4x16x8x4xf32>
  // A dimension that no index speaks of is read at its first element.
  // expected-remark @+1 {{([c, -], [a, b, -]) -> [a, b, c] {a = 8, b = 4, c = 32 sequential}}}
  %5 = "stablehlo.gather"(%table, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [1], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 4, 1>}> : (tensor<32x16xf32>, tensor<8x4x1xi32>) -> tensor<8x4x4xf32>
  return
}

func.func @scatters(%table: tensor<32x16xf32>, %i: tensor<8x4x1xi32>, %rows: tensor<8x4x16xf32>, %x: tensor<8x32xf32>, %u: tensor<8x4xf32>, %columns: tensor<8x4x32xf32>, %slabs: tensor<8x4x4x16xf32>) {
  // Updates split by what they are or by where they go; the table goes in once.
  // expected-remark @+1 {{([d, c], [a, b, -], [a, b, c]) -> [d, c] {a = 8 reduction, b = 4 reduction, c = 16, d = 32} once 0}}
  %0 = "stablehlo.scatter"(%table, %i, %rows) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<32x16xf32>, tensor<8x4x1xi32>, tensor<8x4x16xf32>) -> tensor<32x16xf32>
  // expected-remark @+1 {{([d, c], [a, b, -], [a, b, c]) -> [d, c] {a = 8 reduction maximum, b = 4 reduction maximum, c = 16, d = 32} once 0}}
  %1 = "stablehlo.scatter"(%table, %i, %rows) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.maximum %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<32x16xf32>, tensor<8x4x1xi32>, tensor<8x4x16xf32>) -> tensor<32x16xf32>
  // Overwriting has no reducer, nor has a sum of other things.
  // expected-remark @+1 {{([d, c], [a, b, -], [a, b, c]) -> [d, c] {a = 8 sequential, b = 4 sequential, c = 16, d = 32}}}
  %2 = "stablehlo.scatter"(%table, %i, %rows) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    stablehlo.return %b : tensor<f32>
  }) : (tensor<32x16xf32>, tensor<8x4x1xi32>, tensor<8x4x16xf32>) -> tensor<32x16xf32>
  // expected-remark @+1 {{([d, c], [a, b, -], [a, b, c]) -> [d, c] {a = 8 sequential, b = 4 sequential, c = 16, d = 32}}}
  %3 = "stablehlo.scatter"(%table, %i, %rows) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %b, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<32x16xf32>, tensor<8x4x1xi32>, tensor<8x4x16xf32>) -> tensor<32x16xf32>
  // A batch of scatters.
  // expected-remark @+1 {{([a, c], [a, b, -], [a, b]) -> [a, c] {a = 8, b = 4 reduction, c = 32} once 0}}
  %4 = "stablehlo.scatter"(%x, %i, %u) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<8x32xf32>, tensor<8x4x1xi32>, tensor<8x4xf32>) -> tensor<8x32xf32>
  // Windows of a part of a dimension, wherever they go.
  // expected-remark @+1 {{([c, d], [a, b, -], [a, b, c, d]) -> [c, d] {a = 8 reduction, b = 4 reduction, c = 32 sequential, d = 16} once 0}}
  %5 = "stablehlo.scatter"(%table, %i, %slabs) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2, 3], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<32x16xf32>, tensor<8x4x1xi32>, tensor<8x4x4x16xf32>) -> tensor<32x16xf32>
  // A dimension that no index speaks of is written at its first element.
  // expected-remark @+1 {{([c, d], [a, b, -], [a, b, c]) -> [c, d] {a = 8 reduction, b = 4 reduction, c = 32, d = 16 sequential} once 0}}
  %6 = "stablehlo.scatter"(%table, %i, %columns) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [1], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %r = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %r : tensor<f32>
  }) : (tensor<32x16xf32>, tensor<8x4x1xi32>, tensor<8x4x32xf32>) -> tensor<32x16xf32>
  return
}
