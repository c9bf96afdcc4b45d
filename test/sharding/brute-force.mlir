// RUN: alpa-opt %s -alpa-build-sharding-problem="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 micro-batches=4 memory-limit=-1 output=%t.json" -o /dev/null
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4 micro-batches=4" -o %t.solved
// RUN: %python %S/Inputs/brute_force.py %t.json %t.solved 4 | FileCheck %s
// RUN: alpa-opt %s -alpa-build-sharding-problem="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 memory-limit=-1 output=%t.square.json" -o /dev/null
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2" -o %t.square.solved
// RUN: %python %S/Inputs/brute_force.py %t.square.json %t.square.solved | FileCheck %s

// CHECK: equal

// A dot forward and backward, and momentum.
func.func @main(%w: tensor<256x130xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<258x256xf32> {alpa.kind = "batch"}) -> (tensor<256x130xf32>, tensor<f32>) {
  %zero = stablehlo.constant {alpa.phase = "forward"} dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.phase = "forward"} : (tensor<258x256xf32>, tensor<256x130xf32>) -> tensor<258x130xf32>
  %1 = stablehlo.tanh %0 {alpa.phase = "forward"} : tensor<258x130xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.phase = "forward"} : (tensor<258x130xf32>, tensor<f32>) -> tensor<f32>
  %3 = stablehlo.dot_general %x, %1, contracting_dims = [0] x [0] {alpa.phase = "backward"} : (tensor<258x256xf32>, tensor<258x130xf32>) -> tensor<256x130xf32>
  %4 = stablehlo.subtract %w, %3 {alpa.phase = "update"} : tensor<256x130xf32>
  return %4, %2 : tensor<256x130xf32>, tensor<f32>
}
