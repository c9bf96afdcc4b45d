// What the exporter cannot use, by name.
// RUN: alpa-opt %s --alpa-export-shardy --allow-unregistered-dialect --verify-diagnostics --split-input-file

// expected-error@+1 {{has no stage modules; run alpa-slice-stages first}}
module {
}

// -----

module {
module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
  // expected-error@+1 {{argument 0 has no `alpa.sharding`}}
  func.func private @forward(tensor<4xf32>)
}
}

// -----

module {
module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
  // expected-error@+1 {{argument 0: dimension 0 of 'tensor<3xf32>' is not divisible by its 2 pieces}}
  func.func private @forward(tensor<3xf32> {alpa.sharding = #alpa.sharding<[S0]>})
}
}

// -----

module {
module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
  // expected-error@+1 {{a sharding uses mesh axis 1, but the mesh has 1 axes}}
  func.func private @forward() -> (tensor<4xf32> {alpa.sharding = #alpa.sharding<[S1]>})
}
}
