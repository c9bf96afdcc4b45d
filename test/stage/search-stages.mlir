// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=4 submeshes=1x2,1x2 mesh-shapes=1x2,2x1 layer-ranges=0-1,1-2" | FileCheck %s --check-prefixes=CHECK,TWO
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=2 schedule=gpipe submeshes=2x4" | FileCheck %s --check-prefixes=CHECK,ONE
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=8" | FileCheck %s --check-prefix=AUTO

// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=8 schedule=gpipe,1f1b" | FileCheck %s --check-prefix=EITHER
// RUN: alpa-opt %s -alpa-search-stages="cluster=cpu-test num-micro-batches=8 schedule=auto" | FileCheck %s --check-prefix=EITHER

// EITHER: alpa.schedule = "{{gpipe|1f1b|1f1b-overlap}}"
// CHECK: module attributes {alpa.cluster = "{
// TWO-SAME: alpa.num_micro_batches = 4 : i64
// TWO-SAME: alpa.schedule = "1f1b"
// TWO-SAME: alpa.stages = [#alpa.stage<mesh = <shape = [1, 2], devices = [0, 1]>, layers = [0, 1], predicted = {
// TWO-SAME: micro_batches_in_flight = 2 : i64
// TWO-SAME: solver = {
// TWO-SAME: status = "optimal"
// TWO-SAME: #alpa.stage<mesh = <shape = [2, 1], devices = [2, 3]>, layers = [1, 2], predicted = {
// TWO-SAME: micro_batches_in_flight = 1 : i64
// ONE-SAME: alpa.num_micro_batches = 2 : i64
// ONE-SAME: alpa.schedule = "gpipe"
// ONE-SAME: devices = [0, 1, 2, 3, 4, 5, 6, 7]>, layers = [0, 2]
// ONE-SAME: micro_batches_in_flight = 2 : i64
// AUTO: alpa.stages = [#alpa.stage<
module {
  // CHECK: func.func @main(
  // CHECK-SAME: alpa.sharding = #alpa.sharding<
  // CHECK-SAME: alpa.stage = 0 : i64
  // TWO-SAME: %arg1: tensor<64x64xf32> {{{.*}}alpa.stage = 1 : i64}
  func.func @main(%w0: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %w1: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64}, %x: tensor<32x64xf32> {alpa.kind = "batch"}) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
    // CHECK: dot_general
    // CHECK-SAME: alpa.operand_shardings = [#alpa.sharding<{{[^>]*}}>, #alpa.sharding<{{[^>]*}}>]
    // CHECK-SAME: alpa.phase = "forward", alpa.shardings = [#alpa.sharding<[{{[RS0-9, ]+}}]>], alpa.stage = 0 : i64
    %0 = stablehlo.dot_general %x, %w0, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "forward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    // CHECK: dot_general
    // TWO-SAME: alpa.operand_shardings
    // TWO-SAME: alpa.stage = 1 : i64
    // ONE-SAME: alpa.stage = 0 : i64
    %1 = stablehlo.dot_general %0, %w1, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, alpa.phase = "forward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %2 = stablehlo.dot_general %0, %1, contracting_dims = [0] x [0] {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
    %3 = stablehlo.dot_general %1, %w1, contracting_dims = [1] x [1] {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<64x64xf32>) -> tensor<32x64xf32>
    %4 = stablehlo.dot_general %x, %3, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, alpa.phase = "backward"} : (tensor<32x64xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
    // Only the update reads its own stage's values: nothing is foreign but the weight.
    // CHECK: subtract %arg0
    // CHECK-SAME: alpa.operand_shardings
    %5 = stablehlo.subtract %w0, %4 {alpa.layer = 0 : i64, alpa.phase = "update"} : tensor<64x64xf32>
    %6 = stablehlo.subtract %w1, %2 {alpa.layer = 1 : i64, alpa.phase = "update"} : tensor<64x64xf32>
    return %5, %6 : tensor<64x64xf32>, tensor<64x64xf32>
  }
}
