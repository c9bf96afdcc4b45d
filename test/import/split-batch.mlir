// The program of one of four micro-batches: eight examples become two.
// RUN: alpa-opt %s -split-input-file -alpa-split-batch=micro-batches=4 | FileCheck %s
// RUN: alpa-opt %s -split-input-file -alpa-split-batch=micro-batches=1 | FileCheck %s --check-prefix=UNSPLIT
// RUN: alpa-opt %s -split-input-file -alpa-split-batch="micro-batches=4 widen-sums=false" | FileCheck %s --check-prefix=NARROW
// RUN: alpa-opt %s -split-input-file -alpa-split-batch="micro-batches=4 semantics=relaxed" | FileCheck %s

// With one micro-batch the step stays as it is.
// UNSPLIT-NOT: alpa.micro_batch
// UNSPLIT: func.func @main({{.*}}tensor<8x4xf32> {alpa.kind = "batch"}
// UNSPLIT-NOT: alpa.micro_batch

// A mean over a size that the program knows: terms, of which the update reads the sum. What
// holds no example, and what is made of it, belongs to the update.

// CHECK: module attributes {alpa.micro_batches = {barriers = [], estimates = [], exact = true, joins = [], repeats = [], scales = [], sums = ["{{.*}}", "{{.*}}"]}}
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:.+]]: tensor<4xf32> {alpa.carried_by = 0 : i64, alpa.kind = "state"}, %[[X:.+]]: tensor<2x4xf32> {alpa.kind = "batch"}) -> (tensor<4xf32>, tensor<f32>, tensor<f32>)
// CHECK: %[[SUM:.+]] = stablehlo.reduce({{.*}} dimensions = [0, 1] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<2x4xf32>
// CHECK: %[[SIZE:.+]] = stablehlo.constant {alpa.phase = "update"} dense<8.000000e+00>
// CHECK: %[[MEAN:.+]] = stablehlo.divide %[[SUM]], %[[SIZE]] {alpa.phase = "update"}
// CHECK: %[[G:.+]] = stablehlo.reduce({{.*}} dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<2x4xf32>
// CHECK: %[[E:.+]] = stablehlo.exponential %[[MEAN]] {alpa.phase = "update"}
// CHECK: %[[U:.+]] = stablehlo.subtract %[[W]], %[[G]] {alpa.phase = "update"}
// CHECK: return %[[U]], %[[MEAN]], %[[E]]
func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4xf32>, tensor<f32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %size = stablehlo.constant dense<8.0> : tensor<f32>
  %eighth = stablehlo.constant dense<0.125> : tensor<8x4xf32>
  %b = stablehlo.broadcast_in_dim %w, dims = [1] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<4xf32>) -> tensor<8x4xf32>
  %y = stablehlo.multiply %x, %b {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x4xf32>
  %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  %l = stablehlo.divide %s, %size {alpa.eqn = 1 : i64, alpa.phase = "forward"} : tensor<f32>
  %d = stablehlo.multiply %x, %eighth {alpa.eqn = 0 : i64, alpa.phase = "backward"} : tensor<8x4xf32>
  %g = stablehlo.reduce(%d init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %e = stablehlo.exponential %l {alpa.phase = "update"} : tensor<f32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4xf32>
  return %u, %l, %e : tensor<4xf32>, tensor<f32>, tensor<f32>
}

// -----

// A mean over the number of unmasked examples, which is known behind the micro-batches. The
// backward pass goes on with one in its place, and the gradient is divided once.

// CHECK: scales = ["{{.*}}"
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]:
// CHECK: %[[NUMBER:.+]] = stablehlo.reduce({{.*}} dimensions = [0] {{.*}}"forward"} : (tensor<2xf32>
// CHECK: %[[K:.+]] = stablehlo.maximum %[[NUMBER]], %{{.*}} {alpa.phase = "update"}
// CHECK: stablehlo.divide %{{.*}}, %[[K]] {alpa.phase = "update"}
// CHECK: %[[ONE:.+]] = stablehlo.constant {{.*}}"backward"} dense<1.000000e+00>
// CHECK: %[[SEED:.+]] = stablehlo.divide %{{.*}}, %[[ONE]] {{.*}}"backward"}
// CHECK: stablehlo.broadcast_in_dim %[[SEED]], dims = [] {{.*}}"backward"} : (tensor<f32>) -> tensor<2x4xf32>
// CHECK: %[[G:.+]] = stablehlo.reduce({{.*}}"backward"}
// CHECK: %[[B:.+]] = stablehlo.broadcast_in_dim %[[K]], dims = [] {alpa.phase = "update"} : (tensor<f32>) -> tensor<4xf32>
// CHECK: %[[D:.+]] = stablehlo.divide %[[G]], %[[B]] {alpa.phase = "update"}
// CHECK: stablehlo.subtract %[[W]], %[[D]] {alpa.phase = "update"}
func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}, %m: tensor<8xf32> {alpa.kind = "batch"}) -> (tensor<4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %mb = stablehlo.broadcast_in_dim %m, dims = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8xf32>) -> tensor<8x4xf32>
  %y = stablehlo.multiply %x, %mb {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x4xf32>
  %s = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  %n = stablehlo.reduce(%m init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %k = stablehlo.maximum %n, %one {alpa.eqn = 1 : i64, alpa.phase = "forward"} : tensor<f32>
  %l = stablehlo.divide %s, %k {alpa.eqn = 1 : i64, alpa.phase = "forward"} : tensor<f32>
  %dl = stablehlo.divide %one, %k {alpa.eqn = 1 : i64, alpa.phase = "backward"} : tensor<f32>
  %db = stablehlo.broadcast_in_dim %dl, dims = [] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<f32>) -> tensor<8x4xf32>
  %dy = stablehlo.multiply %db, %mb {alpa.eqn = 0 : i64, alpa.phase = "backward"} : tensor<8x4xf32>
  %dx = stablehlo.multiply %dy, %x {alpa.eqn = 0 : i64, alpa.phase = "backward"} : tensor<8x4xf32>
  %g = stablehlo.reduce(%dx init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4xf32>
  return %u, %l : tensor<4xf32>, tensor<f32>
}

// -----

// Weight decay depends on no example: it counts once, and not in every micro-batch.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]:
// CHECK: %[[S:.+]] = stablehlo.reduce({{.*}}"forward"} : (tensor<2x4xf32>
// CHECK: stablehlo.multiply %[[W]], %[[W]] {alpa.phase = "update"}
// CHECK: %[[P:.+]] = stablehlo.reduce({{.*}} {alpa.phase = "update"} : (tensor<4xf32>
// CHECK: stablehlo.add %[[S]], %[[P]] {alpa.phase = "update"}
// CHECK: %[[D:.+]] = stablehlo.multiply %[[W]], %{{.*}} {alpa.phase = "update"}
// CHECK: %[[G:.+]] = stablehlo.reduce({{.*}}"backward"} : (tensor<2x4xf32>
// CHECK: %[[T:.+]] = stablehlo.add %[[D]], %[[G]] {alpa.phase = "update"}
// CHECK: stablehlo.subtract %[[W]], %[[T]] {alpa.phase = "update"}
func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  %q = stablehlo.multiply %w, %w {alpa.eqn = 1 : i64, alpa.phase = "forward"} : tensor<4xf32>
  %p = stablehlo.reduce(%q init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %l = stablehlo.add %s, %p {alpa.eqn = 2 : i64, alpa.phase = "forward"} : tensor<f32>
  %two = stablehlo.constant dense<2.0> : tensor<4xf32>
  %d = stablehlo.multiply %w, %two {alpa.eqn = 1 : i64, alpa.phase = "backward"} : tensor<4xf32>
  %g = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %t = stablehlo.add %d, %g {alpa.eqn = 0 : i64, alpa.phase = "backward"} : tensor<4xf32>
  %u = stablehlo.subtract %w, %t {alpa.phase = "update"} : tensor<4xf32>
  return %u, %l : tensor<4xf32>, tensor<f32>
}

// -----

// Extremes and truth values are joined, one of each micro-batch, and taken in the update; what
// says which example it was needs those of all micro-batches, where they belong.

// CHECK: joins = ["{{.*}}"]
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[K:[a-z0-9]+]]: tensor<1xui32> {alpa.kind = "batch", alpa.name = "micro_batch", alpa.per_micro_batch})
// CHECK: %[[MAX:.+]] = stablehlo.reduce({{.*}} applies stablehlo.maximum {{.*}}"forward"} : (tensor<2x4xf32>
// CHECK: %[[OR:.+]] = stablehlo.reduce({{.*}} applies stablehlo.or {{.*}}"forward"} : (tensor<2x4xi1>
// CHECK: %[[ROWS:.+]] = stablehlo.reduce({{.*}} dimensions = [1] {{.*}}"forward"} : (tensor<2x4xf32>
// CHECK: %[[FIRST:.+]] = stablehlo.multiply %{{.*}}"forward"} : tensor<i32>
// CHECK: %[[NONE:.+]] = stablehlo.constant {{.*}}"forward"} dense<0.000000e+00> : tensor<8xf32>
// CHECK: %[[ALL:.+]] = stablehlo.dynamic_update_slice %[[NONE]], %[[ROWS]], %[[FIRST]] {{.*}}"forward"} : (tensor<8xf32>, tensor<2xf32>, tensor<i32>)
// CHECK: %[[NUMBERS:.+]] = stablehlo.iota dim = 0 {alpa.phase = "update"} : tensor<8xi32>
// CHECK: %[[ARG:.+]]:2 = stablehlo.reduce(%[[ALL]] init: %{{.*}}), (%[[NUMBERS]] init: %{{.*}}) across dimensions = [0] {alpa.phase = "update"}
// CHECK: %[[MAX1:.+]] = stablehlo.reshape %[[MAX]] {{.*}}"forward"} : (tensor<4xf32>) -> tensor<1x4xf32>
// CHECK: %[[MAXES:.+]] = stablehlo.dynamic_update_slice %{{.*}}, %[[MAX1]], {{.*}}"forward"} : (tensor<4x4xf32>, tensor<1x4xf32>
// CHECK: stablehlo.constant {alpa.phase = "update"} dense<0xFF800000>
// CHECK: %[[M:.+]] = stablehlo.reduce(%[[MAXES]] init: {{.*}} applies stablehlo.maximum across dimensions = [0] {alpa.phase = "update"}
// CHECK: stablehlo.convert %[[OR]] {{.*}}"forward"} : (tensor<i1>) -> tensor<ui8>
// CHECK: %[[ORS:.+]] = stablehlo.dynamic_update_slice {{.*}}"forward"} : (tensor<4xui8>, tensor<1xui8>, tensor<i32>)
// CHECK: %[[TRUE:.+]] = stablehlo.compare NE, %[[ORS]], %{{.*}} {alpa.phase = "update"}
// CHECK: %[[O:.+]] = stablehlo.reduce(%[[TRUE]] init: {{.*}} applies stablehlo.or across dimensions = [0] {alpa.phase = "update"}
// CHECK: return %{{.*}}, %[[M]], %[[O]], %[[ARG]]#1
func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4xf32>, tensor<4xf32>, tensor<i1>, tensor<i32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %ninf = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %false = stablehlo.constant dense<false> : tensor<i1>
  %m = stablehlo.reduce(%x init: %ninf) applies stablehlo.maximum across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %z = stablehlo.constant dense<0.0> : tensor<8x4xf32>
  %c = stablehlo.compare LT, %x, %z {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xi1>
  %o = stablehlo.reduce(%c init: %false) applies stablehlo.or across dimensions = [0, 1] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xi1>, tensor<i1>) -> tensor<i1>
  %i0 = stablehlo.constant dense<0> : tensor<i32>
  %i = stablehlo.iota dim = 0 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8xi32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<8xf32>
  %a:2 = stablehlo.reduce(%s init: %ninf), (%i init: %i0) across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8xf32>, tensor<8xi32>, tensor<f32>, tensor<i32>) -> (tensor<f32>, tensor<i32>)
    reducer(%p: tensor<f32>, %q: tensor<f32>) (%k: tensor<i32>, %l: tensor<i32>) {
      %g = stablehlo.compare GT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %v = stablehlo.select %g, %p, %q : tensor<i1>, tensor<f32>
      %n = stablehlo.select %g, %k, %l : tensor<i1>, tensor<i32>
      stablehlo.return %v, %n : tensor<f32>, tensor<i32>
    }
  %g = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4xf32>
  return %u, %m, %o, %a#1 : tensor<4xf32>, tensor<4xf32>, tensor<i1>, tensor<i32>
}

// -----

// What depends on no example, but is as long as the batch, is computed for the micro-batch's
// examples from its number; numbers that no rule makes, and state, are cut.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:.+]]: tensor<8x2xf32> {alpa.kind = "state"}, %[[X:.+]]: tensor<2x2xf32> {alpa.kind = "batch"}, %[[K:[a-z0-9]+]]: tensor<1xui32>
// CHECK: %[[TWO:.+]] = stablehlo.constant {{.*}} dense<2>
// CHECK: %[[K0:.+]] = stablehlo.reshape %[[K]] {{.*}}"forward"} : (tensor<1xui32>) -> tensor<ui32>
// CHECK: %[[K1:.+]] = stablehlo.convert %[[K0]] {{.*}}"forward"} : (tensor<ui32>) -> tensor<i32>
// CHECK: %[[FIRST:.+]] = stablehlo.multiply %[[K1]], %[[TWO]]
// CHECK: %[[B:.+]] = stablehlo.broadcast_in_dim %[[FIRST]], dims = [] {{.*}} -> tensor<2xi32>
// CHECK: %[[I:.+]] = stablehlo.iota dim = 0 {{.*}} : tensor<2xi32>
// CHECK: %[[OWN:.+]] = stablehlo.add %[[I]], %[[B]]
// CHECK: %[[F:.+]] = stablehlo.convert %[[OWN]] {{.*}} -> tensor<2xf32>
// CHECK: %[[FB:.+]] = stablehlo.broadcast_in_dim %[[F]], dims = [0] {{.*}} -> tensor<2x2xf32>
// CHECK: stablehlo.add %[[X]], %[[FB]]
// CHECK: %[[NUMBERS:.+]] = stablehlo.constant {{.*}} : tensor<8xf32>
// CHECK: %[[PART:.+]] = stablehlo.dynamic_slice %[[NUMBERS]], %{{.*}}, sizes = [2]
// CHECK: stablehlo.broadcast_in_dim %[[PART]], dims = [0] {{.*}} -> tensor<2x2xf32>
// CHECK: %[[WS:.+]] = stablehlo.dynamic_slice %[[W]], %{{.*}}, %{{.*}}, sizes = [2, 2]
// CHECK: stablehlo.multiply %[[X]], %[[WS]]
func.func @main(%w: tensor<8x2xf32> {alpa.kind = "state"}, %x: tensor<8x2xf32> {alpa.kind = "batch"}) -> (tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x2xf32>) {
  %i = stablehlo.iota dim = 0 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8xi32>
  %f = stablehlo.convert %i {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8xi32>) -> tensor<8xf32>
  %fb = stablehlo.broadcast_in_dim %f, dims = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8xf32>) -> tensor<8x2xf32>
  %a = stablehlo.add %x, %fb {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x2xf32>
  %k = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]> : tensor<8xf32>
  %kb = stablehlo.broadcast_in_dim %k, dims = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8xf32>) -> tensor<8x2xf32>
  %b = stablehlo.multiply %x, %kb {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x2xf32>
  %c = stablehlo.multiply %x, %w {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x2xf32>
  return %a, %b, %c : tensor<8x2xf32>, tensor<8x2xf32>, tensor<8x2xf32>
}

// -----

// The batch may be a part of a dimension, in blocks: rows of each example one behind the other
// (whose numbers are counted on), examples for each row, and two batches one behind the other.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:.+]]: tensor<2x3xf32> {alpa.kind = "batch"}, %[[K:[a-z0-9]+]]: tensor<1xui32>
// CHECK-SAME: -> (tensor<6xf32> {alpa.reduction = "concat"}, tensor<24xf32>, tensor<2x3xf32> {alpa.reduction = "concat"}, tensor<2x3xf32> {alpa.reduction = "concat"}, tensor<16x3xf32>)
// CHECK: %[[R:.+]] = stablehlo.reshape %[[X]] {{.*}} -> tensor<6xf32>
// CHECK: stablehlo.constant {{.*}} dense<6> : tensor<i32>
// CHECK: %[[COUNT:.+]] = stablehlo.add {{.*}} : tensor<6xi32>
// CHECK: %[[I:.+]] = stablehlo.convert %[[COUNT]] {{.*}} -> tensor<6xf32>
// CHECK: stablehlo.add %[[R]], %[[I]]
// CHECK: %[[T:.+]] = stablehlo.transpose %[[X]], dims = [1, 0] {{.*}} -> tensor<3x2xf32>
// CHECK: %[[TR:.+]] = stablehlo.reshape %[[T]] {{.*}} -> tensor<6xf32>
// CHECK: %[[ALL:.+]] = stablehlo.iota dim = 0 {{.*}} : tensor<24xf32>
// CHECK: %[[BLOCKS:.+]] = stablehlo.reshape %[[ALL]] {{.*}} -> tensor<3x4x2xf32>
// CHECK: %[[CUT:.+]] = stablehlo.dynamic_slice %[[BLOCKS]], {{.*}}, sizes = [3, 1, 2]
// CHECK: %[[OWN:.+]] = stablehlo.reshape %[[CUT]] {{.*}} -> tensor<6xf32>
// CHECK: stablehlo.add %[[TR]], %[[OWN]]
// CHECK: %[[C:.+]] = stablehlo.concatenate {{.*}}, dim = 0 {{.*}} -> tensor<4x3xf32>
// CHECK: %[[S:.+]] = stablehlo.sine %[[C]]
// CHECK: stablehlo.slice %[[S]] [2:4, 0:3]
// CHECK: %[[G:.+]] = stablehlo.slice %[[S]] [0:2, 0:3]
// CHECK: stablehlo.pad %[[G]], %{{.*}}, low = [2, 0], high = [0, 0], interior = [0, 0]
// CHECK: %[[J:.+]] = stablehlo.dynamic_update_slice {{.*}} : (tensor<3x4x2xf32>, tensor<3x1x2xf32>
// CHECK: stablehlo.reshape %[[J]] {alpa.phase = "update"} : (tensor<3x4x2xf32>) -> tensor<24xf32>
// CHECK: %[[J2:.+]] = stablehlo.dynamic_update_slice {{.*}} : (tensor<2x4x2x3xf32>, tensor<2x1x2x3xf32>
// CHECK: stablehlo.reshape %[[J2]] {alpa.phase = "update"} : (tensor<2x4x2x3xf32>) -> tensor<16x3xf32>
func.func @main(%x: tensor<8x3xf32> {alpa.kind = "batch"}) -> (tensor<24xf32>, tensor<24xf32>, tensor<8x3xf32>, tensor<8x3xf32>, tensor<16x3xf32>) {
  %r = stablehlo.reshape %x {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x3xf32>) -> tensor<24xf32>
  %i = stablehlo.iota dim = 0 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<24xf32>
  %ri = stablehlo.add %r, %i {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<24xf32>
  %t = stablehlo.transpose %x, dims = [1, 0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x3xf32>) -> tensor<3x8xf32>
  %tr = stablehlo.reshape %t {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<3x8xf32>) -> tensor<24xf32>
  %tri = stablehlo.add %tr, %i {alpa.eqn = 1 : i64, alpa.phase = "forward"} : tensor<24xf32>
  %n = stablehlo.negate %x {alpa.eqn = 2 : i64, alpa.phase = "forward"} : tensor<8x3xf32>
  %c = stablehlo.concatenate %x, %n, dim = 0 {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<8x3xf32>, tensor<8x3xf32>) -> tensor<16x3xf32>
  %s = stablehlo.sine %c {alpa.eqn = 2 : i64, alpa.phase = "forward"} : tensor<16x3xf32>
  %h = stablehlo.slice %s [8:16, 0:3] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<16x3xf32>) -> tensor<8x3xf32>
  %g = stablehlo.slice %s [0:8, 0:3] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<16x3xf32>) -> tensor<8x3xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %p = stablehlo.pad %g, %zero, low = [8, 0], high = [0, 0], interior = [0, 0] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<8x3xf32>, tensor<f32>) -> tensor<16x3xf32>
  %q = stablehlo.add %p, %s {alpa.eqn = 2 : i64, alpa.phase = "forward"} : tensor<16x3xf32>
  return %ri, %tri, %h, %g, %q : tensor<24xf32>, tensor<24xf32>, tensor<8x3xf32>, tensor<8x3xf32>, tensor<16x3xf32>
}

// -----

// A loop that adds terms up in what it carries from zero makes a term.

// CHECK: sums = ["{{[^"]*}}"]
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]:
// CHECK: %[[R:.+]]:3 = stablehlo.while({{.*}}) : tensor<i32>, tensor<4xf32>, tensor<2x3x4xf32> attributes {{.*}}"backward"}
// CHECK: stablehlo.dynamic_slice {{.*}} sizes = [2, 1, 4]
// CHECK: %[[F:.+]] = stablehlo.reduce({{.*}}dimensions = [0, 1] : (tensor<2x1x4xf32>
// CHECK: stablehlo.add %{{.*}}, %[[F]] : tensor<4xf32>
// CHECK: stablehlo.subtract %[[W]], %[[R]]#1 {alpa.phase = "update"}
func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x3x4xf32> {alpa.kind = "batch"}) -> (tensor<4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c3 = stablehlo.constant dense<3> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %none = stablehlo.constant dense<0.0> : tensor<4xf32>
  %r:3 = stablehlo.while(%i = %c0, %g = %none, %a = %x) : tensor<i32>, tensor<4xf32>, tensor<8x3x4xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "backward"}
  cond {
    %p = stablehlo.compare LT, %i, %c3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %k0 = stablehlo.constant dense<0> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %t = stablehlo.dynamic_slice %a, %k0, %i, %k0, sizes = [8, 1, 4] : (tensor<8x3x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<8x1x4xf32>
    %f = stablehlo.reduce(%t init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %h = stablehlo.add %g, %f : tensor<4xf32>
    stablehlo.return %j, %h, %a : tensor<i32>, tensor<4xf32>, tensor<8x3x4xf32>
  }
  %u = stablehlo.subtract %w, %r#1 {alpa.phase = "update"} : tensor<4xf32>
  return %u : tensor<4xf32>
}

// -----

// A loop over counters, as random bits are made in, goes over the micro-batch's.

// CHECK-LABEL: func.func @main(
// CHECK: stablehlo.constant {{.*}} dense<6> : tensor<i32>
// CHECK: %[[C:.+]] = stablehlo.add {{.*}} : tensor<6xui32>
// CHECK-NOT: tensor<24
// CHECK: %[[R:.+]]:3 = stablehlo.while(%{{.*}} = %[[C]], {{.*}}) : tensor<i32>, tensor<6xui32>, tensor<6xui32>
// CHECK-NOT: tensor<24
// CHECK: stablehlo.convert %[[R]]#1 {{.*}} -> tensor<6xf32>
// CHECK: return
func.func @main(%k: tensor<ui32> {alpa.kind = "state"}, %x: tensor<8x3xf32> {alpa.kind = "batch"}) -> (tensor<8x3xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c3 = stablehlo.constant dense<3> : tensor<i32>
  %i = stablehlo.iota dim = 0 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<24xui32>
  %kb = stablehlo.broadcast_in_dim %k, dims = [] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<ui32>) -> tensor<24xui32>
  %r:3 = stablehlo.while(%n = %c0, %a = %i, %b = %kb) : tensor<i32>, tensor<24xui32>, tensor<24xui32> attributes {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  cond {
    %p = stablehlo.compare LT, %n, %c3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %n, %one : tensor<i32>
    %s = stablehlo.add %a, %b : tensor<24xui32>
    %x0 = stablehlo.xor %s, %b : tensor<24xui32>
    stablehlo.return %j, %x0, %s : tensor<i32>, tensor<24xui32>, tensor<24xui32>
  }
  %f = stablehlo.convert %r#1 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<24xui32>) -> tensor<24xf32>
  %q = stablehlo.reshape %f {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<24xf32>) -> tensor<8x3xf32>
  %y = stablehlo.multiply %x, %q {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x3xf32>
  return %y : tensor<8x3xf32>
}

// -----

// Each example picks from its own row: rows are counted from the micro-batch's first.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:.+]]: tensor<2x3xf32> {alpa.kind = "batch"}, %[[T:[a-z0-9]+]]: tensor<2xi32>
// CHECK: %[[N:.+]] = stablehlo.concatenate {{.*}} -> tensor<2x2xi32>
// CHECK: %[[FIRST:.+]] = stablehlo.multiply {{.*}} : tensor<i32>
// CHECK: %[[B:.+]] = stablehlo.broadcast_in_dim %[[FIRST]], dims = []
// CHECK: %[[WHICH:.+]] = stablehlo.constant {{.*}} dense<[1, 0]> : tensor<2xi32>
// CHECK: %[[D:.+]] = stablehlo.multiply %[[WHICH]], %[[B]]
// CHECK: %[[DB:.+]] = stablehlo.broadcast_in_dim %[[D]], dims = [1]
// CHECK: %[[OWN:.+]] = stablehlo.subtract %[[N]], %[[DB]]
// CHECK: %[[G:.+]] = "stablehlo.gather"(%[[X]], %[[OWN]]) {{.*}} -> tensor<2xf32>
// CHECK: %[[AGAIN:.+]] = stablehlo.subtract %[[N]], %{{.*}}"backward"}
// CHECK: "stablehlo.scatter"(%{{.*}}, %[[AGAIN]], %[[G]])
// CHECK: (tensor<2x3xf32>, tensor<2x2xi32>, tensor<2xf32>) -> tensor<2x3xf32>
func.func @main(%x: tensor<8x3xf32> {alpa.kind = "batch"}, %t: tensor<8xi32> {alpa.kind = "batch"}) -> (tensor<8xf32>, tensor<8x3xf32>) {
  %i = stablehlo.iota dim = 0 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8xi32>
  %ic = stablehlo.reshape %i {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8xi32>) -> tensor<8x1xi32>
  %tc = stablehlo.reshape %t {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8xi32>) -> tensor<8x1xi32>
  %n = stablehlo.concatenate %ic, %tc, dim = 1 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x2xi32>
  %g = "stablehlo.gather"(%x, %n) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>, alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x3xf32>, tensor<8x2xi32>) -> tensor<8xf32>
  %zeros = stablehlo.constant dense<0.0> : tensor<8x3xf32>
  %s = "stablehlo.scatter"(%zeros, %n, %g) <{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x3xf32>, tensor<8x2xi32>, tensor<8xf32>) -> tensor<8x3xf32>
  return %g, %s : tensor<8xf32>, tensor<8x3xf32>
}

// -----

// The gradient of a table is a term.

// CHECK: sums = ["{{[^"]*}}"]
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[E:[a-z0-9]+]]:
// CHECK: "stablehlo.gather"(%[[E]], {{.*}} -> tensor<2x3xf32>
// CHECK: %[[G:.+]] = "stablehlo.scatter"
// CHECK: (tensor<6x3xf32>, tensor<2x1xi32>, tensor<2x3xf32>) -> tensor<6x3xf32>
// CHECK: stablehlo.subtract %[[E]], %[[G]] {alpa.phase = "update"}
func.func @main(%e: tensor<6x3xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %t: tensor<8x1xi32> {alpa.kind = "batch"}) -> (tensor<6x3xf32>) {
  %g = "stablehlo.gather"(%e, %t) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>, alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<6x3xf32>, tensor<8x1xi32>) -> tensor<8x3xf32>
  %zeros = stablehlo.constant dense<0.0> : tensor<6x3xf32>
  %s = "stablehlo.scatter"(%zeros, %t, %g) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<6x3xf32>, tensor<8x1xi32>, tensor<8x3xf32>) -> tensor<6x3xf32>
  %u = stablehlo.subtract %e, %s {alpa.phase = "update"} : tensor<6x3xf32>
  return %u : tensor<6x3xf32>
}

// -----

// Terms of half precision are added up in float32, and scaled before they are narrow again.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]:
// CHECK: %[[N:.+]] = stablehlo.reduce({{.*}}"forward"} : (tensor<2xf32>
// CHECK: %[[G:.+]] = stablehlo.reduce({{.*}}"backward"} : (tensor<2x4xbf16>
// CHECK: %[[WIDE:.+]] = stablehlo.convert %[[G]] {{.*}}"backward"} : (tensor<4xbf16>) -> tensor<4xf32>
// CHECK: %[[B:.+]] = stablehlo.broadcast_in_dim %[[N]], dims = [] {alpa.phase = "update"}
// CHECK: %[[D:.+]] = stablehlo.divide %[[WIDE]], %[[B]] {alpa.phase = "update"} : tensor<4xf32>
// CHECK: %[[LOW:.+]] = stablehlo.convert %[[D]] {alpa.phase = "update"} : (tensor<4xf32>) -> tensor<4xbf16>
// CHECK: stablehlo.subtract %[[W]], %[[LOW]]
// NARROW: %[[G:.+]] = stablehlo.reduce({{.*}}"backward"} : (tensor<2x4xbf16>, tensor<bf16>) -> tensor<4xbf16>
// NARROW-NOT: (tensor<4xbf16>) -> tensor<4xf32>
// NARROW: %[[D:.+]] = stablehlo.divide %[[G]], %{{.*}} {alpa.phase = "update"} : tensor<4xbf16>
// NARROW-NEXT: stablehlo.subtract %{{.*}}, %[[D]]
func.func @main(%w: tensor<4xbf16> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xbf16> {alpa.kind = "batch"}, %m: tensor<8xf32> {alpa.kind = "batch"}) -> (tensor<4xbf16>) {
  %zero = stablehlo.constant dense<0.0> : tensor<bf16>
  %zf = stablehlo.constant dense<0.0> : tensor<f32>
  %n = stablehlo.reduce(%m init: %zf) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %h = stablehlo.convert %n {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<f32>) -> tensor<bf16>
  %b = stablehlo.broadcast_in_dim %h, dims = [] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<bf16>) -> tensor<8x4xbf16>
  %d = stablehlo.divide %x, %b {alpa.eqn = 0 : i64, alpa.phase = "backward"} : tensor<8x4xbf16>
  %g = stablehlo.reduce(%d init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xbf16>, tensor<bf16>) -> tensor<4xbf16>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4xbf16>
  return %u : tensor<4xbf16>
}

// -----

// A gradient of half precision that weights in float32 read (mixed precision): its terms are
// added as products give them, and the sum is rounded as the whole batch's product is. What
// only moves or converts terms is done with the sum.

// CHECK-LABEL: func.func @main(
// CHECK: %[[G:.+]] = stablehlo.dot_general {{.*}} {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<2x4xbf16>, tensor<2x3xbf16>) -> tensor<4x3xf32>
// CHECK: %[[HALF:.+]] = stablehlo.convert %[[G]] {alpa.phase = "update"} : (tensor<4x3xf32>) -> tensor<4x3xbf16>
// CHECK: %[[R:.+]] = stablehlo.broadcast_in_dim %[[HALF]], dims = [1, 2] {alpa.phase = "update"}
// CHECK: %[[WIDE:.+]] = stablehlo.convert %[[R]] {alpa.phase = "update"} : (tensor<1x4x3xbf16>) -> tensor<1x4x3xf32>
// CHECK: %[[T:.+]] = stablehlo.transpose %[[WIDE]], dims = [0, 2, 1] {alpa.phase = "update"}
// CHECK: stablehlo.subtract %{{.+}}, %[[T]]
// NARROW: stablehlo.dot_general {{.*}} -> tensor<4x3xbf16>
// NARROW: %[[WIDE:.+]] = stablehlo.convert %{{.+}} {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<1x4x3xbf16>) -> tensor<1x4x3xf32>
// NARROW: %[[T:.+]] = stablehlo.transpose %[[WIDE]]
// NARROW: stablehlo.subtract %{{.+}}, %[[T]]
func.func @main(%w: tensor<1x3x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xbf16> {alpa.kind = "batch"}, %y: tensor<8x3xbf16> {alpa.kind = "batch"}) -> (tensor<1x3x4xf32>) {
  %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xbf16>, tensor<8x3xbf16>) -> tensor<4x3xbf16>
  %r = stablehlo.broadcast_in_dim %g, dims = [1, 2] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<4x3xbf16>) -> tensor<1x4x3xbf16>
  %wide = stablehlo.convert %r {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<1x4x3xbf16>) -> tensor<1x4x3xf32>
  %t = stablehlo.transpose %wide, dims = [0, 2, 1] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<1x4x3xf32>) -> tensor<1x3x4xf32>
  %u = stablehlo.subtract %w, %t {alpa.phase = "update"} : tensor<1x3x4xf32>
  return %u : tensor<1x3x4xf32>
}

// -----

// Gradients of a weight that is used twice, and of the rows of a stack: each use has a sum of
// its own, and the sums are added and joined once. Longer chains of adds stay as they are, or
// each link would be kept.

// CHECK-LABEL: func.func @main(
// CHECK: %[[A:.+]] = stablehlo.reduce({{.*}} {alpa.eqn = 0 : i64, alpa.phase = "backward"}
// CHECK: %[[B:.+]] = stablehlo.reduce({{.*}} {alpa.eqn = 1 : i64, alpa.phase = "backward"}
// CHECK: %[[C:.+]] = stablehlo.reduce({{.*}} {alpa.eqn = 2 : i64, alpa.phase = "backward"}
// CHECK: %[[AB:.+]] = stablehlo.add %[[A]], %[[B]] {alpa.eqn = 1 : i64, alpa.phase = "backward"}
// CHECK: %[[ABC:.+]] = stablehlo.add %[[AB]], %[[C]] {alpa.eqn = 2 : i64, alpa.phase = "backward"}
// CHECK: %[[TWICE:.+]] = stablehlo.add %[[B]], %[[C]] {alpa.phase = "update"}
// CHECK: %[[ROWS:.+]] = stablehlo.concatenate %[[TWICE]], %[[ABC]], dim = 0 {alpa.phase = "update"}
// CHECK: stablehlo.subtract %{{.+}}, %[[ROWS]]
func.func @main(%w: tensor<8xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}, %y: tensor<8x4xf32> {alpa.kind = "batch"}, %z: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<8xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %a = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %b = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %c = stablehlo.reduce(%z init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 2 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %ab = stablehlo.add %a, %b {alpa.eqn = 1 : i64, alpa.phase = "backward"} : tensor<4xf32>
  %abc = stablehlo.add %ab, %c {alpa.eqn = 2 : i64, alpa.phase = "backward"} : tensor<4xf32>
  %bc = stablehlo.add %b, %c {alpa.eqn = 2 : i64, alpa.phase = "backward"} : tensor<4xf32>
  %g = stablehlo.concatenate %bc, %abc, dim = 0 {alpa.eqn = 2 : i64, alpa.phase = "backward"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<8xf32>
  return %u : tensor<8xf32>
}

// -----

// Branches that state decides about: parts if one has parts, terms if the others have zero.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]:
// Nothing of the whole batch is made in them.

// CHECK: %[[R:.+]]:2 = "stablehlo.case"
// CHECK-NOT: tensor<8x4xf32>
// CHECK: stablehlo.sine {{.*}} : tensor<2x4xf32>
// CHECK: stablehlo.reduce({{.*}} : (tensor<2x4xf32>
// CHECK: (tensor<i32>) -> (tensor<2x4xf32>, tensor<4xf32>)
// CHECK: %[[U:.+]] = stablehlo.subtract %[[W]], %[[R]]#1 {alpa.phase = "update"}
// CHECK: return %[[U]], %[[R]]#0
func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %s: tensor<i32> {alpa.kind = "state"}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4xf32>, tensor<8x4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %none = stablehlo.constant dense<0.0> : tensor<4xf32>
  %wb = stablehlo.broadcast_in_dim %w, dims = [1] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<4xf32>) -> tensor<8x4xf32>
  %r:2 = "stablehlo.case"(%s) ({
    %a = stablehlo.sine %x : tensor<8x4xf32>
    %b = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %c = stablehlo.add %a, %b : tensor<8x4xf32>
    %g = stablehlo.reduce(%c init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
    stablehlo.return %a, %g : tensor<8x4xf32>, tensor<4xf32>
  }, {
    stablehlo.return %wb, %none : tensor<8x4xf32>, tensor<4xf32>
  }) {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<i32>) -> (tensor<8x4xf32>, tensor<4xf32>)
  %u = stablehlo.subtract %w, %r#1 {alpa.phase = "update"} : tensor<4xf32>
  return %u, %r#0 : tensor<4xf32>, tensor<8x4xf32>
}

// -----

// Results: parts of dimension 0 leave as such, unless the step carries them; other parts are
// joined, sums are sums whatever was asked for, and what depends on no example is made once.

// CHECK: joins = ["{{[^"]*}}", "{{[^"]*}}"], repeats = [], scales = [], sums = ["{{[^"]*}}"]
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[S:.+]]: tensor<8x2xf32> {{.*}}, %[[V:.+]]: tensor<2xf32> {{.*}}, %[[X:.+]]: tensor<2x2xf32> {alpa.kind = "batch"}, %[[K:[a-z0-9]+]]: tensor<1xui32>
// CHECK-SAME: -> (tensor<8x2xf32>, tensor<2xf32>, tensor<2x2xf32> {alpa.reduction = "concat"}, tensor<2x8xf32>, tensor<2xf32>, tensor<2x2xf32> {alpa.reduction = "concat"})
// CHECK: %[[OLD:.+]] = stablehlo.dynamic_slice %[[S]],
// CHECK: %[[NEW:.+]] = stablehlo.add %[[OLD]], %[[X]]
// CHECK: %[[T:.+]] = stablehlo.transpose %[[NEW]]
// CHECK: %[[Q:.+]] = stablehlo.reduce(%[[NEW]] {{.*}}"forward"}
// CHECK: %[[SINE:.+]] = stablehlo.sine %[[V]] {alpa.phase = "update"}
// CHECK: %[[NEXT:.+]] = stablehlo.dynamic_update_slice %{{.*}}, %[[NEW]], {{.*}} : (tensor<8x2xf32>
// CHECK: %[[TS:.+]] = stablehlo.dynamic_update_slice %{{.*}}, %[[T]], {{.*}} : (tensor<2x8xf32>
// CHECK: return %[[NEXT]], %[[SINE]], %[[NEW]], %[[TS]], %[[Q]], %[[X]]
func.func @main(%s: tensor<8x2xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %k: tensor<2xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64}, %x: tensor<8x2xf32> {alpa.kind = "batch"}) -> (tensor<8x2xf32>, tensor<2xf32>, tensor<8x2xf32> {alpa.reduction = "concat"}, tensor<2x8xf32>, tensor<2xf32> {alpa.reduction = "sum"}, tensor<8x2xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %n = stablehlo.add %s, %x {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x2xf32>
  %t = stablehlo.transpose %n, dims = [1, 0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x2xf32>) -> tensor<2x8xf32>
  %q = stablehlo.reduce(%n init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x2xf32>, tensor<f32>) -> tensor<2xf32>
  %v = stablehlo.sine %k {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<2xf32>
  return %n, %v, %n, %t, %q, %x : tensor<8x2xf32>, tensor<2xf32>, tensor<8x2xf32>, tensor<2x8xf32>, tensor<2xf32>, tensor<8x2xf32>
}

// -----

// Two blocks of rows, as the devices of a `jax.shard_map` have them: a micro-batch has a row of
// each. The matrix of each block sees to it that they are not just rows again.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[XS:[a-z0-9]+]]: tensor<8x4xf32> {alpa.kind = "state", alpa.name = "x (whole)", alpa.whole_of = "x"}
// CHECK: %[[B:.+]] = stablehlo.reshape %[[XS]] {{.*}} -> tensor<2x4x1x4xf32>
// CHECK: %[[R:.+]] = stablehlo.dynamic_slice %[[B]], {{.*}} sizes = [2, 1, 1, 4] {{.*}} -> tensor<2x1x1x4xf32>
// CHECK: stablehlo.dot_general {{.*}} (tensor<2x1x4xf32>, tensor<2x4x4xf32>) -> tensor<2x1x4xf32>
// CHECK: stablehlo.dot_general {{.*}} (tensor<2x1x4xf32>, tensor<2x1x4xf32>) -> tensor<2x4x4xf32>
func.func @main(%w: tensor<2x4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %v: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch", alpa.name = "x"}) -> (tensor<2x4x4xf32>, tensor<4x4xf32>) {
  %s = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %h = stablehlo.reshape %s {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
  %y = stablehlo.dot_general %h, %w, batching_dims = [0] x [0], contracting_dims = [2] x [1] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<2x4x4xf32>, tensor<2x4x4xf32>) -> tensor<2x4x4xf32>
  %g = stablehlo.dot_general %h, %y, batching_dims = [0] x [0], contracting_dims = [1] x [1] {alpa.eqn = 2 : i64, alpa.phase = "backward"} : (tensor<2x4x4xf32>, tensor<2x4x4xf32>) -> tensor<2x4x4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<2x4x4xf32>
  return %u, %v : tensor<2x4x4xf32>, tensor<4x4xf32>
}

// -----

// Two masks with a number of tokens each: what is added up cannot wait for both, so each
// micro-batch counts the tokens of the whole batch. A number that leaves is a sum all the same.

// CHECK: joins = [], repeats = ["{{[^"]*}}", "{{[^"]*}}"]
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4xf32>
// CHECK-SAME: %[[M:[a-z0-9]+]]: tensor<2xf32> {alpa.kind = "batch", alpa.name = "m"}, %[[P:[a-z0-9]+]]: tensor<2xf32>
// CHECK-SAME: %[[MS:[a-z0-9]+]]: tensor<8xf32> {alpa.kind = "state", alpa.name = "m (whole)", alpa.whole_of = "m"}
// CHECK-SAME: %[[PS:[a-z0-9]+]]: tensor<8xf32> {alpa.kind = "state", alpa.name = "p (whole)", alpa.whole_of = "p"}
// CHECK: %[[TERM:.+]] = stablehlo.reduce(%[[M]] {{.*}}"forward"} : (tensor<2xf32>
// CHECK: %[[NUMBER:.+]] = stablehlo.maximum %[[TERM]], %{{.*}} {alpa.phase = "update"}
// CHECK: %[[N:.+]] = stablehlo.reduce(%[[MS]] {{.*}}"forward"} : (tensor<8xf32>
// CHECK: %[[K:.+]] = stablehlo.maximum %[[N]], %{{.*}}"forward"}
// CHECK: %[[KB:.+]] = stablehlo.broadcast_in_dim %[[K]], dims = [] {{.*}}"backward"} : (tensor<f32>) -> tensor<2xf32>
// CHECK: %[[DM:.+]] = stablehlo.divide %{{.*}}, %[[KB]] {{.*}}"backward"}
// CHECK: %[[O:.+]] = stablehlo.reduce(%[[PS]] {{.*}}"forward"} : (tensor<8xf32>
// CHECK: %[[OB:.+]] = stablehlo.broadcast_in_dim %[[O]], dims = [] {{.*}}"backward"} : (tensor<f32>) -> tensor<2xf32>
// CHECK: %[[DP:.+]] = stablehlo.divide %{{.*}}, %[[OB]] {{.*}}"backward"}
// CHECK: stablehlo.add %[[DM]], %[[DP]] {{.*}}"backward"} : tensor<2xf32>
// CHECK: %[[G:.+]] = stablehlo.reduce({{.*}}"backward"} : (tensor<2x4xf32>
// CHECK: %[[U:.+]] = stablehlo.subtract %[[W]], %[[G]] {alpa.phase = "update"}
// CHECK: return %[[U]], %[[NUMBER]]
func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch", alpa.name = "x"}, %m: tensor<8xf32> {alpa.kind = "batch", alpa.name = "m"}, %p: tensor<8xf32> {alpa.kind = "batch", alpa.name = "p"}) -> (tensor<4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %n = stablehlo.reduce(%m init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %k = stablehlo.maximum %n, %one {alpa.eqn = 1 : i64, alpa.phase = "forward"} : tensor<f32>
  %o = stablehlo.reduce(%p init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %nb = stablehlo.broadcast_in_dim %k, dims = [] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<f32>) -> tensor<8xf32>
  %ob = stablehlo.broadcast_in_dim %o, dims = [] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<f32>) -> tensor<8xf32>
  %dm = stablehlo.divide %m, %nb {alpa.eqn = 1 : i64, alpa.phase = "backward"} : tensor<8xf32>
  %dp = stablehlo.divide %p, %ob {alpa.eqn = 1 : i64, alpa.phase = "backward"} : tensor<8xf32>
  %d = stablehlo.add %dm, %dp {alpa.eqn = 1 : i64, alpa.phase = "backward"} : tensor<8xf32>
  %db = stablehlo.broadcast_in_dim %d, dims = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8xf32>) -> tensor<8x4xf32>
  %dx = stablehlo.multiply %db, %x {alpa.eqn = 0 : i64, alpa.phase = "backward"} : tensor<8x4xf32>
  %g = stablehlo.reduce(%dx init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4xf32>
  return %u, %k : tensor<4xf32>, tensor<f32>
}

// -----

// Weights of classes, by how many examples of the whole batch each class has.

// CHECK: exact = true, joins = [], repeats = ["{{[^"]*}}"], scales = []
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[T:[a-z0-9]+]]: tensor<2xi32> {alpa.kind = "batch", alpa.name = "t"}, %[[TS:[a-z0-9]+]]: tensor<8xi32> {alpa.kind = "state", alpa.name = "t (whole)", alpa.whole_of = "t"})
// CHECK: stablehlo.broadcast_in_dim %[[T]], dims = [0] {{.*}} -> tensor<2x3xi32>
// CHECK: %[[OWN:.+]] = stablehlo.convert {{.*}} -> tensor<2x3xf32>
// CHECK: stablehlo.broadcast_in_dim %[[TS]], dims = [0] {{.*}} -> tensor<8x3xi32>
// CHECK: %[[ALL:.+]] = stablehlo.convert {{.*}} -> tensor<8x3xf32>
// CHECK: %[[C:.+]] = stablehlo.reduce(%[[ALL]] {{.*}} -> tensor<3xf32>
// CHECK: %[[K:.+]] = stablehlo.maximum %[[C]], %{{.*}}"forward"}
// CHECK: %[[KB:.+]] = stablehlo.broadcast_in_dim %[[K]], dims = [1] {{.*}} -> tensor<2x3xf32>
// CHECK: stablehlo.divide %[[OWN]], %[[KB]] {{.*}}"forward"}
// CHECK-NOT: tensor<8x
// CHECK: return
func.func @main(%w: tensor<4x3xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch", alpa.name = "x"}, %t: tensor<8xi32> {alpa.kind = "batch", alpa.name = "t"}) -> (tensor<4x3xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %ones = stablehlo.constant dense<1.0> : tensor<3xf32>
  %i = stablehlo.iota dim = 1 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x3xi32>
  %tb = stablehlo.broadcast_in_dim %t, dims = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8xi32>) -> tensor<8x3xi32>
  %e = stablehlo.compare EQ, %i, %tb {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x3xi32>, tensor<8x3xi32>) -> tensor<8x3xi1>
  %h = stablehlo.convert %e {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x3xi1>) -> tensor<8x3xf32>
  %c = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x3xf32>, tensor<f32>) -> tensor<3xf32>
  %k = stablehlo.maximum %c, %ones {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<3xf32>
  %kb = stablehlo.broadcast_in_dim %k, dims = [1] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<3xf32>) -> tensor<8x3xf32>
  %q = stablehlo.divide %h, %kb {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x3xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x3xf32>) -> tensor<8x3xf32>
  %d = stablehlo.multiply %y, %q {alpa.eqn = 1 : i64, alpa.phase = "backward"} : tensor<8x3xf32>
  %g = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<8x3xf32>) -> tensor<4x3xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4x3xf32>
  return %u : tensor<4x3xf32>
}

// -----

// Advantages less their mean, over their deviation: both are those of the whole batch. What
// is computed of the whole batch anyway is not computed again for the micro-batch.

// CHECK: exact = true, joins = ["{{[^"]*}}"], repeats = ["{{[^"]*}}", "{{[^"]*}}"]
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x"}, %[[A:[a-z0-9]+]]: tensor<2xf32>
// CHECK-SAME: alpa.per_micro_batch}, %[[AS:[a-z0-9]+]]: tensor<8xf32> {alpa.kind = "state", alpa.name = "a (whole)", alpa.whole_of = "a"})
// CHECK: %[[S:.+]] = stablehlo.reduce(%[[AS]] {{.*}}"forward"} : (tensor<8xf32>
// CHECK: %[[MEAN:.+]] = stablehlo.divide %[[S]], %{{.*}}"forward"} : tensor<f32>
// CHECK: %[[MB:.+]] = stablehlo.broadcast_in_dim %[[MEAN]], dims = [] {{.*}} -> tensor<8xf32>
// CHECK: %[[D:.+]] = stablehlo.subtract %[[AS]], %[[MB]] {{.*}}"forward"}
// CHECK: %[[C:.+]] = stablehlo.optimization_barrier {{.*}} %[[D]]
// CHECK: stablehlo.dynamic_slice %[[C]], {{.*}} -> tensor<2xf32>
// CHECK: %[[M:.+]] = stablehlo.multiply %[[C]], %[[C]] {{.*}}"forward"}
// CHECK: %[[C2:.+]] = stablehlo.optimization_barrier {{.*}} %[[M]]
// CHECK: %[[VARIANCE:.+]] = stablehlo.reduce({{.*}}"forward"} : (tensor<2xf32>
// CHECK: %[[DEVIATION:.+]] = stablehlo.sqrt %[[VARIANCE]] {alpa.phase = "update"}
// CHECK-NOT: stablehlo.subtract
// CHECK: %[[V:.+]] = stablehlo.reduce(%[[C2]] {{.*}}"forward"} : (tensor<8xf32>
// CHECK: %[[SD:.+]] = stablehlo.sqrt %[[V]] {{.*}}"forward"}
// CHECK: %[[SB:.+]] = stablehlo.broadcast_in_dim %[[SD]], dims = [] {{.*}} -> tensor<2xf32>
// CHECK: %[[Z:.+]] = stablehlo.divide %{{.*}}, %[[SB]] {{.*}}"forward"}
// CHECK: %[[E:.+]] = stablehlo.exponential %[[Z]] {{.*}}"forward"} : tensor<2xf32>
// CHECK: stablehlo.dot_general %[[E]], %[[X]], {{.*}} -> tensor<4xf32>
// CHECK: return %{{.*}}, %[[DEVIATION]],
func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch", alpa.name = "x"}, %a: tensor<8xf32> {alpa.kind = "batch", alpa.name = "a"}) -> (tensor<4xf32>, tensor<f32>, tensor<8xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %eight = stablehlo.constant dense<8.0> : tensor<f32>
  %s = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %mean = stablehlo.divide %s, %eight {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<f32>
  %mb = stablehlo.broadcast_in_dim %mean, dims = [] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<f32>) -> tensor<8xf32>
  %c = stablehlo.subtract %a, %mb {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8xf32>
  %c2 = stablehlo.multiply %c, %c {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8xf32>
  %v = stablehlo.reduce(%c2 init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
  %sd = stablehlo.sqrt %v {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<f32>
  %sb = stablehlo.broadcast_in_dim %sd, dims = [] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<f32>) -> tensor<8xf32>
  %z = stablehlo.divide %c, %sb {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8xf32>
  %e = stablehlo.exponential %z {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8xf32>
  %g = stablehlo.dot_general %e, %x, contracting_dims = [0] x [0] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8xf32>, tensor<8x4xf32>) -> tensor<4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4xf32>
  return %u, %sd, %z : tensor<4xf32>, tensor<f32>, tensor<8xf32>
}

// -----

// The mean of the inputs, which depends on no weights.

// CHECK: estimates = [], exact = true, joins = [], repeats = ["{{[^"]*}}"]
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<2x4xf32> {{.*}}, %[[XS:[a-z0-9]+]]: tensor<8x4xf32> {alpa.kind = "state", alpa.name = "x (whole)", alpa.whole_of = "x"}
// CHECK: %[[N:.+]] = stablehlo.reduce(%[[XS]] {{.*}}"forward"} : (tensor<8x4xf32>
// CHECK: %[[NB:.+]] = stablehlo.broadcast_in_dim %[[N]], dims = [1] {{.*}} -> tensor<2x4xf32>
// CHECK: %[[C:.+]] = stablehlo.subtract %[[X]], %[[NB]] {{.*}}"forward"}
// CHECK: stablehlo.dot_general %[[C]], {{.*}}"forward"} {{.*}} -> tensor<2x4xf32>
// CHECK: stablehlo.dot_general %[[C]], {{.*}}"backward"} {{.*}} -> tensor<4x4xf32>
func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch", alpa.name = "x"}) -> tensor<4x4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %n = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %nb = stablehlo.broadcast_in_dim %n, dims = [1] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<4xf32>) -> tensor<8x4xf32>
  %c = stablehlo.subtract %x, %nb {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x4xf32>
  %y = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %g = stablehlo.dot_general %c, %y, contracting_dims = [0] x [0] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4x4xf32>
  return %u : tensor<4x4xf32>
}

// -----

// A loop over examples carries a key, too: the update has the first micro-batch's, since what
// the micro-batches make is added up.

// CHECK: sums = ["{{[^"]*}}"]}}
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[KEY:[a-z0-9]+]]: tensor<2xui32>
// CHECK: %[[R:.+]]:3 = stablehlo.while({{.*}}) : tensor<i32>, tensor<2xui32>, tensor<2x4xf32> attributes {{.*}}"forward"}
// CHECK-NOT: stablehlo.while
// CHECK: %[[S:.+]] = stablehlo.reduce(%[[R]]#2 {{.*}}"forward"}
// CHECK: %[[FIRST:.+]] = stablehlo.compare {{ *}}EQ, {{.*}}
// CHECK: %[[IS:.+]] = stablehlo.broadcast_in_dim %[[FIRST]], {{.*}}"forward"}
// CHECK: %[[OWN:.+]] = stablehlo.select %[[IS]], %[[R]]#1, %{{.*}}"forward"}
// CHECK: %[[N:.+]] = stablehlo.add %[[OWN]], %[[OWN]] {alpa.phase = "update"}
// CHECK: return %[[N]], %[[S]]
func.func @main(%k: tensor<2xui32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<2xui32>, tensor<f32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c3 = stablehlo.constant dense<3> : tensor<i32>
  %r:3 = stablehlo.while(%i = %c0, %key = %k, %y = %x) : tensor<i32>, tensor<2xui32>, tensor<8x4xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  cond {
    %p = stablehlo.compare LT, %i, %c3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %next = stablehlo.add %key, %key : tensor<2xui32>
    %z = stablehlo.sine %y : tensor<8x4xf32>
    stablehlo.return %j, %next, %z : tensor<i32>, tensor<2xui32>, tensor<8x4xf32>
  }
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%r#2 init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  %n = stablehlo.add %r#1, %r#1 {alpa.phase = "update"} : tensor<2xui32>
  return %n, %s : tensor<2xui32>, tensor<f32>
}

// -----

// A barrier behind weights and examples becomes one of each.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4xf32> {{.*}}, %[[X:[a-z0-9]+]]: tensor<2x4xf32>
// CHECK: %[[A:.+]] = stablehlo.optimization_barrier {alpa.phase = "update"} %[[W]] : tensor<4xf32>
// CHECK: %[[B:.+]] = stablehlo.optimization_barrier {{.*}}"backward"} %[[X]] : tensor<2x4xf32>
// CHECK: %[[G:.+]] = stablehlo.reduce(%[[B]] {{.*}}"backward"}
// CHECK: %[[D:.+]] = stablehlo.multiply %[[A]], %[[A]] {alpa.phase = "update"}
// CHECK: stablehlo.add %[[G]], %[[D]] {alpa.phase = "update"}
func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %b:2 = stablehlo.optimization_barrier {alpa.eqn = 0 : i64, alpa.phase = "backward"} %w, %x : tensor<4xf32>, tensor<8x4xf32>
  %g = stablehlo.reduce(%b#1 init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %d = stablehlo.multiply %b#0, %b#0 {alpa.eqn = 0 : i64, alpa.phase = "backward"} : tensor<4xf32>
  %t = stablehlo.add %g, %d {alpa.eqn = 0 : i64, alpa.phase = "backward"} : tensor<4xf32>
  %u = stablehlo.subtract %w, %t {alpa.phase = "update"} : tensor<4xf32>
  return %u : tensor<4xf32>
}

// -----

// So do branches with a result that depends on no example. Results beside it: positions are
// made once, examples leave as they are.

// CHECK: joins = ["{{[^"]*}}"], repeats = [], scales = [], sums = ["{{[^"]*}}", "{{[^"]*}}"]}}
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4xf32> {{.*}}, %[[S:[a-z0-9]+]]: tensor<i32> {{.*}}, %[[X:[a-z0-9]+]]: tensor<2x4xf32>
// CHECK: %[[R:.+]]:2 = "stablehlo.case"(%[[S]])
// CHECK: {{.*}}"backward"} : (tensor<i32>) -> (tensor<2x4xf32>, tensor<4xf32>)
// CHECK: %[[G:.+]] = stablehlo.reduce(%[[R]]#0 {{.*}}"backward"}
// CHECK: %[[OWN:.+]] = stablehlo.select %{{.*}}, %[[R]]#1, %{{.*}}"backward"}
// CHECK: %[[U:.+]] = stablehlo.subtract %[[OWN]], %[[G]] {alpa.phase = "update"}
// CHECK: %[[I:.+]] = stablehlo.iota dim = 0 {alpa.phase = "update"} : tensor<8xi32>
// CHECK: return %[[U]], %[[I]], %[[X]],
func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %s: tensor<i32> {alpa.kind = "state"}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4xf32>, tensor<8xi32>, tensor<8x4xf32>, tensor<4x8xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %r:2 = "stablehlo.case"(%s) ({
    %a = stablehlo.sine %x : tensor<8x4xf32>
    stablehlo.return %a, %w : tensor<8x4xf32>, tensor<4xf32>
  }, {
    %a = stablehlo.cosine %x : tensor<8x4xf32>
    %b = stablehlo.cosine %w : tensor<4xf32>
    stablehlo.return %a, %b : tensor<8x4xf32>, tensor<4xf32>
  }) {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<i32>) -> (tensor<8x4xf32>, tensor<4xf32>)
  %g = stablehlo.reduce(%r#0 init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %u = stablehlo.subtract %r#1, %g {alpa.phase = "update"} : tensor<4xf32>
  %i = stablehlo.iota dim = 0 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8xi32>
  %t = stablehlo.transpose %x, dims = [1, 0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %q = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  return %u, %i, %x, %t, %q : tensor<4xf32>, tensor<8xi32>, tensor<8x4xf32>, tensor<4x8xf32>, tensor<f32>
}

// -----

// Results of loops, branches and barriers within one another, whole and split. What is read
// by the backward pass is not made in the update.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4xf32>
// CHECK: %[[R:.+]]:3 = stablehlo.while({{.*}}) : tensor<i32>, tensor<2x4xf32>, tensor<4xf32> attributes {{.*}}"forward"}
// CHECK: %[[Q:.+]]:3 = stablehlo.while({{.*}}) : tensor<i32>, tensor<2x4xf32>, tensor<4xf32>
// CHECK: %[[LAST:.+]] = stablehlo.optimization_barrier %[[Q]]#2 : tensor<4xf32>
// CHECK: %[[Y:.+]] = stablehlo.optimization_barrier %[[Q]]#1 : tensor<2x4xf32>
// CHECK: stablehlo.return %{{.*}}, %[[Y]], %[[LAST]]
// CHECK: %[[S:.+]] = stablehlo.reduce(%[[R]]#1 {{.*}}"forward"}
// CHECK: stablehlo.broadcast_in_dim %[[R]]#2, dims = [1] {{.*}}"backward"} : (tensor<4xf32>) -> tensor<2x4xf32>
// CHECK: %[[G:.+]] = stablehlo.reduce({{.*}}"backward"}
// CHECK: %[[OWN:.+]] = stablehlo.select %{{.*}}, %[[R]]#2, %{{.*}}"forward"}
// CHECK: return %[[G]], %[[S]], %[[OWN]]
func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %sel: tensor<i32> {alpa.kind = "state"}, %x: tensor<8x4xf32> {alpa.kind = "batch", alpa.name = "x"}) -> (tensor<4xf32>, tensor<f32>, tensor<4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c3 = stablehlo.constant dense<3> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %r:3 = stablehlo.while(%i = %c0, %y = %x, %k = %w) : tensor<i32>, tensor<8x4xf32>, tensor<4xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  cond {
    %p = stablehlo.compare LT, %i, %c3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %q:3 = stablehlo.while(%n = %c0, %a = %y, %b = %k) : tensor<i32>, tensor<8x4xf32>, tensor<4xf32>
    cond {
      %p = stablehlo.compare LT, %n, %c3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %n2 = stablehlo.add %n, %one : tensor<i32>
      %cs:2 = "stablehlo.case"(%n) ({
        %s = stablehlo.sine %a : tensor<8x4xf32>
        stablehlo.return %s, %b : tensor<8x4xf32>, tensor<4xf32>
      }, {
        %bb = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
        %s = stablehlo.multiply %a, %bb : tensor<8x4xf32>
        %t = stablehlo.cosine %b : tensor<4xf32>
        stablehlo.return %s, %t : tensor<8x4xf32>, tensor<4xf32>
      }) : (tensor<i32>) -> (tensor<8x4xf32>, tensor<4xf32>)
      stablehlo.return %n2, %cs#0, %cs#1 : tensor<i32>, tensor<8x4xf32>, tensor<4xf32>
    }
    %o:2 = stablehlo.optimization_barrier %q#1, %q#2 : tensor<8x4xf32>, tensor<4xf32>
    stablehlo.return %j, %o#0, %o#1 : tensor<i32>, tensor<8x4xf32>, tensor<4xf32>
  }
  %s = stablehlo.reduce(%r#1 init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  %rb = stablehlo.broadcast_in_dim %r#2, dims = [1] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<4xf32>) -> tensor<8x4xf32>
  %dd = stablehlo.multiply %r#1, %rb {alpa.eqn = 1 : i64, alpa.phase = "backward"} : tensor<8x4xf32>
  %g = stablehlo.reduce(%dd init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %g, %s, %r#2 : tensor<4xf32>, tensor<f32>, tensor<4xf32>
}

// -----

// Integers wrap as in the whole batch: their sum is neither widened nor converted before it
// is complete.

// CHECK: sums = ["{{[^"]*}}"]}}
// CHECK-LABEL: func.func @main(
// CHECK: %[[S:.+]] = stablehlo.reduce({{.*}}"backward"} : (tensor<4x4xi8>, tensor<i8>) -> tensor<4xi8>
// CHECK: %[[A:.+]] = stablehlo.convert %[[S]] {alpa.phase = "update"} : (tensor<4xi8>) -> tensor<4xi32>
// CHECK: %[[B:.+]] = stablehlo.divide %[[S]], %{{.*}} {alpa.phase = "update"} : tensor<4xi8>
// CHECK: %[[F:.+]] = stablehlo.convert %[[S]] {alpa.phase = "update"} : (tensor<4xi8>) -> tensor<4xf32>
// CHECK: return %{{.*}}, %[[A]], %[[B]], %[[F]]
func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<16x4xi8> {alpa.kind = "batch", alpa.name = "x"}) -> (tensor<4xf32>, tensor<4xi32>, tensor<4xi8>, tensor<4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i8>
  %c3 = stablehlo.constant dense<3> : tensor<4xi8>
  %c90 = stablehlo.constant dense<90> : tensor<16x4xi8>
  %y = stablehlo.multiply %x, %c90 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<16x4xi8>
  %s = stablehlo.reduce(%y init: %c0) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<16x4xi8>, tensor<i8>) -> tensor<4xi8>
  %a = stablehlo.convert %s {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<4xi8>) -> tensor<4xi32>
  %b = stablehlo.divide %s, %c3 {alpa.eqn = 0 : i64, alpa.phase = "backward"} : tensor<4xi8>
  %f = stablehlo.convert %s {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<4xi8>) -> tensor<4xf32>
  %u = stablehlo.subtract %w, %f {alpa.phase = "update"} : tensor<4xf32>
  return %u, %a, %b, %f : tensor<4xf32>, tensor<4xi32>, tensor<4xi8>, tensor<4xf32>
}

// -----

// Numbers of examples that the type cannot count are those of the whole batch: counted as
// integers, then converted.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[X:.+]]: tensor<301xbf16> {alpa.kind = "batch"}, %[[K:[a-z0-9]+]]: tensor<1xui32>
// CHECK: stablehlo.constant {{.*}} dense<301> : tensor<i32>
// CHECK: %[[I:.+]] = stablehlo.iota dim = 0 {{.*}} : tensor<301xi32>
// CHECK: %[[OWN:.+]] = stablehlo.add %[[I]], %{{.*}} : tensor<301xi32>
// CHECK: %[[F:.+]] = stablehlo.convert %[[OWN]] {{.*}} : (tensor<301xi32>) -> tensor<301xbf16>
// CHECK: stablehlo.add %{{.*}}, %[[F]]
func.func @main(%x: tensor<1204xbf16> {alpa.kind = "batch"}) -> (tensor<1204xbf16>) {
  %i = stablehlo.iota dim = 0 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<1204xbf16>
  %s = stablehlo.add %x, %i {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<1204xbf16>
  return %s : tensor<1204xbf16>
}

// -----

// What follows from the batch alone, and is rounded, is computed of the whole batch for its
// largest; the micro-batch's part is cut out of that, so that the largest finds itself. The barrier
// keeps XLA from computing it in kernels of both.

// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4xf32>{{.*}}, %[[ALL:[a-z0-9]+]]: tensor<8x4xf32> {alpa.kind = "state", alpa.name = "x (whole)", alpa.whole_of = "x"})
// CHECK-NOT: stablehlo.exponential {{.*}} : tensor<2x4xf32>
// CHECK: %[[E:.+]] = stablehlo.exponential %[[ALL]] {{.*}} : tensor<8x4xf32>
// CHECK: %[[S:.+]] = stablehlo.optimization_barrier {{.*}} %[[E]]
// CHECK: %[[PART:.+]] = stablehlo.dynamic_slice %[[S]], {{.*}} sizes = [2, 4]
// CHECK: %[[M:.+]] = stablehlo.reduce(%[[S]] {{.*}} applies stablehlo.maximum
// CHECK: stablehlo.compare EQ, %[[PART]],
// CHECK-NOT: stablehlo.exponential {{.*}} : tensor<2x4xf32>
// CHECK: return
func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch", alpa.name = "x"}) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %none = stablehlo.constant dense<0.0> : tensor<8x4xf32>
  %s = stablehlo.exponential %x {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x4xf32>
  %m = stablehlo.reduce(%s init: %low) applies stablehlo.maximum across dimensions = [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %mb = stablehlo.broadcast_in_dim %m, dims = [1] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<4xf32>) -> tensor<8x4xf32>
  %best = stablehlo.compare EQ, %s, %mb, FLOAT {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xi1>
  %d = stablehlo.select %best, %x, %none {alpa.eqn = 1 : i64, alpa.phase = "backward"} : tensor<8x4xi1>, tensor<8x4xf32>
  %g = stablehlo.reduce(%d init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4xf32>
  return %u : tensor<4xf32>
}

// -----

// The function of a sort may read a constant of the branch around it.

// CHECK-LABEL: func.func @main(
// CHECK: "stablehlo.case"
// CHECK: "stablehlo.sort"
// CHECK: stablehlo.constant dense<0.000000e+00> : tensor<f32>
// CHECK: stablehlo.return {{.*}} : tensor<i1>
// CHECK: (tensor<2x4xf32>) -> tensor<2x4xf32>
func.func @main(%s: tensor<i32> {alpa.kind = "state"}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> tensor<8x4xf32> {
  %r = "stablehlo.case"(%s) ({
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %a = stablehlo.maximum %x, %zeros : tensor<8x4xf32>
    %b = "stablehlo.sort"(%a) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %m = stablehlo.maximum %l, %zero : tensor<f32>
      %c = stablehlo.compare LT, %m, %r, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    stablehlo.return %b : tensor<8x4xf32>
  }, {
    stablehlo.return %x : tensor<8x4xf32>
  }) {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<i32>) -> tensor<8x4xf32>
  return %r : tensor<8x4xf32>
}

// -----

// Rows that the step draws for its examples are split where they meet weights, as the batch is.

// CHECK-LABEL: func.func @main(
// CHECK: stablehlo.dot_general {{.*}} : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>
// CHECK: stablehlo.reduce{{.*}}alpa.phase = "forward"{{.*}} : (tensor<2x2xf32>, tensor<f32>) -> tensor<f32>
func.func @main(%w: tensor<3x2xf32> {alpa.kind = "state"}, %key: tensor<ui32> {alpa.kind = "state"}, %x: tensor<8x2xf32> {alpa.kind = "batch"}) -> (tensor<f32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %count = stablehlo.iota dim = 0 : tensor<8x3xui32>
  %keys = stablehlo.broadcast_in_dim %key, dims = [] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<ui32>) -> tensor<8x3xui32>
  %bits = stablehlo.xor %count, %keys {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x3xui32>
  %z = stablehlo.convert %bits {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x3xui32>) -> tensor<8x3xf32>
  %fake = stablehlo.dot_general %z, %w, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x3xf32>, tensor<3x2xf32>) -> tensor<8x2xf32>
  %a = stablehlo.reduce(%fake init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<8x2xf32>, tensor<f32>) -> tensor<f32>
  %b = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.eqn = 3 : i64, alpa.phase = "forward"} : (tensor<8x2xf32>, tensor<f32>) -> tensor<f32>
  return %a, %b : tensor<f32>, tensor<f32>
}
