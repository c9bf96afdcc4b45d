// Each stage adds up what it knows of a sum, and the stages meet once.
// RUN: alpa-opt %s --alpa-gather-sums --allow-unregistered-dialect --split-input-file | FileCheck %s
// RUN: alpa-opt %s --alpa-gather-sums --alpa-slice-stages --allow-unregistered-dialect --split-input-file | FileCheck %s --check-prefix=SLICED

// A norm of gradients on both stages, and clipping by it. The zero with which the
// chain begins is added once.

// CHECK-LABEL: func.func @main(%arg0: tensor<8xf32>
// CHECK: %[[A:.*]] = "test.square"(%{{.*}}) {{.*}}alpa.stage = 0
// CHECK: %[[B:.*]] = "test.square"(%{{.*}}) {{.*}}alpa.stage = 1
// CHECK: %[[C:.*]] = "test.square"(%{{.*}}) {{.*}}alpa.stage = 1
// CHECK: %[[D:.*]] = "test.square"(%{{.*}}) {{.*}}alpa.stage = 0
// CHECK-NOT: stablehlo.add
// CHECK: %[[AD:.*]] = stablehlo.add %[[A]], %[[D]] {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
// CHECK: %[[AZ:.*]] = stablehlo.add %[[AD]], %{{.*}} {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
// CHECK: %[[BC:.*]] = stablehlo.add %[[B]], %[[C]] {alpa.phase = "update", alpa.stage = 1 : i64} : tensor<f32>
// CHECK: %[[S:.*]] = alpa.sum_of_stages %[[AZ]], %[[BC]] of [0, 1] {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
// CHECK-NOT: stablehlo.add
// CHECK: stablehlo.sqrt %[[S]]
// CHECK: return

// Two functions a stage, and no value crosses but the sum. What is made of it by
// scalar arithmetic is made on both stages.

// SLICED: module @stage_0
// SLICED: func.func @update_0(%{{.*}}: tensor<8xf32> {{.*}}alpa.value = [[G0:.*]] : i64}, %{{.*}}: tensor<8xf32> {{.*}}alpa.value = [[G3:.*]] : i64}) -> (tensor<f32> {alpa.part_of = [[T:[0-9]+]] : i64, alpa.sharding = #alpa.sharding<[]>, alpa.value = {{.*}} : i64}) {
// SLICED: stablehlo.add
// SLICED: stablehlo.add
// SLICED: return
// SLICED: func.func @update_1(%{{.*}}: tensor<8xf32> {{.*}}alpa.value = 0 : i64{{.*}}}, %{{.*}}: tensor<8xf32> {{.*}}alpa.value = [[G0]] : i64}, %[[N:.*]]: tensor<f32> {alpa.sharding = #alpa.sharding<[]>, alpa.value = [[T]] : i64})
// SLICED-NOT: part_of
// SLICED: stablehlo.sqrt %[[N]]
// SLICED: module @stage_1
// SLICED: func.func @update_0
// SLICED-SAME: -> (tensor<f32> {alpa.part_of = [[T]] : i64
// SLICED: func.func @update_1
// SLICED-SAME: alpa.value = [[T]] : i64})
// SLICED: stablehlo.sqrt
// SLICED-NOT: @update_2
module attributes {alpa.num_micro_batches = 2 : i64, alpa.stages = [
    #alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>,
    #alpa.stage<mesh = <shape = [1], devices = [1]>, layers = [1, 2]>]} {
  func.func @main(
      %w0: tensor<8xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64},
      %w1: tensor<8xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64},
      %x: tensor<8xf32> {alpa.kind = "batch"}) -> (tensor<8xf32>, tensor<8xf32>) {
    %g1 = "test.gradient"(%x) {alpa.phase = "backward", alpa.stage = 1 : i64} : (tensor<8xf32>) -> tensor<8xf32>
    %g2 = "test.gradient"(%g1) {alpa.phase = "backward", alpa.stage = 1 : i64} : (tensor<8xf32>) -> tensor<8xf32>
    %g0 = "test.gradient"(%g1) {alpa.phase = "backward", alpa.stage = 0 : i64} : (tensor<8xf32>) -> tensor<8xf32>
    %g3 = "test.gradient"(%g0) {alpa.phase = "backward", alpa.stage = 0 : i64} : (tensor<8xf32>) -> tensor<8xf32>
    %a = "test.square"(%g0) {alpa.phase = "update", alpa.stage = 0 : i64} : (tensor<8xf32>) -> tensor<f32>
    %b = "test.square"(%g1) {alpa.phase = "update", alpa.stage = 1 : i64} : (tensor<8xf32>) -> tensor<f32>
    %c = "test.square"(%g2) {alpa.phase = "update", alpa.stage = 1 : i64} : (tensor<8xf32>) -> tensor<f32>
    %d = "test.square"(%g3) {alpa.phase = "update", alpa.stage = 0 : i64} : (tensor<8xf32>) -> tensor<f32>
    %zero = stablehlo.constant {alpa.phase = "update", alpa.stage = 0 : i64} dense<0.0> : tensor<f32>
    %s0 = stablehlo.add %a, %zero {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
    %s1 = stablehlo.add %s0, %b {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
    %s2 = stablehlo.add %s1, %c {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
    %s3 = stablehlo.add %s2, %d {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
    %n = stablehlo.sqrt %s3 {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
    %n0 = "stablehlo.broadcast_in_dim"(%n) {broadcast_dimensions = array<i64>, alpa.phase = "update", alpa.stage = 0 : i64} : (tensor<f32>) -> tensor<8xf32>
    %d0 = stablehlo.divide %g0, %n0 {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<8xf32>
    %d1 = stablehlo.divide %g1, %n0 {alpa.phase = "update", alpa.stage = 1 : i64} : tensor<8xf32>
    %u0 = stablehlo.subtract %w0, %d0 {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<8xf32>
    %u1 = stablehlo.subtract %w1, %d1 {alpa.phase = "update", alpa.stage = 1 : i64} : tensor<8xf32>
    return %u0, %u1 : tensor<8xf32>, tensor<8xf32>
  }
}

// -----

// What only one mesh uses is sent there and added up as it was.

// CHECK-LABEL: func.func @main(%arg0: tensor<4xi32>
// CHECK: %[[A:.*]] = stablehlo.negate
// CHECK: %[[B:.*]] = stablehlo.negate
// CHECK: stablehlo.add %[[A]], %[[B]]
// CHECK-NOT: alpa.sum_of_stages
// CHECK: return
// SLICED: @update_0
// SLICED-NOT: alpa.part_of
module attributes {alpa.stages = [
    #alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>,
    #alpa.stage<mesh = <shape = [1], devices = [1]>, layers = [1, 2]>]} {
  func.func @main(%i: tensor<4xi32> {alpa.kind = "state"}) -> tensor<4xi32> {
    %a = stablehlo.negate %i {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<4xi32>
    %b = stablehlo.negate %i {alpa.phase = "update", alpa.stage = 1 : i64} : tensor<4xi32>
    %s = stablehlo.add %a, %b {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<4xi32>
    return %s : tensor<4xi32>
  }
}

// -----

// Stages 0 and 2 share a mesh. They alone need no meeting (%p), with stage 1 they do
// (%t). An inner sum with another use (%p) is an operand, and so is one of no tree.
// The parts of stage 2 come one function later, because %m crossed from stage 1.

// CHECK-LABEL: func.func @main(%arg0: tensor<4xi64>
// CHECK: %[[A:.*]] = "test.a"
// CHECK: %[[B:.*]] = "test.b"
// CHECK: %[[C:.*]] = "test.c"
// CHECK: %[[P:.*]] = stablehlo.add %[[A]], %[[C]]
// CHECK: %[[M:.*]] = "test.m"(%[[B]])
// CHECK: %[[T:.*]] = alpa.sum_of_stages %[[P]], %[[B]], %[[M]] of [0, 1, 2] {alpa.phase = "update", alpa.stage = 1 : i64} : tensor<4xi64>
// CHECK: return

// SLICED: module @stage_0
// SLICED: func.func @update_1
// SLICED-SAME: alpa.part_of = [[T:[0-9]+]] : i64
// SLICED: func.func @update_2
// SLICED-SAME: alpa.value = [[T]] : i64}
// SLICED: module @stage_1
// SLICED: func.func @update_0
// SLICED-SAME: alpa.part_of = [[T]] : i64
// SLICED: func.func @update_2
// SLICED-SAME: alpa.value = [[T]] : i64}
// SLICED: module @stage_2
// SLICED: func.func @update_1
// SLICED-SAME: alpa.part_of = [[T]] : i64
module attributes {alpa.stages = [
    #alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>,
    #alpa.stage<mesh = <shape = [1], devices = [1]>, layers = [1, 2]>,
    #alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [2, 3]>]} {
  func.func @main(%i: tensor<4xi64> {alpa.kind = "state"}) -> (tensor<4xi64>, tensor<4xi64>, tensor<4xi64>) {
    %a = "test.a"(%i) {alpa.phase = "update", alpa.stage = 0 : i64} : (tensor<4xi64>) -> tensor<4xi64>
    %b = "test.b"(%i) {alpa.phase = "update", alpa.stage = 1 : i64} : (tensor<4xi64>) -> tensor<4xi64>
    %c = "test.c"(%i) {alpa.phase = "update", alpa.stage = 2 : i64} : (tensor<4xi64>) -> tensor<4xi64>
    %p = stablehlo.add %a, %c {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<4xi64>
    %q = stablehlo.negate %p {alpa.phase = "update", alpa.stage = 2 : i64} : tensor<4xi64>
    %m = "test.m"(%b) {alpa.phase = "update", alpa.stage = 2 : i64} : (tensor<4xi64>) -> tensor<4xi64>
    %r = stablehlo.add %p, %b {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<4xi64>
    %t = stablehlo.add %r, %m {alpa.phase = "update", alpa.stage = 1 : i64} : tensor<4xi64>
    %u = stablehlo.negate %t {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<4xi64>
    %v = stablehlo.negate %t {alpa.phase = "update", alpa.stage = 1 : i64} : tensor<4xi64>
    return %q, %u, %v : tensor<4xi64>, tensor<4xi64>, tensor<4xi64>
  }
}

// -----

// Gradients themselves, as accumulated over micro-batches. The sum leaves the step, too.
// Truth values are no numbers.

// CHECK-LABEL: func.func @main(%arg0: tensor<f32>
// CHECK: alpa.sum_of_stages %{{.*}}, %{{.*}} of [0, 1] {{.*}} : tensor<f32>
// CHECK-NOT: alpa.sum_of_stages
// CHECK: return

// SLICED: func.func private @main{{.*}} -> (tensor<f32> {alpa.value = [[OUT:[0-9]+]] : i64}
// SLICED: module @stage_0
// SLICED: func.func @update_0(%[[G:[a-z0-9]+]]: tensor<f32> {alpa.sharding = #alpa.sharding<[]>, alpa.value = {{[0-9]+}} : i64})
// SLICED-SAME: -> ({{.*}}tensor<f32> {alpa.part_of = [[T:[0-9]+]] : i64
// SLICED: return {{.*}}%[[G]]
// SLICED: func.func @update_1(
// SLICED-SAME: -> ({{.*}}tensor<f32> {alpa.sharding = #alpa.sharding<[]>, alpa.value = [[OUT]] : i64}
module attributes {alpa.num_micro_batches = 2 : i64, alpa.stages = [
    #alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>,
    #alpa.stage<mesh = <shape = [1], devices = [1]>, layers = [1, 2]>]} {
  func.func @main(
      %w0: tensor<f32> {alpa.kind = "state"}, %w1: tensor<f32> {alpa.kind = "state"},
      %x: tensor<8xf32> {alpa.kind = "batch"}) -> (tensor<f32>, tensor<f32>, tensor<i1>, tensor<i1>) {
    %g1 = "test.gradient"(%x) {alpa.phase = "backward", alpa.stage = 1 : i64} : (tensor<8xf32>) -> tensor<f32>
    %g0 = "test.gradient"(%g1) {alpa.phase = "backward", alpa.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %s = stablehlo.add %g0, %g1 {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
    %u1 = "test.use"(%w1, %s) {alpa.phase = "update", alpa.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %p0 = "test.finite"(%g0) {alpa.phase = "update", alpa.stage = 0 : i64} : (tensor<f32>) -> tensor<i1>
    %p1 = "test.finite"(%g1) {alpa.phase = "update", alpa.stage = 1 : i64} : (tensor<f32>) -> tensor<i1>
    %p = stablehlo.add %p0, %p1 {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<i1>
    %q0 = "test.use"(%p) {alpa.phase = "update", alpa.stage = 0 : i64} : (tensor<i1>) -> tensor<i1>
    %q1 = "test.use"(%p) {alpa.phase = "update", alpa.stage = 1 : i64} : (tensor<i1>) -> tensor<i1>
    return %s, %u1, %q0, %q1 : tensor<f32>, tensor<f32>, tensor<i1>, tensor<i1>
  }
}
