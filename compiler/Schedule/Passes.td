//===- Passes.td - one program per mesh ------------------------*- tablegen -*-===//

#ifndef ALPA_COMPILER_SCHEDULE_PASSES
#define ALPA_COMPILER_SCHEDULE_PASSES

include "mlir/Pass/PassBase.td"

def AlpaBuildSchedule : Pass<"alpa-build-schedule", "mlir::ModuleOp"> {
  let summary = "Write the instruction list of each mesh for one step";
  let description = [{
    Orders the forward and backward runs of each mesh by a schedule
    (docs/schedules.md), then the updates. A value is sent right after it is made,
    received right before its first use, and freed after its last; weights that
    several meshes use are sent once a step. Stages of one mesh hand values on, through
    an `alpa.reshard` where they hold them differently. A schedule that splits backward
    runs wants `alpa-split-backward` before it; where a stage is not split, its input
    part is the whole run.

    The module's `alpa.stages` give the seconds that `zb-auto` and schedules in a V go by,
    and `alpa.schedule_parameters = {limits, kept_parts, sizes}` how many micro-batches'
    activations fit on each mesh, which part of each stage's waits for weight parts, and
    as how many they count.
    `alpa.channel_capacity` becomes the least number of messages that each ordered pair
    of meshes must be able to hold for the programs to end. If `alpa.cluster` says which
    devices there are, the programs promise (`peak_bytes`) to do with their memory.

    Before: the sliced module (`alpa-slice-stages`). After, beside it:
    ```mlir
    alpa.program @mesh_0 on 0 {
      %0 = alpa.input {arg = 0 : i64, sharding = #alpa.sharding<[R, S0]>} : tensor<8x8xf32>
      %1 = alpa.input {arg = 3 : i64, micro_batch = 0 : i64, ...} : tensor<4x8xf32>
      %2 = alpa.run @stage_0::@forward(%0, %1) {micro_batch = 0 : i64} : ...
      alpa.send %2 to 1 tag 0 : tensor<4x8xf32>
      alpa.free %2 : tensor<4x8xf32>
    ```
  }];
  let options = [
    Option<"schedule", "schedule", "std::string", /*default=*/"\"\"",
           "`1f1b`, `1f1b-overlap`, `gpipe`, `interleaved-1f1b`, `breadth-first`, `zb-h1`, "
           "`zb-auto`, `zb-v`, `v-half`, `v-min`, `dualpipe-v`, `custom` or `inference`; without it, "
           "what `alpa.schedule` of the module says, else 1f1b">,
    Option<"limit", "limit", "double", /*default=*/"0",
           "For `zb-auto` and schedules in a V: activations of so many micro-batches fit on each "
           "mesh; without it, what `alpa.schedule_parameters` says, else what the schedule keeps, "
           "with `zb-auto` as many as there are meshes">,
    Option<"steps", "steps", "std::string", /*default=*/"\"\"",
           "For `custom`: the steps of each mesh, such as `F0.0,B0.0;F1.0,B1.0`: F, B, I (input "
           "part) or W (weight part), the stage and the micro-batch">,
    Option<"stepsFile", "steps-file", "std::string", /*default=*/"\"\"",
           "The same in a file: a line for each mesh, spaces between steps">
  ];
  let statistics = [
    Statistic<"numInstructions", "instructions", "Instructions of all programs">,
    Statistic<"numTransfers", "transfers", "Sends of all programs">
  ];
  let dependentDialects = ["::alpa::AlpaDialect"];
}

def AlpaVerifyProgram : Pass<"alpa-verify-program", "mlir::ModuleOp"> {
  let summary = "Check that the programs of all meshes work together";
  let description = [{
    That buffers are used between where they are made and where they are freed or
    output is known before: `alpa.program` cannot be parsed otherwise. Here all
    programs together are run as far as needed to know what every buffer holds: which
    value of the step (`alpa.value`), of which micro-batches. The pass fails at the
    guilty instruction unless
    - alpa_programs_c1: meshes have one program each, peers and stages exist.
    - alpa_programs_c2: each tag has one send and one receive, which name each
      other's mesh, or one all_reduce on each of its members.
    - alpa_programs_c3: all of them have the same type, and name the same
      `alpa.cross_mesh_reshard`, if any, which is between their meshes and from how the
      buffer is held.
    - alpa_programs_c4: forward and backward functions run once for each
      micro-batch, barrier and update functions once, on the mesh of their stage.
    - alpa_programs_c5: each run takes what its function says: the value, of its own
      micro-batch, in a barrier or an update added up over all micro-batches, each
      once; held as the function takes it.
    - alpa_programs_c6: no program waits forever. Receives wait for their send,
      all_reduces for all members, and sends while as many messages as the channel
      to the peer has room for were sent and not yet received.
    - alpa_programs_c7: each result of the step leaves once (concatenated ones once
      for each micro-batch), and is the value that the step returns.
    - alpa_programs_c8: no device ever needs more than the `peak_bytes` of its
      program, however long runs and transfers take.

    The work is linear in the instructions. An error of c6 names the circle:
    ```
    error: alpa_programs_c6: mesh 0 waits forever for mesh 1 to send tag 2
    note: mesh 1 waits here for mesh 0 to send tag 1
    ```
  }];
  let options = [
    Option<"channelCapacity", "channel-capacity", "int64_t", /*default=*/"-1",
           "Messages of one mesh that may be under way to another one, or -1 for any "
           "number; without it, what `alpa.channel_capacity` of the module says, else any "
           "number">
  ];
  let statistics = [
    Statistic<"numInstructions", "instructions", "Instructions checked">,
    Statistic<"peakBytes", "peak bytes", "Most bytes on one device of any mesh">
  ];
}

#endif // ALPA_COMPILER_SCHEDULE_PASSES
