// Stages whose backward is split: what others wait for leaves before the rest is made.
// RUN: alpa-opt %s --alpa-build-schedule=schedule=zb-h1 --alpa-verify-program | FileCheck %s --check-prefixes=CHECK,ZBH1
// RUN: alpa-opt %s --alpa-build-schedule=schedule=zb-auto --alpa-verify-program | FileCheck %s
// A schedule that does not split them runs one after the other.
// RUN: alpa-opt %s --alpa-build-schedule --alpa-verify-program | FileCheck %s --check-prefixes=CHECK,WHOLE
// Room that is not said as the search says it is no room for all.
// RUN: sed 's/limits = array<f64: 2.0, 2.0>/limit = 2.0/' %s | not alpa-opt --alpa-build-schedule=schedule=zb-auto 2>&1 | FileCheck %s --check-prefix=PARAMETERS
// PARAMETERS: error: `alpa.schedule_parameters` is {{{.*}}limit = {{.*}}}, expected such as {limits = array<f64: 2.0>, kept_parts = array<f64: 0.5>}

module attributes {alpa.num_micro_batches = 3 : i64, alpa.schedule_parameters = {limits = array<f64: 2.0, 2.0>, kept_parts = array<f64: 0.5, 0.5>}} {
  func.func private @main(
      tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64, alpa.value = 0 : i64, alpa.stage = 0 : i64},
      tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64, alpa.value = 1 : i64, alpa.stage = 1 : i64},
      tensor<4xf32> {alpa.kind = "batch", alpa.value = 2 : i64})
      -> (tensor<4xf32> {alpa.value = 9 : i64}, tensor<4xf32> {alpa.value = 10 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    func.func private @forward(
        tensor<4xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 2 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<4xf32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[R]>})
    func.func private @backward(
        tensor<4xf32> {alpa.value = 2 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 5 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<4xf32> {alpa.value = 7 : i64, alpa.sharding = #alpa.sharding<[R]>, alpa.accumulate = "sum"})
    func.func private @update_0(
        tensor<4xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 7 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<4xf32> {alpa.value = 9 : i64, alpa.sharding = #alpa.sharding<[R]>})
  }
  module @stage_1 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [1]>} {
    func.func private @forward(
        tensor<4xf32> {alpa.value = 1 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<4xf32> {alpa.value = 4 : i64, alpa.sharding = #alpa.sharding<[R]>})
    func.func private @backward_input(
        tensor<4xf32> {alpa.value = 1 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 4 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<4xf32> {alpa.value = 5 : i64, alpa.sharding = #alpa.sharding<[R]>}, tensor<4xf32> {alpa.value = 6 : i64, alpa.sharding = #alpa.sharding<[R]>})
    func.func private @backward_weight(
        tensor<4xf32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 6 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<4xf32> {alpa.value = 8 : i64, alpa.sharding = #alpa.sharding<[R]>, alpa.accumulate = "sum"})
    func.func private @update_0(
        tensor<4xf32> {alpa.value = 1 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 8 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<4xf32> {alpa.value = 10 : i64, alpa.sharding = #alpa.sharding<[R]>})
  }
}

// CHECK: alpa.program @mesh_0 on 0 {
// CHECK: alpa.run @stage_0::@backward({{.*}}) {micro_batch = 2 : i64}
// CHECK: alpa.program @mesh_1 on 1 {
// CHECK: %[[X:.*]] = alpa.recv from 0
// CHECK: %[[Y:.*]] = alpa.run @stage_1::@forward(%[[W:.*]], %[[X]]) {micro_batch = 0 : i64}
// CHECK: %[[G:.*]]:2 = alpa.run @stage_1::@backward_input(%[[W]], %[[Y]]) {micro_batch = 0 : i64}
// CHECK: alpa.send %[[G]]#0 to 0
// The rest is kept while the next micro-batch goes on.
// ZBH1: alpa.run @stage_1::@forward({{.*}}) {micro_batch = 1 : i64}
// ZBH1: alpa.run @stage_1::@backward_input({{.*}}) {micro_batch = 1 : i64}
// WHOLE-NOT: alpa.run @stage_1::@forward
// CHECK: %[[D:.*]] = alpa.run @stage_1::@backward_weight(%[[X]], %[[G]]#1) {micro_batch = 0 : i64}
// CHECK-NEXT: alpa.free %[[X]], %[[G]]#1
