// CASE while_layer rtol=0.0001
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> (tensor<i32>, tensor<8x8xf32>, tensor<8x8xf32>) {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %c_1 = stablehlo.constant dense<3> : tensor<i32>
  %0:3 = stablehlo.while(%iterArg = %c, %iterArg_2 = %arg0, %iterArg_3 = %arg1) : tensor<i32>, tensor<8x8xf32>, tensor<8x8xf32>
  cond {
    %1 = stablehlo.compare LT, %iterArg, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.dot_general %iterArg_2, %iterArg_3, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %2 = stablehlo.tanh %1 : tensor<8x8xf32>
    %3 = stablehlo.add %iterArg, %c_0 : tensor<i32>
    stablehlo.return %3, %2, %iterArg_3 : tensor<i32>, tensor<8x8xf32>, tensor<8x8xf32>
  }
  return %0#0, %0#1, %0#2 : tensor<i32>, tensor<8x8xf32>, tensor<8x8xf32>
}

// CASE while_sum rtol=0.0001
func.func @main(%arg0: tensor<8x8xf32>) -> (tensor<i32>, tensor<8x8xf32>) {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %c_1 = stablehlo.constant dense<3> : tensor<i32>
  %0:2 = stablehlo.while(%iterArg = %c, %iterArg_2 = %arg0) : tensor<i32>, tensor<8x8xf32>
  cond {
    %1 = stablehlo.compare LT, %iterArg, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1 = stablehlo.reduce(%iterArg_2 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<8xf32>) -> tensor<8x8xf32>
    %3 = stablehlo.subtract %iterArg_2, %2 : tensor<8x8xf32>
    %4 = stablehlo.tanh %3 : tensor<8x8xf32>
    %5 = stablehlo.add %iterArg, %c_0 : tensor<i32>
    stablehlo.return %5, %4 : tensor<i32>, tensor<8x8xf32>
  }
  return %0#0, %0#1 : tensor<i32>, tensor<8x8xf32>
}

// CASE while_captured rtol=0.0001
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x16xf32>, %arg2: tensor<16x8xf32>) -> (tensor<i32>, tensor<8x8xf32>) {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %c_1 = stablehlo.constant dense<3> : tensor<i32>
  %0:2 = stablehlo.while(%iterArg = %c, %iterArg_2 = %arg0) : tensor<i32>, tensor<8x8xf32>
  cond {
    %1 = stablehlo.compare LT, %iterArg, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.dot_general %iterArg_2, %arg1, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
    %2 = stablehlo.tanh %1 : tensor<8x16xf32>
    %3 = stablehlo.dot_general %2, %arg2, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    %4 = stablehlo.add %iterArg, %c_0 : tensor<i32>
    stablehlo.return %4, %3 : tensor<i32>, tensor<8x8xf32>
  }
  return %0#0, %0#1 : tensor<i32>, tensor<8x8xf32>
}

// CASE while_stacked
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<3x8x8xf32>) -> (tensor<i32>, tensor<8x8xf32>, tensor<3x8x8xf32>) {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %c_1 = stablehlo.constant dense<3> : tensor<i32>
  %0:3 = stablehlo.while(%iterArg = %c, %iterArg_2 = %arg0, %iterArg_3 = %arg1) : tensor<i32>, tensor<8x8xf32>, tensor<3x8x8xf32>
  cond {
    %1 = stablehlo.compare LT, %iterArg, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.reshape %iterArg_2 : (tensor<8x8xf32>) -> tensor<1x8x8xf32>
    %c_4 = stablehlo.constant dense<0> : tensor<i32>
    %2 = stablehlo.dynamic_update_slice %iterArg_3, %1, %iterArg, %c_4, %c_4 : (tensor<3x8x8xf32>, tensor<1x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x8x8xf32>
    %3 = stablehlo.tanh %iterArg_2 : tensor<8x8xf32>
    %4 = stablehlo.add %iterArg, %c_0 : tensor<i32>
    stablehlo.return %4, %3, %2 : tensor<i32>, tensor<8x8xf32>, tensor<3x8x8xf32>
  }
  return %0#0, %0#1, %0#2 : tensor<i32>, tensor<8x8xf32>, tensor<3x8x8xf32>
}

// CASE while_until
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %cst = stablehlo.constant dense<4.000000e+00> : tensor<f32>
  %0 = stablehlo.while(%iterArg = %arg0) : tensor<8x8xf32>
  cond {
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.abs %iterArg : tensor<8x8xf32>
    %2 = stablehlo.reduce(%1 init: %cst_0) applies stablehlo.maximum across dimensions = [0, 1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
    %3 = stablehlo.compare LT, %2, %cst, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %3 : tensor<i1>
  } do {
    %1 = stablehlo.add %iterArg, %iterArg : tensor<8x8xf32>
    stablehlo.return %1 : tensor<8x8xf32>
  }
  return %0 : tensor<8x8xf32>
}

// CASE case_0 rtol=0.0001 arg0=full(0)
func.func @main(%arg0: tensor<i32>, %arg1: tensor<8x16xf32>, %arg2: tensor<16x8xf32>, %arg3: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x16xf32>) {
  %0:2 = "stablehlo.case"(%arg0) ({
    %1 = stablehlo.dot_general %arg1, %arg2, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    stablehlo.return %1, %arg1 : tensor<8x8xf32>, tensor<8x16xf32>
  }, {
    %1 = stablehlo.negate %arg1 : tensor<8x16xf32>
    stablehlo.return %arg3, %1 : tensor<8x8xf32>, tensor<8x16xf32>
  }) : (tensor<i32>) -> (tensor<8x8xf32>, tensor<8x16xf32>)
  return %0#0, %0#1 : tensor<8x8xf32>, tensor<8x16xf32>
}

// CASE case_1 rtol=0.0001 arg0=full(1)
func.func @main(%arg0: tensor<i32>, %arg1: tensor<8x16xf32>, %arg2: tensor<16x8xf32>, %arg3: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x16xf32>) {
  %0:2 = "stablehlo.case"(%arg0) ({
    %1 = stablehlo.dot_general %arg1, %arg2, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>
    stablehlo.return %1, %arg1 : tensor<8x8xf32>, tensor<8x16xf32>
  }, {
    %1 = stablehlo.negate %arg1 : tensor<8x16xf32>
    stablehlo.return %arg3, %1 : tensor<8x8xf32>, tensor<8x16xf32>
  }) : (tensor<i32>) -> (tensor<8x8xf32>, tensor<8x16xf32>)
  return %0#0, %0#1 : tensor<8x8xf32>, tensor<8x16xf32>
}

// The rows of the table and of the indices are joined by the sum: split by one axis, each
// device would look up its rows in its part of the table only.
// CASE while_crossing arg1=between(-2,10)
func.func @main(%arg0: tensor<8xf32>, %arg1: tensor<8x1xi32>, %arg2: tensor<8xf32>) -> (tensor<i32>, tensor<8xf32>, tensor<8xf32>) {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %c_1 = stablehlo.constant dense<3> : tensor<i32>
  %0:3 = stablehlo.while(%i = %c, %table = %arg0, %other = %arg2) : tensor<i32>, tensor<8xf32>, tensor<8xf32>
  cond {
    %1 = stablehlo.compare LT, %i, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = "stablehlo.gather"(%table, %arg1) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<8xf32>, tensor<8x1xi32>) -> tensor<8xf32>
    %2 = stablehlo.add %table, %1 : tensor<8xf32>
    %3 = stablehlo.tanh %other : tensor<8xf32>
    %4 = stablehlo.add %i, %c_0 : tensor<i32>
    stablehlo.return %4, %2, %3 : tensor<i32>, tensor<8xf32>, tensor<8xf32>
  }
  return %0#0, %0#1, %0#2 : tensor<i32>, tensor<8xf32>, tensor<8xf32>
}

// A loop in a loop, with a sum in the inner one and rows found and added by index.
// CASE while_nested arg2=between(-1,9) rtol=1e-4
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x16xf32>, %arg2: tensor<4x1xi32>) -> (tensor<i32>, tensor<8x8xf32>) {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %c_1 = stablehlo.constant dense<2> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c, %h = %arg0) : tensor<i32>, tensor<8x8xf32>
  cond {
    %1 = stablehlo.compare LT, %i, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1:2 = stablehlo.while(%j = %c, %k = %h) : tensor<i32>, tensor<8x8xf32>
    cond {
      %2 = stablehlo.compare LT, %j, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.dot_general %k, %arg1, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
      %3 = stablehlo.dot_general %2, %arg1, contracting_dims = [1] x [1] : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
      %4 = stablehlo.tanh %3 : tensor<8x8xf32>
      %5 = stablehlo.add %j, %c_0 : tensor<i32>
      stablehlo.return %5, %4 : tensor<i32>, tensor<8x8xf32>
    }
    %6 = "stablehlo.gather"(%1#1, %arg2) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<8x8xf32>, tensor<4x1xi32>) -> tensor<4x8xf32>
    %7 = "stablehlo.scatter"(%1#1, %arg2, %6) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %9 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %9 : tensor<f32>
    }) : (tensor<8x8xf32>, tensor<4x1xi32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %8 = stablehlo.add %i, %c_0 : tensor<i32>
    stablehlo.return %8, %7 : tensor<i32>, tensor<8x8xf32>
  }
  return %0#0, %0#1 : tensor<i32>, tensor<8x8xf32>
}

// A case in a loop: iterations take turns; iotas and sums know where their parts are.
// CASE while_case rtol=1e-4
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<16xf32>) -> (tensor<i32>, tensor<8x16xf32>) {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %c_0 = stablehlo.constant dense<1> : tensor<i32>
  %c_1 = stablehlo.constant dense<3> : tensor<i32>
  %cst = stablehlo.constant dense<2.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %c, %h = %arg0) : tensor<i32>, tensor<8x16xf32>
  cond {
    %1 = stablehlo.compare LT, %i, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.and %i, %c_0 : tensor<i32>
    %2 = "stablehlo.case"(%1) ({
      %4 = stablehlo.iota dim = 1 : tensor<8x16xf32>
      %5 = stablehlo.add %h, %4 : tensor<8x16xf32>
      stablehlo.return %5 : tensor<8x16xf32>
    }, {
      %4 = stablehlo.reduce(%h init: %cst) applies stablehlo.maximum across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
      %5 = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<8xf32>) -> tensor<8x16xf32>
      %6 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<16xf32>) -> tensor<8x16xf32>
      %7 = stablehlo.subtract %h, %5 : tensor<8x16xf32>
      %8 = stablehlo.multiply %7, %6 : tensor<8x16xf32>
      stablehlo.return %8 : tensor<8x16xf32>
    }) : (tensor<i32>) -> tensor<8x16xf32>
    %3 = stablehlo.add %i, %c_0 : tensor<i32>
    stablehlo.return %3, %2 : tensor<i32>, tensor<8x16xf32>
  }
  return %0#0, %0#1 : tensor<i32>, tensor<8x16xf32>
}
