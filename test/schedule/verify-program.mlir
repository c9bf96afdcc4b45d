// Programs that cannot work together, each with one fault.
// RUN: alpa-opt %s --alpa-verify-program --verify-diagnostics --split-input-file

alpa.program @a on 0 {
}
// expected-error@+1 {{alpa_programs_c1: mesh already has a program}}
alpa.program @b on 0 {
}
// expected-note@-5 {{the first one is here}}

// -----

alpa.program @a on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  // expected-error@+1 {{alpa_programs_c1: mesh 3 has no program}}
  alpa.send %0 to 3 tag 0 : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}

// -----

alpa.program @a on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  // expected-error@+1 {{alpa_programs_c2: mesh 1 never receives tag 7}}
  alpa.send %0 to 1 tag 7 : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}
alpa.program @b on 1 {
}

// -----

alpa.program @a on 0 {
  // expected-error@+1 {{alpa_programs_c2: mesh 1 never sends tag 7}}
  %0 = alpa.recv from 1 tag 7 {sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}
alpa.program @b on 1 {
}

// -----

alpa.program @a on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  // expected-note@+1 {{the first one is here}}
  alpa.send %0 to 1 tag 7 : tensor<8xf32>
  // expected-error@+1 {{alpa_programs_c2: the tag is used again}}
  alpa.send %0 to 1 tag 7 : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}

// -----

alpa.program @a on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  // expected-note@+1 {{the send is here}}
  alpa.send %0 to 1 tag 7 : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}
alpa.program @b on 1 {
}
alpa.program @c on 2 {
  // expected-error@+1 {{alpa_programs_c2: mesh 2 expects tag 7 from mesh 0, but mesh 0 sends it to mesh 1}}
  %0 = alpa.recv from 0 tag 7 {sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}

// -----

alpa.program @a on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  // expected-note@+1 {{the send is here}}
  alpa.send %0 to 1 tag 7 : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}
alpa.program @b on 1 {
  // expected-error@+1 {{alpa_programs_c3: tag 7 carries 'tensor<8xf32>', got 'tensor<4xf32>'}}
  %0 = alpa.recv from 0 tag 7 {sharding = #alpa.sharding<[R]>} : tensor<4xf32>
  alpa.free %0 : tensor<4xf32>
}

// -----

alpa.program @a on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  // expected-note@+1 {{it was here}}
  alpa.free %0 : tensor<8xf32>
  // expected-error@+1 {{alpa_programs_c4: the buffer was freed}}
  %1 = alpa.accumulate %0, %0 : tensor<8xf32>
  alpa.free %1 : tensor<8xf32>
}

// -----

alpa.program @a on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  // expected-note@+1 {{it was here}}
  alpa.output %0 {result = 0 : i64} : tensor<8xf32>
  // expected-error@+1 {{alpa_programs_c5: the buffer was already given out}}
  alpa.free %0 : tensor<8xf32>
}

// -----

alpa.program @a on 0 {
  // expected-error@+1 {{alpa_programs_c5: buffer 0 is neither freed nor output}}
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
}

// -----

// Each waits for the other before it sends.
alpa.program @a on 0 {
  // expected-error@+1 {{alpa_programs_c6: mesh 0 waits forever: mesh 1 sends tag 2 only after it received something itself}}
  %0 = alpa.recv from 1 tag 2 {sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  alpa.send %0 to 1 tag 1 : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}
alpa.program @b on 1 {
  // expected-note@+1 {{mesh 1 waits here}}
  %0 = alpa.recv from 0 tag 1 {sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  alpa.send %0 to 0 tag 2 : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}

// -----

// A sum waits for all its members; what they add up may come one from another before it.
alpa.program @a on 0 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  alpa.send %0 to 1 tag 0 : tensor<f32>
  %1 = alpa.all_reduce %0 among [0, 1] tag 1 : tensor<f32>
  alpa.free %0, %1 : tensor<f32>, tensor<f32>
}
alpa.program @b on 1 {
  %0 = alpa.recv from 0 tag 0 {sharding = #alpa.sharding<[]>} : tensor<f32>
  %1 = alpa.all_reduce %0 among [0, 1] tag 1 : tensor<f32>
  alpa.free %0, %1 : tensor<f32>, tensor<f32>
}

// -----

alpa.program @a on 0 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  // expected-error@+1 {{alpa_programs_c2: mesh 1 takes no part in the sum of tag 4}}
  %1 = alpa.all_reduce %0 among [0, 1] tag 4 : tensor<f32>
  alpa.free %0, %1 : tensor<f32>, tensor<f32>
}
alpa.program @b on 1 {
}

// -----

alpa.program @a on 0 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  // expected-note@+1 {{the first one is here}}
  %1 = alpa.all_reduce %0 among [0, 1] tag 4 : tensor<f32>
  // expected-error@+1 {{alpa_programs_c2: the tag is used again}}
  %2 = alpa.all_reduce %0 among [0, 1] tag 4 : tensor<f32>
  alpa.free %0, %1, %2 : tensor<f32>, tensor<f32>, tensor<f32>
}

// -----

alpa.program @a on 0 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  // expected-note@+1 {{the first one is here}}
  %1 = alpa.all_reduce %0 among [0, 1] tag 4 : tensor<f32>
  alpa.free %0, %1 : tensor<f32>, tensor<f32>
}
alpa.program @b on 1 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  // expected-error@+1 {{alpa_programs_c2: tag 4 adds up among [0, 1], got [1, 2]}}
  %1 = alpa.all_reduce %0 among [1, 2] tag 4 : tensor<f32>
  alpa.free %0, %1 : tensor<f32>, tensor<f32>
}

// -----

alpa.program @a on 0 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  // expected-note@+1 {{the first one is here}}
  %1 = alpa.all_reduce %0 among [0, 1] tag 4 : tensor<f32>
  alpa.free %0, %1 : tensor<f32>, tensor<f32>
}
alpa.program @b on 1 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<i32>
  // expected-error@+1 {{alpa_programs_c3: tag 4 adds up 'tensor<f32>', got 'tensor<i32>'}}
  %1 = alpa.all_reduce %0 among [0, 1] tag 4 : tensor<i32>
  alpa.free %0, %1 : tensor<i32>, tensor<i32>
}

// -----

// Two sums in different orders.
alpa.program @a on 0 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  // expected-error@+1 {{alpa_programs_c6: mesh 0 waits forever: mesh 1 never comes to the sum of tag 4}}
  %1 = alpa.all_reduce %0 among [0, 1] tag 4 : tensor<f32>
  %2 = alpa.all_reduce %0 among [0, 1] tag 5 : tensor<f32>
  alpa.free %0, %1, %2 : tensor<f32>, tensor<f32>, tensor<f32>
}
alpa.program @b on 1 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  // expected-note@+1 {{mesh 1 waits here}}
  %1 = alpa.all_reduce %0 among [0, 1] tag 5 : tensor<f32>
  %2 = alpa.all_reduce %0 among [0, 1] tag 4 : tensor<f32>
  alpa.free %0, %1, %2 : tensor<f32>, tensor<f32>, tensor<f32>
}

// -----

// The first sends before it receives: nothing is wrong.
alpa.program @a on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  alpa.send %0 to 1 tag 1 : tensor<8xf32>
  %1 = alpa.recv from 1 tag 2 {sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  alpa.free %0, %1 : tensor<8xf32>, tensor<8xf32>
}
alpa.program @b on 1 {
  %0 = alpa.recv from 0 tag 1 {sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  alpa.send %0 to 0 tag 2 : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}

// -----

module attributes {alpa.num_micro_batches = 2 : i64} {
  module @stage_0 {
    // expected-error@+1 {{alpa_programs_c7: expected 2 runs, got 1}}
    func.func private @forward()
  }
  alpa.program @a on 0 {
    alpa.run @stage_0::@forward() {micro_batch = 0 : i64} : () -> ()
  }
}

// -----

module attributes {alpa.num_micro_batches = 2 : i64} {
  module @stage_0 {
    func.func private @forward()
  }
  alpa.program @a on 0 {
    // expected-note@+1 {{the first one is here}}
    alpa.run @stage_0::@forward() {micro_batch = 0 : i64} : () -> ()
    // expected-error@+1 {{alpa_programs_c7: the function runs again}}
    alpa.run @stage_0::@forward() {micro_batch = 0 : i64} : () -> ()
  }
}

// -----

// expected-error@+1 {{alpa_programs_c7: result 0 leaves 0 times, expected 1}}
func.func private @main() -> tensor<8xf32>
alpa.program @a on 0 {
}
