// A dot forward and backward, and momentum; the activation is kept for the backward pass.
func.func @main(%w: tensor<1024x512xf32> {alpa.kind = "state", alpa.name = "state.w", alpa.carried_by = 0 : i64}, %m: tensor<1024x512xf32> {alpa.kind = "state", alpa.name = "state.m", alpa.carried_by = 1 : i64}, %x: tensor<2048x1024xf32> {alpa.kind = "batch", alpa.name = "batch.x"}) -> (tensor<1024x512xf32>, tensor<1024x512xf32>, tensor<f32>) {
  %zero = stablehlo.constant {alpa.phase = "forward"} dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.phase = "forward"} : (tensor<2048x1024xf32>, tensor<1024x512xf32>) -> tensor<2048x512xf32>
  %1 = stablehlo.tanh %0 {alpa.phase = "forward"} : tensor<2048x512xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.phase = "forward"} : (tensor<2048x512xf32>, tensor<f32>) -> tensor<f32>
  %3 = stablehlo.multiply %1, %1 {alpa.phase = "backward"} : tensor<2048x512xf32>
  %4 = stablehlo.dot_general %x, %3, contracting_dims = [0] x [0] {alpa.phase = "backward"} : (tensor<2048x1024xf32>, tensor<2048x512xf32>) -> tensor<1024x512xf32>
  %5 = stablehlo.add %m, %4 {alpa.phase = "update"} : tensor<1024x512xf32>
  %6 = stablehlo.subtract %w, %5 {alpa.phase = "update"} : tensor<1024x512xf32>
  return %6, %5, %2 : tensor<1024x512xf32>, tensor<1024x512xf32>, tensor<f32>
}
