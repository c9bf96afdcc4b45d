// RUN: alpa-opt %s -alpa-expand-grouped-dots | FileCheck %s

// Rows are sorted once; the activation between two products works on sorted rows.
// CHECK-LABEL: func.func @sorted
// CHECK-SAME:  (%[[X:.*]]: tensor<8x6xf32>, %[[W:.*]]: tensor<3x6x6xf32>, %{{.*}}: tensor<8xi32>)
// CHECK:       %[[ORDER:.*]]:2 = "stablehlo.sort"
// CHECK:       %[[INVERSE:.*]]:2 = "stablehlo.sort"(%[[ORDER]]#1,
// CHECK:       %[[SIZES:.*]] = stablehlo.reduce{{.*}} -> tensor<3xi32>
// CHECK:       %[[AT:.*]] = stablehlo.reshape %[[ORDER]]#1
// CHECK:       %[[XS:.*]] = "stablehlo.gather"(%[[X]], %[[AT]])
// CHECK:       %[[H:.*]] = "chlo.ragged_dot"(%[[XS]], %[[W]], %[[SIZES]])
// CHECK:       %[[KNOWN:.*]] = stablehlo.select %{{.*}}, %[[H]],
// CHECK:       %[[T:.*]] = stablehlo.tanh %[[KNOWN]]
// CHECK-NEXT:  %[[Y:.*]] = "chlo.ragged_dot"(%[[T]], %[[W]], %[[SIZES]])
// CHECK:       %[[YS:.*]] = stablehlo.select %{{.*}}, %[[Y]],
// CHECK:       %[[BACK:.*]] = stablehlo.reshape %[[INVERSE]]#1
// CHECK:       %[[RESULT:.*]] = "stablehlo.gather"(%[[YS]], %[[BACK]])
// CHECK-NOT:   stablehlo.sort
// CHECK:       return %[[RESULT]]
func.func @sorted(%x: tensor<8x6xf32>, %w: tensor<3x6x6xf32>, %g: tensor<8xi32>) -> tensor<8x6xf32> {
  %h = alpa.grouped_dot %x, %w of %g {contracting = 1 : i64} : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<8xi32>) -> tensor<8x6xf32>
  %t = stablehlo.tanh %h : tensor<8x6xf32>
  %y = alpa.grouped_dot %t, %w of %g {contracting = 2 : i64} : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<8xi32>) -> tensor<8x6xf32>
  return %y : tensor<8x6xf32>
}

// CHECK-LABEL: func.func @dense
// CHECK-NOT:   stablehlo.sort
// CHECK:       %[[MASKED:.*]] = stablehlo.select {{.*}} : tensor<3x8x6xi1>, tensor<3x8x6xf32>
// CHECK:       stablehlo.dot_general %[[MASKED]], %{{.*}}, contracting_dims = [2, 0] x [1, 0]
// CHECK:       stablehlo.dot_general %{{.*}}, %{{.*}}, contracting_dims = [1] x [0]
func.func @dense(%x: tensor<8x6xf32>, %w: tensor<3x6x6xf32>, %g: tensor<8xi32>) -> (tensor<8x6xf32>, tensor<3x6x6xf32>) {
  %h = alpa.grouped_dot %x, %w of %g {contracting = 1 : i64, dense} : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<8xi32>) -> tensor<8x6xf32>
  %s = alpa.grouped_sum %x, %h of %g {dense} : (tensor<8x6xf32>, tensor<8x6xf32>, tensor<8xi32>) -> tensor<3x6x6xf32>
  return %h, %s : tensor<8x6xf32>, tensor<3x6x6xf32>
}

// Two dimensions of batches: a sum for each.
// CHECK-LABEL: func.func @batches
// CHECK:       stablehlo.reshape %{{.*}} : (tensor<2x1x8x6xf32>) -> tensor<2x8x6xf32>
// CHECK-COUNT-2: stablehlo.dot_general %{{.*}}, %{{.*}}, contracting_dims = [1] x [0]
// CHECK:       stablehlo.concatenate
// CHECK:       stablehlo.reshape %{{.*}} : (tensor<2x3x6x4xf32>) -> tensor<2x1x3x6x4xf32>
func.func @batches(%x: tensor<2x1x8x6xf32>, %y: tensor<2x1x8x4xf32>, %g: tensor<2x1x8xi32>) -> tensor<2x1x3x6x4xf32> {
  %s = alpa.grouped_sum %x, %y of %g {dense} : (tensor<2x1x8x6xf32>, tensor<2x1x8x4xf32>, tensor<2x1x8xi32>) -> tensor<2x1x3x6x4xf32>
  return %s : tensor<2x1x3x6x4xf32>
}

// Rows in the order of six groups, of which this device has three: its rows are turned to the
// front, and back.
// CHECK-LABEL: func.func @ordered
// CHECK-SAME:  (%[[X:.*]]: tensor<8x6xf32>, %[[W:.*]]: tensor<3x6x6xf32>, %{{.*}}: tensor<8xi32>)
// CHECK-NOT:   stablehlo.sort
// CHECK:       %[[TWICE:.*]] = stablehlo.concatenate %[[X]], %[[X]], dim = 0
// CHECK:       %[[TURNED:.*]] = stablehlo.dynamic_slice %[[TWICE]], %[[FIRST:.*]], %{{.*}}, sizes = [8, 6]
// CHECK:       %[[H:.*]] = "chlo.ragged_dot"(%[[TURNED]], %[[W]],
// CHECK:       %[[KNOWN:.*]] = stablehlo.select %{{.*}}, %[[H]],
// CHECK:       %[[BACK:.*]] = stablehlo.subtract %{{.*}}, %[[FIRST]]
// CHECK:       %[[BOTH:.*]] = stablehlo.concatenate %[[KNOWN]], %[[KNOWN]], dim = 0
// CHECK:       stablehlo.dynamic_slice %[[BOTH]], %[[BACK]],
func.func @ordered(%x: tensor<8x6xf32>, %w: tensor<3x6x6xf32>, %g: tensor<8xi32>) -> tensor<8x6xf32> {
  %h = alpa.grouped_dot %x, %w of %g {contracting = 1 : i64, ordered = 6 : i64} : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<8xi32>) -> tensor<8x6xf32>
  return %h : tensor<8x6xf32>
}

// All groups: rows stay where they are.
// CHECK-LABEL: func.func @ordered_in_all
// CHECK-NOT:   stablehlo.dynamic_slice
// CHECK-NOT:   stablehlo.sort
// CHECK:       "chlo.ragged_dot"(%arg0,
func.func @ordered_in_all(%x: tensor<8x6xf32>, %w: tensor<3x6x6xf32>, %g: tensor<8xi32>) -> tensor<8x6xf32> {
  %h = alpa.grouped_dot %x, %w of %g {contracting = 1 : i64, ordered = 3 : i64} : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<8xi32>) -> tensor<8x6xf32>
  return %h : tensor<8x6xf32>
}
