// The backward phase of a stage in two parts: one multiplication each here, but for the
// first stage, which has nobody to send gradients to.
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=8 schedule=zb-h1 submeshes=1x1,1x1,1x1" | FileCheck %s --check-prefix=THREE
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=8 schedule=zb-h1 submeshes=1x4" | FileCheck %s --check-prefix=ONE
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=8 schedule=1f1b submeshes=1x1,1x1" | FileCheck %s --check-prefix=WHOLE
// RUN: not alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=8 schedule=zb-h1 memory-fraction=1e-6" 2>&1 | FileCheck %s --check-prefix=MEMORY

// THREE: alpa.schedule = "zb-h1"
// THREE-SAME: #alpa.stage<
// THREE-SAME: backward_weight_seconds = 0.000000e+00 : f64
// THREE-SAME: micro_batches_in_flight = 3 : i64, micro_batches_waiting = 1 : i64
// THREE-SAME: #alpa.stage<
// THREE-SAME: backward_input_seconds = [[S:[^ ]+]] : f64
// THREE-SAME: backward_weight_seconds = [[S]] : f64
// THREE-SAME: micro_batches_in_flight = 2 : i64, micro_batches_waiting = 2 : i64
// What waits: what the layer reads, 32 x 64 numbers, and the gradient that it gets.
// THREE-SAME: waiting_bytes = 16384 : i64
// THREE-SAME: #alpa.stage<
// THREE-SAME: micro_batches_in_flight = 1 : i64, micro_batches_waiting = 3 : i64
// ONE: alpa.schedule = "zb-h1"
// ONE-SAME: backward_weight_seconds = 0.000000e+00 : f64
// WHOLE-NOT: backward_weight_seconds
// MEMORY: error: alpa-search-stages: no plan fits into memory
module {
  func.func @main(%w0: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %w1: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64}, %w2: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 2 : i64}, %x: tensor<32x64xf32> {alpa.kind = "batch"}) -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>) {
    %y0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %y1 = stablehlo.dot_general %y0, %w1, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %y2 = stablehlo.dot_general %y1, %w2, contracting_dims = [1] x [0] {alpa.eqn = 2 : i64, alpa.layer = 2 : i64, alpa.phase = "forward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %g2 = stablehlo.dot_general %y1, %y2, contracting_dims = [0] x [0] {alpa.eqn = 2 : i64, alpa.layer = 2 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
    %d2 = stablehlo.dot_general %y2, %w2, contracting_dims = [1] x [1] {alpa.eqn = 2 : i64, alpa.layer = 2 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %g1 = stablehlo.dot_general %y0, %d2, contracting_dims = [0] x [0] {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
    %d1 = stablehlo.dot_general %d2, %w1, contracting_dims = [1] x [1] {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %g0 = stablehlo.dot_general %x, %d1, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
    %n0 = stablehlo.subtract %w0, %g0 {alpa.layer = 0 : i64, alpa.phase = "update"} : tensor<64x64xf32>
    %n1 = stablehlo.subtract %w1, %g1 {alpa.layer = 1 : i64, alpa.phase = "update"} : tensor<64x64xf32>
    %n2 = stablehlo.subtract %w2, %g2 {alpa.layer = 2 : i64, alpa.phase = "update"} : tensor<64x64xf32>
    return %n0, %n1, %n2 : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>
  }
}
