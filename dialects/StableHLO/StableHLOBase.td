//===- StableHLOBase.td - types and base classes of ops -------------------===//

#ifndef ALPA_DIALECTS_STABLEHLO_STABLEHLOBASE
#define ALPA_DIALECTS_STABLEHLO_STABLEHLOBASE

include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/OpAsmInterface.td"

include "mlir/IR/OpBase.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/ControlFlowInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"
include "dialects/StableHLO/StableHLOAttrs.td"

// --- Types ------------------------------------------------------------------
def HLO_Pred : TypeAlias<I1, "i1">;
def HLO_Int : AnyTypeOf<[SignlessIntOfWidths<[2, 4, 8, 16, 32, 64]>,
                         UnsignedIntOfWidths<[2, 4, 8, 16, 32, 64]>], "integer">;
def HLO_Float : TypeAlias<AnyFloat, "floating-point">;
def HLO_Complex : AnyTypeOf<[Complex<F32>, Complex<F64>], "complex of f32 or f64">;

def HLO_AnyTensor : RankedTensorOf<[HLO_Pred, HLO_Int, HLO_Float, HLO_Complex]>;
def HLO_PredTensor : RankedTensorOf<[HLO_Pred]>;
def HLO_IntTensor : RankedTensorOf<[HLO_Int]>;
def HLO_PredOrIntTensor : RankedTensorOf<[HLO_Pred, HLO_Int]>;
def HLO_FloatTensor : RankedTensorOf<[HLO_Float]>;
def HLO_ComplexTensor : RankedTensorOf<[HLO_Complex]>;
def HLO_FloatOrComplexTensor : RankedTensorOf<[HLO_Float, HLO_Complex]>;
def HLO_NumberTensor : RankedTensorOf<[HLO_Int, HLO_Float, HLO_Complex]>;
def HLO_RealTensor : RankedTensorOf<[HLO_Pred, HLO_Int, HLO_Float]>;
def HLO_NegatableTensor : RankedTensorOf<[HLO_Int, HLO_Float, HLO_Complex]>;
def HLO_Token : TypeAlias<Stablehlo_Token, "token">;
def HLO_TensorOrToken : AnyTypeOf<[HLO_AnyTensor, HLO_Token]>;
def HLO_TensorTokenOrTuple : AnyTypeOf<[HLO_AnyTensor, HLO_Token, AnyTuple]>;

// --- Attributes -------------------------------------------------------------
def HLO_PrecisionConfig : OptionalAttr<TypedArrayAttrBase<Stablehlo_PrecisionAttr, "precisions">>;
def HLO_Accuracy : OptionalAttr<Stablehlo_ResultAccuracy>;
def HLO_FlagAttr : DefaultValuedOptionalAttr<BoolAttr, "false">;

// --- Ops --------------------------------------------------------------------
class HLO_Op<string mnemonic, list<Trait> traits = []> : Op<Stablehlo_Dialect, mnemonic, traits>;

/// Holds computations in regions that end in `stablehlo.return`; has the effects
/// of what they hold.
class HLO_RegionOp<string mnemonic, list<Trait> traits = []>
    : HLO_Op<mnemonic, !listconcat([RecursiveMemoryEffects, RecursivelySpeculatable], traits)>;

class HLO_Unary<string mnemonic, Type type, list<Trait> traits = []>
    : HLO_Op<mnemonic, !listconcat([Pure, Elementwise, SameOperandsAndResultType], traits)> {
  let arguments = (ins type:$operand);
  let results = (outs type:$result);
  let assemblyFormat = [{
    $operand attr-dict `:` custom<SameOperandsAndResultType>(type($operand), type($result))
  }];
}

/// A function whose error can be bounded.
class HLO_AccurateUnary<string mnemonic, Type type = HLO_FloatOrComplexTensor>
    : HLO_Unary<mnemonic, type> {
  let arguments = (ins type:$operand, HLO_Accuracy:$result_accuracy);
}

class HLO_Binary<string mnemonic, Type type, list<Trait> traits = []>
    : HLO_Op<mnemonic, !listconcat([Pure, Elementwise, SameOperandsAndResultType], traits)> {
  let arguments = (ins type:$lhs, type:$rhs);
  let results = (outs type:$result);
  let assemblyFormat = [{
    $lhs `,` $rhs attr-dict `:`
    custom<SameOperandsAndResultType>(type($lhs), type($rhs), type($result))
  }];
}

#endif // ALPA_DIALECTS_STABLEHLO_STABLEHLOBASE
