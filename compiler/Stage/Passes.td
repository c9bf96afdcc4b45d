//===- Passes.td - from ops to pipeline stages -----------------*- tablegen -*-===//

#ifndef ALPA_COMPILER_STAGE_PASSES
#define ALPA_COMPILER_STAGE_PASSES

include "mlir/Pass/PassBase.td"

def AlpaClusterLayers : Pass<"alpa-cluster-layers", "mlir::ModuleOp"> {
  let summary = "Group the ops of a step into layers";
  let description = [{
    Cuts the equations of the forward computation into layers, the units from
    which stages are made (Eq. 6 of the Alpa paper): the most bytes that a layer
    receives from earlier ones are least while no layer has more than
    `(1 + delta)` times the mean FLOPs; among those cuts the FLOPs vary least.

    Blocks that a model repeats are found first: without `layers` each becomes a
    layer (several where there would be more than `max-layers`, a part where there
    would be fewer than 8), and they are not cut apart unless `layers` asks for
    more. So layers do the same work, and what is found out about one holds for all.
    A program that marks its layers itself (barriers with `alpa.boundary`, from
    `alpa_mlir.layer_boundary`) is cut there unless `layers` or `boundaries` is given.

    Every op of `@main` gets `alpa.layer` (broadcasts of single elements are repeated for each layer
    that reads them). Backward ops go with their forward
    equation, update ops with the weight or gradient that they update; scalars
    that several layers contribute to go to layer 0. Layers never fall along
    forward data flow and never rise along backward data flow. The sum of
    gradients that different layers give to one weight becomes an update op: it
    is then taken once per step.

    Before: ops with `alpa.phase` and `alpa.eqn` (from `alpa-import`).
    ```mlir
    %0 = stablehlo.dot_general %x, %w0, ... {alpa.eqn = 0 : i64, alpa.phase = "forward"}
    %1 = stablehlo.dot_general %0, %w1, ... {alpa.eqn = 1 : i64, alpa.phase = "forward"}
    ```
    After, with two layers:
    ```mlir
    %0 = stablehlo.dot_general %x, %w0, ... {alpa.eqn = 0 : i64, alpa.layer = 0 : i64, ...}
    %1 = stablehlo.dot_general %0, %w1, ... {alpa.eqn = 1 : i64, alpa.layer = 1 : i64, ...}
    ```
  }];
  let options = [
    Option<"layers", "layers", "unsigned", /*default=*/"0",
           "Number of layers; 0 takes it from the model's repeated blocks">,
    Option<"maxLayers", "max-layers", "unsigned", /*default=*/"64",
           "Most layers to take where layers is 0">,
    Option<"delta", "delta", "double", /*default=*/"0.5",
           "How far the FLOPs of a layer may exceed their mean">,
    Option<"balance", "balance", "std::string", /*default=*/"\"communication\"",
           "What is balanced: `communication` (Eq. 6), or `operators`, equally many ops in each "
           "layer wherever that cuts (the paper's baseline)">,
    Option<"computedAgain", "computed-again", "bool", /*default=*/"false",
           "All layers will be computed again for their gradients: where equally many bytes cross, "
           "blocks end with the product of the most FLOPs, which is then made once">,
    ListOption<"boundaries", "boundaries", "int64_t",
               "Layers by hand: the first equation of each but layer 0">
  ];
  let statistics = [
    Statistic<"numLayers", "layers", "Layers made">,
    Statistic<"numKinds", "kinds of layers", "Layers that differ in what they compute">,
    Statistic<"movedOps", "moved ops", "Ops whose layer was changed to keep the order of layers">
  ];
}

def AlpaOffloadState : Pass<"alpa-offload-state", "mlir::ModuleOp"> {
  let summary = "Keep state that the update alone needs in the host's memory";
  let description = [{
    After `alpa-cluster-layers`. State that only ops of the update read, and whose next
    value such ops make, all in one layer (moments of an optimizer, and its weights in
    float32), is marked: between steps and until the update it lies in the memory of its
    device's host. Smaller state, counters say, stays where it is. The search then counts
    the host's memory and the copies, and alpa-copy-host-state writes these.

    Before:
    ```mlir
    func.func @main(%m: tensor<512x512xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state"}, ..)
      %0 = stablehlo.add %m, %g {alpa.layer = 0 : i64, alpa.phase = "update"}
    ```
    After:
    ```mlir
    func.func @main(%m: tensor<512x512xf32> {alpa.carried_by = 1 : i64, alpa.kind = "state", alpa.memory = "host"}, ..)
    ```
  }];
  let options = [
    Option<"leastBytes", "least-bytes", "int64_t", /*default=*/"262144",
           "The smallest state that is kept there">
  ];
  let statistics = [Statistic<"numOffloaded", "offloaded arguments", "Arguments that are marked">];
}

def AlpaPrepareWeights : Pass<"alpa-prepare-weights", "mlir::ModuleOp"> {
  let summary = "Compute once a step what micro-batches make of weights";
  let description = [{
    After `alpa-cluster-layers`, for several micro-batches. What forward and backward ops
    make of state and constants alone is the same for all micro-batches: weights in
    bfloat16 of those in float32, or in 8 bits, several weights as one. Such ops become the
    phase `prepare`, which runs once a step, before the first forward run; their results
    stay until the last backward run. Equal ops are merged, also behind the barriers of
    `jax.checkpoint`. Elementwise ops, conversions, concatenations and reductions count, of
    which products and the like are made; elementwise readers, and those of a part (an
    embedding), make them on the fly. What only moves elements stays with its readers, as
    do results of fewer than `least-elements` and those that are larger than the state they
    are made of (bits of a random key).

    With `gather`, prepared weights, and weights that are read as they are (behind a barrier
    in the phase `prepare`), may be held otherwise than their state is: `alpa.movable` gives
    them a choice of their own. A weight that is split for its update can then be gathered
    once a step, for the memory that it takes, instead of in each micro-batch.

    Before (`alpa.layer` is the same for all ops):
    ```mlir
    %0 = stablehlo.convert %w {alpa.phase = "forward"} : (tensor<512x512xf32>) -> tensor<512x512xbf16>
    %1 = stablehlo.dot_general %x, %0 {alpa.phase = "forward"}
    ```
    After:
    ```mlir
    %0 = stablehlo.convert %w {alpa.phase = "prepare"} : (tensor<512x512xf32>) -> tensor<512x512xbf16>
    %1 = stablehlo.dot_general %x, %0 {alpa.phase = "forward"}
    ```
  }];
  let options = [
    Option<"leastElements", "least-elements", "int64_t", /*default=*/"65536",
           "The smallest results that are prepared">,
    Option<"gather", "gather", "bool", /*default=*/"false",
           "Whether a weight may be held otherwise than its state">
  ];
  let statistics = [Statistic<"numPrepared", "prepared ops", "Ops that run once a step">];
}

def AlpaTrimActivations : Pass<"alpa-trim-activations", "mlir::ModuleOp"> {
  let summary = "Compute again for gradients what is cheaper than to keep";
  let description = [{
    After `alpa-cluster-layers`. Between the forward and the backward phase of a
    micro-batch a stage keeps what the latter reads of the former: often an operand and
    several values that were made of it element by element (`gelu` leaves six). The
    backward ops of a layer compute such values again from others where that costs less
    than to write, keep and read them.

    What is kept is a minimum cut: a value costs its bytes (none for weights and for what
    gradients read anyway), running an op twice costs what could be read or written
    meanwhile: an element's simple arithmetic a quarter of a byte, a root, a quotient or an
    exponential two bytes, a transposition the bytes that it moves. What a product reads
    must be in memory, so making it again saves nothing. Products, sums and random bits run
    once.

    Before (`alpa.layer` is the same for all ops):
    ```mlir
    %h = stablehlo.dot_general %x, %w {alpa.phase = "forward"}
    %t = stablehlo.tanh %h {alpa.phase = "forward"}
    %1 = stablehlo.multiply %t, %t {alpa.phase = "forward"}
    %d = stablehlo.subtract %one, %1 {alpa.phase = "forward"}
    ...
    %g = stablehlo.multiply %dy, %d {alpa.phase = "backward"}
    ```
    After:
    ```mlir
    %h = stablehlo.dot_general %x, %w {alpa.phase = "forward"}
    %t = stablehlo.tanh %h {alpa.phase = "forward"}
    ...
    %2 = stablehlo.tanh %h {alpa.phase = "backward"}
    %3 = stablehlo.multiply %2, %2 {alpa.phase = "backward"}
    %d = stablehlo.subtract %one, %3 {alpa.phase = "backward"}
    %g = stablehlo.multiply %dy, %d {alpa.phase = "backward"}
    ```
  }];
  let statistics = [
    Statistic<"numRepeated", "repeated ops", "Ops that run in both phases">,
    Statistic<"bytesBefore", "bytes before", "Kept for a micro-batch">,
    Statistic<"bytesAfter", "bytes after", "The same afterwards">
  ];
}

def AlpaRematerialize : Pass<"alpa-rematerialize", "mlir::ModuleOp"> {
  let summary = "Compute forward values of layers again instead of keeping them";
  let description = [{
    After `alpa-cluster-layers`: the backward ops of each chosen layer stop reading
    what the layer's forward ops made and read clones of those ops, of as many as
    the gradients need. The clones are backward ops of the same equations and
    layer. They start from what came into the layer (values of other layers,
    arguments), behind a barrier that waits for the layer's gradients, so that
    nothing is computed again before it is needed. Between forward and backward a
    layer then keeps only what came into it.

    Random bits are computed again from the same key and are the same bits.
    `stablehlo.rng` and ops with side effects are not repeated; their results are
    kept. Values that leave the step (running statistics, metrics) stay those of
    the forward phase. Forward ops that only gradients needed are removed.

    With `keep=products`, results of dots, convolutions and fused attention stay kept,
    and what lies between them is computed again; so are products of activations whose
    result is larger than both (scores of attention): the selective recomputation of
    Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
    2022.

    Before, in layer 1:
    ```mlir
    %1 = stablehlo.sine %0 {alpa.eqn = 1 : i64, alpa.phase = "forward", ...}
    ...
    %8 = stablehlo.multiply %7, %1 {alpa.eqn = 2 : i64, alpa.phase = "backward", ...}
    ```
    After, with `layers=1`:
    ```mlir
    %8:2 = stablehlo.optimization_barrier %0, %7 {alpa.phase = "backward", ...}
    %9 = stablehlo.sine %8#0 {alpa.eqn = 1 : i64, alpa.phase = "backward", ...}
    %10 = stablehlo.multiply %8#1, %9 {alpa.eqn = 2 : i64, alpa.phase = "backward", ...}
    ```
  }];
  let options = [
    ListOption<"layers", "layers", "std::string",
               "Which layers: `all`, `none`, or their numbers">,
    Option<"keep", "keep", "std::string", /*default=*/"\"nothing\"",
           "What of them, and of those that a search chooses, stays kept: `nothing` or `products`">
  ];
  let statistics = [
    Statistic<"clonedOps", "cloned ops", "Forward ops that are computed again">
  ];
  let dependentDialects = ["::mlir::stablehlo::StablehloDialect"];
}

def AlpaSearchStages : Pass<"alpa-search-stages", "mlir::ModuleOp"> {
  let summary = "Find the pipeline stages, their meshes and every op's sharding";
  let description = [{
    Chooses runs of layers as stages, a submesh and a logical view of it for each,
    and the sharding of every op on it, so that a step takes the fewest seconds
    (Eq. 2-4 of the Alpa paper, with the time to send values between stages):
    `sum_i (t_i + x_i) + (B - 1) max_i max(t_i, x_i)` for B micro-batches. Each
    stage keeps within the memory of its devices: state, the activations of all
    micro-batches in flight under the schedule, and temporaries.

    A stage is solved (intra-operator problem) only when a plan that could still
    be the best one uses it; a stage's parts give a bound until then. The search
    ends when no other plan can be faster by more than `gap`.

    With `remat=auto` each stage has a choice more: its layers as they are written,
    or computed again for their gradients as alpa-rematerialize does, with
    `remat-keeps=auto` also with values kept that are cheap to hold and dear to make.
    `@main` is rewritten for the stages that take it, and lists their layers in
    `alpa.rematerialized`. With `offload=activations` what gradients read of forward ops waits
    in the hosts' memory, but for the last layer, and for values of less than 256 KiB; these
    ops then have `alpa.offloaded`.

    Before: ops with `alpa.phase` and `alpa.layer`. After: the module has
    `alpa.stages`, `alpa.num_micro_batches`, `alpa.schedule`, `alpa.cluster` and
    `alpa.predicted`; ops have `alpa.stage`, `alpa.shardings`, and
    `alpa.operand_shardings` where they read values from outside their stage;
    arguments of `@main` have `alpa.stage` (their owner's) and `alpa.sharding`.
    ```mlir
    module attributes {alpa.num_micro_batches = 4 : i64, alpa.schedule = "1f1b", alpa.stages = [
        #alpa.stage<mesh = <shape = [1, 2], devices = [0, 1]>, layers = [0, 2], ...>,
        #alpa.stage<mesh = <shape = [1, 2], devices = [2, 3]>, layers = [2, 4], ...>]} {
      ...
      %0 = stablehlo.dot_general %x, %w, ... {alpa.layer = 0 : i64, alpa.stage = 0 : i64,
             alpa.operand_shardings = [#alpa.sharding<[S1, R]>, #alpa.sharding<[R, R]>],
             alpa.shardings = [#alpa.sharding<[S1, R]>], ...}
    ```
  }];
  let options = [
    Option<"cluster", "cluster", "std::string", /*default=*/"",
           "Name of a cluster preset, or a cluster file (YAML)">,
    Option<"numMicroBatches", "num-micro-batches", "int64_t", /*default=*/"1",
           "Micro-batches in a step; the module is one micro-batch">,
    Option<"method", "method", "std::string", /*default=*/"\"auto\"",
           "How ops may be split: auto, data-parallel, zero-2, zero-3, megatron, "
           "expert-parallel, expert-zero-2, heuristic or manual">,
    Option<"pipeline", "pipeline", "std::string", /*default=*/"\"auto\"",
           "How stages and submeshes may be chosen: auto, intra-only, inter-only, equal-layer, "
           "equal-mesh or uniform">,
    Option<"schedule", "schedule", "std::string", /*default=*/"\"1f1b\"",
           "Name of a schedule (alpa-build-schedule), which decides the order of runs and how many "
           "micro-batches' values a stage keeps; of several (`1f1b,gpipe`) the fastest is taken, "
           "`auto` are `1f1b,1f1b-overlap,gpipe`, `zb-auto` and `zb-h1` with close plans, and those "
           "with several stages on a mesh (most-virtual-stages)">,
    Option<"virtualStages", "virtual-stages", "unsigned", /*default=*/"0",
           "How many stages each mesh has, with a schedule that takes several; 0 for 2 with those "
           "that are made for it">,
    Option<"mostVirtualStages", "most-virtual-stages", "unsigned", /*default=*/"1",
           "With `auto`: how many stages a mesh may have, where that is faster by more than 1 %; 2, "
           "3, 4 and 6 are tried in rounds, 2 in a V">,
    ListOption<"submeshes", "submeshes", "std::string",
               "Stages by hand: hosts x devices of each, such as 1x2,1x2; where hosts "
               "differ also their device type, such as 1x2@v100. With virtual-stages these are "
               "the meshes, on which stages lie in rounds, or with some schedules in a V">,
    ListOption<"meshShapes", "mesh-shapes", "std::string",
               "With submeshes: the logical shape of each, such as 1x2,2x1">,
    ListOption<"layerRanges", "layer-ranges", "std::string",
               "First layer and layer after the last of each stage, such as 0-3,3-4; without "
               "submeshes these are searched">,
    ListOption<"startSubmeshes", "start-submeshes", "std::string",
               "Search near a plan from before: hosts x devices of each of its meshes, as in "
               "submeshes. Only these submeshes and those of the next sizes are looked at, and of "
               "several stages on a mesh only as many as it has">,
    ListOption<"startLayers", "start-layers", "std::string",
               "With start-submeshes: the layers of each of its stages, in which another number of "
               "layers is cut in proportion">,
    Option<"startSchedule", "start-schedule", "std::string", /*default=*/"\"1f1b\"",
           "With start-submeshes: its schedule">,
    Option<"startGap", "start-gap", "double", /*default=*/"0.02",
           "With start-submeshes: end where no plan near it can be faster by more than this part">,
    Option<"meshAxes", "mesh-axes", "unsigned", /*default=*/"2",
           "Axes of the mesh views that are tried where mesh-shapes does not say: 2 or 3">,
    Option<"maxDevices", "max-devices", "unsigned", /*default=*/"0",
           "Devices that a plan may take; the others stay idle. 0 for all">,
    Option<"maxStages", "max-stages", "unsigned", /*default=*/"0",
           "Stages that a plan may have, all of those that share a mesh counted; 1 is no pipeline. "
           "0 for any number">,
    Option<"memoryFraction", "memory-fraction", "double", /*default=*/"0.9",
           "Part of a device's memory that a plan may use">,
    Option<"epsilon", "epsilon", "double", /*default=*/"1e-6",
           "Bounds on the slowest stage closer than this many seconds count as one">,
    Option<"gap", "gap", "double", /*default=*/"0.01",
           "End when no plan can be faster by more than this part">,
    Option<"remat", "remat", "std::string", /*default=*/"\"none\"",
           "Which stages compute their layers again for the gradients (alpa-rematerialize): "
           "`none`, or `auto` for those with which a step that fits takes the fewest seconds">,
    Option<"rematKeeps", "remat-keeps", "std::string", /*default=*/"\"given\"",
           "What such layers keep all the same: `given`, what alpa-rematerialize said, or `auto` "
           "for nothing, products or a minimum cut, whatever takes the fewest seconds">,
    Option<"offload", "offload", "std::string", /*default=*/"\"none\"",
           "What waits in the hosts' memory beside state that is marked: `none`, or `activations` "
           "of all stages, whichever these are with the fewest seconds where remat is auto">,
    Option<"workLimit", "work-limit", "double", /*default=*/"3e10",
           "Table entries and combinations that the solver may go through for one stage, about "
           "5e8 a second; the best found by then counts">,
    Option<"timeLimit", "time-limit", "double", /*default=*/"600",
           "Seconds for one stage, the outer bound: where it ends a solve, another search may find "
           "another plan, and `alpa.planning` says so">,
    Option<"makesLoops", "layer-loops", "bool", /*default=*/"false",
           "alpa-roll-layers follows: a row of a stack that a layer makes takes no memory beside "
           "the stack">,
    Option<"explainsMisfit", "explain-misfit", "bool", /*default=*/"true",
           "If nothing fits into memory, say what is closest to it; takes another search">,
    Option<"dropPins", "drop-pins", "bool", /*default=*/"false",
           "Do not keep the program's sharding constraints, with which no plan fits">,
    Option<"cacheDir", "cache-dir", "std::string", /*default=*/"",
           "Folder in which solved stages are kept for other searches; none by default">
  ];
  let statistics = [
    Statistic<"numStages", "stages", "Stages of the plan">,
    Statistic<"numPossible", "possible stages", "Runs of layers times views of submeshes">,
    Statistic<"numSolved", "solved stages", "Intra-operator problems solved">,
    Statistic<"numReused", "reused stages", "Solutions taken over from stages of equal shape">,
    Statistic<"numLoaded", "loaded stages", "Runs of layers that the cache knew something of">,
    Statistic<"numRounds", "rounds", "Runs of the stage DP">
  ];
}

def AlpaLowerPrecision : Pass<"alpa-lower-precision", "mlir::ModuleOp"> {
  let summary = "Turn an imported step into one of narrower numbers, for costing";
  let description = [{
    Whoever has no plan that fits wants to know whether one would in bfloat16. All
    wider floating-point numbers become numbers of that type.

    Before:
    ```mlir
    %0 = stablehlo.dot_general %x, %w, .. : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    ```
    After `dtype=bfloat16`:
    ```mlir
    %0 = stablehlo.dot_general %x, %w, .. : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xbf16>
    ```
    The result is to be planned, not to be run. Errors, all of which begin with
    `alpa-lower-precision:`: another type; complex numbers; an op that does not allow
    the new type.
  }];
  let dependentDialects = ["::mlir::stablehlo::StablehloDialect"];
  let options = [
    Option<"dtype", "dtype", "std::string", /*default=*/"\"bfloat16\"",
           "bfloat16 or float16: the type of all floating-point numbers that are wider">
  ];
  let statistics = [
    Statistic<"numLowered", "lowered values", "Values with another dtype than before">
  ];
}

def AlpaGatherSums : Pass<"alpa-gather-sums", "mlir::ModuleOp"> {
  let summary = "Let the stages meet once for a sum to which several contribute";
  let description = [{
    In the update, looks for trees of adds of one type whose operands come from at
    least two meshes and whose result at least two meshes use, such as a global
    norm's. Inner sums have no other use. Each stage then adds up what it knows, from
    left to right, and `alpa.sum_of_stages` stands for the sum of these parts: a
    floating-point sum is taken in another order, an integer's value is the same.
    What only one mesh uses stays as it is: the operands go there.

    After alpa-defer-sums, whose sums over devices are operands, and before
    alpa-slice-stages, which makes results of the parts.

    Before:
    ```mlir
    %2 = stablehlo.add %0, %1 {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
    %4 = stablehlo.add %2, %3 {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
    ```
    After, where %0 is of stage 0 and %1 and %3 are of stage 1:
    ```mlir
    %2 = stablehlo.add %1, %3 {alpa.phase = "update", alpa.stage = 1 : i64} : tensor<f32>
    %4 = alpa.sum_of_stages %0, %2 of [0, 1] {alpa.phase = "update", alpa.stage = 0 : i64} : tensor<f32>
    ```
  }];
  let dependentDialects = ["::alpa::AlpaDialect", "::mlir::stablehlo::StablehloDialect"];
  let statistics = [
    Statistic<"numSums", "sums", "Sums for which stages meet">,
    Statistic<"numParts", "parts", "Parts of these sums">
  ];
}

def AlpaSliceStages : Pass<"alpa-slice-stages", "mlir::ModuleOp"> {
  let summary = "Cut the step into one module per stage with one function per phase";
  let description = [{
    Reads `alpa.stages`, `alpa.num_micro_batches`, and the ops' `alpa.stage` and
    `alpa.phase`. Each stage gets a module with the functions that are not empty
    of `@forward`, `@backward`, `@update_0`, `@update_1`, ...; update ops go to
    `@update_<k>` where k counts how often their inputs crossed stages within
    the update. Constants, what is made of constants element by element, and
    scalar arithmetic on state and on sums of stages are repeated where they are
    used.

    What a stage adds to an `alpa.sum_of_stages` is a result with `alpa.part_of`,
    the value id of the sum, of the first function that knows it; functions that
    use the sum take it as an argument, one level behind the last of its parts.

    Functions name what they take and give by `alpa.value`; `alpa.accumulate`
    says how a value of each micro-batch becomes one. A state argument that only its
    owner's update still reads is donated to its next value (`tf.aliasing_output`).

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
  let statistics = [
    Statistic<"numFunctions", "functions", "Functions made">,
    Statistic<"numCrossing", "inputs", "Arguments of all functions">,
    Statistic<"numRepeated", "repeated ops", "Ops computed on a stage that is not theirs">
  ];
}

def AlpaSplitBackward : Pass<"alpa-split-backward", "mlir::ModuleOp"> {
  let summary = "Make gradients that other stages wait for apart from all others";
  let description = [{
    Directly after `alpa-slice-stages`, for schedules that fill waiting times with
    the gradients of weights (zero-bubble); nothing changes for others. `@backward` of a
    stage becomes `@backward_input`, which makes what other stages wait
    for, and `@backward_weight`, which makes the rest: an op goes
    to the former if one of those results needs it. What the latter reads of the
    former is handed over as a value of its own. Constants, and what is computed
    element by element or only moved, may run in both instead; which values are
    handed over is the choice that keeps the fewest bytes on a device between the
    two. A stage without a gradient to send, or without any other, keeps
    `@backward`.

    Constraints:
    - alpa_split_backward_c1: what is handed over is a tensor that devices hold, not
      terms of a sum, and divides evenly.

    Before:
    ```mlir
    func.func @backward(%x: .. {alpa.value = 7}, %w: .. {alpa.value = 0}, %dy: .. {alpa.value = 9})
        -> (tensor<8x8xf32> {alpa.accumulate = "sum", alpa.value = 11}, tensor<4x8xf32> {alpa.value = 12}) {
      %0 = stablehlo.multiply %dy, %mask
      %1 = stablehlo.dot_general %x, %0, .. // of the weight
      %2 = stablehlo.dot_general %0, %w, .. // for the stage before
      return %1, %2
    ```
    After:
    ```mlir
    func.func @backward_input(%w: .. {alpa.value = 0}, %dy: .. {alpa.value = 9})
        -> (tensor<4x8xf32> {alpa.value = 12}, tensor<4x8xf32> {alpa.value = 20}) {
      %0 = stablehlo.multiply %dy, %mask
      %1 = stablehlo.dot_general %0, %w, ..
      return %1, %0
    func.func @backward_weight(%x: .. {alpa.value = 7}, %dh: .. {alpa.value = 20})
        -> (tensor<8x8xf32> {alpa.accumulate = "sum", alpa.value = 11}) {
      %0 = stablehlo.dot_general %x, %dh, ..
      return %0
    ```
  }];
  let options = [
    Option<"always", "always", "bool", /*default=*/"false",
           "Split whatever the schedule, `alpa.schedule` of the module, is">
  ];
  let statistics = [
    Statistic<"numFunctions", "split functions", "Backward functions split">,
    Statistic<"numHanded", "handed values", "Values that one part hands to the other">,
    Statistic<"handedBytes", "handed bytes", "What they take on one device of each stage">,
    Statistic<"numRepeated", "repeated ops", "Ops that run in both parts">
  ];
  let dependentDialects = ["::alpa::AlpaDialect"];
}

#endif // ALPA_COMPILER_STAGE_PASSES
