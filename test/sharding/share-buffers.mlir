// What XLA and the runtime put into one buffer is counted once.
// RUN: split-file %s %t.d
// RUN: alpa-opt %t.d/results.mlir -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,1" | FileCheck %s --check-prefix=RESULTS
// RUN: alpa-opt %t.d/sums.mlir -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,1 micro-batches=2" | FileCheck %s --check-prefix=SUMS
// RUN: alpa-opt %t.d/consumed.mlir -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,1 micro-batches=2" | FileCheck %s --check-prefix=CONSUMED
// RUN: alpa-opt %t.d/in-place.mlir -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,1" | FileCheck %s --check-prefix=IN-PLACE
// RUN: alpa-opt %t.d/loop.mlir -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,1" | FileCheck %s --check-prefix=LOOP
// RUN: alpa-opt %t.d/padded.mlir -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,1" | FileCheck %s --check-prefix=PADDED

// The first product lives in the buffer of the result, but the second, since the
// third reads it while it makes the result: 16 KiB each of batch, result and second.
// RESULTS: temporary_bytes = 49152 : i64
//--- results.mlir
func.func @main(%w: tensor<64x64xf32> {alpa.kind = "state"}, %x: tensor<64x64xf32> {alpa.kind = "batch"}) -> tensor<64x64xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %2 : tensor<64x64xf32>
}

// A product adds to the sum of its gradient. What a reduction makes is there until it
// is added. State is the weights and sums of 16 KiB and 256 B each.
// SUMS: state_bytes = 33280 : i64, temporary_bytes = 16640 : i64
//--- sums.mlir
func.func @main(%w: tensor<64x64xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %b: tensor<64xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64}, %x: tensor<64x64xf32> {alpa.kind = "batch"}) -> (tensor<64x64xf32>, tensor<64xf32>) {
  %zero = stablehlo.constant {alpa.phase = "backward"} dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] {alpa.phase = "backward"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] {alpa.phase = "backward"} : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32>
  %2 = stablehlo.subtract %w, %0 {alpa.phase = "update"} : tensor<64x64xf32>
  %3 = stablehlo.subtract %b, %1 {alpa.phase = "update"} : tensor<64xf32>
  return %2, %3 : tensor<64x64xf32>, tensor<64xf32>
}

// What the backward function makes takes the buffer of the activation that it is the
// last to read, beside the result that waits for the end of the step: 2 KiB of batch
// are the only temporary.
// CONSUMED: activation_bytes = 16384 : i64
// CONSUMED-SAME: temporary_bytes = 2048 : i64
//--- consumed.mlir
func.func @main(%w: tensor<64x64xf32> {alpa.kind = "state"}, %x: tensor<8x64xf32> {alpa.kind = "batch"}) -> tensor<64x64xf32> {
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] {alpa.phase = "forward"} : (tensor<8x64xf32>, tensor<8x64xf32>) -> tensor<64x64xf32>
  %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0] {alpa.phase = "backward"} : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %1 : tensor<64x64xf32>
}

// An elementwise op writes in place of an operand that nothing reads later: 16 KiB each
// of batch and product, 256 B each of sum and result.
// IN-PLACE: temporary_bytes = 33280 : i64
//--- in-place.mlir
func.func @main(%w: tensor<64x64xf32> {alpa.kind = "state"}, %x: tensor<64x64xf32> {alpa.kind = "batch"}) -> tensor<64xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = stablehlo.tanh %0 : tensor<64x64xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<64x64xf32>, tensor<f32>) -> tensor<64xf32>
  %3 = stablehlo.dot_general %1, %2, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64xf32>) -> tensor<64xf32>
  return %3 : tensor<64xf32>
}

// What a loop hands on is another name for what it is given, and what it changes is
// changed in place: 16 KiB each of batch, result and the loop's two values.
// LOOP: temporary_bytes = 65536 : i64
//--- loop.mlir
func.func @main(%x: tensor<64x64xf32> {alpa.kind = "batch"}) -> tensor<64x64xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %2:3 = stablehlo.while(%i = %zero, %a = %0, %b = %1) : tensor<i32>, tensor<64x64xf32>, tensor<64x64xf32>
  cond {
    %limit = stablehlo.constant dense<4> : tensor<i32>
    %c = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %d = stablehlo.add %a, %b : tensor<64x64xf32>
    stablehlo.return %j, %a, %d : tensor<i32>, tensor<64x64xf32>, tensor<64x64xf32>
  }
  %3 = stablehlo.dot_general %2#1, %2#2, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %3 : tensor<64x64xf32>
}

// Where one side is padded more than the other the kernel reads a padded copy: twice
// 16 KiB of batch, 4 KiB of result.
// PADDED: temporary_bytes = 36864 : i64
//--- padded.mlir
func.func @main(%x: tensor<16x8x8x4xf32> {alpa.kind = "batch"}, %w: tensor<3x3x4x4xf32> {alpa.kind = "state"}) -> tensor<16x4x4x4xf32> {
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2], pad = [[0, 1], [0, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<16x8x8x4xf32>, tensor<3x3x4x4xf32>) -> tensor<16x4x4x4xf32>
  return %0 : tensor<16x4x4x4xf32>
}
