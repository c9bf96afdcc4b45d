// A product that is only read transposed is made in that order.
// RUN: alpa-opt %s -alpa-import | FileCheck %s

// CHECK-LABEL: func.func public @main(
// CHECK-SAME: %[[A:[a-z0-9]+]]: tensor<2x3x4xf32>{{.*}}, %[[B:[a-z0-9]+]]: tensor<2x3x5x6xf32>
// As JAX writes a weight's gradient: the operands change places, each with its precision.
// CHECK: %[[W:.*]] = stablehlo.dot_general %[[B]], %[[A]], contracting_dims = [0, 1] x [0, 1], precision = [HIGHEST, DEFAULT]
// CHECK-SAME: (tensor<2x3x5x6xf32>, tensor<2x3x4xf32>) -> tensor<5x6x4xf32>
// Batch dimensions stay in front.
// CHECK: %[[BATCH:.*]] = stablehlo.dot_general %[[B]], %[[A]], batching_dims = [0] x [0], contracting_dims = [1] x [1]
// CHECK-SAME: -> tensor<2x5x6x4xf32>
// Another order, another reader, and an algorithm that names both operands stay as they are.
// CHECK: stablehlo.dot_general %[[A]], %[[B]]
// CHECK: stablehlo.transpose {{.*}}, dims = [2, 1, 0]
// CHECK: %[[TWICE:.*]] = stablehlo.dot_general %[[A]], %[[B]]
// CHECK: stablehlo.transpose %[[TWICE]], dims = [1, 2, 0]
// CHECK: stablehlo.dot_general %[[A]], %[[B]], {{.*}}algorithm =
// CHECK: stablehlo.transpose {{.*}}, dims = [1, 2, 0]
// A vector has nothing to exchange.
// CHECK: stablehlo.dot_general %{{.*}}, %[[A]], contracting_dims = [0, 1] x [0, 1]
func.func public @main(%a: tensor<2x3x4xf32>, %b: tensor<2x3x5x6xf32>, %v: tensor<2x3xf32>)
    -> (tensor<5x6x4xf32>, tensor<2x5x6x4xf32>, tensor<6x5x4xf32>, tensor<4x5x6xf32>, tensor<5x6x4xf32>, tensor<5x6x4xf32>, tensor<4xf32>) {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, HIGHEST] : (tensor<2x3x4xf32>, tensor<2x3x5x6xf32>) -> tensor<4x5x6xf32>
  %1 = stablehlo.transpose %0, dims = [1, 2, 0] : (tensor<4x5x6xf32>) -> tensor<5x6x4xf32>
  %2 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [1] x [1] : (tensor<2x3x4xf32>, tensor<2x3x5x6xf32>) -> tensor<2x4x5x6xf32>
  %3 = stablehlo.transpose %2, dims = [0, 2, 3, 1] : (tensor<2x4x5x6xf32>) -> tensor<2x5x6x4xf32>
  %4 = stablehlo.dot_general %a, %b, contracting_dims = [0, 1] x [0, 1] : (tensor<2x3x4xf32>, tensor<2x3x5x6xf32>) -> tensor<4x5x6xf32>
  %5 = stablehlo.transpose %4, dims = [2, 1, 0] : (tensor<4x5x6xf32>) -> tensor<6x5x4xf32>
  %6 = stablehlo.dot_general %a, %b, contracting_dims = [1, 0] x [1, 0] : (tensor<2x3x4xf32>, tensor<2x3x5x6xf32>) -> tensor<4x5x6xf32>
  %7 = stablehlo.transpose %6, dims = [1, 2, 0] : (tensor<4x5x6xf32>) -> tensor<5x6x4xf32>
  %8 = stablehlo.dot_general %a, %b, contracting_dims = [0, 1] x [0, 1], algorithm = <lhs_precision_type = tf32, rhs_precision_type = tf32, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1, allow_imprecise_accumulation = false> : (tensor<2x3x4xf32>, tensor<2x3x5x6xf32>) -> tensor<4x5x6xf32>
  %9 = stablehlo.transpose %8, dims = [1, 2, 0] : (tensor<4x5x6xf32>) -> tensor<5x6x4xf32>
  %10 = stablehlo.dot_general %v, %a, contracting_dims = [0, 1] x [0, 1] : (tensor<2x3xf32>, tensor<2x3x4xf32>) -> tensor<4xf32>
  return %1, %3, %5, %6, %7, %9, %10 : tensor<5x6x4xf32>, tensor<2x5x6x4xf32>, tensor<6x5x4xf32>, tensor<4x5x6xf32>, tensor<5x6x4xf32>, tensor<5x6x4xf32>, tensor<4xf32>
}
