// What one micro-batch says, in place of what all examples say.
// RUN: alpa-opt %s -split-input-file -alpa-split-batch="micro-batches=4 semantics=relaxed" | FileCheck %s --check-prefixes=CHECK,RELAXED
// RUN: alpa-opt %s -split-input-file -alpa-split-batch="micro-batches=4 semantics=independent" | FileCheck %s --check-prefixes=CHECK,INDEPENDENT
// RUN: not alpa-opt %s -split-input-file -alpa-split-batch="micro-batches=4 allow-barrier=false" -o /dev/null 2>&1 | FileCheck %s --check-prefix=EXACT
// EXACT-COUNT-3: the step couples examples

// Batch norm of activations: their sum is four times the micro-batch's.

// CHECK: estimates = ["{{[^"]*}}"], exact = false, joins = [], repeats = []
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4x4xf32> {{.*}}, %[[X:[a-z0-9]+]]: tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x"})
// CHECK: %[[H:.+]] = stablehlo.dot_general %[[X]], %[[W]], {{.*}} -> tensor<2x4xf32>
// CHECK: stablehlo.reduce(%[[H]] {{.*}}"forward"}
// CHECK: stablehlo.constant {{.*}} dense<4.000000e+00>
// CHECK: stablehlo.multiply {{.*}}"forward"}
// CHECK: %[[C:.+]] = stablehlo.subtract %[[H]], %{{.*}}"forward"} : tensor<2x4xf32>
// CHECK: %[[Y:.+]] = stablehlo.dot_general %[[C]], %[[W]], {{.*}} -> tensor<2x4xf32>
// CHECK: %[[G:.+]] = stablehlo.dot_general %[[C]], %[[Y]], {{.*}}"backward"} {{.*}} -> tensor<4x4xf32>
// CHECK: stablehlo.subtract %[[W]], %[[G]] {alpa.phase = "update"}
func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch", alpa.name = "x"}) -> tensor<4x4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %n = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %nb = stablehlo.broadcast_in_dim %n, dims = [1] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<4xf32>) -> tensor<8x4xf32>
  %c = stablehlo.subtract %h, %nb {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x4xf32>
  %y = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %g = stablehlo.dot_general %c, %y, contracting_dims = [0] x [0] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4x4xf32>
  return %u : tensor<4x4xf32>
}

// -----

// A loss of the experts' load, which the backward pass reads. Sums that leave are those of the
// whole batch all the same.

// CHECK: estimates = ["{{[^"]*}}"], exact = false
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4x4xf32>
// CHECK: %[[Y:.+]] = stablehlo.dot_general
// CHECK: %[[F:.+]] = stablehlo.reduce(%[[Y]] {{.*}} dimensions = [0] {{.*}}"forward"}
// CHECK: %[[L:.+]] = stablehlo.reduce(%[[Y]] {{.*}} dimensions = [0, 1] {{.*}}"forward"}
// CHECK: %[[B:.+]] = stablehlo.broadcast_in_dim %[[F]], dims = [1] {{.*}}"backward"}
// CHECK: %[[FOUR:.+]] = stablehlo.constant {{.*}} dense<4.000000e+00> : tensor<2x4xf32>
// CHECK: %[[ALL:.+]] = stablehlo.multiply %[[B]], %[[FOUR]] {{.*}}"backward"}
// CHECK: stablehlo.multiply %[[ALL]], %[[Y]] {{.*}}"backward"}
// CHECK: %[[U:.+]] = stablehlo.subtract %[[W]], %{{.*}} {alpa.phase = "update"}
// CHECK: return %[[U]], %[[F]], %[[L]]
func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4x4xf32>, tensor<4xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %f = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %l = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  %db = stablehlo.broadcast_in_dim %f, dims = [1] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<4xf32>) -> tensor<8x4xf32>
  %d = stablehlo.multiply %db, %y {alpa.eqn = 1 : i64, alpa.phase = "backward"} : tensor<8x4xf32>
  %g = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4x4xf32>
  return %u, %f, %l : tensor<4x4xf32>, tensor<4xf32>, tensor<f32>
}

// -----

// The largest of the micro-batch is taken as it is. Where other ops may, too, a result is the
// mean of the micro-batches' and a truth value the first one's; else both are exact.

// CHECK: estimates = ["{{[^"]*}}"], exact = false
// CHECK-LABEL: func.func @main(
// CHECK-SAME: %[[W:[a-z0-9]+]]: tensor<4xf32> {{.*}}, %{{.*}}: tensor<4x4xf32> {{.*}}, %[[X:[a-z0-9]+]]: tensor<2x4xf32>
// CHECK: %[[Y:.+]] = stablehlo.dot_general %[[X]], {{.*}} -> tensor<2x4xf32>
// CHECK: %[[M:.+]] = stablehlo.reduce(%[[Y]] {{.*}} applies stablehlo.maximum
// RELAXED: %[[MAXES:.+]] = stablehlo.dynamic_update_slice
// RELAXED: %[[MAX:.+]] = stablehlo.reduce(%[[MAXES]] {{.*}} applies stablehlo.maximum {{.*}}{alpa.phase = "update"}
// RELAXED: %[[SURE:.+]] = stablehlo.exponential %[[MAX]] {alpa.phase = "update"}
// RELAXED: %[[TRUE:.+]] = stablehlo.compare LT, %[[SURE]], %[[W]] {alpa.phase = "update"}
// CHECK: %[[E:.+]] = stablehlo.exponential %[[M]] {{.*}}"forward"}
// CHECK: %[[B:.+]] = stablehlo.broadcast_in_dim %[[E]], dims = [1] {{.*}}"backward"}
// CHECK: stablehlo.divide %[[X]], %[[B]] {{.*}}"backward"}
// CHECK: %[[U:.+]] = stablehlo.subtract %[[W]], %{{.*}} {alpa.phase = "update"}
// RELAXED: return %[[U]], %[[SURE]], %[[TRUE]]
// INDEPENDENT: %[[QUARTER:.+]] = stablehlo.constant {{.*}} dense<2.500000e-01>
// INDEPENDENT: %[[TERM:.+]] = stablehlo.multiply %[[E]], %[[QUARTER]] {{.*}}"forward"}
// INDEPENDENT: %[[FIRST:.+]] = stablehlo.select {{.*}}"forward"} : tensor<4xi1>, tensor<4xui8>
// INDEPENDENT: %[[TRUE:.+]] = stablehlo.compare NE, %[[FIRST]], {{.*}}{alpa.phase = "update"}
// INDEPENDENT: return %[[U]], %[[TERM]], %[[TRUE]]
func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %v: tensor<4x4xf32> {alpa.kind = "state"}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xi1>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %ninf = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %y = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %m = stablehlo.reduce(%y init: %ninf) applies stablehlo.maximum across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %e = stablehlo.exponential %m {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<4xf32>
  %p = stablehlo.compare LT, %e, %w {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %b = stablehlo.broadcast_in_dim %e, dims = [1] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<4xf32>) -> tensor<8x4xf32>
  %d = stablehlo.divide %x, %b {alpa.eqn = 0 : i64, alpa.phase = "backward"} : tensor<8x4xf32>
  %g = stablehlo.reduce(%d init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4xf32>
  return %u, %e, %p : tensor<4xf32>, tensor<4xf32>, tensor<4xi1>
}

// -----

// What the arguments of the batch say is no estimate: the largest of all examples is known.
// Micro-batches that are independent look at their own all the same.

// RELAXED: estimates = [], exact = true, joins = [], repeats = ["{{[^"]*}}"]
// RELAXED-LABEL: func.func @main(
// RELAXED-SAME: %[[X:[a-z0-9]+]]: tensor<2x4xf32> {{.*}}, %[[XS:[a-z0-9]+]]: tensor<8x4xf32> {alpa.kind = "state", alpa.name = "x (whole)", alpa.whole_of = "x"}
// RELAXED: %[[M:.+]] = stablehlo.reduce(%[[XS]] {{.*}} applies stablehlo.maximum {{.*}}"forward"}
// RELAXED: %[[E:.+]] = stablehlo.exponential %[[M]] {{.*}}"forward"}
// RELAXED: %[[B:.+]] = stablehlo.broadcast_in_dim %[[E]], dims = [1] {{.*}} -> tensor<2x4xf32>
// RELAXED: stablehlo.divide %[[X]], %[[B]] {{.*}}"backward"}
// INDEPENDENT: estimates = ["{{[^"]*}}"], exact = false, joins = [], repeats = []
// INDEPENDENT-LABEL: func.func @main(
// INDEPENDENT-SAME: %[[X:[a-z0-9]+]]: tensor<2x4xf32> {alpa.kind = "batch", alpa.name = "x"})
// INDEPENDENT: stablehlo.reduce(%[[X]] {{.*}} applies stablehlo.maximum
func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch", alpa.name = "x"}) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %ninf = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %m = stablehlo.reduce(%x init: %ninf) applies stablehlo.maximum across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %e = stablehlo.exponential %m {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<4xf32>
  %b = stablehlo.broadcast_in_dim %e, dims = [1] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<4xf32>) -> tensor<8x4xf32>
  %d = stablehlo.divide %x, %b {alpa.eqn = 0 : i64, alpa.phase = "backward"} : tensor<8x4xf32>
  %g = stablehlo.reduce(%d init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4xf32>
  return %u : tensor<4xf32>
}
