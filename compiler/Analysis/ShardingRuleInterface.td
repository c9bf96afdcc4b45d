//===- ShardingRuleInterface.td - ops that say how they may be split ------===//

#ifndef ALPA_COMPILER_ANALYSIS_SHARDINGRULEINTERFACE
#define ALPA_COMPILER_ANALYSIS_SHARDINGRULEINTERFACE

include "mlir/IR/Interfaces.td"

def ShardingRuleInterface : OpInterface<"ShardingRuleInterface"> {
  let description = [{
    The loops of an op, and which dimensions of its operands and results are made
    of them. All that the compiler knows of an op's semantics comes through here.
    Ops of StableHLO, CHLO and Shardy get it from outside, by
    `registerShardingRules`, because dialects do not depend on analyses.
  }];
  let cppNamespace = "::alpa::analysis";
  let methods = [
    InterfaceMethod<"The rule of this op with its attributes and shapes.",
                    "::alpa::analysis::ShardingRule", "getShardingRule", (ins)>,
    StaticInterfaceMethod<"Whether ops of this kind always run on whole tensors.",
                          "bool", "runsWhole", (ins), [{}], [{ return false; }]>];
}

#endif // ALPA_COMPILER_ANALYSIS_SHARDINGRULEINTERFACE
