// Parts that make no sum, each with one fault.
// RUN: alpa-opt %s --alpa-build-schedule=schedule=gpipe --verify-diagnostics --split-input-file

module {
  func.func private @main()
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    // expected-error@+1 {{value 1 is part of sum 3 outside of the update; only results of the update are added up}}
    func.func private @backward() -> (tensor<f32> {alpa.value = 1 : i64, alpa.part_of = 3 : i64, alpa.sharding = #alpa.sharding<[]>})
  }
}

// -----

module {
  func.func private @main()
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    func.func private @update_0() -> (tensor<f32> {alpa.value = 1 : i64, alpa.part_of = 3 : i64, alpa.sharding = #alpa.sharding<[]>})
  }
  module @stage_1 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [1]>} {
    // expected-error@+1 {{value 2 is part of sum 3: expected 'tensor<f32>', got 'tensor<i32>'}}
    func.func private @update_0() -> (tensor<i32> {alpa.value = 2 : i64, alpa.part_of = 3 : i64, alpa.sharding = #alpa.sharding<[]>})
  }
}

// -----

module {
  func.func private @main()
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    // expected-error@+1 {{value 1 is part of sum 1, but value 1 is made by itself}}
    func.func private @update_0() -> (tensor<f32> {alpa.value = 1 : i64, alpa.part_of = 1 : i64, alpa.sharding = #alpa.sharding<[]>})
  }
}

// -----

// expected-error@+1 {{result 0 is sum 3, which a function has to pass on}}
func.func private @main() -> (tensor<f32> {alpa.value = 3 : i64})
module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
  func.func private @update_0() -> (tensor<f32> {alpa.value = 1 : i64, alpa.part_of = 3 : i64, alpa.sharding = #alpa.sharding<[]>})
}

// -----

module {
  func.func private @main()
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    // expected-error@+1 {{uses sum 3 before the update makes it}}
    func.func private @backward(tensor<f32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[]>})
    func.func private @update_0() -> (tensor<f32> {alpa.value = 1 : i64, alpa.part_of = 3 : i64, alpa.sharding = #alpa.sharding<[]>})
  }
}

// -----

module {
  func.func private @main()
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    func.func private @update_1() -> (tensor<f32> {alpa.value = 1 : i64, alpa.part_of = 3 : i64, alpa.sharding = #alpa.sharding<[]>})
  }
  module @stage_1 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [1]>} {
    // expected-error@+1 {{uses sum 3, to which update_1 of a stage still adds}}
    func.func private @update_1(tensor<f32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[]>})
  }
}

// -----

module {
  func.func private @main()
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    func.func private @update_0() -> (tensor<f32> {alpa.value = 1 : i64, alpa.part_of = 3 : i64, alpa.sharding = #alpa.sharding<[]>})
    // expected-error@+1 {{sum 3 is 'tensor<f32>', but is taken as 'tensor<i32>'}}
    func.func private @update_1(tensor<i32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[]>})
  }
}
