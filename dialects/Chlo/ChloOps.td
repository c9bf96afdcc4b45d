//===- ChloOps.td - functions beside StableHLO that JAX emits -------------===//

#ifndef ALPA_DIALECTS_CHLO_CHLOOPS
#define ALPA_DIALECTS_CHLO_CHLOOPS

include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/OpBase.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"
include "dialects/StableHLO/StableHLOBase.td"

def Chlo_Dialect : Dialect {
  let name = "chlo";
  let cppNamespace = "::mlir::chlo";
  let summary = "Mathematical functions beside StableHLO that JAX emits";
  let description = [{
    Ops that stand for a composition of StableHLO ops, kept whole so that the
    backend may choose the composition.
  }];
  let dependentDialects = ["::mlir::stablehlo::StablehloDialect"];
  let useDefaultAttributePrinterParser = 1;
  let extraClassDeclaration = [{
    std::optional<ParseOpHook> getParseOperationHook(StringRef name) const override;

  private:
    void registerAttributes();
    void registerOps();
  }];
}

def Chlo_RaggedDotDimensionNumbers : AttrDef<Chlo_Dialect, "RaggedDotDimensionNumbers"> {
  let mnemonic = "ragged_dot";
  let summary = "dimensions that ragged_dot pairs";
  let parameters = (ins
    Stablehlo_Dims<>:$lhsBatchingDimensions,
    Stablehlo_Dims<>:$rhsBatchingDimensions,
    Stablehlo_Dims<>:$lhsContractingDimensions,
    Stablehlo_Dims<>:$rhsContractingDimensions,
    Stablehlo_Dims<>:$lhsRaggedDimensions,
    Stablehlo_Dims<>:$rhsGroupDimensions);
  let hasCustomAssemblyFormat = 1;
}

/// JAX writes those of this dialect, also where it reads StableHLO's.
def Chlo_PrecisionAttr : EnumAttr<Chlo_Dialect, Stablehlo_Precision, "precision"> {
  let assemblyFormat = "$value";
}
def Chlo_PrecisionConfig : OptionalAttr<TypedArrayAttrBase<
    AnyAttrOf<[Chlo_PrecisionAttr, Stablehlo_PrecisionAttr]>, "precisions">>;

class Chlo_Op<string mnemonic, list<Trait> traits = []>
    : Op<Chlo_Dialect, mnemonic, !listconcat([Pure], traits)>;

/// `<op>_c1`: operands and result have one type.
class Chlo_Unary<string mnemonic, string what, Type type = HLO_FloatOrComplexTensor>
    : Chlo_Op<mnemonic, [Elementwise, SameOperandsAndResultType]> {
  let summary = what;
  let arguments = (ins type:$operand);
  let results = (outs type:$result);
  let assemblyFormat = "$operand attr-dict `:` type($operand) `->` type($result)";
}
class Chlo_Binary<string mnemonic, string what, Type type = HLO_FloatTensor>
    : Chlo_Op<mnemonic, [Elementwise, SameOperandsAndResultType]> {
  let summary = what;
  let arguments = (ins type:$lhs, type:$rhs);
  let results = (outs type:$result);
  let assemblyFormat = [{
    $lhs `,` $rhs attr-dict `:` type($lhs) `,` type($rhs) `->` type($result)
  }];
}
/// `<op>_c1`: operand and result have one shape.
class Chlo_Predicate<string mnemonic, string what>
    : Chlo_Op<mnemonic, [SameOperandsAndResultShape]> {
  let summary = what;
  let arguments = (ins HLO_FloatTensor:$operand);
  let results = (outs HLO_PredTensor:$result);
  let assemblyFormat = "$operand attr-dict `:` type($operand) `->` type($result)";
}

def Chlo_AcosOp : Chlo_Unary<"acos", "arc cosine">;
def Chlo_AcoshOp : Chlo_Unary<"acosh", "inverse hyperbolic cosine">;
def Chlo_AsinOp : Chlo_Unary<"asin", "arc sine">;
def Chlo_AsinhOp : Chlo_Unary<"asinh", "inverse hyperbolic sine">;
def Chlo_AsinAcosKernelOp : Chlo_Unary<"_asin_acos_kernel", "common part of complex asin and acos">;
def Chlo_AtanOp : Chlo_Unary<"atan", "arc tangent">;
def Chlo_AtanhOp : Chlo_Unary<"atanh", "inverse hyperbolic tangent">;
def Chlo_BesselI1eOp : Chlo_Unary<"bessel_i1e", "scaled Bessel function of order 1", HLO_FloatTensor>;
def Chlo_ConjOp : Chlo_Unary<"conj", "complex conjugate", HLO_NumberTensor>;
def Chlo_CoshOp : Chlo_Unary<"cosh", "hyperbolic cosine">;
def Chlo_DigammaOp : Chlo_Unary<"digamma", "derivative of lgamma", HLO_FloatTensor>;
def Chlo_ErfOp : Chlo_Unary<"erf", "error function", HLO_FloatTensor>;
def Chlo_ErfInvOp : Chlo_Unary<"erf_inv", "inverse error function", HLO_FloatTensor>;
def Chlo_ErfcOp : Chlo_Unary<"erfc", "one minus the error function", HLO_FloatTensor>;
def Chlo_LgammaOp : Chlo_Unary<"lgamma", "logarithm of the gamma function", HLO_FloatTensor>;
def Chlo_SinhOp : Chlo_Unary<"sinh", "hyperbolic sine">;
def Chlo_SquareOp : Chlo_Unary<"square", "product with itself", HLO_NumberTensor>;
def Chlo_TanOp : Chlo_Unary<"tan", "tangent">;

def Chlo_IsInfOp : Chlo_Predicate<"is_inf", "whether an element is infinite">;
def Chlo_IsNegInfOp : Chlo_Predicate<"is_neg_inf", "whether an element is negative infinity">;
def Chlo_IsPosInfOp : Chlo_Predicate<"is_pos_inf", "whether an element is positive infinity">;

def Chlo_MulhiOp : Chlo_Binary<"mulhi", "upper half of the product", HLO_IntTensor>;
def Chlo_NextAfterOp : Chlo_Binary<"next_after", "next number towards rhs">;
def Chlo_PolygammaOp : Chlo_Binary<"polygamma", "derivative lhs of digamma at rhs">;
def Chlo_ZetaOp : Chlo_Binary<"zeta", "Hurwitz zeta function">;

def Chlo_TopKOp : Chlo_Op<"top_k", [
    DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmResultNames"]>]> {
  let summary = "the k largest elements of the last dimension and their indices";
  let description = [{
    - `top_k_c1`: the operand has a dimension.
    - `top_k_c2`: 0 <= k <= size of the last dimension.
    - `top_k_c3`: results have the operand's shape with k elements there;
      values its element type, indices i32.

    Of equal elements, a stable one takes the first; JAX says which from 0.12 on.
  }];
  let arguments = (ins RankedTensorOf<[HLO_Int, HLO_Float]>:$operand, I64Attr:$k,
                       DefaultValuedOptionalAttr<BoolAttr, "true">:$is_stable);
  let results = (outs RankedTensorOf<[HLO_Int, HLO_Float]>:$values, RankedTensorOf<[I32]>:$indices);
  let assemblyFormat = [{
    `(` $operand `,` `k` `=` $k (`,` `is_stable` `=` $is_stable^)? `)` attr-dict `:` type($operand) `->`
    `(` type($values) `,` type($indices) `)`
  }];
  let hasVerifier = 1;
}
def Chlo_RaggedDotOp : Chlo_Op<"ragged_dot"> {
  let summary = "dot whose lhs (or contraction) is cut into groups of run-time sizes";
  let description = [{
    - `ragged_dot_c1`: as many batching dimensions on either side, and of one size.
    - `ragged_dot_c2`: as many contracting dimensions on either side, and of one size.
    - `ragged_dot_c3`: named dimensions exist.
    - `ragged_dot_c4`: lhs has one ragged dimension, rhs at most one of groups.
  }];
  let arguments = (ins HLO_AnyTensor:$lhs, HLO_AnyTensor:$rhs, HLO_IntTensor:$group_sizes,
                       Chlo_RaggedDotDimensionNumbers:$ragged_dot_dimension_numbers,
                       Chlo_PrecisionConfig:$precision_config);
  let results = (outs HLO_AnyTensor:$result);
  let hasVerifier = 1;
}

#endif // ALPA_DIALECTS_CHLO_CHLOOPS
