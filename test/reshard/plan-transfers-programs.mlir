// From a StableHLO file to programs whose sends and receives name their transfers.
// RUN: alpa-opt %s -alpa-import -alpa-cluster-layers=layers=2 \
// RUN:   -alpa-search-stages="cluster=cpu-test submeshes=1x4,1x2 mesh-shapes=2x2,1x2 num-micro-batches=2" \
// RUN:   -alpa-slice-stages -alpa-insert-reshards -alpa-verify-sharding -alpa-build-schedule \
// RUN:   -alpa-plan-transfers -alpa-verify-program | FileCheck %s

// Both micro-batches take the same way.
// CHECK: alpa.cross_mesh_reshard @[[T:reshard_0]] : tensor<8x16xf32>
// CHECK-SAME: on #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>
// CHECK-SAME: on #alpa.mesh<shape = [1, 2], devices = [4, 5]>
// CHECK-NEXT: alpa.tile on
// CHECK-NOT: alpa.cross_mesh_reshard
// CHECK: alpa.program @mesh_0
// CHECK: alpa.send %{{.*}} to 1 tag [[T0:[0-9]+]] by @[[T]]
// CHECK: alpa.send %{{.*}} to 1 tag [[T1:[0-9]+]] by @[[T]]
// CHECK: alpa.program @mesh_1
// CHECK: alpa.recv from 0 tag [[T0]] by @[[T]]
// CHECK: alpa.recv from 0 tag [[T1]] by @[[T]]
module @elsewhere {
  func.func public @main(%x: tensor<8x16xf32> {alpa.kind = "batch"},
                         %w0: tensor<16x16xf32> {alpa.kind = "state"},
                         %w1: tensor<16x16xf32> {alpa.kind = "state"})
      -> (tensor<8x16xf32> {alpa.reduction = "concat"}) {
    %0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.tanh %0 : tensor<8x16xf32>
    %2 = stablehlo.dot_general %1, %w1, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %3 = stablehlo.tanh %2 : tensor<8x16xf32>
    return %3 : tensor<8x16xf32>
  }
}
