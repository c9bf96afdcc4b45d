// Plans of transfers that stand by themselves, by hand. cpu-test has two hosts of four devices;
// 4e9 bytes a second and 20 us within a host, 1e9 and 100 us between them.
// RUN: alpa-opt %s --alpa-plan-transfers=cluster=cpu-test | FileCheck %s
// RUN: alpa-opt %s --alpa-plan-transfers="cluster=cpu-test strategy=naive" | FileCheck %s --check-prefix=NAIVE
// RUN: alpa-opt %s --alpa-plan-transfers="cluster=cpu-test strategy=local-allgather" | FileCheck %s --check-prefix=GATHER
// What is planned stays as it is, whatever the strategy.
// RUN: alpa-opt %s --alpa-plan-transfers=cluster=cpu-test -o %t.mlir
// RUN: alpa-opt %t.mlir --alpa-plan-transfers="cluster=cpu-test strategy=naive" | diff %t.mlir -
// RUN: not alpa-opt %s --alpa-plan-transfers 2>&1 | FileCheck %s --check-prefix=NOCLUSTER
// RUN: not alpa-opt %s --alpa-plan-transfers="cluster=cpu-test strategy=fast" 2>&1 | FileCheck %s --check-prefix=NOSTRATEGY
// RUN: not alpa-opt %s --alpa-plan-transfers="cluster=p3.16xlarge:0" 2>&1 | FileCheck %s --check-prefix=BADCLUSTER

// NOCLUSTER: error: transfers need links: give alpa-plan-transfers a cluster, or the module an `alpa.cluster`
// NOSTRATEGY: error: there is no strategy `fast`; choose one of auto, broadcast, local-allgather, naive
// BADCLUSTER: error: {{.*}}p3.16xlarge

// 64 x 64 x 4 bytes at 1e9 a second, and a latency of 1e-4.
// CHECK-LABEL: alpa.cross_mesh_reshard @one_to_one
// CHECK-SAME: {seconds = 1.163840e-04 : f64, slow_bytes = 16384 : i64, strategy = "naive"} {
// CHECK-NEXT: %[[A:.*]] = alpa.tile on 0 at [0, 0] : tensor<64x64xf32>
// CHECK-NEXT: alpa.send_tile %[[A]] to 4 : tensor<64x64xf32>
// CHECK-NEXT: }
alpa.cross_mesh_reshard @one_to_one : tensor<64x64xf32>
    from #alpa.sharding<[R, R]> on #alpa.mesh<shape = [1], devices = [0]>
    to #alpa.sharding<[R, R]> on #alpa.mesh<shape = [1, 1], devices = [4]> {
}

// Each half crosses to the other host once: 1 MiB through its only adapter. The chains within the
// host end at different devices. Naively each half crosses four times; or each device gets a
// quarter of each half, and they gather.
// CHECK-LABEL: alpa.cross_mesh_reshard @two_to_four
// CHECK-SAME: slow_bytes = 1048576 : i64, strategy = "broadcast"} {
// CHECK-NEXT: %[[A:.*]] = alpa.tile on 0 at [0, 0] : tensor<2048x64xf32>
// CHECK-NEXT: alpa.broadcast %[[A]] to [4, 5, 6, 7] chunks {{[0-9]+}} : tensor<2048x64xf32>
// CHECK-NEXT: %[[B:.*]] = alpa.tile on 1 at [2048, 0] : tensor<2048x64xf32>
// CHECK-NEXT: alpa.broadcast %[[B]] to [5, 6, 7, 4] chunks {{[0-9]+}} : tensor<2048x64xf32>
// CHECK-NEXT: }
// NAIVE-LABEL: alpa.cross_mesh_reshard @two_to_four
// NAIVE-SAME: seconds = 0.0042943040000000{{[0-9]*}} : f64, slow_bytes = 4194304 : i64, strategy = "naive"} {
// NAIVE-NEXT: %[[A:.*]] = alpa.tile on 0 at [0, 0] : tensor<2048x64xf32>
// NAIVE-COUNT-4: alpa.send_tile %[[A]] to
// NAIVE-NEXT: %[[B:.*]] = alpa.tile on 1 at [2048, 0] : tensor<2048x64xf32>
// NAIVE-COUNT-4: alpa.send_tile %[[B]] to
// NAIVE-NEXT: }
// GATHER-LABEL: alpa.cross_mesh_reshard @two_to_four
// GATHER-SAME: slow_bytes = 1048576 : i64, strategy = "local-allgather"} {
// GATHER: %[[P0:.*]] = alpa.send_tile %{{.*}} to 4 : tensor<512x64xf32>
// GATHER: %[[P1:.*]] = alpa.send_tile %{{.*}} to 5 : tensor<512x64xf32>
// GATHER: %[[P2:.*]] = alpa.send_tile %{{.*}} to 6 : tensor<512x64xf32>
// GATHER: %[[P3:.*]] = alpa.send_tile %{{.*}} to 7 : tensor<512x64xf32>
// GATHER-NEXT: alpa.all_gather %[[P0]], %[[P1]], %[[P2]], %[[P3]] : {{.*}} -> (tensor<2048x64xf32>, tensor<2048x64xf32>, tensor<2048x64xf32>, tensor<2048x64xf32>)
alpa.cross_mesh_reshard @two_to_four : tensor<4096x64xf32>
    from #alpa.sharding<[S0, R]> on #alpa.mesh<shape = [2], devices = [0, 1]>
    to #alpa.sharding<[R, R]> on #alpa.mesh<shape = [2, 2], devices = [4, 5, 6, 7]> {
}

// Both hosts hold all of it, so nothing crosses; each holder gives one part.
// CHECK-LABEL: alpa.cross_mesh_reshard @replicated_to_sharded
// CHECK-SAME: slow_bytes = 0 : i64
// CHECK-NEXT: %[[A:.*]] = alpa.tile on 0 at [0, 0]
// CHECK-NEXT: alpa.send_tile %[[A]] to 2
// CHECK-NEXT: %[[B:.*]] = alpa.tile on 1 at [1024, 0]
// CHECK-NEXT: alpa.send_tile %[[B]] to 3
// CHECK-NEXT: %[[C:.*]] = alpa.tile on 4 at [2048, 0]
// CHECK-NEXT: alpa.send_tile %[[C]] to 6
// CHECK-NEXT: %[[D:.*]] = alpa.tile on 5 at [3072, 0]
// CHECK-NEXT: alpa.send_tile %[[D]] to 7
// CHECK-NEXT: }
alpa.cross_mesh_reshard @replicated_to_sharded : tensor<4096x4096xf32>
    from #alpa.sharding<[R, R]> on #alpa.mesh<shape = [2, 2], devices = [0, 1, 4, 5]>
    to #alpa.sharding<[S0, R]> on #alpa.mesh<shape = [4], devices = [2, 3, 6, 7]> {
}

// Devices of both meshes keep what they have. The target is replicated along its major axis, over
// the hosts: each of the eight parts is on one host already and crosses to the other.
// CHECK-LABEL: alpa.cross_mesh_reshard @three_axes
// CHECK-SAME: slow_bytes = 67108864 : i64
// CHECK-COUNT-8: alpa.tile
// CHECK-NOT: alpa.tile
alpa.cross_mesh_reshard @three_axes : tensor<4096x4096xf32>
    from #alpa.sharding<[S0, S1]> on #alpa.mesh<shape = [4, 2], devices = [0, 1, 2, 3, 4, 5, 6, 7]>
    to #alpa.sharding<[S12, R]> on #alpa.mesh<shape = [2, 2, 2], devices = [0, 1, 2, 3, 4, 5, 6, 7]> {
}

// Both holders give half to both: as nearly half as whole elements allow.
// CHECK-LABEL: alpa.cross_mesh_reshard @halves
// CHECK: alpa.tile on {{[45]}} at [0] : tensor<500001xf32>
// CHECK: alpa.tile on {{[45]}} at [500001] : tensor<500000xf32>
alpa.cross_mesh_reshard @halves : tensor<1000001xf32>
    from #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [4, 5]>
    to #alpa.sharding<[R]> on #alpa.mesh<shape = [2], devices = [6, 7]> {
}

// A scalar to six devices on two hosts.
// CHECK-LABEL: alpa.cross_mesh_reshard @scalar
// CHECK-SAME: slow_bytes = 8 : i64
// CHECK-NEXT: %[[A:.*]] = alpa.tile on 0 at [] : tensor<i64>
// CHECK-NEXT: alpa.broadcast %[[A]] to [4, 5, 6] chunks 1 : tensor<i64>
// CHECK-COUNT-3: alpa.send_tile %[[A]] to {{[123]}}
// CHECK-NEXT: }
alpa.cross_mesh_reshard @scalar : tensor<i64>
    from #alpa.sharding<[]> on #alpa.mesh<shape = [1], devices = [0]>
    to #alpa.sharding<[]> on #alpa.mesh<shape = [6], devices = [1, 2, 3, 4, 5, 6]> {
}

// CHECK-LABEL: alpa.cross_mesh_reshard @nothing
// CHECK-SAME: seconds = 0.000000e+00 : f64, slow_bytes = 0 : i64, strategy = "naive"} {
// CHECK-NEXT: }
alpa.cross_mesh_reshard @nothing : tensor<0x4xf32>
    from #alpa.sharding<[R, R]> on #alpa.mesh<shape = [1], devices = [0]>
    to #alpa.sharding<[R, R]> on #alpa.mesh<shape = [1], devices = [5]> {
}
