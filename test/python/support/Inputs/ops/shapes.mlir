// CASE broadcast_new
func.func @main(%arg0: tensor<8x4xf32>) -> tensor<3x8x4xf32> {
  %0 = stablehlo.broadcast_in_dim %arg0, dims = [1, 2] : (tensor<8x4xf32>) -> tensor<3x8x4xf32>
  return %0 : tensor<3x8x4xf32>
}

// CASE broadcast_swapped
func.func @main(%arg0: tensor<8x4xf32>) -> tensor<4x3x8xf32> {
  %0 = stablehlo.broadcast_in_dim %arg0, dims = [2, 0] : (tensor<8x4xf32>) -> tensor<4x3x8xf32>
  return %0 : tensor<4x3x8xf32>
}

// CASE broadcast_grown
func.func @main(%arg0: tensor<8x1xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.broadcast_in_dim %arg0, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// CASE broadcast_scalar
func.func @main(%arg0: tensor<f32>) -> tensor<8x8xf32> {
  %0 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE transpose
func.func @main(%arg0: tensor<8x4x6xf32>) -> tensor<6x8x4xf32> {
  %0 = stablehlo.transpose %arg0, dims = [2, 0, 1] : (tensor<8x4x6xf32>) -> tensor<6x8x4xf32>
  return %0 : tensor<6x8x4xf32>
}

// CASE reshape_8x16_8x4x4
func.func @main(%arg0: tensor<8x16xi32>) -> tensor<8x4x4xi32> {
  %0 = stablehlo.reshape %arg0 : (tensor<8x16xi32>) -> tensor<8x4x4xi32>
  return %0 : tensor<8x4x4xi32>
}

// CASE reshape_8x16_128
func.func @main(%arg0: tensor<8x16xi32>) -> tensor<128xi32> {
  %0 = stablehlo.reshape %arg0 : (tensor<8x16xi32>) -> tensor<128xi32>
  return %0 : tensor<128xi32>
}

// CASE reshape_128_8x16
func.func @main(%arg0: tensor<128xi32>) -> tensor<8x16xi32> {
  %0 = stablehlo.reshape %arg0 : (tensor<128xi32>) -> tensor<8x16xi32>
  return %0 : tensor<8x16xi32>
}

// CASE reshape_16x16_8x32
func.func @main(%arg0: tensor<16x16xi32>) -> tensor<8x32xi32> {
  %0 = stablehlo.reshape %arg0 : (tensor<16x16xi32>) -> tensor<8x32xi32>
  return %0 : tensor<8x32xi32>
}

// CASE reshape_6x4_2x12
func.func @main(%arg0: tensor<6x4xi32>) -> tensor<2x12xi32> {
  %0 = stablehlo.reshape %arg0 : (tensor<6x4xi32>) -> tensor<2x12xi32>
  return %0 : tensor<2x12xi32>
}

// CASE reshape_6x4_4x6
func.func @main(%arg0: tensor<6x4xi32>) -> tensor<4x6xi32> {
  %0 = stablehlo.reshape %arg0 : (tensor<6x4xi32>) -> tensor<4x6xi32>
  return %0 : tensor<4x6xi32>
}

// CASE reshape_8x6x4_8x4x6
func.func @main(%arg0: tensor<8x6x4xi32>) -> tensor<8x4x6xi32> {
  %0 = stablehlo.reshape %arg0 : (tensor<8x6x4xi32>) -> tensor<8x4x6xi32>
  return %0 : tensor<8x4x6xi32>
}

// CASE reshape_12x10_8x15
func.func @main(%arg0: tensor<12x10xi32>) -> tensor<8x15xi32> {
  %0 = stablehlo.reshape %arg0 : (tensor<12x10xi32>) -> tensor<8x15xi32>
  return %0 : tensor<8x15xi32>
}

// CASE reshape_16x3_24x2
func.func @main(%arg0: tensor<16x3xi32>) -> tensor<24x2xi32> {
  %0 = stablehlo.reshape %arg0 : (tensor<16x3xi32>) -> tensor<24x2xi32>
  return %0 : tensor<24x2xi32>
}

// CASE reshape_8x1_1x8
func.func @main(%arg0: tensor<8x1xi32>) -> tensor<1x8xi32> {
  %0 = stablehlo.reshape %arg0 : (tensor<8x1xi32>) -> tensor<1x8xi32>
  return %0 : tensor<1x8xi32>
}

// CASE reshape_1x8x1x4_8x4
func.func @main(%arg0: tensor<1x8x1x4xi32>) -> tensor<8x4xi32> {
  %0 = stablehlo.reshape %arg0 : (tensor<1x8x1x4xi32>) -> tensor<8x4xi32>
  return %0 : tensor<8x4xi32>
}

// CASE reshape_2x4x8_8x8
func.func @main(%arg0: tensor<2x4x8xi32>) -> tensor<8x8xi32> {
  %0 = stablehlo.reshape %arg0 : (tensor<2x4x8xi32>) -> tensor<8x8xi32>
  return %0 : tensor<8x8xi32>
}
