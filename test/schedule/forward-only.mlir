// A step without gradients on two stages: only @forward, and @update_0 for what is made once of
// the whole batch. Activations go down the pipeline, nothing comes back, weights stay.
// RUN: alpa-opt %s -alpa-slice-stages | FileCheck %s --check-prefix=SLICE
// RUN: alpa-opt %s -alpa-slice-stages -alpa-build-schedule -alpa-verify-program | FileCheck %s

// SLICE: func.func private @main(tensor<8x8xf32> {alpa.kind = "state", alpa.stage = 0 : i64
// SLICE: module @stage_0
// SLICE: func.func @forward(%{{.*}}: tensor<8x8xf32> {{.*}}, %{{.*}}: tensor<4x8xf32> {{.*}}) -> (tensor<4x8xf32> {{.*}}alpa.value = [[H:[0-9]+]]
// SLICE-NOT: func.func
// SLICE: module @stage_1
// SLICE: func.func @forward(%{{.*}}: tensor<8x8xf32> {{.*}}alpa.value = 1 : i64}, %{{.*}}: tensor<4x8xf32> {{.*}}alpa.value = [[H]] : i64})
// SLICE-SAME: tensor<f32> {alpa.accumulate = "sum"
// SLICE-SAME: tensor<4x8xf32> {alpa.accumulate = "concat"
// SLICE-NOT: @backward
// SLICE: func.func @update_0(%[[SUM:.*]]: tensor<f32> {{.*}}) -> (tensor<f32>
// SLICE-NEXT: exponential{{.*}}%[[SUM]]
// SLICE-NOT: func.func

// CHECK: alpa.program @mesh_0 on 0
// CHECK: %[[W:.*]] = alpa.input {arg = 0
// CHECK: run @stage_0::@forward(%[[W]], %{{.*}}) {micro_batch = 0
// CHECK: send
// CHECK: run @stage_0::@forward(%[[W]], %{{.*}}) {micro_batch = 1
// CHECK: send
// CHECK-NOT: recv
// CHECK: alpa.program @mesh_1 on 1
// CHECK: run @stage_1::@forward({{.*}}) {micro_batch = 0
// CHECK: output {{.*}}{micro_batch = 0 : i64, result = 0
// CHECK: run @stage_1::@forward({{.*}}) {micro_batch = 1
// CHECK: %[[TOTAL:.*]] = alpa.accumulate
// CHECK: output {{.*}}{micro_batch = 1 : i64, result = 0
// CHECK: %[[ALL:.*]] = alpa.run @stage_1::@update_0(%[[TOTAL]])
// CHECK: output %[[ALL]] {result = 1
module attributes {alpa.num_micro_batches = 2 : i64, alpa.stages = [
    #alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>,
    #alpa.stage<mesh = <shape = [1], devices = [1]>, layers = [1, 2]>]} {
  func.func @main(%w0: tensor<8x8xf32> {alpa.kind = "state"}, %w1: tensor<8x8xf32> {alpa.kind = "state"},
                  %x: tensor<4x8xf32> {alpa.kind = "batch"})
      -> (tensor<4x8xf32> {alpa.reduction = "concat"}, tensor<f32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %h = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] {alpa.phase = "forward", alpa.stage = 0 : i64} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %y = stablehlo.dot_general %h, %w1, contracting_dims = [1] x [0] {alpa.phase = "forward", alpa.stage = 1 : i64} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.phase = "forward", alpa.stage = 1 : i64} : (tensor<4x8xf32>, tensor<f32>) -> tensor<f32>
    %e = stablehlo.exponential %s {alpa.phase = "update", alpa.stage = 1 : i64} : tensor<f32>
    return %y, %e : tensor<4x8xf32>, tensor<f32>
  }
}
