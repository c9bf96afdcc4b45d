// What cannot be split over micro-batches, each with the op that first couples examples.
// RUN: alpa-opt %s -split-input-file -verify-diagnostics -alpa-split-batch="micro-batches=4 allow-barrier=false"
// RUN: not alpa-opt %s -split-input-file -alpa-split-batch=micro-batches=1 -o /dev/null 2>&1 | FileCheck %s --check-prefix=UNSPLIT
// RUN: not alpa-opt %s -split-input-file -alpa-split-batch=micro-batches=0 2>&1 | FileCheck %s --check-prefix=NUMBER
// RUN: not alpa-opt %s -split-input-file -alpa-split-batch="micro-batches=4 semantics=approximate" 2>&1 | FileCheck %s --check-prefix=SEMANTICS
// What examples are compared with is no statistic that one micro-batch could stand for.
// RUN: not alpa-opt %s -split-input-file -alpa-split-batch="micro-batches=4 semantics=relaxed allow-barrier=false" 2>&1 | FileCheck %s --check-prefix=COUPLED
// RUN: not alpa-opt %s -split-input-file -alpa-split-batch="micro-batches=4 semantics=independent" 2>&1 | FileCheck %s --check-prefix=COUPLED
// UNSPLIT-NOT: couples examples, and
// UNSPLIT: error: the module has no function @main to split
// NUMBER: error: option `micro-batches`: expected 1 or more, got 0
// SEMANTICS: error: option `semantics`: expected exact, relaxed or independent, got `approximate`
// COUPLED: error: batch argument tokens has 10 rows, which 4 micro-batches do not divide
// COUPLED: error: `stablehlo.dot_general` pairs examples of the batch with one another: the step couples examples
// COUPLED: error: `stablehlo.exponential` needs a value of the whole batch: the step couples examples

// Every argument of the batch is split along its first dimension.

// expected-error @below {{batch argument tokens has 10 rows, which 4 micro-batches do not divide}}
module {
  func.func @main(%x: tensor<8x4xf32> {alpa.kind = "batch"}, %t: tensor<10xi32> {alpa.kind = "batch", alpa.name = "tokens"}) -> tensor<8x4xf32> {
    return %x : tensor<8x4xf32>
  }
}

// -----

// Without a name it has its number.

// expected-error @below {{batch argument 0 has 6 rows, which 4 micro-batches do not divide}}
module {
  func.func @main(%x: tensor<6xf32> {alpa.kind = "batch"}) -> tensor<6xf32> {
    return %x : tensor<6xf32>
  }
}

// -----

// A contrastive loss compares every example with every other.

func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> tensor<4x4xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  // expected-error @below {{`stablehlo.dot_general` pairs examples of the batch with one another: the step couples examples, and 4 micro-batches would give other results than the whole batch}}
  %s = stablehlo.dot_general %y, %y, contracting_dims = [1] x [1] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
  %e = stablehlo.exponential %s {alpa.eqn = 1 : i64, alpa.phase = "forward"} : tensor<8x8xf32>
  %dy = stablehlo.dot_general %e, %y, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8x8xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
  %g = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4x4xf32>
  return %u : tensor<4x4xf32>
}

// -----

// Batch norm shows every example the mean of all, which depends on the weights.

func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> tensor<4x4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %h = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %n = stablehlo.reduce(%h init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %nb = stablehlo.broadcast_in_dim %n, dims = [1] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<4xf32>) -> tensor<8x4xf32>
  // expected-error @below {{`stablehlo.subtract` needs a value of the whole batch: the step couples examples, and 4 micro-batches would give other results than the whole batch}}
  %c = stablehlo.subtract %h, %nb {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x4xf32>
  %y = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  %g = stablehlo.dot_general %c, %y, contracting_dims = [0] x [0] {alpa.eqn = 1 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4x4xf32>
  return %u : tensor<4x4xf32>
}

// -----

// Gradients of examples in the order of all of them.

func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  // expected-error @below {{`stablehlo.sort` needs all examples of the batch at once: the step couples examples, and 4 micro-batches would give other results than the whole batch}}
  %s = "stablehlo.sort"(%x) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %p = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }) {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %m = stablehlo.multiply %s, %x {alpa.eqn = 0 : i64, alpa.phase = "backward"} : tensor<8x4xf32>
  %g = stablehlo.reduce(%m init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4xf32>
  return %u : tensor<4xf32>
}

// -----

// The examples in another order, to be multiplied by weights.

func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> tensor<8x4xf32> {
  // expected-error @below {{`stablehlo.reverse` needs all examples of the batch at once: the step couples examples, and 4 micro-batches would give other results than the whole batch}}
  %h = stablehlo.reverse %x, dims = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x4xf32>
  %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
  return %y : tensor<8x4xf32>
}

// -----

// Some of the examples.

func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> tensor<4x4xf32> {
  // expected-error @below {{`stablehlo.slice` takes some of the examples: the step couples examples, and 4 micro-batches would give other results than the whole batch}}
  %h = stablehlo.slice %x [0:4, 0:4] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  %y = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}

// -----

// Rows with examples of several micro-batches.

func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> tensor<4x8xf32> {
  // expected-error @below {{`stablehlo.reshape` puts examples of several micro-batches into one row: the step couples examples, and 4 micro-batches would give other results than the whole batch}}
  %h = stablehlo.reshape %x {alpa.eqn = 0 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>) -> tensor<2x16xf32>
  %y = stablehlo.reshape %h {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<2x16xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

// A loop that goes on as long as examples say.

func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %r = stablehlo.while(%a = %x) : tensor<8x4xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "backward"}
  cond {
    %s = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
    // expected-error @below {{`stablehlo.compare` needs a value of the whole batch: the step couples examples, and 4 micro-batches would give other results than the whole batch}}
    %p = stablehlo.compare GT, %s, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %b = stablehlo.subtract %a, %a : tensor<8x4xf32>
    stablehlo.return %b : tensor<8x4xf32>
  }
  %g = stablehlo.reduce(%r init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4xf32>
  return %u : tensor<4xf32>
}

// -----

// A number of tokens that a loop counts is no scale: the update does not know it.

func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}, %m: tensor<8xf32> {alpa.kind = "batch"}) -> (tensor<4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c3 = stablehlo.constant dense<3> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<8x4xf32>
  %r:2 = stablehlo.while(%i = %c0, %y = %zeros) : tensor<i32>, tensor<8x4xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "backward"}
  cond {
    %p = stablehlo.compare LT, %i, %c3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %n = stablehlo.reduce(%m init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    %nb = stablehlo.broadcast_in_dim %n, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    // expected-error @below {{`stablehlo.divide` needs a value of the whole batch: the step couples examples, and 4 micro-batches would give other results than the whole batch}}
    %z = stablehlo.divide %x, %nb : tensor<8x4xf32>
    stablehlo.return %j, %z : tensor<i32>, tensor<8x4xf32>
  }
  %g = stablehlo.reduce(%r#1 init: %zero) applies stablehlo.add across dimensions = [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4xf32>
  return %u : tensor<4xf32>
}

// -----

// Nor is what one micro-batch knows taken for what all know there.

func.func @main(%w: tensor<4x4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4x4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c3 = stablehlo.constant dense<3> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %r:2 = stablehlo.while(%i = %c0, %y = %x) : tensor<i32>, tensor<8x4xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "forward"}
  cond {
    %p = stablehlo.compare LT, %i, %c3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %i, %one : tensor<i32>
    %n = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
    // expected-error @below {{`stablehlo.exponential` needs a value of the whole batch: the step couples examples, and 4 micro-batches would give other results than the whole batch}}
    %e = stablehlo.exponential %n : tensor<4xf32>
    %nb = stablehlo.broadcast_in_dim %e, dims = [1] : (tensor<4xf32>) -> tensor<8x4xf32>
    %z = stablehlo.divide %y, %nb : tensor<8x4xf32>
    %zz = stablehlo.dot_general %z, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    stablehlo.return %j, %zz : tensor<i32>, tensor<8x4xf32>
  }
  %g = stablehlo.dot_general %r#1, %x, contracting_dims = [0] x [0] {alpa.eqn = 0 : i64, alpa.phase = "backward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  %u = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<4x4xf32>
  return %u : tensor<4x4xf32>
}

// -----

// A loop that carries terms adds what depends on no example to them: once, not in every
// micro-batch.

func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c3 = stablehlo.constant dense<3> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
  %r:3 = stablehlo.while(%n = %c0, %a = %zeros, %b = %zeros) : tensor<i32>, tensor<4xf32>, tensor<4xf32> attributes {alpa.eqn = 0 : i64, alpa.phase = "backward"}
  cond {
    %p = stablehlo.compare LT, %n, %c3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %j = stablehlo.add %n, %one : tensor<i32>
    %f = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
    %s = stablehlo.add %a, %b : tensor<4xf32>
    // expected-error @below {{`stablehlo.add` needs a value of the whole batch: the step couples examples, and 4 micro-batches would give other results than the whole batch}}
    %t = stablehlo.add %s, %f : tensor<4xf32>
    %v = stablehlo.add %b, %w : tensor<4xf32>
    stablehlo.return %j, %t, %v : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  %u = stablehlo.subtract %w, %r#1 {alpa.phase = "update"} : tensor<4xf32>
  return %u : tensor<4xf32>
}

// -----

// Metrics may couple examples: they are made once, of all of them.

func.func @main(%w: tensor<4xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64}, %x: tensor<8x4xf32> {alpa.kind = "batch"}) -> (tensor<4xf32>, tensor<8x8xf32>, tensor<8x4xf32>) {
  %s = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] {alpa.eqn = 1 : i64, alpa.phase = "forward"} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x8xf32>
  %h = stablehlo.reverse %x, dims = [0] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : tensor<8x4xf32>
  return %w, %s, %h : tensor<4xf32>, tensor<8x8xf32>, tensor<8x4xf32>
}

// -----

// expected-error @below {{the module has no function @main to split}}
module {
}

// -----

// expected-error @below {{batch argument 0 of type 'tensor<i64>' has no rows that micro-batches could share}}
module {
  func.func @main(%x: tensor<i64> {alpa.kind = "batch"}) -> tensor<i64> {
    return %x : tensor<i64>
  }
}
