// Transfers are a table of the plan, and sends and receives name them by number.
// RUN: rm -rf %t && alpa-opt %s --alpa-build-schedule --alpa-plan-transfers=cluster=cpu-test --alpa-verify-program \
// RUN:   --alpa-export-shardy --alpa-write-plan=directory=%t -o %t.mlir
// RUN: %python -m json.tool %t/plan.json | FileCheck %s
// RUN: not alpa-opt %s --alpa-build-schedule --alpa-export-shardy --alpa-write-plan=directory=%t 2>&1 | FileCheck %s --check-prefix=UNNAMED
// RUN: sed 's|// and more|alpa.cross_mesh_reshard @more : tensor<2xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [1], devices = [0]> to #alpa.sharding<[R]> on #alpa.mesh<shape = [1], devices = [7]> {}|' %s > %t.more.mlir
// RUN: not alpa-opt %t.more.mlir --alpa-build-schedule --alpa-export-shardy --alpa-write-plan=directory=%t 2>&1 | FileCheck %s --check-prefix=UNPLANNED
// RUN: not alpa-opt %t.more.mlir --alpa-build-schedule --alpa-plan-transfers=cluster=cpu-test --alpa-export-shardy --alpa-write-plan=directory=%t 2>&1 | FileCheck %s --check-prefix=ELSEWHERE
// RUN: alpa-opt %s --alpa-build-schedule --alpa-plan-transfers=cluster=cpu-test --alpa-export-shardy | sed '/alpa.send .* tag 0/{N;h;d};/alpa.recv .* tag 1/G' > %t.circle.mlir
// RUN: not alpa-opt %t.circle.mlir --alpa-write-plan=directory=%t 2>&1 | FileCheck %s --check-prefix=CIRCLE

// CIRCLE: error: the plan cannot be written: alpa_programs_c6: mesh 0 waits forever for mesh 1 to send tag 1
// UNNAMED: error: the plan cannot be written: names no transfer; run alpa-plan-transfers first
// UNPLANNED: error: the plan cannot be written: is not planned; run alpa-plan-transfers first
// ELSEWHERE: error: the plan cannot be written: no stage runs on #alpa.mesh<shape = [1], devices = [7]>

// CHECK: "version": 5,
// CHECK: "reshards": [
// CHECK-NEXT: {
// CHECK-NEXT: "source_mesh": 0,
// CHECK-NEXT: "source": "float32[4,2][R,R]",
// CHECK-NEXT: "target_mesh": 1,
// CHECK-NEXT: "target": "float32[4,2][y*x,R]",
// CHECK-NEXT: "strategy": "naive",
// CHECK-NEXT: "seconds": {{0.0001[0-9]*}},
// CHECK-NEXT: "steps": [
// CHECK-NEXT: "tile 0 on 0 [0:1,0:2]",
// CHECK-NEXT: "send 1 = 0 to 1",
// CHECK-NEXT: "tile 2 on 0 [1:2,0:2]",
// CHECK-NEXT: "send 3 = 2 to 3",
// CHECK-NEXT: "tile 4 on 0 [2:3,0:2]",
// CHECK-NEXT: "send 5 = 4 to 2",
// CHECK-NEXT: "tile 6 on 0 [3:4,0:2]",
// CHECK-NEXT: "send 7 = 6 to 4"
// CHECK-NEXT: ]
// CHECK-NEXT: },
// CHECK-NEXT: {
// CHECK-NEXT: "source_mesh": 1,
// CHECK-NEXT: "source": "float32[][]",
// CHECK-NEXT: "target_mesh": 0,
// CHECK-NEXT: "target": "float32[][]",
// CHECK: "steps": [
// CHECK-NEXT: "tile 0 on {{[1-4]}} []",
// CHECK-NEXT: "send 1 = 0 to 0"
// CHECK-NEXT: ]
// CHECK-NEXT: }
// CHECK-NEXT: ],
// CHECK: "order": [
// CHECK-NEXT: "0*5 1*5",
// CHECK-NEXT: "0*4"
// CHECK-NEXT: ],
// CHECK-NEXT: "programs": [
// CHECK: "send {{[0-9]+}} to 1 tag 0 by 0",
// CHECK: "recv {{[0-9]+}} from 1 tag 1 by 1: float32[][]",
// CHECK: "recv {{[0-9]+}} from 0 tag 0 by 0: float32[4,2][y*x,R]",
// CHECK: "send {{[0-9]+}} to 0 tag 1 by 1",
module @jit_step {
  func.func private @main(tensor<4x2xf32> {alpa.kind = "batch", alpa.value = 0 : i64})
      -> (tensor<f32> {alpa.value = 3 : i64, alpa.reduction = "sum"})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    func.func @forward(%x: tensor<4x2xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[R, R]>})
        -> (tensor<4x2xf32> {alpa.value = 1 : i64, alpa.sharding = #alpa.sharding<[R, R]>}) {
      return %x : tensor<4x2xf32>
    }
    func.func @update_0(%s: tensor<f32> {alpa.value = 2 : i64, alpa.sharding = #alpa.sharding<[]>})
        -> (tensor<f32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[]>}) {
      return %s : tensor<f32>
    }
  }
  module @stage_1 attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [1, 2, 3, 4]>} {
    func.func @forward(%x: tensor<4x2xf32> {alpa.value = 1 : i64, alpa.sharding = #alpa.sharding<[S10, R]>})
        -> (tensor<f32> {alpa.value = 2 : i64, alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[]>}) {
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x2xf32>, tensor<f32>) -> tensor<f32>
      return %sum : tensor<f32>
    }
  }
  // and more
}
