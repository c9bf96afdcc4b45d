// CASE reduce_add_f32 rtol=0.0001 arg1=full(3)
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<f32>) -> tensor<8xf32> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.add across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// CASE reduce_multiply_f32 rtol=0.0001 arg1=full(3)
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<f32>) -> tensor<8xf32> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.multiply across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// CASE reduce_maximum_f32 rtol=0.0001 arg1=full(3)
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<f32>) -> tensor<8xf32> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.maximum across dimensions = [1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// CASE reduce_minimum_i32 rtol=0.0001 arg1=full(3)
func.func @main(%arg0: tensor<8x16xi32>, %arg1: tensor<i32>) -> tensor<8xi32> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.minimum across dimensions = [1] : (tensor<8x16xi32>, tensor<i32>) -> tensor<8xi32>
  return %0 : tensor<8xi32>
}

// CASE reduce_add_i32 rtol=0.0001 arg1=full(3)
func.func @main(%arg0: tensor<8x16xi32>, %arg1: tensor<i32>) -> tensor<8xi32> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.add across dimensions = [1] : (tensor<8x16xi32>, tensor<i32>) -> tensor<8xi32>
  return %0 : tensor<8xi32>
}

// CASE reduce_multiply_i32 rtol=0.0001 arg1=full(3) arg0=between(1,3)
func.func @main(%arg0: tensor<8x16xi32>, %arg1: tensor<i32>) -> tensor<8xi32> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.multiply across dimensions = [1] : (tensor<8x16xi32>, tensor<i32>) -> tensor<8xi32>
  return %0 : tensor<8xi32>
}

// CASE reduce_and_i1 rtol=0.0001
func.func @main(%arg0: tensor<8x16xi1>, %arg1: tensor<i1>) -> tensor<8xi1> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.and across dimensions = [1] : (tensor<8x16xi1>, tensor<i1>) -> tensor<8xi1>
  return %0 : tensor<8xi1>
}

// CASE reduce_or_i1 rtol=0.0001
func.func @main(%arg0: tensor<8x16xi1>, %arg1: tensor<i1>) -> tensor<8xi1> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.or across dimensions = [1] : (tensor<8x16xi1>, tensor<i1>) -> tensor<8xi1>
  return %0 : tensor<8xi1>
}

// CASE reduce_add_i1 rtol=0.0001
func.func @main(%arg0: tensor<8x16xi1>, %arg1: tensor<i1>) -> tensor<8xi1> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.add across dimensions = [1] : (tensor<8x16xi1>, tensor<i1>) -> tensor<8xi1>
  return %0 : tensor<8xi1>
}

// CASE reduce_and_i32 rtol=0.0001 arg1=full(3)
func.func @main(%arg0: tensor<8x16xi32>, %arg1: tensor<i32>) -> tensor<8xi32> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.and across dimensions = [1] : (tensor<8x16xi32>, tensor<i32>) -> tensor<8xi32>
  return %0 : tensor<8xi32>
}

// CASE reduce_xor_i32 rtol=0.0001 arg1=full(3)
func.func @main(%arg0: tensor<8x16xi32>, %arg1: tensor<i32>) -> tensor<8xi32> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.xor across dimensions = [1] : (tensor<8x16xi32>, tensor<i32>) -> tensor<8xi32>
  return %0 : tensor<8xi32>
}

// CASE reduce_maximum_ui8 rtol=0.0001
func.func @main(%arg0: tensor<8x16xui8>, %arg1: tensor<ui8>) -> tensor<8xui8> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.maximum across dimensions = [1] : (tensor<8x16xui8>, tensor<ui8>) -> tensor<8xui8>
  return %0 : tensor<8xui8>
}

// CASE reduce_add_bf16 rtol=0.02
func.func @main(%arg0: tensor<8x16xbf16>, %arg1: tensor<bf16>) -> tensor<8xbf16> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.add across dimensions = [1] : (tensor<8x16xbf16>, tensor<bf16>) -> tensor<8xbf16>
  return %0 : tensor<8xbf16>
}

// CASE reduce_add_complex<f32> rtol=0.0001
func.func @main(%arg0: tensor<8x16xcomplex<f32>>, %arg1: tensor<complex<f32>>) -> tensor<8xcomplex<f32>> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.add across dimensions = [1] : (tensor<8x16xcomplex<f32>>, tensor<complex<f32>>) -> tensor<8xcomplex<f32>>
  return %0 : tensor<8xcomplex<f32>>
}

// CASE reduce_multiply_i1 rtol=0.0001
func.func @main(%arg0: tensor<8x16xi1>, %arg1: tensor<i1>) -> tensor<8xi1> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.multiply across dimensions = [1] : (tensor<8x16xi1>, tensor<i1>) -> tensor<8xi1>
  return %0 : tensor<8xi1>
}

// CASE reduce_maximum_i1 rtol=0.0001
func.func @main(%arg0: tensor<8x16xi1>, %arg1: tensor<i1>) -> tensor<8xi1> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.maximum across dimensions = [1] : (tensor<8x16xi1>, tensor<i1>) -> tensor<8xi1>
  return %0 : tensor<8xi1>
}

// CASE reduce_0_2 rtol=0.0001
func.func @main(%arg0: tensor<4x8x8xf32>, %arg1: tensor<f32>) -> tensor<8xf32> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.add across dimensions = [0, 2] : (tensor<4x8x8xf32>, tensor<f32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// CASE reduce_0_1_2 rtol=0.0001
func.func @main(%arg0: tensor<4x8x8xf32>, %arg1: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<4x8x8xf32>, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// CASE reduce_1 rtol=0.0001
func.func @main(%arg0: tensor<4x8x8xf32>, %arg1: tensor<f32>) -> tensor<4x8xf32> {
  %0 = stablehlo.reduce(%arg0 init: %arg1) applies stablehlo.add across dimensions = [1] : (tensor<4x8x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// CASE argmax
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<8x16xi32>, %arg2: tensor<f32>, %arg3: tensor<i32>) -> (tensor<8xf32>, tensor<8xi32>) {
  %0:2 = stablehlo.reduce(%arg0 init: %arg2), (%arg1 init: %arg3) across dimensions = [1] : (tensor<8x16xf32>, tensor<8x16xi32>, tensor<f32>, tensor<i32>) -> (tensor<8xf32>, tensor<8xi32>)
   reducer(%arg4: tensor<f32>, %arg6: tensor<f32>) (%arg5: tensor<i32>, %arg7: tensor<i32>)  {
    %1 = stablehlo.compare GT, %arg4, %arg6, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %2 = stablehlo.select %1, %arg4, %arg6 : tensor<i1>, tensor<f32>
    %3 = stablehlo.select %1, %arg5, %arg7 : tensor<i1>, tensor<i32>
    stablehlo.return %2, %3 : tensor<f32>, tensor<i32>
  }
  return %0#0, %0#1 : tensor<8xf32>, tensor<8xi32>
}

// CASE window_running rtol=0.0001
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<f32>) -> tensor<8x16xf32> {
  %0 = "stablehlo.reduce_window"(%arg0, %arg1) <{padding = dense<[[0, 0], [15, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 16>}> ({
  ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
    %1 = stablehlo.add %arg2, %arg3 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CASE window_tiles rtol=0.0001
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<f32>) -> tensor<8x8xf32> {
  %0 = "stablehlo.reduce_window"(%arg0, %arg1) <{window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 2>}> ({
  ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
    %1 = stablehlo.maximum %arg2, %arg3 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE window_gaps rtol=0.0001
func.func @main(%arg0: tensor<4x32xf32>, %arg1: tensor<f32>) -> tensor<4x8xf32> {
  %0 = "stablehlo.reduce_window"(%arg0, %arg1) <{window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 4>}> ({
  ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
    %1 = stablehlo.add %arg2, %arg3 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<4x32xf32>, tensor<f32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// CASE window_cut rtol=0.0001
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<f32>) -> tensor<8x5xf32> {
  %0 = "stablehlo.reduce_window"(%arg0, %arg1) <{window_dimensions = array<i64: 1, 3>, window_strides = array<i64: 1, 3>}> ({
  ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
    %1 = stablehlo.add %arg2, %arg3 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x5xf32>
  return %0 : tensor<8x5xf32>
}

// CASE window_overlap rtol=0.0001
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<f32>) -> tensor<8x8xf32> {
  %0 = "stablehlo.reduce_window"(%arg0, %arg1) <{padding = dense<[[0, 0], [0, 1]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 3>, window_strides = array<i64: 1, 2>}> ({
  ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
    %1 = stablehlo.minimum %arg2, %arg3 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE window_dilated rtol=0.0001
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<f32>) -> tensor<8x13xf32> {
  %0 = "stablehlo.reduce_window"(%arg0, %arg1) <{base_dilations = array<i64: 1, 2>, window_dilations = array<i64: 1, 2>, window_dimensions = array<i64: 1, 2>}> ({
  ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
    %1 = stablehlo.add %arg2, %arg3 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<8x8xf32>, tensor<f32>) -> tensor<8x13xf32>
  return %0 : tensor<8x13xf32>
}

// CASE window_moved rtol=0.0001
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<f32>) -> tensor<8x16xf32> {
  %0 = "stablehlo.reduce_window"(%arg0, %arg1) <{padding = dense<[[0, 0], [1, -1]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 1>}> ({
  ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
    %1 = stablehlo.add %arg2, %arg3 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CASE select_and_scatter_tiles
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<8x8xf32>, %arg2: tensor<f32>) -> tensor<8x16xf32> {
  %0 = "stablehlo.select_and_scatter"(%arg0, %arg1, %arg2) <{window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 2>}> ({
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    %1 = stablehlo.compare GE, %arg3, %arg4, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }, {
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    %1 = stablehlo.add %arg3, %arg4 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<8x8xf32>, tensor<f32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CASE select_and_scatter_overlap
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<8x8xf32>, %arg2: tensor<f32>) -> tensor<8x16xf32> {
  %0 = "stablehlo.select_and_scatter"(%arg0, %arg1, %arg2) <{padding = dense<[[0, 0], [0, 1]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 3>, window_strides = array<i64: 1, 2>}> ({
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    %1 = stablehlo.compare GE, %arg3, %arg4, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }, {
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    %1 = stablehlo.add %arg3, %arg4 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<8x8xf32>, tensor<f32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CASE select_and_scatter_moved
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<8x16xf32>, %arg2: tensor<f32>) -> tensor<8x16xf32> {
  %0 = "stablehlo.select_and_scatter"(%arg0, %arg1, %arg2) <{padding = dense<[[0, 0], [1, -1]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 1>}> ({
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    %1 = stablehlo.compare GE, %arg3, %arg4, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }, {
  ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
    %1 = stablehlo.add %arg3, %arg4 : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<8x16xf32>, tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
