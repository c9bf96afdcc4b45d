// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4" | FileCheck %s --check-prefix=FREE
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 memory-limit=14000000" | FileCheck %s --check-prefix=TIGHT
// RUN: not alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 memory-limit=3000000" 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not alpa-opt %S/Inputs/step.mlir -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 micro-batches=4 memory-limit=5767171" 2>&1 | FileCheck %s --check-prefix=STEP
// RUN: alpa-opt %S/Inputs/step.mlir -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 micro-batches=4 memory-limit=5767172" | FileCheck %s --check-prefix=FITS

// With room, the batch is split and every device holds the whole weight, for it is
// used twice and gathering it costs more than it saves. With less room it is split.
// FREE: tensor<1024x1024xf32> {alpa.kind = "state", alpa.sharding = #alpa.sharding<[R, R]>}
// TIGHT: tensor<1024x1024xf32> {alpa.kind = "state", alpa.sharding = #alpa.sharding<{{.*S1.*}}>}
// NONE: error: no sharding of @main fits in 3000000 bytes a device: the smallest memory that would do is 9437184 bytes; the fullest moment is then 'stablehlo.dot_general' of the forward phase at loc({{.*}}), which needs 4194304 bytes for argument 1 : tensor<4096x1024xf32>, 4194304 bytes for a result of 'stablehlo.dot_general' : tensor<4096x1024xf32>, 1048576 bytes for argument 0 : tensor<1024x1024xf32>

// The smallest memory that would do does, and one byte less does not.
// STEP: error: no sharding of @main fits in 5767171 bytes a device: the smallest memory that would do is 5767172 bytes; the fullest moment is then 'stablehlo.multiply' of the backward phase at loc({{.*}}), which needs 2097152 bytes for batch.x : tensor<2048x1024xf32>, 1048576 bytes for
// FITS: alpa.predicted = {activation_bytes = 3145728 : i64, {{.*}} state_bytes = 1572868 : i64, temporary_bytes = 1048576 : i64
func.func @main(%w: tensor<1024x1024xf32> {alpa.kind = "state"}, %x: tensor<4096x1024xf32> {alpa.kind = "batch"}) -> tensor<4096x1024xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4096x1024xf32>, tensor<1024x1024xf32>) -> tensor<4096x1024xf32>
  return %0 : tensor<4096x1024xf32>
}
