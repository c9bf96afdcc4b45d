// RUN: alpa-opt %s -split-input-file -alpa-import | FileCheck %s

// Phases and equations come from name stacks; a call's own names count for all of its body.

// CHECK-LABEL: func.func public @main
func.func public @main(%w: tensor<8x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<2x8xf32> {alpa.kind = "batch"}) -> (tensor<8x4xf32>, tensor<f32>) {
  // CHECK: stablehlo.dot_general
  // CHECK-SAME: alpa.eqn = 0 : i64, alpa.phase = "forward"
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32> loc("jit(step)/jvp(alpa_eqn_0)/dot_general")
  // CHECK-NOT: call
  // CHECK: stablehlo.maximum
  // CHECK-SAME: alpa.eqn = 1 : i64, alpa.phase = "forward"
  %1 = func.call @relu(%0) : (tensor<2x4xf32>) -> tensor<2x4xf32> loc("jit(step)/jvp(alpa_eqn_1)/jit(relu)")
  %zero = stablehlo.constant dense<0.0> : tensor<f32> loc("jit(step)")
  // CHECK: %[[SUM:.+]] = stablehlo.reduce
  // CHECK-SAME: alpa.eqn = 2 : i64, alpa.phase = "forward"
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32> loc("jit(step)/jvp(alpa_eqn_2)/reduce_sum")
  // Holds no sample of the batch: taken once, of the sum.
  // CHECK: stablehlo.exponential %[[SUM]]
  // CHECK-SAME: {alpa.phase = "update"}
  %3 = stablehlo.exponential %2 : tensor<f32> loc("jit(step)/exp")
  // The same constant, again for this equation.
  // CHECK: stablehlo.constant
  // CHECK-SAME: alpa.eqn = 1 : i64, alpa.phase = "backward"
  // CHECK: stablehlo.broadcast_in_dim
  // CHECK-SAME: alpa.eqn = 1 : i64, alpa.phase = "backward"
  // CHECK: stablehlo.add
  // CHECK-SAME: alpa.eqn = 1 : i64, alpa.phase = "backward"
  %4 = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<2x4xf32> loc("jit(step)/jvp(alpa_eqn_1)/broadcast_in_dim")
  %5 = stablehlo.add %4, %1 : tensor<2x4xf32> loc("jit(step)/transpose(jvp(alpa_eqn_1))/add_any")
  // CHECK: %[[GRADIENT:.+]] = stablehlo.dot_general
  // CHECK-SAME: alpa.eqn = 0 : i64, alpa.phase = "backward"
  %6 = stablehlo.dot_general %x, %5, contracting_dims = [0] x [0] : (tensor<2x8xf32>, tensor<2x4xf32>) -> tensor<8x4xf32> loc("jit(step)/transpose(jvp(alpa_eqn_0))/dot_general")
  // CHECK: stablehlo.subtract %{{.+}}, %[[GRADIENT]] {alpa.phase = "update"}
  %7 = stablehlo.subtract %w, %6 : tensor<8x4xf32> loc("jit(step)/sub")
  func.return %7, %3 : tensor<8x4xf32>, tensor<f32>
}
// CHECK-NOT: func.func
func.func private @relu(%a: tensor<2x4xf32>) -> tensor<2x4xf32> {
  // Names within count where the call has none.
  %zero = stablehlo.constant dense<0.0> : tensor<f32> loc("jit(step)/transpose(jvp(alpa_eqn_7))/jit(relu)")
  %0 = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<2x4xf32> loc("jit(step)/transpose(jvp(alpa_eqn_7))/jit(relu)/max")
  %1 = stablehlo.maximum %a, %0 : tensor<2x4xf32> loc("jit(step)/transpose(jvp(alpa_eqn_7))/jit(relu)/max")
  return %1 : tensor<2x4xf32>
}

// -----

// Without JAX's names the whole is a forward computation, one equation per op.

// CHECK-LABEL: func.func public @main(%arg0: tensor<4xf32> {alpa.kind = "state"}
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  // CHECK: stablehlo.sine %arg0 {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  %0 = stablehlo.sine %x : tensor<4xf32>
  // CHECK: stablehlo.cosine %{{.+}} {alpa.eqn = 1 : i64, alpa.phase = "forward"}
  %1 = stablehlo.cosine %0 : tensor<4xf32>
  return %1 : tensor<4xf32>
}

// -----

// A metric that still holds samples is computed in each micro-batch, with what it needs; what
// prepares the forward computation is forward; the step counter is update.

// CHECK-LABEL: func.func public @main
func.func public @main(%w: tensor<4xf32> {alpa.kind = "state"}, %n: tensor<i32> {alpa.kind = "state", alpa.carried_by = 1 : i64}, %x: tensor<2x4xf32> {alpa.kind = "batch"}) -> (tensor<2x4xf32> {alpa.reduction = "concat"}, tensor<i32>, tensor<4xf32>) {
  // CHECK: stablehlo.negate {{.*}}alpa.eqn = 3 : i64, alpa.phase = "forward"
  %0 = stablehlo.negate %x : tensor<2x4xf32> loc("jit(step)/neg")
  // CHECK: stablehlo.sine {{.*}}alpa.eqn = 3 : i64, alpa.phase = "forward"
  %1 = stablehlo.sine %0 : tensor<2x4xf32> loc("jit(step)/jvp(alpa_eqn_3)/sin")
  // CHECK: stablehlo.cosine {{.*}}alpa.phase = "forward"
  %2 = stablehlo.cosine %1 : tensor<2x4xf32> loc("jit(step)/cos")
  // CHECK: stablehlo.add {{.*}}{alpa.phase = "update"} : tensor<i32>
  %3 = stablehlo.add %n, %n : tensor<i32> loc("jit(step)/add")
  // CHECK: stablehlo.multiply {{.*}}alpa.phase = "backward"
  %4 = stablehlo.multiply %w, %w : tensor<4xf32> loc("jit(step)/transpose(jvp(alpa_eqn_3))/mul")
  return %2, %3, %4 : tensor<2x4xf32>, tensor<i32>, tensor<4xf32>
}

// -----

// Equal ops of one equation merge, those of two phases do not: the backward pass computes its
// own sine again. Sharding annotations of the program go.

// CHECK-LABEL: func.func public @main
func.func public @main(%x: tensor<4xf32> {alpa.kind = "state"}) -> (tensor<4xf32>, tensor<4xf32>) {
  // CHECK: %[[SINE:.+]] = stablehlo.sine %arg0 {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  // CHECK-NEXT: %[[F:.+]] = stablehlo.multiply %[[SINE]], %[[SINE]] {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  %0 = stablehlo.sine %x : tensor<4xf32> loc("jit(f)/jvp(alpa_eqn_0)/checkpoint/sin")
  %1 = stablehlo.sine %x : tensor<4xf32> loc("jit(f)/jvp(alpa_eqn_0)/checkpoint/sin")
  %2 = stablehlo.multiply %0, %1 : tensor<4xf32> loc("jit(f)/jvp(alpa_eqn_0)/mul")
  // CHECK-NEXT: %[[AGAIN:.+]] = stablehlo.sine %arg0 {alpa.eqn = 0 : i64, alpa.phase = "backward"}
  // CHECK-NEXT: %[[B:.+]] = stablehlo.negate %[[AGAIN]] {alpa.eqn = 0 : i64, alpa.phase = "backward"}
  %3 = stablehlo.sine %x : tensor<4xf32> loc("jit(f)/transpose(jvp(alpa_eqn_0))/jvp(alpa_eqn_0)/checkpoint/rematted_computation/sin")
  %4 = stablehlo.custom_call @Sharding(%3) {mhlo.sharding = "{replicated}"} : (tensor<4xf32>) -> tensor<4xf32>
  %5 = stablehlo.negate %4 : tensor<4xf32> loc("jit(f)/transpose(jvp(alpa_eqn_0))/neg")
  // CHECK-NEXT: return %[[F]], %[[B]]
  return %2, %5 : tensor<4xf32>, tensor<4xf32>
}

// -----

// A step that is a call of a jitted function: the names within do not repeat those of the call.

// CHECK-LABEL: func.func public @main
func.func public @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<2x4xf32> {alpa.kind = "batch"}) -> tensor<4xf32> {
  // CHECK: stablehlo.sine {{.*}}alpa.eqn = 0 : i64, alpa.phase = "forward"
  // CHECK: stablehlo.reduce{{.*}}alpa.eqn = 0 : i64, alpa.phase = "backward"
  // CHECK: stablehlo.subtract {{.*}}{alpa.phase = "update"}
  %0 = func.call @step(%w, %x) : (tensor<4xf32>, tensor<2x4xf32>) -> tensor<4xf32> loc("jit(step)/jit(step)")
  return %0 : tensor<4xf32>
}
func.func private @step(%w: tensor<4xf32>, %x: tensor<2x4xf32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.sine %x : tensor<2x4xf32> loc("jvp(alpa_eqn_0)/sin")
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32> loc("transpose(jvp(alpa_eqn_0))/reduce_sum")
  %2 = stablehlo.subtract %w, %1 : tensor<4xf32> loc("sub")
  return %2 : tensor<4xf32>
}

// -----

// Gradients of single samples are made use of in each micro-batch, until they are added up.

// CHECK-LABEL: func.func public @main
func.func public @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<2x4xf32> {alpa.kind = "batch"}) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.sine %x : tensor<2x4xf32> loc("jit(f)/vmap(jvp(alpa_eqn_0))/sin")
  %1 = stablehlo.cosine %0 : tensor<2x4xf32> loc("jit(f)/vmap(transpose(jvp(alpa_eqn_0)))/cos")
  // CHECK: stablehlo.tanh {{.*}}alpa.phase = "backward"
  %2 = stablehlo.tanh %1 : tensor<2x4xf32> loc("jit(f)/tanh")
  // CHECK: stablehlo.reduce{{.*}}alpa.phase = "backward"
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32> loc("jit(f)/sum")
  // CHECK: stablehlo.tanh %{{.*}} {alpa.phase = "update"}
  %4 = stablehlo.tanh %3 : tensor<4xf32> loc("jit(f)/tanh")
  %5 = stablehlo.subtract %w, %4 : tensor<4xf32> loc("jit(f)/sub")
  return %5 : tensor<4xf32>
}

// -----

// With one sample in the batch, what has the shape of a weight is its gradient.

// CHECK-LABEL: func.func public @main
func.func public @main(%w: tensor<1x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %v: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64}, %x: tensor<1x4xf32> {alpa.kind = "batch"}) -> (tensor<1x4xf32>, tensor<4xf32>) {
  %0 = stablehlo.sine %x : tensor<1x4xf32> loc("jit(f)/jvp(alpa_eqn_0)/sin")
  %1 = stablehlo.cosine %0 : tensor<1x4xf32> loc("jit(f)/transpose(jvp(alpa_eqn_0))/cos")
  // CHECK: stablehlo.tanh %{{.*}} {alpa.phase = "update"}
  %2 = stablehlo.tanh %1 : tensor<1x4xf32> loc("jit(f)/tanh")
  %3 = stablehlo.subtract %w, %2 : tensor<1x4xf32> loc("jit(f)/sub")
  // CHECK: stablehlo.reshape {{.*}}alpa.phase = "backward"
  %4 = stablehlo.reshape %1 : (tensor<1x4xf32>) -> tensor<1x1x4xf32> loc("jit(f)/transpose(jvp(alpa_eqn_0))/reshape")
  // CHECK: stablehlo.negate {{.*}}alpa.phase = "backward"
  %5 = stablehlo.negate %4 : tensor<1x1x4xf32> loc("jit(f)/neg")
  %6 = stablehlo.reshape %5 : (tensor<1x1x4xf32>) -> tensor<4xf32> loc("jit(f)/reshape")
  %7 = stablehlo.subtract %v, %6 : tensor<4xf32> loc("jit(f)/sub")
  return %3, %7 : tensor<1x4xf32>, tensor<4xf32>
}

// -----

// A constant that only leaves has no phase of its own, whatever equation its text says.

// CHECK-LABEL: func.func @main
func.func @main(%w: tensor<4xf32>) -> (tensor<4xf32>, tensor<8xi32>) {
  %0 = stablehlo.negate %w : tensor<4xf32>
  // CHECK: stablehlo.iota dim = 0 {alpa.phase = "update"} : tensor<8xi32>
  %1 = stablehlo.iota dim = 0 {alpa.eqn = 0 : i64} : tensor<8xi32>
  return %0, %1 : tensor<4xf32>, tensor<8xi32>
}

// -----

// A gradient within the loss, as of a gradient penalty, is of the phase of its equation.

// CHECK-LABEL: func.func public @main
func.func public @main(%w: tensor<8x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<2x8xf32> {alpa.kind = "batch"}) -> tensor<8x4xf32> {
  // CHECK: stablehlo.dot_general
  // CHECK-SAME: alpa.eqn = 0 : i64, alpa.phase = "forward"
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32> loc("jit(step)/jvp(alpa_eqn_0)/vmap(jvp())/dot_general")
  // CHECK: stablehlo.tanh
  // CHECK-SAME: alpa.eqn = 1 : i64, alpa.phase = "forward"
  %1 = stablehlo.tanh %0 : tensor<2x4xf32> loc("jit(step)/jvp(alpa_eqn_1)/vmap(transpose(jvp()))/tanh")
  // CHECK: stablehlo.dot_general
  // CHECK-SAME: alpa.eqn = 0 : i64, alpa.phase = "backward"
  %2 = stablehlo.dot_general %x, %1, contracting_dims = [0] x [0] : (tensor<2x8xf32>, tensor<2x4xf32>) -> tensor<8x4xf32> loc("jit(step)/transpose(jvp(alpa_eqn_0))/vmap(jvp())/dot_general")
  %3 = stablehlo.subtract %w, %2 : tensor<8x4xf32> loc("jit(step)/sub")
  func.return %3 : tensor<8x4xf32>
}
