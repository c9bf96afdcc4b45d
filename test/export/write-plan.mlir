// The plan of a step with one stage, and what is missing before there is one.
// RUN: rm -rf %t && alpa-opt %s --alpa-build-schedule --allow-unregistered-dialect --alpa-verify-program --alpa-export-shardy --alpa-write-plan=directory=%t -o %t.mlir
// RUN: %python -m json.tool %t/plan.json | FileCheck %s
// RUN: FileCheck %s --check-prefix=MODULE < %t/stage_0.mlir
// RUN: not alpa-opt %s --allow-unregistered-dialect --alpa-write-plan=directory=%t 2>&1 | FileCheck %s --check-prefix=NOPROGRAM
// RUN: not alpa-opt %s --alpa-build-schedule --allow-unregistered-dialect --alpa-write-plan=directory=%t 2>&1 | FileCheck %s --check-prefix=NOMESH
// RUN: not alpa-opt %s --alpa-build-schedule --allow-unregistered-dialect --alpa-export-shardy --alpa-write-plan 2>&1 | FileCheck %s --check-prefix=NODIR

// NOPROGRAM: error: the plan cannot be written: has no alpa.program for each mesh; run alpa-build-schedule first
// NOMESH: error: the plan cannot be written: has no sdy.mesh; run alpa-export-shardy or alpa-lower-to-collectives before the plan is written
// NODIR: error: option `directory` is missing; say where to write the plan

// MODULE-NOT: alpa.
// MODULE: module @stage_0 {
// MODULE: tf.aliasing_output = 0
// MODULE-NOT: alpa.

// CHECK: "format": "alpa_mlir.plan",
// CHECK: "version": 5,
// CHECK-NEXT: "compiler": "{{[0-9.]+}}",
// CHECK: "name": "train_step",
// CHECK: "cluster": {
// CHECK: "device_type": "toy"
// CHECK: "num_micro_batches": 1,
// CHECK: "schedule": "inference",
// CHECK: "inputs": [
// CHECK: "name": "w",
// CHECK: "dtype": "bfloat16",
// CHECK-NEXT: "kind": "state",
// CHECK-NEXT: "carried_by": 0
// CHECK: "dtype": "uint32",
// CHECK-NEXT: "kind": "batch",
// CHECK-NEXT: "carried_by": null
// CHECK: "outputs": [
// CHECK: "dtype": "bool",
// CHECK-NEXT: "reduction": "concat"
// CHECK: "meshes": [
// CHECK: "x",
// CHECK-NEXT: "y"
// CHECK: "stages": [
// CHECK: "module": "stage_0.mlir",
// CHECK-NEXT: "export": "shardy",
// CHECK: "forward": {
// CHECK-NEXT: "inputs": [
// CHECK-NEXT: "uint32[4][y]",
// CHECK-NEXT: "bfloat16[8,8][R,y]"
// CHECK: "predicted": {
// CHECK-NEXT: "forward_seconds": 0.001
// CHECK: "solver": {
// CHECK-NEXT: "status": "optimal"
// CHECK: "weights": [
// CHECK: "name": "w",
// CHECK-NOT: "name":
// CHECK: "predicted": {
// CHECK-NEXT: "step_seconds": 0.5
// CHECK: "order": [
// CHECK-NEXT: "0*10"
// CHECK-NEXT: ],
// CHECK-NEXT: "programs": [
// CHECK: "slots": {{[0-9]+}},
// CHECK: "input 0 = arg 1 mb 0: uint32[4][y]",
// CHECK: "run 0.forward mb 0: 0-1 -> 2",
// CHECK: "output 2 = result 1 mb 0",
// CHECK: "run 0.update_0:
module @jit_train_step attributes {alpa.num_micro_batches = 1 : i64, 
    alpa.cluster = "{\"device_types\": {\"toy\": {\"memory_bytes\": 65536, \"memory_bandwidth\": 1e9, \"peak_flops\": {\"float32\": 1e9}}}, \"hosts\": {\"count\": 1, \"devices\": 2, \"device_type\": \"toy\"}, \"links\": {\"intra_host\": {\"bandwidth\": 1e9, \"latency\": 0}, \"inter_host\": {\"bandwidth\": 1e9, \"latency\": 0}}}",
    alpa.predicted = {step_seconds = 0.5 : f64},
    alpa.stages = [#alpa.stage<mesh = <shape = [1, 2], devices = [0, 1]>, layers = [0, 1],
                   predicted = {forward_seconds = 0.001 : f64}, solver = {status = "optimal"}>]} {
  func.func private @main(
      tensor<8x8xbf16> {alpa.kind = "state", alpa.name = "w", alpa.carried_by = 0 : i64, alpa.value = 0 : i64, alpa.stage = 0 : i64},
      tensor<4xui32> {alpa.kind = "batch", alpa.value = 1 : i64},
      tensor<8x8xbf16> {alpa.kind = "state", alpa.name = "moment", alpa.carried_by = 2 : i64, alpa.value = 2 : i64, alpa.stage = 0 : i64})
      -> (tensor<8x8xbf16> {alpa.value = 4 : i64}, tensor<4xi1> {alpa.value = 3 : i64, alpa.reduction = "concat"},
          tensor<8x8xbf16> {alpa.value = 5 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
    func.func private @forward(tensor<4xui32> {alpa.value = 1 : i64, alpa.sharding = #alpa.sharding<[S1]>},
                               tensor<8x8xbf16> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[R, S1]>})
        -> (tensor<4xi1> {alpa.value = 3 : i64, alpa.accumulate = "concat", alpa.sharding = #alpa.sharding<[R]>})
    func.func private @update_0(tensor<8x8xbf16> {alpa.value = 0 : i64, tf.aliasing_output = 0 : i32, alpa.sharding = #alpa.sharding<[R, S1]>},
                                tensor<8x8xbf16> {alpa.value = 2 : i64, alpa.sharding = #alpa.sharding<[R, S1]>})
        -> (tensor<8x8xbf16> {alpa.value = 4 : i64, alpa.sharding = #alpa.sharding<[R, S1]>},
            tensor<8x8xbf16> {alpa.value = 5 : i64, alpa.sharding = #alpa.sharding<[R, S1]>})
  }
}
