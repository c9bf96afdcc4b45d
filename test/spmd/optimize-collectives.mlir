// RUN: alpa-opt %s -split-input-file -alpa-insert-reshards -alpa-optimize-collectives -alpa-verify-sharding | FileCheck %s

// The sum is scattered, and what lies between it and the slice works on parts; the
// mask is sliced, which costs nothing.

// CHECK-LABEL: func.func @slice_rises
// CHECK:         stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[R, S0]>]
// CHECK:         alpa.reshard %{{.*}} {from = #alpa.sharding<[R, R]>, to = #alpa.sharding<[S0, R]>} : tensor<8x16xf32>
// CHECK:         stablehlo.multiply {{.*}}alpa.shardings = [#alpa.sharding<[S0, R]>]
// CHECK-NOT:     alpa.reshard
// CHECK:         return
module attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
  func.func @slice_rises(%x: tensor<16x4xf32> {alpa.sharding = #alpa.sharding<[R, S0]>}, %w: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}, %m: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[R, R]>}) -> (tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<16x4xf32>, tensor<4x8xf32>) -> tensor<16x8xf32>
    %1 = stablehlo.transpose %0, dims = [1, 0] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<16x8xf32>) -> tensor<8x16xf32>
    %2 = stablehlo.multiply %1, %m {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<8x16xf32>
    return %2 : tensor<8x16xf32>
  }
}

// -----

// Users that want the whole value keep the all-reduce.

// CHECK-LABEL: func.func @whole_user
// CHECK:         stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[R, R]>]
module attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
  func.func @whole_user(%x: tensor<16x4xf32> {alpa.sharding = #alpa.sharding<[R, S0]>}, %w: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}) -> (tensor<16x8xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}, tensor<16x8xf32> {alpa.sharding = #alpa.sharding<[R, R]>}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<16x4xf32>, tensor<4x8xf32>) -> tensor<16x8xf32>
    return %0, %0 : tensor<16x8xf32>, tensor<16x8xf32>
  }
}

// -----

// Data parallelism with momentum: the momentum is held in parts, and the new
// parameter is gathered; the step's signature says so.

// CHECK-LABEL: func.func @update
// CHECK-SAME:    %[[W:.*]]: tensor<8x16xf32> {alpa.carried_by = 0 : i64, alpa.sharding = #alpa.sharding<[R, R]>}
// CHECK-SAME:    %[[M:.*]]: tensor<8x16xf32> {alpa.carried_by = 1 : i64, alpa.sharding = #alpa.sharding<[S0, R]>}
// CHECK-SAME:    -> (tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[R, R]>}, tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>})
// CHECK:         %[[G:.*]] = stablehlo.dot_general {{.*}}contracting_dims = [0] x [0] {alpa.shardings = [#alpa.sharding<[S0, R]>]}
// CHECK:         %[[MOMENTUM:.*]] = stablehlo.add %[[M]], %[[G]] {alpa.shardings = [#alpa.sharding<[S0, R]>]}
// CHECK:         %[[PART:.*]] = alpa.reshard %[[W]] {from = #alpa.sharding<[R, R]>, to = #alpa.sharding<[S0, R]>}
// CHECK:         %[[NEXT:.*]] = stablehlo.subtract %[[PART]], %[[MOMENTUM]] {alpa.shardings = [#alpa.sharding<[S0, R]>]}
// CHECK:         %[[WHOLE:.*]] = alpa.reshard %[[NEXT]] {from = #alpa.sharding<[S0, R]>, to = #alpa.sharding<[R, R]>}
// CHECK:         return %[[WHOLE]], %[[MOMENTUM]]
module attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
  func.func @update(%w: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.carried_by = 0 : i64}, %m: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.carried_by = 1 : i64}, %x: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}) -> (tensor<8x16xf32>, tensor<8x16xf32>) {
    %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.shardings = [#alpa.sharding<[S0, R]>]} : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
    %g = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4x8xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
    %0 = stablehlo.add %m, %g {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<8x16xf32>
    %1 = stablehlo.subtract %w, %0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<8x16xf32>
    return %1, %0 : tensor<8x16xf32>, tensor<8x16xf32>
  }
}

// -----

// Without state to hold in parts nothing would be gained.

// CHECK-LABEL: func.func @sgd
// CHECK:         stablehlo.dot_general {{.*}}alpa.shardings = [#alpa.sharding<[R, R]>]
module attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
  func.func @sgd(%w: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[R, R]>, alpa.carried_by = 0 : i64}, %x: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}, %d: tensor<4x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}, %y: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}) -> (tensor<8x16xf32>, tensor<4x16xf32>) {
    %g = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] {alpa.shardings = [#alpa.sharding<[R, R]>]} : (tensor<4x8xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.subtract %w, %g {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<8x16xf32>
    %2 = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0] {alpa.shardings = [#alpa.sharding<[S0, R]>]} : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
    return %1, %2 : tensor<8x16xf32>, tensor<4x16xf32>
  }
}
