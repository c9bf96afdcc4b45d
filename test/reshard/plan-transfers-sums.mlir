// Sums of several meshes go to the first member and come back; a transfer that is written down
// already is taken.
// RUN: alpa-opt %s --alpa-plan-transfers=cluster=cpu-test | FileCheck %s
// RUN: sed 's/tag 8 {sh/tag 18 {sh/' %s | not alpa-opt --alpa-plan-transfers=cluster=cpu-test 2>&1 | FileCheck %s --check-prefix=UNPAIRED
// RUN: sed 's/among \[0, 1\] tag 7 : tensor<4xf32> \/\/ first/among [0, 1] tag 17 : tensor<4xf32>/' %s | not alpa-opt --alpa-plan-transfers=cluster=cpu-test 2>&1 | FileCheck %s --check-prefix=UNSUMMED
// RUN: sed 's/#alpa.mesh<shape = \[2\], devices = \[1, 2\]>} {/#alpa.mesh<shape = [2], devices = [1, 12]>} {/' %s | not alpa-opt --alpa-plan-transfers=cluster=cpu-test 2>&1 | FileCheck %s --check-prefix=OUTSIDE
// RUN: sed 's/alpa.sharding = #alpa.sharding<\[S0\]>}) \/\/ held/alpa.name = "x"})/' %s | not alpa-opt --alpa-plan-transfers=cluster=cpu-test 2>&1 | FileCheck %s --check-prefix=UNKNOWN

// UNPAIRED: error: 'alpa.send' op has no receive of tag 8 and its type; alpa-verify-program says more
// UNSUMMED: error: 'alpa.all_reduce' op has no instruction of tag 7 and its type on mesh 0; alpa-verify-program says more
// OUTSIDE: error: 'alpa.cross_mesh_reshard' op device 12 is not in a cluster of 8 devices
// UNKNOWN: error: 'alpa.send' op nothing says how its buffer is held

// CHECK-DAG: alpa.cross_mesh_reshard @[[TO:reshard_[0-9]+]] : tensor<4xf32> from #alpa.sharding<[S0]> on #alpa.mesh<shape = [2], devices = [1, 2]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [1], devices = [0]> attributes
// CHECK-DAG: alpa.cross_mesh_reshard @home : tensor<4xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [1], devices = [0]> to #alpa.sharding<[S0]> on #alpa.mesh<shape = [2], devices = [1, 2]> attributes
// CHECK: alpa.program @mesh_0
// CHECK: alpa.all_reduce %{{.*}} among [0, 1] tag 7 : tensor<4xf32>
// CHECK: alpa.recv from 1 tag 8 by @[[TO]]
// CHECK: alpa.program @mesh_1
// CHECK: alpa.all_reduce %{{.*}} among [0, 1] tag 7 by @[[TO]], @home : tensor<4xf32>
// CHECK: alpa.send %{{.*}} to 0 tag 8 by @[[TO]]
module @step {
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
  }
  module @stage_1 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [1, 2]>} {
    func.func private @update_0(tensor<4xf32> {alpa.sharding = #alpa.sharding<[S0]>})
        -> (tensor<4xf32> {alpa.sharding = #alpa.sharding<[S0]>}) // held
  }
  alpa.cross_mesh_reshard @home : tensor<4xf32>
      from #alpa.sharding<[R]> on #alpa.mesh<shape = [1], devices = [0]>
      to #alpa.sharding<[S0]> on #alpa.mesh<shape = [2], devices = [1, 2]> {
  }
  alpa.program @mesh_0 on 0 {
    %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<4xf32>
    %1 = alpa.all_reduce %0 among [0, 1] tag 7 : tensor<4xf32> // first
    %2 = alpa.recv from 1 tag 8 {sharding = #alpa.sharding<[R]>} : tensor<4xf32>
    alpa.free %0, %1, %2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
  alpa.program @mesh_1 on 1 {
    %0 = alpa.zero {sharding = #alpa.sharding<[S0]>} : tensor<4xf32>
    %1 = alpa.all_reduce %0 among [0, 1] tag 7 : tensor<4xf32>
    %2 = alpa.run @stage_1::@update_0(%1) : (tensor<4xf32>) -> tensor<4xf32>
    %3 = alpa.accumulate %2, %1 : tensor<4xf32>
    alpa.send %3 to 0 tag 8 : tensor<4xf32>
    alpa.free %0, %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}
