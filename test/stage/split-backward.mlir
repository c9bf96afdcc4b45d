// The gradient that the stage before waits for comes first; the weight's gradients take what it leaves.
// RUN: alpa-opt %s -alpa-split-backward=always=true -split-input-file -verify-diagnostics | FileCheck %s
// RUN: alpa-opt %s -alpa-split-backward -split-input-file | FileCheck %s --check-prefix=KEPT
// Each part is a whole function with shardings of its own.
// RUN: alpa-opt %s -alpa-split-backward=always=true -alpa-insert-reshards -alpa-optimize-collectives \
// RUN:   -alpa-verify-sharding -split-input-file -verify-diagnostics -o /dev/null

// KEPT-COUNT-7: func.func @backward(
// KEPT-NOT: @backward_input

// Stage 0 sends nothing back. In stage 1 the gradient of the activation  is handed over
// where both parts need it; the mask, a constant and a broadcast are made again.

// CHECK-LABEL: module @stage_0
// CHECK: func.func @backward(
// CHECK-LABEL: module @stage_1
// CHECK-NOT: func.func @backward(
// CHECK: func.func @backward_input(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<8x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = 1 : i64},
// CHECK-SAME: %[[T:[a-z0-9]+]]: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = 11 : i64},
// CHECK-SAME: %[[S:[a-z0-9]+]]: tensor<4x1xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 12 : i64})
// CHECK-SAME: -> (tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 13 : i64},
// CHECK-SAME: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = [[NEW:[0-9]+]] : i64})
// CHECK: %[[DH:.*]] = stablehlo.subtract
// CHECK: %[[DX:.*]] = stablehlo.dot_general %[[DH]], %[[W]]
// CHECK: return %[[DX]], %[[DH]] :
// CHECK: func.func @backward_weight(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 10 : i64},
// CHECK-SAME: %[[S:[a-z0-9]+]]: tensor<4x1xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 12 : i64},
// CHECK-SAME: %[[DH:[a-z0-9]+]]: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = [[NEW]] : i64})
// CHECK-SAME: -> (tensor<8x8xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = 14 : i64},
// CHECK-SAME: tensor<8xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R]>, alpa.value = 15 : i64})
// CHECK-DAG: %[[DW:.*]] = stablehlo.dot_general %[[X]], %[[DH]]
// CHECK-DAG: %[[WIDE:.*]] = stablehlo.broadcast_in_dim %[[S]]
// CHECK-DAG: %[[DB:.*]] = stablehlo.reduce(%[[WIDE]]
// CHECK: return %[[DW]], %[[DB]] :
module attributes {alpa.num_micro_batches = 2 : i64} {
  func.func private @main(tensor<8x8xf32> {alpa.kind = "state", alpa.stage = 0 : i64, alpa.value = 0 : i64},
                          tensor<8x8xf32> {alpa.kind = "state", alpa.stage = 1 : i64, alpa.value = 1 : i64},
                          tensor<4x8xf32> {alpa.kind = "batch", alpa.value = 2 : i64})
    -> (tensor<8x8xf32> {alpa.value = 0 : i64}, tensor<8x8xf32> {alpa.value = 1 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
    func.func @forward(%w: tensor<8x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = 0 : i64},
                       %x: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 2 : i64})
        -> (tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = 10 : i64}) {
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.shardings = [#alpa.sharding<[R, S0]>]} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      return %0 : tensor<4x8xf32>
    }
    func.func @backward(%x: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 2 : i64},
                        %dy: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = 13 : i64})
        -> (tensor<8x8xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = 16 : i64}) {
      %0 = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0] {alpa.shardings = [#alpa.sharding<[R, S0]>]} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }
  }
  module @stage_1 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [2, 3]>} {
    func.func @forward(%w: tensor<8x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = 1 : i64},
                       %h: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 10 : i64})
        -> (tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = 11 : i64},
            tensor<4x1xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 12 : i64}) {
      %0 = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {alpa.shardings = [#alpa.sharding<[R, S0]>]} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %1 = stablehlo.tanh %0 {alpa.shardings = [#alpa.sharding<[R, S0]>]} : tensor<4x8xf32>
      %2 = stablehlo.slice %h [0:4, 0:1] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4x8xf32>) -> tensor<4x1xf32>
      return %1, %2 : tensor<4x8xf32>, tensor<4x1xf32>
    }
    func.func @backward(%w: tensor<8x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = 1 : i64},
                        %h: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 10 : i64},
                        %t: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = 11 : i64},
                        %s: tensor<4x1xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 12 : i64})
        -> (tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.value = 13 : i64},
            tensor<8x8xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R, S0]>, alpa.value = 14 : i64},
            tensor<8xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R]>, alpa.value = 15 : i64}) {
      %wide = stablehlo.broadcast_in_dim %s, dims = [0, 1] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4x1xf32>) -> tensor<4x8xf32>
      %tt = stablehlo.multiply %t, %t {alpa.shardings = [#alpa.sharding<[R, S0]>]} : tensor<4x8xf32>
      %dh = stablehlo.subtract %wide, %tt {alpa.shardings = [#alpa.sharding<[R, S0]>]} : tensor<4x8xf32>
      %dw = stablehlo.dot_general %h, %dh, contracting_dims = [0] x [0] {alpa.shardings = [#alpa.sharding<[R, S0]>]} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
      %zero = stablehlo.constant {alpa.shardings = [#alpa.sharding<[]>]} dense<0.0> : tensor<f32>
      %db = stablehlo.reduce(%wide init: %zero) applies stablehlo.add across dimensions = [0] {alpa.shardings = [#alpa.sharding<[R]>]} : (tensor<4x8xf32>, tensor<f32>) -> tensor<8xf32>
      %dx = stablehlo.dot_general %dh, %w, contracting_dims = [1] x [1] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      return %dx, %dw, %db : tensor<4x8xf32>, tensor<8x8xf32>, tensor<8xf32>
    }
  }
}

// -----

// Nothing but the gradient of the stage before: there is nothing to put off.

// CHECK-LABEL: module @stage_1
// CHECK: func.func @backward(
// CHECK-LABEL: module @stage_2
// CHECK: func.func @backward_input({{.*}}alpa.value = 1 : i64}, {{.*}} -> (tensor<4xf32> {{.*}}alpa.value = 13 : i64})
// CHECK: func.func @backward_weight({{.*}}alpa.value = 11 : i64}) -> (tensor<4xf32> {alpa.accumulate = "sum", {{.*}}alpa.value = 15 : i64})
module attributes {alpa.num_micro_batches = 2 : i64} {
  func.func private @main(tensor<4xf32> {alpa.kind = "batch", alpa.value = 0 : i64},
                          tensor<4xf32> {alpa.kind = "state", alpa.stage = 2 : i64, alpa.value = 1 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    func.func @forward(%x: tensor<4xf32> {alpa.sharding = #alpa.sharding<[R]>, alpa.value = 0 : i64})
        -> (tensor<4xf32> {alpa.sharding = #alpa.sharding<[R]>, alpa.value = 10 : i64}) {
      %0 = stablehlo.sine %x {alpa.shardings = [#alpa.sharding<[R]>]} : tensor<4xf32>
      return %0 : tensor<4xf32>
    }
    func.func @backward(%d: tensor<4xf32> {alpa.sharding = #alpa.sharding<[R]>, alpa.value = 12 : i64})
        -> (tensor<4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R]>, alpa.value = 16 : i64}) {
      %0 = stablehlo.sine %d {alpa.shardings = [#alpa.sharding<[R]>]} : tensor<4xf32>
      return %0 : tensor<4xf32>
    }
  }
  module @stage_1 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [1]>} {
    func.func @forward(%x: tensor<4xf32> {alpa.sharding = #alpa.sharding<[R]>, alpa.value = 10 : i64})
        -> (tensor<4xf32> {alpa.sharding = #alpa.sharding<[R]>, alpa.value = 11 : i64}) {
      %0 = stablehlo.sine %x {alpa.shardings = [#alpa.sharding<[R]>]} : tensor<4xf32>
      return %0 : tensor<4xf32>
    }
    func.func @backward(%d: tensor<4xf32> {alpa.sharding = #alpa.sharding<[R]>, alpa.value = 13 : i64})
        -> (tensor<4xf32> {alpa.sharding = #alpa.sharding<[R]>, alpa.value = 12 : i64}) {
      %0 = stablehlo.sine %d {alpa.shardings = [#alpa.sharding<[R]>]} : tensor<4xf32>
      return %0 : tensor<4xf32>
    }
  }
  module @stage_2 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [2]>} {
    func.func @backward(%s: tensor<4xf32> {alpa.sharding = #alpa.sharding<[R]>, alpa.value = 1 : i64},
                        %x: tensor<4xf32> {alpa.sharding = #alpa.sharding<[R]>, alpa.value = 11 : i64})
        -> (tensor<4xf32> {alpa.sharding = #alpa.sharding<[R]>, alpa.value = 13 : i64},
            tensor<4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R]>, alpa.value = 15 : i64}) {
      %0 = stablehlo.multiply %x, %s {alpa.shardings = [#alpa.sharding<[R]>]} : tensor<4xf32>
      %1 = stablehlo.exponential %x {alpa.shardings = [#alpa.sharding<[R]>]} : tensor<4xf32>
      return %0, %1 : tensor<4xf32>, tensor<4xf32>
    }
  }
}

// -----

// Terms of a sum are no tensor.

module {
  func.func private @main(tensor<4x4xf32> {alpa.kind = "batch", alpa.value = 0 : i64})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    func.func @backward(%d: tensor<4xf32> {alpa.sharding = #alpa.sharding<[R]>, alpa.value = 12 : i64})
        -> (tensor<4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R]>, alpa.value = 16 : i64}) {
      return %d : tensor<4xf32>
    }
  }
  module @stage_1 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [1, 2]>} {
    func.func @backward(%x: tensor<4x4xf32> {alpa.sharding = #alpa.sharding<[S0, R]>, alpa.value = 0 : i64})
        -> (tensor<4xf32> {alpa.sharding = #alpa.sharding<[R]>, alpa.value = 12 : i64},
            tensor<4xf32> {alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R]>, alpa.value = 15 : i64}) {
      %zero = stablehlo.constant {alpa.shardings = [#alpa.sharding<[]>]} dense<0.0> : tensor<f32>
      // expected-error @below {{alpa_split_backward_c1: devices hold terms of the sum that the rest of the backward pass reads; run alpa-defer-sums before alpa-slice-stages}}
      %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] {alpa.shardings = [#alpa.sharding<[R], unreduced = [0]>]} : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
      %1 = stablehlo.sine %0 {alpa.shardings = [#alpa.sharding<[R]>]} : tensor<4xf32>
      return %0, %1 : tensor<4xf32>, tensor<4xf32>
    }
  }
}
