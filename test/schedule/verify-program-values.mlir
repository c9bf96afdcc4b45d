// A right step of two stages and two micro-batches, and what becomes of it by one change.
// RUN: alpa-opt %s --alpa-verify-program -o /dev/null
// RUN: alpa-opt %s --alpa-verify-program=channel-capacity=1 -o /dev/null

// Another micro-batch's input.
// RUN: sed 's/backward(%%x0, %%d0)/backward(%%x1, %%d0)/' %s | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=OTHER
// OTHER: error: alpa_programs_c5: operand 0 has to be argument 2 of micro-batch 0, got argument 2 of micro-batch 1
// OTHER-NEXT: %g0 = alpa.run @stage_0::@backward

// The same over two meshes: tags pair, but not the micro-batches.
// RUN: sed 's/%%h0 = alpa.recv from 0 tag 0/%%h0 = alpa.recv from 0 tag 1/; s/%%h1 = alpa.recv from 0 tag 1/%%h1 = alpa.recv from 0 tag 0/' %s | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=CROSSED
// CROSSED: error: alpa_programs_c5: operand 1 has to be value 3 of micro-batch 0, got value 3 of micro-batch 1
// CROSSED-NEXT: %f0:2 = alpa.run @stage_1::@forward

// A micro-batch is added twice, another one is left out.
// RUN: sed 's/accumulate %%g0, %%g1/accumulate %%g0, %%g0/' %s | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=DOUBLED
// DOUBLED: error: alpa_programs_c5: value 5 of micro-batch 0 is added twice to value 5 of micro-batch 0
// DOUBLED-NEXT: %g = alpa.accumulate %g0, %g0

// RUN: sed '/accumulate %%g0/d; s/free %%g0, %%g1 : tensor<8xf32>,/free %%g1 :/; s/%%w, %%g)/%%w, %%g0)/; s/free %%w, %%g :/free %%w, %%g0 :/' %s | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=MISSING
// MISSING: error: alpa_programs_c5: operand 1 has to be value 5 added up over micro-batches 0 to 1, got value 5 of micro-batch 0
// MISSING-NEXT: %n = alpa.run @stage_0::@update_0

// Values that are not one.
// RUN: sed 's/accumulate %%f0#1, %%f1#1/accumulate %%f0#1, %%z/; s/^    %%l = /    %%z = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>\n    %%l = /; s/free %%f0#1, %%f1#1 : /free %%z, %%f0#1, %%f1#1 : tensor<f32>, /' %s | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=ZERO
// ZERO: error: alpa_programs_c7: result 2 has to be value 8 added up over micro-batches 0 to 1, got value 8 of micro-batch 0

// RUN: sed '/%%n = alpa.run/d; /alpa.output %%n/d' %s | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=NEVER
// NEVER: error: alpa_programs_c4: never runs
// NEVER-NEXT: func.func private @update_0

// RUN: sed 's/alpa.output %%l {result = 2 : i64}/alpa.free %%l/' %s | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=NOOUTPUT
// NOOUTPUT: error: alpa_programs_c7: result 2 never leaves

// RUN: sed 's/%%d0 = alpa.recv from 1 tag 2 {sharding = #alpa.sharding<.R.>/%%d0 = alpa.recv from 1 tag 2 {sharding = #alpa.sharding<[S0]>/' %s | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=HELD
// HELD: error: alpa_programs_c5: the buffer is held as #alpa.sharding<[S0]>, the function takes #alpa.sharding<[R]>
// HELD-NEXT: %g0 = alpa.run @stage_0::@backward

// RUN: sed 's/arg = 2 : i64, micro_batch = 1 : i64/arg = 2 : i64/' %s | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=BATCH
// BATCH: error: alpa_programs_c5: argument 2 is a batch: expected a micro-batch below 2
// RUN: sed 's/%%s = alpa.input {arg = 1 : i64/%%s = alpa.input {arg = 0 : i64/' %s | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=TYPE
// TYPE: error: alpa_programs_c5: argument 0 is a 'tensor<8xf32>', got 'tensor<2xf32>'
// RUN: sed 's/%%s = alpa.input {arg = 1 : i64/%%s = alpa.input {arg = 9 : i64/' %s | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=ARGUMENT
// ARGUMENT: error: alpa_programs_c5: the step has 3 arguments, got argument 9

// RUN: sed 's/on 1 {/on 7 {/; s/to 1 tag/to 7 tag/; s/from 1 tag/from 7 tag/' %s | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=NOMESH
// NOMESH: error: alpa_programs_c1: mesh 7 has no stage
// RUN: sed 's/on 1 {/on 2 {/; s/on 0 {/on 1 {/; s/on 2 {/on 0 {/; s/to 1 tag/to 2 tag/; s/to 0 tag/to 1 tag/; s/to 2 tag/to 0 tag/; s/from 1 tag/from 2 tag/; s/from 0 tag/from 1 tag/; s/from 2 tag/from 0 tag/; s/%%w = alpa.input {arg = 0/%%w = alpa.input {arg = 0/' %s | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=WRONGMESH
// WRONGMESH: error: alpa_programs_c5: argument 0 lies on mesh 0; mesh 1 has to receive it

// A plan of a transfer is between these meshes and from what is held.
// RUN: sed 's/^  alpa.program @mesh_0/  alpa.cross_mesh_reshard @r : tensor<4xf32> from #alpa.sharding<[R]> on #alpa.mesh<shape = [1], devices = [0]> to #alpa.sharding<[S0]> on #alpa.mesh<shape = [2], devices = [1, 2]> {\n  }\n&/; s/tag 0 /tag 0 by @r /' %s > %t.planned
// RUN: alpa-opt %t.planned --alpa-verify-program -o /dev/null
// RUN: sed '/alpa.cross_mesh/s/devices = .0.>/devices = [3]>/' %t.planned | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=ELSEWHERE
// ELSEWHERE: error: alpa_programs_c3: @r is not from mesh 0 to mesh 1
// ELSEWHERE-NEXT: alpa.send %a0
// RUN: sed '/alpa.cross_mesh/s/from #alpa.sharding<.R.>/from #alpa.sharding<[S0]>/' %t.planned | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=SOURCE
// SOURCE: error: alpa_programs_c3: @r is from #alpa.sharding<[S0]>, but the buffer is held as #alpa.sharding<[R]>
// SOURCE-NEXT: alpa.send %a0
// RUN: sed 's/recv from 0 tag 0 by @r/recv from 0 tag 0/' %t.planned | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=UNPLANNED
// UNPLANNED: error: alpa_programs_c3: tag 0 is sent by r, but received unplanned
// UNPLANNED-NEXT: %h0 = alpa.recv

// Memory of mesh 0: the weight (32 bytes), two inputs, two activations of which one is known to be
// received when a gradient has come for it, that gradient, and the weight's gradient.
// RUN: sed 's/on 0 {/on 0 attributes {peak_bytes = 128 : i64} {/' %s | alpa-opt --alpa-verify-program -o /dev/null
// RUN: sed 's/on 0 {/on 0 attributes {peak_bytes = 127 : i64} {/' %s | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=MEMORY
// MEMORY: error: alpa_programs_c8: a device of mesh 0 needs 128 bytes here, but its program promises at most 127
// MEMORY-NEXT: %g0 = alpa.run
// MEMORY: note: a buffer of 32 bytes
// MEMORY-NEXT: %w = alpa.input
// MEMORY: note: a buffer of 32 bytes
// MEMORY-NEXT: %g0 = alpa.run
// What the search foresaw that the function holds inside counts, too.
// RUN: sed 's/on 0 {/on 0 attributes {peak_bytes = 128 : i64} {/; s/attributes {alpa.num_micro/attributes {alpa.stages = [#alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [0, 1], predicted = {backward_scratch_bytes = 5.0 : f64}>], alpa.num_micro/' %s | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=SCRATCH
// SCRATCH: error: alpa_programs_c8: a device of mesh 0 needs 133 bytes here
// A function adds what it makes to the sum that is there: an input that stays longer has
// room where the second gradient would be. Not if the second is the sum.
// RUN: sed 's/on 0 {/on 0 attributes {peak_bytes = 128 : i64} {/; s/free %%x0, %%d0 : tensor<4xf32>,/free %%d0 :/; s/free %%x1, %%d1 :/free %%x0, %%x1, %%d1 : tensor<4xf32>,/' %s > %t.longer
// RUN: alpa-opt %t.longer --alpa-verify-program -o /dev/null
// RUN: sed 's/accumulate %%g0, %%g1/accumulate %%g1, %%g0/' %t.longer | not alpa-opt --alpa-verify-program 2>&1 | FileCheck %s --check-prefix=TERM
// TERM: error: alpa_programs_c8: a device of mesh 0 needs 144 bytes here, but its program promises at most 128
// TERM-NEXT: %g1 = alpa.run
// A bounded channel lets fewer activations wait.
// RUN: sed 's/on 0 {/on 0 attributes {peak_bytes = 112 : i64} {/' %s | not alpa-opt --alpa-verify-program=channel-capacity=1 2>&1 | FileCheck %s --check-prefix=BOUNDED
// BOUNDED: error: alpa_programs_c8: a device of mesh 0 needs 128 bytes here

module attributes {alpa.num_micro_batches = 2 : i64} {
  func.func private @main(
      tensor<8xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64, alpa.value = 0 : i64, alpa.stage = 0 : i64},
      tensor<2xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64, alpa.value = 1 : i64, alpa.stage = 1 : i64},
      tensor<4xf32> {alpa.kind = "batch", alpa.value = 2 : i64})
      -> (tensor<8xf32> {alpa.value = 6 : i64}, tensor<2xf32> {alpa.value = 7 : i64}, tensor<f32> {alpa.value = 8 : i64, alpa.reduction = "sum"})
  module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1], devices = [0]>} {
    func.func private @forward(
        tensor<8xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 2 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<4xf32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[R]>})
    func.func private @backward(
        tensor<4xf32> {alpa.value = 2 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 4 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<8xf32> {alpa.value = 5 : i64, alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[R]>})
    func.func private @update_0(
        tensor<8xf32> {alpa.value = 0 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<8xf32> {alpa.value = 5 : i64, alpa.sharding = #alpa.sharding<[R]>})
        -> (tensor<8xf32> {alpa.value = 6 : i64, alpa.sharding = #alpa.sharding<[R]>})
  }
  module @stage_1 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [1, 2]>} {
    func.func private @forward(
        tensor<2xf32> {alpa.value = 1 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[S0]>})
        -> (tensor<2xf32> {alpa.value = 7 : i64, alpa.accumulate = "last", alpa.sharding = #alpa.sharding<[R]>},
            tensor<f32> {alpa.value = 8 : i64, alpa.accumulate = "sum", alpa.sharding = #alpa.sharding<[]>})
    func.func private @backward(
        tensor<2xf32> {alpa.value = 1 : i64, alpa.sharding = #alpa.sharding<[R]>},
        tensor<4xf32> {alpa.value = 3 : i64, alpa.sharding = #alpa.sharding<[S0]>})
        -> (tensor<4xf32> {alpa.value = 4 : i64, alpa.sharding = #alpa.sharding<[S0]>})
  }
  alpa.program @mesh_0 on 0 {
    %w = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
    %x0 = alpa.input {arg = 2 : i64, micro_batch = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<4xf32>
    %a0 = alpa.run @stage_0::@forward(%w, %x0) {micro_batch = 0 : i64} : (tensor<8xf32>, tensor<4xf32>) -> tensor<4xf32>
    alpa.send %a0 to 1 tag 0 : tensor<4xf32>
    alpa.free %a0 : tensor<4xf32>
    %x1 = alpa.input {arg = 2 : i64, micro_batch = 1 : i64, sharding = #alpa.sharding<[R]>} : tensor<4xf32>
    %a1 = alpa.run @stage_0::@forward(%w, %x1) {micro_batch = 1 : i64} : (tensor<8xf32>, tensor<4xf32>) -> tensor<4xf32>
    alpa.send %a1 to 1 tag 1 : tensor<4xf32>
    alpa.free %a1 : tensor<4xf32>
    %d0 = alpa.recv from 1 tag 2 {sharding = #alpa.sharding<[R]>} : tensor<4xf32>
    %g0 = alpa.run @stage_0::@backward(%x0, %d0) {micro_batch = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
    alpa.free %x0, %d0 : tensor<4xf32>, tensor<4xf32>
    %d1 = alpa.recv from 1 tag 3 {sharding = #alpa.sharding<[R]>} : tensor<4xf32>
    %g1 = alpa.run @stage_0::@backward(%x1, %d1) {micro_batch = 1 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
    alpa.free %x1, %d1 : tensor<4xf32>, tensor<4xf32>
    %g = alpa.accumulate %g0, %g1 : tensor<8xf32>
    alpa.free %g0, %g1 : tensor<8xf32>, tensor<8xf32>
    %n = alpa.run @stage_0::@update_0(%w, %g) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    alpa.free %w, %g : tensor<8xf32>, tensor<8xf32>
    alpa.output %n {result = 0 : i64} : tensor<8xf32>
  }
  alpa.program @mesh_1 on 1 {
    %s = alpa.input {arg = 1 : i64, sharding = #alpa.sharding<[R]>} : tensor<2xf32>
    %h0 = alpa.recv from 0 tag 0 {sharding = #alpa.sharding<[S0]>} : tensor<4xf32>
    %f0:2 = alpa.run @stage_1::@forward(%s, %h0) {micro_batch = 0 : i64} : (tensor<2xf32>, tensor<4xf32>) -> (tensor<2xf32>, tensor<f32>)
    %e0 = alpa.run @stage_1::@backward(%s, %h0) {micro_batch = 0 : i64} : (tensor<2xf32>, tensor<4xf32>) -> tensor<4xf32>
    alpa.send %e0 to 0 tag 2 : tensor<4xf32>
    alpa.free %h0, %e0 : tensor<4xf32>, tensor<4xf32>
    %h1 = alpa.recv from 0 tag 1 {sharding = #alpa.sharding<[S0]>} : tensor<4xf32>
    %f1:2 = alpa.run @stage_1::@forward(%s, %h1) {micro_batch = 1 : i64} : (tensor<2xf32>, tensor<4xf32>) -> (tensor<2xf32>, tensor<f32>)
    %e1 = alpa.run @stage_1::@backward(%s, %h1) {micro_batch = 1 : i64} : (tensor<2xf32>, tensor<4xf32>) -> tensor<4xf32>
    alpa.send %e1 to 0 tag 3 : tensor<4xf32>
    alpa.free %s, %f0#0, %h1, %e1 : tensor<2xf32>, tensor<2xf32>, tensor<4xf32>, tensor<4xf32>
    %l = alpa.accumulate %f0#1, %f1#1 : tensor<f32>
    alpa.free %f0#1, %f1#1 : tensor<f32>, tensor<f32>
    alpa.output %f1#0 {result = 1 : i64} : tensor<2xf32>
    alpa.output %l {result = 2 : i64} : tensor<f32>
  }
}
