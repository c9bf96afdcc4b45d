//===- SdyOps.td - mesh, sharding constraint, manual computation ----------===//

#ifndef ALPA_DIALECTS_SDY_SDYOPS
#define ALPA_DIALECTS_SDY_SDYOPS

include "dialects/Sdy/SdyAttrs.td"
include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/ControlFlowInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def Sdy_MeshOp : Op<Sdy_Dialect, "mesh", [Symbol, HasParent<"::mlir::ModuleOp">]> {
  let summary = "Names a mesh of the module";
  let arguments = (ins SymbolNameAttr:$sym_name, Sdy_Mesh:$mesh);
  let assemblyFormat = "$sym_name `=` $mesh attr-dict";
}

def Sdy_ShardingConstraintOp : Op<Sdy_Dialect, "sharding_constraint",
                                  [Elementwise, SameOperandsAndResultType]> {
  let summary = "Fixes how a tensor is split at this point";
  let arguments = (ins AnyRankedTensor:$input, Sdy_TensorSharding:$sharding);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$input $sharding attr-dict `:` type($result)";
}

def Sdy_ManualComputationOp : Op<Sdy_Dialect, "manual_computation",
                                 [IsolatedFromAbove, RecursiveMemoryEffects,
                                  SingleBlockImplicitTerminator<"ReturnOp">]> {
  let summary = "A computation written per device over some axes";
  let description = [{
    Constraints:
    - sdy_manual_computation_c1: one in-sharding an operand, one out-sharding a
      result.
    - sdy_manual_computation_c2: the body takes as many values as there are
      operands and returns as many as there are results.
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$tensors,
                       Sdy_TensorShardingPerValue:$in_shardings,
                       Sdy_TensorShardingPerValue:$out_shardings, Sdy_ManualAxes:$manual_axes);
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let regions = (region SizedRegion<1>:$body);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
  let hasRegionVerifier = 1;
}

def Sdy_ReturnOp : Op<Sdy_Dialect, "return", [Pure, Terminator, ReturnLike]> {
  let summary = "Ends the body of a manual computation";
  let arguments = (ins Variadic<AnyType>:$results);
  let builders = [OpBuilder<(ins), [{ build($_builder, $_state, ::mlir::ValueRange()); }]>];
  let assemblyFormat = "attr-dict ($results^ `:` type($results))?";
}

#endif // ALPA_DIALECTS_SDY_SDYOPS
