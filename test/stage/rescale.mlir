// A step of another micro-batch size or dtype.
// RUN: alpa-opt %s --alpa-rescale=batch=1/2 | FileCheck %s --check-prefixes=CHECK,HALF
// RUN: alpa-opt %s --alpa-rescale="batch=3 dtype=bfloat16" | FileCheck %s --check-prefixes=CHECK,LOW
// RUN: not alpa-opt %s --alpa-rescale=batch=1/8 2>&1 | FileCheck %s --check-prefix=WHOLE
// RUN: not alpa-opt %s --alpa-rescale=batch=0 2>&1 | FileCheck %s --check-prefix=OPTION
// WHOLE: alpa-rescale: 1/8 of 4 examples is no whole number
// OPTION: alpa-rescale: batch must be a factor such as 4 or 1/2, got '0'

// CHECK: func.func @main
// HALF-SAME: (%{{.*}}: tensor<8x8xf32> {{.*}}, %{{.*}}: tensor<2x3x8xf32> {{.*}}) -> tensor<6xf32>
// LOW-SAME: (%{{.*}}: tensor<8x8xbf16> {{.*}}, %{{.*}}: tensor<12x3x8xbf16> {{.*}}) -> tensor<36xbf16>
func.func @main(%w: tensor<8x8xf32> {alpa.kind = "state"},
                %x: tensor<4x3x8xf32> {alpa.kind = "batch"}) -> tensor<12xf32> {
  // What the sizes say, and what no size says.
  // HALF: stablehlo.reshape {{.*}} -> tensor<6x8xf32>
  // LOW: stablehlo.reshape {{.*}} -> tensor<36x8xbf16>
  %0 = stablehlo.reshape %x : (tensor<4x3x8xf32>) -> tensor<12x8xf32>
  // HALF: stablehlo.dot_general {{.*}} -> tensor<6x8xf32>
  // LOW: stablehlo.dot_general {{.*}} -> tensor<36x8xbf16>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<12x8xf32>, tensor<8x8xf32>) -> tensor<12x8xf32>
  // HALF: stablehlo.constant dense<1.250000e-01> : tensor<f32>
  // LOW: stablehlo.constant dense<1.250000e-01> : tensor<bf16>
  %n = stablehlo.constant dense<0.125> : tensor<f32>
  // HALF: stablehlo.broadcast_in_dim {{.*}} -> tensor<6x8xf32>
  %2 = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<f32>) -> tensor<12x8xf32>
  %3 = stablehlo.multiply %1, %2 : tensor<12x8xf32>
  // HALF: stablehlo.slice %{{.*}} [0:6, 2:4] : (tensor<6x8xf32>) -> tensor<6x2xf32>
  // LOW: stablehlo.slice %{{.*}} [0:36, 2:4] : (tensor<36x8xbf16>) -> tensor<36x2xbf16>
  %4 = stablehlo.slice %3 [0:12, 2:4] : (tensor<12x8xf32>) -> tensor<12x2xf32>
  // HALF: stablehlo.constant dense<1.000000e+00> : tensor<6x2xf32>
  // LOW: stablehlo.constant dense<1.000000e+00> : tensor<36x2xbf16>
  %5 = stablehlo.constant dense<1.0> : tensor<12x2xf32>
  %6 = stablehlo.add %4, %5 : tensor<12x2xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // HALF: stablehlo.reduce{{.*}} -> tensor<6xf32>
  %7 = stablehlo.reduce(%6 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<12x2xf32>, tensor<f32>) -> tensor<12xf32>
  return %7 : tensor<12xf32>
}
