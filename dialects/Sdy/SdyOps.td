//===- SdyOps.td - shardings as JAX and XLA write them --------------------===//

#ifndef ALPA_DIALECTS_SDY_SDYOPS
#define ALPA_DIALECTS_SDY_SDYOPS

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/OpAsmInterface.td"
include "mlir/IR/OpBase.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/ControlFlowInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def Sdy_Dialect : Dialect {
  let name = "sdy";
  let cppNamespace = "::mlir::sdy";
  let summary = "Meshes and shardings of JAX programs (Shardy)";
  let description = [{
    What JAX writes into its programs, and what the stages of a plan hand to
    XLA: named meshes, a sharding for a value, and computations whose devices
    are addressed by hand.
  }];
  let useDefaultAttributePrinterParser = 1;
  let extraClassDeclaration = [{
    std::optional<ParseOpHook> getParseOperationHook(StringRef name) const override;

  private:
    void registerAttributes();
    void registerOps();
  }];
}

class Sdy_Attr<string name, string attrMnemonic, string what> : AttrDef<Sdy_Dialect, name> {
  let mnemonic = attrMnemonic;
  let summary = what;
  let hasCustomAssemblyFormat = 1;
}

def Sdy_MeshAxis : Sdy_Attr<"MeshAxis", "mesh_axis", "a named axis"> {
  let parameters = (ins StringRefParameter<>:$name, "int64_t":$size);
}
def Sdy_Mesh : Sdy_Attr<"Mesh", "mesh", "named axes over devices"> {
  let description = [{
    `<["x"=2, "y"=4], device_ids=[..]>`. Without axes: one device, or, without
    device ids too, an empty mesh.
    - `sdy_mesh_c1`: axis names differ, sizes are positive.
    - `sdy_mesh_c2`: device ids are as many as the axes have places, each once.
  }];
  let parameters = (ins ArrayRefParameter<"MeshAxisAttr">:$axes,
                        OptionalArrayRefParameter<"int64_t">:$deviceIds);
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// Size of the axis, or 0 if there is none of that name.
    int64_t getAxisSize(::llvm::StringRef name) const;
  }];
}
def Sdy_AxisRef : Sdy_Attr<"AxisRef", "axis_ref", "an axis, or a part of it"> {
  let description = [{
    `"x"`, or `"x":(2)4`: the part of size 4 behind a major part of size 2.
    A sub-axis has a size above 0.
  }];
  let parameters = (ins StringRefParameter<>:$name, "int64_t":$preSize, "int64_t":$subSize);
  let extraClassDeclaration = [{ bool isFullAxis() const { return getSubSize() == 0; } }];
}
def Sdy_DimensionSharding
    : Sdy_Attr<"DimensionSharding", "dimension_sharding", "axes that split one dimension"> {
  let description = [{
    `{"x", "y"}` from major to minor; with `?` at the end, propagation may add
    axes; `p1` behind it is a priority.
  }];
  let parameters = (ins ArrayRefParameter<"AxisRefAttr">:$axes, "bool":$isClosed,
                        "int64_t":$priority);
  let extraClassDeclaration = [{ bool hasPriority() const { return getPriority() >= 0; } }];
}
def Sdy_TensorSharding : Sdy_Attr<"TensorSharding", "sharding", "how a tensor lies on a mesh"> {
  let description = [{
    `<@mesh, [{"x"}, {?} ], replicated={"y"}, unreduced={"z"}>`; the mesh may also
    be written out: `mesh<["x"=2]>`.
    `sdy_sharding_c1`: no axis is used twice.
  }];
  let parameters = (ins "::mlir::Attribute":$meshOrRef,
                        ArrayRefParameter<"DimensionShardingAttr">:$dimShardings,
                        OptionalArrayRefParameter<"AxisRefAttr">:$replicatedAxes,
                        OptionalArrayRefParameter<"AxisRefAttr">:$unreducedAxes);
  let genVerifyDecl = 1;
}
def Sdy_TensorShardingPerValue
    : Sdy_Attr<"TensorShardingPerValue", "sharding_per_value", "a sharding for each value"> {
  let parameters = (ins OptionalArrayRefParameter<"TensorShardingAttr">:$shardings);
}
def Sdy_ManualAxes : Sdy_Attr<"ManualAxes", "manual_axes", "axes addressed by hand"> {
  let parameters = (ins OptionalArrayRefParameter<"::mlir::StringAttr">:$value);
}
def Sdy_OpShardingRule
    : Sdy_Attr<"OpShardingRule", "op_sharding_rule", "factors of an op's dimensions, as text"> {
  let description = [{
    `<([i, jk])->([k]) {i=2, j=2, k=4} reduction={j}>`, passed on as it is.
  }];
  let parameters = (ins StringRefParameter<>:$text);
}

class Sdy_Op<string mnemonic, list<Trait> traits = []> : Op<Sdy_Dialect, mnemonic, traits>;

def Sdy_MeshOp : Sdy_Op<"mesh", [HasParent<"::mlir::ModuleOp">, Symbol]> {
  let summary = "gives a mesh a name";
  let arguments = (ins SymbolNameAttr:$sym_name, Sdy_Mesh:$mesh);
  let assemblyFormat = "$sym_name `=` $mesh attr-dict";
}
class Sdy_Annotation<string mnemonic, string what>
    : Sdy_Op<mnemonic, [Pure, Elementwise, SameOperandsAndResultType,
                        DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = what;
  let arguments = (ins AnyRankedTensor:$input, Sdy_TensorSharding:$sharding);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$input $sharding attr-dict `:` type($result)";
}
def Sdy_ShardingConstraintOp : Sdy_Annotation<"sharding_constraint", "asks for a sharding"> {
  let description = [{
    - `sdy_sharding_constraint_c1`: the mesh exists and has the axes that are used.
    - `sdy_sharding_constraint_c2`: one entry a dimension.
  }];
}
def Sdy_ReshardOp : Sdy_Annotation<"reshard", "changes the sharding"> {
  let description = [{
    - `sdy_reshard_c1`: the mesh exists and has the axes that are used.
    - `sdy_reshard_c2`: one entry a dimension.
  }];
}
def Sdy_ManualComputationOp : Sdy_Op<"manual_computation", [
    IsolatedFromAbove, RecursiveMemoryEffects, SingleBlock]> {
  let summary = "a body that each device runs on its part of the operands";
  let description = [{
    - `sdy_manual_computation_c1`: a sharding for each operand and result.
    - `sdy_manual_computation_c2`: the body takes as many values as there are
      operands and returns as many as there are results.
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$tensors,
                       Sdy_TensorShardingPerValue:$in_shardings,
                       Sdy_TensorShardingPerValue:$out_shardings, Sdy_ManualAxes:$manual_axes);
  let regions = (region SizedRegion<1>:$body);
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}
def Sdy_ReturnOp : Sdy_Op<"return", [Pure, ReturnLike, Terminator]> {
  let summary = "ends a manual computation";
  let arguments = (ins Variadic<AnyType>:$results);
  let assemblyFormat = "attr-dict ($results^ `:` type($results))?";
}

#endif // ALPA_DIALECTS_SDY_SDYOPS
