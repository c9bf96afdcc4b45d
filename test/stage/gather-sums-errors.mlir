// RUN: alpa-opt %s --alpa-gather-sums --verify-diagnostics --split-input-file

// expected-error@+1 {{expected a function @main with a body of one block}}
module attributes {alpa.stages = [#alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>]} {
}

// -----

// expected-error@+1 {{has no `alpa.stages`; run alpa-search-stages first}}
module {
  func.func @main() {
    return
  }
}

// -----

module attributes {alpa.stages = [#alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1]>]} {
  func.func @main(%x: tensor<f32> {alpa.kind = "state"}) -> tensor<f32> {
    // expected-error@+1 {{is in stage 1, but `alpa.stages` has 1}}
    %0 = stablehlo.negate %x {alpa.phase = "update", alpa.stage = 1 : i64} : tensor<f32>
    return %0 : tensor<f32>
  }
}
