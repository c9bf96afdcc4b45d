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
    often, and otherwise cuts them out and puts the results together.

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

def AlpaExpandGroupedDots : Pass<"alpa-expand-grouped-dots", "mlir::ModuleOp"> {
  let summary = "Write products of groups as backends know them";
  let description = [{
    `alpa.grouped_dot` and `alpa.grouped_sum` become sorts of their rows by group,
    `chlo.ragged_dot`, and a gather back; equal groups are sorted once, and elementwise ops
    between products work on sorted rows. Those marked `dense` become `dot_general`s with
    the weights of all groups, of rows that are zero but in their own. Rows of no group are
    zero. With alpa-expand-maps the last pass before a plan is written: backends know no op of
    `alpa`.

    Before:
    ```mlir
    %y = alpa.grouped_dot %x, %w of %expert {contracting = 1 : i64} ..
    ```
    After:
    ```mlir
    %s:2 = "stablehlo.sort"(%expert, %iota) ..
    %xs = "stablehlo.gather"(%x, %s#1) ..
    %ys = "chlo.ragged_dot"(%xs, %w, %sizes) ..
    %y = "stablehlo.gather"(%ys, %inverse) ..
    ```
  }];
  let dependentDialects = ["::mlir::chlo::ChloDialect", "::mlir::stablehlo::StablehloDialect"];
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
