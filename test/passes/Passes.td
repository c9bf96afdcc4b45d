//===- Passes.td - passes for tests of the compiler ----------*- tablegen -*-===//

#ifndef ALPA_TEST_PASSES
#define ALPA_TEST_PASSES

include "mlir/Pass/PassBase.td"

def TestShardingRule : Pass<"alpa-test-sharding-rule", "::mlir::ModuleOp"> {
  let summary = "Print the sharding rule of every op as a remark";
  let description = [{
    Factors are letters: `([a, b], [b, c]) -> [a, c] {a = 8, b = 4
    reduction, c = 16}`. A dimension of several factors prints as `a.b`, one without
    as `-`. A reduction that is no sum names its reducer (`b = 4 reduction maximum`);
    `once 1` says that operand 1 may be combined into the result once only.
  }];
  let options = [
    Option<"coverage", "coverage", "bool", "false",
           "Print instead, for each op of StableHLO and CHLO, whether it can be split, runs whole, "
           "is a terminator or has no rule">];
}

def TestStrategies : Pass<"alpa-test-strategies", "::mlir::ModuleOp"> {
  let summary = "Print every strategy of dots, convolutions, gathers and scatters as a remark";
  let description = [{
    One line per strategy: specs of operands and results, and the sums
    that complete the result, with the mesh axis and the bytes that each device brings:
    `([S0, R], [R, R]) -> [S0, R]`, or `([R, S0], [S0, R]) -> [R, R] all-reduce 0 of 512`.
  }];
  let options = [ListOption<"meshShape", "mesh-shape", "int64_t", "Devices along each mesh axis">];
}

def TestApplyStrategies : Pass<"alpa-test-apply-strategies", "::mlir::ModuleOp"> {
  let summary = "Copy @main once for every strategy of its last op";
  let description = [{
    Leaves a nested module for each assignment of mesh axes to the op's
    factors, and for each scattered sum that the search may choose: the module has
    the mesh, its `@main` has arguments held as the op wants them and results as it
    makes them. Constants are made as the op wants them.

    Before:
    ```mlir
    func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
      %0 = stablehlo.tanh %x : tensor<8x4xf32>
    ```
    After, on a mesh of two devices, the second of three strategies:
    ```mlir
    module @strategy_1 attributes {alpa.mesh = #alpa.mesh<shape = [2], devices = [0, 1]>} {
      func.func @main(%x: tensor<8x4xf32> {alpa.sharding = #alpa.sharding<[S0, R]>})
          -> (tensor<8x4xf32> {alpa.sharding = #alpa.sharding<[S0, R]>}) {
        %0 = stablehlo.tanh %x {alpa.shardings = [#alpa.sharding<[S0, R]>],
                                alpa.use_shardings = [#alpa.sharding<[S0, R]>]} : tensor<8x4xf32>
    ```
  }];
  let options = [ListOption<"meshShape", "mesh-shape", "int64_t", "Devices along each mesh axis">];
  let dependentDialects = ["::alpa::AlpaDialect"];
}

#endif // ALPA_TEST_PASSES
