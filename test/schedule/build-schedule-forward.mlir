// Without a backward function the schedule is inference, and stages of a mesh take turns.
// RUN: alpa-opt %s --alpa-build-schedule=schedule=zb-h1 --alpa-verify-program | FileCheck %s

// CHECK: alpa.schedule = "inference"
module attributes {alpa.num_micro_batches = 4 : i64} {
  func.func private @main(
      tensor<4xf32> {alpa.kind = "state", alpa.value = 0 : i64, alpa.stage = 0 : i64},
      tensor<4xf32> {alpa.kind = "batch", alpa.value = 1 : i64})
      -> (tensor<4xf32> {alpa.value = 5 : i64, alpa.reduction = "concat"})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    func.func private @forward(
        tensor<4xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 1 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<4xf32> {alpa.value = 2 : i64, alpa.sharding = #alpa.sharding<[R]>})
  }
  module @stage_1 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [1]>} {
    func.func private @forward(
        tensor<4xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 2 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<4xf32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[R]>})
  }
  module @stage_2 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    func.func private @forward(
        tensor<4xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<4xf32> {alpa.value = 4 : i64, alpa.sharding = #alpa.sharding<[R]>})
  }
  module @stage_3 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [1]>} {
    func.func private @forward(
        tensor<4xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 4 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<4xf32> {alpa.value = 5 : i64, alpa.sharding = #alpa.sharding<[R]>, alpa.accumulate = "concat"})
  }
}

// CHECK: alpa.program @mesh_0 on 0 {
// CHECK: @stage_0::@forward({{.*}}) {micro_batch = 0 : i64}
// CHECK: @stage_0::@forward({{.*}}) {micro_batch = 1 : i64}
// CHECK: @stage_2::@forward({{.*}}) {micro_batch = 0 : i64}
// CHECK: @stage_2::@forward({{.*}}) {micro_batch = 1 : i64}
// CHECK: @stage_0::@forward({{.*}}) {micro_batch = 2 : i64}
// CHECK: alpa.program @mesh_1 on 1 {
// CHECK: @stage_1::@forward({{.*}}) {micro_batch = 0 : i64}
// CHECK: @stage_1::@forward({{.*}}) {micro_batch = 1 : i64}
// CHECK: %[[Y:.*]] = alpa.run @stage_3::@forward({{.*}}) {micro_batch = 0 : i64}
// CHECK: alpa.output %[[Y]] {micro_batch = 0 : i64, result = 0 : i64}
