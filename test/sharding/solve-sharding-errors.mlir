// RUN: split-file %s %t
// RUN: not alpa-opt %t/rule.mlir -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4" 2>&1 | FileCheck %s --check-prefix=RULE
// RUN: not alpa-opt %t/fine.mlir -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,3" 2>&1 | FileCheck %s --check-prefix=SHAPE
// RUN: not alpa-opt %t/fine.mlir -alpa-solve-sharding="mesh-shape=1,4" 2>&1 | FileCheck %s --check-prefix=CLUSTER
// RUN: not alpa-opt %t/fine.mlir -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=0,4" 2>&1 | FileCheck %s --check-prefix=ZERO
// RUN: not alpa-opt %t/empty.mlir -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml" 2>&1 | FileCheck %s --check-prefix=MAIN

// RULE: error: {{.*}}rule.mlir{{.*}}:2:{{.*}}'stablehlo.partition_id' op has no sharding rule yet
// SHAPE: error: cluster 'round-figures' has no submesh of 3 devices; it has submeshes of 1, 2, 4, 8
// CLUSTER: error: option 'cluster' is missing; give a preset (
// ZERO: error: mesh-shape has an axis of 0 devices; at least 1 is needed
// MAIN: error: the module has no function @main with a body

//--- rule.mlir
func.func @main() -> tensor<ui32> {
  %0 = stablehlo.partition_id : tensor<ui32>
  return %0 : tensor<ui32>
}

//--- fine.mlir
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

//--- empty.mlir
module {}
