// The barrier is a function of the last stage: it runs once, when all forward runs of its mesh
// are over and before the first backward run.
// RUN: alpa-opt %s -alpa-split-batch=micro-batches=2 -alpa-cluster-layers=layers=2 -alpa-search-stages="cluster=cpu-test num-micro-batches=2 submeshes=1x1,1x1" -alpa-slice-stages -o %t.sliced
// RUN: alpa-opt %t.sliced -alpa-build-schedule -alpa-verify-program | FileCheck %s
// The search takes gpipe, whatever schedule was asked for; other orders are refused.
// RUN: not alpa-opt %t.sliced -alpa-build-schedule=schedule=1f1b 2>&1 | FileCheck %s --check-prefix=ORDER
// ORDER: error: schedule '1f1b' has a backward run on mesh 1 before the last forward run, but the step has a barrier, before which all forward runs come; use schedule gpipe, or one micro-batch
// RUN: not alpa-opt %t.sliced -alpa-build-schedule='steps=F0.0,F0.1,B0.0,B0.1;F1.0,B1.0,F1.1,B1.1' 2>&1 | FileCheck %s --check-prefix=CUSTOM
// CUSTOM: error: schedule 'custom' has a backward run on mesh 1 before the last forward run

// CHECK: alpa.schedule = "gpipe"
// CHECK: module @stage_0
// CHECK-NOT: func.func @barrier
// CHECK: module @stage_1
// CHECK: func.func @forward({{.*}}) -> (tensor<8x4xf32> {alpa.accumulate = "sum", {{.*}}alpa.value = [[JOINED:[0-9]+]] : i64}
// CHECK: func.func @barrier({{.*}}tensor<8x4xf32> {{{.*}}alpa.value = [[JOINED]] : i64}{{.*}}) -> (tensor<8x4xf32> {{{.*}}alpa.value = [[MADE:[0-9]+]] : i64})
// CHECK: func.func @backward({{.*}}tensor<8x4xf32> {{{.*}}alpa.value = [[MADE]] : i64}
// CHECK: alpa.program @mesh_0 on 0
// CHECK-NOT: @barrier
// CHECK: alpa.program @mesh_1 on 1
// CHECK: %[[FIRST:[^ ]+]] = alpa.run @stage_1::@forward({{.*}}) {micro_batch = 0 : i64}
// CHECK: %[[SECOND:[^ ]+]] = alpa.run @stage_1::@forward({{.*}}) {micro_batch = 1 : i64}
// CHECK: %[[ALL:.+]] = alpa.accumulate %[[FIRST]], %[[SECOND]]
// CHECK: %[[BARRIER:.+]] = alpa.run @stage_1::@barrier(%[[ALL]]) :
// CHECK: alpa.run @stage_1::@backward({{.*}}%[[BARRIER]]{{.*}}) {micro_batch = 0 : i64}
// CHECK: alpa.run @stage_1::@backward({{.*}}%[[BARRIER]]{{.*}}) {micro_batch = 1 : i64}
// CHECK: alpa.free {{.*}}%[[BARRIER]]
// CHECK: alpa.run @stage_1::@update_0
func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %v: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %h = stablehlo.dot_general %y, %v, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %s = stablehlo.dot_general %h, %h, contracting_dims = [1] x [1] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
  %dh = stablehlo.dot_general %s, %h, contracting_dims = [1] x [0] {alpa.eqn = 2 : i64, alpa.phase = "backward"} : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %dy = stablehlo.dot_general %dh, %v, contracting_dims = [1] x [1] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %dv = stablehlo.dot_general %y, %dh, contracting_dims = [0] x [0] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %dw = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %u = stablehlo.subtract %w, %dw {alpa.phase = "update"} : tensor<4x4xf32>
  %t = stablehlo.subtract %v, %dv {alpa.phase = "update"} : tensor<4x4xf32>
  return %u, %t : tensor<4x4xf32>, tensor<4x4xf32>
}
