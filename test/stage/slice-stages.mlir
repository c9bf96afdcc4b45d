// One module per stage, one function per phase.
// RUN: alpa-opt %s --alpa-slice-stages --allow-unregistered-dialect --split-input-file | FileCheck %s

// Two stages, two micro-batches, plain gradient descent on both weights. The
// learning rate is state: scalar arithmetic on it is repeated in both updates. What comes
// of the micro-batches is added up over them, which is all that the step has to know of them.

// CHECK: func.func private @main(tensor<8x8xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state", alpa.sharding = #alpa.sharding<[R, S0]>, alpa.stage = 0 : i64, alpa.value = 0 : i64}
// CHECK-SAME: tensor<8x8xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.stage = 1 : i64, alpa.value = 1 : i64}
// CHECK-SAME: tensor<f32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.stage = 0 : i64, alpa.value = 2 : i64}
// CHECK-SAME: tensor<4x8xf32> {alpa.kind = "batch", alpa.value = 3 : i64}
// CHECK-SAME: -> (tensor<8x8xf32> {alpa.value = [[W0:.*]] : i64}, tensor<8x8xf32> {alpa.value = [[W1:.*]] : i64}, tensor<f32> {alpa.value = 2 : i64}, tensor<f32> {alpa.value = [[TOTAL:.*]] : i64}, tensor<4x8xf32> {alpa.reduction = "concat", alpa.value = [[Y:.*]] : i64})
// CHECK: module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>}
// CHECK: func.func @forward(%[[W:.*]]: tensor<8x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = 0 : i64}, %[[X:.*]]: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 3 : i64}) -> (tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = [[H:[0-9]+]] : i64})
// CHECK-NEXT: %[[D:.*]] = "test.dot"(%[[X]], %[[W]]) {alpa.shardings = [#alpa.sharding<[R, S0]>]}
// CHECK-NEXT: return %[[D]]
// CHECK: func.func @backward(%{{.*}}: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 3 : i64}, %{{.*}}: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[S0, R]>, alpa.value = [[DH:[0-9]+]] : i64}) -> (tensor<8x8xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = [[G0:[0-9]+]] : i64})
// CHECK: func.func @update_0(%[[W:.*]]: tensor<8x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = 0 : i64, tf.aliasing_output = 0 : i32}, %[[LR:.*]]: tensor<f32> {{.*}}alpa.value = 2 : i64}, %[[G:.*]]: tensor<8x8xf32> {{.*}}alpa.value = [[G0]] : i64}) -> (tensor<8x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = [[W0]] : i64})
// CHECK-NEXT: %[[NEG:.*]] = {{"?}}stablehlo.negate{{"?[ (]}}%[[LR]]
// CHECK-NEXT: %[[B:.*]] = {{"?}}stablehlo.broadcast_in_dim{{"?[ (]}}%[[NEG]]
// CHECK-NEXT: %[[S:.*]] = {{"?}}stablehlo.multiply{{"?[ (]}}%[[B]], %[[G]]
// CHECK-NEXT: %[[N:.*]] = {{"?}}stablehlo.add{{"?[ (]}}%[[W]], %[[S]]
// CHECK-NEXT: return %[[N]]
// CHECK: module @stage_1 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [2, 3]>}
// CHECK: func.func @forward(%{{.*}}: tensor<8x8xf32> {{.*}}alpa.value = 1 : i64}, %{{.*}}: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[S0, R]>, alpa.value = [[H]] : i64})
// CHECK-SAME: -> (tensor<4x8xf32> {{.*}}alpa.value = [[ACT:[0-9]+]] : i64}, tensor<f32> {alpa.accumulate = "sum", {{.*}}alpa.value = [[LOSS:[0-9]+]] : i64}, tensor<4x8xf32> {alpa.accumulate = "concat", {{.*}}alpa.value = [[Y]] : i64})
// CHECK: func.func @backward
// CHECK-SAME: alpa.value = [[ACT]] : i64
// CHECK: func.func @update_0
// CHECK-SAME: alpa.value = 2 : i64
// CHECK-SAME: alpa.value = [[LOSS]] : i64
// CHECK-SAME: -> ({{.*}}alpa.value = [[W1]] : i64}, tensor<f32> {{.*}}alpa.value = [[TOTAL]] : i64})
// CHECK: return
module attributes {alpa.num_micro_batches = 2 : i64, alpa.stages = [
    #alpa.stage<mesh = <shape = [2], devices = [0, 1]>, layers = [0, 1]>,
    #alpa.stage<mesh = <shape = [2], devices = [2, 3]>, layers = [1, 2]>]} {
  func.func @main(
      %w0: tensor<8x8xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64, alpa.sharding = #alpa.sharding<[R, S0]>},
      %w1: tensor<8x8xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64},
      %lr: tensor<f32> {alpa.kind = "state", alpa.carried_by = 2 : i64},
      %x: tensor<4x8xf32> {alpa.kind = "batch"})
      -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<f32>, tensor<f32>, tensor<4x8xf32> {alpa.reduction = "concat"}) {
    %h = "test.dot"(%x, %w0) {alpa.phase = "forward", alpa.stage = 0 : i64, alpa.shardings = [#alpa.sharding<[R, S0]>]} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %a = "stablehlo.tanh"(%h) {alpa.phase = "forward", alpa.stage = 1 : i64, alpa.operand_shardings = [#alpa.sharding<[S0, R]>]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %y = "test.dot"(%a, %w1) {alpa.phase = "forward", alpa.stage = 1 : i64} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %l = "test.sum"(%y) {alpa.phase = "forward", alpa.stage = 1 : i64} : (tensor<4x8xf32>) -> tensor<f32>
    %one = "stablehlo.constant"() {value = dense<1.0> : tensor<4x8xf32>} : () -> tensor<4x8xf32>
    %g1 = "test.dot"(%a, %one) {alpa.phase = "backward", alpa.stage = 1 : i64} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %dh = "stablehlo.multiply"(%a, %one) {alpa.phase = "backward", alpa.stage = 1 : i64} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %g0 = "test.dot"(%x, %dh) {alpa.phase = "backward", alpa.stage = 0 : i64, alpa.shardings = [#alpa.sharding<[R, S0]>], alpa.operand_shardings = [#alpa.sharding<[R, R]>, #alpa.sharding<[S0, R]>]} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %neg = "stablehlo.negate"(%lr) {alpa.phase = "update", alpa.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %b = "stablehlo.broadcast_in_dim"(%neg) {broadcast_dimensions = array<i64>, alpa.phase = "update", alpa.stage = 0 : i64} : (tensor<f32>) -> tensor<8x8xf32>
    %s0 = "stablehlo.multiply"(%b, %g0) {alpa.phase = "update", alpa.stage = 0 : i64} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %n0 = "stablehlo.add"(%w0, %s0) {alpa.phase = "update", alpa.stage = 0 : i64} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %s1 = "stablehlo.multiply"(%b, %g1) {alpa.phase = "update", alpa.stage = 1 : i64} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %n1 = "stablehlo.add"(%w1, %s1) {alpa.phase = "update", alpa.stage = 1 : i64} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    return %n0, %n1, %lr, %l, %y : tensor<8x8xf32>, tensor<8x8xf32>, tensor<f32>, tensor<f32>, tensor<4x8xf32>
  }
}

// -----

// Of two offloaded values the one that its own stage alone reads, in both phases, waits for the
// backward phase in the host's memory. The other one is sent.

// CHECK: module @stage_0
// CHECK: func.func @forward
// CHECK-NOT: alpa.memory
// CHECK: module @stage_1
// CHECK: func.func @forward
// CHECK-SAME: -> (tensor<4x8xf32> {alpa.layer = 1 : i64, alpa.memory = "host", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = [[ACT:[0-9]+]] : i64}
// CHECK-NOT: alpa.offloaded
// CHECK: func.func @backward(%{{.*}}: tensor<4x8xf32> {alpa.layer = 1 : i64, alpa.memory = "host", {{.*}}alpa.value = [[ACT]] : i64}
module attributes {alpa.num_micro_batches = 2 : i64, alpa.stages = [
    #alpa.stage<mesh = <shape = [2], devices = [0, 1]>, layers = [0, 1]>,
    #alpa.stage<mesh = <shape = [2], devices = [2, 3]>, layers = [1, 2]>]} {
  func.func @main(%w: tensor<8x8xf32> {alpa.kind = "state"}, %x: tensor<4x8xf32> {alpa.kind = "batch"}) -> (tensor<8x8xf32>, tensor<4x8xf32> {alpa.reduction = "concat"}) {
    %h = stablehlo.negate %x {alpa.phase = "forward", alpa.layer = 0 : i64, alpa.stage = 0 : i64, alpa.offloaded = array<i64: 0>} : tensor<4x8xf32>
    %a = "stablehlo.tanh"(%h) {alpa.phase = "forward", alpa.layer = 1 : i64, alpa.stage = 1 : i64, alpa.offloaded = array<i64: 0>} : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %y = stablehlo.abs %a {alpa.phase = "forward", alpa.layer = 1 : i64, alpa.stage = 1 : i64} : tensor<4x8xf32>
    %dh = stablehlo.multiply %a, %a {alpa.phase = "backward", alpa.layer = 1 : i64, alpa.stage = 1 : i64} : tensor<4x8xf32>
    %g = "test.dot"(%h, %dh) {alpa.phase = "backward", alpa.layer = 0 : i64, alpa.stage = 0 : i64} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %n = stablehlo.add %w, %g {alpa.phase = "update", alpa.layer = 0 : i64, alpa.stage = 0 : i64} : tensor<8x8xf32>
    return %n, %y : tensor<8x8xf32>, tensor<4x8xf32>
  }
}
