// RUN: alpa-opt %s -alpa-expand-grouped-dots | FileCheck %s

// Rows are sorted once; the activation between two products works on sorted rows. Each run of a
// loop multiplies 256 rows from the first of its own on by the weights of their group.
// CHECK-LABEL: func.func @sorted
// CHECK-SAME:  (%[[X:.*]]: tensor<2048x6xf32>, %[[W:.*]]: tensor<8x6x6xf32>, %{{.*}}: tensor<2048xi32>)
// CHECK:       %[[ORDER:.*]]:2 = "stablehlo.sort"
// CHECK:       %[[INVERSE:.*]]:2 = "stablehlo.sort"(%[[ORDER]]#1,
// CHECK:       %[[SIZES:.*]] = stablehlo.reduce{{.*}} -> tensor<8xi32>
// CHECK:       %[[AT:.*]] = stablehlo.reshape %[[ORDER]]#1
// CHECK:       %[[XS:.*]] = "stablehlo.gather"(%[[X]], %[[AT]])
// CHECK:       %[[MORE:.*]] = stablehlo.pad %[[XS]], {{.*}} -> tensor<2304x6xf32>
// CHECK:       %[[ROWS:.*]] = stablehlo.select {{.*}} : tensor<15xi1>, tensor<15xi32>
// CHECK:       %[[GROUPS:.*]] = stablehlo.minimum {{.*}} : tensor<15xi32>
// CHECK:       %[[LOOP:.*]]:6 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[MADE:.*]] = %{{.*}}, %[[FIRST:.*]] = %[[ROWS]], %[[OF:.*]] = %[[GROUPS]], %[[LHS:.*]] = %[[MORE]], %[[RHS:.*]] = %[[W]])
// CHECK:         stablehlo.compare LT, %[[I]],
// CHECK:         %[[ROW:.*]] = stablehlo.reshape %{{.*}} : (tensor<1xi32>) -> tensor<i32>
// CHECK:         stablehlo.dynamic_slice %[[LHS]], %[[ROW]], %{{.*}}, sizes = [256, 6]
// CHECK:         stablehlo.dynamic_slice %[[RHS]], %{{.*}}, sizes = [1, 6, 6]
// CHECK:         %[[PART:.*]] = stablehlo.dot_general {{.*}}, contracting_dims = [1] x [0], precision = [HIGHEST, HIGHEST]
// CHECK:         stablehlo.dynamic_update_slice %[[MADE]], %[[PART]], %[[ROW]],
// CHECK:       %[[H:.*]] = stablehlo.slice %[[LOOP]]#1 [0:2048, 0:6]
// CHECK:       %[[KNOWN:.*]] = stablehlo.select %{{.*}}, %[[H]],
// CHECK:       %[[T:.*]] = stablehlo.tanh %[[KNOWN]]
// CHECK-NEXT:  stablehlo.constant
// CHECK-NEXT:  stablehlo.pad %[[T]],
// CHECK:       %[[SECOND:.*]]:6 = stablehlo.while({{.*}} = %[[ROWS]], {{.*}} = %[[GROUPS]],
// CHECK:         stablehlo.dot_general {{.*}}, contracting_dims = [1] x [1]
// CHECK:       %[[Y:.*]] = stablehlo.slice %[[SECOND]]#1
// CHECK:       %[[YS:.*]] = stablehlo.select %{{.*}}, %[[Y]],
// CHECK:       %[[BACK:.*]] = stablehlo.reshape %[[INVERSE]]#1
// CHECK:       %[[RESULT:.*]] = "stablehlo.gather"(%[[YS]], %[[BACK]])
// CHECK-NOT:   stablehlo.sort
// CHECK:       return %[[RESULT]]
func.func @sorted(%x: tensor<2048x6xf32>, %w: tensor<8x6x6xf32>, %g: tensor<2048xi32>) -> tensor<2048x6xf32> {
  %h = alpa.grouped_dot %x, %w of %g {contracting = 1 : i64, precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]} : (tensor<2048x6xf32>, tensor<8x6x6xf32>, tensor<2048xi32>) -> tensor<2048x6xf32>
  %t = stablehlo.tanh %h : tensor<2048x6xf32>
  %y = alpa.grouped_dot %t, %w of %g {contracting = 2 : i64} : (tensor<2048x6xf32>, tensor<8x6x6xf32>, tensor<2048xi32>) -> tensor<2048x6xf32>
  return %y : tensor<2048x6xf32>
}

// Sums are added up in float32, of rows that are of the run's group; more of them in a run.
// CHECK-LABEL: func.func @sums
// CHECK:       stablehlo.while({{.*}}) : tensor<i32>, tensor<8x6x4xf32>, tensor<11xi32>, tensor<11xi32>, tensor<11xi32>, tensor<5120x6xbf16>, tensor<5120x4xbf16>
// CHECK-COUNT-2: stablehlo.select {{.*}} : tensor<1024x{{[46]}}xi1>
// CHECK:         stablehlo.dot_general {{.*}}, contracting_dims = [0] x [0] : (tensor<1024x6xbf16>, tensor<1024x4xbf16>) -> tensor<6x4xf32>
// CHECK:         stablehlo.add
// CHECK:       stablehlo.convert {{.*}} -> tensor<8x6x4xbf16>
func.func @sums(%x: tensor<4096x6xbf16>, %y: tensor<4096x4xbf16>, %g: tensor<4096xi32>) -> tensor<8x6x4xbf16> {
  %s = alpa.grouped_sum %x, %y of %g : (tensor<4096x6xbf16>, tensor<4096x4xbf16>, tensor<4096xi32>) -> tensor<8x6x4xbf16>
  return %s : tensor<8x6x4xbf16>
}

// Few rows: one product with all groups.
// CHECK-LABEL: func.func @masked
// CHECK-NOT:   stablehlo.sort
// CHECK:       %[[MASKED:.*]] = stablehlo.select {{.*}} : tensor<3x8x6xi1>, tensor<3x8x6xf32>
// CHECK:       stablehlo.dot_general %[[MASKED]], %{{.*}}, contracting_dims = [2, 0] x [1, 0], precision = [HIGHEST, HIGHEST]
// CHECK:       stablehlo.dot_general %{{.*}}, %{{.*}}, contracting_dims = [1] x [0]
func.func @masked(%x: tensor<8x6xf32>, %w: tensor<3x6x6xf32>, %g: tensor<8xi32>) -> (tensor<8x6xf32>, tensor<3x6x6xf32>) {
  %h = alpa.grouped_dot %x, %w of %g {contracting = 1 : i64, precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]} : (tensor<8x6xf32>, tensor<3x6x6xf32>, tensor<8xi32>) -> tensor<8x6xf32>
  %s = alpa.grouped_sum %x, %h of %g : (tensor<8x6xf32>, tensor<8x6xf32>, tensor<8xi32>) -> tensor<3x6x6xf32>
  return %h, %s : tensor<8x6xf32>, tensor<3x6x6xf32>
}

// Two dimensions of batches: a sum for each.
// CHECK-LABEL: func.func @batches
// CHECK:       stablehlo.reshape %{{.*}} : (tensor<2x1x8x6xf32>) -> tensor<2x8x6xf32>
// CHECK-COUNT-2: stablehlo.dot_general %{{.*}}, %{{.*}}, contracting_dims = [1] x [0]
// CHECK:       stablehlo.concatenate
// CHECK:       stablehlo.reshape %{{.*}} : (tensor<2x3x6x4xf32>) -> tensor<2x1x3x6x4xf32>
func.func @batches(%x: tensor<2x1x8x6xf32>, %y: tensor<2x1x8x4xf32>, %g: tensor<2x1x8xi32>) -> tensor<2x1x3x6x4xf32> {
  %s = alpa.grouped_sum %x, %y of %g : (tensor<2x1x8x6xf32>, tensor<2x1x8x4xf32>, tensor<2x1x8xi32>) -> tensor<2x1x3x6x4xf32>
  return %s : tensor<2x1x3x6x4xf32>
}

// Rows in the order of 16 groups, of which this device has eight: its rows are turned to the
// front, and back.
// CHECK-LABEL: func.func @ordered
// CHECK-SAME:  (%[[X:.*]]: tensor<2048x6xf32>, %{{.*}}: tensor<8x6x6xf32>, %{{.*}}: tensor<2048xi32>)
// CHECK-NOT:   stablehlo.sort
// CHECK:       %[[TWICE:.*]] = stablehlo.concatenate %[[X]], %[[X]], dim = 0
// CHECK:       %[[TURNED:.*]] = stablehlo.dynamic_slice %[[TWICE]], %[[FIRST:.*]], %{{.*}}, sizes = [2048, 6]
// CHECK:       stablehlo.pad %[[TURNED]],
// CHECK:       %[[H:.*]]:6 = stablehlo.while
// CHECK:       %[[ALL:.*]] = stablehlo.slice %[[H]]#1
// CHECK:       %[[KNOWN:.*]] = stablehlo.select %{{.*}}, %[[ALL]],
// CHECK:       %[[BACK:.*]] = stablehlo.subtract %{{.*}}, %[[FIRST]]
// CHECK:       %[[BOTH:.*]] = stablehlo.concatenate %[[KNOWN]], %[[KNOWN]], dim = 0
// CHECK:       stablehlo.dynamic_slice %[[BOTH]], %[[BACK]],
func.func @ordered(%x: tensor<2048x6xf32>, %w: tensor<8x6x6xf32>, %g: tensor<2048xi32>) -> tensor<2048x6xf32> {
  %h = alpa.grouped_dot %x, %w of %g {contracting = 1 : i64, ordered = 16 : i64} : (tensor<2048x6xf32>, tensor<8x6x6xf32>, tensor<2048xi32>) -> tensor<2048x6xf32>
  return %h : tensor<2048x6xf32>
}

// All groups: rows stay where they are.
// CHECK-LABEL: func.func @ordered_in_all
// CHECK-NOT:   stablehlo.concatenate
// CHECK-NOT:   stablehlo.sort
// CHECK:       stablehlo.pad %arg0,
// CHECK:       stablehlo.while
func.func @ordered_in_all(%x: tensor<2048x6xf32>, %w: tensor<8x6x6xf32>, %g: tensor<2048xi32>) -> tensor<2048x6xf32> {
  %h = alpa.grouped_dot %x, %w of %g {contracting = 1 : i64, ordered = 8 : i64} : (tensor<2048x6xf32>, tensor<8x6x6xf32>, tensor<2048xi32>) -> tensor<2048x6xf32>
  return %h : tensor<2048x6xf32>
}
