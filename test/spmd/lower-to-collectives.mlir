// RUN: alpa-opt %s -alpa-insert-reshards -alpa-verify-sharding -alpa-lower-to-collectives | FileCheck %s

// test/python/compiler/spmd/test_spmd.py runs such programs.

// CHECK: module attributes {{{.*}}alpa.per_device
module attributes {alpa.mesh = #alpa.mesh<shape = [2, 4], devices = [0, 1, 2, 3, 4, 5, 6, 7]>} {
  // Megatron's way: columns, rows, one all-reduce over the second axis.
  // CHECK-LABEL: func.func @megatron
  // CHECK-SAME:    %[[X:.*]]: tensor<4x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}
  // CHECK-SAME:    -> (tensor<4x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>})
  // CHECK:         %[[H:.*]] = stablehlo.dot_general %[[X]], {{.*}} -> tensor<4x8xf32>
  // CHECK:         %[[P:.*]] = stablehlo.dot_general %[[H]], {{.*}} -> tensor<4x16xf32>
  // CHECK:         "stablehlo.all_reduce"(%[[P]]) <{replica_groups = dense<{{\[\[}}0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>}>
  // CHECK:           stablehlo.add
  func.func @megatron(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}, %v: tensor<16x32xf32> {alpa.sharding = #alpa.sharding<[R, S1]>}, %w: tensor<32x16xf32> {alpa.sharding = #alpa.sharding<[S1, R]>}) -> tensor<8x16xf32> {
    %0 = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] {alpa.shardings = [#alpa.sharding<[S0, S1]>]} : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
    %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] {alpa.shardings = [#alpa.sharding<[S0, R]>]} : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
    return %1 : tensor<8x16xf32>
  }

  // One op for each step of the path.
  // CHECK-LABEL: func.func @steps
  // CHECK:         stablehlo.dynamic_slice
  // CHECK:         "stablehlo.all_to_all"({{.*}}) <{concat_dimension = 0 : i64, replica_groups = dense<{{\[\[}}0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, split_count = 2 : i64, split_dimension = 1 : i64}>
  // CHECK:         %[[P:.*]] = "stablehlo.collective_permute"({{.*}}) <{source_target_pairs = dense<{{\[\[}}0, 0], [2, 1], [4, 2], [6, 3], [1, 4], [3, 5], [5, 6], [7, 7]]>
  // CHECK:         "stablehlo.all_gather"(%[[P]]) <{all_gather_dim = 0 : i64, replica_groups = dense<{{\[\[}}0, 4], [1, 5], [2, 6], [3, 7]]>
  func.func @steps(%a: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[R, R]>}, %b: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}, %c: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S01, R]>}) -> (tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S1, R]>}, tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[R, S0]>}, tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S1, R]>}) {
    return %a, %b, %c : tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>
  }

  // A sum scattered over a dimension of the result.
  // CHECK-LABEL: func.func @scattered
  // CHECK:         "stablehlo.reduce_scatter"({{.*}}) <{replica_groups = {{.*}}, scatter_dimension = 1 : i64}>
  // CHECK:         (tensor<4x16xf32>) -> tensor<4x4xf32>
  func.func @scattered(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, S1]>}, %w: tensor<16x16xf32> {alpa.sharding = #alpa.sharding<[S1, R]>}) -> tensor<8x16xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.shardings = [#alpa.sharding<[S0, S1]>]} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }

  // Sizes in attributes are those of the parts.
  // CHECK-LABEL: func.func @sizes
  // CHECK:         stablehlo.slice %{{.*}} [0:4, 2:6]
  // CHECK:         stablehlo.dynamic_slice {{.*}} sizes = [4, 3]
  func.func @sizes(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}, %i: tensor<i32>) -> (tensor<8x4xf32>, tensor<8x3xf32>) {
    %0 = stablehlo.slice %x [0:8, 2:6] {alpa.shardings = [#alpa.sharding<[S0, R]>]} : (tensor<8x16xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.dynamic_slice %x, %i, %i, sizes = [8, 3] {alpa.shardings = [#alpa.sharding<[S0, R]>]} : (tensor<8x16xf32>, tensor<i32>, tensor<i32>) -> tensor<8x3xf32>
    return %0, %1 : tensor<8x4xf32>, tensor<8x3xf32>
  }
}
