// RUN: alpa-opt %s -verify-diagnostics -split-input-file

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+3 {{unregistered operation 'stablehlo.einsum' found in dialect ('stablehlo') that does not allow unknown operations}}
  // expected-note @+2 {{stablehlo.einsum is an old form; StableHLO's pass stablehlo-legalize-deprecated-ops writes it anew}}
  // expected-note-re @+1 {{supported stablehlo ops: abs, add,{{.*}} while, xor}}
  %0 = "stablehlo.einsum"(%a, %a) <{einsum_config = "a,a->a"}> : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+3 {{unregistered operation 'stablehlo.einsum' found in dialect ('stablehlo') that does not allow unknown operations}}
  // expected-note @+2 {{stablehlo.einsum is an old form; StableHLO's pass stablehlo-legalize-deprecated-ops writes it anew}}
  // expected-note-re @+1 {{supported stablehlo ops: abs, add,{{.*}} while, xor}}
  %0 = stablehlo.einsum %a, %a, config = "a,a->a" : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+3 {{unregistered operation 'stablehlo.uniform_quantize'}}
  // expected-note @+2 {{stablehlo.uniform_quantize makes or reads quantized types, which are not supported}}
  // expected-note @+1 {{supported stablehlo ops}}
  %0 = stablehlo.uniform_quantize %a : (tensor<4xf32>) -> tensor<4xi8>
  return
}

// -----

func.func @f(%a: tensor<4x3xf32>, %n: tensor<i32>) {
  // expected-error @+3 {{unregistered operation 'stablehlo.set_dimension_size'}}
  // expected-note @+2 {{stablehlo.set_dimension_size has sizes that are known at run time only}}
  // expected-note @+1 {{supported stablehlo ops}}
  %0 = stablehlo.set_dimension_size %a, %n, dim = 1 : (tensor<4x3xf32>, tensor<i32>) -> tensor<4x?xf32>
  return
}

// -----

// expected-error @+1 {{quantized type !quant.uniform<i8:f32, 0.5:3> is not supported; write the program in integers and scales}}
func.func @f(%a: tensor<4x!quant.uniform<i8:f32, 0.5:3>>) {
  return
}

// -----

// Syntax.

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{expected the elements of a tensor, got 5 : i32}}
  %0 = stablehlo.constant 5 : i32
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{expected a format such as e5m10, got half}}
  %0 = stablehlo.reduce_precision %a, format = half : tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{expected a type from 2 operands to 1 result, got '(tensor<4xf32>) -> tensor<4xf32>'}}
  %0 = stablehlo.add %a, %a : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x4xf32>) {
  // expected-error @+1 {{expected DEFAULT, HIGH or HIGHEST, got BEST}}
  %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0], precision = [BEST, HIGH] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x4xf32>, %i: tensor<f32>) {
  // expected-error @+1 {{expected an op of two operands and one result of the same type, got stablehlo.sine}}
  %0 = stablehlo.reduce(%a init: %i) applies stablehlo.sine across dimensions = [0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x4xf32>, %i: tensor<2xi32>) {
  // expected-error @+1 {{unknown field offsets; expected one of offset_dims, collapsed_slice_dims, operand_batching_dims, start_indices_batching_dims, start_index_map, index_vector_dim}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offsets = [0]>, slice_sizes = array<i64: 1, 1>}> : (tensor<4x4xf32>, tensor<2xi32>) -> tensor<f32>
  return
}

// -----

func.func @f(%a: tensor<1x8x8x4xf32>, %w: tensor<3x3x4x4xf32>) {
  // expected-error @+1 {{dimension b is named twice}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, b]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x8x8x4xf32>, tensor<3x3x4x4xf32>) -> tensor<1x6x6x4xf32>
  return
}

// -----

// Elementwise.

func.func @f(%a: tensor<4xf32>, %b: tensor<5xf32>) {
  // expected-error @+1 {{requires the same type for all operands and results}}
  %0 = stablehlo.add %a, %b : (tensor<4xf32>, tensor<5xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xi1>) {
  // expected-error @+1 {{must be ranked tensor of}}
  %0 = stablehlo.exponential %a : tensor<4xi1>
  return
}

// -----

func.func @f(%a: tensor<4xcomplex<f32>>) {
  // expected-error @+1 {{abs_c2: expected result type 'tensor<4xf32>', got 'tensor<4xf64>'}}
  %0 = stablehlo.abs %a : (tensor<4xcomplex<f32>>) -> tensor<4xf64>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{reduce_precision_c2: expected at least 1 exponent bit, got 0}}
  %0 = stablehlo.reduce_precision %a, format = e0m3 : tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{compare_c3: elements of type 'f32' are not compared as SIGNED}}
  %0 = stablehlo.compare LT, %a, %a, SIGNED : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  return
}

// -----

func.func @f(%a: tensor<4xcomplex<f32>>) {
  // expected-error @+1 {{compare_c4: complex numbers have no order, got LT}}
  %0 = stablehlo.compare LT, %a, %a : (tensor<4xcomplex<f32>>, tensor<4xcomplex<f32>>) -> tensor<4xi1>
  return
}

// -----

func.func @f(%a: tensor<4xf32>, %b: tensor<3xf32>) {
  // expected-error @+1 {{clamp_c1: expected min to be a scalar or of type 'tensor<4xf32>', got 'tensor<3xf32>'}}
  %0 = stablehlo.clamp %b, %a, %a : (tensor<3xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%p: tensor<3xi1>, %a: tensor<4xf32>) {
  // expected-error @+1 {{select_c1: expected pred to be a scalar or of the shape of 'tensor<4xf32>', got 'tensor<3xi1>'}}
  %0 = stablehlo.select %p, %a, %a : tensor<3xi1>, tensor<4xf32>
  return
}

// -----

// Shapes.

func.func @f() {
  // expected-error @+1 {{constant_c1: expected result type 'tensor<f32>', got 'tensor<2xf32>'}}
  %0 = "stablehlo.constant"() <{value = dense<0.0> : tensor<f32>}> : () -> tensor<2xf32>
  return
}

// -----

func.func @f() {
  // expected-error @+1 {{iota_c1: expected iota_dimension in [0, 1), got 1}}
  %0 = stablehlo.iota dim = 1 : tensor<3xi32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{bitcast_convert_c1: the bits of 'tensor<4xf32>' do not make up 'tensor<4xf64>'}}
  %0 = stablehlo.bitcast_convert %a : (tensor<4xf32>) -> tensor<4xf64>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{broadcast_in_dim_c3: expected dims in [0, 2), got 2}}
  %0 = stablehlo.broadcast_in_dim %a, dims = [2] : (tensor<4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{broadcast_in_dim_c5: expected dimension 0 of the operand to have size 1 or 5, got 4}}
  %0 = stablehlo.broadcast_in_dim %a, dims = [1] : (tensor<4xf32>) -> tensor<4x5xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{reshape_c2: expected a result of 4 elements, got 6}}
  %0 = stablehlo.reshape %a : (tensor<4xf32>) -> tensor<2x3xf32>
  return
}

// -----

func.func @f(%a: tensor<4x5xf32>) {
  // expected-error @+1 {{reverse_c2: dimension 0 is named twice}}
  %0 = stablehlo.reverse %a, dims = [0, 0] : tensor<4x5xf32>
  return
}

// -----

func.func @f(%a: tensor<4x5xf32>) {
  // expected-error @+1 {{transpose_c2: dimension 1 is named twice in dims}}
  %0 = stablehlo.transpose %a, dims = [1, 1] : (tensor<4x5xf32>) -> tensor<5x5xf32>
  return
}

// -----

func.func @f(%a: tensor<4x5xf32>) {
  // expected-error @+1 {{transpose_c3: expected result type 'tensor<5x4xf32>', got 'tensor<4x5xf32>'}}
  %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<4x5xf32>) -> tensor<4x5xf32>
  return
}

// -----

func.func @f(%a: tensor<4x5xf32>, %b: tensor<4x6xf32>) {
  // expected-error @+1 {{concatenate_c2: expected shapes that differ in dimension 0 only}}
  %0 = stablehlo.concatenate %a, %b, dim = 0 : (tensor<4x5xf32>, tensor<4x6xf32>) -> tensor<8x5xf32>
  return
}

// -----

func.func @f() {
  // expected-error @+1 {{concatenate_c3: expected an operand}}
  %0 = stablehlo.concatenate , dim = 0 : () -> tensor<8x5xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{slice_c3: expected 0 <= start <= limit <= 4 in dimension 0, got 1 and 5}}
  %0 = stablehlo.slice %a [1:5] : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{slice_c2: expected 1 entries of start_indices, got 2}}
  %0 = stablehlo.slice %a [0:1, 0:1] : (tensor<4xf32>) -> tensor<1xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{slice_c4: expected a positive stride, got 0}}
  %0 = stablehlo.slice %a [0:4:0] : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>, %i: tensor<i32>) {
  // expected-error @+1 {{dynamic_slice_c4: expected sizes from 0 to 4, got 5}}
  %0 = stablehlo.dynamic_slice %a, %i, sizes = [5] : (tensor<4xf32>, tensor<i32>) -> tensor<5xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>, %u: tensor<5xf32>, %i: tensor<i32>) {
  // expected-error @+1 {{dynamic_update_slice_c6: update 'tensor<5xf32>' does not fit 'tensor<4xf32>'}}
  %0 = stablehlo.dynamic_update_slice %a, %u, %i : (tensor<4xf32>, tensor<5xf32>, tensor<i32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>, %v: tensor<f32>) {
  // expected-error @+1 {{pad_c4: expected result type 'tensor<10xf32>', got 'tensor<9xf32>'}}
  %0 = stablehlo.pad %a, %v, low = [1], high = [2], interior = [1] : (tensor<4xf32>, tensor<f32>) -> tensor<9xf32>
  return
}

// -----

func.func @f(%a: tensor<4x4xf32>, %i: tensor<3x1xi32>) {
  // expected-error @+1 {{gather_c22: expected result type 'tensor<3x4xf32>', got 'tensor<4x3xf32>'}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>}> : (tensor<4x4xf32>, tensor<3x1xi32>) -> tensor<4x3xf32>
  return
}

// -----

func.func @f(%a: tensor<4x4xf32>, %i: tensor<3x1xi32>) {
  // expected-error @+1 {{gather_c1: expected offset, collapsed and batching dimensions to be 2 together, got 0, 0 and 0}}
  %0 = "stablehlo.gather"(%a, %i) <{dimension_numbers = #stablehlo.gather<>, slice_sizes = array<i64: 1, 4>}> : (tensor<4x4xf32>, tensor<3x1xi32>) -> tensor<4x3xf32>
  return
}

// -----

// Contractions and calls.

func.func @f(%a: tensor<4x5xf32>, %b: tensor<6x7xf32>) {
  // expected-error @+1 {{dot_general_c10: expected contracting dimensions of one size, got 5 and 6}}
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x5xf32>, tensor<6x7xf32>) -> tensor<4x7xf32>
  return
}

// -----

func.func @f(%a: tensor<4x5xf32>, %b: tensor<5x7xf32>) {
  // expected-error @+1 {{dot_general_c12: expected result type 'tensor<4x7xf32>', got 'tensor<7x4xf32>'}}
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x5xf32>, tensor<5x7xf32>) -> tensor<7x4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x5xf32>, %b: tensor<5x7xf32>) {
  // expected-error @+1 {{dot_general_c6: expected lhs contracting dimensions in [0, 2), got 9}}
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [9] x [0] : (tensor<4x5xf32>, tensor<5x7xf32>) -> tensor<4x7xf32>
  return
}

// -----

func.func @f(%a: tensor<4x4xf32>) {
  // expected-error @+1 {{dot_general_c3: dimension 0 is named twice in dimensions of lhs}}
  %0 = stablehlo.dot_general %a, %a, batching_dims = [0] x [0], contracting_dims = [0] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// -----

func.func @f(%a: tensor<1x8x8x4xf32>, %w: tensor<3x3x5x4xf32>) {
  // expected-error @+1 {{convolution_c14: expected 4 input features of the kernel, got 5}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x8x8x4xf32>, tensor<3x3x5x4xf32>) -> tensor<1x6x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<1x8x8x4xf32>, %w: tensor<3x3x4x4xf32>) {
  // expected-error @+1 {{convolution_c25: expected result type 'tensor<1x6x6x4xf32>', got 'tensor<1x8x8x4xf32>'}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x8x8x4xf32>, tensor<3x3x4x4xf32>) -> tensor<1x8x8x4xf32>
  return
}

// -----

func.func @f(%a: tensor<1x8x8x4xf32>, %w: tensor<3x3x4x4xf32>) {
  // expected-error @+1 {{convolution_c21: expected a positive feature_group_count, got 0}}
  %0 = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 0 : i64} : (tensor<1x8x8x4xf32>, tensor<3x3x4x4xf32>) -> tensor<1x6x6x4xf32>
  return
}

// -----

func.func @f(%a: tensor<8xcomplex<f32>>) {
  // expected-error @+1 {{fft_c2: element types 'complex<f32>' and 'complex<f32>' do not fit RFFT}}
  %0 = stablehlo.fft %a, type = RFFT, length = [8] : (tensor<8xcomplex<f32>>) -> tensor<5xcomplex<f32>>
  return
}

// -----

func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{custom_call_c2: expected an alias of an operand in [0, 1), got 3}}
  %0 = stablehlo.custom_call @f(%a) {output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 3, operand_tuple_indices = []>]} : (tensor<8xf32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<8xf32>) {
  // expected-error @+1 {{composite_c2: there is no function @g}}
  %0 = stablehlo.composite "my.op" %a {decomposition = @g} : (tensor<8xf32>) -> tensor<8xf32>
  return
}

// -----

// Regions.

func.func @f(%a: tensor<4x5xf32>, %i: tensor<f32>) {
  // expected-error @+1 {{reduce_c7: expected result type 'tensor<5xf32>', got 'tensor<4xf32>'}}
  %0 = stablehlo.reduce(%a init: %i) applies stablehlo.add across dimensions = [0] : (tensor<4x5xf32>, tensor<f32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4x5xf32>, %i: tensor<f32>) {
  // expected-error @+1 {{reduce_c6: expected a computation of type '(tensor<f32>, tensor<f32>) -> tensor<f32>', got '(tensor<f32>) -> tensor<f32>'}}
  %0 = "stablehlo.reduce"(%a, %i) <{dimensions = array<i64: 0>}> ({
  ^bb0(%x: tensor<f32>):
    stablehlo.return %x : tensor<f32>
  }) : (tensor<4x5xf32>, tensor<f32>) -> tensor<5xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{while_c1: expected cond to take the operands' types and to return tensor<i1>}}
  %0 = stablehlo.while(%x = %a) : tensor<4xf32>
  cond {
    stablehlo.return %x : tensor<4xf32>
  } do {
    stablehlo.return %x : tensor<4xf32>
  }
  return
}

// -----

func.func @f(%a: tensor<4xf32>, %i: tensor<i32>) {
  // expected-error @+1 {{case_c3: expected branch 0 to return the types of the results}}
  %0 = "stablehlo.case"(%i) ({
    stablehlo.return %i : tensor<i32>
  }) : (tensor<i32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{sort_c4: expected dimension in [-1, 1), got 1}}
  %0 = "stablehlo.sort"(%a) <{dimension = 1 : i64}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<8xf32>, %i: tensor<f32>) {
  // expected-error @+1 {{reduce_window_c15: expected result type 'tensor<7xf32>', got 'tensor<8xf32>'}}
  %0 = "stablehlo.reduce_window"(%a, %i) <{window_dimensions = array<i64: 2>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  return
}

// -----

func.func @f(%a: tensor<4x4xf32>, %i: tensor<3x1xi32>, %u: tensor<3x5xf32>) {
  // expected-error @+1 {{scatter_c4: updates of type 'tensor<3x5xf32>' do not fit 'tensor<4x4xf32>' and indices 'tensor<3x1xi32>'}}
  %0 = "stablehlo.scatter"(%a, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    stablehlo.return %y : tensor<f32>
  }) : (tensor<4x4xf32>, tensor<3x1xi32>, tensor<3x5xf32>) -> tensor<4x4xf32>
  return
}

// -----

// Collectives.

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{collective_permute_c3: target 1 is named twice}}
  %0 = "stablehlo.collective_permute"(%a) <{source_target_pairs = dense<[[0, 1], [1, 1]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

func.func @f(%a: tensor<4xf32>) {
  // expected-error @+1 {{all_to_all_c2: split_count 3 does not divide 4}}
  %0 = "stablehlo.all_to_all"(%a) <{split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 3 : i64, replica_groups = dense<[[0, 1, 2]]> : tensor<1x3xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
  return
}
