// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test method=megatron pipeline=intra-only" | FileCheck %s

// Megatron's axes are not alike: 8x1, all devices for the batch, is another view than
// 1x8, all for tensors, and here the better one, as four columns cannot be split.
// CHECK: alpa.stages = [#alpa.stage<mesh = <shape = [8, 1],
module {
  func.func @main(%x: tensor<4096x64xf32> {alpa.kind = "batch"}, %w: tensor<64x4xf32> {alpa.kind = "state"}) -> tensor<4096x4xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<4096x64xf32>, tensor<64x4xf32>) -> tensor<4096x4xf32>
    return %0 : tensor<4096x4xf32>
  }
}
