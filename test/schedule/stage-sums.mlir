// Sums to which functions of several stages add parts.
// RUN: alpa-opt %s --alpa-build-schedule=schedule=gpipe --alpa-verify-program --split-input-file | FileCheck %s

// Stages 0 and 2 share mesh 0: they add up their parts first. Stage 3 on mesh 2 only uses
// the sum, and adds zeros. Mesh 3 has nothing to do with it. Sum 10 is known after update_0,
// sum 11 after update_1, on all meshes in this order. Sum 12 is mesh 0's alone.

// CHECK-LABEL: alpa.program @mesh_0
// CHECK: %[[A:.*]]:2 = alpa.run @stage_0::@update_0
// CHECK: %[[B:.*]]:2 = alpa.run @stage_2::@update_0
// CHECK: %[[ONE:.*]] = alpa.accumulate %[[A]]#0, %[[B]]#0
// CHECK: %[[SUM:.*]] = alpa.all_reduce %[[ONE]] among [0, 1, 2] tag [[$TAG:[0-9]+]] : tensor<f32>
// CHECK: alpa.free {{.*}}%[[ONE]]
// CHECK: %[[OWN:.*]] = alpa.accumulate %[[A]]#1, %[[B]]#1
// CHECK-NOT: alpa.all_reduce
// CHECK: %[[C:.*]] = alpa.run @stage_0::@update_1(%[[SUM]], %[[OWN]])
// CHECK: %[[LATE:.*]] = alpa.all_reduce %[[C]] among [0, 1] tag [[$LATETAG:[0-9]+]] : tensor<f32>
// CHECK: alpa.run @stage_2::@update_2(%[[LATE]])

// CHECK-LABEL: alpa.program @mesh_1
// CHECK: %[[A:.*]]:2 = alpa.run @stage_1::@update_0
// CHECK: %[[SUM:.*]] = alpa.all_reduce %[[A]]#0 among [0, 1, 2] tag [[$TAG]] : tensor<f32>
// CHECK: %[[LATE:.*]] = alpa.all_reduce %[[A]]#1 among [0, 1] tag [[$LATETAG]] : tensor<f32>
// CHECK: alpa.run @stage_1::@update_2(%[[LATE]])

// CHECK-LABEL: alpa.program @mesh_2
// CHECK: %[[Z:.*]] = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
// CHECK: %[[SUM:.*]] = alpa.all_reduce %[[Z]] among [0, 1, 2] tag [[$TAG]] : tensor<f32>
// CHECK: alpa.free %[[Z]]
// CHECK: alpa.run @stage_3::@update_1(%[[SUM]])

// CHECK-LABEL: alpa.program @mesh_3
// CHECK-NOT: alpa.all_reduce
module {
  func.func private @main(tensor<f32> {alpa.kind = "state", alpa.value = 0 : i64, alpa.stage = 0 : i64})
      -> (tensor<f32> {alpa.value = 31 : i64}, tensor<f32> {alpa.value = 32 : i64},
          tensor<f32> {alpa.value = 33 : i64}, tensor<f32> {alpa.value = 34 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    func.func private @update_0(tensor<f32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[]>})
        -> (tensor<f32> {alpa.value = 1 : i64, alpa.part_of = 10 : i64, alpa.sharding = #alpa.sharding<[]>},
            tensor<f32> {alpa.value = 2 : i64, alpa.part_of = 12 : i64, alpa.sharding = #alpa.sharding<[]>})
    func.func private @update_1(tensor<f32> {alpa.value = 10 : i64, alpa.sharding = #alpa.sharding<[]>},
                                tensor<f32> {alpa.value = 12 : i64, alpa.sharding = #alpa.sharding<[]>})
        -> (tensor<f32> {alpa.value = 3 : i64, alpa.part_of = 11 : i64, alpa.sharding = #alpa.sharding<[]>})
  }
  module @stage_1 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [1]>} {
    func.func private @update_0()
        -> (tensor<f32> {alpa.value = 4 : i64, alpa.part_of = 10 : i64, alpa.sharding = #alpa.sharding<[]>},
            tensor<f32> {alpa.value = 5 : i64, alpa.part_of = 11 : i64, alpa.sharding = #alpa.sharding<[]>})
    func.func private @update_2(tensor<f32> {alpa.value = 11 : i64, alpa.sharding = #alpa.sharding<[]>})
        -> (tensor<f32> {alpa.value = 31 : i64, alpa.sharding = #alpa.sharding<[]>})
  }
  module @stage_2 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    func.func private @update_0()
        -> (tensor<f32> {alpa.value = 6 : i64, alpa.part_of = 10 : i64, alpa.sharding = #alpa.sharding<[]>},
            tensor<f32> {alpa.value = 7 : i64, alpa.part_of = 12 : i64, alpa.sharding = #alpa.sharding<[]>})
    func.func private @update_2(tensor<f32> {alpa.value = 11 : i64, alpa.sharding = #alpa.sharding<[]>})
        -> (tensor<f32> {alpa.value = 32 : i64, alpa.sharding = #alpa.sharding<[]>})
  }
  module @stage_3 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [2]>} {
    func.func private @update_1(tensor<f32> {alpa.value = 10 : i64, alpa.sharding = #alpa.sharding<[]>})
        -> (tensor<f32> {alpa.value = 33 : i64, alpa.sharding = #alpa.sharding<[]>})
  }
  module @stage_4 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [3]>} {
    func.func private @update_0() -> (tensor<f32> {alpa.value = 34 : i64, alpa.sharding = #alpa.sharding<[]>})
  }
}

// -----

// A mesh holds the sum as its first user wants it; parts and users that hold it otherwise
// go through a reshard.

// CHECK-LABEL: alpa.program @mesh_0
// CHECK: %[[A:.*]] = alpa.run @stage_0::@update_0
// CHECK: %[[SPLIT:.*]] = alpa.reshard %[[A]] {from = #alpa.sharding<[R]>, to = #alpa.sharding<[S0]>} : tensor<4xf32>
// CHECK: %[[SUM:.*]] = alpa.all_reduce %[[SPLIT]] among [0, 1]
// CHECK: alpa.run @stage_0::@update_1(%[[SUM]])
// CHECK: %[[WHOLE:.*]] = alpa.reshard %[[SUM]] {from = #alpa.sharding<[S0]>, to = #alpa.sharding<[R]>} : tensor<4xf32>
// CHECK: alpa.run @stage_2::@update_1(%[[WHOLE]])
module {
  func.func private @main() -> (tensor<4xf32> {alpa.value = 5 : i64}, tensor<4xf32> {alpa.value = 6 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
    func.func private @update_0() -> (tensor<4xf32> {alpa.value = 1 : i64, alpa.part_of = 3 : i64, alpa.sharding = #alpa.sharding<[R]>})
    func.func private @update_1(tensor<4xf32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[S0]>})
        -> (tensor<4xf32> {alpa.value = 5 : i64, alpa.sharding = #alpa.sharding<[R]>})
  }
  module @stage_1 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [2]>} {
    func.func private @update_0() -> (tensor<4xf32> {alpa.value = 2 : i64, alpa.part_of = 3 : i64, alpa.sharding = #alpa.sharding<[R]>})
  }
  module @stage_2 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
    func.func private @update_1(tensor<4xf32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<4xf32> {alpa.value = 6 : i64, alpa.sharding = #alpa.sharding<[R]>})
  }
}
