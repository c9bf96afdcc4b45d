// CASE fft_FFT rtol=0.0001
func.func @main(%arg0: tensor<8x8xcomplex<f32>>) -> tensor<8x8xcomplex<f32>> {
  %0 = stablehlo.fft %arg0, type = FFT, length = [8] : (tensor<8x8xcomplex<f32>>) -> tensor<8x8xcomplex<f32>>
  return %0 : tensor<8x8xcomplex<f32>>
}

// CASE fft_IFFT rtol=0.0001
func.func @main(%arg0: tensor<8x4x8xcomplex<f32>>) -> tensor<8x4x8xcomplex<f32>> {
  %0 = stablehlo.fft %arg0, type = IFFT, length = [4, 8] : (tensor<8x4x8xcomplex<f32>>) -> tensor<8x4x8xcomplex<f32>>
  return %0 : tensor<8x4x8xcomplex<f32>>
}

// CASE fft_RFFT rtol=0.0001
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x5xcomplex<f32>> {
  %0 = stablehlo.fft %arg0, type = RFFT, length = [8] : (tensor<8x8xf32>) -> tensor<8x5xcomplex<f32>>
  return %0 : tensor<8x5xcomplex<f32>>
}

// CASE fft_IRFFT rtol=0.0001
func.func @main(%arg0: tensor<8x5xcomplex<f32>>) -> tensor<8x8xf32> {
  %0 = stablehlo.fft %arg0, type = IRFFT, length = [8] : (tensor<8x5xcomplex<f32>>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// CASE cholesky rtol=0.0001 arg0=definite
func.func @main(%arg0: tensor<8x4x4xf32>) -> tensor<8x4x4xf32> {
  %0 = stablehlo.cholesky %arg0, lower = true : tensor<8x4x4xf32>
  return %0 : tensor<8x4x4xf32>
}

// CASE triangular_solve_true rtol=0.0001 arg0=definite
func.func @main(%arg0: tensor<8x4x4xf32>, %arg1: tensor<8x4x8xf32>) -> tensor<8x4x8xf32> {
  %0 = "stablehlo.triangular_solve"(%arg0, %arg1) <{left_side = true, lower = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}> : (tensor<8x4x4xf32>, tensor<8x4x8xf32>) -> tensor<8x4x8xf32>
  return %0 : tensor<8x4x8xf32>
}

// CASE triangular_solve_false rtol=0.0001 arg0=definite
func.func @main(%arg0: tensor<8x4x4xf32>, %arg1: tensor<8x8x4xf32>) -> tensor<8x8x4xf32> {
  %0 = "stablehlo.triangular_solve"(%arg0, %arg1) <{left_side = false, lower = true, transpose_a = #stablehlo<transpose TRANSPOSE>, unit_diagonal = false}> : (tensor<8x4x4xf32>, tensor<8x8x4xf32>) -> tensor<8x8x4xf32>
  return %0 : tensor<8x8x4xf32>
}
