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

// expected-error@below {{a value is pinned to [S1, R], which does not split it evenly on this mesh}}
module {
  func.func @main(%x: tensor<6x8xf32> {alpa.sharding = #alpa.sharding<[S1, R]>}) -> tensor<6x8xf32> {
    %0 = stablehlo.tanh %x : tensor<6x8xf32>
    return %0 : tensor<6x8xf32>
  }
}
