// RUN: alpa-opt %s -split-input-file -verify-diagnostics -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4" | FileCheck %s

// Left alone the batch would be split; a weight that is held in columns makes
// columns of the result, and the batch whole.
// CHECK-LABEL: func.func @main
// CHECK-SAME: tensor<64x4096xf32> {alpa.kind = "batch", alpa.sharding = #alpa.sharding<[R, R]>}
// CHECK-SAME: tensor<4096x4096xf32> {alpa.kind = "state", alpa.sharding = #alpa.sharding<[R, S1]>}
// CHECK: stablehlo.dot_general {{.*}} {alpa.shardings = [#alpa.sharding<[R, S1]>]}
// CHECK: stablehlo.tanh {{.*}} {alpa.shardings = [#alpa.sharding<[R, S1]>]}
func.func @main(%x: tensor<64x4096xf32> {alpa.kind = "batch", alpa.sharding = #alpa.sharding<[R, R]>}, %w: tensor<4096x4096xf32> {alpa.kind = "state", alpa.sharding = #alpa.sharding<[R, S1]>}) -> tensor<64x4096xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x4096xf32>, tensor<4096x4096xf32>) -> tensor<64x4096xf32>
  %1 = stablehlo.tanh %0 : tensor<64x4096xf32>
  return %1 : tensor<64x4096xf32>
}

// -----

// Buffers of experts, [groups, experts, places, features], with one row more for tokens
// without a place: the product splits experts, the rows groups. The row must not let all
// rows be gathered: what follows the product is split by groups, which an all-to-all makes.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[S1, R, R, R]>]
// CHECK: stablehlo.concatenate {{.*}}alpa.shardings = [#alpa.sharding<[S1, R, R]>], alpa.use_shardings = [#alpa.sharding<[S1, R, R]>, #alpa.sharding<[S1, R, R]>]
func.func @main(%x: tensor<8x16x64x512xf32> {alpa.kind = "batch", alpa.sharding = #alpa.sharding<[S1, R, R, R]>}, %w: tensor<16x512x512xf32> {alpa.kind = "state", alpa.sharding = #alpa.sharding<[S1, R, R]>}, %ids: tensor<8x1024x1xi32> {alpa.kind = "batch"}) -> tensor<8x1024x512xf32> {
  %0 = stablehlo.dot_general %x, %w, batching_dims = [1] x [0], contracting_dims = [3] x [1] : (tensor<8x16x64x512xf32>, tensor<16x512x512xf32>) -> tensor<16x8x64x512xf32>
  %1 = stablehlo.transpose %0, dims = [1, 0, 2, 3] : (tensor<16x8x64x512xf32>) -> tensor<8x16x64x512xf32>
  %2 = stablehlo.reshape %1 : (tensor<8x16x64x512xf32>) -> tensor<8x1024x512xf32>
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %none = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<8x1x512xf32>
  %3 = stablehlo.concatenate %2, %none, dim = 1 : (tensor<8x1024x512xf32>, tensor<8x1x512xf32>) -> tensor<8x1025x512xf32>
  %4 = "stablehlo.gather"(%3, %ids) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1, 512>}> : (tensor<8x1025x512xf32>, tensor<8x1024x1xi32>) -> tensor<8x1024x512xf32>
  return %4 : tensor<8x1024x512xf32>
}

// -----

// expected-error@below {{a value is pinned to [S1, R], which does not split it evenly on this mesh}}
module {
  func.func @main(%x: tensor<6x8xf32> {alpa.sharding = #alpa.sharding<[S1, R]>}) -> tensor<6x8xf32> {
    %0 = stablehlo.tanh %x : tensor<6x8xf32>
    return %0 : tensor<6x8xf32>
  }
}
