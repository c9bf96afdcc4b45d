//===- Passes.td - one program per mesh ------------------------*- tablegen -*-===//

#ifndef ALPA_COMPILER_SCHEDULE_PASSES
#define ALPA_COMPILER_SCHEDULE_PASSES

include "mlir/Pass/PassBase.td"

def AlpaBuildSchedule : Pass<"alpa-build-schedule", "mlir::ModuleOp"> {
  let summary = "Write the instruction list of each mesh for one step";
  let description = [{
    Orders the forward and backward runs of each stage by a schedule, then the
    updates. A value is sent right after it is made, received right before its
    first use, and freed after its last; weights that several stages use are
    sent once a step.

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
           "`1f1b`, `1f1b-overlap` or `gpipe`; without it, what `alpa.schedule` of the "
           "module says, else 1f1b">
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
    Fails at the guilty instruction unless
    - alpa_programs_c1: meshes have one program each, and peers exist.
    - alpa_programs_c2: each tag has one send and one receive, which name each
      other's mesh, or one all_reduce on each of its members.
    - alpa_programs_c3: all of them have the same type.
    - alpa_programs_c4: no buffer is used after it was freed or given out.
    - alpa_programs_c5: each buffer is freed once or output once.
    - alpa_programs_c6: no program waits forever (sends do not wait, receives and sums do).
    - alpa_programs_c7: forward and backward functions run once for each
      micro-batch, update functions once, results leave once (concatenated ones
      once for each micro-batch).
  }];
  let statistics = [
    Statistic<"numInstructions", "instructions", "Instructions checked">,
    Statistic<"peakBuffers", "peak buffers", "Most buffers alive on one mesh">
  ];
}

#endif // ALPA_COMPILER_SCHEDULE_PASSES
