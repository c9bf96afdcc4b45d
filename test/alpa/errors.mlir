// Each labelled constraint of the dialect, broken once.
// RUN: alpa-opt %s --verify-diagnostics --split-input-file

// expected-error@+1 {{alpa_sharding_c1: expected `R` or `S` and axis digits, got `T0`}}
#bad = #alpa.sharding<[T0]>

// -----

// expected-error@+1 {{alpa_sharding_c2: mesh axis 1 is used twice}}
#bad = #alpa.sharding<[S1, S01]>

// -----

// expected-error@+1 {{alpa_sharding_c3: expected unreduced axes that rise and split no dimension, got mesh axis 1}}
#bad = #alpa.sharding<[R, S1], unreduced = [0, 1]>

// -----

// expected-error@+1 {{alpa_sharding_c3: expected unreduced axes that rise and split no dimension, got mesh axis 0}}
#bad = #alpa.sharding<[R, R], unreduced = [1, 0]>

// -----

// expected-error@+1 {{alpa_mesh_c1: expected one to three mesh axes, got 4}}
#bad = #alpa.mesh<shape = [1, 1, 1, 1], devices = [0]>

// -----

// expected-error@+1 {{alpa_mesh_c1: expected axes of size at least 1, got 0}}
#bad = #alpa.mesh<shape = [0], devices = [0]>

// -----

// expected-error@+1 {{alpa_mesh_c2: the shape needs 4 devices, got 2}}
#bad = #alpa.mesh<shape = [2, 2], devices = [0, 1]>

// -----

// expected-error@+1 {{alpa_mesh_c3: device 1 is there twice}}
#bad = #alpa.mesh<shape = [2], devices = [1, 1]>

// -----

// expected-error@+1 {{alpa_stage_c1: expected 0 <= first < end, got layers [2, 2]}}
#bad = #alpa.stage<mesh = <shape = [1], devices = [0]>, layers = [2, 2]>

// -----

// expected-error@+1 {{alpa_program_c1: the mesh is negative: -1}}
alpa.program @p on -1 {
}

// -----

alpa.program @p on 0 {
  // expected-error@+1 {{alpa_program_c2: `func.func` is not an instruction of a program}}
  func.func private @f()
}

// -----

alpa.program @p on 0 {
  // expected-error@+1 {{alpa_input_c1: the micro-batch is negative: -2}}
  %0 = alpa.input {arg = 0 : i64, micro_batch = -2 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}

// -----

alpa.program @p on 0 {
  // expected-error@+1 {{alpa_input_c2: the sharding has 2 entries, but 'tensor<8xf32>' has 1 dimensions}}
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R, R]>} : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}

// -----

alpa.program @p on 0 {
  // expected-error@+1 {{alpa_run_c1: @stage_0::@forward is not a function of a stage's module}}
  alpa.run @stage_0::@forward() : () -> ()
}

// -----

module @stage_0 {
  // expected-note@+1 {{the function is here}}
  func.func private @forward(tensor<8xf32>)
}
alpa.program @p on 0 {
  // expected-error@+1 {{alpa_run_c2: expected '(tensor<8xf32>) -> ()', got '() -> ()'}}
  alpa.run @stage_0::@forward() : () -> ()
}

// -----

module @stage_0 {
  func.func private @forward()
}
alpa.program @p on 0 {
  // expected-error@+1 {{alpa_run_c3: the micro-batch is negative: -1}}
  alpa.run @stage_0::@forward() {micro_batch = -1 : i64} : () -> ()
}

// -----

alpa.program @p on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  // expected-error@+1 {{alpa_send_c1: mesh 0 is this program's own mesh}}
  alpa.send %0 to 0 tag 1 : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}

// -----

alpa.program @p on 0 {
  // expected-error@+1 {{alpa_recv_c1: the tag is negative: -5}}
  %0 = alpa.recv from 1 tag -5 {sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}

// -----

alpa.program @p on 0 {
  // expected-error@+1 {{alpa_recv_c2: the sharding has 0 entries}}
  %0 = alpa.recv from 1 tag 5 {sharding = #alpa.sharding<[]>} : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}

// -----

alpa.program @p on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xi1>
  // expected-error@+1 {{alpa_accumulate_c1: truth values cannot be added up}}
  %1 = alpa.accumulate %0, %0 : tensor<8xi1>
  alpa.free %0, %1 : tensor<8xi1>, tensor<8xi1>
}

// -----

alpa.program @p on 0 {
  // expected-error@+1 {{alpa_zero_c1: the sharding has 2 entries, but 'tensor<8xf32>' has 1 dimensions}}
  %0 = alpa.zero {sharding = #alpa.sharding<[R, R]>} : tensor<8xf32>
  alpa.free %0 : tensor<8xf32>
}

// -----

alpa.program @p on 0 {
  // expected-error@+1 {{alpa_zero_c2: truth values cannot be added up}}
  %0 = alpa.zero {sharding = #alpa.sharding<[R]>} : tensor<8xi1>
  alpa.free %0 : tensor<8xi1>
}

// -----

alpa.program @p on 0 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  // expected-error@+1 {{alpa_all_reduce_c1: expected at least two meshes that rise, got [0]}}
  %1 = alpa.all_reduce %0 among [0] tag 1 : tensor<f32>
  alpa.free %0, %1 : tensor<f32>, tensor<f32>
}

// -----

alpa.program @p on 0 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  // expected-error@+1 {{alpa_all_reduce_c1: expected at least two meshes that rise, got [0, 2, 2]}}
  %1 = alpa.all_reduce %0 among [0, 2, 2] tag 1 : tensor<f32>
  alpa.free %0, %1 : tensor<f32>, tensor<f32>
}

// -----

alpa.program @p on 0 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  // expected-error@+1 {{alpa_all_reduce_c1: expected at least two meshes that rise, got [-1, 0]}}
  %1 = alpa.all_reduce %0 among [-1, 0] tag 1 : tensor<f32>
  alpa.free %0, %1 : tensor<f32>, tensor<f32>
}

// -----

alpa.program @p on 0 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  // expected-error@+1 {{alpa_all_reduce_c2: mesh 0 is not among [1, 2]}}
  %1 = alpa.all_reduce %0 among [1, 2] tag 1 : tensor<f32>
  alpa.free %0, %1 : tensor<f32>, tensor<f32>
}

// -----

alpa.program @p on 0 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  // expected-error@+1 {{alpa_all_reduce_c3: the tag is negative: -1}}
  %1 = alpa.all_reduce %0 among [0, 1] tag -1 : tensor<f32>
  alpa.free %0, %1 : tensor<f32>, tensor<f32>
}

// -----

alpa.program @p on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xi1>
  // expected-error@+1 {{alpa_all_reduce_c4: truth values cannot be added up}}
  %1 = alpa.all_reduce %0 among [0, 1] tag 1 : tensor<8xi1>
  alpa.free %0, %1 : tensor<8xi1>, tensor<8xi1>
}

// -----

alpa.program @p on 0 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  // expected-error@+1 {{alpa_all_reduce_c5: mesh 0 takes the sum itself and sends nothing, got `by` @a}}
  %1 = alpa.all_reduce %0 among [0, 1] tag 1 by @a, @b : tensor<f32>
  alpa.free %0, %1 : tensor<f32>, tensor<f32>
}

// -----

alpa.program @p on 0 {
  // expected-error@+1 {{alpa_free_c1: expected at least one buffer}}
  "alpa.free"() : () -> ()
}

// -----

alpa.program @p on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  // expected-error@+1 {{alpa_free_c1: a buffer is there twice}}
  alpa.free %0, %0 : tensor<8xf32>, tensor<8xf32>
}

// -----

alpa.program @p on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  // expected-error@+1 {{alpa_output_c1: the result number is negative: -1}}
  alpa.output %0 {result = -1 : i64} : tensor<8xf32>
}

// -----

// expected-error@+1 {{alpa_attribute_c1: `alpa.phase`: expected one of "prepare", "forward", "barrier", "backward", "update", got "sideways"}}
module attributes {alpa.phase = "sideways"} {}

// -----

func.func @numbers_of_results(%x: tensor<2xf32>) -> tensor<2xf32> {
  // expected-error@+1 {{alpa_attribute_c1: `alpa.offloaded`: expected an array of numbers of results, of which there are 1, got array<i64: 1>}}
  %0 = stablehlo.negate %x {alpa.offloaded = array<i64: 1>} : tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

// expected-error@+1 {{alpa_attribute_c1: `alpa.num_micro_batches`: expected at least 1, got 0}}
module attributes {alpa.num_micro_batches = 0 : i64} {}

// -----

// expected-error@+1 {{alpa_attribute_c1: `alpa.stages`: expected #alpa.stage, got 1 : i64}}
module attributes {alpa.stages = [1 : i64]} {}

// -----

func.func @f(%arg0: tensor<8xf32>) -> tensor<8xf32> {
  // expected-error@+1 {{alpa_attribute_c1: `alpa.shardings`: expected 1 shardings, got 2}}
  %0 = builtin.unrealized_conversion_cast %arg0 : tensor<8xf32> to tensor<8xf32> {alpa.shardings = [#alpa.sharding<[R]>, #alpa.sharding<[R]>]}
  return %0 : tensor<8xf32>
}

// -----

// expected-error@+1 {{alpa_attribute_c1: argument 0: `alpa.sharding`: the sharding has 2 entries}}
func.func private @f(tensor<8xf32> {alpa.sharding = #alpa.sharding<[R, S0]>})

// -----

// expected-error@+1 {{alpa_attribute_c1: argument 0: `alpa.kind`: expected one of "state", "batch", got "weights"}}
func.func private @f(tensor<8xf32> {alpa.kind = "weights"})

// -----

// expected-error@+1 {{alpa_attribute_c1: argument 0: `alpa.carried_by`: there is no result 3}}
func.func private @f(tensor<8xf32> {alpa.carried_by = 3 : i64})

// -----

// expected-error@+1 {{alpa_attribute_c1: result 0: `alpa.reduction`: expected one of "sum", "concat", got "max"}}
func.func private @f() -> (tensor<8xf32> {alpa.reduction = "max"})

// -----

func.func @reshard_rank(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error @below {{alpa_reshard_c1: the sharding has 1 entries, but 'tensor<8x4xf32>' has 2 dimensions}}
  %0 = alpa.reshard %x {from = #alpa.sharding<[S0, R]>, to = #alpa.sharding<[R]>} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @reshard_through(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error @below {{alpa_reshard_c1: expected #alpa.sharding in `through`, got 1 : i64}}
  %0 = alpa.reshard %x {from = #alpa.sharding<[S0, R]>, through = [1], to = #alpa.sharding<[R, R]>} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @reshard_nothing(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // expected-error @below {{alpa_reshard_c2: the step to #alpa.sharding<[S0, R]> changes nothing}}
  %0 = alpa.reshard %x {from = #alpa.sharding<[S0, R]>, to = #alpa.sharding<[S0, R]>} : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @sum_of_one(%x: tensor<f32>) -> tensor<f32> {
  // expected-error @below {{alpa_sum_of_stages_c1: expected at least two stages that rise, got [1]}}
  %0 = alpa.sum_of_stages %x of [1] : tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func @sum_falls(%x: tensor<f32>) -> tensor<f32> {
  // expected-error @below {{alpa_sum_of_stages_c1: expected at least two stages that rise, got [1, 0]}}
  %0 = alpa.sum_of_stages %x, %x of [1, 0] : tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func @sum_lacks_a_stage(%x: tensor<f32>) -> tensor<f32> {
  // expected-error @below {{alpa_sum_of_stages_c1: expected a part of each of 2 stages, got 3}}
  %0 = alpa.sum_of_stages %x, %x, %x of [0, 1] : tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func @sum_of_truth(%x: tensor<i1>) -> tensor<i1> {
  // expected-error @below {{alpa_sum_of_stages_c2: truth values cannot be added up}}
  %0 = alpa.sum_of_stages %x, %x of [0, 1] : tensor<i1>
  return %0 : tensor<i1>
}

// -----

alpa.program @p on 0 {
  %0 = alpa.zero {sharding = #alpa.sharding<[]>} : tensor<f32>
  // expected-error@+1 {{alpa_program_c2: `alpa.sum_of_stages` is not an instruction of a program}}
  %1 = alpa.sum_of_stages %0, %0 of [0, 1] : tensor<f32>
  alpa.free %0, %1 : tensor<f32>, tensor<f32>
}

// -----

// expected-error@+1 {{alpa_attribute_c1: result 0: `alpa.part_of`: expected at least 0, got -1}}
func.func private @f() -> (tensor<f32> {alpa.part_of = -1 : i64})

// -----

alpa.program @a on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  // expected-note@+1 {{it was here}}
  alpa.free %0 : tensor<8xf32>
  // expected-error@+1 {{alpa_program_c3: the buffer was freed}}
  %1 = alpa.accumulate %0, %0 : tensor<8xf32>
  alpa.free %1 : tensor<8xf32>
}

// -----

alpa.program @a on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  // expected-note@+1 {{it was here}}
  alpa.output %0 {result = 0 : i64} : tensor<8xf32>
  // expected-error@+1 {{alpa_program_c4: the buffer was already given out}}
  alpa.free %0 : tensor<8xf32>
}

// -----

alpa.program @a on 0 {
  // expected-error@+1 {{alpa_program_c5: buffer 0 is neither freed nor output}}
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
}

// -----

alpa.program @a on 0 {
  %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R]>} : tensor<8xf32>
  // expected-note@+1 {{it was here}}
  alpa.free %0 : tensor<8xf32>
  // expected-error@+1 {{alpa_program_c4: the buffer was already freed}}
  alpa.free %0 : tensor<8xf32>
}

// -----

// expected-error@+1 {{alpa_program_c6: the peak of memory is negative: -4}}
alpa.program @a on 0 attributes {peak_bytes = -4 : i64} {
}

// -----

func.func @groups_of_fractions(%x: tensor<8x4xf32>, %w: tensor<2x4x6xf32>, %g: tensor<8xf32>) {
  // expected-error @below {{alpa_grouped_dot_c1: expected tensors of 2, 3 and 1 dimensions, the last of whole numbers}}
  %0 = alpa.grouped_dot %x, %w of %g {contracting = 1 : i64} : (tensor<8x4xf32>, tensor<2x4x6xf32>, tensor<8xf32>) -> tensor<8x6xf32>
  return
}

// -----

func.func @contracts_groups(%x: tensor<8x4xf32>, %w: tensor<2x4x6xf32>, %g: tensor<8xi32>) {
  // expected-error @below {{alpa_grouped_dot_c2: expected `contracting` to be 1 or 2, got 0}}
  %0 = alpa.grouped_dot %x, %w of %g {contracting = 0 : i64} : (tensor<8x4xf32>, tensor<2x4x6xf32>, tensor<8xi32>) -> tensor<8x6xf32>
  return
}

// -----

func.func @groups_of_other_rows(%x: tensor<8x4xf32>, %w: tensor<2x4x6xf32>, %g: tensor<4xi32>) {
  // expected-error @below {{alpa_grouped_dot_c3: sizes of}}
  %0 = alpa.grouped_dot %x, %w of %g {contracting = 1 : i64} : (tensor<8x4xf32>, tensor<2x4x6xf32>, tensor<4xi32>) -> tensor<8x6xf32>
  return
}

// -----

func.func @grouped_result(%x: tensor<8x4xf32>, %w: tensor<2x4x6xf32>, %g: tensor<8xi32>) {
  // expected-error @below {{alpa_grouped_dot_c4: expected a result of 8 by 6, got}}
  %0 = alpa.grouped_dot %x, %w of %g {contracting = 1 : i64} : (tensor<8x4xf32>, tensor<2x4x6xf32>, tensor<8xi32>) -> tensor<8x4xf32>
  return
}

// -----

func.func @grouped_sum_of_weights(%x: tensor<8x4xf32>, %w: tensor<2x4x6xf32>, %g: tensor<8xi32>) {
  // expected-error @below {{alpa_grouped_sum_c1: expected tensors of 2, 2 and 1 dimensions}}
  %0 = alpa.grouped_sum %x, %w of %g : (tensor<8x4xf32>, tensor<2x4x6xf32>, tensor<8xi32>) -> tensor<2x4x6xf32>
  return
}

// -----

func.func @grouped_sum_rows(%x: tensor<8x4xf32>, %y: tensor<6x6xf32>, %g: tensor<8xi32>) {
  // expected-error @below {{alpa_grouped_sum_c2: rows of}}
  %0 = alpa.grouped_sum %x, %y of %g : (tensor<8x4xf32>, tensor<6x6xf32>, tensor<8xi32>) -> tensor<2x4x6xf32>
  return
}

// -----

func.func @grouped_sum_result(%x: tensor<8x4xf32>, %y: tensor<8x6xf32>, %g: tensor<8xi32>) {
  // expected-error @below {{alpa_grouped_sum_c3: expected a result of groups by 4 by 6, got}}
  %0 = alpa.grouped_sum %x, %y of %g : (tensor<8x4xf32>, tensor<8x6xf32>, tensor<8xi32>) -> tensor<2x6x4xf32>
  return
}

// -----

func.func @map_levels_fall(%x: tensor<2x4x8xf32>) {
  // expected-error @below {{alpa_map_c1: expected levels that rise, below 2, got array<i64: 1, 0>}}
  %0 = alpa.map %x {dims = [array<i64: 1, 0>], levels = 2 : i64} : (tensor<2x4x8xf32>) -> tensor<2x4x8xf32> {
  ^bb0(%block: tensor<8xf32>):
    stablehlo.return %block : tensor<8xf32>
  }
  return
}

// -----

func.func @map_without_dims(%x: tensor<2x8xf32>) {
  // expected-error @below {{alpa_map_c1: expected a result, and a list of `dims` for each of the 1 operands, got 0}}
  %0 = alpa.map %x {dims = [], levels = 1 : i64} : (tensor<2x8xf32>) -> tensor<2x8xf32> {
  ^bb0(%block: tensor<8xf32>):
    stablehlo.return %block : tensor<8xf32>
  }
  return
}

// -----

func.func @map_sizes(%x: tensor<2x8xf32>) {
  // expected-error @below {{alpa_map_c2: level 0 is 3 in result 0 and 2 before}}
  %0 = alpa.map %x {dims = [array<i64: 0>], levels = 1 : i64} : (tensor<2x8xf32>) -> tensor<3x8xf32> {
  ^bb0(%block: tensor<8xf32>):
    stablehlo.return %block : tensor<8xf32>
  }
  return
}

// -----

func.func @f(%x: tensor<2x8xf32>) {
  // expected-error @below {{alpa_map_c3: result 0 is 'tensor<2x4xf32>', of fewer dimensions than there are levels, 1000000000000000000}}
  %0 = alpa.map %x {dims = [array<i64: 0>], levels = 1000000000000000000 : i64} : (tensor<2x8xf32>) -> tensor<2x4xf32> {
  ^bb0(%block: tensor<4xf32>):
    stablehlo.return %block : tensor<4xf32>
  }
  return
}

// -----

func.func @map_blocks(%x: tensor<2x8xf32>) {
  // expected-error @below {{alpa_map_c3: operand 0 is 'tensor<2x8xf32>', in the body 'tensor<4xf32>', of 1 levels}}
  %0 = alpa.map %x {dims = [array<i64: 0>], levels = 1 : i64} : (tensor<2x8xf32>) -> tensor<2x4xf32> {
  ^bb0(%block: tensor<4xf32>):
    stablehlo.return %block : tensor<4xf32>
  }
  return
}

// -----

func.func @map_of_other_values(%x: tensor<2x8xf32>) {
  // expected-error @below {{alpa_map_c3: the body takes 2 values and gives 1, expected 1 and 1}}
  %0 = alpa.map %x {dims = [array<i64: 0>], levels = 1 : i64} : (tensor<2x8xf32>) -> tensor<2x8xf32> {
  ^bb0(%block: tensor<8xf32>, %other: tensor<8xf32>):
    stablehlo.return %block : tensor<8xf32>
  }
  return
}
