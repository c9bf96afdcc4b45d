// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=data-parallel" | FileCheck %s
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=2,2 method=zero-3" | FileCheck %s
// RUN: alpa-opt %s -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=4,1 method=megatron" | FileCheck %s --check-prefix=COLUMN

// The gradient of take_along_axis: what it adds to and what it adds come from
// constants alone, and are split as the batch is.
// CHECK-LABEL: func.func @main
// CHECK: %[[ZEROS:.*]] = stablehlo.broadcast_in_dim {{.*}}alpa.shardings = [#alpa.sharding<[S01, R]>]{{.*}} -> tensor<64x4096xf32>
// CHECK: "stablehlo.scatter"(%[[ZEROS]],
// CHECK: alpa.shardings = [#alpa.sharding<[S01, R]>]{{.*}} -> tensor<64x4096xf32>
// COLUMN-LABEL: func.func @main
// COLUMN: "stablehlo.scatter"
// COLUMN: alpa.shardings = [#alpa.sharding<[S0, R]>]{{.*}} -> tensor<64x4096xf32>
func.func @main(%w: tensor<256x4096xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64},
                %x: tensor<64x256xf32> {alpa.kind = "batch"},
                %t: tensor<64x1x1xi32> {alpa.kind = "batch"}) -> tensor<256x4096xf32> {
  %one = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<1.0> : tensor<f32>
  %zero = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<64x256xf32>, tensor<256x4096xf32>) -> tensor<64x4096xf32>
  %held:2 = stablehlo.optimization_barrier {alpa.eqn = 1 : i64, alpa.phase = "backward"} %h, %one : tensor<64x4096xf32>, tensor<f32>
  %terms = stablehlo.broadcast_in_dim %held#1, dims = [] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<f32>) -> tensor<64x1xf32>
  %zeros = stablehlo.broadcast_in_dim %zero, dims = [] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<f32>) -> tensor<64x4096xf32>
  %g = "stablehlo.scatter"(%zeros, %t, %terms) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>, unique_indices = false}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %sum = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %sum : tensor<f32>
  }) {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<64x4096xf32>, tensor<64x1x1xi32>, tensor<64x1xf32>) -> tensor<64x4096xf32>
  %d = stablehlo.multiply %g, %held#0 {alpa.eqn = 1 : i64, alpa.phase = "backward"} : tensor<64x4096xf32>
  %dw = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<64x256xf32>, tensor<64x4096xf32>) -> tensor<256x4096xf32>
  %new = stablehlo.subtract %w, %dw {alpa.phase = "update"} : tensor<256x4096xf32>
  return %new : tensor<256x4096xf32>
}
