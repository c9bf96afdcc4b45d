// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4" | FileCheck %s --check-prefix=FREE
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 memory-limit=14000000" | FileCheck %s --check-prefix=TIGHT
// RUN: not alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 memory-limit=3000000" 2>&1 | FileCheck %s --check-prefix=NONE

// With room, the batch is split and every device holds the whole weight, for it is
// used twice and gathering it costs more than it saves. With less room it is split.
// FREE: tensor<1024x1024xf32> {alpa.kind = "state", alpa.sharding = #alpa.sharding<[R, R]>}
// TIGHT: tensor<1024x1024xf32> {alpa.kind = "state", alpa.sharding = #alpa.sharding<{{.*S1.*}}>}
// NONE: error: no sharding of @main fits in 3000000 bytes a device
func.func @main(%w: tensor<1024x1024xf32> {alpa.kind = "state"}, %x: tensor<4096x1024xf32> {alpa.kind = "batch"}) -> tensor<4096x1024xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4096x1024xf32>, tensor<1024x1024xf32>) -> tensor<4096x1024xf32>
  return %0 : tensor<4096x1024xf32>
}
