// CASE slice
func.func @main(%arg0: tensor<8x16xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.slice %arg0 [0:8, 2:6] : (tensor<8x16xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// CASE slice_strided
func.func @main(%arg0: tensor<8x16xf32>) -> tensor<4x16xf32> {
  %0 = stablehlo.slice %arg0 [1:8:2, 0:16] : (tensor<8x16xf32>) -> tensor<4x16xf32>
  return %0 : tensor<4x16xf32>
}

// CASE dynamic_slice arg1=between(-2,12) arg2=between(-2,12)
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<3x16xf32> {
  %0 = stablehlo.dynamic_slice %arg0, %arg1, %arg2, sizes = [3, 16] : (tensor<8x16xf32>, tensor<i32>, tensor<i32>) -> tensor<3x16xf32>
  return %0 : tensor<3x16xf32>
}

// CASE dynamic_update_slice arg2=between(-2,12) arg3=between(-2,12)
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<2x16xf32>, %arg2: tensor<i32>, %arg3: tensor<i32>) -> tensor<8x16xf32> {
  %0 = stablehlo.dynamic_update_slice %arg0, %arg1, %arg2, %arg3 : (tensor<8x16xf32>, tensor<2x16xf32>, tensor<i32>, tensor<i32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CASE pad
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<f32>) -> tensor<8x30xf32> {
  %0 = stablehlo.pad %arg0, %arg1, low = [0, 1], high = [0, -2], interior = [0, 1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x30xf32>
  return %0 : tensor<8x30xf32>
}

// CASE pad_moved
func.func @main(%arg0: tensor<8x16xf32>, %arg1: tensor<f32>) -> tensor<8x16xf32> {
  %0 = stablehlo.pad %arg0, %arg1, low = [1, 0], high = [-1, 0], interior = [0, 0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CASE concatenate
func.func @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x16xf32>) -> tensor<8x24xf32> {
  %0 = stablehlo.concatenate %arg0, %arg1, dim = 1 : (tensor<8x8xf32>, tensor<8x16xf32>) -> tensor<8x24xf32>
  return %0 : tensor<8x24xf32>
}

// CASE reverse
func.func @main(%arg0: tensor<8x8xi32>) -> tensor<8x8xi32> {
  %0 = stablehlo.reverse %arg0, dims = [1] : tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}

// CASE sort
func.func @main(%arg0: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %0 = "stablehlo.sort"(%arg0) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
    %1 = stablehlo.compare LT, %arg1, %arg2, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CASE sort_pairs
func.func @main(%arg0: tensor<16x8xi32>, %arg1: tensor<16x8xf32>) -> (tensor<16x8xi32>, tensor<16x8xf32>) {
  %0:2 = "stablehlo.sort"(%arg0, %arg1) <{dimension = -2 : i64, is_stable = true}> ({
  ^bb0(%arg2: tensor<i32>, %arg3: tensor<i32>, %arg4: tensor<f32>, %arg5: tensor<f32>):
    %1 = stablehlo.compare GT, %arg2, %arg3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) : (tensor<16x8xi32>, tensor<16x8xf32>) -> (tensor<16x8xi32>, tensor<16x8xf32>)
  return %0#0, %0#1 : tensor<16x8xi32>, tensor<16x8xf32>
}

// CASE top_k
func.func @main(%arg0: tensor<8x16xf32>) -> (tensor<8x4xf32>, tensor<8x4xi32>) {
  %values, %indices = chlo.top_k(%arg0, k = 4) : tensor<8x16xf32> -> (tensor<8x4xf32>, tensor<8x4xi32>)
  return %values, %indices : tensor<8x4xf32>, tensor<8x4xi32>
}
