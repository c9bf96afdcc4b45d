// RUN: alpa-opt %s -split-input-file -alpa-unroll-layers | FileCheck %s -enable-var-scope
// RUN: alpa-opt %s -split-input-file -alpa-unroll-layers=max-ops=10 | FileCheck %s -check-prefix=WHOLE

// Two layers tanh(x w) and their gradient in reverse. The body has two equations, so the loop's
// equation 1 becomes 1 and 2, 3 and 4, and what came after moves up. The residual goes from the
// forward iteration to its backward one without a stack.

// WHOLE-LABEL: func.func @main
// WHOLE: stablehlo.while
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[W:.+]]: tensor<2x8x8xf32> {{.*}}, %[[X:.+]]: tensor<4x8xf32>
func.func @main(%w: tensor<2x8x8xf32> {alpa.kind = "state"}, %x: tensor<4x8xf32> {alpa.kind = "batch"}) -> (tensor<4x8xf32>, tensor<2x8x8xf32>) {
  %c0 = stablehlo.constant {alpa.eqn = 1 : i64, alpa.phase = "forward"} dense<0> : tensor<i32>
  %none = stablehlo.constant {alpa.eqn = 1 : i64, alpa.phase = "forward"} dense<0.0> : tensor<2x4x8xf32>
  // CHECK-NOT: stablehlo.while
  // CHECK: %[[S:.+]] = stablehlo.sine %[[X]] {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  %0 = stablehlo.sine %x {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // CHECK: %[[W0:.+]] = stablehlo.slice %[[W]] [0:1, 0:8, 0:8] {alpa.eqn = 1 : i64, alpa.phase = "forward"}
  // CHECK: %[[M0:.+]] = stablehlo.reshape %[[W0]] {alpa.eqn = 1 : i64, alpa.phase = "forward"}
  // CHECK: %[[D0:.+]] = stablehlo.dot_general %[[S]], %[[M0]], {{.*}}alpa.eqn = 1 : i64, alpa.phase = "forward"
  // CHECK: %[[Y0:.+]] = stablehlo.tanh %[[D0]] {alpa.eqn = 2 : i64, alpa.phase = "forward"}
  // CHECK: %[[W1:.+]] = stablehlo.slice %[[W]] [1:2, 0:8, 0:8] {alpa.eqn = 3 : i64, alpa.phase = "forward"}
  // CHECK: %[[M1:.+]] = stablehlo.reshape %[[W1]] {alpa.eqn = 3 : i64, alpa.phase = "forward"}
  // CHECK: %[[D1:.+]] = stablehlo.dot_general %[[Y0]], %[[M1]], {{.*}}alpa.eqn = 3 : i64, alpa.phase = "forward"
  // CHECK: %[[Y1:.+]] = stablehlo.tanh %[[D1]] {alpa.eqn = 4 : i64, alpa.phase = "forward"}
  %1:4 = stablehlo.while(%i = %c0, %a = %0, %ws = %w, %r = %none) : tensor<i32>, tensor<4x8xf32>, tensor<2x8x8xf32>, tensor<2x4x8xf32> attributes {alpa.eqn = 1 : i64, alpa.phase = "forward"}
  cond {
    %n = stablehlo.constant dense<2> : tensor<i32>
    %go = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %s = stablehlo.dynamic_slice %ws, %i, %z, %z, sizes = [1, 8, 8] : (tensor<2x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %m = stablehlo.reshape %s : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %d = stablehlo.dot_general %a, %m, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32> loc("jit(f)/jvp(alpa_eqn_1)/while/body/alpa_inner1_0/dot_general")
    %y = stablehlo.tanh %d : tensor<4x8xf32> loc("jit(f)/jvp(alpa_eqn_1)/while/body/alpa_inner1_1/tanh")
    %u = stablehlo.broadcast_in_dim %a, dims = [1, 2] : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
    %q = stablehlo.dynamic_update_slice %r, %u, %i, %z, %z : (tensor<2x4x8xf32>, tensor<1x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x4x8xf32>
    %k = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %k, %y, %ws, %q : tensor<i32>, tensor<4x8xf32>, tensor<2x8x8xf32>, tensor<2x4x8xf32>
  }
  // CHECK: %[[C:.+]] = stablehlo.cosine %[[Y1]] {alpa.eqn = 5 : i64, alpa.phase = "forward"}
  %2 = stablehlo.cosine %1#1 {alpa.eqn = 2 : i64, alpa.phase = "forward"} : tensor<4x8xf32>
  // CHECK: %[[G:.+]] = stablehlo.negate %[[C]] {alpa.eqn = 5 : i64, alpa.phase = "backward"}
  %3 = stablehlo.negate %2 {alpa.eqn = 2 : i64, alpa.phase = "backward"} : tensor<4x8xf32>
  %b0 = stablehlo.constant {alpa.eqn = 1 : i64, alpa.phase = "backward"} dense<0> : tensor<i32>
  %zeros = stablehlo.constant {alpa.eqn = 1 : i64, alpa.phase = "backward"} dense<0.0> : tensor<2x8x8xf32>
  // CHECK: %[[H1:.+]] = stablehlo.abs %[[G]] {alpa.eqn = 4 : i64, alpa.phase = "backward"}
  // CHECK: %[[DW1:.+]] = stablehlo.dot_general %[[Y0]], %[[H1]], {{.*}}alpa.eqn = 3 : i64, alpa.phase = "backward"
  // CHECK: %[[P1:.+]] = stablehlo.reshape %[[DW1]] {alpa.eqn = 3 : i64, alpa.phase = "backward"}
  // CHECK: %[[H0:.+]] = stablehlo.abs %{{.+}} {alpa.eqn = 2 : i64, alpa.phase = "backward"}
  // CHECK: %[[DW0:.+]] = stablehlo.dot_general %[[S]], %[[H0]], {{.*}}alpa.eqn = 1 : i64, alpa.phase = "backward"
  // CHECK: %[[P0:.+]] = stablehlo.reshape %[[DW0]] {alpa.eqn = 1 : i64, alpa.phase = "backward"}
  // CHECK: %[[DW:.+]] = stablehlo.concatenate %[[P0]], %[[P1]], dim = 0
  %4:5 = stablehlo.while(%i = %b0, %g = %3, %ws = %w, %r = %1#3, %acc = %zeros) : tensor<i32>, tensor<4x8xf32>, tensor<2x8x8xf32>, tensor<2x4x8xf32>, tensor<2x8x8xf32> attributes {alpa.eqn = 1 : i64, alpa.phase = "backward"}
  cond {
    %n = stablehlo.constant dense<2> : tensor<i32>
    %go = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.subtract %one, %i : tensor<i32>
    %s = stablehlo.dynamic_slice %ws, %j, %z, %z, sizes = [1, 8, 8] : (tensor<2x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %m = stablehlo.reshape %s : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %t = stablehlo.dynamic_slice %r, %j, %z, %z, sizes = [1, 4, 8] : (tensor<2x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x8xf32>
    %a = stablehlo.reshape %t : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
    %h = stablehlo.abs %g : tensor<4x8xf32> loc("transpose(jvp(alpa_eqn_1))/while/body/alpa_inner1_1/abs")
    %dw = stablehlo.dot_general %a, %h, contracting_dims = [0] x [0] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32> loc("transpose(jvp(alpa_eqn_1))/while/body/alpa_inner1_0/dot")
    %dx = stablehlo.dot_general %h, %m, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32> loc("transpose(jvp(alpa_eqn_1))/while/body/alpa_inner1_0/dot")
    %u = stablehlo.reshape %dw : (tensor<8x8xf32>) -> tensor<1x8x8xf32>
    %q = stablehlo.dynamic_update_slice %acc, %u, %j, %z, %z : (tensor<2x8x8xf32>, tensor<1x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x8x8xf32>
    %k = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %k, %dx, %ws, %r, %q : tensor<i32>, tensor<4x8xf32>, tensor<2x8x8xf32>, tensor<2x4x8xf32>, tensor<2x8x8xf32>
  }
  // CHECK: return %[[C]], %[[DW]]
  return %2, %4#4 : tensor<4x8xf32>, tensor<2x8x8xf32>
}

// -----

// A recurrence over time multiplies by the same weights in every step.

// CHECK-LABEL: func.func @main
// CHECK: stablehlo.while
func.func @main(%w: tensor<8x8xf32> {alpa.kind = "state"}, %x: tensor<3x4x8xf32> {alpa.kind = "batch"}) -> tensor<4x8xf32> {
  %c0 = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0> : tensor<i32>
  %h0 = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0.0> : tensor<4x8xf32>
  %0:4 = stablehlo.while(%i = %c0, %h = %h0, %m = %w, %xs = %x) : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32>, tensor<3x4x8xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  cond {
    %n = stablehlo.constant dense<3> : tensor<i32>
    %go = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %s = stablehlo.dynamic_slice %xs, %i, %z, %z, sizes = [1, 4, 8] : (tensor<3x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x8xf32>
    %a = stablehlo.reshape %s : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
    %b = stablehlo.add %a, %h : tensor<4x8xf32>
    %y = stablehlo.dot_general %b, %m, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %k = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %k, %y, %m, %xs : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32>, tensor<3x4x8xf32>
  }
  return %0#1 : tensor<4x8xf32>
}

// -----

// Loops within the layers come out and are unrolled as well: the chunks of each layer have weights
// of their own. Without scopes a body is one equation.

// CHECK-LABEL: func.func @main
// CHECK-NOT: stablehlo.while
// CHECK: stablehlo.slice %{{.+}} [0:1, 0:2, 0:8, 0:8] {alpa.eqn = 0 : i64
// CHECK: stablehlo.dot_general {{.*}}alpa.eqn = 0 : i64
// CHECK: stablehlo.dot_general {{.*}}alpa.eqn = 1 : i64
// CHECK: stablehlo.slice %{{.+}} [1:2, 0:2, 0:8, 0:8] {alpa.eqn = 2 : i64
// CHECK: stablehlo.dot_general {{.*}}alpa.eqn = 2 : i64
// CHECK: %[[Y:.+]] = stablehlo.dot_general {{.*}}alpa.eqn = 3 : i64
// CHECK: return %[[Y]]
func.func @main(%w: tensor<2x2x8x8xf32> {alpa.kind = "state"}, %x: tensor<4x8xf32> {alpa.kind = "batch"}) -> tensor<4x8xf32> {
  %c0 = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c0, %a = %x) : tensor<i32>, tensor<4x8xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  cond {
    %n = stablehlo.constant dense<2> : tensor<i32>
    %go = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %s = stablehlo.dynamic_slice %w, %i, %z, %z, %z, sizes = [1, 2, 8, 8] : (tensor<2x2x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x8x8xf32>
    %m = stablehlo.reshape %s : (tensor<1x2x8x8xf32>) -> tensor<2x8x8xf32>
    %1:2 = stablehlo.while(%j = %z, %b = %a) : tensor<i32>, tensor<4x8xf32>
    cond {
      %n = stablehlo.constant dense<2> : tensor<i32>
      %go = stablehlo.compare LT, %j, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %y = stablehlo.constant dense<0> : tensor<i32>
      %c = stablehlo.constant dense<1> : tensor<i32>
      %t = stablehlo.dynamic_slice %m, %j, %y, %y, sizes = [1, 8, 8] : (tensor<2x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
      %v = stablehlo.reshape %t : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
      %d = stablehlo.dot_general %b, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
      %l = stablehlo.add %j, %c : tensor<i32>
      stablehlo.return %l, %d : tensor<i32>, tensor<4x8xf32>
    }
    %k = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %k, %1#1 : tensor<i32>, tensor<4x8xf32>
  }
  return %0#1 : tensor<4x8xf32>
}

// -----

// A loop that runs once is no loop, whatever it does, nor is the one within it that never runs.

// WHOLE: -> (tensor<4x4xf32>, tensor<1x4x4xf32>)
// WHOLE-NOT: stablehlo.while
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.+]]: tensor<4x4xf32>
func.func @main(%x: tensor<4x4xf32> {alpa.kind = "batch"}) -> (tensor<4x4xf32>, tensor<1x4x4xf32>) {
  // CHECK-NOT: stablehlo.while
  %c0 = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0> : tensor<i32>
  %none = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0.0> : tensor<1x4x4xf32>
  // CHECK: %[[Y:.+]] = stablehlo.sine %[[X]] {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  // CHECK: %[[R:.+]] = stablehlo.broadcast_in_dim %[[X]]
  // CHECK: return %[[Y]], %[[R]]
  %0:3 = stablehlo.while(%i = %c0, %a = %x, %r = %none) : tensor<i32>, tensor<4x4xf32>, tensor<1x4x4xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  cond {
    %n = stablehlo.constant dense<1> : tensor<i32>
    %go = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %s = stablehlo.sine %a : tensor<4x4xf32>
    %never:2 = stablehlo.while(%j = %z, %b = %s) : tensor<i32>, tensor<4x4xf32>
    cond {
      %n = stablehlo.constant dense<0> : tensor<i32>
      %go = stablehlo.compare LT, %j, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %two = stablehlo.constant dense<1> : tensor<i32>
      %e = stablehlo.exponential %b : tensor<4x4xf32>
      %k = stablehlo.add %j, %two : tensor<i32>
      stablehlo.return %k, %e : tensor<i32>, tensor<4x4xf32>
    }
    %u = stablehlo.broadcast_in_dim %a, dims = [1, 2] : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    %q = stablehlo.dynamic_update_slice %r, %u, %i, %z, %z : (tensor<1x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %k = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %k, %never#1, %q : tensor<i32>, tensor<4x4xf32>, tensor<1x4x4xf32>
  }
  return %0#1, %0#2 : tensor<4x4xf32>, tensor<1x4x4xf32>
}

// -----

// A scan with `unroll=2` of four layers takes blocks of two rows of its stacks: its layers take
// single rows, and give single rows, as if each were an iteration.

// WHOLE: stablehlo.while
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[W:.+]]: tensor<4x8x8xf32> {{.*}}, %[[X:.+]]: tensor<4x8xf32>
func.func @main(%w: tensor<4x8x8xf32> {alpa.kind = "state"}, %x: tensor<4x8xf32> {alpa.kind = "batch"}) -> (tensor<4x8xf32>, tensor<4x4x8xf32>, tensor<2x4x8xf32>) {
  // CHECK-NOT: stablehlo.while
  // CHECK: %[[W0:.+]] = stablehlo.slice %[[W]] [0:1, 0:8, 0:8]
  // CHECK: %[[M0:.+]] = stablehlo.reshape %[[W0]] {{.*}}(tensor<1x8x8xf32>) -> tensor<8x8xf32>
  // CHECK: %[[Y0:.+]] = stablehlo.dot_general %[[X]], %[[M0]]
  // CHECK: %[[W1:.+]] = stablehlo.slice %[[W]] [1:2, 0:8, 0:8]
  // CHECK: %[[M1:.+]] = stablehlo.reshape %[[W1]]
  // CHECK: %[[Y1:.+]] = stablehlo.dot_general %[[Y0]], %[[M1]]
  // CHECK: %[[R0:.+]] = stablehlo.broadcast_in_dim %[[Y0]]
  // CHECK: %[[R1:.+]] = stablehlo.broadcast_in_dim %[[Y1]]
  // CHECK: %[[W2:.+]] = stablehlo.slice %[[W]] [2:3, 0:8, 0:8]
  // CHECK: %[[W3:.+]] = stablehlo.slice %[[W]] [3:4, 0:8, 0:8]
  // CHECK: %[[Y3:.+]] = stablehlo.dot_general
  // CHECK: %[[R2:.+]] = stablehlo.broadcast_in_dim
  // CHECK: %[[R3:.+]] = stablehlo.broadcast_in_dim %[[Y3]]
  // CHECK: %[[R:.+]] = stablehlo.concatenate %[[R0]], %[[R1]], %[[R2]], %[[R3]], dim = 0
  // Rows across blocks are none of one block.
  // CHECK: %[[ACROSS:.+]] = stablehlo.slice %[[R]] [1:3, 0:4, 0:8]
  // CHECK: return %[[Y3]], %[[R]], %[[ACROSS]]
  %c0 = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0> : tensor<i32>
  %blocks = stablehlo.reshape %w {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<4x8x8xf32>) -> tensor<2x2x8x8xf32>
  %none = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0.0> : tensor<2x2x4x8xf32>
  %0:4 = stablehlo.while(%i = %c0, %a = %x, %ws = %blocks, %r = %none) : tensor<i32>, tensor<4x8xf32>, tensor<2x2x8x8xf32>, tensor<2x2x4x8xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  cond {
    %n = stablehlo.constant dense<2> : tensor<i32>
    %go = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %s = stablehlo.dynamic_slice %ws, %i, %z, %z, %z, sizes = [1, 2, 8, 8] : (tensor<2x2x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x8x8xf32>
    %b = stablehlo.reshape %s : (tensor<1x2x8x8xf32>) -> tensor<2x8x8xf32>
    %s0 = stablehlo.slice %b [0:1, 0:8, 0:8] : (tensor<2x8x8xf32>) -> tensor<1x8x8xf32>
    %m0 = stablehlo.reshape %s0 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %y0 = stablehlo.dot_general %a, %m0, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %s1 = stablehlo.slice %b [1:2, 0:8, 0:8] : (tensor<2x8x8xf32>) -> tensor<1x8x8xf32>
    %m1 = stablehlo.reshape %s1 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %y1 = stablehlo.dot_general %y0, %m1, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %r0 = stablehlo.broadcast_in_dim %y0, dims = [1, 2] : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
    %r1 = stablehlo.broadcast_in_dim %y1, dims = [1, 2] : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
    %p = stablehlo.concatenate %r0, %r1, dim = 0 : (tensor<1x4x8xf32>, tensor<1x4x8xf32>) -> tensor<2x4x8xf32>
    %u = stablehlo.broadcast_in_dim %p, dims = [1, 2, 3] : (tensor<2x4x8xf32>) -> tensor<1x2x4x8xf32>
    %q = stablehlo.dynamic_update_slice %r, %u, %i, %z, %z, %z : (tensor<2x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x4x8xf32>
    %k = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %k, %y1, %ws, %q : tensor<i32>, tensor<4x8xf32>, tensor<2x2x8x8xf32>, tensor<2x2x4x8xf32>
  }
  %stack = stablehlo.reshape %0#3 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<2x2x4x8xf32>) -> tensor<4x4x8xf32>
  %across = stablehlo.slice %stack [1:3, 0:4, 0:8] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<4x4x8xf32>) -> tensor<2x4x8xf32>
  return %0#1, %stack, %across : tensor<4x8xf32>, tensor<4x4x8xf32>, tensor<2x4x8xf32>
}

// -----

// Branches by a number that follows from constants: of three layers, even ones are local (sine).
// A number out of range is the last branch; one of the batch stays a choice.

// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[W:.+]]: tensor<3x8x8xf32> {{.*}}, %[[X:.+]]: tensor<4x8xf32>
func.func @main(%w: tensor<3x8x8xf32> {alpa.kind = "state"}, %x: tensor<4x8xf32> {alpa.kind = "batch"}, %k: tensor<i32> {alpa.kind = "batch"}) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  %c0 = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0> : tensor<i32>
  %n = stablehlo.iota dim = 0 {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<3xi32>
  %twos = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<2> : tensor<3xi32>
  %zeros = stablehlo.constant {alpa.eqn = 0 : i64, alpa.phase = "forward"} dense<0> : tensor<3xi32>
  %rest = stablehlo.remainder %n, %twos {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<3xi32>
  %even = stablehlo.compare EQ, %rest, %zeros, SIGNED {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<3xi32>, tensor<3xi32>) -> tensor<3xi1>
  // CHECK: %[[D0:.+]] = stablehlo.dot_general %[[X]]
  // CHECK-NEXT: %[[Y0:.+]] = stablehlo.sine %[[D0]] {alpa.eqn = [[E0:[0-9]+]] : i64, alpa.phase = "forward"}
  // CHECK: %[[D1:.+]] = stablehlo.dot_general %[[Y0]]
  // CHECK-NEXT: %[[Y1:.+]] = stablehlo.tanh %[[D1]]
  // CHECK: %[[D2:.+]] = stablehlo.dot_general %[[Y1]]
  // CHECK-NEXT: %[[Y2:.+]] = stablehlo.sine %[[D2]]
  %1:4 = stablehlo.while(%i = %c0, %a = %x, %ws = %w, %es = %even) : tensor<i32>, tensor<4x8xf32>, tensor<3x8x8xf32>, tensor<3xi1> attributes {alpa.eqn = 1 : i64, alpa.phase = "forward"}
  cond {
    %most = stablehlo.constant dense<3> : tensor<i32>
    %go = stablehlo.compare LT, %i, %most, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %z = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %s = stablehlo.dynamic_slice %ws, %i, %z, %z, sizes = [1, 8, 8] : (tensor<3x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %m = stablehlo.reshape %s : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %e = stablehlo.dynamic_slice %es, %i, sizes = [1] : (tensor<3xi1>, tensor<i32>) -> tensor<1xi1>
    %f = stablehlo.reshape %e : (tensor<1xi1>) -> tensor<i1>
    %g = stablehlo.convert %f : (tensor<i1>) -> tensor<i32>
    %d = stablehlo.dot_general %a, %m, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %y = "stablehlo.case"(%g) ({
      %t = stablehlo.tanh %d : tensor<4x8xf32>
      stablehlo.return %t : tensor<4x8xf32>
    }, {
      %t = stablehlo.sine %d : tensor<4x8xf32>
      stablehlo.return %t : tensor<4x8xf32>
    }) : (tensor<i32>) -> tensor<4x8xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y, %ws, %es : tensor<i32>, tensor<4x8xf32>, tensor<3x8x8xf32>, tensor<3xi1>
  }
  // CHECK: %[[C:.+]] = stablehlo.cosine %[[Y2]]
  %seven = stablehlo.constant {alpa.eqn = 2 : i64, alpa.phase = "forward"} dense<7> : tensor<i32>
  %2 = "stablehlo.case"(%seven) ({
    stablehlo.return %1#1 : tensor<4x8xf32>
  }, {
    %t = stablehlo.cosine %1#1 : tensor<4x8xf32>
    stablehlo.return %t : tensor<4x8xf32>
  }) {alpa.eqn = 2 : i64, alpa.phase = "forward"} : (tensor<i32>) -> tensor<4x8xf32>
  // CHECK: %[[K:.+]] = "stablehlo.case"
  %3 = "stablehlo.case"(%k) ({
    stablehlo.return %2 : tensor<4x8xf32>
  }, {
    stablehlo.return %x : tensor<4x8xf32>
  }) {alpa.eqn = 3 : i64, alpa.phase = "forward"} : (tensor<i32>) -> tensor<4x8xf32>
  // CHECK: return %[[C]], %[[K]]
  return %2, %3 : tensor<4x8xf32>, tensor<4x8xf32>
}
