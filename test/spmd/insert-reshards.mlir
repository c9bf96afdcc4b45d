// RUN: alpa-opt %s -split-input-file -alpa-insert-reshards -alpa-verify-sharding | FileCheck %s

// The operand is moved once for both users, before the first of them; results become
// what the signature says, and state what its argument is.

// CHECK-LABEL: func.func @moved
// CHECK-SAME:    %[[X:.*]]: tensor<8x16xf32> {alpa.carried_by = 1 : i64, alpa.sharding = #alpa.sharding<[S0, S1]>}
// CHECK-SAME:    -> (tensor<8x4xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}, tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, S1]>})
// CHECK:         %[[ROWS:.*]] = alpa.reshard %[[X]] {from = #alpa.sharding<[S0, S1]>, to = #alpa.sharding<[S0, R]>}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[ROWS]], %{{.*}} {alpa.shardings = [#alpa.sharding<[S0, R]>]}
// CHECK-NEXT:    %[[NEXT:.*]] = stablehlo.tanh %[[ROWS]] {alpa.shardings = [#alpa.sharding<[S0, R]>]}
// CHECK-NEXT:    %[[BACK:.*]] = alpa.reshard %[[NEXT]] {from = #alpa.sharding<[S0, R]>, to = #alpa.sharding<[S0, S1]>}
// CHECK-NEXT:    return %[[DOT]], %[[BACK]]
module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @moved(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, S1]>, alpa.carried_by = 1 : i64}, %w: tensor<16x4xf32>) -> (tensor<8x4xf32>, tensor<8x16xf32>) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.shardings = [#alpa.sharding<[S0, R]>], alpa.use_shardings = [#alpa.sharding<[S0, R]>, #alpa.sharding<[R, R]>]} : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.tanh %x {alpa.shardings = [#alpa.sharding<[S0, R]>], alpa.use_shardings = [#alpa.sharding<[S0, R]>]} : tensor<8x16xf32>
    return %0, %1 : tensor<8x4xf32>, tensor<8x16xf32>
  }
}

// -----

// Constants are made anew for each use, and of a broadcast the vector is moved.

// CHECK-LABEL: func.func @remade
// CHECK-SAME:    %[[X:.*]]: tensor<8x16xf32> {{.*}}, %[[B:.*]]: tensor<16xf32>
// CHECK:         %[[BIAS:.*]] = alpa.reshard %[[B]] {from = #alpa.sharding<[S0]>, to = #alpa.sharding<[S1]>} : tensor<16xf32>
// CHECK:         stablehlo.broadcast_in_dim %[[BIAS]], dims = [1] {alpa.shardings = [#alpa.sharding<[S0, S1]>]}
// CHECK:         stablehlo.broadcast_in_dim %{{.*}}, dims = [] {alpa.shardings = [#alpa.sharding<[S0, S1]>]}
// CHECK-NOT:     alpa.reshard
module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @remade(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, S1]>}, %b: tensor<16xf32> {alpa.sharding = #alpa.sharding<[S0]>}) -> tensor<8x16xf32> {
    %c = stablehlo.constant dense<2.0> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %b, dims = [1] {alpa.shardings = [#alpa.sharding<[S1, S0]>]} : (tensor<16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.add %x, %0 {alpa.shardings = [#alpa.sharding<[S0, S1]>], alpa.use_shardings = [#alpa.sharding<[S0, S1]>, #alpa.sharding<[S0, S1]>]} : tensor<8x16xf32>
    %2 = stablehlo.broadcast_in_dim %c, dims = [] {alpa.shardings = [#alpa.sharding<[S1, S0]>]} : (tensor<f32>) -> tensor<8x16xf32>
    %3 = stablehlo.multiply %1, %2 {alpa.shardings = [#alpa.sharding<[S0, S1]>]} : tensor<8x16xf32>
    return %3 : tensor<8x16xf32>
  }
}

// -----

// Paths of several steps; links as the module's cluster has them would weigh here.

// CHECK-LABEL: func.func @path
// CHECK:         alpa.reshard %{{.*}} {from = #alpa.sharding<[S01, R]>, through = [#alpa.sharding<[S10, R]>], to = #alpa.sharding<[S1, R]>}
// CHECK:         alpa.reshard %{{.*}} {from = #alpa.sharding<[S01, R]>, through = [#alpa.sharding<[S0, R]>], to = #alpa.sharding<[R, R]>}
module attributes {alpa.mesh = #alpa.mesh<shape = [2, 4], devices = [0, 1, 2, 3, 4, 5, 6, 7]>} {
  func.func @path(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S01, R]>}) -> (tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S1, R]>}, tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[R, R]>}) {
    return %x, %x : tensor<8x16xf32>, tensor<8x16xf32>
  }
}

// -----

// Values in a loop are split as the loop carries them; what the body takes from
// outside is whole.

// CHECK-LABEL: func.func @loop
// CHECK:         %[[W:.*]] = alpa.reshard %{{.*}} {from = #alpa.sharding<[S1, R]>, to = #alpa.sharding<[R, R]>}
// CHECK:         stablehlo.while
// CHECK:           stablehlo.compare {{.*}} {alpa.shardings = [#alpa.sharding<[]>]}
// CHECK:           stablehlo.dot_general %{{.*}}, %[[W]], {{.*}} {alpa.shardings = [#alpa.sharding<[S0, R]>]}
module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @loop(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}, %w: tensor<16x16xf32> {alpa.sharding = #alpa.sharding<[S1, R]>}) -> tensor<8x16xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %n = stablehlo.constant dense<3> : tensor<i32>
    %0:2 = stablehlo.while(%i = %c, %a = %x) : tensor<i32>, tensor<8x16xf32> attributes {alpa.shardings = [#alpa.sharding<[]>, #alpa.sharding<[S0, R]>]}
    cond {
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %d = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
      %o = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %o : tensor<i32>
      stablehlo.return %j, %d : tensor<i32>, tensor<8x16xf32>
    }
    return %0#1 : tensor<8x16xf32>
  }
}

// -----

// A value that is held otherwise than the op makes it is moved behind the op.

// CHECK-LABEL: func.func @held_otherwise
// CHECK:         %[[SUM:.*]] = stablehlo.add %{{.*}}, %{{.*}} {alpa.shardings = [#alpa.sharding<[R, S1]>]}
// CHECK-NEXT:    %[[HELD:.*]] = alpa.reshard %[[SUM]] {from = #alpa.sharding<[R, S1]>, to = #alpa.sharding<[S0, S1]>}
// CHECK-NEXT:    return %[[HELD]]
module attributes {alpa.mesh = #alpa.mesh<shape = [2, 2], devices = [0, 1, 2, 3]>} {
  func.func @held_otherwise(%x: tensor<8x16xf32> {alpa.sharding = #alpa.sharding<[R, S1]>}, %y: tensor<8x16xf32>) -> tensor<8x16xf32> {
    %0 = stablehlo.add %x, %y {alpa.shardings = [#alpa.sharding<[S0, S1]>], alpa.made_shardings = [#alpa.sharding<[R, S1]>], alpa.use_shardings = [#alpa.sharding<[R, S1]>, #alpa.sharding<[R, S1]>]} : tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }
}
