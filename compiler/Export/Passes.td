//===- Passes.td - out of the compiler -------------------------*- tablegen -*-===//

#ifndef ALPA_COMPILER_EXPORT_PASSES
#define ALPA_COMPILER_EXPORT_PASSES

include "mlir/Pass/PassBase.td"

def AlpaExportShardy : Pass<"alpa-export-shardy", "mlir::ModuleOp"> {
  let summary = "Turn the shardings of each stage into Shardy annotations";
  let description = [{
    Each stage module of more than one device gets an `sdy.mesh`, its functions'
    arguments and results get `sdy.sharding`, and ops' results an
    `sdy.sharding_constraint` (the partitioner does not read `sdy.sharding` on
    ops). An `alpa.reshard` becomes a constraint of its own, so that a value is
    changed once, and then used as the plan says. Constants, scalars, and
    elementwise results that are split like all their operands are left to
    propagation. Axes of size 1 are dropped.

    Calls of kernels, grouped products, convolutions and Fourier transforms become an
    `sdy.manual_computation`: the partitioner does not know what calls compute,
    computes some convolutions wrongly, and asks for no layout. Reductions with an initial value, sorts of
    dimensions that are counted from the back, and narrow indices are written in
    ways that it gets right (docs/decisions/0070).

    Before:
    ```mlir
    module @stage_0 attributes {alpa.mesh = #alpa.mesh<shape = [1, 2], devices = [0, 1]>} {
      func.func @forward(%x: tensor<4x8xf32> {alpa.sharding = #alpa.sharding<[S1, R]>}) ...
        %0 = stablehlo.dot_general %x, %w, ... {alpa.shardings = [#alpa.sharding<[S1, R]>]}
    ```
    After:
    ```mlir
    module @stage_0 attributes {...} {
      sdy.mesh @mesh = <["y"=2]>
      func.func @forward(%x: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {} ]>, ...})
        %0 = stablehlo.dot_general %x, %w, ...
        %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {} ]> : tensor<4x8xf32>
    ```
  }];
  let statistics = [
    Statistic<"numConstraints", "constraints", "Sharding constraints made">
  ];
}

def AlpaExpandMaps : Pass<"alpa-expand-maps", "mlir::ModuleOp"> {
  let summary = "Call each kernel for the blocks that a device has";
  let description = [{
    The body of an `alpa.map` takes its place, once for each block: a device has one, most
    often, and otherwise cuts them out and puts the results together. Attention of Transformer
    Engine gets the sums of lengths that it reads in place of lengths. cuDNN's with packed
    sequences of each example (`own_sequences` in its configuration) is called for each example,
    with statistics as it stores them.

    Before:
    ```mlir
    %y = alpa.map %x {dims = [array<i64: 0>], levels = 1} : (tensor<1x8xf32>) -> tensor<1x8xf32> {
    ^bb0(%block: tensor<8xf32>):
      %0 = stablehlo.custom_call @kernel(%block) ..
      stablehlo.return %0
    }
    ```
    After:
    ```mlir
    %0 = stablehlo.reshape %x : (tensor<1x8xf32>) -> tensor<8xf32>
    %1 = stablehlo.custom_call @kernel(%0) ..
    %y = stablehlo.reshape %1 : (tensor<8xf32>) -> tensor<1x8xf32>
    ```
  }];
  let dependentDialects = ["::mlir::stablehlo::StablehloDialect"];
  let statistics = [Statistic<"numExpanded", "expanded kernels", "Kernels of blocks written">];
}

def AlpaCopyHostState : Pass<"alpa-copy-host-state", "mlir::ModuleOp"> {
  let summary = "Copy values from the host's memory to devices and back";
  let description = [{
    Where a function takes or gives a value of the host's memory (`alpa.memory = "host"`),
    copies stand in front of its first reader and behind its maker, as calls of
    `annotate_device_placement`, which XLA makes asynchronous copies. The copies of a piece
    (what belongs to one weight, see compiler/Analysis/HostMemory.h) wait, behind a
    barrier, for the results of the piece before the previous one, so that few pieces are
    on the device at a time. A piece of activations is what has one `alpa.layer`; what reads
    results of one piece's ops waits for all of these. No value changes: without memories of their own the calls do
    nothing.

    Before:
    ```mlir
    func.func @update_0(%m: tensor<8xf32> {alpa.memory = "host"}, %g: tensor<8xf32>)
        -> (tensor<8xf32> {alpa.memory = "host"}) {
      %0 = stablehlo.add %m, %g : tensor<8xf32>
      return %0 : tensor<8xf32>
    ```
    After:
    ```mlir
      %0 = stablehlo.custom_call @annotate_device_placement(%m) {.. _xla_buffer_placement = "device"}
      %1 = stablehlo.add %0, %g : tensor<8xf32>
      %2 = stablehlo.custom_call @annotate_device_placement(%1) {.. _xla_buffer_placement = "pinned_host"}
      return %2 : tensor<8xf32>
    ```

    Arguments and results there get `mhlo.memory_kind = "pinned_host"`.
  }];
  let dependentDialects = ["::mlir::stablehlo::StablehloDialect"];
  let statistics = [Statistic<"numCopies", "copies", "Copies written">];
}

def AlpaExpandGroupedDots : Pass<"alpa-expand-grouped-dots", "mlir::ModuleOp"> {
  let summary = "Write products of groups as backends know them";
  let description = [{
    `alpa.grouped_dot` and `alpa.grouped_sum` become sorts of their rows by group, a loop of
    plain products, and a gather back; equal groups are sorted once, and elementwise ops
    between products work on sorted rows. Each run of the loop takes some rows of one group; it
    runs as often as the groups may need, whatever their sizes. Where that is more work than a
    product with the weights of all groups, of rows that are zero but in their own, they become
    that. Rows of no group are zero. With alpa-expand-maps the last pass before a plan is
    written: backends know no op of `alpa`.

    Before:
    ```mlir
    %y = alpa.grouped_dot %x, %w of %expert {contracting = 1 : i64} ..
    ```
    After:
    ```mlir
    %s:2 = "stablehlo.sort"(%expert, %iota) ..
    %xs = "stablehlo.gather"(%x, %s#1) ..
    %ys:6 = stablehlo.while(%i = %zero, %out = %none, %row = .., %group = .., %x = %xs, %w = ..) ..
      %part = stablehlo.dot_general %xi, %wi, contracting_dims = [1] x [0] : tensor<512x..
    %y = "stablehlo.gather"(%ys#1, %inverse) ..
    ```
  }];
  let dependentDialects = ["::mlir::stablehlo::StablehloDialect"];
  let statistics = [Statistic<"numExpanded", "expanded products", "Products of groups written">];
}

def AlpaWritePlan : Pass<"alpa-write-plan", "mlir::ModuleOp"> {
  let summary = "Write plan.json and the stage modules into a folder";
  let description = [{
    Reads the module after `alpa-export-shardy` or `alpa-lower-to-collectives`; docs/ir.md has the
    form of the plan. The module is not changed.
  }];
  let options = [
    Option<"directory", "directory", "std::string", /*default=*/"\"\"",
           "Folder to write to; made if it is not there">
  ];
}

#endif // ALPA_COMPILER_EXPORT_PASSES
