// Sums of neighbouring gradients become one line, each in its left operand's slot; lists of slots
// are ranges, and slots are used again once freed.
// RUN: rm -rf %t && alpa-opt %s --alpa-build-schedule --alpa-verify-program --alpa-write-plan=directory=%t -o %t.mlir
// RUN: %python -m json.tool %t/plan.json | FileCheck %s

// CHECK: "slots": 7,
// CHECK-NEXT: "instructions": [
// CHECK-NEXT: "input 0 = arg 0: float32[8,8][R,R]",
// CHECK-NEXT: "input 1 = arg 1: float32[8][R]",
// CHECK-NEXT: "input 2 = arg 2 mb 0: float32[4,8][R,R]",
// CHECK-NEXT: "run 0.backward mb 0: 0-2 -> 3-4",
// CHECK-NEXT: "free 2",
// CHECK-NEXT: "input 2 = arg 2 mb 1: float32[4,8][R,R]",
// CHECK-NEXT: "run 0.backward mb 1: 0-2 -> 5-6",
// CHECK-NEXT: "free 2",
// CHECK-NEXT: "accumulate 3-4 = 3-4 + 5-6",
// CHECK-NEXT: "free 5-6",
// CHECK-NEXT: "input 2 = arg 2 mb 2: float32[4,8][R,R]",
// CHECK-NEXT: "run 0.backward mb 2: 0-2 -> 5-6",
// CHECK-NEXT: "free 2",
// CHECK-NEXT: "accumulate 3-4 = 3-4 + 5-6",
// CHECK-NEXT: "free 5-6",
// CHECK-NEXT: "run 0.update_0: 0-1 3-4 -> 2 5",
// CHECK-NEXT: "free 0-1 3-4",
// CHECK-NEXT: "output 2 = result 0",
// CHECK-NEXT: "output 5 = result 1"
module @jit_train_step attributes {alpa.num_micro_batches = 3 : i64} {
  func.func private @main(
      tensor<8x8xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64, alpa.value = 0 : i64, alpa.stage = 0 : i64},
      tensor<8xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64, alpa.value = 1 : i64, alpa.stage = 0 : i64},
      tensor<4x8xf32> {alpa.kind = "batch", alpa.value = 2 : i64})
      -> (tensor<8x8xf32> {alpa.value = 5 : i64}, tensor<8xf32> {alpa.value = 6 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 1], devices = [0]>} {
    func.func private @backward(tensor<8x8xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[R, R]>},
                                tensor<8xf32> {alpa.value = 1 : i64, alpa.sharding = #alpa.sharding<[R]>},
                                tensor<4x8xf32> {alpa.value = 2 : i64, alpa.sharding = #alpa.sharding<[R, R]>})
        -> (tensor<8x8xf32> {alpa.value = 3 : i64, alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>},
            tensor<8xf32> {alpa.value = 4 : i64, alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R]>})
    func.func private @update_0(tensor<8x8xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[R, R]>},
                                tensor<8xf32> {alpa.value = 1 : i64, alpa.sharding = #alpa.sharding<[R]>},
                                tensor<8x8xf32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[R, R]>},
                                tensor<8xf32> {alpa.value = 4 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<8x8xf32> {alpa.value = 5 : i64, alpa.sharding = #alpa.sharding<[R, R]>},
            tensor<8xf32> {alpa.value = 6 : i64, alpa.sharding = #alpa.sharding<[R]>})
  }
}
