//===- Passes.td - splitting ops over a mesh ------------------------------===//

#ifndef ALPA_COMPILER_SHARDING_PASSES
#define ALPA_COMPILER_SHARDING_PASSES

include "mlir/Pass/PassBase.td"

def SolveSharding : Pass<"alpa-solve-sharding", "::mlir::ModuleOp"> {
  let summary = "Find the fastest way to split @main's ops over one mesh";
  let description = [{
    Takes all of `@main` as one stage, states how its ops can be split as an
    optimization problem, solves it, and writes the answer down: `alpa.sharding`
    on arguments, `alpa.shardings` on ops (one per result), `alpa.use_shardings`
    on ops that want an operand otherwise than it is held, and the predicted
    seconds and bytes of a device as `alpa.predicted` on the module, beside the
    solver's report as `alpa.solver`. Arguments that carry `alpa.sharding`
    already keep it.

    Before:
    ```mlir
    func.func @main(%x: tensor<8x4xf32>, %w: tensor<4x16xf32>) -> tensor<8x16xf32> {
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
    ```
    After, on a mesh of two devices:
    ```mlir
    func.func @main(%x: tensor<8x4xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}, ..
      %0 = stablehlo.dot_general %x, %w, .. {alpa.shardings = [#alpa.sharding<[S0, R]>]} ..
    ```
  }];
  let options = [
    Option<"cluster", "cluster", "std::string", "\"\"",
           "Cluster: the name of a preset, or a YAML file">,
    ListOption<"meshShape", "mesh-shape", "int64_t",
               "Devices along each mesh axis, slow links first; all of the cluster on one axis if not given">,
    Option<"workLimit", "work-limit", "double", "3e10",
           "Table entries and combinations that the solver may go through, about 5e8 a second">,
    Option<"timeLimit", "time-limit", "double", "600.0",
           "Seconds the solver may take, the outer bound">,
    Option<"method", "method", "std::string", "\"auto\"",
           "What may be chosen: auto, data-parallel, zero-2, zero-3, megatron, expert-parallel, "
           "expert-zero-2, heuristic or manual">,
    Option<"microBatches", "micro-batches", "int64_t", "1",
           "How often forward and backward run for one update">,
    Option<"memoryLimit", "memory-limit", "int64_t", "0",
           "Bytes one device may use; 0 for what the device has, -1 for no limit">,
    Option<"gap", "gap", "double", "0.009",
           "Where memory is a limit: how far the cost may be above its bound, as a part of it">];
  let statistics = [
    Statistic<"numNodes", "nodes", "Nodes of the problem">,
    Statistic<"numChoices", "choices", "Choices of all nodes">,
    Statistic<"numEliminated", "eliminated", "Nodes that exact reductions removed">,
    Statistic<"boundNanoseconds", "bound-ns", "Lower bound of the step's time in nanoseconds">,
    Statistic<"objectiveNanoseconds", "objective-ns", "Predicted time of the step in nanoseconds">,
    Statistic<"solveMicroseconds", "solve-us", "Microseconds the solver took">];
  let dependentDialects = ["::alpa::AlpaDialect"];
}

def BuildShardingProblem : Pass<"alpa-build-sharding-problem", "::mlir::ModuleOp"> {
  let summary = "Write the optimization problem of @main on one mesh to a file";
  let description = [{
    The problem that `alpa-solve-sharding` solves, in the JSON form of the IOPDDL
    contest, for `alpa-solve` or any other solver; the module stays as it is. Unless
    memory is no limit, the bytes of all values at all moments that can bind are part
    of it. Its answer comes back by `alpa-apply-sharding-solution`:

    ```
    alpa-opt step.mlir -alpa-build-sharding-problem="cluster=dgx-a100 output=p.json"
    alpa-solve p.json --solution s.json
    alpa-opt step.mlir -alpa-apply-sharding-solution="cluster=dgx-a100 solution=s.json"
    ```
  }];
  let options = [
    Option<"output", "output", "std::string", "\"\"", "File for the problem; - for standard output">,
    Option<"cluster", "cluster", "std::string", "\"\"",
           "Cluster: the name of a preset, or a YAML file">,
    ListOption<"meshShape", "mesh-shape", "int64_t",
               "Devices along each mesh axis, slow links first; all of the cluster on one axis if not given">,
    Option<"method", "method", "std::string", "\"auto\"",
           "What may be chosen: auto, data-parallel, zero-2, zero-3, megatron, expert-parallel, "
           "expert-zero-2, heuristic or manual">,
    Option<"microBatches", "micro-batches", "int64_t", "1",
           "How often forward and backward run for one update">,
    Option<"memoryLimit", "memory-limit", "int64_t", "0",
           "Bytes one device may use; 0 for what the device has, -1 for no limit">];
  let statistics = [
    Statistic<"numNodes", "nodes", "Nodes of the problem">,
    Statistic<"numEdges", "edges", "Edges of the problem">];
}

def ApplyShardingSolution : Pass<"alpa-apply-sharding-solution", "::mlir::ModuleOp"> {
  let summary = "Write the choices of a solved problem down on @main";
  let description = [{
    Reads a JSON list with a choice for each node of the problem that
    `alpa-build-sharding-problem` makes with the same options, and leaves what
    `alpa-solve-sharding` leaves. An error if the choices break the memory limit or
    take a forbidden pair. `alpa.solver` then says nothing of a bound.
  }];
  let options = [
    Option<"solution", "solution", "std::string", "\"\"", "File with the choices">,
    Option<"cluster", "cluster", "std::string", "\"\"",
           "Cluster: the name of a preset, or a YAML file">,
    ListOption<"meshShape", "mesh-shape", "int64_t",
               "Devices along each mesh axis, slow links first; all of the cluster on one axis if not given">,
    Option<"method", "method", "std::string", "\"auto\"",
           "What may be chosen: auto, data-parallel, zero-2, zero-3, megatron, expert-parallel, "
           "expert-zero-2, heuristic or manual">,
    Option<"microBatches", "micro-batches", "int64_t", "1",
           "How often forward and backward run for one update">,
    Option<"memoryLimit", "memory-limit", "int64_t", "0",
           "Bytes one device may use; 0 for what the device has, -1 for no limit">];
  let dependentDialects = ["::alpa::AlpaDialect"];
}

def ExplainSharding : Pass<"alpa-explain-sharding", "::mlir::ModuleOp"> {
  let summary = "Say why @main is split as it is, and what it costs";
  let description = [{
    Solves what `alpa-solve-sharding` solves with the same options, and prints to
    standard output: the step's time as computation and communication, the latter by
    collective and mesh axis with bytes and seconds; the dearest ops; and the
    dearest decisions, each with the runner-up. A runner-up is the best plan found
    in which that decision falls otherwise: the decisions that share a cost with it
    are re-optimized one after another, all others stay, and memory is left out.

    The same as data is `alpa.explanation` of the module. The parts add up:
    computation, communication and the price of held bytes are the objective plus
    what no choice can change.
  }];
  let options = [
    Option<"op", "op", "std::string", "\"\"",
           "Only ops and decisions with this in their name or in JAX's name for them">,
    Option<"most", "most", "unsigned", "20", "How many ops and decisions to print">,
    Option<"cluster", "cluster", "std::string", "\"\"",
           "Cluster: the name of a preset, or a YAML file">,
    ListOption<"meshShape", "mesh-shape", "int64_t",
               "Devices along each mesh axis, slow links first; all of the cluster on one axis if not given">,
    Option<"workLimit", "work-limit", "double", "3e10",
           "Table entries and combinations that the solver may go through, about 5e8 a second">,
    Option<"timeLimit", "time-limit", "double", "600.0",
           "Seconds the solver may take, the outer bound">,
    Option<"method", "method", "std::string", "\"auto\"",
           "What may be chosen: auto, data-parallel, zero-2, zero-3, megatron, expert-parallel, "
           "expert-zero-2, heuristic or manual">,
    Option<"microBatches", "micro-batches", "int64_t", "1",
           "How often forward and backward run for one update">,
    Option<"memoryLimit", "memory-limit", "int64_t", "0",
           "Bytes one device may use; 0 for what the device has, -1 for no limit">];
}

#endif // ALPA_COMPILER_SHARDING_PASSES
