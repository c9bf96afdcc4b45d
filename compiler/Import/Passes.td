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
    of the batch. A module without backward ops is forward, and so is one whose
    phases are not one behind the other (gradients of gradients, a second loss behind
    an update): all of it is one program then.

    Ops whose sizes are run-time values (`stablehlo.dynamic_reshape` and others) become
    those of known sizes where the sizes follow from constants and types,
    `stablehlo.if` a case, and `stablehlo.map` its computation over whole arrays.

    Constants, iotas and broadcasts of them are repeated for each equation that
    uses them, so that no later cut has to carry them. Equal ops are merged
    within a phase and an equation only; a value that the backward pass computes
    again (`jax.checkpoint`) stays computed again. A product that is only read
    transposed, as JAX writes the gradient of a weight, is made in that order. Columns
    of the indices of a gather or a scatter that number rows
    (`x[jnp.arange(n)[:, None], k]`) become batching dimensions, along which it can be
    split. A scatter that adds one element to a row of zeros (the gradient of
    `jnp.take_along_axis`) becomes a select by a comparison of indices, which XLA
    fuses into what reads it.

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
    With `pin-shardings` they stay for all methods, on whatever meshes, and in loops
    too: axes of two devices or more are numbered over all meshes of the program, an axis
    of one name and size once, and listed mesh by mesh as `alpa.pin_axes = [[["data", 2], ["model", 4]]]` of the module, which a
    program on meshes of one device does not get; an argument gets `alpa.pin`.

    Calls of `annotate_device_placement` are dropped. With `keep-placements` those that place
    a value in the host's memory become

    ```mlir
      %1 = stablehlo.optimization_barrier %0 {alpa.offloaded = array<i64: 0>} : ..
    ```

    Errors: no `@main`, recursive or undefined callees, ops of programs that are
    already partitioned (collectives, `partition_id`, manual computations),
    dynamic shapes, a bad signature.
  }];
  let dependentDialects = ["::alpa::AlpaDialect", "::mlir::stablehlo::StablehloDialect"];
  let options = [Option<"keepShardings", "keep-shardings", "bool", /*default=*/"false",
                        "Keep the shardings that the program asks for, on one mesh">,
                 Option<"pinShardings", "pin-shardings", "bool", /*default=*/"false",
                        "Keep them as pins wherever a mesh has such axes">,
                 Option<"keepPlacements", "keep-placements", "bool", /*default=*/"false",
                        "Name what the program places in the host's memory">];
  let statistics = [
    Statistic<"inlinedCalls", "inlined calls", "Calls replaced by their bodies">,
    Statistic<"legalizedOps", "legalized ops", "Ops that others say as well">,
    Statistic<"foldedTransposes", "folded transposes", "Products made in the order of their readers">,
    Statistic<"separatedKernels", "separated kernels",
              "Kernels that need a part of the rows only since what they compute of all became ops">,
    Statistic<"batchedRows", "batched rows", "Gathers and scatters whose rows are batching dimensions now">,
    Statistic<"droppedEmpty", "dropped empty arrays", "Ops that make arrays without elements, or read them">,
    Statistic<"selects", "selects", "Scatters of one element that became comparisons of indices">,
    Statistic<"numPlaced", "placed values", "Values that the program places in the host's memory">,
    Statistic<"forwardOps", "forward ops", "Ops of the forward phase">,
    Statistic<"backwardOps", "backward ops", "Ops of the backward phase">,
    Statistic<"updateOps", "update ops", "Ops of the update phase">
  ];
}

def AlpaExpandKernels : Pass<"alpa-expand-kernels", "mlir::ModuleOp"> {
  let summary = "Write kernels that are known by name in plain ops";
  let description = [{
    A call of cuDNN's fused attention (`__cudnn$fmhaSoftmax` and its backward call) runs
    on GPUs only. For a platform without it the call becomes what it computes: scores,
    masks, a softmax in float32 and two dots, or their gradients. So do norms, softmax, products,
    attention and quantization of Transformer Engine (`te_norm_forward_ffi` and others). Calls that the
    compiler does not know stay as they are; dropout within the kernel and packed
    sequences are errors, since their results depend on how the kernel works.

    Before:
    ```mlir
    %0:3 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) ..
    ```
    After:
    ```mlir
    %0 = stablehlo.dot_general %q, %k ..
    %1 = stablehlo.multiply %0, %scale ..
    ..
    ```
  }];
  let statistics = [Statistic<"numExpanded", "expanded calls", "Calls written in plain ops">];
}

def AlpaSplitBatch : Pass<"alpa-split-batch", "mlir::ModuleOp"> {
  let summary = "Split the batch of a step over micro-batches";
  let description = [{
    Makes the program of one micro-batch from that of the whole batch, for any number
    of micro-batches that divides the arguments with `alpa.kind = "batch"`, as the
    sharding rules would split the batch over the devices of one more mesh axis. Every
    value of the forward and backward phase is whole, split along a factor of one of
    its dimensions, or unreduced; its results in the update are those of the whole batch.

    * A sum over examples is a term of the micro-batch; the update reads the sum.
    * Extremes, and values whose examples the update needs together, are joined: a
      micro-batch adds them to zeros, where they belong.
    * An op that is linear in a value of which a scalar factor is known only behind
      the micro-batches (one over the number of tokens) goes on without the factor,
      which the update multiplies.
    * What depends on no example, but is as long as the batch (counters of random
      bits, positions), is computed for the examples of the micro-batch, by its number:
      one more argument with `alpa.per_micro_batch`. Rows that are drawn for products with
      weights, as a GAN's noise, are split where they have as many as the batch.
    * What follows from the batch's arguments in a few steps (counts of tokens, weights of
      classes), and cannot wait, every micro-batch computes of the whole batch: arguments
      with `alpa.whole_of`, the name of the argument of which they are all rows.
    * Where the step makes blocks of the batch's rows, as those of the devices of a
      `jax.shard_map`, and they are fewer than micro-batches, each micro-batch has a part of
      every block, which it cuts out of such whole arguments.
    * What needs a completed value runs in the update.
    * What the backward phase needs of all examples at once (contrastive losses, the
      hardest examples, balance of experts) is the phase `barrier`: it runs once,
      between the forward runs of all micro-batches and their backward runs, which cut
      their examples' parts out of its results. Gradients go through one barrier at
      most, and products with weights stay in micro-batches: a step that needs more
      makes the pass fail, because micro-batches would not save anything then.

    With `semantics=relaxed`, such ops take what the micro-batch alone says instead
    (a sum is the micro-batch's times their number), as for router losses and batch
    statistics; with `independent` all ops of the forward and backward phase do,
    and results are averaged. `alpa.micro_batches` of the module says what was done.

    Before, with two examples, and after, with two micro-batches:
    ```mlir
    func.func public @main(%w: tensor<f32> {alpa.kind = "state"}, %x: tensor<2xf32> {alpa.kind = "batch"})
      %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] {alpa.phase = "forward", ..}
      %1 = stablehlo.sqrt %0 {alpa.phase = "forward", ..}

    func.func public @main(%w: tensor<f32> {..}, %x: tensor<1xf32> {alpa.kind = "batch"})
      %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] {alpa.phase = "forward", ..}
      %1 = stablehlo.sqrt %0 {alpa.phase = "update"}
    ```
  }];
  let dependentDialects = ["::alpa::AlpaDialect", "::mlir::stablehlo::StablehloDialect"];
  let options = [
    Option<"microBatches", "micro-batches", "int64_t", /*default=*/"1",
           "Parts of the batch">,
    Option<"semantics", "semantics", "std::string", /*default=*/"\"exact\"",
           "exact, relaxed or independent: whether ops may take what one micro-batch says">,
    Option<"widenSums", "widen-sums", "bool", /*default=*/"true",
           "Add up terms of half precision in float32, those of products before they are rounded">,
    Option<"allowBarrier", "allow-barrier", "bool", /*default=*/"true",
           "Take a barrier where one pass is not exact">
  ];
  let statistics = [
    Statistic<"numSums", "completed sums", "Sums over the micro-batches that the update reads">,
    Statistic<"numScales", "scales", "Factors that wait for the update">,
    Statistic<"numJoins", "joined values", "Values whose examples the update needs together">
  ];
}

def AlpaUnrollLayers : Pass<"alpa-unroll-layers", "mlir::ModuleOp"> {
  let summary = "Write out scans over layers, so that stages can be cut inside";
  let description = [{
    Unrolls the loops of `@main` whose iterations are layers: a constant number of them,
    each of which multiplies what the loop carries by weights taken from a stack of
    state at its counter. A recurrence over time, whose steps share their weights, stays
    a loop. So is written out whatever loop of `@main` runs once, or not at all. A
    `stablehlo.case` whose number follows from constants becomes the branch that is taken.
    Slices at the counter become static slices, a result that is filled part
    by part becomes a concatenation, and slices of one (residuals that the
    backward scan reads) become the parts. A stack that is converted for the loop is
    sliced first, so that each layer converts its own part. Rows of blocks of rows, as
    scans with `unroll` take and give them, become rows of the stack.

    The equation of the loop becomes one for each iteration and equation of the body
    (scopes `alpa_inner1_<i>` of the tracer, `alpa_inner2_<i>` in a loop within; without
    scopes a body is one equation), and equations after it move up. The gradient of a
    scan goes through the layers in reverse: its iterations get the equations of those
    that they belong to.

    Before:
    ```mlir
    %r:2 = stablehlo.while(%i = %c0, %x = %0) : tensor<i32>, tensor<4x8xf32>
        attributes {alpa.eqn = 1 : i64, alpa.phase = "forward"}
    cond { .. %i < 2 .. } do {
      %s = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 8, 8] : ..
      %m = stablehlo.reshape %s : ..
      %y = stablehlo.dot_general %x, %m, ..
      %n = stablehlo.add %i, %one
      stablehlo.return %n, %y
    }
    ```
    After:
    ```mlir
    %s0 = stablehlo.slice %w [0:1, 0:8, 0:8] {alpa.eqn = 1 : i64, ..}
    %m0 = stablehlo.reshape %s0 {alpa.eqn = 1 : i64, ..}
    %y0 = stablehlo.dot_general %0, %m0, .. {alpa.eqn = 1 : i64, ..}
    %s1 = stablehlo.slice %w [1:2, 0:8, 0:8] {alpa.eqn = 2 : i64, ..}
    %m1 = stablehlo.reshape %s1 {alpa.eqn = 2 : i64, ..}
    %y1 = stablehlo.dot_general %y0, %m1, .. {alpa.eqn = 2 : i64, ..}
    ```
    Loops whose gradient is not one loop in reverse stay as they are, as with
    `jax.checkpoint` around a whole scan.
  }];
  let dependentDialects = ["::alpa::AlpaDialect", "::mlir::stablehlo::StablehloDialect"];
  let options = [Option<"maxOps", "max-ops", "int64_t", /*default=*/"100000",
                        "Leave loops whole that would become more ops than this">];
  let statistics = [
    Statistic<"numLoops", "unrolled loops", "Loops written out, gradients not counted">,
    Statistic<"numIterations", "unrolled iterations", "Iterations of these loops">
  ];
}

def AlpaSplitStacked : Pass<"alpa-split-stacked", "mlir::ModuleOp"> {
  let summary = "Split stacks of layers, so that each stage owns only its own";
  let description = [{
    A state argument of which single rows are read, as unrolled scans do,
    becomes one argument for each row, and so does the result that carries it. Gradients
    that are concatenated from rows, and all ops between gradients and state whose
    sharding rule keeps the rows a dimension (the optimizer), are written once for each
    row; a reduction over the rows (the global norm) becomes one for each row and
    their sum. Any other op sees a concatenation of the rows. The rows of a stack then
    may live on different stages. Rows of another dimension than 0, which is moved to the
    front before the loop, are dimension 0 of the arguments and results that they become.
    The words of a random key, single unsigned integers, are no layers.

    Before:
    ```mlir
    func.func public @main(%w: tensor<2x8xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64,
                                                alpa.name = "w"}) -> tensor<2x8xf32> {
      %g = stablehlo.concatenate %g0, %g1, dim = 0 ..
      %n = stablehlo.subtract %w, %g {alpa.phase = "update"} : tensor<2x8xf32>
      return %n : tensor<2x8xf32>
    }
    ```
    After:
    ```mlir
    func.func public @main(
        %w0: tensor<1x8xf32> {alpa.kind = "state", alpa.carried_by = 0 : i64, alpa.name = "w[0]",
                              alpa.piece = {argument = 0 : i64, axis = 0 : i64, offset = 0 : i64, size = 1 : i64}},
        %w1: tensor<1x8xf32> {alpa.kind = "state", alpa.carried_by = 1 : i64, alpa.name = "w[1]",
                              alpa.piece = {argument = 0 : i64, axis = 0 : i64, offset = 1 : i64, size = 1 : i64}})
        -> (tensor<1x8xf32> {alpa.piece = {axis = 0 : i64, offset = 0 : i64, result = 0 : i64, size = 1 : i64}},
            tensor<1x8xf32> {alpa.piece = {axis = 0 : i64, offset = 1 : i64, result = 0 : i64, size = 1 : i64}}) {
      %n0 = stablehlo.subtract %w0, %g0 {alpa.phase = "update"} : tensor<1x8xf32>
      %n1 = stablehlo.subtract %w1, %g1 {alpa.phase = "update"} : tensor<1x8xf32>
      return %n0, %n1 : tensor<1x8xf32>, tensor<1x8xf32>
    }
    ```
  }];
  let dependentDialects = ["::alpa::AlpaDialect", "::mlir::stablehlo::StablehloDialect"];
  let statistics = [
    Statistic<"numArguments", "split arguments", "State arguments that became one a layer">,
    Statistic<"numOps", "split ops", "Ops that were written once for each layer">
  ];
}

def AlpaUndoSorts : Pass<"alpa-undo-sorts", "mlir::ModuleOp"> {
  let summary = "Multiply rows with the weights of their group without sorting them";
  let description = [{
    Rows (tokens) that are sorted by their group (expert), multiplied by runs with
    `chlo.ragged_dot`, and put back into the old order, stay in that order instead: each
    row is multiplied by the weights of its group (`alpa.grouped_dot`), and gradients of
    weights are sums over the rows of a group (`alpa.grouped_sum`). Sorts, gathers and
    scatters by the sort's permutation go, and devices and micro-batches can take rows of
    their own.

    How it is written does not matter: `argsort`, or a sort with payloads; rows repeated
    before or gathered by `order // k`; the inverse order by a second `argsort` or a
    scatter; results gathered, or added up by a scatter. Ops between the sort and its
    inverse may be any that treat rows alike, as their sharding rules say. That the sizes
    of groups count the keys that are sorted is proven by their computation on every key
    that there can be (`bincount`, sums of `one_hot`), for which the keys must be bounded
    (`top_k`, `argmax`, a clamp). A sort of which a product remains stays as it is.

    A remaining `chlo.ragged_dot` of rows becomes a product of groups too, with each row's group
    counted from the sizes; `ordered` says that rows are in their order.

    Before:
    ```mlir
    %s:2 = "stablehlo.sort"(%expert, %iota) ..
    %xs = "stablehlo.gather"(%x, %s#1) ..
    %ys = "chlo.ragged_dot"(%xs, %w, %sizes) ..
    %i:2 = "stablehlo.sort"(%s#1, %iota) ..
    %y = "stablehlo.gather"(%ys, %i#1) ..
    ```
    After:
    ```mlir
    %y = alpa.grouped_dot %x, %w of %expert {contracting = 1 : i64} ..
    ```
  }];
  let dependentDialects = ["::alpa::AlpaDialect", "::mlir::stablehlo::StablehloDialect"];
  let statistics = [
    Statistic<"numSorts", "undone sorts", "Orders of rows that products no longer need">,
    Statistic<"numProducts", "grouped products", "Products of sorted rows that lost their order">
  ];
}

def AlpaPadDimensions : Pass<"alpa-pad-dimensions", "mlir::ModuleOp"> {
  let summary = "Make dimensions longer that devices do not divide";
  let description = [{
    Sharding rules split dimensions in even parts, so that 50,257 words or 25 heads stay
    whole on 8 devices. Dimensions that ops walk through by one factor are padded
    together, to the multiple of one of `parts` that gives the slowest device the least
    work, if that is a tenth less than without, at most `most-waste` of the dimension is
    padding, and dots, convolutions or attention with `min-share` of all floating-point
    operations have it. With `align-rows`, so are rows of dots of 16 bits and fewer that are
    no multiple of 16 bytes, which tensor cores read at a third of the rate.

    Values are padded with zeros where they enter such a class of dimensions (weights,
    the batch, what ops make that cannot be longer) and cut where they leave it (results,
    sorts, cumulative sums, random bits). Within, the padding holds anything; sums,
    extremes and contractions over it find what changes nothing in them, an index beyond
    the end still means the last element, and an update beyond it is still dropped. So
    results are those of the step.

    Before, with `parts=8 most-waste=0.5`:
    ```mlir
    %logits = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x16xf32>, tensor<16x13xf32>) -> tensor<4x13xf32>
    %most = stablehlo.reduce(%logits init: %lowest) applies stablehlo.maximum across dimensions = [1]
    ```
    After:
    ```mlir
    %longer = stablehlo.pad %w, %zero, low = [0, 0], high = [0, 3], interior = [0, 0] : (tensor<16x13xf32>, tensor<f32>) -> tensor<16x16xf32>
    %logits = stablehlo.dot_general %x, %longer, contracting_dims = [1] x [0] : (tensor<4x16xf32>, tensor<16x16xf32>) -> tensor<4x16xf32>
    %masked = stablehlo.select %is_inside, %logits, %lowest
    %most = stablehlo.reduce(%masked init: %lowest) applies stablehlo.maximum across dimensions = [1]
    ```
  }];
  let dependentDialects = ["::alpa::AlpaDialect", "::mlir::stablehlo::StablehloDialect"];
  let options = [
    ListOption<"parts", "parts", "int64_t", "Numbers of devices that a dimension may be split over">,
    Option<"mostWaste", "most-waste", "double", /*default=*/"0.02",
           "Most padding, as a part of the dimension">,
    Option<"minShare", "min-share", "double", /*default=*/"0.001",
           "Least part of the floating-point operations that have the dimension">,
    Option<"alignsRows", "align-rows", "bool", /*default=*/"false",
           "Also make rows of dots of 16 bits and fewer multiples of 16 bytes on each device">,
    Option<"onlyBatch", "only-batch", "bool", /*default=*/"false",
           "Dimension 0 of batch arguments alone">
  ];
  let statistics = [
    Statistic<"numClasses", "padded classes", "Sets of dimensions that were made longer together">,
    Statistic<"numPads", "pads", "Values that were made longer">,
    Statistic<"numMasks", "masks", "Operands of reductions without their padding">
  ];
}

#endif // ALPA_COMPILER_IMPORT_PASSES
