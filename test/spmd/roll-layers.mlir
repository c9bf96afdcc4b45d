// RUN: alpa-opt %s -split-input-file -alpa-roll-layers -alpa-verify-sharding | FileCheck %s -check-prefixes=CHECK,STACKS
// RUN: alpa-opt %s -split-input-file -alpa-roll-layers=written=true -alpa-verify-sharding | FileCheck %s -check-prefixes=CHECK,WRITTEN

// Three layers of which every product is kept for the update: weights become rows of one
// argument, what is kept becomes a stack, and the update works on both.

// CHECK:       func.func private @main(tensor<3x4x4xf32> {{.*}}alpa.piece = {argument = 0 : i64, offset = 0 : i64, size = 3 : i64}
// CHECK-SAME:    tensor<2x4xf32> {{.*}}alpa.value = 1 : i64
// CHECK-SAME:    -> (tensor<3x4x4xf32> {{.*}}alpa.piece = {offset = 0 : i64, result = 0 : i64, size = 3 : i64}
// CHECK-LABEL: func.func @forward
// CHECK-SAME:    -> (tensor<3x2x4xf32> {alpa.accumulate = "sum"
// CHECK:         stablehlo.while
// CHECK:           stablehlo.dynamic_slice {{.*}} sizes = [1, 4, 4]
// CHECK:           stablehlo.dot_general
// CHECK-NOT:       stablehlo.dot_general
// CHECK:           stablehlo.dynamic_update_slice
// CHECK-LABEL: func.func @update_0
// CHECK-COUNT-1: stablehlo.subtract {{.*}} tensor<3x1x4x4xf32>
// CHECK-NOT:     stablehlo.subtract
// CHECK:         return
module @step attributes {alpa.num_micro_batches = 1 : i64} {
  func.func private @main(tensor<1x4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state", alpa.name = "w[0]", alpa.piece = {argument = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 0 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.name = "w[1]", alpa.piece = {argument = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 1 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.name = "w[2]", alpa.piece = {argument = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 2 : i64},
    tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x", alpa.value = 3 : i64}) -> (tensor<1x4x4xf32> {alpa.name = "w[0]", alpa.piece = {result = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.value = 10 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[1]", alpa.piece = {result = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.value = 11 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[2]", alpa.piece = {result = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.value = 12 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
    func.func @forward(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %x: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 3 : i64})
        -> (tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}, tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 21 : i64}, tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 22 : i64}) {
      %k0 = stablehlo.reshape %w0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d0 = stablehlo.dot_general %x, %k0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e0_0 = stablehlo.tanh %d0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_1 = stablehlo.negate %e0_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_2 = stablehlo.exponential %e0_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_3 = stablehlo.abs %e0_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_4 = stablehlo.sqrt %e0_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_5 = stablehlo.cosine %e0_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_6 = stablehlo.sine %e0_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y0 = stablehlo.add %x, %e0_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k1 = stablehlo.reshape %w1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d1 = stablehlo.dot_general %y0, %k1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e1_0 = stablehlo.tanh %d1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_1 = stablehlo.negate %e1_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_2 = stablehlo.exponential %e1_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_3 = stablehlo.abs %e1_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_4 = stablehlo.sqrt %e1_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_5 = stablehlo.cosine %e1_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_6 = stablehlo.sine %e1_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y1 = stablehlo.add %y0, %e1_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k2 = stablehlo.reshape %w2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d2 = stablehlo.dot_general %y1, %k2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e2_0 = stablehlo.tanh %d2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_1 = stablehlo.negate %e2_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_2 = stablehlo.exponential %e2_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_3 = stablehlo.abs %e2_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_4 = stablehlo.sqrt %e2_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_5 = stablehlo.cosine %e2_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_6 = stablehlo.sine %e2_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y2 = stablehlo.add %y1, %e2_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      return %y0, %y1, %y2 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
    }
    func.func @update_0(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %g0: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}, %g1: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 21 : i64}, %g2: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 22 : i64})
        -> (tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 10 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 11 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 12 : i64}) {
      %s0 = stablehlo.slice %g0 [0:1, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b0 = stablehlo.broadcast_in_dim %s0, dims = [0, 2] {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4xf32>) -> tensor<1x4x4xf32>
      %s1 = stablehlo.slice %g1 [0:1, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b1 = stablehlo.broadcast_in_dim %s1, dims = [0, 2] {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4xf32>) -> tensor<1x4x4xf32>
      %s2 = stablehlo.slice %g2 [0:1, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b2 = stablehlo.broadcast_in_dim %s2, dims = [0, 2] {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4xf32>) -> tensor<1x4x4xf32>
      %n0 = stablehlo.subtract %w0, %b0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n1 = stablehlo.subtract %w1, %b1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n2 = stablehlo.subtract %w2, %b2 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      return %n0, %n1, %n2 : tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>
    }
  }
}

// -----

// The second layer rounds: it is another one.

// CHECK-LABEL: module @unequal
// CHECK-SAME:  {
// CHECK:         func.func private @main(tensor<1x4x4xf32>
// CHECK-NOT:     stablehlo.while
module @unequal attributes {alpa.num_micro_batches = 1 : i64} {
  func.func private @main(tensor<1x4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state", alpa.name = "w[0]", alpa.piece = {argument = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 0 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.name = "w[1]", alpa.piece = {argument = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 1 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.name = "w[2]", alpa.piece = {argument = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 2 : i64},
    tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x", alpa.value = 3 : i64}) -> (tensor<1x4x4xf32> {alpa.name = "w[0]", alpa.piece = {result = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.value = 10 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[1]", alpa.piece = {result = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.value = 11 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[2]", alpa.piece = {result = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.value = 12 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
    func.func @forward(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %x: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 3 : i64})
        -> (tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}, tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 21 : i64}, tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 22 : i64}) {
      %k0 = stablehlo.reshape %w0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d0 = stablehlo.dot_general %x, %k0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e0_0 = stablehlo.tanh %d0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_1 = stablehlo.negate %e0_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_2 = stablehlo.exponential %e0_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_3 = stablehlo.abs %e0_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_4 = stablehlo.sqrt %e0_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_5 = stablehlo.cosine %e0_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_6 = stablehlo.sine %e0_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y0 = stablehlo.add %x, %e0_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k1 = stablehlo.reshape %w1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d1 = stablehlo.dot_general %y0, %k1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e1_0 = stablehlo.tanh %d1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_1 = stablehlo.floor %e1_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_2 = stablehlo.exponential %e1_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_3 = stablehlo.abs %e1_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_4 = stablehlo.sqrt %e1_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_5 = stablehlo.cosine %e1_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_6 = stablehlo.sine %e1_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y1 = stablehlo.add %y0, %e1_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k2 = stablehlo.reshape %w2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d2 = stablehlo.dot_general %y1, %k2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e2_0 = stablehlo.tanh %d2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_1 = stablehlo.negate %e2_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_2 = stablehlo.exponential %e2_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_3 = stablehlo.abs %e2_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_4 = stablehlo.sqrt %e2_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_5 = stablehlo.cosine %e2_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_6 = stablehlo.sine %e2_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y2 = stablehlo.add %y1, %e2_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      return %y0, %y1, %y2 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
    }
    func.func @update_0(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %g0: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}, %g1: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 21 : i64}, %g2: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 22 : i64})
        -> (tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 10 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 11 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 12 : i64}) {
      %s0 = stablehlo.slice %g0 [0:1, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b0 = stablehlo.broadcast_in_dim %s0, dims = [0, 2] {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4xf32>) -> tensor<1x4x4xf32>
      %s1 = stablehlo.slice %g1 [0:1, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b1 = stablehlo.broadcast_in_dim %s1, dims = [0, 2] {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4xf32>) -> tensor<1x4x4xf32>
      %s2 = stablehlo.slice %g2 [0:1, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b2 = stablehlo.broadcast_in_dim %s2, dims = [0, 2] {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4xf32>) -> tensor<1x4x4xf32>
      %n0 = stablehlo.subtract %w0, %b0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n1 = stablehlo.subtract %w1, %b1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n2 = stablehlo.subtract %w2, %b2 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      return %n0, %n1, %n2 : tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>
    }
  }
}

// -----

// Bodies of inner loops that use two captured values alike: each is handed to the loop.

// CHECK-LABEL: module @same_captures
// CHECK:         %[[SINE:.*]] = stablehlo.sine
// CHECK:         %[[COSINE:.*]] = stablehlo.cosine
// CHECK:         stablehlo.while({{.*}}%[[P:[^ ]*]] = %[[SINE]], %[[Q:[^ ]*]] = %[[COSINE]])
// CHECK:           stablehlo.while
// CHECK:             stablehlo.subtract %[[P]], %[[Q]]
// CHECK-NOT:         stablehlo.while
module @same_captures attributes {alpa.num_micro_batches = 1 : i64} {
  func.func private @main(tensor<1x4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state", alpa.name = "w[0]", alpa.piece = {argument = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 0 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.name = "w[1]", alpa.piece = {argument = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 1 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.name = "w[2]", alpa.piece = {argument = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 2 : i64},
    tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x", alpa.value = 3 : i64}) -> (tensor<1x4x4xf32> {alpa.name = "w[0]", alpa.piece = {result = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.value = 10 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[1]", alpa.piece = {result = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.value = 11 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[2]", alpa.piece = {result = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.value = 12 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
    func.func @forward(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %x: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 3 : i64})
        -> (tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}) {
      %p = stablehlo.sine %x {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %q = stablehlo.cosine %x {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %once = stablehlo.constant {alpa.shardings = [#alpa.sharding<[]>]} dense<1> : tensor<i32>
      %zero = stablehlo.constant {alpa.shardings = [#alpa.sharding<[]>]} dense<0> : tensor<i32>
      %k0 = stablehlo.reshape %w0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d0 = stablehlo.dot_general %x, %k0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e0_0 = stablehlo.tanh %d0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_1 = stablehlo.negate %e0_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_2 = stablehlo.exponential %e0_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_3 = stablehlo.abs %e0_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_4 = stablehlo.sqrt %e0_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_5 = stablehlo.cosine %e0_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_6 = stablehlo.sine %e0_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %l0:2 = stablehlo.while(%i = %zero, %c = %e0_6) : tensor<i32>, tensor<2x4xf32> attributes {alpa.shardings = [#alpa.sharding<[]>, #alpa.sharding<[R, R]>]}
      cond {
        %less = stablehlo.compare LT, %i, %once, SIGNED {alpa.shardings = [#alpa.sharding<[]>]} : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %less : tensor<i1>
      } do {
        %next = stablehlo.add %i, %once {alpa.shardings = [#alpa.sharding<[]>]} : tensor<i32>
        %sum = stablehlo.add %p, %q {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %difference = stablehlo.subtract %p, %q {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %both = stablehlo.multiply %sum, %difference {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %more = stablehlo.add %c, %both {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        stablehlo.return %next, %more : tensor<i32>, tensor<2x4xf32>
      }
      %y0 = stablehlo.add %x, %l0#1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k1 = stablehlo.reshape %w1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d1 = stablehlo.dot_general %y0, %k1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e1_0 = stablehlo.tanh %d1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_1 = stablehlo.negate %e1_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_2 = stablehlo.exponential %e1_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_3 = stablehlo.abs %e1_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_4 = stablehlo.sqrt %e1_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_5 = stablehlo.cosine %e1_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_6 = stablehlo.sine %e1_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %l1:2 = stablehlo.while(%i = %zero, %c = %e1_6) : tensor<i32>, tensor<2x4xf32> attributes {alpa.shardings = [#alpa.sharding<[]>, #alpa.sharding<[R, R]>]}
      cond {
        %less = stablehlo.compare LT, %i, %once, SIGNED {alpa.shardings = [#alpa.sharding<[]>]} : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %less : tensor<i1>
      } do {
        %next = stablehlo.add %i, %once {alpa.shardings = [#alpa.sharding<[]>]} : tensor<i32>
        %sum = stablehlo.add %p, %q {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %difference = stablehlo.subtract %p, %q {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %both = stablehlo.multiply %sum, %difference {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %more = stablehlo.add %c, %both {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        stablehlo.return %next, %more : tensor<i32>, tensor<2x4xf32>
      }
      %y1 = stablehlo.add %y0, %l1#1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k2 = stablehlo.reshape %w2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d2 = stablehlo.dot_general %y1, %k2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e2_0 = stablehlo.tanh %d2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_1 = stablehlo.negate %e2_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_2 = stablehlo.exponential %e2_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_3 = stablehlo.abs %e2_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_4 = stablehlo.sqrt %e2_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_5 = stablehlo.cosine %e2_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_6 = stablehlo.sine %e2_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %l2:2 = stablehlo.while(%i = %zero, %c = %e2_6) : tensor<i32>, tensor<2x4xf32> attributes {alpa.shardings = [#alpa.sharding<[]>, #alpa.sharding<[R, R]>]}
      cond {
        %less = stablehlo.compare LT, %i, %once, SIGNED {alpa.shardings = [#alpa.sharding<[]>]} : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %less : tensor<i1>
      } do {
        %next = stablehlo.add %i, %once {alpa.shardings = [#alpa.sharding<[]>]} : tensor<i32>
        %sum = stablehlo.add %p, %q {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %difference = stablehlo.subtract %p, %q {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %both = stablehlo.multiply %sum, %difference {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %more = stablehlo.add %c, %both {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        stablehlo.return %next, %more : tensor<i32>, tensor<2x4xf32>
      }
      %y2 = stablehlo.add %y1, %l2#1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      return %y2 : tensor<2x4xf32>
    }
    func.func @update_0(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64})
        -> (tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 10 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 11 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 12 : i64}) {
      %n0 = stablehlo.negate %w0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n1 = stablehlo.negate %w1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n2 = stablehlo.negate %w2 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      return %n0, %n1, %n2 : tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>
    }
  }
}

// -----

// The second layer's body adds them in another order and subtracts them in the same one: the
// first value that it uses does not stand for the first one of the other layers.

// CHECK-LABEL: module @other_captures
// CHECK:         %[[SINE:.*]] = stablehlo.sine
// CHECK:         %[[COSINE:.*]] = stablehlo.cosine
// CHECK-COUNT-3: stablehlo.subtract %[[SINE]], %[[COSINE]]
module @other_captures attributes {alpa.num_micro_batches = 1 : i64} {
  func.func private @main(tensor<1x4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state", alpa.name = "w[0]", alpa.piece = {argument = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 0 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.name = "w[1]", alpa.piece = {argument = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 1 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.name = "w[2]", alpa.piece = {argument = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 2 : i64},
    tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x", alpa.value = 3 : i64}) -> (tensor<1x4x4xf32> {alpa.name = "w[0]", alpa.piece = {result = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.value = 10 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[1]", alpa.piece = {result = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.value = 11 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[2]", alpa.piece = {result = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.value = 12 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
    func.func @forward(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %x: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 3 : i64})
        -> (tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}) {
      %p = stablehlo.sine %x {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %q = stablehlo.cosine %x {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %once = stablehlo.constant {alpa.shardings = [#alpa.sharding<[]>]} dense<1> : tensor<i32>
      %zero = stablehlo.constant {alpa.shardings = [#alpa.sharding<[]>]} dense<0> : tensor<i32>
      %k0 = stablehlo.reshape %w0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d0 = stablehlo.dot_general %x, %k0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e0_0 = stablehlo.tanh %d0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_1 = stablehlo.negate %e0_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_2 = stablehlo.exponential %e0_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_3 = stablehlo.abs %e0_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_4 = stablehlo.sqrt %e0_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_5 = stablehlo.cosine %e0_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_6 = stablehlo.sine %e0_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %l0:2 = stablehlo.while(%i = %zero, %c = %e0_6) : tensor<i32>, tensor<2x4xf32> attributes {alpa.shardings = [#alpa.sharding<[]>, #alpa.sharding<[R, R]>]}
      cond {
        %less = stablehlo.compare LT, %i, %once, SIGNED {alpa.shardings = [#alpa.sharding<[]>]} : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %less : tensor<i1>
      } do {
        %next = stablehlo.add %i, %once {alpa.shardings = [#alpa.sharding<[]>]} : tensor<i32>
        %sum = stablehlo.add %p, %q {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %difference = stablehlo.subtract %p, %q {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %both = stablehlo.multiply %sum, %difference {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %more = stablehlo.add %c, %both {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        stablehlo.return %next, %more : tensor<i32>, tensor<2x4xf32>
      }
      %y0 = stablehlo.add %x, %l0#1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k1 = stablehlo.reshape %w1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d1 = stablehlo.dot_general %y0, %k1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e1_0 = stablehlo.tanh %d1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_1 = stablehlo.negate %e1_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_2 = stablehlo.exponential %e1_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_3 = stablehlo.abs %e1_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_4 = stablehlo.sqrt %e1_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_5 = stablehlo.cosine %e1_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_6 = stablehlo.sine %e1_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %l1:2 = stablehlo.while(%i = %zero, %c = %e1_6) : tensor<i32>, tensor<2x4xf32> attributes {alpa.shardings = [#alpa.sharding<[]>, #alpa.sharding<[R, R]>]}
      cond {
        %less = stablehlo.compare LT, %i, %once, SIGNED {alpa.shardings = [#alpa.sharding<[]>]} : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %less : tensor<i1>
      } do {
        %next = stablehlo.add %i, %once {alpa.shardings = [#alpa.sharding<[]>]} : tensor<i32>
        %sum = stablehlo.add %q, %p {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %difference = stablehlo.subtract %p, %q {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %both = stablehlo.multiply %sum, %difference {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %more = stablehlo.add %c, %both {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        stablehlo.return %next, %more : tensor<i32>, tensor<2x4xf32>
      }
      %y1 = stablehlo.add %y0, %l1#1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k2 = stablehlo.reshape %w2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d2 = stablehlo.dot_general %y1, %k2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e2_0 = stablehlo.tanh %d2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_1 = stablehlo.negate %e2_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_2 = stablehlo.exponential %e2_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_3 = stablehlo.abs %e2_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_4 = stablehlo.sqrt %e2_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_5 = stablehlo.cosine %e2_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_6 = stablehlo.sine %e2_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %l2:2 = stablehlo.while(%i = %zero, %c = %e2_6) : tensor<i32>, tensor<2x4xf32> attributes {alpa.shardings = [#alpa.sharding<[]>, #alpa.sharding<[R, R]>]}
      cond {
        %less = stablehlo.compare LT, %i, %once, SIGNED {alpa.shardings = [#alpa.sharding<[]>]} : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %less : tensor<i1>
      } do {
        %next = stablehlo.add %i, %once {alpa.shardings = [#alpa.sharding<[]>]} : tensor<i32>
        %sum = stablehlo.add %p, %q {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %difference = stablehlo.subtract %p, %q {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %both = stablehlo.multiply %sum, %difference {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        %more = stablehlo.add %c, %both {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
        stablehlo.return %next, %more : tensor<i32>, tensor<2x4xf32>
      }
      %y2 = stablehlo.add %y1, %l2#1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      return %y2 : tensor<2x4xf32>
    }
    func.func @update_0(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64})
        -> (tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 10 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 11 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 12 : i64}) {
      %n0 = stablehlo.negate %w0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n1 = stablehlo.negate %w1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n2 = stablehlo.negate %w2 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      return %n0, %n1, %n2 : tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>
    }
  }
}

// -----

// Converted weights that the update wants, too: the loop makes their stack.

// CHECK-LABEL: module @converted
// CHECK:         func.func @forward
// CHECK-SAME:    -> (tensor<2x4xf32> {{.*}}, tensor<3x4x4xbf16>
// CHECK:         stablehlo.while
// CHECK:           stablehlo.convert {{.*}} (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK-NOT:       stablehlo.convert
// CHECK:           stablehlo.dynamic_update_slice {{.*}} -> tensor<3x4x4xbf16>
// CHECK:         func.func @update_0
// CHECK-SAME:    tensor<3x4x4xbf16>
// CHECK-NOT:     stablehlo.concatenate
module @converted attributes {alpa.num_micro_batches = 1 : i64} {
  func.func private @main(tensor<1x4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state", alpa.name = "w[0]", alpa.piece = {argument = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 0 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.name = "w[1]", alpa.piece = {argument = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 1 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.name = "w[2]", alpa.piece = {argument = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 2 : i64},
    tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x", alpa.value = 3 : i64}) -> (tensor<1x4x4xf32> {alpa.name = "w[0]", alpa.piece = {result = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.value = 10 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[1]", alpa.piece = {result = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.value = 11 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[2]", alpa.piece = {result = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.value = 12 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
    func.func @forward(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %x: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 3 : i64})
        -> (tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}, tensor<4x4xbf16> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 30 : i64}, tensor<4x4xbf16> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 31 : i64}, tensor<4x4xbf16> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 32 : i64}) {
      %k0 = stablehlo.reshape %w0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %h0 = stablehlo.convert %k0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
      %d0 = stablehlo.dot_general %x, %h0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xbf16>) -> tensor<2x4xf32>
      %e0_0 = stablehlo.tanh %d0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_1 = stablehlo.negate %e0_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_2 = stablehlo.exponential %e0_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_3 = stablehlo.abs %e0_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_4 = stablehlo.sqrt %e0_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_5 = stablehlo.cosine %e0_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_6 = stablehlo.sine %e0_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y0 = stablehlo.add %x, %e0_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k1 = stablehlo.reshape %w1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %h1 = stablehlo.convert %k1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
      %d1 = stablehlo.dot_general %y0, %h1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xbf16>) -> tensor<2x4xf32>
      %e1_0 = stablehlo.tanh %d1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_1 = stablehlo.negate %e1_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_2 = stablehlo.exponential %e1_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_3 = stablehlo.abs %e1_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_4 = stablehlo.sqrt %e1_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_5 = stablehlo.cosine %e1_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_6 = stablehlo.sine %e1_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y1 = stablehlo.add %y0, %e1_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k2 = stablehlo.reshape %w2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %h2 = stablehlo.convert %k2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4x4xf32>) -> tensor<4x4xbf16>
      %d2 = stablehlo.dot_general %y1, %h2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xbf16>) -> tensor<2x4xf32>
      %e2_0 = stablehlo.tanh %d2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_1 = stablehlo.negate %e2_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_2 = stablehlo.exponential %e2_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_3 = stablehlo.abs %e2_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_4 = stablehlo.sqrt %e2_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_5 = stablehlo.cosine %e2_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_6 = stablehlo.sine %e2_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y2 = stablehlo.add %y1, %e2_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      return %y2, %h0, %h1, %h2 : tensor<2x4xf32>, tensor<4x4xbf16>, tensor<4x4xbf16>, tensor<4x4xbf16>
    }
    func.func @update_0(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %h0: tensor<4x4xbf16> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 30 : i64}, %h1: tensor<4x4xbf16> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 31 : i64}, %h2: tensor<4x4xbf16> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 32 : i64})
        -> (tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 10 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 11 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 12 : i64}) {
      %b0 = stablehlo.reshape %h0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<4x4xbf16>) -> tensor<1x4x4xbf16>
      %c0 = stablehlo.convert %b0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4x4xbf16>) -> tensor<1x4x4xf32>
      %b1 = stablehlo.reshape %h1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<4x4xbf16>) -> tensor<1x4x4xbf16>
      %c1 = stablehlo.convert %b1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4x4xbf16>) -> tensor<1x4x4xf32>
      %b2 = stablehlo.reshape %h2 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<4x4xbf16>) -> tensor<1x4x4xbf16>
      %c2 = stablehlo.convert %b2 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4x4xbf16>) -> tensor<1x4x4xf32>
      %n0 = stablehlo.subtract %w0, %c0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n1 = stablehlo.subtract %w1, %c1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n2 = stablehlo.subtract %w2, %c2 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      return %n0, %n1, %n2 : tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>
    }
  }
}

// -----

// A stack that all rows are a part of takes their stack whole.

// CHECK-LABEL: module @partly
// CHECK:         func.func @update_0(%[[Z:[^:]*]]: tensor<1x4x4xf32>
// CHECK:         %[[NEXT:.*]] = stablehlo.negate
// CHECK-NOT:     stablehlo.slice
// CHECK:         %[[ROWS:.*]] = stablehlo.reshape %[[NEXT]] {{.*}} -> tensor<3x4x4xf32>
// CHECK:         stablehlo.concatenate %[[Z]], %[[ROWS]], dim = 0 {{.*}} -> tensor<4x4x4xf32>
module @partly attributes {alpa.num_micro_batches = 1 : i64} {
  func.func private @main(tensor<1x4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state", alpa.name = "w[0]", alpa.piece = {argument = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 0 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.name = "w[1]", alpa.piece = {argument = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 1 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.name = "w[2]", alpa.piece = {argument = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 2 : i64},
    tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x", alpa.value = 3 : i64}) -> (tensor<1x4x4xf32> {alpa.name = "w[0]", alpa.piece = {result = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.value = 10 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[1]", alpa.piece = {result = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.value = 11 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[2]", alpa.piece = {result = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.value = 12 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
    func.func @forward(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %x: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 3 : i64})
        -> (tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}) {
      %k0 = stablehlo.reshape %w0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d0 = stablehlo.dot_general %x, %k0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e0_0 = stablehlo.tanh %d0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_1 = stablehlo.negate %e0_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_2 = stablehlo.exponential %e0_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_3 = stablehlo.abs %e0_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_4 = stablehlo.sqrt %e0_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_5 = stablehlo.cosine %e0_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_6 = stablehlo.sine %e0_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y0 = stablehlo.add %x, %e0_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k1 = stablehlo.reshape %w1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d1 = stablehlo.dot_general %y0, %k1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e1_0 = stablehlo.tanh %d1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_1 = stablehlo.negate %e1_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_2 = stablehlo.exponential %e1_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_3 = stablehlo.abs %e1_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_4 = stablehlo.sqrt %e1_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_5 = stablehlo.cosine %e1_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_6 = stablehlo.sine %e1_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y1 = stablehlo.add %y0, %e1_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k2 = stablehlo.reshape %w2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d2 = stablehlo.dot_general %y1, %k2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e2_0 = stablehlo.tanh %d2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_1 = stablehlo.negate %e2_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_2 = stablehlo.exponential %e2_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_3 = stablehlo.abs %e2_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_4 = stablehlo.sqrt %e2_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_5 = stablehlo.cosine %e2_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_6 = stablehlo.sine %e2_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y2 = stablehlo.add %y1, %e2_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      return %y2 : tensor<2x4xf32>
    }
    func.func @update_0(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %z: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 40 : i64})
        -> (tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 10 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 11 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 12 : i64}, tensor<4x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 41 : i64}) {
      %n0 = stablehlo.negate %w0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n1 = stablehlo.negate %w1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n2 = stablehlo.negate %w2 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %all = stablehlo.concatenate %z, %n0, %n1, %n2, dim = 0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> tensor<4x4x4xf32>
      return %n0, %n1, %n2, %all : tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<4x4x4xf32>
    }
  }
}

// -----

// The loop makes most rows of a stack, the first one is put in behind it.

// CHECK-LABEL: module @around
// CHECK:         func.func @forward(%[[X:[^:]*]]: tensor<2x4xf32>
// CHECK:         %[[LOOP:.*]]:{{.*}} = stablehlo.while({{.*}} tensor<4x2x4xf32>
// CHECK:           stablehlo.reshape {{.*}} -> tensor<1x2x4xf32>
// CHECK:           %[[ONE:.*]] = stablehlo.constant {{.*}} dense<1>
// CHECK:           %[[PLACE:.*]] = stablehlo.add %{{.*}}, %[[ONE]]
// CHECK:           stablehlo.dynamic_update_slice %{{.*}}, %{{.*}}, %[[PLACE]], {{.*}} -> tensor<4x2x4xf32>
// CHECK:         %[[ROW:.*]] = stablehlo.reshape %[[X]] {{.*}} -> tensor<1x2x4xf32>
// CHECK:         stablehlo.dynamic_update_slice %[[LOOP]]#{{.*}}, %[[ROW]], {{.*}} -> tensor<4x2x4xf32>
// CHECK-NOT:     stablehlo.concatenate {{.*}} -> tensor<4x2x4xf32>
// CHECK:         func.func @update_0
module @around attributes {alpa.num_micro_batches = 1 : i64} {
  func.func private @main(tensor<1x4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state", alpa.name = "w[0]", alpa.piece = {argument = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 0 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.name = "w[1]", alpa.piece = {argument = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 1 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.name = "w[2]", alpa.piece = {argument = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 2 : i64},
    tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x", alpa.value = 3 : i64}) -> (tensor<1x4x4xf32> {alpa.name = "w[0]", alpa.piece = {result = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.value = 10 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[1]", alpa.piece = {result = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.value = 11 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[2]", alpa.piece = {result = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.value = 12 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
    func.func @forward(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %x: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 3 : i64})
        -> (tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}, tensor<4x2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 21 : i64}) {
      %k0 = stablehlo.reshape %w0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d0 = stablehlo.dot_general %x, %k0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e0_0 = stablehlo.tanh %d0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_1 = stablehlo.negate %e0_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_2 = stablehlo.exponential %e0_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_3 = stablehlo.abs %e0_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_4 = stablehlo.sqrt %e0_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_5 = stablehlo.cosine %e0_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_6 = stablehlo.sine %e0_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y0 = stablehlo.add %x, %e0_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k1 = stablehlo.reshape %w1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d1 = stablehlo.dot_general %y0, %k1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e1_0 = stablehlo.tanh %d1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_1 = stablehlo.negate %e1_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_2 = stablehlo.exponential %e1_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_3 = stablehlo.abs %e1_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_4 = stablehlo.sqrt %e1_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_5 = stablehlo.cosine %e1_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_6 = stablehlo.sine %e1_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y1 = stablehlo.add %y0, %e1_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k2 = stablehlo.reshape %w2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d2 = stablehlo.dot_general %y1, %k2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e2_0 = stablehlo.tanh %d2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_1 = stablehlo.negate %e2_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_2 = stablehlo.exponential %e2_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_3 = stablehlo.abs %e2_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_4 = stablehlo.sqrt %e2_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_5 = stablehlo.cosine %e2_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_6 = stablehlo.sine %e2_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y2 = stablehlo.add %y1, %e2_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %r = stablehlo.reshape %x {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %r0 = stablehlo.reshape %y0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %r1 = stablehlo.reshape %y1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %r2 = stablehlo.reshape %y2 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %all = stablehlo.concatenate %r, %r0, %r1, %r2, dim = 0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>) -> tensor<4x2x4xf32>
      return %y2, %all : tensor<2x4xf32>, tensor<4x2x4xf32>
    }
    func.func @update_0(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %z: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 40 : i64})
        -> (tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 10 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 11 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 12 : i64}, tensor<4x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 41 : i64}) {
      %n0 = stablehlo.negate %w0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n1 = stablehlo.negate %w1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n2 = stablehlo.negate %w2 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %all = stablehlo.concatenate %z, %n0, %n1, %n2, dim = 0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> tensor<4x4x4xf32>
      return %n0, %n1, %n2, %all : tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<4x4x4xf32>
    }
  }
}

// -----

// A stack of what each layer finds made by the one before, which that one does not compute with:
// it is carried for the stack alone.

// CHECK-LABEL: module @behind
// CHECK:         %[[FIRST:.*]] = stablehlo.sine %{{.*}}
// CHECK:         stablehlo.while({{.*}}%[[CARRIED:[^ ]*]] = %[[FIRST]],
// CHECK:           %[[NEXT:.*]] = stablehlo.abs
// CHECK:           %[[ROW:.*]] = stablehlo.reshape %[[CARRIED]]
// CHECK:           stablehlo.dynamic_update_slice %{{.*}}, %[[ROW]], {{.*}} -> tensor<3x2x4xf32>
// CHECK:           stablehlo.return {{.*}}%[[NEXT]]
// CHECK-NOT:     stablehlo.concatenate {{.*}} -> tensor<3x2x4xf32>
// CHECK:         return
module @behind attributes {alpa.num_micro_batches = 1 : i64} {
  func.func private @main(tensor<1x4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state", alpa.name = "w[0]", alpa.piece = {argument = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 0 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.name = "w[1]", alpa.piece = {argument = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 1 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.name = "w[2]", alpa.piece = {argument = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 2 : i64},
    tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x", alpa.value = 3 : i64}) -> (tensor<1x4x4xf32> {alpa.name = "w[0]", alpa.piece = {result = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.value = 10 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[1]", alpa.piece = {result = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.value = 11 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[2]", alpa.piece = {result = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.value = 12 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
    func.func @forward(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %x: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 3 : i64})
        -> (tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}, tensor<3x2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 21 : i64}) {
      %sine = stablehlo.sine %x {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k0 = stablehlo.reshape %w0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d0 = stablehlo.dot_general %x, %k0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e0_0 = stablehlo.tanh %d0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_1 = stablehlo.negate %e0_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_2 = stablehlo.exponential %e0_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_3 = stablehlo.abs %e0_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_4 = stablehlo.sqrt %e0_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_5 = stablehlo.cosine %e0_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_6 = stablehlo.sine %e0_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y0 = stablehlo.add %x, %e0_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k1 = stablehlo.reshape %w1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d1 = stablehlo.dot_general %y0, %k1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e1_0 = stablehlo.tanh %d1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_1 = stablehlo.negate %e1_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_2 = stablehlo.exponential %e1_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_3 = stablehlo.abs %e1_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_4 = stablehlo.sqrt %e1_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_5 = stablehlo.cosine %e1_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_6 = stablehlo.sine %e1_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y1 = stablehlo.add %y0, %e1_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k2 = stablehlo.reshape %w2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d2 = stablehlo.dot_general %y1, %k2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e2_0 = stablehlo.tanh %d2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_1 = stablehlo.negate %e2_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_2 = stablehlo.exponential %e2_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_3 = stablehlo.abs %e2_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_4 = stablehlo.sqrt %e2_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_5 = stablehlo.cosine %e2_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_6 = stablehlo.sine %e2_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y2 = stablehlo.add %y1, %e2_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %r = stablehlo.reshape %sine {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %r0 = stablehlo.reshape %e0_3 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %r1 = stablehlo.reshape %e1_3 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %last = stablehlo.add %y2, %e2_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %all = stablehlo.concatenate %r, %r0, %r1, dim = 0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>) -> tensor<3x2x4xf32>
      return %last, %all : tensor<2x4xf32>, tensor<3x2x4xf32>
    }
    func.func @update_0(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %z: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 40 : i64})
        -> (tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 10 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 11 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 12 : i64}, tensor<4x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 41 : i64}) {
      %n0 = stablehlo.negate %w0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n1 = stablehlo.negate %w1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n2 = stablehlo.negate %w2 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %all = stablehlo.concatenate %z, %n0, %n1, %n2, dim = 0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> tensor<4x4x4xf32>
      return %n0, %n1, %n2, %all : tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<4x4x4xf32>
    }
  }
}

// -----

// Rows that a reshape inside the loop makes, which has no other reader than their stack.

// CHECK-LABEL: module @own_row
// CHECK:         func.func @forward
// CHECK:         %[[LOOP:.*]]:{{.*}} = stablehlo.while({{.*}} tensor<3x2x4xf32>
// CHECK:           %[[ROW:.*]] = stablehlo.reshape {{.*}} -> tensor<1x2x4xf32>
// CHECK:           stablehlo.dynamic_update_slice %{{.*}}, %[[ROW]], {{.*}} -> tensor<3x2x4xf32>
// CHECK-NOT:     stablehlo.concatenate
// CHECK:         return %{{.*}}, %[[LOOP]]#
module @own_row attributes {alpa.num_micro_batches = 1 : i64} {
  func.func private @main(tensor<1x4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state", alpa.name = "w[0]", alpa.piece = {argument = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 0 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.name = "w[1]", alpa.piece = {argument = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 1 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.name = "w[2]", alpa.piece = {argument = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 2 : i64},
    tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x", alpa.value = 3 : i64}) -> (tensor<1x4x4xf32> {alpa.name = "w[0]", alpa.piece = {result = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.value = 10 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[1]", alpa.piece = {result = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.value = 11 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[2]", alpa.piece = {result = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.value = 12 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
    func.func @forward(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %x: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 3 : i64})
        -> (tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}, tensor<3x2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 21 : i64}) {
      %k0 = stablehlo.reshape %w0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d0 = stablehlo.dot_general %x, %k0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e0_0 = stablehlo.tanh %d0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_1 = stablehlo.negate %e0_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_2 = stablehlo.exponential %e0_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_3 = stablehlo.abs %e0_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_4 = stablehlo.sqrt %e0_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_5 = stablehlo.cosine %e0_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_6 = stablehlo.sine %e0_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y0 = stablehlo.add %x, %e0_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %r0 = stablehlo.reshape %y0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %k1 = stablehlo.reshape %w1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d1 = stablehlo.dot_general %y0, %k1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e1_0 = stablehlo.tanh %d1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_1 = stablehlo.negate %e1_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_2 = stablehlo.exponential %e1_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_3 = stablehlo.abs %e1_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_4 = stablehlo.sqrt %e1_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_5 = stablehlo.cosine %e1_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_6 = stablehlo.sine %e1_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y1 = stablehlo.add %y0, %e1_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %r1 = stablehlo.reshape %y1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %k2 = stablehlo.reshape %w2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d2 = stablehlo.dot_general %y1, %k2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e2_0 = stablehlo.tanh %d2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_1 = stablehlo.negate %e2_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_2 = stablehlo.exponential %e2_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_3 = stablehlo.abs %e2_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_4 = stablehlo.sqrt %e2_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_5 = stablehlo.cosine %e2_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_6 = stablehlo.sine %e2_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y2 = stablehlo.add %y1, %e2_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %r2 = stablehlo.reshape %y2 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<2x4xf32>) -> tensor<1x2x4xf32>
      %all = stablehlo.concatenate %r0, %r1, %r2, dim = 0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>) -> tensor<3x2x4xf32>
      return %y2, %all : tensor<2x4xf32>, tensor<3x2x4xf32>
    }
    func.func @update_0(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64})
        -> (tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 10 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 11 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 12 : i64}) {
      %n0 = stablehlo.negate %w0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n1 = stablehlo.negate %w1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n2 = stablehlo.negate %w2 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      return %n0, %n1, %n2 : tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>
    }
  }
}

// -----

// What differs between layers are rows of an array that the function makes (keys), read inside
// each layer, and constants: ops on a number of the layer, and arrays of one element.

// CHECK-LABEL: module @rows_and_constants
// CHECK:         func.func @forward
// CHECK-DAG:     %[[KEYS:.*]] = stablehlo.concatenate {{.*}} -> tensor<4x2xf32>
// CHECK-DAG:     %[[NUMBERS:.*]] = stablehlo.constant {{.*}} dense<[1, 2, 4]> : tensor<3xi32>
// CHECK-DAG:     %[[SPLATS:.*]] = stablehlo.constant {{.*}} dense<[5.000000e-01, 2.500000e-01, 1.250000e-01]> : tensor<3xf32>
// CHECK-DAG:     %[[SMALL:.*]] = stablehlo.constant {{.*}} dense<{{\[\[}}1.000000e+00, 2.000000e+00, 3.000000e+00, 4.000000e+00], {{.*}} : tensor<3x4xf32>
// CHECK:         stablehlo.while({{.*}} = %[[KEYS]]
// CHECK-COUNT-1:   stablehlo.dot_general
// CHECK-NOT:       stablehlo.dot_general
// CHECK:           %[[AT:.*]] = stablehlo.add %{{.*}}, %{{.*}} {{.*}} tensor<i32>
// CHECK:           stablehlo.dynamic_slice %{{.*}}, %[[AT]], {{.*}}, sizes = [1, 2]
// CHECK:         return
module @rows_and_constants attributes {alpa.num_micro_batches = 1 : i64} {
  func.func private @main(tensor<1x4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state", alpa.name = "w[0]", alpa.piece = {argument = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 0 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.name = "w[1]", alpa.piece = {argument = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 1 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.name = "w[2]", alpa.piece = {argument = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 2 : i64},
    tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x", alpa.value = 3 : i64}) -> (tensor<1x4x4xf32> {alpa.name = "w[0]", alpa.piece = {result = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.value = 10 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[1]", alpa.piece = {result = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.value = 11 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[2]", alpa.piece = {result = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.value = 12 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
    func.func @forward(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %x: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 3 : i64})
        -> (tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}) {
      %half = stablehlo.slice %x [0:2, 0:2] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<2x2xf32>
      %more = stablehlo.tanh %half {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x2xf32>
      %keys = stablehlo.concatenate %half, %more, dim = 0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<4x2xf32>
      %zero0 = stablehlo.constant {alpa.shardings = [#alpa.sharding<[]>]} dense<0.0> : tensor<f32>
      %k0 = stablehlo.reshape %w0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d0 = stablehlo.dot_general %x, %k0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %key0 = stablehlo.slice %keys [1:2, 0:2] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4x2xf32>) -> tensor<1x2xf32>
      %a0 = stablehlo.reduce(%key0 init: %zero0) applies stablehlo.add across dimensions = [0, 1] {alpa.shardings = [#alpa.sharding<[]>]} : (tensor<1x2xf32>, tensor<f32>) -> tensor<f32>
      %b0 = stablehlo.broadcast_in_dim %a0, dims = [] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<f32>) -> tensor<2x4xf32>
      %c0 = stablehlo.multiply %d0, %b0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %number0 = stablehlo.constant {alpa.shardings = [#alpa.sharding<[]>]} dense<1> : tensor<i32>
      %real0 = stablehlo.convert %number0 {alpa.shardings = [#alpa.sharding<[]>]} : (tensor<i32>) -> tensor<f32>
      %wide0 = stablehlo.broadcast_in_dim %real0, dims = [] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<f32>) -> tensor<2x4xf32>
      %e0 = stablehlo.add %c0, %wide0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %rate0 = stablehlo.constant {alpa.shardings = [#alpa.sharding<[R, R]>]} dense<5.000000e-01> : tensor<2x4xf32>
      %f0 = stablehlo.multiply %e0, %rate0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %small0 = stablehlo.constant {alpa.shardings = [#alpa.sharding<[R]>]} dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
      %rows0 = stablehlo.broadcast_in_dim %small0, dims = [1] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4xf32>) -> tensor<2x4xf32>
      %g0 = stablehlo.subtract %f0, %rows0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y0 = stablehlo.add %x, %g0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %zero1 = stablehlo.constant {alpa.shardings = [#alpa.sharding<[]>]} dense<0.0> : tensor<f32>
      %k1 = stablehlo.reshape %w1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d1 = stablehlo.dot_general %y0, %k1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %key1 = stablehlo.slice %keys [2:3, 0:2] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4x2xf32>) -> tensor<1x2xf32>
      %a1 = stablehlo.reduce(%key1 init: %zero1) applies stablehlo.add across dimensions = [0, 1] {alpa.shardings = [#alpa.sharding<[]>]} : (tensor<1x2xf32>, tensor<f32>) -> tensor<f32>
      %b1 = stablehlo.broadcast_in_dim %a1, dims = [] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<f32>) -> tensor<2x4xf32>
      %c1 = stablehlo.multiply %d1, %b1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %number1 = stablehlo.constant {alpa.shardings = [#alpa.sharding<[]>]} dense<2> : tensor<i32>
      %real1 = stablehlo.convert %number1 {alpa.shardings = [#alpa.sharding<[]>]} : (tensor<i32>) -> tensor<f32>
      %wide1 = stablehlo.broadcast_in_dim %real1, dims = [] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<f32>) -> tensor<2x4xf32>
      %e1 = stablehlo.add %c1, %wide1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %rate1 = stablehlo.constant {alpa.shardings = [#alpa.sharding<[R, R]>]} dense<2.500000e-01> : tensor<2x4xf32>
      %f1 = stablehlo.multiply %e1, %rate1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %small1 = stablehlo.constant {alpa.shardings = [#alpa.sharding<[R]>]} dense<[5.0, 6.0, 7.0, 8.0]> : tensor<4xf32>
      %rows1 = stablehlo.broadcast_in_dim %small1, dims = [1] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4xf32>) -> tensor<2x4xf32>
      %g1 = stablehlo.subtract %f1, %rows1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y1 = stablehlo.add %y0, %g1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %zero2 = stablehlo.constant {alpa.shardings = [#alpa.sharding<[]>]} dense<0.0> : tensor<f32>
      %k2 = stablehlo.reshape %w2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d2 = stablehlo.dot_general %y1, %k2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %key2 = stablehlo.slice %keys [3:4, 0:2] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4x2xf32>) -> tensor<1x2xf32>
      %a2 = stablehlo.reduce(%key2 init: %zero2) applies stablehlo.add across dimensions = [0, 1] {alpa.shardings = [#alpa.sharding<[]>]} : (tensor<1x2xf32>, tensor<f32>) -> tensor<f32>
      %b2 = stablehlo.broadcast_in_dim %a2, dims = [] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<f32>) -> tensor<2x4xf32>
      %c2 = stablehlo.multiply %d2, %b2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %number2 = stablehlo.constant {alpa.shardings = [#alpa.sharding<[]>]} dense<4> : tensor<i32>
      %real2 = stablehlo.convert %number2 {alpa.shardings = [#alpa.sharding<[]>]} : (tensor<i32>) -> tensor<f32>
      %wide2 = stablehlo.broadcast_in_dim %real2, dims = [] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<f32>) -> tensor<2x4xf32>
      %e2 = stablehlo.add %c2, %wide2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %rate2 = stablehlo.constant {alpa.shardings = [#alpa.sharding<[R, R]>]} dense<1.250000e-01> : tensor<2x4xf32>
      %f2 = stablehlo.multiply %e2, %rate2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %small2 = stablehlo.constant {alpa.shardings = [#alpa.sharding<[R]>]} dense<[9.0, 10.0, 11.0, 12.0]> : tensor<4xf32>
      %rows2 = stablehlo.broadcast_in_dim %small2, dims = [1] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4xf32>) -> tensor<2x4xf32>
      %g2 = stablehlo.subtract %f2, %rows2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y2 = stablehlo.add %y1, %g2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      return %y2 : tensor<2x4xf32>
    }
    func.func @update_0(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64})
        -> (tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 10 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 11 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 12 : i64}) {
      %n0 = stablehlo.negate %w0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n1 = stablehlo.negate %w1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n2 = stablehlo.negate %w2 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      return %n0, %n1, %n2 : tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>
    }
  }
}

// -----

// Weights that are arrays of their own become rows of one argument, if that is asked for; what
// the caller calls them stays known.

// CHECK-LABEL: module @arrays
// STACKS-NOT:    alpa.rows
// STACKS-NOT:    stablehlo.while
// WRITTEN:       func.func private @main(tensor<3x4x4xf32> {{.*}}alpa.name = "w.0 .. w.2", alpa.rows = {arguments = array<i64: 0, 1, 2>, names = ["w.0", "w.1", "w.2"], shape = array<i64: 4, 4>}
// WRITTEN-SAME:    -> (tensor<3x4x4xf32> {{.*}}alpa.rows = {names = ["w.0", "w.1", "w.2"], results = array<i64: 0, 1, 2>, shape = array<i64: 4, 4>}
// WRITTEN:       func.func @forward
// WRITTEN:         stablehlo.while
// WRITTEN:           stablehlo.dynamic_slice {{.*}} sizes = [1, 4, 4]
// WRITTEN:           stablehlo.dot_general
// WRITTEN-NOT:       stablehlo.dot_general
// WRITTEN:       func.func @update_0
// WRITTEN-COUNT-1: stablehlo.subtract {{.*}} tensor<3x4x4xf32>
// WRITTEN-NOT:     stablehlo.subtract
// WRITTEN:         return
module @arrays attributes {alpa.num_micro_batches = 1 : i64} {
  func.func private @main(tensor<4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state", alpa.name = "w.0", alpa.sharding = #alpa.sharding<[R, R]>, alpa.stage = 0 : i64, alpa.value = 0 : i64},
    tensor<4x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.name = "w.1", alpa.sharding = #alpa.sharding<[R, R]>, alpa.stage = 0 : i64, alpa.value = 1 : i64},
    tensor<4x4xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.name = "w.2", alpa.sharding = #alpa.sharding<[R, R]>, alpa.stage = 0 : i64, alpa.value = 2 : i64},
    tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x", alpa.value = 3 : i64}) -> (tensor<4x4xf32> {alpa.name = "w.0", alpa.value = 10 : i64},
    tensor<4x4xf32> {alpa.name = "w.1", alpa.value = 11 : i64},
    tensor<4x4xf32> {alpa.name = "w.2", alpa.value = 12 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
    func.func @forward(%w0: tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 0 : i64}, %w1: tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 1 : i64}, %w2: tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 2 : i64}, %x: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 3 : i64})
        -> (tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}, tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 21 : i64}, tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 22 : i64}) {
      %d0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e0_0 = stablehlo.tanh %d0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_1 = stablehlo.negate %e0_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_2 = stablehlo.exponential %e0_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_3 = stablehlo.abs %e0_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_4 = stablehlo.sqrt %e0_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_5 = stablehlo.cosine %e0_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_6 = stablehlo.sine %e0_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y0 = stablehlo.add %x, %e0_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %d1 = stablehlo.dot_general %y0, %w1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e1_0 = stablehlo.tanh %d1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_1 = stablehlo.negate %e1_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_2 = stablehlo.exponential %e1_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_3 = stablehlo.abs %e1_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_4 = stablehlo.sqrt %e1_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_5 = stablehlo.cosine %e1_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_6 = stablehlo.sine %e1_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y1 = stablehlo.add %y0, %e1_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %d2 = stablehlo.dot_general %y1, %w2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e2_0 = stablehlo.tanh %d2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_1 = stablehlo.negate %e2_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_2 = stablehlo.exponential %e2_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_3 = stablehlo.abs %e2_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_4 = stablehlo.sqrt %e2_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_5 = stablehlo.cosine %e2_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_6 = stablehlo.sine %e2_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y2 = stablehlo.add %y1, %e2_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      return %y0, %y1, %y2 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
    }
    func.func @update_0(%w0: tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 0 : i64}, %w1: tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 1 : i64}, %w2: tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 2 : i64}, %g0: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}, %g1: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 21 : i64}, %g2: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 22 : i64})
        -> (tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 10 : i64}, tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 11 : i64}, tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 12 : i64}) {
      %s0 = stablehlo.slice %g0 [0:1, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b0 = stablehlo.broadcast_in_dim %s0, dims = [0, 1] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4xf32>) -> tensor<4x4xf32>
      %s1 = stablehlo.slice %g1 [0:1, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b1 = stablehlo.broadcast_in_dim %s1, dims = [0, 1] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4xf32>) -> tensor<4x4xf32>
      %s2 = stablehlo.slice %g2 [0:1, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b2 = stablehlo.broadcast_in_dim %s2, dims = [0, 1] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4xf32>) -> tensor<4x4xf32>
      %n0 = stablehlo.subtract %w0, %b0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<4x4xf32>
      %n1 = stablehlo.subtract %w1, %b1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<4x4xf32>
      %n2 = stablehlo.subtract %w2, %b2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<4x4xf32>
      return %n0, %n1, %n2 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
    }
  }
}

// -----

// The caller gets the last layer's weights twice: they stay an array of their own.

// CHECK-LABEL: module @returned_twice
// CHECK-SAME:  {
// CHECK-NOT:     alpa.rows
// CHECK-NOT:     stablehlo.while
module @returned_twice attributes {alpa.num_micro_batches = 1 : i64} {
  func.func private @main(tensor<4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state", alpa.name = "w.0", alpa.sharding = #alpa.sharding<[R, R]>, alpa.stage = 0 : i64, alpa.value = 0 : i64},
    tensor<4x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.name = "w.1", alpa.sharding = #alpa.sharding<[R, R]>, alpa.stage = 0 : i64, alpa.value = 1 : i64},
    tensor<4x4xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.name = "w.2", alpa.sharding = #alpa.sharding<[R, R]>, alpa.stage = 0 : i64, alpa.value = 2 : i64},
    tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x", alpa.value = 3 : i64}) -> (tensor<4x4xf32> {alpa.name = "w.0", alpa.value = 10 : i64},
    tensor<4x4xf32> {alpa.name = "w.1", alpa.value = 11 : i64},
    tensor<4x4xf32> {alpa.name = "w.2", alpa.value = 12 : i64}, tensor<4x4xf32> {alpa.name = "metric", alpa.value = 12 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
    func.func @forward(%w0: tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 0 : i64}, %w1: tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 1 : i64}, %w2: tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 2 : i64}, %x: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 3 : i64})
        -> (tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}, tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 21 : i64}, tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 22 : i64}) {
      %d0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e0_0 = stablehlo.tanh %d0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_1 = stablehlo.negate %e0_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_2 = stablehlo.exponential %e0_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_3 = stablehlo.abs %e0_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_4 = stablehlo.sqrt %e0_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_5 = stablehlo.cosine %e0_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_6 = stablehlo.sine %e0_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y0 = stablehlo.add %x, %e0_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %d1 = stablehlo.dot_general %y0, %w1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e1_0 = stablehlo.tanh %d1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_1 = stablehlo.negate %e1_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_2 = stablehlo.exponential %e1_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_3 = stablehlo.abs %e1_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_4 = stablehlo.sqrt %e1_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_5 = stablehlo.cosine %e1_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_6 = stablehlo.sine %e1_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y1 = stablehlo.add %y0, %e1_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %d2 = stablehlo.dot_general %y1, %w2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e2_0 = stablehlo.tanh %d2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_1 = stablehlo.negate %e2_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_2 = stablehlo.exponential %e2_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_3 = stablehlo.abs %e2_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_4 = stablehlo.sqrt %e2_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_5 = stablehlo.cosine %e2_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_6 = stablehlo.sine %e2_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y2 = stablehlo.add %y1, %e2_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      return %y0, %y1, %y2 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
    }
    func.func @update_0(%w0: tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 0 : i64}, %w1: tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 1 : i64}, %w2: tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 2 : i64}, %g0: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}, %g1: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 21 : i64}, %g2: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 22 : i64})
        -> (tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 10 : i64}, tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 11 : i64}, tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 12 : i64}) {
      %s0 = stablehlo.slice %g0 [0:1, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b0 = stablehlo.broadcast_in_dim %s0, dims = [0, 1] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4xf32>) -> tensor<4x4xf32>
      %s1 = stablehlo.slice %g1 [0:1, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b1 = stablehlo.broadcast_in_dim %s1, dims = [0, 1] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4xf32>) -> tensor<4x4xf32>
      %s2 = stablehlo.slice %g2 [0:1, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b2 = stablehlo.broadcast_in_dim %s2, dims = [0, 1] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4xf32>) -> tensor<4x4xf32>
      %n0 = stablehlo.subtract %w0, %b0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<4x4xf32>
      %n1 = stablehlo.subtract %w1, %b1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<4x4xf32>
      %n2 = stablehlo.subtract %w2, %b2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<4x4xf32>
      return %n0, %n1, %n2 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
    }
  }
}

// -----

// Each layer's gradient is put together of two parts: the update does it for all rows at once.

// CHECK-LABEL: module @parted
// CHECK:         func.func @forward
// CHECK:         stablehlo.while
// CHECK:         func.func @update_0
// CHECK:         stablehlo.concatenate {{.*}}, dim = 2 {{.*}} -> tensor<3x1x4x4xf32>
// CHECK-NOT:     stablehlo.concatenate
// CHECK:         return
module @parted attributes {alpa.num_micro_batches = 1 : i64} {
  func.func private @main(tensor<1x4x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state", alpa.name = "w[0]", alpa.piece = {argument = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 0 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.name = "w[1]", alpa.piece = {argument = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 1 : i64},
    tensor<1x4x4xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.name = "w[2]", alpa.piece = {argument = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.stage = 0 : i64, alpa.value = 2 : i64},
    tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x", alpa.value = 3 : i64}) -> (tensor<1x4x4xf32> {alpa.name = "w[0]", alpa.piece = {result = 0 : i64, offset = 0 : i64, size = 1 : i64}, alpa.value = 10 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[1]", alpa.piece = {result = 0 : i64, offset = 1 : i64, size = 1 : i64}, alpa.value = 11 : i64},
    tensor<1x4x4xf32> {alpa.name = "w[2]", alpa.piece = {result = 0 : i64, offset = 2 : i64, size = 1 : i64}, alpa.value = 12 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
    func.func @forward(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %x: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 3 : i64})
        -> (tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}, tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 21 : i64}, tensor<2x4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 22 : i64}) {
      %k0 = stablehlo.reshape %w0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d0 = stablehlo.dot_general %x, %k0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e0_0 = stablehlo.tanh %d0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_1 = stablehlo.negate %e0_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_2 = stablehlo.exponential %e0_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_3 = stablehlo.abs %e0_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_4 = stablehlo.sqrt %e0_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_5 = stablehlo.cosine %e0_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e0_6 = stablehlo.sine %e0_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y0 = stablehlo.add %x, %e0_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k1 = stablehlo.reshape %w1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d1 = stablehlo.dot_general %y0, %k1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e1_0 = stablehlo.tanh %d1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_1 = stablehlo.negate %e1_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_2 = stablehlo.exponential %e1_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_3 = stablehlo.abs %e1_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_4 = stablehlo.sqrt %e1_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_5 = stablehlo.cosine %e1_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e1_6 = stablehlo.sine %e1_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y1 = stablehlo.add %y0, %e1_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %k2 = stablehlo.reshape %w2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %d2 = stablehlo.dot_general %y1, %k2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %e2_0 = stablehlo.tanh %d2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_1 = stablehlo.negate %e2_0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_2 = stablehlo.exponential %e2_1 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_3 = stablehlo.abs %e2_2 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_4 = stablehlo.sqrt %e2_3 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_5 = stablehlo.cosine %e2_4 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %e2_6 = stablehlo.sine %e2_5 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      %y2 = stablehlo.add %y1, %e2_6 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<2x4xf32>
      return %y0, %y1, %y2 : tensor<2x4xf32>, tensor<2x4xf32>, tensor<2x4xf32>
    }
    func.func @update_0(%w0: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 0 : i64}, %w1: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 1 : i64}, %w2: tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 2 : i64}, %g0: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 20 : i64}, %g1: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 21 : i64}, %g2: tensor<2x4xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 22 : i64})
        -> (tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 10 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 11 : i64}, tensor<1x4x4xf32> {alpa.sharding = #alpa.sharding<[R, R, R]>, alpa.value = 12 : i64}) {
      %s0_0 = stablehlo.slice %g0 [0:1, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b0_0 = stablehlo.broadcast_in_dim %s0_0, dims = [0, 2] {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4xf32>) -> tensor<1x2x4xf32>
      %s0_1 = stablehlo.slice %g0 [1:2, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b0_1 = stablehlo.broadcast_in_dim %s0_1, dims = [0, 2] {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4xf32>) -> tensor<1x2x4xf32>
      %b0 = stablehlo.concatenate %b0_0, %b0_1, dim = 1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x2x4xf32>, tensor<1x2x4xf32>) -> tensor<1x4x4xf32>
      %s1_0 = stablehlo.slice %g1 [0:1, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b1_0 = stablehlo.broadcast_in_dim %s1_0, dims = [0, 2] {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4xf32>) -> tensor<1x2x4xf32>
      %s1_1 = stablehlo.slice %g1 [1:2, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b1_1 = stablehlo.broadcast_in_dim %s1_1, dims = [0, 2] {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4xf32>) -> tensor<1x2x4xf32>
      %b1 = stablehlo.concatenate %b1_0, %b1_1, dim = 1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x2x4xf32>, tensor<1x2x4xf32>) -> tensor<1x4x4xf32>
      %s2_0 = stablehlo.slice %g2 [0:1, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b2_0 = stablehlo.broadcast_in_dim %s2_0, dims = [0, 2] {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4xf32>) -> tensor<1x2x4xf32>
      %s2_1 = stablehlo.slice %g2 [1:2, 0:4] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<2x4xf32>) -> tensor<1x4xf32>
      %b2_1 = stablehlo.broadcast_in_dim %s2_1, dims = [0, 2] {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x4xf32>) -> tensor<1x2x4xf32>
      %b2 = stablehlo.concatenate %b2_0, %b2_1, dim = 1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : (tensor<1x2x4xf32>, tensor<1x2x4xf32>) -> tensor<1x4x4xf32>
      %n0 = stablehlo.subtract %w0, %b0 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n1 = stablehlo.subtract %w1, %b1 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      %n2 = stablehlo.subtract %w2, %b2 {alpa.shardings = [#alpa.sharding<[R, R, R]>]} : tensor<1x4x4xf32>
      return %n0, %n1, %n2 : tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<1x4x4xf32>
    }
  }
}
