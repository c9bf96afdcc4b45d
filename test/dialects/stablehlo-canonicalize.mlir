// RUN: alpa-opt %s -inline -canonicalize -cse | FileCheck %s

// CHECK-LABEL: func.func public @folds
// CHECK-SAME: %[[A:.*]]: tensor<4x5xf32>, %[[B:.*]]: tensor<4x5xf32>
func.func public @folds(%a: tensor<4x5xf32>, %b: tensor<4x5xf32>) -> (tensor<4x5xf32>, tensor<4x5xf32>, tensor<4x5xf32>, tensor<4x5xf32>, tensor<4x5xf32>, tensor<4x5xf32>, tensor<4x5xf32>) {
  %0 = stablehlo.reshape %a : (tensor<4x5xf32>) -> tensor<20xf32>
  %1 = stablehlo.reshape %0 : (tensor<20xf32>) -> tensor<4x5xf32>
  %2 = stablehlo.transpose %a, dims = [0, 1] : (tensor<4x5xf32>) -> tensor<4x5xf32>
  %3 = stablehlo.broadcast_in_dim %a, dims = [0, 1] : (tensor<4x5xf32>) -> tensor<4x5xf32>
  %4 = stablehlo.slice %a [0:4, 0:5] : (tensor<4x5xf32>) -> tensor<4x5xf32>
  %5 = stablehlo.convert %a : tensor<4x5xf32>
  %6 = stablehlo.concatenate %a, dim = 0 : (tensor<4x5xf32>) -> tensor<4x5xf32>
  %true = stablehlo.constant dense<true> : tensor<i1>
  %7 = stablehlo.select %true, %b, %a : tensor<i1>, tensor<4x5xf32>
  // CHECK-NEXT: return %[[A]], %[[A]], %[[A]], %[[A]], %[[A]], %[[A]], %[[B]]
  return %1, %2, %3, %4, %5, %6, %7 : tensor<4x5xf32>, tensor<4x5xf32>, tensor<4x5xf32>, tensor<4x5xf32>, tensor<4x5xf32>, tensor<4x5xf32>, tensor<4x5xf32>
}

// A transposition of a square matrix keeps the type, but is no identity.
// CHECK-LABEL: func.func public @keeps
func.func public @keeps(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
  // CHECK: stablehlo.transpose
  %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}

// CHECK-LABEL: func.func public @merges
func.func public @merges(%a: tensor<4xf32>, %b: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK-NEXT: %[[SUM:.*]] = stablehlo.add
  // CHECK-NEXT: return %[[SUM]], %[[SUM]]
  %0 = stablehlo.add %a, %b : tensor<4xf32>
  %1 = stablehlo.add %b, %a : tensor<4xf32>
  %unused = stablehlo.exponential %a : tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}

// Calls with side effects stay, others go.
// CHECK-LABEL: func.func public @effects
func.func public @effects(%a: tensor<4xf32>) {
  // CHECK-NEXT: stablehlo.custom_call @print
  // CHECK-NEXT: return
  stablehlo.custom_call @print(%a) {has_side_effect = true} : (tensor<4xf32>) -> ()
  %0 = stablehlo.custom_call @pure(%a) : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// CHECK-LABEL: func.func public @inlines
func.func public @inlines(%a: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: stablehlo.while
  // CHECK: do {
  // CHECK-NOT: call
  // CHECK: stablehlo.sine
  %0 = stablehlo.while(%x = %a) : tensor<4xf32>
  cond {
    %c = stablehlo.constant dense<false> : tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %1 = func.call @callee(%x) : (tensor<4xf32>) -> tensor<4xf32>
    stablehlo.return %1 : tensor<4xf32>
  }
  return %0 : tensor<4xf32>
}

func.func private @callee(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.sine %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// What was padded is cut out again.
// CHECK-LABEL: func.func @slice_of_pad
// CHECK-SAME: (%[[X:.*]]: tensor<2x3xf32>
// CHECK:     %[[PAD:.*]] = stablehlo.pad
// CHECK:     %[[OTHER:.*]] = stablehlo.slice %[[PAD]]
// CHECK:     return %[[X]], %[[OTHER]]
func.func @slice_of_pad(%x: tensor<2x3xf32>, %zero: tensor<f32>) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
  %0 = stablehlo.pad %x, %zero, low = [0, 1], high = [2, 0], interior = [0, 0] : (tensor<2x3xf32>, tensor<f32>) -> tensor<4x4xf32>
  %1 = stablehlo.slice %0 [0:2, 1:4] : (tensor<4x4xf32>) -> tensor<2x3xf32>
  %2 = stablehlo.slice %0 [1:3, 1:4] : (tensor<4x4xf32>) -> tensor<2x3xf32>
  return %1, %2 : tensor<2x3xf32>, tensor<2x3xf32>
}
