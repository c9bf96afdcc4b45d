// What backward runs need of all examples at once runs between them and the forward runs.
// RUN: alpa-opt %s -split-input-file -alpa-split-batch=micro-batches=4 | FileCheck %s

// A contrastive loss: every example is compared with all, which are joined. Its gradient is
// cut into the micro-batches' parts.

// CHECK: alpa.micro_batches = {barriers = ["{{.*}}", "{{.*}}"], estimates = [], exact = true, joins = ["{{.*}}"], repeats = [], scales = [], sums = ["{{.*}}"]}
// CHECK: func.func @main(%[[W:.+]]: tensor<4x4xf32> {{{.*}}}, %[[X:.+]]: tensor<2x4xf32> {alpa.kind = "batch"}, %[[N:.+]]: tensor<1xui32> {{{.*}}alpa.per_micro_batch})
// CHECK: %[[H:.+]] = stablehlo.dot_general %[[X]], %[[W]], {{.*}}"forward"} {{.*}} -> tensor<2x4xf32>
// CHECK: %[[ALL:.+]] = stablehlo.dynamic_update_slice %{{.*}}, %[[H]], {{.*}}"forward"} {{.*}} -> tensor<8x4xf32>
// CHECK: %[[S:.+]] = stablehlo.dot_general %[[ALL]], %[[ALL]], {{.*}}"barrier"} {{.*}} -> tensor<8x8xf32>
// CHECK: %[[E:.+]] = stablehlo.exponential %[[S]] {{.*}}"barrier"}
// CHECK: %[[D:.+]] = stablehlo.dot_general %[[E]], %[[ALL]], {{.*}}"barrier"} {{.*}} -> tensor<8x4xf32>
// CHECK: %[[PART:.+]] = stablehlo.dynamic_slice %[[D]], {{.*}} sizes = [2, 4] {{.*}}"backward"}
// CHECK: %[[G:.+]] = stablehlo.dot_general %[[X]], %[[PART]], {{.*}}"backward"} {{.*}} -> tensor<4x4xf32>
// CHECK: stablehlo.subtract %[[W]], %[[G]] {alpa.phase = "update"}
func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> tensor<4x4xf32> {
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %s = stablehlo.dot_general %h, %h, contracting_dims = [1] x [1] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
  %e = stablehlo.exponential %s {alpa.eqn = 2 : i64, alpa.phase = "forward"} : tensor<8x8xf32>
  %dh = stablehlo.dot_general %e, %h, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %g = stablehlo.dot_general %x, %dh, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4x4xf32>
  return %u : tensor<4x4xf32>
}

// -----

// The balance of experts: its gradient needs their whole load, a sum. A micro-batch that read
// the sum itself would read its own term; the barrier hands the sum on, before it is spread
// over examples.

// CHECK: alpa.micro_batches = {barriers = ["{{.*}}"], estimates = [], exact = true, joins = []
// CHECK: %[[LOAD:.+]] = stablehlo.reduce({{.*}}"forward"} {{.*}} -> tensor<4xf32>
// CHECK: %[[WHOLE:.+]] = stablehlo.convert %[[LOAD]] {{.*}}"barrier"} : tensor<4xf32>
// CHECK: %[[SPREAD:.+]] = stablehlo.broadcast_in_dim %[[WHOLE]], {{.*}}"backward"} {{.*}} -> tensor<2x4xf32>
// CHECK: stablehlo.multiply %[[SPREAD]], {{.*}}"backward"}
func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> tensor<4x4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %f = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %db = stablehlo.broadcast_in_dim %f, dims = [1] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<4xf32>) -> tensor<8x4xf32>
  %d = stablehlo.multiply %db, %y {alpa.eqn = 1 : i64, alpa.phase = "backward"} : tensor<8x4xf32>
  %g = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4x4xf32>
  return %u : tensor<4x4xf32>
}

// -----

// Two sums, of which the second one is of what the first one changed (a variance): all that
// is between them works on the joined examples.

// CHECK: alpa.micro_batches = {barriers = [{{.*}}], estimates = [], exact = true, joins = ["{{.*}}"]
// CHECK: %[[ALL:.+]] = stablehlo.dynamic_update_slice {{.*}}"forward"} {{.*}} -> tensor<8x4xf32>
// CHECK: %[[C:.+]] = stablehlo.subtract %[[ALL]], %{{.*}}"barrier"} : tensor<8x4xf32>
// CHECK: %[[Q:.+]] = stablehlo.multiply %[[C]], %[[C]] {{.*}}"barrier"} : tensor<8x4xf32>
// CHECK: %[[V:.+]] = stablehlo.reduce(%[[Q]] {{.*}}"barrier"}
// CHECK: stablehlo.dynamic_slice {{.*}}"backward"} {{.*}} -> tensor<2x4xf32>
// CHECK: stablehlo.dot_general {{.*}}"backward"} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> tensor<4x4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %m = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %mb = stablehlo.broadcast_in_dim %m, dims = [1] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<4xf32>) -> tensor<8x4xf32>
  %c = stablehlo.subtract %y, %mb {alpa.eqn = 2 : i64, alpa.phase = "forward"} : tensor<8x4xf32>
  %q = stablehlo.multiply %c, %c {alpa.eqn = 3 : i64, alpa.phase = "forward"} : tensor<8x4xf32>
  %v = stablehlo.reduce(%q init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 3 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %vb = stablehlo.broadcast_in_dim %v, dims = [1] {alpa.eqn = 3 : i64, alpa.phase = "backward"} : (tensor<4xf32>) -> tensor<8x4xf32>
  %d = stablehlo.multiply %vb, %c {alpa.eqn = 3 : i64, alpa.phase = "backward"} : tensor<8x4xf32>
  %g = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4x4xf32>
  return %u : tensor<4x4xf32>
}

// -----

// Only weights read what the barrier made: their gradient's way back is cut along the examples.

// CHECK: %[[D:.+]] = stablehlo.dot_general {{.*}}"barrier"} {{.*}} -> tensor<8x4xf32>
// CHECK: %[[PART:.+]] = stablehlo.dynamic_slice %[[D]], {{.*}}"backward"} {{.*}} -> tensor<2x4xf32>
// CHECK: stablehlo.dot_general %[[PART]], %{{.*}}"backward"} : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %v: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %h = stablehlo.dot_general %y, %v, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %s = stablehlo.dot_general %h, %h, contracting_dims = [1] x [1] {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
  %dh = stablehlo.dot_general %s, %h, contracting_dims = [1] x [0] {alpa.eqn = 2 : i64, alpa.phase = "backward"} : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %dy = stablehlo.dot_general %dh, %v, contracting_dims = [1] x [1] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %dv = stablehlo.dot_general %y, %dh, contracting_dims = [0] x [0] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %dw = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %u = stablehlo.subtract %w, %dw {alpa.phase = "update"} : tensor<4x4xf32>
  %t = stablehlo.subtract %v, %dv {alpa.phase = "update"} : tensor<4x4xf32>
  return %u, %t : tensor<4x4xf32>, tensor<4x4xf32>
}
