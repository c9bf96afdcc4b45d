//===- Passes.td - from ops to pipeline stages -----------------*- tablegen -*-===//

#ifndef ALPA_COMPILER_STAGE_PASSES
#define ALPA_COMPILER_STAGE_PASSES

include "mlir/Pass/PassBase.td"

def AlpaSliceStages : Pass<"alpa-slice-stages", "mlir::ModuleOp"> {
  let summary = "Cut the step into one module per stage with one function per phase";
  let description = [{
    Reads `alpa.stages`, `alpa.num_micro_batches`, and the ops' `alpa.stage` and
    `alpa.phase`. Each stage gets a module with the functions that are not empty
    of `@forward`, `@backward`, `@update_0`, `@update_1`, ...; update ops go to
    `@update_<k>` where k counts how often their inputs crossed stages within
    the update. Constants, what is made of constants element by element, and
    scalar arithmetic on state are repeated where they are used.

    Functions name what they take and give by `alpa.value`; `alpa.accumulate`
    says how a value of each micro-batch becomes one, and a mean is scaled where
    the update first uses it. A state argument that only its owner's update still
    reads is donated to its next value (`tf.aliasing_output`).

    Before:
    ```mlir
    func.func @main(%w: tensor<8x8xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64},
                    %x: tensor<4x8xf32> {alpa.kind = "batch"}) -> tensor<8x8xf32> {
      %y = stablehlo.dot_general %x, %w, ... {alpa.phase = "forward", alpa.stage = 0 : i64}
      ...
    ```
    After:
    ```mlir
    func.func private @main(tensor<8x8xf32> {alpa.stage = 0 : i64, alpa.value = 0 : i64, ...}, ...)
    module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
      func.func @forward(%arg0: tensor<8x8xf32> {alpa.sharding = .., alpa.value = 0 : i64}, ...
    ```
  }];
  let options = [
    Option<"gradients", "gradients", "std::string", /*default=*/"\"mean\"",
           "How values of the micro-batches reach the update: `mean` or `sum`">
  ];
  let statistics = [
    Statistic<"numFunctions", "functions", "Functions made">,
    Statistic<"numCrossing", "inputs", "Arguments of all functions">,
    Statistic<"numRepeated", "repeated ops", "Ops computed on a stage that is not theirs">
  ];
}

#endif // ALPA_COMPILER_STAGE_PASSES
