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

// Each waits for the other before it sends.
alpa.program @a on 0 {
  // expected-error@+1 {{alpa_programs_c6: mesh 0 waits forever for mesh 1 to send tag 2}}
  %0 = alpa.recv from 1 tag 2 {sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  alpa.send %0 to 1 tag 1 : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}
alpa.program @b on 1 {
  // expected-note@+1 {{mesh 1 waits here for mesh 0 to send tag 1}}
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
  // expected-error@+1 {{alpa_programs_c6: mesh 0 waits forever for mesh 1 to come to the sum of tag 4}}
  %1 = alpa.all_reduce %0 among [0, 1] tag 4 : tensor<f32>
  %2 = alpa.all_reduce %0 among [0, 1] tag 5 : tensor<f32>
  alpa.free %0, %1, %2 : tensor<f32>, tensor<f32>, tensor<f32>
}
alpa.program @b on 1 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  // expected-note@+1 {{mesh 1 waits here for mesh 0 to come to the sum of tag 5}}
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

// Three meshes wait in a circle; the fourth one waits, too, but is none of its.
alpa.program @d on 3 {
  %0 = alpa.recv from 0 tag 9 {sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}
alpa.program @a on 0 {
  // expected-error@+1 {{alpa_programs_c6: mesh 0 waits forever for mesh 2 to send tag 3}}
  %0 = alpa.recv from 2 tag 3 {sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  alpa.send %0 to 1 tag 1 : tensor<8xf32>
  alpa.send %0 to 3 tag 9 : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}
alpa.program @b on 1 {
  // expected-note@+1 {{mesh 1 waits here for mesh 0 to send tag 1}}
  %0 = alpa.recv from 0 tag 1 {sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  alpa.send %0 to 2 tag 2 : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}
alpa.program @c on 2 {
  // expected-note@+1 {{mesh 2 waits here for mesh 1 to send tag 2}}
  %0 = alpa.recv from 1 tag 2 {sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  alpa.send %0 to 0 tag 3 : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}

// -----

// Enough room for one message, but the first one to be received is the second one sent.
module attributes {alpa.channel_capacity = 1 : i64} {
  alpa.program @a on 0 {
    %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
    alpa.send %0 to 1 tag 0 : tensor<f32>
    // expected-error@+1 {{alpa_programs_c6: mesh 0 waits forever for mesh 1 to receive one of the 1 messages that may be under way to it}}
    alpa.send %0 to 1 tag 1 : tensor<f32>
    alpa.free %0 : tensor<f32>
  }
  alpa.program @b on 1 {
    // expected-note@+1 {{mesh 1 waits here for mesh 0 to send tag 1}}
    %1 = alpa.recv from 0 tag 1 {sharding = #alpa.sharding<[]>} : tensor<f32>
    %0 = alpa.recv from 0 tag 0 {sharding = #alpa.sharding<[]>} : tensor<f32>
    alpa.free %0, %1 : tensor<f32>, tensor<f32>
  }
}

// -----

module attributes {alpa.channel_capacity = 2 : i64} {
  alpa.program @a on 0 {
    %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
    alpa.send %0 to 1 tag 0 : tensor<f32>
    alpa.send %0 to 1 tag 1 : tensor<f32>
    alpa.free %0 : tensor<f32>
  }
  alpa.program @b on 1 {
    %1 = alpa.recv from 0 tag 1 {sharding = #alpa.sharding<[]>} : tensor<f32>
    %0 = alpa.recv from 0 tag 0 {sharding = #alpa.sharding<[]>} : tensor<f32>
    alpa.free %0, %1 : tensor<f32>, tensor<f32>
  }
}

// -----

// expected-error@+1 {{the capacity of channels is 0; expected at least 1 message}}
module attributes {alpa.channel_capacity = 0 : i64} {
}

// -----

// expected-error@+1 {{`alpa.num_micro_batches`: expected a number from 1 to 1000000, got 9223372036854775807}}
module attributes {alpa.num_micro_batches = 9223372036854775807 : i64} {
  func.func @main(%x: tensor<8xf32> {alpa.value = 0 : i64}) -> (tensor<8xf32> {alpa.value = 0 : i64}) {
    return %x : tensor<8xf32>
  }
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
  }
  alpa.program @a on 0 {
  }
}
