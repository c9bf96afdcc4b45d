// RUN: alpa-opt %s -split-input-file -alpa-split-stacked | FileCheck %s -enable-var-scope

// Weights that are converted before the layers, a moment, and a global norm. Conversions go to the
// equation of their layer; results and arguments name the rows they are.

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[W0:.+]]: tensor<1x8x8xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.name = "w[0]", alpa.piece = {argument = 0 : i64, axis = 0 : i64, offset = 0 : i64, size = 1 : i64}}
// CHECK-SAME: %[[W1:.+]]: tensor<1x8x8xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.name = "w[1]", alpa.piece = {argument = 0 : i64, axis = 0 : i64, offset = 1 : i64, size = 1 : i64}}
// CHECK-SAME: %[[M0:.+]]: tensor<1x8x8xf32> {alpa.carried_by = 3 : i64
// CHECK-SAME: %[[M1:.+]]: tensor<1x8x8xf32> {alpa.carried_by = 4 : i64
// CHECK-SAME: %[[X:.+]]: tensor<4x8xbf16> {alpa.kind = "batch"}
// CHECK-SAME: -> (tensor<4x8xbf16> {alpa.name = "y"}, tensor<1x8x8xf32> {alpa.name = "nw[0]", alpa.piece = {axis = 0 : i64, offset = 0 : i64, result = 1 : i64, size = 1 : i64}}, tensor<1x8x8xf32>
func.func @main(%w: tensor<2x8x8xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64, alpa.name = "w"}, %mu: tensor<2x8x8xf32> {alpa.kind = "state", alpa.carried_by = 2 : i64}, %x: tensor<4x8xbf16> {alpa.kind = "batch"}) -> (tensor<4x8xbf16> {alpa.name = "y"}, tensor<2x8x8xf32> {alpa.name = "nw"}, tensor<2x8x8xf32>) {
  // CHECK-DAG: %[[B0:.+]] = stablehlo.convert %[[W0]] {alpa.eqn = 1 : i64, alpa.phase = "forward"}
  // CHECK-DAG: %[[B1:.+]] = stablehlo.convert %[[W1]] {alpa.eqn = 2 : i64, alpa.phase = "forward"}
  %0 = stablehlo.convert %w {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<2x8x8xf32>) -> tensor<2x8x8xbf16>
  %1 = stablehlo.slice %0 [0:1, 0:8, 0:8] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<2x8x8xbf16>) -> tensor<1x8x8xbf16>
  // CHECK: stablehlo.reshape %[[B0]] {alpa.eqn = 1
  %2 = stablehlo.reshape %1 {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<1x8x8xbf16>) -> tensor<8x8xbf16>
  %3 = stablehlo.dot_general %x, %2, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  %4 = stablehlo.slice %0 [1:2, 0:8, 0:8] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<2x8x8xbf16>) -> tensor<1x8x8xbf16>
  // CHECK: stablehlo.reshape %[[B1]] {alpa.eqn = 2
  %5 = stablehlo.reshape %4 {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<1x8x8xbf16>) -> tensor<8x8xbf16>
  %6 = stablehlo.dot_general %3, %5, contracting_dims = [1] x [0] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
  // CHECK: %[[D1:.+]] = stablehlo.dot_general {{.*}}alpa.phase = "backward"
  %7 = stablehlo.dot_general %3, %6, contracting_dims = [0] x [0] {alpa.eqn = 2 : i64, alpa.phase = "backward"} : (tensor<4x8xbf16>, tensor<4x8xbf16>) -> tensor<8x8xbf16>
  // CHECK: %[[G1:.+]] = stablehlo.reshape %[[D1]]
  %8 = stablehlo.reshape %7 {alpa.eqn = 2 : i64, alpa.phase = "backward"} : (tensor<8x8xbf16>) -> tensor<1x8x8xbf16>
  %9 = stablehlo.dot_general %x, %6, contracting_dims = [0] x [0] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<4x8xbf16>, tensor<4x8xbf16>) -> tensor<8x8xbf16>
  // CHECK: %[[G0:.+]] = stablehlo.reshape {{.*}} {alpa.eqn = 1
  %10 = stablehlo.reshape %9 {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8x8xbf16>) -> tensor<1x8x8xbf16>
  %11 = stablehlo.concatenate %10, %8, dim = 0 {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<1x8x8xbf16>, tensor<1x8x8xbf16>) -> tensor<2x8x8xbf16>
  // CHECK-NOT: concatenate
  // CHECK: %[[F0:.+]] = stablehlo.convert %[[G0]] {alpa.eqn = 1 : i64, alpa.phase = "backward"}
  // CHECK: %[[F1:.+]] = stablehlo.convert %[[G1]] {alpa.eqn = 2 : i64, alpa.phase = "backward"}
  %12 = stablehlo.convert %11 {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<2x8x8xbf16>) -> tensor<2x8x8xf32>
  %zero = stablehlo.constant {alpa.phase = "update"} dense<0.0> : tensor<f32>
  // CHECK: %[[N0:.+]] = stablehlo.reduce(%[[F0]] {{.*}} {alpa.phase = "update"} : (tensor<1x8x8xf32>
  // CHECK: %[[N1:.+]] = stablehlo.reduce(%[[F1]]
  // CHECK: %[[N:.+]] = stablehlo.add %[[N0]], %[[N1]] {alpa.phase = "update"} : tensor<f32>
  %13 = stablehlo.reduce(%12 init: %zero) applies stablehlo.add across dimensions = [0, 1, 2] {alpa.phase = "update"} : (tensor<2x8x8xf32>, tensor<f32>) -> tensor<f32>
  // One broadcast serves all rows: layers repeat it.
  // CHECK: %[[B:.+]] = stablehlo.broadcast_in_dim %[[N]], {{.*}} -> tensor<1x8x8xf32>
  %14 = stablehlo.broadcast_in_dim %13, dims = [] {alpa.phase = "update"} : (tensor<f32>) -> tensor<2x8x8xf32>
  // CHECK: %[[Q0:.+]] = stablehlo.divide %[[F0]], %[[B]]
  // CHECK: %[[Q1:.+]] = stablehlo.divide %[[F1]], %[[B]]
  %15 = stablehlo.divide %12, %14 {alpa.phase = "update"} : tensor<2x8x8xf32>
  // CHECK: %[[A0:.+]] = stablehlo.add %[[M0]], %[[Q0]]
  // CHECK: %[[A1:.+]] = stablehlo.add %[[M1]], %[[Q1]]
  %16 = stablehlo.add %mu, %15 {alpa.phase = "update"} : tensor<2x8x8xf32>
  // CHECK: %[[R0:.+]] = stablehlo.subtract %[[W0]], %[[A0]]
  // CHECK: %[[R1:.+]] = stablehlo.subtract %[[W1]], %[[A1]]
  %17 = stablehlo.subtract %w, %16 {alpa.phase = "update"} : tensor<2x8x8xf32>
  // CHECK: return %{{.+}}, %[[R0]], %[[R1]], %[[A0]], %[[A1]]
  return %6, %17, %16 : tensor<4x8xbf16>, tensor<2x8x8xf32>, tensor<2x8x8xf32>
}

// -----

// An op that mixes the rows sees all of them; a reduction that does not begin with nothing, too.

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[W0:.+]]: tensor<1x8xf32> {{.*}}, %[[W1:.+]]: tensor<1x8xf32>
func.func @main(%w: tensor<2x8xf32> {alpa.kind = "state"}) -> (tensor<2x8xf32>, tensor<8xf32>, tensor<1x8xf32>) {
  // CHECK: %[[S:.+]] = stablehlo.add %[[W0]], %[[W1]] {alpa.eqn = 1
  %0 = stablehlo.slice %w [0:1, 0:8] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<2x8xf32>) -> tensor<1x8xf32>
  %1 = stablehlo.slice %w [1:2, 0:8] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<2x8xf32>) -> tensor<1x8xf32>
  %2 = stablehlo.add %0, %1 {alpa.eqn = 1 : i64, alpa.phase = "forward"} : tensor<1x8xf32>
  // CHECK: %[[W:.+]] = stablehlo.concatenate %[[W0]], %[[W1]], dim = 0 {alpa.phase = "update"}
  // CHECK: %[[V:.+]] = stablehlo.reverse %[[W]], dims = [0]
  %3 = stablehlo.reverse %w, dims = [0] {alpa.phase = "update"} : tensor<2x8xf32>
  %one = stablehlo.constant {alpa.phase = "update"} dense<1.0> : tensor<f32>
  // CHECK: stablehlo.reduce(%[[W]]
  %4 = stablehlo.reduce(%w init: %one) applies stablehlo.add across dimensions = [0] {alpa.phase = "update"} : (tensor<2x8xf32>, tensor<f32>) -> tensor<8xf32>
  // CHECK: return %[[V]], %{{.+}}, %[[S]]
  return %3, %4, %2 : tensor<2x8xf32>, tensor<8xf32>, tensor<1x8xf32>
}

// -----

// Rows of what only the batch makes stay a tensor.

// CHECK-LABEL: func.func @main
// CHECK-SAME: (%{{.+}}: tensor<2x8xf32> {alpa.kind = "batch"})
// CHECK: stablehlo.sine {{.*}} : tensor<2x8xf32>
func.func @main(%x: tensor<2x8xf32> {alpa.kind = "batch"}) -> tensor<1x8xf32> {
  %0 = stablehlo.sine %x {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<2x8xf32>
  %1 = stablehlo.slice %0 [0:1, 0:8] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<2x8xf32>) -> tensor<1x8xf32>
  %2 = stablehlo.slice %0 [1:2, 0:8] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<2x8xf32>) -> tensor<1x8xf32>
  %3 = stablehlo.add %1, %2 {alpa.eqn = 1 : i64, alpa.phase = "forward"} : tensor<1x8xf32>
  return %3 : tensor<1x8xf32>
}

// -----

// Layers along dimension 1, which a transpose moves to the front and another one moves back. Rows
// of arguments and results are their dimension 0; the optimizer works on them as they are.

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[W0:.+]]: tensor<1x8x4xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.piece = {argument = 0 : i64, axis = 1 : i64, offset = 0 : i64, size = 1 : i64}, alpa.pin = #alpa.sharding<[R, S0, R]>}
// CHECK-SAME: %[[W1:.+]]: tensor<1x8x4xf32> {alpa.carried_by = 2 : i64
// CHECK-SAME: -> (tensor<4x4xf32>, tensor<1x8x4xf32> {alpa.piece = {axis = 1 : i64, offset = 0 : i64, result = 1 : i64, size = 1 : i64}}, tensor<1x8x4xf32> {{.*}}, tensor<f32>, tensor<8x2x4xf32>)
func.func @main(%w: tensor<8x2x4xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64, alpa.pin = #alpa.sharding<[S0, R, R]>}, %x: tensor<4x8xf32> {alpa.kind = "batch"}) -> (tensor<4x4xf32>, tensor<8x2x4xf32>, tensor<f32>, tensor<8x2x4xf32>) {
  // CHECK-NOT: transpose
  // CHECK: %[[M0:.+]] = stablehlo.reshape %[[W0]] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<1x8x4xf32>) -> tensor<8x4xf32>
  // CHECK: stablehlo.dot_general %{{.+}}, %[[M0]]
  // CHECK: %[[M1:.+]] = stablehlo.reshape %[[W1]] {alpa.eqn = 2
  %0 = stablehlo.transpose %w, dims = [1, 0, 2] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x2x4xf32>) -> tensor<2x8x4xf32>
  %1 = stablehlo.slice %0 [0:1, 0:8, 0:4] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<2x8x4xf32>) -> tensor<1x8x4xf32>
  %2 = stablehlo.reshape %1 {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<1x8x4xf32>) -> tensor<8x4xf32>
  %3 = stablehlo.dot_general %x, %2, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %4 = stablehlo.slice %0 [1:2, 0:8, 0:4] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<2x8x4xf32>) -> tensor<1x8x4xf32>
  %5 = stablehlo.reshape %4 {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<1x8x4xf32>) -> tensor<8x4xf32>
  %6 = stablehlo.dot_general %x, %5, contracting_dims = [1] x [0] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  // CHECK: %[[G0:.+]] = stablehlo.reshape %{{.+}} {alpa.eqn = 1 : i64, alpa.phase = "backward"}
  // CHECK: %[[G1:.+]] = stablehlo.reshape %{{.+}} {alpa.eqn = 2 : i64, alpa.phase = "backward"}
  %7 = stablehlo.dot_general %x, %3, contracting_dims = [0] x [0] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<4x8xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %8 = stablehlo.reshape %7 {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>) -> tensor<1x8x4xf32>
  %9 = stablehlo.dot_general %x, %6, contracting_dims = [0] x [0] {alpa.eqn = 2 : i64, alpa.phase = "backward"} : (tensor<4x8xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %10 = stablehlo.reshape %9 {alpa.eqn = 2 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>) -> tensor<1x8x4xf32>
  %11 = stablehlo.concatenate %8, %10, dim = 0 {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<1x8x4xf32>, tensor<1x8x4xf32>) -> tensor<2x8x4xf32>
  %12 = stablehlo.transpose %11, dims = [1, 0, 2] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<2x8x4xf32>) -> tensor<8x2x4xf32>
  // CHECK: stablehlo.reduce(%[[G0]] {{.*}} dimensions = [0, 1, 2] {alpa.phase = "update"} : (tensor<1x8x4xf32>
  // CHECK: stablehlo.add
  %zero = stablehlo.constant {alpa.phase = "update"} dense<0.0> : tensor<f32>
  %13 = stablehlo.reduce(%12 init: %zero) applies stablehlo.add across dimensions = [0, 1, 2] {alpa.phase = "update"} : (tensor<8x2x4xf32>, tensor<f32>) -> tensor<f32>
  // CHECK: %[[R0:.+]] = stablehlo.subtract %[[W0]], %[[G0]]
  // CHECK: %[[R1:.+]] = stablehlo.subtract %[[W1]], %[[G1]]
  %14 = stablehlo.subtract %w, %12 {alpa.phase = "update"} : tensor<8x2x4xf32>
  // What mixes the rows has them where they were.
  // CHECK: stablehlo.concatenate {{.*}} dim = 1 {{.*}} -> tensor<8x2x4xf32>
  // CHECK: stablehlo.reverse
  %15 = stablehlo.reverse %w, dims = [1] {alpa.phase = "update"} : tensor<8x2x4xf32>
  // CHECK: return %{{.+}}, %[[R0]], %[[R1]]
  return %6, %14, %13, %15 : tensor<4x4xf32>, tensor<8x2x4xf32>, tensor<f32>, tensor<8x2x4xf32>
}

// -----

// The three parts of an attention's activations are no layers, wherever they are.

// CHECK-LABEL: func.func @main
// CHECK-SAME: tensor<3x4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state"}
func.func @main(%b: tensor<3x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x3x4xf32> {alpa.kind = "batch"}) -> (tensor<3x4xf32>, tensor<8x4xf32>) {
  %0 = stablehlo.broadcast_in_dim %b, dims = [1, 2] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<3x4xf32>) -> tensor<8x3x4xf32>
  %1 = stablehlo.add %x, %0 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x3x4xf32>
  %2 = stablehlo.transpose %1, dims = [1, 0, 2] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x3x4xf32>) -> tensor<3x8x4xf32>
  %3 = stablehlo.slice %2 [0:1, 0:8, 0:4] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<3x8x4xf32>) -> tensor<1x8x4xf32>
  %4 = stablehlo.slice %2 [1:2, 0:8, 0:4] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<3x8x4xf32>) -> tensor<1x8x4xf32>
  %5 = stablehlo.slice %2 [2:3, 0:8, 0:4] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<3x8x4xf32>) -> tensor<1x8x4xf32>
  %6 = stablehlo.add %3, %4 {alpa.eqn = 1 : i64, alpa.phase = "forward"} : tensor<1x8x4xf32>
  %7 = stablehlo.add %6, %5 {alpa.eqn = 1 : i64, alpa.phase = "forward"} : tensor<1x8x4xf32>
  %8 = stablehlo.reshape %7 {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<1x8x4xf32>) -> tensor<8x4xf32>
  return %b, %8 : tensor<3x4xf32>, tensor<8x4xf32>
}

// -----

// A random key is no stack, though its words are read one by one and the next key is put together
// of them; numbers of layers are one.

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[K:[^ ]+]]: tensor<2xui32> {alpa.carried_by = 0 : i64, alpa.kind = "state"}
// CHECK-SAME: tensor<1xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.piece
// CHECK-SAME: tensor<1xf32> {alpa.carried_by = 2 : i64, alpa.kind = "state", alpa.piece
// CHECK-SAME: -> (tensor<2xui32>, tensor<1xf32> {alpa.piece
func.func @main(%k: tensor<2xui32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %s: tensor<2xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64}) -> (tensor<2xui32>, tensor<2xf32>) {
  // CHECK: stablehlo.slice %[[K]] [0:1]
  %0 = stablehlo.slice %k [0:1] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<2xui32>) -> tensor<1xui32>
  %1 = stablehlo.slice %k [1:2] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<2xui32>) -> tensor<1xui32>
  %2 = stablehlo.xor %0, %1 {alpa.phase = "update"} : tensor<1xui32>
  // CHECK: %[[N:.+]] = stablehlo.concatenate {{.*}} -> tensor<2xui32>
  %3 = stablehlo.concatenate %2, %0, dim = 0 {alpa.phase = "update"} : (tensor<1xui32>, tensor<1xui32>) -> tensor<2xui32>
  %4 = stablehlo.slice %s [0:1] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<2xf32>) -> tensor<1xf32>
  %5 = stablehlo.slice %s [1:2] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<2xf32>) -> tensor<1xf32>
  %6 = stablehlo.concatenate %5, %4, dim = 0 {alpa.phase = "update"} : (tensor<1xf32>, tensor<1xf32>) -> tensor<2xf32>
  // CHECK: return %[[N]], %{{.+}}, %{{.+}} : tensor<2xui32>, tensor<1xf32>, tensor<1xf32>
  return %3, %6 : tensor<2xui32>, tensor<2xf32>
}

// -----

// Two blocks of two layers each: blocks are the rows, though gradients of the layers of one are
// put together first.

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[W0:.+]]: tensor<1x2x4x4xf32> {{{.*}}alpa.piece = {argument = 0 : i64, axis = 0 : i64, offset = 0 : i64, size = 1 : i64}}
// CHECK-SAME: %[[W1:.+]]: tensor<1x2x4x4xf32> {{{.*}}alpa.piece = {argument = 0 : i64, axis = 0 : i64, offset = 1 : i64, size = 1 : i64}}
func.func @main(%w: tensor<2x2x4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<4x4xf32> {alpa.kind = "batch"}) -> tensor<2x2x4x4xf32> {
  %b0 = stablehlo.slice %w [0:1, 0:2, 0:4, 0:4] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<2x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %b1 = stablehlo.slice %w [1:2, 0:2, 0:4, 0:4] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<2x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %l0 = stablehlo.reshape %b0 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<1x2x4x4xf32>) -> tensor<2x4x4xf32>
  %l1 = stablehlo.reshape %b1 {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<1x2x4x4xf32>) -> tensor<2x4x4xf32>
  %w00 = stablehlo.slice %l0 [0:1, 0:4, 0:4] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<2x4x4xf32>) -> tensor<1x4x4xf32>
  %w01 = stablehlo.slice %l0 [1:2, 0:4, 0:4] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<2x4x4xf32>) -> tensor<1x4x4xf32>
  %w10 = stablehlo.slice %l1 [0:1, 0:4, 0:4] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<2x4x4xf32>) -> tensor<1x4x4xf32>
  %w11 = stablehlo.slice %l1 [1:2, 0:4, 0:4] {alpa.eqn = 3 : i64, alpa.phase = "forward"} : (tensor<2x4x4xf32>) -> tensor<1x4x4xf32>
  // CHECK: stablehlo.concatenate {{.*}}alpa.phase = "backward"}
  // CHECK: stablehlo.concatenate {{.*}}alpa.phase = "backward"}
  %g1 = stablehlo.concatenate %w10, %w11, dim = 0 {alpa.eqn = 2 : i64, alpa.phase = "backward"} : (tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> tensor<2x4x4xf32>
  %g0 = stablehlo.concatenate %w00, %w01, dim = 0 {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<1x4x4xf32>, tensor<1x4x4xf32>) -> tensor<2x4x4xf32>
  %r1 = stablehlo.reshape %g1 {alpa.eqn = 2 : i64, alpa.phase = "backward"} : (tensor<2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %r0 = stablehlo.reshape %g0 {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %g = stablehlo.concatenate %r0, %r1, dim = 0 {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<2x2x4x4xf32>
  // CHECK: %[[N0:.+]] = stablehlo.subtract %[[W0]], {{.*}} : tensor<1x2x4x4xf32>
  // CHECK: %[[N1:.+]] = stablehlo.subtract %[[W1]], {{.*}} : tensor<1x2x4x4xf32>
  %n = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<2x2x4x4xf32>
  // CHECK: return %[[N0]], %[[N1]]
  return %n : tensor<2x2x4x4xf32>
}
