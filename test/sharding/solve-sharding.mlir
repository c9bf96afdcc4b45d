// RUN: alpa-opt %s -split-input-file -alpa-solve-sharding="cluster=%S/Inputs/cluster.yaml mesh-shape=1,4" | FileCheck %s

// Two dots of a perceptron, too few rows to split them: the first weight is split by
// columns, the second by rows, and only the second result is summed.
// CHECK: alpa.predicted = {
// CHECK-SAME: alpa.solver = {{{.*}}status = "optimal"
// CHECK-LABEL: func.func @main
// CHECK-SAME: %{{[^:]*}}: tensor<3x1024xf32> {alpa.sharding = #alpa.sharding<[R, R]>}
// CHECK-SAME: %{{[^:]*}}: tensor<1024x4096xf32> {alpa.sharding = #alpa.sharding<[R, S1]>}
// CHECK-SAME: %{{[^:]*}}: tensor<4096x1024xf32> {alpa.sharding = #alpa.sharding<[S1, R]>}
// CHECK: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[R, S1]>]
// CHECK: stablehlo.maximum {{.*}}alpa.shardings = [#alpa.sharding<[R, S1]>]
// CHECK: stablehlo.dot_general
func.func @main(%x: tensor<3x1024xf32>, %w1: tensor<1024x4096xf32>, %w2: tensor<4096x1024xf32>) -> tensor<3x1024xf32> {
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %zero = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<3x4096xf32>
  %0 = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0] : (tensor<3x1024xf32>, tensor<1024x4096xf32>) -> tensor<3x4096xf32>
  %1 = stablehlo.maximum %0, %zero : tensor<3x4096xf32>
  %2 = stablehlo.dot_general %1, %w2, contracting_dims = [1] x [0] : (tensor<3x4096xf32>, tensor<4096x1024xf32>) -> tensor<3x1024xf32>
  return %2 : tensor<3x1024xf32>
}

// -----

// Many rows and a small weight: the batch is split, the gradient summed once a
// micro-batch, and state leaves as it came.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %{{[^:]*}}: tensor<64x64xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state", alpa.sharding = #alpa.sharding<[[W:[^>]*]]>}
// CHECK-SAME: %{{[^:]*}}: tensor<65536x64xf32> {alpa.kind = "batch", alpa.sharding = #alpa.sharding<[S1, R]>}
// CHECK: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[S1, R]>]
// CHECK: stablehlo.tanh {{.*}}alpa.shardings = [#alpa.sharding<[S1, R]>]
// CHECK: stablehlo.subtract {{.*}}alpa.phase = "update", alpa.shardings = [#alpa.sharding<[[W]]>]
func.func @main(%w: tensor<64x64xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state"}, %x: tensor<65536x64xf32> {alpa.kind = "batch"}) -> tensor<64x64xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.phase = "forward"} : (tensor<65536x64xf32>, tensor<64x64xf32>) -> tensor<65536x64xf32>
  %1 = stablehlo.tanh %0 {alpa.phase = "forward"} : tensor<65536x64xf32>
  %2 = stablehlo.dot_general %x, %1, contracting_dims = [0] x [0] {alpa.phase = "backward"} : (tensor<65536x64xf32>, tensor<65536x64xf32>) -> tensor<64x64xf32>
  %3 = stablehlo.subtract %w, %2 {alpa.phase = "update"} : tensor<64x64xf32>
  return %3 : tensor<64x64xf32>
}

// -----

// Nothing can be split evenly: a dot is replicated only then.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[R, R]>]
func.func @main(%x: tensor<3x5xf32>, %w: tensor<5x7xf32>) -> tensor<3x7xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<3x5xf32>, tensor<5x7xf32>) -> tensor<3x7xf32>
  return %0 : tensor<3x7xf32>
}

// -----

// Dimensions split and merged on the way: heads stay split through both reshapes.
// CHECK-LABEL: func.func @main
// CHECK: stablehlo.reshape {{.*}}alpa.shardings = [#alpa.sharding<[R, R, S1, R]>]
// CHECK: stablehlo.transpose {{.*}}alpa.shardings = [#alpa.sharding<[R, S1, R, R]>]
// CHECK: stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[R, S1, R, R]>]
func.func @main(%x: tensor<1x3x512xf32>, %w: tensor<512x512xf32>) -> tensor<1x8x3x3xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0] : (tensor<1x3x512xf32>, tensor<512x512xf32>) -> tensor<1x3x512xf32>
  %1 = stablehlo.reshape %0 : (tensor<1x3x512xf32>) -> tensor<1x3x8x64xf32>
  %2 = stablehlo.transpose %1, dims = [0, 2, 1, 3] : (tensor<1x3x8x64xf32>) -> tensor<1x8x3x64xf32>
  %3 = stablehlo.dot_general %2, %2, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<1x8x3x64xf32>, tensor<1x8x3x64xf32>) -> tensor<1x8x3x3xf32>
  return %3 : tensor<1x8x3x3xf32>
}

// -----

// The words of a random key stay together, a batch of keys is split.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %{{[^:]*}}: tensor<4xui32> {alpa.sharding = #alpa.sharding<[R]>}
// CHECK-SAME: %{{[^:]*}}: tensor<4096x4xui32> {alpa.sharding = #alpa.sharding<[S1, R]>}
func.func @main(%key: tensor<4xui32>, %keys: tensor<4096x4xui32>) -> tensor<4096x4xui32> {
  %0 = stablehlo.broadcast_in_dim %key, dims = [1] : (tensor<4xui32>) -> tensor<4096x4xui32>
  %1 = stablehlo.xor %0, %keys : tensor<4096x4xui32>
  return %1 : tensor<4096x4xui32>
}
