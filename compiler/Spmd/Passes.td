//===- Passes.td - from sharded functions to per-device programs ----------===//

#ifndef ALPA_COMPILER_SPMD_PASSES
#define ALPA_COMPILER_SPMD_PASSES

include "mlir/Pass/PassBase.td"

def DeferSums : Pass<"alpa-defer-sums", "::mlir::ModuleOp"> {
  let summary = "Give terms of sums that wait for the update a place in their types";
  let description = [{
    Before alpa-slice-stages. With several micro-batches the search may leave a
    gradient as the terms that devices have of it: its sharding is unreduced over
    their mesh axes, and `alpa.summed_as` on the op whose result the update reads
    says how the sum is held at first. Here such a gradient gets leading dimensions,
    one for each sum, split to single elements over those axes: dots batch over
    them, convolutions group by them, and so on. What slicing then cuts, micro-batches
    add up and programs pass on are tensors like any others, and a term cannot be
    taken for the sum. The sum itself is a reduction of the update phase.

    Constraints:
    - alpa_defer_sums_c1: only dots, convolutions, reductions that add, scatters that
      add to zeros, and linear ops behind them keep terms; `alpa.use_shardings` says
      how their operands are split.
    - alpa_defer_sums_c2: terms are those of split sums, of all axes that split them.
    - alpa_defer_sums_c3: nothing but linear ops uses terms.

    Before, on a mesh of two devices:
    ```mlir
    %0 = stablehlo.dot_general %x, %dy, contracting_dims = [0] x [0]
        {alpa.shardings = [#alpa.sharding<[R, R], unreduced = [0]>],
         alpa.summed_as = #alpa.sharding<[R, R]>, ..}
        : (tensor<8x4xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    ```
    After:
    ```mlir
    %1 = stablehlo.reshape %x : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
    %2 = stablehlo.reshape %dy : (tensor<8x6xf32>) -> tensor<2x4x6xf32>
    %3 = stablehlo.dot_general %1, %2, batching_dims = [0] x [0], contracting_dims = [1] x [1]
        {alpa.shardings = [#alpa.sharding<[S0, R, R]>]} .. -> tensor<2x4x6xf32>
    %0 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [0]
        {alpa.phase = "update", alpa.shardings = [#alpa.sharding<[R, R]>]} .. -> tensor<4x6xf32>
    ```
  }];
  let statistics = [Statistic<"numDeferred", "deferred", "Ops that keep their terms">,
                    Statistic<"numSums", "sums", "Sums that the update takes">];
  let dependentDialects = ["::alpa::AlpaDialect", "::mlir::stablehlo::StablehloDialect"];
}

def InsertReshards : Pass<"alpa-insert-reshards", "::mlir::ModuleOp"> {
  let summary = "Make every change of a value's sharding an op";
  let description = [{
    Works on the functions of every module that has an `alpa.mesh` (stage modules,
    or the one that alpa-solve-sharding leaves). Wherever an op uses a value
    otherwise than it is held, an `alpa.reshard` is put before the first such use,
    one for each value and spec. What costs nothing to make (constants, iotas and
    what is computed of them element by element) is made anew as it is wanted, and
    of a broadcast the operand is resharded. Results become as the signature says.

    Afterwards every op has `alpa.shardings`, ops in the bodies of loops included,
    none has `alpa.use_shardings`, and all arguments and results have
    `alpa.sharding`. An op without `alpa.use_shardings` takes its operands as they
    are held if one of its strategies does; otherwise its results say how it is
    split. A result that the op makes otherwise (`alpa.made_shardings`) is moved behind
    it. Paths are the ones that the search counted with if the module says for
    which cluster (`alpa.cluster`).

    Before:
    ```mlir
    %0 = stablehlo.tanh %x {alpa.shardings = [#alpa.sharding<[S0, R]>]} : tensor<8x4xf32>
    %1 = stablehlo.dot_general %0, %w, .. {alpa.shardings = [#alpa.sharding<[R, S0]>],
           alpa.use_shardings = [#alpa.sharding<[R, R]>, #alpa.sharding<[R, S0]>]} ..
    ```
    After:
    ```mlir
    %0 = stablehlo.tanh %x {alpa.shardings = [#alpa.sharding<[S0, R]>]} : tensor<8x4xf32>
    %1 = alpa.reshard %0 {from = #alpa.sharding<[S0, R]>, to = #alpa.sharding<[R, R]>} : tensor<8x4xf32>
    %2 = stablehlo.dot_general %1, %w, .. {alpa.shardings = [#alpa.sharding<[R, S0]>]} ..
    ```
  }];
  let statistics = [Statistic<"numReshards", "reshards", "Reshards made">,
                    Statistic<"numRemade", "remade", "Ops made anew instead of resharded">];
  let dependentDialects = ["::alpa::AlpaDialect"];
}

def RollLayers : Pass<"alpa-roll-layers", "::mlir::ModuleOp"> {
  let summary = "Make equal layers of a stage a loop";
  let description = [{
    After alpa-optimize-collectives. Where the ops of a stage's function repeat, with equal
    shardings, they become a `stablehlo.while`: a device then compiles one layer, however
    many its stage has. What exists once for each iteration (weights and their moments,
    gradients, what the forward pass keeps for the backward pass) becomes a stack: one
    argument or result of the stage's functions, with rows of dimension 0 where the caller
    has a stack, too, and a dimension of its own otherwise. Arguments and results of
    `@main` that were rows become pieces of several rows. Ops of the update that are there
    once for each row become ops of the stack. Constants that differ from iteration to
    iteration become one with a row for each, and slices that take the rows of one array in
    turn read it by the iteration's number.

    With `written`, loops may also go through state that is an array of its own for each
    layer: it becomes the rows of one argument, and `alpa.rows` says whose.

    The loop may leave out the first and the last of the repetitions, where these differ,
    and stages with nothing that repeats, or with stacks that would have to be put together
    or taken apart, stay as they are. Values are numbered anew.

    Before:
    ```mlir
    func.func @forward(%w0: tensor<1x4x4xf32> {alpa.value = 0 : i64, ..}, %w1: ..) {
      %0 = stablehlo.reshape %w0 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %1 = stablehlo.dot_general %x, %0, ..
      ..
      %8 = stablehlo.reshape %w1 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
      %9 = stablehlo.dot_general %7, %8, ..
    ```
    After:
    ```mlir
    func.func @forward(%w: tensor<2x4x4xf32> {alpa.value = 0 : i64, ..}) {
      %0:3 = stablehlo.while(%i = %zero, %h = %x, %s = %w) ..
        %1 = stablehlo.dynamic_slice %s, %i, ..
    ```
  }];
  let options = [Option<"written", "written", "bool", /*default=*/"false",
                        "Loops over layers that the user wrote out, too">];
  let statistics = [Statistic<"numLoops", "loops", "Loops that were written">,
                    Statistic<"numIterations", "iterations", "Repetitions that they stand for">];
  let dependentDialects = ["::alpa::AlpaDialect", "::mlir::stablehlo::StablehloDialect"];
}

def VerifySharding : Pass<"alpa-verify-sharding", "::mlir::ModuleOp"> {
  let summary = "Check that all shardings are strategies of their ops";
  let description = [{
    After alpa-insert-reshards: the specs of each op's operands and results are
    those of one strategy of its sharding rule, pieces are even, mesh axes exist,
    the steps of reshards are single collectives, and results are as the signature
    says. An error names the op, what was found and what was expected.
  }];
}

def OptimizeCollectives : Pass<"alpa-optimize-collectives", "::mlir::ModuleOp"> {
  let summary = "Scatter sums whose users take parts, and shard weight updates";
  let description = [{
    After alpa-insert-reshards. If every user of a value takes the same part of it,
    the op makes only that part: a sum is scattered instead of repeated (an
    all-reduce and a slice become a reduce-scatter), other ops work on parts of
    their operands. In a whole step (not in the functions of a stage, which share
    their state), a gradient that all devices sum only to update state alike is
    scattered: each device updates a part, keeps that part of what only the update
    reads (moments), and the new parameter is gathered. Rows of a stack that is gathered
    are gathered one by one. Bytes sent never grow; results are equal.

    Before:
    ```mlir
    %0 = stablehlo.dot_general %x, %w, .. {alpa.shardings = [#alpa.sharding<[R, R]>]} ..
    %1 = alpa.reshard %0 {from = #alpa.sharding<[R, R]>, to = #alpa.sharding<[S0, R]>} ..
    ```
    After, if `%0` is a sum over axis 0:
    ```mlir
    %0 = stablehlo.dot_general %x, %w, .. {alpa.shardings = [#alpa.sharding<[S0, R]>]} ..
    ```
  }];
  let statistics = [Statistic<"numScattered", "scattered", "Sums scattered for their users">,
                    Statistic<"numHoisted", "hoisted", "Slices taken of operands instead">,
                    Statistic<"numUpdates", "updates", "Weight updates sharded">,
                    Statistic<"numRows", "rows", "Rows gathered by themselves">];
}

def LowerToCollectives : Pass<"alpa-lower-to-collectives", "::mlir::ModuleOp"> {
  let summary = "Turn sharded functions into programs of one device";
  let description = [{
    After alpa-insert-reshards: every tensor gets the shape of the part that a
    device holds, reshards and sums of unreduced results become `all_gather`,
    `all_to_all`, `collective_permute`, `reduce_scatter` and `all_reduce`, and what
    depends on the place of a part is computed from `replica_id`. Run the functions
    with as many replicas as the mesh has devices, in its row-major order; no
    partitioner is needed. The module is marked `alpa.per_device`, and signatures
    keep `alpa.sharding`.

    Where the devices of `alpa.cluster` do that (`collective_matmul`), and where it is
    faster by the cost model, a gather of what a dot multiplies becomes a ring of
    `collective_permute`, beside which the dot multiplies the pieces that are there,
    and a dot whose sum is scattered is computed piece by piece beside a ring of sums.

    Before:
    ```mlir
    func.func @main(%x: tensor<8x4xf32> {alpa.sharding = #alpa.sharding<[R, S0]>}, ..
      %0 = stablehlo.dot_general %x, %w, .. {alpa.shardings = [#alpa.sharding<[R, R]>]} ..
    ```
    After, on a mesh of two devices:
    ```mlir
    func.func @main(%x: tensor<8x2xf32> {alpa.sharding = #alpa.sharding<[R, S0]>}, ..
      %0 = stablehlo.dot_general %x, %w, ..
      %1 = "stablehlo.all_reduce"(%0) <{replica_groups = dense<[[0, 1]]> ..
    ```
  }];
  let statistics = [Statistic<"numCollectives", "collectives", "Collectives made">,
                    Statistic<"numCut", "cut", "Collectives cut into pieces beside dots">];
  let dependentDialects = ["::mlir::stablehlo::StablehloDialect"];
}

#endif // ALPA_COMPILER_SPMD_PASSES
