// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=megatron-sequence" | FileCheck %s

// What jax.checkpoint computes again reads weights behind a barrier; its dots are split as
// those of other weights are.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[S0, R, S1]>]
// CHECK: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[S0, S1, R]>]
func.func @main(%u: tensor<256x1024xf32> {alpa.kind = "state"}, %d: tensor<1024x256xf32> {alpa.kind = "state"},
                %x: tensor<64x512x256xf32> {alpa.kind = "batch"}) -> tensor<64x512x256xf32> {
  %0:3 = stablehlo.optimization_barrier {alpa.phase = "backward"} %x, %u, %d : tensor<64x512x256xf32>, tensor<256x1024xf32>, tensor<1024x256xf32>
  %1 = stablehlo.dot_general %0#0, %0#1, contracting_dims = [2] x [0] {alpa.phase = "backward"} : (tensor<64x512x256xf32>, tensor<256x1024xf32>) -> tensor<64x512x1024xf32>
  %2 = stablehlo.dot_general %1, %0#2, contracting_dims = [2] x [0] {alpa.phase = "backward"} : (tensor<64x512x1024xf32>, tensor<1024x256xf32>) -> tensor<64x512x256xf32>
  return %2 : tensor<64x512x256xf32>
}
