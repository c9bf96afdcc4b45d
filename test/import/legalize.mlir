// RUN: alpa-opt %s -split-input-file -alpa-import | FileCheck %s

// A map is its computation over whole arrays; what it takes from outside, and maps within,
// are scalars of every element. Branches of an `if` are those of a case: false is 0.

// CHECK-LABEL: func.func public @main
// CHECK-SAME: %[[X:.*]]: tensor<4x3xf32> {{.*}}, %[[Y:.*]]: tensor<4x3xf32> {{.*}}, %[[S:.*]]: tensor<f32> {{.*}}, %[[P:.*]]: tensor<i1> {{.*}})
func.func public @main(%x: tensor<4x3xf32>, %y: tensor<4x3xf32>, %s: tensor<f32>, %p: tensor<i1>) -> (tensor<4x3xi1>, tensor<4x3xf32>) {
  // CHECK: %[[C:.*]] = stablehlo.constant {{.*}}dense<2.000000e+00> : tensor<f32>
  // CHECK: %[[TWO:.*]] = stablehlo.broadcast_in_dim %[[C]], dims = [] {{.*}} -> tensor<4x3xf32>
  // CHECK: %[[TWICE:.*]] = stablehlo.multiply %[[X]], %[[TWO]] {{.*}} : tensor<4x3xf32>
  // CHECK: %[[LEFT:.*]] = stablehlo.subtract %[[TWICE]], %[[Y]] {{.*}} : tensor<4x3xf32>
  // CHECK: %[[BOUND:.*]] = stablehlo.broadcast_in_dim %[[S]], dims = [] {{.*}} -> tensor<4x3xf32>
  // CHECK: stablehlo.compare LT, %[[LEFT]], %[[BOUND]] {{.*}} -> tensor<4x3xi1>
  %0 = "stablehlo.map"(%x, %y) <{dimensions = array<i64: 0, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.constant dense<2.0> : tensor<f32>
    %1 = stablehlo.multiply %a, %c : tensor<f32>
    %2 = "stablehlo.map"(%1, %b) <{dimensions = array<i64>}> ({
    ^bb0(%d: tensor<f32>, %e: tensor<f32>):
      %3 = stablehlo.subtract %d, %e : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %4 = stablehlo.compare LT, %2, %s : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %4 : tensor<i1>
  }) : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xi1>
  // CHECK: %[[NUMBER:.*]] = stablehlo.convert %[[P]] {{.*}} : (tensor<i1>) -> tensor<i32>
  // CHECK: "stablehlo.case"(%[[NUMBER]]) ({
  // CHECK-NEXT: stablehlo.return %[[Y]]
  // CHECK-NEXT: }, {
  // CHECK-NEXT: stablehlo.return %[[X]]
  %5 = "stablehlo.if"(%p) ({
    stablehlo.return %x : tensor<4x3xf32>
  }, {
    stablehlo.return %y : tensor<4x3xf32>
  }) : (tensor<i1>) -> tensor<4x3xf32>
  return %0, %5 : tensor<4x3xi1>, tensor<4x3xf32>
}

// -----

// Sizes follow from constants and types.

// CHECK-LABEL: func.func public @main
// CHECK-SAME: -> (tensor<4x3xf32>, tensor<12xf32>, tensor<4x3xi32>, tensor<6xf32>, tensor<2x3xf32>)
func.func public @main(%x: tensor<4x3xf32>, %v: tensor<3xf32>, %z: tensor<f32>, %i: tensor<2x1xi32>) -> (tensor<?x?xf32>, tensor<?xf32>, tensor<?x?xi32>, tensor<?xf32>, tensor<2x3xf32>) {
  %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<4x3xf32>) -> tensor<i32>
  %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %c = stablehlo.constant dense<3> : tensor<1xi32>
  %shape = stablehlo.concatenate %n1, %c, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  // CHECK: stablehlo.broadcast_in_dim %{{.*}}, dims = [1] {{.*}} -> tensor<4x3xf32>
  %0 = stablehlo.dynamic_broadcast_in_dim %v, %shape, dims = [1] : (tensor<3xf32>, tensor<2xi32>) -> tensor<?x?xf32>
  // CHECK: stablehlo.negate %{{.*}} : tensor<4x3xf32>
  %1 = stablehlo.negate %0 : tensor<?x?xf32>
  // CHECK: stablehlo.reshape %{{.*}} -> tensor<12xf32>
  %m = stablehlo.multiply %n1, %c : tensor<1xi32>
  %2 = stablehlo.dynamic_reshape %1, %m : (tensor<?x?xf32>, tensor<1xi32>) -> tensor<?xf32>
  %3 = stablehlo.dynamic_iota %shape, dim = 0 : (tensor<2xi32>) -> tensor<?x?xi32>
  // CHECK: stablehlo.pad %{{.*}}, low = [1], high = [2], interior = [1] {{.*}} -> tensor<26xf32>
  %one = stablehlo.constant dense<1> : tensor<1xi32>
  %two = stablehlo.constant dense<2> : tensor<1xi32>
  %4 = stablehlo.dynamic_pad %2, %z, %one, %two, %one : (tensor<?xf32>, tensor<f32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<?xf32>
  // CHECK: stablehlo.slice %{{.*}} [1:12:2] {{.*}} -> tensor<6xf32>
  %5 = stablehlo.real_dynamic_slice %4, %one, %m, %two : (tensor<?xf32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<?xf32>
  // CHECK: "stablehlo.gather"{{.*}}slice_sizes = array<i64: 1, 3>
  %sizes = stablehlo.constant dense<[1, 3]> : tensor<2xi32>
  %6 = "stablehlo.dynamic_gather"(%x, %i, %sizes) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>}> : (tensor<4x3xf32>, tensor<2x1xi32>, tensor<2xi32>) -> tensor<2x3xf32>
  // CHECK: stablehlo.iota dim = 0 {{.*}} : tensor<4x3xi32>
  return %1, %2, %3, %5, %6 : tensor<?x?xf32>, tensor<?xf32>, tensor<?x?xi32>, tensor<?xf32>, tensor<2x3xf32>
}

// -----

// A result's type says the sizes too.

// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<4xf32>, %n: tensor<2xi32>) -> tensor<2x2xf32> {
  // CHECK: stablehlo.reshape %{{.*}} : (tensor<4xf32>) -> tensor<2x2xf32>
  %0 = stablehlo.dynamic_reshape %x, %n : (tensor<4xf32>, tensor<2xi32>) -> tensor<2x2xf32>
  return %0 : tensor<2x2xf32>
}

// -----

// Functions of scalars get their own constants, with what is made of them.

// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<4x3xf32>) -> (tensor<4xf32>, tensor<4x3xf32>) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %two = stablehlo.add %one, %one : tensor<f32>
  // CHECK: stablehlo.reduce(
  // CHECK-NEXT: reducer(%[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
  // CHECK-NEXT: %[[ONE:.*]] = stablehlo.constant {{.*}}1.000000e+00
  // CHECK-NEXT: %[[TWO:.*]] = stablehlo.add %[[ONE]], %[[ONE]]
  // CHECK-NEXT: stablehlo.add %[[A]], %[[B]]
  // CHECK-NEXT: stablehlo.minimum %{{.*}}, %[[TWO]]
  %0 = stablehlo.reduce(%x init: %z) across dimensions = [1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<4xf32>
    reducer(%a: tensor<f32>, %b: tensor<f32>) {
      %s = stablehlo.add %a, %b : tensor<f32>
      %m = stablehlo.minimum %s, %two : tensor<f32>
      stablehlo.return %m : tensor<f32>
    }
  // CHECK: "stablehlo.sort"
  // CHECK-NEXT: ^bb0(%[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>):
  // CHECK-NEXT: %[[Z:.*]] = stablehlo.constant {{.*}}0.000000e+00
  // CHECK-NEXT: stablehlo.compare LT, %[[A]], %[[Z]]
  %1 = "stablehlo.sort"(%x) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare LT, %a, %z, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }) : (tensor<4x3xf32>) -> tensor<4x3xf32>
  return %0, %1 : tensor<4xf32>, tensor<4x3xf32>
}

// -----

// Large constants may stand at the end of a file.

// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<2x2xf32>) -> tensor<2x2xf32> {
  // CHECK: stablehlo.constant {{.*}}dense<{{\[\[}}1.000000e+00, 2.000000e+00], [3.000000e+00, 4.000000e+00]]>
  %w = stablehlo.constant dense_resource<weights> : tensor<2x2xf32>
  %0 = stablehlo.add %x, %w : tensor<2x2xf32>
  return %0 : tensor<2x2xf32>
}

{-#
  dialect_resources: {
    builtin: {
      weights: "0x040000000000803F000000400000404000008040"
    }
  }
#-}
