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
def HLO_SInt : SignlessIntOfWidths<[2, 4, 8, 16, 32, 64]>;
def HLO_Float : AnyTypeOf<[F4E2M1FN, F6E2M3FN, F6E3M2FN, F8E3M4, F8E4M3, F8E4M3FN, F8E4M3FNUZ,
                           F8E4M3B11FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0FNU, F16, BF16, F32, F64],
                          "floating-point">;
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
def HLO_SignedTensor : RankedTensorOf<[HLO_SInt, HLO_Float, HLO_Complex]>;
/// Of ops whose operands do not say the size of the result.
def HLO_StaticTensor : StaticShapeTensorOf<[HLO_Pred, HLO_Int, HLO_Float, HLO_Complex]>;
/// Sizes that run-time values say: one entry a dimension.
def HLO_Sizes : 1DTensorOf<[Index, HLO_Int]>;
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

/// Operands and results have one type, up to sizes that are not known.
class HLO_OneTypeOp<string mnemonic, list<Trait> traits = []>
    : HLO_Op<mnemonic, !listconcat([SameOperandsAndResultType], traits)> {
  let extraClassDeclaration = [{
    static bool isCompatibleReturnTypes(::mlir::TypeRange a, ::mlir::TypeRange b) {
      return allTypesAgree(a, b);
    }
  }];
}

class HLO_Unary<string mnemonic, Type type, list<Trait> traits = []>
    : HLO_OneTypeOp<mnemonic, !listconcat([Pure, Elementwise], traits)> {
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
    : HLO_OneTypeOp<mnemonic, !listconcat([Pure, Elementwise], traits)> {
  let arguments = (ins type:$lhs, type:$rhs);
  let results = (outs type:$result);
  let assemblyFormat = [{
    $lhs `,` $rhs attr-dict `:`
    custom<SameOperandsAndResultType>(type($lhs), type($rhs), type($result))
  }];
}

#endif // ALPA_DIALECTS_STABLEHLO_STABLEHLOBASE
