// RUN: alpa-opt %s -alpa-defer-sums -split-input-file -verify-diagnostics | FileCheck %s --enable-var-scope

// A dot over the split batch: its terms are a batching dimension, and links pass them on.
// CHECK-LABEL: func.func @dot(
// CHECK-SAME: %[[X:.+]]: tensor<8x4xf32>, %[[DY:.+]]: tensor<8x6xf32>, %[[W:.+]]: tensor<6x4xf32>
// CHECK: %[[XT:.+]] = stablehlo.reshape %[[X]] {alpa.operand_shardings = [#alpa.sharding<[S0, R]>], alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[S0, R, R]>], alpa.use_shardings = [#alpa.sharding<[S0, R]>]} : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
// CHECK: %[[DYT:.+]] = stablehlo.reshape %[[DY]] {{.*}} -> tensor<2x4x6xf32>
// CHECK: %[[TERMS:.+]] = stablehlo.dot_general %[[XT]], %[[DYT]], batching_dims = [0] x [0], contracting_dims = [1] x [1]
// CHECK-SAME: alpa.shardings = [#alpa.sharding<[S0, R, S1]>]} : {{.*}} -> tensor<2x4x6xf32>
// CHECK: %[[TURNED:.+]] = stablehlo.transpose %[[TERMS]], dims = [0, 2, 1] {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[S0, S1, R]>]
// CHECK: %[[ZERO:.+]] = stablehlo.constant {alpa.phase = "update", alpa.shardings = [#alpa.sharding<[]>]} dense<0.000000e+00>
// CHECK: %[[SUM:.+]] = stablehlo.reduce(%[[TERMS2:.+]] init: %[[ZERO]]) applies stablehlo.add across dimensions = [0]
// CHECK-SAME: alpa.phase = "update", alpa.shardings = [#alpa.sharding<[S10, R]>]
// CHECK: stablehlo.subtract %[[W]], %[[SUM]]
module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @dot(%x: tensor<8x4xf32>, %dy: tensor<8x6xf32>, %w: tensor<6x4xf32>) -> tensor<6x4xf32> {
    %0 = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0]
        {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, S1], unreduced = [0]>],
         alpa.operand_shardings = [#alpa.sharding<[S0, R]>, #alpa.sharding<[S0, R]>],
         alpa.use_shardings = [#alpa.sharding<[S0, R]>, #alpa.sharding<[S0, S1]>]}
        : (tensor<8x4xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    %1 = stablehlo.transpose %0, dims = [1, 0]
        {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[S1, R], unreduced = [0]>],
         alpa.use_shardings = [#alpa.sharding<[R, S1], unreduced = [0]>]} : (tensor<4x6xf32>) -> tensor<6x4xf32>
    %c = stablehlo.constant dense<0.5> : tensor<6x4xf32>
    %2 = stablehlo.multiply %1, %c
        {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[S1, R], unreduced = [0]>],
         alpa.summed_as = #alpa.sharding<[S10, R]>,
         alpa.use_shardings = [#alpa.sharding<[S1, R], unreduced = [0]>, #alpa.sharding<[S1, R]>]} : tensor<6x4xf32>
    %3 = stablehlo.subtract %w, %2 {alpa.phase = "update", alpa.shardings = [#alpa.sharding<[S10, R]>]} : tensor<6x4xf32>
    return %3 : tensor<6x4xf32>
  }
}

// -----

// The weights of a scanned layer are one of a stack: a broadcast adds its dimension.
// CHECK-LABEL: func.func @stacked(
// CHECK: %[[TERMS:.+]] = stablehlo.dot_general {{.*}} -> tensor<2x4x6xf32>
// CHECK: %[[OF_STACK:.+]] = stablehlo.broadcast_in_dim %[[TERMS]], dims = [0, 2, 3] {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[S0, R, R, S1]>]
// CHECK-SAME: -> tensor<2x1x4x6xf32>
// CHECK: stablehlo.reduce(%[[OF_STACK]] init: {{.*}} across dimensions = [0]
module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @stacked(%x: tensor<8x4xf32>, %dy: tensor<8x6xf32>, %w: tensor<1x4x6xf32>) -> tensor<1x4x6xf32> {
    %0 = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0]
        {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, S1], unreduced = [0]>],
         alpa.use_shardings = [#alpa.sharding<[S0, R]>, #alpa.sharding<[S0, S1]>]}
        : (tensor<8x4xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [1, 2]
        {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, R, S1], unreduced = [0]>],
         alpa.summed_as = #alpa.sharding<[R, R, S1]>,
         alpa.use_shardings = [#alpa.sharding<[R, S1], unreduced = [0]>]} : (tensor<4x6xf32>) -> tensor<1x4x6xf32>
    %2 = stablehlo.subtract %w, %1 {alpa.phase = "update", alpa.shardings = [#alpa.sharding<[R, R, S1]>]} : tensor<1x4x6xf32>
    return %2 : tensor<1x4x6xf32>
  }
}

// -----

// Two sums along different axes: two leading dimensions, wherever the kept ones are.
// CHECK-LABEL: func.func @bias(
// CHECK: stablehlo.reshape {{.*}} (tensor<4x8x6xf32>) -> tensor<4x2x4x3x2xf32>
// CHECK: stablehlo.reduce({{.*}}) applies stablehlo.add across dimensions = [2, 4] {{.*}} -> tensor<4x2x3xf32>
// CHECK: stablehlo.transpose {{.*}} dims = [1, 2, 0] {{.*}}[S0, S1, R]{{.*}} -> tensor<2x3x4xf32>
// CHECK: stablehlo.reduce({{.*}}) applies stablehlo.add across dimensions = [0, 1] {{.*}} -> tensor<4xf32>
module attributes {alpa.mesh = #alpa.mesh<shape = [2, 3], devices = [0, 1, 2, 3, 4, 5]>} {
  func.func @bias(%dy: tensor<4x8x6xf32>) -> tensor<4xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%dy init: %zero) applies stablehlo.add across dimensions = [1, 2]
        {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R], unreduced = [0, 1]>],
         alpa.summed_as = #alpa.sharding<[R]>,
         alpa.use_shardings = [#alpa.sharding<[R, S0, S1]>, #alpa.sharding<[]>]}
        : (tensor<4x8x6xf32>, tensor<f32>) -> tensor<4xf32>
    %1 = stablehlo.negate %0 {alpa.phase = "update", alpa.shardings = [#alpa.sharding<[R]>]} : tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}

// -----

// CHECK-LABEL: func.func @embedding(
// CHECK: %[[ZEROS:.+]] = stablehlo.constant {{.*}} dense<0.000000e+00> : tensor<2x10x4xf32>
// CHECK: "stablehlo.scatter"(%[[ZEROS]]
// CHECK-SAME: update_window_dims = [3], inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 3
// CHECK: (tensor<2x10x4xf32>, tensor<2x4x3x1xi32>, tensor<2x4x3x4xf32>) -> tensor<2x10x4xf32>
module attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
  func.func @embedding(%tokens: tensor<8x3x1xi32>, %dy: tensor<8x3x4xf32>) -> tensor<10x4xf32> {
    %zeros = stablehlo.constant dense<0.0> : tensor<10x4xf32>
    %0 = "stablehlo.scatter"(%zeros, %tokens, %dy) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, R], unreduced = [0]>],
        alpa.summed_as = #alpa.sharding<[S0, R]>,
        alpa.use_shardings = [#alpa.sharding<[R, R]>, #alpa.sharding<[S0, R, R]>, #alpa.sharding<[S0, R, R]>]}
      : (tensor<10x4xf32>, tensor<8x3x1xi32>, tensor<8x3x4xf32>) -> tensor<10x4xf32>
    %1 = stablehlo.negate %0 {alpa.phase = "update", alpa.shardings = [#alpa.sharding<[S0, R]>]} : tensor<10x4xf32>
    return %1 : tensor<10x4xf32>
  }
}

// -----

// CHECK-LABEL: func.func @kernel(
// CHECK: stablehlo.reshape {{.*}} (tensor<8x6x6x5xf32>) -> tensor<2x4x6x6x5xf32>
// CHECK: stablehlo.transpose {{.*}} dims = [1, 2, 3, 0, 4] {{.*}} -> tensor<4x6x6x2x5xf32>
// CHECK: stablehlo.reshape {{.*}}[R, R, R, S0]{{.*}} -> tensor<4x6x6x10xf32>
// CHECK: stablehlo.convolution({{.*}}feature_group_count = 2 : i64{{.*}} -> tensor<3x3x3x10xf32>
// CHECK: stablehlo.reshape {{.*}} -> tensor<3x3x3x2x5xf32>
// CHECK: stablehlo.transpose {{.*}} dims = [3, 0, 1, 2, 4] {{.*}} -> tensor<2x3x3x3x5xf32>
module attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
  func.func @kernel(%x: tensor<8x8x8x3xf32>, %dy: tensor<8x6x6x5xf32>) -> tensor<3x3x3x5xf32> {
    %0 = stablehlo.convolution(%x, %dy) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[b, 0, 1, f], window = {}
        {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, R, R, R], unreduced = [0]>],
         alpa.summed_as = #alpa.sharding<[R, R, R, R]>,
         alpa.use_shardings = [#alpa.sharding<[S0, R, R, R]>, #alpa.sharding<[S0, R, R, R]>],
         batch_group_count = 1 : i64, feature_group_count = 1 : i64}
        : (tensor<8x8x8x3xf32>, tensor<8x6x6x5xf32>) -> tensor<3x3x3x5xf32>
    %1 = stablehlo.negate %0 {alpa.phase = "update", alpa.shardings = [#alpa.sharding<[R, R, R, R]>]} : tensor<3x3x3x5xf32>
    return %1 : tensor<3x3x3x5xf32>
  }
}

// -----

module attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
  func.func @not_linear(%x: tensor<8xf32>) -> tensor<8xf32> {
    // expected-error @+1 {{alpa_defer_sums_c1: the result is [R] unreduced 0, but the op neither sums over devices nor passes terms on}}
    %0 = stablehlo.tanh %x {alpa.shardings = [#alpa.sharding<[R], unreduced = [0]>]} : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

module attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
  func.func @not_split(%x: tensor<8x4xf32>, %dy: tensor<8x6xf32>) -> tensor<4x6xf32> {
    // expected-error @+1 {{alpa_defer_sums_c2: the result is [R, R] unreduced 0, but its operands are not split so over a sum}}
    %0 = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0]
        {alpa.shardings = [#alpa.sharding<[R, R], unreduced = [0]>], alpa.summed_as = #alpa.sharding<[R, R]>,
         alpa.use_shardings = [#alpa.sharding<[R, R]>, #alpa.sharding<[R, R]>]}
        : (tensor<8x4xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    return %0 : tensor<4x6xf32>
  }
}

// -----

module attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
  func.func @used_as_whole(%x: tensor<8x4xf32>, %dy: tensor<8x6xf32>) -> tensor<4x6xf32> {
    %0 = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0]
        {alpa.shardings = [#alpa.sharding<[R, R], unreduced = [0]>],
         alpa.use_shardings = [#alpa.sharding<[S0, R]>, #alpa.sharding<[S0, R]>]}
        : (tensor<8x4xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    // expected-error @+1 {{alpa_defer_sums_c3: uses terms of a sum ([R, R] unreduced 0) as if they were the sum}}
    %1 = stablehlo.negate %0 {alpa.shardings = [#alpa.sharding<[R, R]>]} : tensor<4x6xf32>
    return %1 : tensor<4x6xf32>
  }
}

// -----

// Rows of groups: terms are batches of rows.
// CHECK-LABEL: func.func @grouped(
// CHECK-SAME: %[[X:.+]]: tensor<8x4xf32>, %[[DY:.+]]: tensor<8x6xf32>, %[[G:.+]]: tensor<8xi32>
// CHECK: %[[XT:.+]] = stablehlo.reshape %[[X]] {{.*}} -> tensor<2x4x4xf32>
// CHECK: %[[DYT:.+]] = stablehlo.reshape %[[DY]] {{.*}} -> tensor<2x4x6xf32>
// CHECK: %[[GT:.+]] = stablehlo.reshape %[[G]] {{.*}} -> tensor<2x4xi32>
// CHECK: %[[TERMS:.+]] = alpa.grouped_sum %[[XT]], %[[DYT]] of %[[GT]] {{.*}} -> tensor<2x3x4x6xf32>
// CHECK: stablehlo.reduce(%[[TERMS]] init: {{.*}} across dimensions = [0]
module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @grouped(%x: tensor<8x4xf32>, %dy: tensor<8x6xf32>, %g: tensor<8xi32>, %w: tensor<3x4x6xf32>) -> tensor<3x4x6xf32> {
    %0 = alpa.grouped_sum %x, %dy of %g
        {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, R, S1], unreduced = [0]>],
         alpa.summed_as = #alpa.sharding<[R, R, S1]>,
         alpa.use_shardings = [#alpa.sharding<[S0, R]>, #alpa.sharding<[S0, S1]>, #alpa.sharding<[S0]>]}
        : (tensor<8x4xf32>, tensor<8x6xf32>, tensor<8xi32>) -> tensor<3x4x6xf32>
    %1 = stablehlo.subtract %w, %0 {alpa.phase = "update", alpa.shardings = [#alpa.sharding<[R, R, S1]>]} : tensor<3x4x6xf32>
    return %1 : tensor<3x4x6xf32>
  }
}

// -----

// Rounds of a loop stay batches behind the terms.
// CHECK-LABEL: func.func @grouped_rounds(
// CHECK-SAME: %[[X:.+]]: tensor<2x8x4xf32>, %[[DY:.+]]: tensor<2x8x6xf32>, %[[G:.+]]: tensor<2x8xi32>
// CHECK: %[[XT:.+]] = stablehlo.reshape %[[X]] {{.*}} -> tensor<2x2x4x4xf32>
// CHECK: %[[DYT:.+]] = stablehlo.reshape %[[DY]] {{.*}} -> tensor<2x2x4x6xf32>
// CHECK: %[[GT:.+]] = stablehlo.reshape %[[G]] {{.*}} -> tensor<2x2x4xi32>
// CHECK: %[[SUMS:.+]] = alpa.grouped_sum %[[XT]], %[[DYT]] of %[[GT]] {{.*}}alpa.shardings = [#alpa.sharding<[R, S0, R, R, S1]>]{{.*}} -> tensor<2x2x3x4x6xf32>
// CHECK: %[[TERMS:.+]] = stablehlo.transpose %[[SUMS]], dims = [1, 0, 2, 3, 4] {{.*}}alpa.shardings = [#alpa.sharding<[S0, R, R, R, S1]>]
// CHECK: stablehlo.reduce(%[[TERMS]] init: {{.*}} across dimensions = [0]
module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @grouped_rounds(%x: tensor<2x8x4xf32>, %dy: tensor<2x8x6xf32>, %g: tensor<2x8xi32>, %w: tensor<2x3x4x6xf32>) -> tensor<2x3x4x6xf32> {
    %0 = alpa.grouped_sum %x, %dy of %g
        {alpa.phase = "backward", alpa.shardings = [#alpa.sharding<[R, R, R, S1], unreduced = [0]>],
         alpa.summed_as = #alpa.sharding<[R, R, R, S1]>,
         alpa.use_shardings = [#alpa.sharding<[R, S0, R]>, #alpa.sharding<[R, S0, S1]>, #alpa.sharding<[R, S0]>]}
        : (tensor<2x8x4xf32>, tensor<2x8x6xf32>, tensor<2x8xi32>) -> tensor<2x3x4x6xf32>
    %1 = stablehlo.subtract %w, %0 {alpa.phase = "update", alpa.shardings = [#alpa.sharding<[R, R, R, S1]>]} : tensor<2x3x4x6xf32>
    return %1 : tensor<2x3x4x6xf32>
  }
}
