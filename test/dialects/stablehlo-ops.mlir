// RUN: alpa-opt %s | alpa-opt | FileCheck %s
// RUN: alpa-opt %s -mlir-print-op-generic | alpa-opt | FileCheck %s

// CHECK-LABEL: func.func @unary
func.func @unary(%a: tensor<4xf32>, %i: tensor<4xi32>, %c: tensor<4xcomplex<f32>>) {
  // CHECK: stablehlo.cbrt %{{.*}} : tensor<4xf32>
  %0 = stablehlo.cbrt %a : tensor<4xf32>
  // CHECK: stablehlo.ceil %{{.*}} : tensor<4xf32>
  %1 = stablehlo.ceil %a : tensor<4xf32>
  // CHECK: stablehlo.cosine %{{.*}} : tensor<4xf32>
  %2 = stablehlo.cosine %a : tensor<4xf32>
  // CHECK: stablehlo.exponential %{{.*}} : tensor<4xf32>
  %3 = stablehlo.exponential %a : tensor<4xf32>
  // CHECK: stablehlo.exponential_minus_one %{{.*}} : tensor<4xf32>
  %4 = stablehlo.exponential_minus_one %a : tensor<4xf32>
  // CHECK: stablehlo.floor %{{.*}} : tensor<4xf32>
  %5 = stablehlo.floor %a : tensor<4xf32>
  // CHECK: stablehlo.log %{{.*}} : tensor<4xf32>
  %6 = stablehlo.log %a : tensor<4xf32>
  // CHECK: stablehlo.log_plus_one %{{.*}} : tensor<4xf32>
  %7 = stablehlo.log_plus_one %a : tensor<4xf32>
  // CHECK: stablehlo.logistic %{{.*}} : tensor<4xf32>
  %8 = stablehlo.logistic %a : tensor<4xf32>
  // CHECK: stablehlo.negate %{{.*}} : tensor<4xf32>
  %9 = stablehlo.negate %a : tensor<4xf32>
  // CHECK: stablehlo.round_nearest_afz %{{.*}} : tensor<4xf32>
  %10 = stablehlo.round_nearest_afz %a : tensor<4xf32>
  // CHECK: stablehlo.round_nearest_even %{{.*}} : tensor<4xf32>
  %11 = stablehlo.round_nearest_even %a : tensor<4xf32>
  // CHECK: stablehlo.rsqrt %{{.*}} : tensor<4xf32>
  %12 = stablehlo.rsqrt %a : tensor<4xf32>
  // CHECK: stablehlo.sign %{{.*}} : tensor<4xf32>
  %13 = stablehlo.sign %a : tensor<4xf32>
  // CHECK: stablehlo.sine %{{.*}} : tensor<4xf32>
  %14 = stablehlo.sine %a : tensor<4xf32>
  // CHECK: stablehlo.sqrt %{{.*}} : tensor<4xf32>
  %15 = stablehlo.sqrt %a : tensor<4xf32>
  // CHECK: stablehlo.tan %{{.*}} : tensor<4xf32>
  %16 = stablehlo.tan %a : tensor<4xf32>
  // CHECK: stablehlo.tanh %{{.*}} : tensor<4xf32>
  %17 = stablehlo.tanh %a : tensor<4xf32>
  // CHECK: stablehlo.count_leading_zeros %{{.*}} : tensor<4xi32>
  %18 = stablehlo.count_leading_zeros %i : tensor<4xi32>
  // CHECK: stablehlo.not %{{.*}} : tensor<4xi32>
  %19 = stablehlo.not %i : tensor<4xi32>
  // CHECK: stablehlo.popcnt %{{.*}} : tensor<4xi32>
  %20 = stablehlo.popcnt %i : tensor<4xi32>
  // CHECK: stablehlo.abs %{{.*}} : tensor<4xf32>
  %21 = stablehlo.abs %a : tensor<4xf32>
  // CHECK: stablehlo.abs %{{.*}} : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
  %22 = stablehlo.abs %c : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
  // CHECK: stablehlo.real %{{.*}} : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
  %23 = stablehlo.real %c : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
  // CHECK: stablehlo.imag %{{.*}} : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
  %24 = stablehlo.imag %c : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
  // CHECK: stablehlo.real %{{.*}} : tensor<4xf32>
  %25 = stablehlo.real %a : tensor<4xf32>
  // CHECK: stablehlo.convert %{{.*}} : (tensor<4xf32>) -> tensor<4xbf16>
  %26 = stablehlo.convert %a : (tensor<4xf32>) -> tensor<4xbf16>
  // CHECK: stablehlo.convert %{{.*}} : tensor<4xf32>
  %27 = stablehlo.convert %a : tensor<4xf32>
  // CHECK: stablehlo.is_finite %{{.*}} : (tensor<4xf32>) -> tensor<4xi1>
  %28 = stablehlo.is_finite %a : (tensor<4xf32>) -> tensor<4xi1>
  // CHECK: stablehlo.reduce_precision %{{.*}}, format = e5m10 : tensor<4xf32>
  %29 = stablehlo.reduce_precision %a, format = e5m10 : tensor<4xf32>
  // CHECK: stablehlo.exponential %{{.*}} {result_accuracy = #stablehlo.result_accuracy<atol = 1.000000e-05, ulps = 1, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>} : tensor<4xf32>
  %30 = stablehlo.exponential %a {result_accuracy = #stablehlo.result_accuracy<atol = 1.000000e-05, ulps = 1, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>} : tensor<4xf32>
  return
}

// CHECK-LABEL: func.func @binary
func.func @binary(%a: tensor<4xf32>, %i: tensor<4xi32>, %p: tensor<4xi1>, %s: tensor<i1>, %z: tensor<f32>) {
  // CHECK: stablehlo.add %{{.*}}, %{{.*}} : tensor<4xf32>
  %0 = stablehlo.add %a, %a : tensor<4xf32>
  // CHECK: stablehlo.atan2 %{{.*}}, %{{.*}} : tensor<4xf32>
  %1 = stablehlo.atan2 %a, %a : tensor<4xf32>
  // CHECK: stablehlo.divide %{{.*}}, %{{.*}} : tensor<4xf32>
  %2 = stablehlo.divide %a, %a : tensor<4xf32>
  // CHECK: stablehlo.maximum %{{.*}}, %{{.*}} : tensor<4xf32>
  %3 = stablehlo.maximum %a, %a : tensor<4xf32>
  // CHECK: stablehlo.minimum %{{.*}}, %{{.*}} : tensor<4xf32>
  %4 = stablehlo.minimum %a, %a : tensor<4xf32>
  // CHECK: stablehlo.multiply %{{.*}}, %{{.*}} : tensor<4xf32>
  %5 = stablehlo.multiply %a, %a : tensor<4xf32>
  // CHECK: stablehlo.power %{{.*}}, %{{.*}} : tensor<4xf32>
  %6 = stablehlo.power %a, %a : tensor<4xf32>
  // CHECK: stablehlo.remainder %{{.*}}, %{{.*}} : tensor<4xf32>
  %7 = stablehlo.remainder %a, %a : tensor<4xf32>
  // CHECK: stablehlo.subtract %{{.*}}, %{{.*}} : tensor<4xf32>
  %8 = stablehlo.subtract %a, %a : tensor<4xf32>
  // CHECK: stablehlo.and %{{.*}}, %{{.*}} : tensor<4xi32>
  %9 = stablehlo.and %i, %i : tensor<4xi32>
  // CHECK: stablehlo.or %{{.*}}, %{{.*}} : tensor<4xi32>
  %10 = stablehlo.or %i, %i : tensor<4xi32>
  // CHECK: stablehlo.shift_left %{{.*}}, %{{.*}} : tensor<4xi32>
  %11 = stablehlo.shift_left %i, %i : tensor<4xi32>
  // CHECK: stablehlo.shift_right_arithmetic %{{.*}}, %{{.*}} : tensor<4xi32>
  %12 = stablehlo.shift_right_arithmetic %i, %i : tensor<4xi32>
  // CHECK: stablehlo.shift_right_logical %{{.*}}, %{{.*}} : tensor<4xi32>
  %13 = stablehlo.shift_right_logical %i, %i : tensor<4xi32>
  // CHECK: stablehlo.xor %{{.*}}, %{{.*}} : tensor<4xi32>
  %14 = stablehlo.xor %i, %i : tensor<4xi32>
  // CHECK: stablehlo.add %{{.*}}, %{{.*}} {note = 1 : i64} : tensor<4xf32>
  %15 = stablehlo.add %a, %a {note = 1 : i64} : tensor<4xf32>
  // CHECK: stablehlo.compare LT, %{{.*}}, %{{.*}}, FLOAT : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %16 = stablehlo.compare LT, %a, %a, FLOAT : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  // CHECK: stablehlo.compare EQ, %{{.*}}, %{{.*}} : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
  %17 = stablehlo.compare EQ, %i, %i : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
  // CHECK: stablehlo.compare GE, %{{.*}}, %{{.*}}, TOTALORDER : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %18 = stablehlo.compare GE, %a, %a, TOTALORDER : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  // CHECK: stablehlo.complex %{{.*}}, %{{.*}} : tensor<4xcomplex<f32>>
  %19 = stablehlo.complex %a, %a : tensor<4xcomplex<f32>>
  // CHECK: stablehlo.select %{{.*}}, %{{.*}}, %{{.*}} : tensor<4xi1>, tensor<4xf32>
  %20 = stablehlo.select %p, %a, %a : tensor<4xi1>, tensor<4xf32>
  // CHECK: stablehlo.select %{{.*}}, %{{.*}}, %{{.*}} : tensor<i1>, tensor<4xf32>
  %21 = stablehlo.select %s, %a, %a : tensor<i1>, tensor<4xf32>
  // CHECK: stablehlo.clamp %{{.*}}, %{{.*}}, %{{.*}} : tensor<4xf32>
  %22 = stablehlo.clamp %a, %a, %a : tensor<4xf32>
  // CHECK: stablehlo.clamp %{{.*}}, %{{.*}}, %{{.*}} : (tensor<f32>, tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  %23 = stablehlo.clamp %z, %a, %z : (tensor<f32>, tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
  return
}

// CHECK-LABEL: func.func @shapes
func.func @shapes(%a: tensor<4x4xf32>, %v: tensor<f32>, %i: tensor<i32>, %x: tensor<3x1xi32>) {
  // CHECK: stablehlo.constant dense<1.000000e+00> : tensor<f32>
  %0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
  // CHECK: stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %1 = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  // CHECK: stablehlo.constant {note} dense<true> : tensor<i1>
  %2 = stablehlo.constant {note} dense<true> : tensor<i1>
  // CHECK: stablehlo.iota dim = 1 : tensor<2x3xf32>
  %3 = stablehlo.iota dim = 1 : tensor<2x3xf32>
  // CHECK: stablehlo.bitcast_convert %{{.*}} : (tensor<4x4xf32>) -> tensor<4x4x2xi16>
  %4 = stablehlo.bitcast_convert %a : (tensor<4x4xf32>) -> tensor<4x4x2xi16>
  // CHECK: stablehlo.broadcast_in_dim %{{.*}}, dims = [] : (tensor<f32>) -> tensor<3xf32>
  %5 = stablehlo.broadcast_in_dim %v, dims = [] : (tensor<f32>) -> tensor<3xf32>
  // CHECK: stablehlo.broadcast_in_dim %{{.*}}, dims = [0, 2] : (tensor<4x4xf32>) -> tensor<4x2x4xf32>
  %6 = stablehlo.broadcast_in_dim %a, dims = [0, 2] : (tensor<4x4xf32>) -> tensor<4x2x4xf32>
  // CHECK: stablehlo.reshape %{{.*}} : (tensor<4x4xf32>) -> tensor<2x8xf32>
  %7 = stablehlo.reshape %a : (tensor<4x4xf32>) -> tensor<2x8xf32>
  // CHECK: stablehlo.reverse %{{.*}}, dims = [0, 1] : tensor<4x4xf32>
  %8 = stablehlo.reverse %a, dims = [0, 1] : tensor<4x4xf32>
  // CHECK: stablehlo.transpose %{{.*}}, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %9 = stablehlo.transpose %a, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK: stablehlo.concatenate %{{.*}}, %{{.*}}, dim = 1 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x8xf32>
  %10 = stablehlo.concatenate %a, %a, dim = 1 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x8xf32>
  // CHECK: stablehlo.slice %{{.*}} [1:3, 0:4:2] : (tensor<4x4xf32>) -> tensor<2x2xf32>
  %11 = stablehlo.slice %a [1:3, 0:4:2] : (tensor<4x4xf32>) -> tensor<2x2xf32>
  // CHECK: stablehlo.slice %{{.*}} [] : (tensor<f32>) -> tensor<f32>
  %12 = stablehlo.slice %v [] : (tensor<f32>) -> tensor<f32>
  // CHECK: stablehlo.dynamic_slice %{{.*}}, %{{.*}}, %{{.*}}, sizes = [2, 2] : (tensor<4x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x2xf32>
  %13 = stablehlo.dynamic_slice %a, %i, %i, sizes = [2, 2] : (tensor<4x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x2xf32>
  // CHECK: stablehlo.dynamic_slice %{{.*}}, , sizes = [] : (tensor<f32>) -> tensor<f32>
  %14 = stablehlo.dynamic_slice %v, , sizes = [] : (tensor<f32>) -> tensor<f32>
  // CHECK: stablehlo.dynamic_update_slice %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<i32>, tensor<i32>) -> tensor<4x4xf32>
  %15 = stablehlo.dynamic_update_slice %a, %a, %i, %i : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<i32>, tensor<i32>) -> tensor<4x4xf32>
  // CHECK: stablehlo.pad %{{.*}}, %{{.*}}, low = [-1, 0], high = [1, 0], interior = [2, 0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<10x4xf32>
  %16 = stablehlo.pad %a, %v, low = [-1, 0], high = [1, 0], interior = [2, 0] : (tensor<4x4xf32>, tensor<f32>) -> tensor<10x4xf32>
  // CHECK: "stablehlo.gather"(%{{.*}}, %{{.*}}) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 4>}> : (tensor<4x4xf32>, tensor<3x1xi32>) -> tensor<3x4xf32>
  %17 = "stablehlo.gather"(%a, %x) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 4>}> : (tensor<4x4xf32>, tensor<3x1xi32>) -> tensor<3x4xf32>
  // CHECK: stablehlo.get_dimension_size %{{.*}}, dim = 1 : (tensor<4x4xf32>) -> tensor<i32>
  %18 = stablehlo.get_dimension_size %a, dim = 1 : (tensor<4x4xf32>) -> tensor<i32>
  return
}

// CHECK-LABEL: func.func @sizes
func.func @sizes(%a: tensor<4x?xf32>, %v: tensor<f32>, %n: tensor<2xi32>, %i: tensor<2x1xi32>) {
  // CHECK: stablehlo.dynamic_broadcast_in_dim %{{.*}}, %{{.*}}, dims = [0, 1] {known_expanding_dimensions = array<i64: 1>} : (tensor<4x?xf32>, tensor<2xi32>) -> tensor<?x?xf32>
  %0 = stablehlo.dynamic_broadcast_in_dim %a, %n, dims = [0, 1] {known_expanding_dimensions = array<i64: 1>} : (tensor<4x?xf32>, tensor<2xi32>) -> tensor<?x?xf32>
  // CHECK: stablehlo.dynamic_reshape %{{.*}}, %{{.*}} : (tensor<4x?xf32>, tensor<2xi32>) -> tensor<?x2xf32>
  %1 = stablehlo.dynamic_reshape %a, %n : (tensor<4x?xf32>, tensor<2xi32>) -> tensor<?x2xf32>
  // CHECK: stablehlo.dynamic_iota %{{.*}}, dim = 1 : (tensor<2xi32>) -> tensor<?x?xf32>
  %2 = stablehlo.dynamic_iota %n, dim = 1 : (tensor<2xi32>) -> tensor<?x?xf32>
  // CHECK: stablehlo.dynamic_pad %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} : (tensor<4x?xf32>, tensor<f32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<?x?xf32>
  %3 = stablehlo.dynamic_pad %a, %v, %n, %n, %n : (tensor<4x?xf32>, tensor<f32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<?x?xf32>
  // CHECK: stablehlo.real_dynamic_slice %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} : (tensor<4x?xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<?x?xf32>
  %4 = stablehlo.real_dynamic_slice %a, %n, %n, %n : (tensor<4x?xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<?x?xf32>
  // CHECK: "stablehlo.dynamic_gather"(%{{.*}}, %{{.*}}, %{{.*}}) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>}> : (tensor<4x?xf32>, tensor<2x1xi32>, tensor<2xi32>) -> tensor<2x?xf32>
  %5 = "stablehlo.dynamic_gather"(%a, %i, %n) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>}> : (tensor<4x?xf32>, tensor<2x1xi32>, tensor<2xi32>) -> tensor<2x?xf32>
  return
}

// CHECK-LABEL: func.func @tuples
func.func @tuples(%a: tensor<4xf32>, %t: tuple<tensor<4xf32>, tensor<4xf32>>) {
  // CHECK: stablehlo.tuple %{{.*}}, %{{.*}} : tuple<tensor<4xf32>, tensor<4xf32>>
  %0 = stablehlo.tuple %a, %a : tuple<tensor<4xf32>, tensor<4xf32>>
  // CHECK: stablehlo.get_tuple_element %{{.*}}[1] : (tuple<tensor<4xf32>, tensor<4xf32>>) -> tensor<4xf32>
  %1 = stablehlo.get_tuple_element %t[1] : (tuple<tensor<4xf32>, tensor<4xf32>>) -> tensor<4xf32>
  // CHECK: stablehlo.optimization_barrier %{{.*}}, %{{.*}} : tensor<4xf32>, tensor<4xf32>
  %2:2 = stablehlo.optimization_barrier %a, %a : tensor<4xf32>, tensor<4xf32>
  // CHECK: stablehlo.optimization_barrier()
  stablehlo.optimization_barrier()
  // CHECK: stablehlo.create_token : !stablehlo.token
  %3 = stablehlo.create_token : !stablehlo.token
  return
}

// CHECK-LABEL: func.func @contractions
func.func @contractions(%a: tensor<2x3x4xf32>, %b: tensor<2x5x4xf32>, %m: tensor<4x4xf32>, %x: tensor<2x8x8x3xf32>, %w: tensor<3x3x3x4xf32>) {
  // CHECK: stablehlo.dot_general %{{.*}}, %{{.*}}, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [DEFAULT, HIGHEST] : (tensor<2x3x4xf32>, tensor<2x5x4xf32>) -> tensor<2x3x5xf32>
  %0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [DEFAULT, HIGHEST] : (tensor<2x3x4xf32>, tensor<2x5x4xf32>) -> tensor<2x3x5xf32>
  // CHECK: stablehlo.dot_general %{{.*}}, %{{.*}}, contracting_dims = [] x [] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4x4x4xf32>
  %1 = stablehlo.dot_general %m, %m, contracting_dims = [] x [] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4x4x4xf32>
  // CHECK: stablehlo.dot_general %{{.*}}, %{{.*}}, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = stablehlo.dot_general %m, %m, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK: stablehlo.convolution(%{{.*}}, %{{.*}}) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 1], pad = {{\[\[}}1, 1], [0, 2{{\]\]}}, lhs_dilate = [1, 2], rhs_dilate = [2, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<2x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<2x3x15x4xf32>
  %3 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 1], pad = [[1, 1], [0, 2]], lhs_dilate = [1, 2], rhs_dilate = [2, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<2x8x8x3xf32>, tensor<3x3x3x4xf32>) -> tensor<2x3x15x4xf32>
  // CHECK: stablehlo.convolution(%{{.*}}, %{{.*}}) dim_numbers = [b, f]x[i, o]->[b, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %4 = stablehlo.convolution(%m, %m) dim_numbers = [b, f]x[i, o]->[b, f], window = {} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  // CHECK: stablehlo.cholesky %{{.*}}, lower = true : tensor<4x4xf32>
  %5 = stablehlo.cholesky %m, lower = true : tensor<4x4xf32>
  // CHECK: stablehlo.cholesky %{{.*}} : tensor<4x4xf32>
  %6 = stablehlo.cholesky %m : tensor<4x4xf32>
  // CHECK: "stablehlo.triangular_solve"(%{{.*}}, %{{.*}}) <{left_side = true, lower = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %7 = "stablehlo.triangular_solve"(%m, %m) <{left_side = true, lower = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}> : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return
}

// CHECK-LABEL: func.func @random
func.func @random(%v: tensor<f32>, %n: tensor<1xi64>, %k: tensor<2xui64>, %c: tensor<2x8xcomplex<f32>>, %r: tensor<2x8xf32>) {
  // CHECK: %output_state, %output = stablehlo.rng_bit_generator %{{.*}}, algorithm = DEFAULT : (tensor<2xui64>) -> (tensor<2xui64>, tensor<3xui32>)
  %output_state, %output = stablehlo.rng_bit_generator %k, algorithm = DEFAULT : (tensor<2xui64>) -> (tensor<2xui64>, tensor<3xui32>)
  // CHECK: stablehlo.rng %{{.*}}, %{{.*}}, %{{.*}}, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<3xf32>
  %0 = stablehlo.rng %v, %v, %n, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<3xf32>
  // CHECK: stablehlo.fft %{{.*}}, type = IFFT, length = [8] : (tensor<2x8xcomplex<f32>>) -> tensor<2x8xcomplex<f32>>
  %1 = stablehlo.fft %c, type = IFFT, length = [8] : (tensor<2x8xcomplex<f32>>) -> tensor<2x8xcomplex<f32>>
  // CHECK: stablehlo.fft %{{.*}}, type = RFFT, length = [8] : (tensor<2x8xf32>) -> tensor<2x5xcomplex<f32>>
  %2 = stablehlo.fft %r, type = RFFT, length = [8] : (tensor<2x8xf32>) -> tensor<2x5xcomplex<f32>>
  return
}

// CHECK-LABEL: func.func @calls
func.func @calls(%a: tensor<4xf32>) {
  // CHECK: stablehlo.custom_call @target(%{{.*}}) {backend_config = "", has_side_effect = true, output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>]} : (tensor<4xf32>) -> tensor<4xf32>
  %0 = stablehlo.custom_call @target(%a) {backend_config = "", has_side_effect = true, output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>]} : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: stablehlo.custom_call @"a-b c"() : () -> ()
  stablehlo.custom_call @"a-b c"() : () -> ()
  // CHECK: stablehlo.composite "my.op" %{{.*}} {composite_attributes = {n = 3 : i32}, decomposition = @body, version = 1 : i32} : (tensor<4xf32>) -> tensor<4xf32>
  %1 = stablehlo.composite "my.op" %a {composite_attributes = {n = 3 : i32}, decomposition = @body, version = 1 : i32} : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// CHECK-LABEL: func.func @body
func.func @body(%a: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: stablehlo.sine %{{.*}} : tensor<4xf32>
  %0 = stablehlo.sine %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
