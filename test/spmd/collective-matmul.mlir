// RUN: alpa-opt %s -alpa-insert-reshards -alpa-verify-sharding -alpa-lower-to-collectives | FileCheck %s

// Devices with slow links that run gathers and scatters beside the products: pieces go round.
// test/python/compiler/spmd/test_spmd.py runs such programs.
module attributes {
    alpa.cluster = "{device_types: {d: {memory_bytes: 1GiB, memory_bandwidth: 1e12, peak_flops: {float32: 1e9}, overlap_slowdown: 0.1, collective_matmul: true}}, hosts: {devices: 2, device_type: d}, links: {intra_host: {bandwidth: 1e6, latency: 0}, inter_host: {bandwidth: 1e6, latency: 0}}}",
    alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
  // A device multiplies its rows and gets the other's beside that.
  // CHECK-LABEL: func.func @gathers
  // CHECK-SAME:    (%[[X:.*]]: tensor<4x16xf32> {{.*}}, %[[W:.*]]: tensor<16x8xf32>
  // CHECK:         %[[ME:.*]] = stablehlo.convert
  // CHECK:         %[[A:.*]] = stablehlo.dot_general %[[X]], %[[W]], {{.*}} -> tensor<4x8xf32>
  // CHECK:         %[[SENT:.*]] = "stablehlo.collective_permute"(%[[X]]) <{source_target_pairs = dense<{{\[\[}}0, 1], [1, 0]]>
  // CHECK:         %[[B:.*]]:2 = stablehlo.optimization_barrier %[[SENT]], %[[A]]
  // CHECK:         %[[FIRST:.*]] = stablehlo.dynamic_update_slice %{{.*}}, %[[B]]#1
  // CHECK:         %[[C:.*]] = stablehlo.dot_general %[[B]]#0, %[[W]]
  // CHECK:         %[[Y:.*]] = stablehlo.dynamic_update_slice %[[FIRST]], %[[C]]
  // CHECK:         return %[[Y]]
  func.func @gathers(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}, %w: tensor<16x16xf32> {alpa.sharding = #alpa.sharding<[R, S0]>}) -> (tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[R, S0]>}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.shardings = [#alpa.sharding<[R, S0]>], alpa.use_shardings = [#alpa.sharding<[R, R]>, #alpa.sharding<[R, S0]>]} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }

  // The other's rows first; its own are computed beside their message.
  // CHECK-LABEL: func.func @scatters
  // CHECK-SAME:    (%[[X:.*]]: tensor<8x8xf32> {{.*}}, %[[W:.*]]: tensor<8x16xf32>
  // CHECK:         %[[THEIRS:.*]] = stablehlo.dynamic_slice %[[X]]
  // CHECK:         %[[A:.*]] = stablehlo.dot_general %[[THEIRS]], %[[W]], {{.*}} -> tensor<4x16xf32>
  // CHECK:         %[[B:.*]]:2 = stablehlo.optimization_barrier %[[A]], %[[X]]
  // CHECK:         %[[MINE:.*]] = stablehlo.dynamic_slice %[[B]]#1
  // CHECK:         %[[C:.*]] = stablehlo.dot_general %[[MINE]], %[[W]]
  // CHECK:         %[[SENT:.*]] = "stablehlo.collective_permute"(%[[B]]#0)
  // CHECK:         %[[D:.*]]:2 = stablehlo.optimization_barrier %[[C]], %[[SENT]]
  // CHECK:         stablehlo.add %[[D]]#1, %[[D]]#0
  // CHECK-NOT:     reduce_scatter
  func.func @scatters(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[R, S0]>}, %w: tensor<16x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}) -> (tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.shardings = [#alpa.sharding<[S0, R]>]} : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }

  // What contracts the gathered dimension waits for all of it.
  // CHECK-LABEL: func.func @waits
  // CHECK:         "stablehlo.all_gather"
  // CHECK-NOT:     collective_permute
  func.func @waits(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}, %y: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[R, S0]>}) -> (tensor<16x16xf32> {alpa.sharding = #alpa.sharding<[R, S0]>}) {
    %0 = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] {alpa.shardings = [#alpa.sharding<[R, S0]>], alpa.use_shardings = [#alpa.sharding<[R, R]>, #alpa.sharding<[R, S0]>]} : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<16x16xf32>
    return %0 : tensor<16x16xf32>
  }
}
