// RUN: alpa-opt %s '-alpa-pad-dimensions=parts=2,4,8 most-waste=1.0' -split-input-file | FileCheck %s
// RUN: alpa-opt %s '-alpa-pad-dimensions=parts=2,4,8 most-waste=0.02' -split-input-file | FileCheck %s --check-prefix=LITTLE
// RUN: alpa-opt %s '-alpa-pad-dimensions=parts=1 most-waste=0.3 align-rows=true' -split-input-file | FileCheck %s --check-prefix=ROWS
// RUN: alpa-opt %s '-alpa-pad-dimensions=parts=2,4,8 most-waste=1.0 only-batch=true' -split-input-file | FileCheck %s --check-prefix=BATCH

// LITTLE-NOT: stablehlo.pad

// Words of a vocabulary: the weights get zeros, the largest logit is one of the 13, and the result
// has its own shape again.
// CHECK: alpa.padded = ["13 to 16"]
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[X:.*]]: tensor<4x16xf32>, %[[W:.*]]: tensor<16x13xf32>)
// CHECK:     %[[LONG:.*]] = stablehlo.pad %[[W]], %{{.*}}, low = [0, 0], high = [0, 3], interior = [0, 0]
// CHECK:     %[[LOGITS:.*]] = stablehlo.dot_general %[[X]], %[[LONG]], {{.*}} -> tensor<4x16xf32>
// CHECK:     %[[PLACE:.*]] = stablehlo.iota dim = 1 : tensor<4x16xi32>
// CHECK:     %[[INSIDE:.*]] = stablehlo.compare LT, %[[PLACE]], %{{.*}}
// CHECK:     %[[LOWEST:.*]] = stablehlo.constant dense<0xFF800000> : tensor<4x16xf32>
// CHECK:     %[[MASKED:.*]] = stablehlo.select %[[INSIDE]], %[[LOGITS]], %[[LOWEST]]
// CHECK:     %[[MOST:.*]] = stablehlo.reduce(%[[MASKED]]
// CHECK:     %[[EXP:.*]] = stablehlo.exponential %[[LOGITS]] : tensor<4x16xf32>
// CHECK:     %[[CUT:.*]] = stablehlo.slice %[[EXP]] [0:4, 0:13]
// CHECK:     return %[[CUT]], %[[MOST]]
func.func @main(%x: tensor<4x16xf32>, %w: tensor<16x13xf32>) -> (tensor<4x13xf32>, tensor<4xf32>) {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %logits = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x16xf32>, tensor<16x13xf32>) -> tensor<4x13xf32>
  %most = stablehlo.reduce(%logits init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<4x13xf32>, tensor<f32>) -> tensor<4xf32>
  %exp = stablehlo.exponential %logits : tensor<4x13xf32>
  return %exp, %most : tensor<4x13xf32>, tensor<4xf32>
}

// -----

// Heads: the major factor of a dimension. Both operands of the contraction are free of padding,
// the weights since zeros were put there.
// CHECK: alpa.padded = ["5 to 8"]
// CHECK-LABEL: func.func @main
// CHECK:     stablehlo.pad %{{.*}}, low = [0, 0], high = [0, 48], interior = [0, 0] : (tensor<8x80xf32>, tensor<f32>) -> tensor<8x128xf32>
// CHECK:     stablehlo.reshape %{{.*}} : (tensor<2x128xf32>) -> tensor<2x8x16xf32>
// CHECK:     stablehlo.tanh %{{.*}} : tensor<2x8x16xf32>
// CHECK:     %[[FLAT:.*]] = stablehlo.reshape %{{.*}} : (tensor<2x8x16xf32>) -> tensor<2x128xf32>
// CHECK:     %[[OUT:.*]] = stablehlo.pad %{{.*}}, low = [0, 0], high = [48, 0], interior = [0, 0] : (tensor<80x8xf32>, tensor<f32>) -> tensor<128x8xf32>
// CHECK:     %[[MASKED:.*]] = stablehlo.select %{{.*}}, %[[FLAT]], %{{.*}} : tensor<2x128xi1>, tensor<2x128xf32>
// CHECK:     stablehlo.dot_general %[[MASKED]], %[[OUT]]
func.func @main(%x: tensor<2x8xf32>, %q: tensor<8x80xf32>, %o: tensor<80x8xf32>) -> tensor<2x8xf32> {
  %0 = stablehlo.dot_general %x, %q, contracting_dims = [1] x [0] : (tensor<2x8xf32>, tensor<8x80xf32>) -> tensor<2x80xf32>
  %1 = stablehlo.reshape %0 : (tensor<2x80xf32>) -> tensor<2x5x16xf32>
  %2 = stablehlo.tanh %1 : tensor<2x5x16xf32>
  %3 = stablehlo.reshape %2 : (tensor<2x5x16xf32>) -> tensor<2x80xf32>
  %4 = stablehlo.dot_general %3, %o, contracting_dims = [1] x [0] : (tensor<2x80xf32>, tensor<80x8xf32>) -> tensor<2x8xf32>
  return %4 : tensor<2x8xf32>
}

// -----

// Rows of a table: an index beyond the end takes the last of 13; a cumulative sum gets them without
// padding.
// CHECK: alpa.padded = ["13 to 16"]
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[W:.*]]: tensor<13x8xf32>, %[[I:.*]]: tensor<4x1xi32>, %[[X:.*]]: tensor<8x8xf32>)
// CHECK-DAG: %[[LAST:.*]] = stablehlo.constant dense<12> : tensor<1xi32>
// CHECK:     %[[LIMIT:.*]] = stablehlo.broadcast_in_dim %[[LAST]], dims = [1] : (tensor<1xi32>) -> tensor<4x1xi32>
// CHECK:     %[[INDEX:.*]] = stablehlo.minimum %[[I]], %[[LIMIT]]
// CHECK:     "stablehlo.gather"(%[[TABLE:.*]], %[[INDEX]])
// CHECK-SAME: (tensor<16x8xf32>, tensor<4x1xi32>) -> tensor<4x8xf32>
// CHECK:     %[[CUT:.*]] = stablehlo.slice %[[TABLE]] [0:13, 0:8]
// CHECK:     "stablehlo.reduce_window"(%[[CUT]]
func.func @main(%w: tensor<13x8xf32>, %i: tensor<4x1xi32>, %x: tensor<8x8xf32>) -> (tensor<4x8xf32>, tensor<13x8xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %t = stablehlo.dot_general %w, %x, contracting_dims = [1] x [0] : (tensor<13x8xf32>, tensor<8x8xf32>) -> tensor<13x8xf32>
  %rows = "stablehlo.gather"(%t, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<13x8xf32>, tensor<4x1xi32>) -> tensor<4x8xf32>
  %sums = "stablehlo.reduce_window"(%t, %zero) <{padding = dense<[[12, 0], [0, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 13, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<13x8xf32>, tensor<f32>) -> tensor<13x8xf32>
  return %rows, %sums : tensor<4x8xf32>, tensor<13x8xf32>
}

// -----

// Updates in the padding bring nothing, and their places are neither in order nor apart.
// CHECK: alpa.padded = ["13 to 16"]
// CHECK-LABEL: func.func @main
// CHECK:     %[[MASKED:.*]] = stablehlo.select %{{.*}}, %{{.*}}, %{{.*}} : tensor<16x8xi1>, tensor<16x8xf32>
// CHECK:     "stablehlo.scatter"(%{{.*}}, %{{.*}}, %[[MASKED]])
// CHECK-SAME: indices_are_sorted = false
// CHECK-SAME: unique_indices = false
// CHECK:     (tensor<20x8xf32>, tensor<16x1xi32>, tensor<16x8xf32>) -> tensor<20x8xf32>
func.func @main(%w: tensor<13x8xf32>, %i: tensor<13x1xi32>, %x: tensor<8x8xf32>, %into: tensor<20x8xf32>) -> tensor<20x8xf32> {
  %t = stablehlo.dot_general %w, %x, contracting_dims = [1] x [0] : (tensor<13x8xf32>, tensor<8x8xf32>) -> tensor<13x8xf32>
  %sum = "stablehlo.scatter"(%into, %i, %t) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<20x8xf32>, tensor<13x1xi32>, tensor<13x8xf32>) -> tensor<20x8xf32>
  return %sum : tensor<20x8xf32>
}

// -----

// Of examples and words the examples alone, where that is asked for.
// BATCH: alpa.padded = ["7 to 8"]
// BATCH: stablehlo.pad %{{.*}}, low = [0, 0], high = [1, 0]
// BATCH: stablehlo.dot_general {{.*}} -> tensor<8x13xf32>
// CHECK: alpa.padded = ["13 to 16", "7 to 8"]
// CHECK-LABEL: func.func @main
func.func @main(%x: tensor<7x16xf32> {alpa.kind = "batch"}, %w: tensor<16x13xf32> {alpa.kind = "state"}) -> tensor<7x13xf32> {
  %logits = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<7x16xf32>, tensor<16x13xf32>) -> tensor<7x13xf32>
  return %logits : tensor<7x13xf32>
}

// -----

// Rows of 13 numbers of 16 bits are no multiple of 16 bytes; those of 32 bits stay as they are.
// ROWS-NOT: 5 to
// ROWS: alpa.padded = ["13 to 16"]
// ROWS: stablehlo.dot_general {{.*}} -> tensor<4x16xbf16>
// ROWS: stablehlo.dot_general {{.*}} -> tensor<4x11xf32>
// CHECK: alpa.padded = ["11 to 16", "13 to 16"]
func.func @main(%x: tensor<4x16xbf16>, %w: tensor<16x13xbf16>, %y: tensor<4x16xf32>, %v: tensor<16x11xf32>) -> (tensor<4x13xbf16>, tensor<4x11xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x16xbf16>, tensor<16x13xbf16>) -> tensor<4x13xbf16>
  %1 = stablehlo.dot_general %y, %v, contracting_dims = [1] x [0] : (tensor<4x16xf32>, tensor<16x11xf32>) -> tensor<4x11xf32>
  return %0, %1 : tensor<4x13xbf16>, tensor<4x11xf32>
}
