// Transfers between meshes print as they are written, and their generic form reads back.
// RUN: alpa-opt %s | alpa-opt | FileCheck %s
// RUN: alpa-opt %s --mlir-print-op-generic | alpa-opt | FileCheck %s

// CHECK: alpa.cross_mesh_reshard @empty : tensor<8x4xf32> from #alpa.sharding<[S0, R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R, R]> on #alpa.mesh<shape = [4], devices = [2, 3, 4, 5]> {
// CHECK-NEXT: }
alpa.cross_mesh_reshard @empty : tensor<8x4xf32>
    from #alpa.sharding<[S0, R]> on #alpa.mesh<shape = [2], devices = [0, 1]>
    to #alpa.sharding<[R, R]> on #alpa.mesh<shape = [4], devices = [2, 3, 4, 5]> {
}

// CHECK: alpa.cross_mesh_reshard @planned : tensor<8x4xf32> from #alpa.sharding<[S0, R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R, R]> on #alpa.mesh<shape = [4], devices = [2, 3, 4, 5]>
// CHECK-SAME: attributes {seconds = 1.000000e-05 : f64, slow_bytes = 128 : i64, strategy = "broadcast"} {
// CHECK-NEXT: %[[A:.*]] = alpa.tile on 0 at [0, 0] : tensor<4x4xf32>
// CHECK-NEXT: %[[B:.*]] = alpa.tile on 1 at [4, 0] : tensor<4x4xf32>
// CHECK-NEXT: %[[C:.*]]:4 = alpa.broadcast %[[A]] to [2, 3, 4, 5] chunks 8 : tensor<4x4xf32>
// CHECK-NEXT: %[[D:.*]] = alpa.tile on 1 at [4, 0] : tensor<2x4xf32>
// CHECK-NEXT: %[[E:.*]] = alpa.tile on 1 at [6, 0] : tensor<2x4xf32>
// CHECK-NEXT: %[[F:.*]] = alpa.send_tile %[[D]] to 2 : tensor<2x4xf32>
// CHECK-NEXT: %[[G:.*]] = alpa.send_tile %[[E]] to 3 : tensor<2x4xf32>
// CHECK-NEXT: %[[H:.*]]:2 = alpa.all_gather %[[F]], %[[G]] : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
// CHECK-NEXT: %[[I:.*]]:2 = alpa.broadcast %[[B]] to [4, 5] chunks 1 : tensor<4x4xf32>
alpa.cross_mesh_reshard @planned : tensor<8x4xf32>
    from #alpa.sharding<[S0, R]> on #alpa.mesh<shape = [2], devices = [0, 1]>
    to #alpa.sharding<[R, R]> on #alpa.mesh<shape = [4], devices = [2, 3, 4, 5]>
    attributes {seconds = 1.0e-05 : f64, slow_bytes = 128 : i64, strategy = "broadcast"} {
  %a = alpa.tile on 0 at [0, 0] : tensor<4x4xf32>
  %b = alpa.tile on 1 at [4, 0] : tensor<4x4xf32>
  %c:4 = alpa.broadcast %a to [2, 3, 4, 5] chunks 8 : tensor<4x4xf32>
  %d = alpa.tile on 1 at [4, 0] : tensor<2x4xf32>
  %e = alpa.tile on 1 at [6, 0] : tensor<2x4xf32>
  %f = alpa.send_tile %d to 2 : tensor<2x4xf32>
  %g = alpa.send_tile %e to 3 : tensor<2x4xf32>
  %h:2 = alpa.all_gather %f, %g : (tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
  %i:2 = alpa.broadcast %b to [4, 5] chunks 1 : tensor<4x4xf32>
}

// A device of both meshes keeps what it has, and its neighbour's part comes to it. A tile that it
// only gives away lies beside its shard.
// CHECK: alpa.cross_mesh_reshard @shared
alpa.cross_mesh_reshard @shared : tensor<4xi1>
    from #alpa.sharding<[S0]> on #alpa.mesh<shape = [2], devices = [0, 1]>
    to #alpa.sharding<[S0]> on #alpa.mesh<shape = [2], devices = [1, 0]> {
  // CHECK: alpa.tile on 0 at [0] : tensor<2xi1>
  %0 = alpa.tile on 0 at [0] : tensor<2xi1>
  %1 = alpa.send_tile %0 to 1 : tensor<2xi1>
  %2 = alpa.tile on 1 at [2] : tensor<2xi1>
  %3 = alpa.send_tile %2 to 0 : tensor<2xi1>
}

// CHECK: alpa.cross_mesh_reshard @scalar : tensor<f32> from #alpa.sharding<[]>
// CHECK-NEXT: %[[S:.*]] = alpa.tile on 0 at [] : tensor<f32>
// CHECK-NEXT: alpa.send_tile %[[S]] to 1 : tensor<f32>
alpa.cross_mesh_reshard @scalar : tensor<f32>
    from #alpa.sharding<[]> on #alpa.mesh<shape = [1], devices = [0]>
    to #alpa.sharding<[]> on #alpa.mesh<shape = [1], devices = [1]> {
  %0 = alpa.tile on 0 at [] : tensor<f32>
  %1 = alpa.send_tile %0 to 1 : tensor<f32>
}

// Nothing has to be done for a tensor without elements.
// CHECK: alpa.cross_mesh_reshard @nothing
alpa.cross_mesh_reshard @nothing : tensor<0x4xf32>
    from #alpa.sharding<[S0, R]> on #alpa.mesh<shape = [2], devices = [0, 1]>
    to #alpa.sharding<[R, R]> on #alpa.mesh<shape = [1], devices = [2]> {
}

// CHECK: alpa.program @p on 0
alpa.program @p on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[S0, R]>} : tensor<8x4xf32>
  // CHECK: alpa.send %{{.*}} to 1 tag 4 by @empty : tensor<8x4xf32>
  alpa.send %0 to 1 tag 4 by @empty : tensor<8x4xf32>
  // CHECK: %[[R:.*]] = alpa.recv from 1 tag 5 by @empty {sharding = #alpa.sharding<[R, R]>} : tensor<8x4xf32>
  %1 = alpa.recv from 1 tag 5 by @empty {sharding = #alpa.sharding<[R, R]>} : tensor<8x4xf32>
  // CHECK: alpa.reshard %[[R]]
  %2 = alpa.reshard %1 {from = #alpa.sharding<[R, R]>, to = #alpa.sharding<[S0, R]>} : tensor<8x4xf32>
  alpa.free %0, %1, %2 : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
}
