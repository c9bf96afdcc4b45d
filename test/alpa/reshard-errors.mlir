// Each labelled constraint of transfers between meshes, broken once.
// RUN: alpa-opt %s --verify-diagnostics --split-input-file

// expected-error@+1 {{alpa_cross_mesh_reshard_c1: expected known sizes, got 'tensor<?xf32>'}}
alpa.cross_mesh_reshard @t : tensor<?xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
}

// -----

// expected-error@+1 {{alpa_cross_mesh_reshard_c1: 'tensor<4294967296x4294967296xf32>' has too many elements}}
alpa.cross_mesh_reshard @t : tensor<4294967296x4294967296xf32> from #alpa.sharding<[R, R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R, R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
}

// -----

// expected-error@+1 {{alpa_cross_mesh_reshard_c1: source: the sharding has 2 entries, but 'tensor<8xf32>' has 1 dimensions}}
alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R, R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
}

// -----

// expected-error@+1 {{alpa_cross_mesh_reshard_c1: target: the sharding uses mesh axis 1, but the mesh has 1 axes}}
alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[S1]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
}

// -----

// expected-error@+1 {{alpa_cross_mesh_reshard_c1: target: dimension 1 of 'tensor<8x7xf32>' is not divisible by its 2 pieces}}
alpa.cross_mesh_reshard @t : tensor<8x7xf32> from #alpa.sharding<[S0, R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R, S0]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
}

// -----

// expected-error@+1 {{alpa_cross_mesh_reshard_c1: source: only terms of a sum are there along mesh axis 0}}
alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R], unreduced = [0]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  // expected-error@+1 {{alpa_cross_mesh_reshard_c2: `stablehlo.constant` is not a step of a plan}}
  %0 = stablehlo.constant dense<0.0> : tensor<f32>
}

// -----

// expected-error@+1 {{alpa_cross_mesh_reshard_c3: device 3 gets 4 of the 8 elements of its shard, [0:8]}}
alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[S0]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<4xf32>
  %1:2 = alpa.broadcast %0 to [2, 3] chunks 1 : tensor<4xf32>
  %2 = alpa.tile on 1 at [4] : tensor<4xf32>
  %3 = alpa.send_tile %2 to 2 : tensor<4xf32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[S0]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<4xf32>
  // expected-note@+1 {{it gets [0:4] here}}
  %1 = alpa.send_tile %0 to 2 : tensor<4xf32>
  %2 = alpa.tile on 1 at [3] : tensor<1xf32>
  // expected-error@+1 {{alpa_cross_mesh_reshard_c3: device 2 has elements of [3:4] already}}
  %3 = alpa.send_tile %2 to 2 : tensor<1xf32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  // expected-error@+1 {{alpa_tile_c1: device 2 is not in the source mesh #alpa.mesh<shape = [2], devices = [0, 1]>}}
  %0 = alpa.tile on 2 at [0] : tensor<8xf32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[S0]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  // expected-error@+1 {{alpa_tile_c2: [2:6] is not in the shard of device 0, [0:4]}}
  %0 = alpa.tile on 0 at [2] : tensor<4xf32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[S0]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  // expected-error@+1 {{alpa_tile_c2: expected a part of 'tensor<8xf32>', got 'tensor<4xi32>' at 1 offsets}}
  %0 = alpa.tile on 0 at [0] : tensor<4xi32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[S0]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  // expected-error@+1 {{alpa_tile_c3: the tile has no elements}}
  %0 = alpa.tile on 0 at [0] : tensor<0xf32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[S0]> on #alpa.mesh<shape = [2], devices = [1, 2]> {
  // expected-error@+1 {{alpa_tile_c3: [2:6] lies partly in the shard that device 1 wants, [0:4]}}
  %0 = alpa.tile on 1 at [2] : tensor<4xf32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<8xf32>
  // expected-error@+1 {{alpa_send_tile_c1: device 1 is not in the target mesh #alpa.mesh<shape = [2], devices = [2, 3]>}}
  %1 = alpa.send_tile %0 to 1 : tensor<8xf32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<8xf32>
  // expected-note@+1 {{it is made here}}
  %1 = alpa.send_tile %0 to 2 : tensor<8xf32>
  // expected-error@+1 {{alpa_send_tile_c1: the tile lies on device 2 already}}
  %2 = alpa.send_tile %1 to 2 : tensor<8xf32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[S0]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [2] : tensor<4xf32>
  // expected-error@+1 {{alpa_send_tile_c2: [2:6] is not in the shard of device 2, [0:4]}}
  %1 = alpa.send_tile %0 to 2 : tensor<4xf32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<8xf32>
  // expected-error@+1 {{alpa_broadcast_c1: expected at least one chunk, got 0}}
  %1:2 = alpa.broadcast %0 to [2, 3] chunks 0 : tensor<8xf32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<8xf32>
  // expected-error@+1 {{alpa_broadcast_c1: expected at least one device}}
  alpa.broadcast %0 to [] chunks 1 : tensor<8xf32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<8xf32>
  // expected-error@+1 {{alpa_broadcast_c1: device 2 is in the chain twice}}
  %1:2 = alpa.broadcast %0 to [2, 2] chunks 1 : tensor<8xf32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[S0]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<4xf32>
  // expected-error@+1 {{alpa_broadcast_c2: [0:4] is not in the shard of device 3, [4:8]}}
  %1:2 = alpa.broadcast %0 to [2, 3] chunks 1 : tensor<4xf32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<4xf32>
  %1 = alpa.tile on 0 at [4] : tensor<4xf32>
  %2 = alpa.send_tile %0 to 2 : tensor<4xf32>
  %3 = alpa.send_tile %1 to 3 : tensor<4xf32>
  // expected-error@+1 {{alpa_all_gather_c1: expected at least two tiles, got 1}}
  %4 = alpa.all_gather %2 : (tensor<4xf32>) -> tensor<4xf32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<4xf32>
  %1 = alpa.tile on 0 at [4] : tensor<4xf32>
  %2 = alpa.send_tile %0 to 2 : tensor<4xf32>
  %3 = alpa.send_tile %1 to 3 : tensor<4xf32>
  // expected-error@+1 {{alpa_all_gather_c1: device 0 is not in the target mesh}}
  %4:2 = alpa.all_gather %0, %3 : (tensor<4xf32>, tensor<4xf32>) -> (tensor<8xf32>, tensor<8xf32>)
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<4xf32>
  %1 = alpa.tile on 0 at [4] : tensor<4xf32>
  %2 = alpa.send_tile %0 to 2 : tensor<4xf32>
  %3 = alpa.send_tile %1 to 3 : tensor<4xf32>
  %4 = alpa.send_tile %1 to 2 : tensor<4xf32>
  // expected-error@+1 {{alpa_all_gather_c1: two tiles lie on device 2}}
  %5:2 = alpa.all_gather %2, %4 : (tensor<4xf32>, tensor<4xf32>) -> (tensor<8xf32>, tensor<8xf32>)
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<4xf32>
  %1 = alpa.tile on 0 at [4] : tensor<4xf32>
  %2 = alpa.send_tile %0 to 2 : tensor<4xf32>
  %3 = alpa.send_tile %1 to 3 : tensor<4xf32>
  %4:2 = alpa.all_gather %2, %3 : (tensor<4xf32>, tensor<4xf32>) -> (tensor<8xf32>, tensor<8xf32>)
  // expected-error@+1 {{alpa_all_gather_c1: the tile on device 2 was gathered before}}
  %5:2 = alpa.all_gather %2, %3 : (tensor<4xf32>, tensor<4xf32>) -> (tensor<8xf32>, tensor<8xf32>)
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<4xf32>
  %1 = alpa.tile on 0 at [2] : tensor<4xf32>
  %2 = alpa.send_tile %0 to 2 : tensor<4xf32>
  %3 = alpa.send_tile %1 to 3 : tensor<4xf32>
  // expected-error@+1 {{alpa_all_gather_c2: [0:4] and [2:6] overlap}}
  %4:2 = alpa.all_gather %2, %3 : (tensor<4xf32>, tensor<4xf32>) -> (tensor<6xf32>, tensor<6xf32>)
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<2xf32>
  %1 = alpa.tile on 0 at [4] : tensor<4xf32>
  %2 = alpa.send_tile %0 to 2 : tensor<2xf32>
  %3 = alpa.send_tile %1 to 3 : tensor<4xf32>
  // expected-error@+1 {{alpa_all_gather_c2: the tiles have 6 elements, but the box around them, [0:8], has 8}}
  %4:2 = alpa.all_gather %2, %3 : (tensor<2xf32>, tensor<4xf32>) -> (tensor<8xf32>, tensor<8xf32>)
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<4xf32>
  %1 = alpa.tile on 0 at [4] : tensor<4xf32>
  %2 = alpa.send_tile %0 to 2 : tensor<4xf32>
  %3 = alpa.send_tile %1 to 3 : tensor<4xf32>
  // expected-error@+1 {{alpa_all_gather_c2: expected 2 results of type 'tensor<8xf32>'}}
  %4 = alpa.all_gather %2, %3 : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
}

// -----

alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[S0]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
  %0 = alpa.tile on 0 at [0] : tensor<4xf32>
  %1 = alpa.tile on 0 at [4] : tensor<4xf32>
  %2 = alpa.send_tile %0 to 2 : tensor<4xf32>
  %3 = alpa.send_tile %1 to 3 : tensor<4xf32>
  // expected-error@+1 {{alpa_all_gather_c3: [0:8] is not in the shard of device 2, [0:4]}}
  %4:2 = alpa.all_gather %2, %3 : (tensor<4xf32>, tensor<4xf32>) -> (tensor<8xf32>, tensor<8xf32>)
}

// -----

alpa.program @p on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  // expected-error@+1 {{alpa_send_c2: @p is not an alpa.cross_mesh_reshard}}
  alpa.send %0 to 1 tag 0 by @p : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}

// -----

// expected-note@+1 {{it is here}}
alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
}
alpa.program @p on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<4xf32>
  // expected-error@+1 {{alpa_send_c2: @t is for 'tensor<8xf32>', got 'tensor<4xf32>'}}
  alpa.send %0 to 1 tag 0 by @t : tensor<4xf32>
  alpa.free %0 : tensor<4xf32>
}

// -----

// expected-note@+1 {{it is here}}
alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
}
alpa.program @p on 0 {
  // expected-error@+1 {{alpa_recv_c3: @t is for 'tensor<8xf32>', got 'tensor<8xi32>'}}
  %0 = alpa.recv from 1 tag 0 by @t {sharding = #alpa.sharding<[R]>} : tensor<8xi32>
  alpa.free %0 : tensor<8xi32>
}

// -----

// expected-note@+1 {{it is here}}
alpa.cross_mesh_reshard @t : tensor<8xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [0, 1]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [2, 3]> {
}
alpa.program @p on 0 {
  // expected-error@+1 {{alpa_recv_c3: @t leads to #alpa.sharding<[R]>, got #alpa.sharding<[S0]>}}
  %0 = alpa.recv from 1 tag 0 by @t {sharding = #alpa.sharding<[S0]>} : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}
