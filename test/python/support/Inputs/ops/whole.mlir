// CASE rng_bit_generator
func.func @main(%arg0: tensor<2xui64>) -> (tensor<2xui64>, tensor<8x8xui32>) {
  %output_state, %output = stablehlo.rng_bit_generator %arg0, algorithm = THREE_FRY : (tensor<2xui64>) -> (tensor<2xui64>, tensor<8x8xui32>)
  return %output_state, %output : tensor<2xui64>, tensor<8x8xui32>
}

// CASE get_dimension_size
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<i32> {
  %0 = stablehlo.get_dimension_size %arg0, dim = 0 : (tensor<8x8xf32>) -> tensor<i32>
  return %0 : tensor<i32>
}
