//===- Passes.td - from JAX's module to one planned function ---*- tablegen -*-===//

#ifndef ALPA_COMPILER_IMPORT_PASSES
#define ALPA_COMPILER_IMPORT_PASSES

include "mlir/Pass/PassBase.td"

def AlpaImport : Pass<"alpa-import", "mlir::ModuleOp"> {
  let summary = "Make one function of a training step and name each op's phase";
  let description = [{
    Reads what jaxlib prints for a whole step (with locations) and leaves `@main`
    as the only function. Every op of its body gets

    * `alpa.phase`: `"forward"` and `"backward"` run once per micro-batch,
      `"update"` once per step;
    * `alpa.eqn` (forward and backward): the equation of the forward
      computation that the op stems from.

    The phase comes from JAX's name stack (`jvp(..)` is forward,
    `transpose(jvp(..))` backward), the equation from a scope `alpa_eqn_<i>`
    in it; for inlined code the outermost call site's name stack counts. Ops
    that the name stack says nothing about follow data flow: what feeds the
    forward computation is forward, what depends on the backward one is update,
    and what depends on neither is forward only as long as it holds a dimension
    of the batch. A metric such as the exponential of the mean loss is update even
    if the loss function computes it. A module without backward ops is forward as
    a whole.

    Constants, iotas and broadcasts of them are repeated for each equation that
    uses them, so that no later cut has to carry them. Equal ops are merged
    within a phase and an equation only; a value that the backward pass computes
    again (`jax.checkpoint`) stays computed again.

    Before:
    ```mlir
    func.func public @main(%w: tensor<4xf32>, %x: tensor<2x4xf32>) -> tensor<2x4xf32> {
      %0 = call @scale(%x, %w) : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2x4xf32>
      return %0 : tensor<2x4xf32>
    }
    ```
    After:
    ```mlir
    func.func public @main(%w: tensor<4xf32>, %x: tensor<2x4xf32>) -> tensor<2x4xf32> {
      %0 = stablehlo.broadcast_in_dim %w, dims = [1] {alpa.eqn = 0 : i64, alpa.phase = "forward"} : ...
      %1 = stablehlo.multiply %x, %0 {alpa.eqn = 1 : i64, alpa.phase = "forward"} : ...
      return %1 : tensor<2x4xf32>
    }
    ```
    Shardings that the program asks for (`sdy.sharding_constraint`, `sdy.sharding`
    of an argument) are dropped, because the plan decides about them. With
    `keep-shardings` they stay, for the method `manual`: mesh axes are counted in
    the order of the program's mesh, whose shape becomes `alpa.pin_mesh` of the
    module; an argument gets `alpa.sharding`, and a constraint becomes

    ```mlir
      %1 = stablehlo.optimization_barrier %0 {alpa.pin = #alpa.sharding<[S0, R]>} : ..
    ```

    with `alpa.pin_open = array<i64: 1>` where dimension 1 may be split further.

    Errors: no `@main`, recursive or undefined callees, ops of programs that are
    already partitioned (collectives, `partition_id`, manual computations),
    dynamic shapes, a forward op that needs a gradient, a bad signature.
  }];
  let dependentDialects = ["::alpa::AlpaDialect", "::mlir::stablehlo::StablehloDialect"];
  let options = [Option<"keepShardings", "keep-shardings", "bool", /*default=*/"false",
                        "Keep the shardings that the program asks for">];
  let statistics = [
    Statistic<"inlinedCalls", "inlined calls", "Calls replaced by their bodies">,
    Statistic<"forwardOps", "forward ops", "Ops of the forward phase">,
    Statistic<"backwardOps", "backward ops", "Ops of the backward phase">,
    Statistic<"updateOps", "update ops", "Ops of the update phase">
  ];
}

#endif // ALPA_COMPILER_IMPORT_PASSES
