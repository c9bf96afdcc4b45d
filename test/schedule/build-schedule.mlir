// One program per mesh; values leave when made, come before use, go after it.
// RUN: alpa-opt %s --alpa-build-schedule --alpa-verify-program | FileCheck %s --check-prefixes=CHECK,F1B1
// RUN: alpa-opt %s --alpa-build-schedule=schedule=gpipe --alpa-verify-program | FileCheck %s --check-prefixes=CHECK,GPIPE
// RUN: sed 's/num_micro_batches = 3/num_micro_batches = 5/' %s | alpa-opt --alpa-build-schedule=schedule=1f1b-overlap --alpa-verify-program | FileCheck %s --check-prefix=OVERLAP
// RUN: not alpa-opt %s --alpa-build-schedule=schedule=zigzag 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// Stages of equal meshes share one: what one made the other takes, held otherwise if it wants.
// RUN: sed 's/shape = \[1\], devices = \[0\]/shape = [2], devices = [1, 2]/' %s > %t.shared
// RUN: alpa-opt %t.shared --alpa-build-schedule=schedule=gpipe --alpa-verify-program | FileCheck %s --check-prefix=SHARED
// RUN: not alpa-opt %t.shared --alpa-build-schedule=schedule=1f1b 2>&1 | FileCheck %s --check-prefix=SEVERAL
// SEVERAL: error: schedule '1f1b' takes one stage on each mesh, got 2 stages on 1 meshes
// RUN: sed 's/shape = \[1\], devices = \[0\]/shape = [1], devices = [1]/' %s | not alpa-opt --alpa-build-schedule 2>&1 | FileCheck %s --check-prefix=OVERLAPPING
// OVERLAPPING: error: stage 1 has device 1 on mesh #alpa.mesh<shape = [2], devices = [1, 2]>, but another stage has it on #alpa.mesh<shape = [1], devices = [1]>; stages share all devices of a mesh or none
// Other orders of the same runs; whole backward runs serve as input parts.
// RUN: alpa-opt %s --alpa-build-schedule=schedule=zb-h1 --alpa-verify-program | FileCheck %s
// RUN: alpa-opt %s --alpa-build-schedule='schedule=zb-auto limit=2' --alpa-verify-program | FileCheck %s
// RUN: alpa-opt %s --alpa-build-schedule=schedule=interleaved-1f1b --alpa-verify-program | FileCheck %s
// RUN: alpa-opt %s --alpa-build-schedule=schedule=breadth-first --alpa-verify-program | FileCheck %s
// RUN: alpa-opt %s --alpa-build-schedule=schedule=zb-v --alpa-verify-program | FileCheck %s
// RUN: alpa-opt %s --alpa-build-schedule=schedule=v-half --alpa-verify-program | FileCheck %s
// RUN: alpa-opt %s --alpa-build-schedule=schedule=v-min --alpa-verify-program | FileCheck %s
// RUN: alpa-opt %s --alpa-build-schedule=schedule=dualpipe-v --alpa-verify-program | FileCheck %s
// Steps that are given, in an option or in a file.
// RUN: alpa-opt %s --alpa-build-schedule='steps=F0.0,F0.1,F0.2,B0.0,B0.1,B0.2;F1.0,F1.1,F1.2,B1.0,B1.1,B1.2' --alpa-verify-program | FileCheck %s --check-prefixes=CHECK,CUSTOM
// RUN: echo 'F0.0 F0.1 F0.2 I0.0 I0.1 I0.2 W0.0 W0.1 W0.2' > %t.steps
// RUN: echo 'F1.0 F1.1 F1.2 B1.0 B1.1 B1.2' >> %t.steps
// RUN: alpa-opt %s --alpa-build-schedule=steps-file=%t.steps --alpa-verify-program | FileCheck %s --check-prefixes=CHECK,CUSTOM
// CUSTOM: alpa.channel_capacity = 1 : i64
// CUSTOM-SAME: alpa.schedule = "custom"
// RUN: not alpa-opt %s --alpa-build-schedule='steps=F0.0,B0.0;F1.0,B1.0' 2>&1 | FileCheck %s --check-prefix=LACKS
// LACKS: error: custom schedule: alpa_schedule_c4: mesh 0 lacks `F0.1`
// RUN: not alpa-opt %s --alpa-build-schedule=steps-file=%t.none 2>&1 | FileCheck %s --check-prefix=NOFILE
// NOFILE: error: cannot read the steps in {{.*}}.none
// RUN: not alpa-opt %s --alpa-build-schedule=schedule=inference 2>&1 | FileCheck %s --check-prefix=BACKWARD
// BACKWARD: error: schedule 'inference' runs forwards only, but the step has backward runs
// UNKNOWN: error: there is no schedule `zigzag`; choose one of 1f1b, 1f1b-overlap, gpipe, interleaved-1f1b, breadth-first, zb-h1, zb-auto, zb-v, v-half, v-min, dualpipe-v, custom, inference

// F1B1: alpa.schedule = "1f1b"
// GPIPE: alpa.schedule = "gpipe"
module attributes {alpa.num_micro_batches = 3 : i64} {
  func.func private @main(
      tensor<8xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64, alpa.value = 0 : i64, alpa.stage = 0 : i64},
      tensor<2xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64, alpa.value = 1 : i64, alpa.stage = 1 : i64},
      tensor<4xf32> {alpa.kind = "batch", alpa.value = 2 : i64})
      -> (tensor<8xf32> {alpa.value = 6 : i64}, tensor<2xf32> {alpa.value = 7 : i64}, tensor<f32> {alpa.value = 8 : i64, alpa.reduction = "sum"})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    func.func private @forward(
        tensor<8xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 2 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<4xf32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[R]>})
    func.func private @backward(
        tensor<4xf32> {alpa.value = 2 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 4 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<8xf32> {alpa.value = 5 : i64, alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R]>})
    func.func private @update_0(
        tensor<8xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<8xf32> {alpa.value = 5 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<8xf32> {alpa.value = 6 : i64, alpa.sharding = #alpa.sharding<[R]>})
  }
  // The weight of stage 0 is used here, too. Value 7 does not depend on the micro-batch.
  module @stage_1 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [1, 2]>} {
    func.func private @forward(
        tensor<8xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[S0]>},
        tensor<2xf32> {alpa.value = 1 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[S0]>})
        -> (tensor<2xf32> {alpa.value = 7 : i64, alpa.accumulate = "last", alpa.sharding = #alpa.sharding<[R]>},
            tensor<f32> {alpa.value = 8 : i64, alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[]>})
    func.func private @backward(
        tensor<8xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[S0]>},
        tensor<2xf32> {alpa.value = 1 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[S0]>})
        -> (tensor<4xf32> {alpa.value = 4 : i64, alpa.sharding = #alpa.sharding<[S0]>})
  }
}

// One more micro-batch is on its way than 1f1b has.
// OVERLAP: alpa.program @mesh_0 on 0 {
// OVERLAP: @stage_0::@forward({{.*}}) {micro_batch = 0 : i64}
// OVERLAP: @stage_0::@forward({{.*}}) {micro_batch = 1 : i64}
// OVERLAP: @stage_0::@forward({{.*}}) {micro_batch = 2 : i64}
// OVERLAP: @stage_0::@backward({{.*}}) {micro_batch = 0 : i64}
// OVERLAP: @stage_0::@forward({{.*}}) {micro_batch = 3 : i64}
// OVERLAP: @stage_0::@backward({{.*}}) {micro_batch = 1 : i64}
// OVERLAP: alpa.program @mesh_1 on 1 {
// OVERLAP: @stage_1::@forward({{.*}}) {micro_batch = 0 : i64}
// OVERLAP: @stage_1::@backward({{.*}}) {micro_batch = 0 : i64}
// OVERLAP: @stage_1::@forward({{.*}}) {micro_batch = 1 : i64}

// CHECK: alpa.program @mesh_0 on 0 {
// The weight is sent once a step.
// CHECK-NEXT: %[[W:.*]] = alpa.input {arg = 0 : i64
// CHECK-NEXT: alpa.send %[[W]] to 1 tag [[WTAG:[0-9]+]]
// CHECK-NEXT: %[[X0:.*]] = alpa.input {arg = 2 : i64, micro_batch = 0 : i64
// CHECK-NEXT: %[[H0:.*]] = alpa.run @stage_0::@forward(%[[W]], %[[X0]]) {micro_batch = 0 : i64}
// CHECK-NEXT: alpa.send %[[H0]] to 1 tag [[H0TAG:[0-9]+]]
// CHECK-NEXT: alpa.free %[[H0]]
// CHECK: alpa.run @stage_0::@forward({{.*}}) {micro_batch = 1 : i64}
// F1B1: alpa.run @stage_0::@backward({{.*}}) {micro_batch = 0 : i64}
// F1B1: alpa.run @stage_0::@forward({{.*}}) {micro_batch = 2 : i64}
// GPIPE: alpa.run @stage_0::@forward({{.*}}) {micro_batch = 2 : i64}
// GPIPE: alpa.run @stage_0::@backward({{.*}}) {micro_batch = 0 : i64}
// CHECK: %[[G1:.*]] = alpa.run @stage_0::@backward({{.*}}) {micro_batch = 1 : i64}
// CHECK: %[[S1:.*]] = alpa.accumulate %{{.*}}, %[[G1]]
// CHECK: %[[G2:.*]] = alpa.run @stage_0::@backward({{.*}}) {micro_batch = 2 : i64}
// CHECK: %[[S2:.*]] = alpa.accumulate %[[S1]], %[[G2]]
// CHECK-NEXT: alpa.free %[[S1]], %[[G2]]
// CHECK-NEXT: %[[N:.*]] = alpa.run @stage_0::@update_0(%[[W]], %[[S2]])
// CHECK-NEXT: alpa.free %[[W]], %[[S2]]
// CHECK-NEXT: alpa.output %[[N]] {result = 0 : i64}

// CHECK: alpa.program @mesh_1 on 1 {
// CHECK-NEXT: %[[W:.*]] = alpa.recv from 0 tag [[WTAG]] {sharding = #alpa.sharding<[S0]>}
// CHECK-NEXT: %[[B0:.*]] = alpa.input {arg = 1 : i64
// CHECK-NEXT: %[[H0:.*]] = alpa.recv from 0 tag [[H0TAG]] {sharding = #alpa.sharding<[S0]>}
// CHECK-NEXT: %[[F0:.*]]:2 = alpa.run @stage_1::@forward(%[[W]], %[[B0]], %[[H0]]) {micro_batch = 0 : i64}
// F1B1: alpa.run @stage_1::@backward(%[[W]], %[[B0]], %[[H0]]) {micro_batch = 0 : i64}
// CHECK: %[[F1:.*]]:2 = alpa.run @stage_1::@forward(%[[W]], %[[B0]], %{{.*}}) {micro_batch = 1 : i64}
// CHECK: %[[L1:.*]] = alpa.accumulate %[[F0]]#1, %[[F1]]#1
// F1B1: alpa.run @stage_1::@backward(%[[W]], %[[B0]], %{{.*}}) {micro_batch = 1 : i64}
// CHECK: %[[F2:.*]]:2 = alpa.run @stage_1::@forward(%[[W]], %[[B0]], %{{.*}}) {micro_batch = 2 : i64}
// CHECK: %[[L2:.*]] = alpa.accumulate %[[L1]], %[[F2]]#1
// CHECK: alpa.output %[[F2]]#0 {result = 1 : i64}
// CHECK-NEXT: alpa.output %[[L2]] {result = 2 : i64}

// SHARED: alpa.program @mesh_0 on 0 {
// SHARED-NEXT: %[[W:.*]] = alpa.input {arg = 0 : i64
// SHARED-NEXT: %[[X0:.*]] = alpa.input {arg = 2 : i64, micro_batch = 0 : i64
// SHARED-NEXT: %[[H0:.*]] = alpa.run @stage_0::@forward(%[[W]], %[[X0]]) {micro_batch = 0 : i64}
// SHARED: %[[W1:.*]] = alpa.reshard %[[W]] {from = #alpa.sharding<[R]>, to = #alpa.sharding<[S0]>}
// SHARED: %[[B:.*]] = alpa.input {arg = 1 : i64
// SHARED-NEXT: %[[I0:.*]] = alpa.reshard %[[H0]] {from = #alpa.sharding<[R]>, to = #alpa.sharding<[S0]>}
// SHARED-NEXT: alpa.free %[[H0]]
// SHARED-NEXT: alpa.run @stage_1::@forward(%[[W1]], %[[B]], %[[I0]]) {micro_batch = 0 : i64}
// SHARED: %[[G0:.*]] = alpa.run @stage_1::@backward(%[[W1]], %[[B]], %[[I0]]) {micro_batch = 0 : i64}
// SHARED: %[[D0:.*]] = alpa.reshard %[[G0]] {from = #alpa.sharding<[S0]>, to = #alpa.sharding<[R]>}
// SHARED: alpa.run @stage_0::@backward(%[[X0]], %[[D0]]) {micro_batch = 0 : i64}
// SHARED-NOT: alpa.program
