// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=megatron-sequence" | FileCheck %s
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=megatron" | FileCheck %s --check-prefix=WHOLE
// RUN: alpa-opt %s -alpa-explain-sharding="cluster=%S/Inputs/cluster-pieces.yaml mesh-shape=2,2 method=megatron-sequence micro-batches=2" -o %t.mlir | FileCheck %s --check-prefix=PIECES
// RUN: %python %S/Inputs/check_explanation.py %t.mlir

// Two layers of a perceptron with residuals: between the layers the sum of the
// second dot is scattered over the sequence, and gathered for the next dot.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[S0, R, S1]>]
// CHECK: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[S0, S1, R]>]
// CHECK: stablehlo.tanh {{.*}}alpa.shardings = [#alpa.sharding<[S0, S1, R]>]
// CHECK: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[S0, R, S1]>]
// Devices that do so run gathers and scatters beside pieces of the dots.
// PIECES: of communication more are hidden by other work
// WHOLE-LABEL: func.func @main
// WHOLE: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[S0, R, S1]>]
// WHOLE: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[S0, R, R]>]
func.func @main(%u: tensor<256x1024xf32> {alpa.kind = "state"}, %d: tensor<1024x256xf32> {alpa.kind = "state"},
                %v: tensor<256x1024xf32> {alpa.kind = "state"}, %e: tensor<1024x256xf32> {alpa.kind = "state"},
                %x: tensor<64x512x256xf32> {alpa.kind = "batch"}) -> tensor<64x512x256xf32> {
  %0 = stablehlo.dot_general %x, %u, contracting_dims = [2] x [0] {alpa.phase = "forward"} : (tensor<64x512x256xf32>, tensor<256x1024xf32>) -> tensor<64x512x1024xf32>
  %1 = stablehlo.dot_general %0, %d, contracting_dims = [2] x [0] {alpa.phase = "forward"} : (tensor<64x512x1024xf32>, tensor<1024x256xf32>) -> tensor<64x512x256xf32>
  %2 = stablehlo.add %x, %1 {alpa.phase = "forward"} : tensor<64x512x256xf32>
  %3 = stablehlo.tanh %2 {alpa.phase = "forward"} : tensor<64x512x256xf32>
  %4 = stablehlo.dot_general %3, %v, contracting_dims = [2] x [0] {alpa.phase = "forward"} : (tensor<64x512x256xf32>, tensor<256x1024xf32>) -> tensor<64x512x1024xf32>
  %5 = stablehlo.dot_general %4, %e, contracting_dims = [2] x [0] {alpa.phase = "forward"} : (tensor<64x512x1024xf32>, tensor<1024x256xf32>) -> tensor<64x512x256xf32>
  %6 = stablehlo.add %2, %5 {alpa.phase = "forward"} : tensor<64x512x256xf32>
  return %6 : tensor<64x512x256xf32>
}
