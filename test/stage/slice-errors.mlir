// What cannot be cut into stages, each with a name.
// RUN: alpa-opt %s --alpa-slice-stages --allow-unregistered-dialect --verify-diagnostics --split-input-file

// expected-error@+1 {{has no `alpa.stages`; run alpa-search-stages first}}
module {
  func.func @main() {
    return
  }
}

// -----

// expected-error@+1 {{expected a function @main with a body}}
module attributes {alpa.stages = [#alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>]} {
}

// -----

module attributes {alpa.stages = [#alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>]} {
  func.func @main(%x: tensor<4xf32> {alpa.kind = "batch"}) -> (tensor<4xf32> {alpa.reduction = "concat"}) {
    // expected-error@+1 {{has no `alpa.stage`; run the passes from alpa-import to alpa-search-stages first}}
    %0 = "test.op"(%x) {alpa.phase = "forward"} : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

module attributes {alpa.stages = [#alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>]} {
  func.func @main(%x: tensor<4xf32> {alpa.kind = "batch"}) -> (tensor<4xf32> {alpa.reduction = "concat"}) {
    // expected-error@+1 {{is in stage 1, but `alpa.stages` has 1}}
    %0 = "test.op"(%x) {alpa.phase = "forward", alpa.stage = 1 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// A forward value must not flow to an earlier stage.
module attributes {alpa.stages = [#alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>,
                                  #alpa.stage<mesh = <shape = [1], devices = [1]>, layers = [1, 2]>]} {
  func.func @main(%x: tensor<4xf32> {alpa.kind = "batch"}) -> (tensor<4xf32> {alpa.reduction = "concat"}) {
    // expected-note@+1 {{the value is made in forward of stage 1}}
    %0 = "test.op"(%x) {alpa.phase = "forward", alpa.stage = 1 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    // expected-error@+1 {{runs in forward of stage 0, before a value that it uses}}
    %1 = "test.op"(%0) {alpa.phase = "forward", alpa.stage = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}

// -----

// A truth value of each micro-batch has no sum.
module attributes {alpa.num_micro_batches = 2 : i64,
    alpa.stages = [#alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>]} {
  func.func @main(%x: tensor<4xf32> {alpa.kind = "batch"}) -> (tensor<i1> {alpa.reduction = "sum", alpa.name = "correct"}) {
    // expected-error@+1 {{result 0 (correct) needs the sum over 2 micro-batches of a value of type 'tensor<i1>'; run alpa-split-batch first}}
    %0 = "test.count"(%x) {alpa.phase = "forward", alpa.stage = 0 : i64} : (tensor<4xf32>) -> tensor<i1>
    return %0 : tensor<i1>
  }
}

// -----

// Nor has one that the update reads.
module attributes {alpa.num_micro_batches = 2 : i64,
    alpa.stages = [#alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>]} {
  func.func @main(%x: tensor<4xf32> {alpa.kind = "batch"}) -> (tensor<i32> {alpa.name = "correct"}) {
    // expected-error@+1 {{result 0 (correct) needs the sum over 2 micro-batches of a value of type 'tensor<i1>'; run alpa-split-batch first}}
    %0 = "test.count"(%x) {alpa.phase = "forward", alpa.stage = 0 : i64} : (tensor<4xf32>) -> tensor<i1>
    %1 = "test.use"(%0) {alpa.phase = "update", alpa.stage = 0 : i64} : (tensor<i1>) -> tensor<i32>
    return %1 : tensor<i32>
  }
}

// -----

// With one micro-batch there is nothing to add up.
module attributes {alpa.num_micro_batches = 1 : i64,
    alpa.stages = [#alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>]} {
  func.func @main(%x: tensor<4xf32> {alpa.kind = "batch"}) -> (tensor<i1> {alpa.reduction = "sum", alpa.name = "correct"}) {
    %0 = "test.count"(%x) {alpa.phase = "forward", alpa.stage = 0 : i64} : (tensor<4xf32>) -> tensor<i1>
    return %0 : tensor<i1>
  }
}

// -----

module attributes {alpa.num_micro_batches = 2 : i64,
    alpa.stages = [#alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>]} {
  func.func @main(%x: tensor<4xf32> {alpa.kind = "batch"}) -> tensor<f32> {
    // expected-error@+1 {{runs once a step and uses batch argument 0, which has a value for each of 2 micro-batches; compute it inside the loss function}}
    %0 = "test.sum"(%x) {alpa.phase = "update", alpa.stage = 0 : i64} : (tensor<4xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

module attributes {alpa.num_micro_batches = 2 : i64,
    alpa.stages = [#alpa.stage<mesh = <shape = [2], devices = [0, 1]>, layers = [0, 1]>]} {
  func.func @main(
      // expected-error@+1 {{held by stage 0 as #alpa.sharding<[S0]>: dimension 0 of 'tensor<3xf32>' is not divisible by its 2 pieces}}
      %x: tensor<3xf32> {alpa.kind = "batch", alpa.sharding = #alpa.sharding<[S0]>}) -> tensor<f32> {
    %0 = "test.sum"(%x) {alpa.phase = "forward", alpa.stage = 0 : i64} : (tensor<3xf32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// A sum of stages belongs to the update.
module attributes {alpa.stages = [#alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>,
                                  #alpa.stage<mesh = <shape = [1], devices = [1]>, layers = [1, 2]>]} {
  func.func @main(%x: tensor<f32> {alpa.kind = "state"}) -> tensor<f32> {
    // expected-error@+1 {{adds up values of stages outside of the update}}
    %0 = alpa.sum_of_stages %x, %x of [0, 1] {alpa.phase = "forward", alpa.stage = 0 : i64} : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

module attributes {alpa.stages = [#alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>,
                                  #alpa.stage<mesh = <shape = [1], devices = [1]>, layers = [1, 2]>]} {
  func.func @main(%x: tensor<f32> {alpa.kind = "state"}) -> tensor<f32> {
    // expected-error@+1 {{adds up a value of stage 2, but `alpa.stages` has 2}}
    %0 = alpa.sum_of_stages %x, %x of [0, 2] {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

module attributes {alpa.stages = [#alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>,
                                  #alpa.stage<mesh = <shape = [1], devices = [1]>, layers = [1, 2]>]} {
  func.func @main(%x: tensor<f32> {alpa.kind = "state"}) -> tensor<f32> {
    // expected-note@+1 {{the value is made in update of stage 0}}
    %0 = alpa.sum_of_stages %x, %x of [0, 1] {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
    // expected-error@+1 {{runs in forward of stage 0, before a value that it uses}}
    %1 = "test.op"(%0) {alpa.phase = "forward", alpa.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    return %1 : tensor<f32>
  }
}

// -----

// One value once a step has no part for each micro-batch.
module attributes {alpa.num_micro_batches = 2 : i64,
    alpa.stages = [#alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>,
                   #alpa.stage<mesh = <shape = [1], devices = [1]>, layers = [1, 2]>]} {
  func.func @main(%x: tensor<2xf32> {alpa.kind = "state"}) -> (tensor<2xf32> {alpa.reduction = "concat"}) {
    // expected-error@+1 {{result 0 is computed once a step, but has a part for each of 2 micro-batches}}
    %0 = alpa.sum_of_stages %x, %x of [0, 1] {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
