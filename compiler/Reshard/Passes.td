//===- Passes.td - what goes where between meshes --------------*- tablegen -*-===//

#ifndef ALPA_COMPILER_RESHARD_PASSES
#define ALPA_COMPILER_RESHARD_PASSES

include "mlir/Pass/PassBase.td"

def AlpaPlanTransfers : Pass<"alpa-plan-transfers", "mlir::ModuleOp"> {
  let summary = "Plan how each tensor that crosses meshes gets there";
  let description = [{
    Makes one `alpa.cross_mesh_reshard` for each different transfer of the programs
    (type, meshes and shardings at both ends), names it at its sends and receives, and
    fills it with steps. Those that stand in the module already and are empty are
    filled too, so a file may hold nothing else.

    Before (`alpa-build-schedule`):
    ```mlir
    alpa.program @mesh_0 on 0 {
      ...
      alpa.send %2 to 1 tag 0 : tensor<8x4xf32>
    ```
    After:
    ```mlir
    alpa.cross_mesh_reshard @reshard_0 : tensor<8x4xf32>
        from #alpa.sharding<[S0, R]> on #alpa.mesh<shape = [2], devices = [0, 1]>
        to #alpa.sharding<[S0, R]> on #alpa.mesh<shape = [2], devices = [2, 3]>
        attributes {seconds = 2.0e-05 : f64, slow_bytes = 0 : i64, strategy = "broadcast"} {
      %0 = alpa.tile on 0 at [0, 0] : tensor<4x4xf32>
      %1 = alpa.send_tile %0 to 2 : tensor<4x4xf32>
      %2 = alpa.tile on 1 at [4, 0] : tensor<4x4xf32>
      %3 = alpa.send_tile %2 to 3 : tensor<4x4xf32>
    }
    alpa.program @mesh_0 on 0 {
      ...
      alpa.send %2 to 1 tag 0 by @reshard_0 : tensor<8x4xf32>
    ```

    docs/resharding.md describes the strategies and what a plan takes.
  }];
  let options = [
    Option<"strategy", "strategy", "std::string", /*default=*/"\"auto\"",
           "`naive`, `local-allgather`, `broadcast`, or `auto` for the one with the fewest "
           "bytes from host to host and then the least seconds">,
    Option<"cluster", "cluster", "std::string", /*default=*/"\"\"",
           "Cluster file or preset; without it, `alpa.cluster` of the module">
  ];
  let statistics = [
    Statistic<"numReshards", "reshards", "Different transfers planned">,
    Statistic<"slowBytes", "slow bytes", "Bytes from host to host, each transfer once">,
    Statistic<"numBroadcast", "broadcast", "Transfers by chains">,
    Statistic<"numLocalAllGather", "local-allgather", "Transfers by parts that are gathered">,
    Statistic<"numNaive", "naive", "Transfers straight from holders">
  ];
  let dependentDialects = ["::alpa::AlpaDialect"];
}

#endif // ALPA_COMPILER_RESHARD_PASSES
