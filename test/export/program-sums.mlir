// Sums of several meshes, and the zeros of a mesh that only uses one.
// RUN: rm -rf %t && alpa-opt %s --alpa-plan-transfers=cluster=cpu-test --alpa-verify-program --alpa-export-shardy --alpa-write-plan=directory=%t -o %t.mlir
// RUN: sed 's/among \[0, 1\] tag 7 : tensor<4xf32> \/\/ other/among [0, 1] tag 7 by @stage_0, @stage_1 : tensor<4xf32>/' %s | not alpa-opt --alpa-export-shardy --alpa-write-plan=directory=%t 2>&1 | FileCheck %s --check-prefix=WRONG
// RUN: %python -m json.tool %t/plan.json | FileCheck %s

// WRONG: error: the plan cannot be written: @stage_0 is not an alpa.cross_mesh_reshard

// Where all meshes have come to a sum, their parts in it follow each other.
// CHECK: "order": [
// CHECK-NEXT: "0 1",
// CHECK-NEXT: "0 1*3",
// CHECK-NEXT: "0*4 1*2"
// CHECK-NEXT: ],
// CHECK: "instructions": [
// CHECK-NEXT: "input 0 = arg 0: float32[4][R]",
// CHECK-NEXT: "all_reduce 1 = 0 among 0 1 tag 7",
// CHECK-NEXT: "free 0",
// CHECK-NEXT: "run 0.update_0: 1 -> 0",
// CHECK: "instructions": [
// CHECK-NEXT: "zero 0: float32[4][x]",
// CHECK-NEXT: "all_reduce 1 = 0 among 0 1 tag 7 by 0 1",
// CHECK-NEXT: "free 0",
// CHECK-NEXT: "run 1.update_0: 1 -> 0",
module @jit_step {
  func.func private @main(tensor<4xf32> {alpa.kind = "state", alpa.value = 0 : i64})
      -> (tensor<4xf32> {alpa.value = 1 : i64}, tensor<4xf32> {alpa.value = 2 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    func.func private @update_0(tensor<4xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<4xf32> {alpa.value = 1 : i64, alpa.sharding = #alpa.sharding<[R]>})
  }
  module @stage_1 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [1, 2]>} {
    func.func private @update_0(tensor<4xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[S0]>})
        -> (tensor<4xf32> {alpa.value = 2 : i64, alpa.sharding = #alpa.sharding<[S0]>})
  }
  alpa.program @mesh_0 on 0 {
    %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<4xf32>
    %1 = alpa.all_reduce %0 among [0, 1] tag 7 : tensor<4xf32>
    alpa.free %0 : tensor<4xf32>
    %2 = alpa.run @stage_0::@update_0(%1) : (tensor<4xf32>) -> tensor<4xf32>
    alpa.free %1 : tensor<4xf32>
    alpa.output %2 {result = 0 : i64} : tensor<4xf32>
  }
  alpa.program @mesh_1 on 1 {
    %0 = alpa.zero {sharding = #alpa.sharding<[S0]>} : tensor<4xf32>
    %1 = alpa.all_reduce %0 among [0, 1] tag 7 : tensor<4xf32> // other
    alpa.free %0 : tensor<4xf32>
    %2 = alpa.run @stage_1::@update_0(%1) : (tensor<4xf32>) -> tensor<4xf32>
    alpa.free %1 : tensor<4xf32>
    alpa.output %2 {result = 1 : i64} : tensor<4xf32>
  }
}
