//===- StableHLOElementwise.td - ops that act element by element ----------===//
//
// `<op>_c1` of every op of this file: operands and results have one type, or one
// shape where the op changes the element type (checked by the op's traits).
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_DIALECTS_STABLEHLO_STABLEHLOELEMENTWISE
#define ALPA_DIALECTS_STABLEHLO_STABLEHLOELEMENTWISE

include "dialects/StableHLO/StableHLOBase.td"

// --- One operand ------------------------------------------------------------
def Stablehlo_CbrtOp : HLO_AccurateUnary<"cbrt"> {
  let summary = "cube root";
}
def Stablehlo_CeilOp : HLO_Unary<"ceil", HLO_FloatTensor> {
  let summary = "rounds up";
}
def Stablehlo_ClzOp : HLO_Unary<"count_leading_zeros", HLO_IntTensor> {
  let summary = "number of leading zero bits";
}
def Stablehlo_CosineOp : HLO_AccurateUnary<"cosine"> {
  let summary = "cosine";
}
def Stablehlo_ExpOp : HLO_AccurateUnary<"exponential"> {
  let summary = "exponential";
}
def Stablehlo_Expm1Op : HLO_AccurateUnary<"exponential_minus_one"> {
  let summary = "exponential minus one";
}
def Stablehlo_FloorOp : HLO_Unary<"floor", HLO_FloatTensor> {
  let summary = "rounds down";
}
def Stablehlo_LogOp : HLO_AccurateUnary<"log"> {
  let summary = "natural logarithm";
}
def Stablehlo_Log1pOp : HLO_AccurateUnary<"log_plus_one"> {
  let summary = "logarithm of one plus the operand";
}
def Stablehlo_LogisticOp : HLO_AccurateUnary<"logistic"> {
  let summary = "1 / (1 + exp(-x))";
}
def Stablehlo_NegOp : HLO_Unary<"negate", HLO_NegatableTensor> {
  let summary = "negation";
}
def Stablehlo_NotOp : HLO_Unary<"not", HLO_PredOrIntTensor> {
  let summary = "complement of every bit";
}
def Stablehlo_PopulationCountOp : HLO_Unary<"popcnt", HLO_IntTensor> {
  let summary = "number of set bits";
}
def Stablehlo_RoundOp : HLO_Unary<"round_nearest_afz", HLO_FloatTensor> {
  let summary = "rounds to nearest, ties away from zero";
}
def Stablehlo_RoundNearestEvenOp : HLO_Unary<"round_nearest_even", HLO_FloatTensor> {
  let summary = "rounds to nearest, ties to even";
}
def Stablehlo_RsqrtOp : HLO_AccurateUnary<"rsqrt"> {
  let summary = "reciprocal square root";
}
def Stablehlo_SignOp : HLO_Unary<"sign", HLO_SignedTensor> {
  let summary = "-1, 0, 1 or NaN; a complex number over its magnitude";
}
def Stablehlo_SineOp : HLO_AccurateUnary<"sine"> {
  let summary = "sine";
}
def Stablehlo_SqrtOp : HLO_AccurateUnary<"sqrt"> {
  let summary = "square root";
}
def Stablehlo_TanOp : HLO_AccurateUnary<"tan"> {
  let summary = "tangent";
}
def Stablehlo_TanhOp : HLO_AccurateUnary<"tanh"> {
  let summary = "hyperbolic tangent";
}

/// One shape, another element type.
class HLO_Reinterpret<string mnemonic, Type from, Type to>
    : HLO_Op<mnemonic, [Pure, SameOperandsAndResultShape]> {
  let arguments = (ins from:$operand);
  let results = (outs to:$result);
  let assemblyFormat = [{
    $operand attr-dict `:` custom<SameOperandsAndResultType>(type($operand), type($result))
  }];
}

def Stablehlo_AbsOp : HLO_Reinterpret<"abs", HLO_SignedTensor, RankedTensorOf<[HLO_SInt, HLO_Float]>> {
  let summary = "magnitude";
  let description = [{
    `abs_c2`: the result has the operand's element type, or its real part's if
    that is complex.
  }];
  let hasVerifier = 1;
}
def Stablehlo_ConvertOp : HLO_Reinterpret<"convert", HLO_AnyTensor, HLO_AnyTensor> {
  let summary = "the same numbers in another element type";
  let hasFolder = 1;
}
def Stablehlo_RealOp : HLO_Reinterpret<"real", HLO_FloatOrComplexTensor, HLO_FloatTensor> {
  let summary = "real part";
  let description = [{
    `real_c2`: the result has the element type of the operand's parts.
  }];
  let hasVerifier = 1;
}
def Stablehlo_ImagOp : HLO_Reinterpret<"imag", HLO_FloatOrComplexTensor, HLO_FloatTensor> {
  let summary = "imaginary part";
  let description = [{
    `imag_c2`: the result has the element type of the operand's parts.
  }];
  let hasVerifier = 1;
}
def Stablehlo_IsFiniteOp : HLO_Op<"is_finite", [Pure, SameOperandsAndResultShape]> {
  let summary = "whether an element is neither infinite nor NaN";
  let arguments = (ins HLO_FloatTensor:$x);
  let results = (outs HLO_PredTensor:$y);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
}
def Stablehlo_ReducePrecisionOp
    : HLO_OneTypeOp<"reduce_precision", [Pure]> {
  let summary = "rounds to a narrower floating-point format and back";
  let description = [{
    - `reduce_precision_c2`: `exponent_bits` is at least 1.
    - `reduce_precision_c3`: `mantissa_bits` is at least 0.
  }];
  let arguments = (ins HLO_FloatTensor:$operand, I32Attr:$exponent_bits, I32Attr:$mantissa_bits);
  let results = (outs HLO_FloatTensor:$result);
  let assemblyFormat = [{
    $operand `,` `format` `=` custom<ExponentMantissa>($exponent_bits, $mantissa_bits) attr-dict
    `:` custom<SameOperandsAndResultType>(type($operand), type($result))
  }];
  let hasVerifier = 1;
}

// --- Two operands -----------------------------------------------------------
def Stablehlo_AddOp : HLO_Binary<"add", HLO_AnyTensor, [Commutative]> {
  let summary = "sum (logical or of i1)";
}
def Stablehlo_AndOp : HLO_Binary<"and", HLO_PredOrIntTensor, [Commutative]> {
  let summary = "bitwise and";
}
def Stablehlo_Atan2Op : HLO_Binary<"atan2", HLO_FloatOrComplexTensor> {
  let summary = "angle of the point (rhs, lhs)";
}
def Stablehlo_DivOp : HLO_Binary<"divide", HLO_NumberTensor> {
  let summary = "quotient";
}
def Stablehlo_MaxOp : HLO_Binary<"maximum", HLO_AnyTensor, [Commutative]> {
  let summary = "larger element";
}
def Stablehlo_MinOp : HLO_Binary<"minimum", HLO_AnyTensor, [Commutative]> {
  let summary = "smaller element";
}
def Stablehlo_MulOp : HLO_Binary<"multiply", HLO_AnyTensor, [Commutative]> {
  let summary = "product (logical and of i1)";
}
def Stablehlo_OrOp : HLO_Binary<"or", HLO_PredOrIntTensor, [Commutative]> {
  let summary = "bitwise or";
}
def Stablehlo_PowOp : HLO_Binary<"power", HLO_NumberTensor> {
  let summary = "lhs to the power of rhs";
}
def Stablehlo_RemOp : HLO_Binary<"remainder", HLO_NumberTensor> {
  let summary = "remainder, with the sign of the dividend";
}
def Stablehlo_ShiftLeftOp : HLO_Binary<"shift_left", HLO_IntTensor> {
  let summary = "bits moved to the left";
}
def Stablehlo_ShiftRightArithmeticOp : HLO_Binary<"shift_right_arithmetic", HLO_IntTensor> {
  let summary = "bits moved to the right, sign kept";
}
def Stablehlo_ShiftRightLogicalOp : HLO_Binary<"shift_right_logical", HLO_IntTensor> {
  let summary = "bits moved to the right, zeros moved in";
}
def Stablehlo_SubtractOp : HLO_Binary<"subtract", HLO_NumberTensor> {
  let summary = "difference";
}
def Stablehlo_XorOp : HLO_Binary<"xor", HLO_PredOrIntTensor, [Commutative]> {
  let summary = "bitwise exclusive or";
}

def Stablehlo_CompareOp : HLO_Op<"compare", [Pure, SameOperandsAndResultShape,
                                             SameOperandsElementType]> {
  let summary = "relation of two elements";
  let description = [{
    - `compare_c3`: `compare_type` fits the element type: SIGNED for signed
      integers, UNSIGNED for unsigned ones and i1, FLOAT or TOTALORDER for
      floating-point, FLOAT for complex.
    - `compare_c4`: complex elements are compared for EQ or NE only.
  }];
  let arguments = (ins HLO_AnyTensor:$lhs, HLO_AnyTensor:$rhs,
                       Stablehlo_ComparisonDirectionAttr:$comparison_direction,
                       OptionalAttr<Stablehlo_ComparisonTypeAttr>:$compare_type);
  let results = (outs HLO_PredTensor:$result);
  let assemblyFormat = [{
    `` $comparison_direction `,` $lhs `,` $rhs (`,` `` $compare_type^)? attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}
def Stablehlo_ComplexOp : HLO_Op<"complex", [Pure, SameOperandsAndResultShape, SameTypeOperands]> {
  let summary = "a complex number of its two parts";
  let description = [{
    `complex_c2`: the result's element type is complex of the operands'.
  }];
  let arguments = (ins RankedTensorOf<[F32, F64]>:$lhs, RankedTensorOf<[F32, F64]>:$rhs);
  let results = (outs HLO_ComplexTensor:$result);
  let assemblyFormat = [{
    $lhs `,` $rhs attr-dict `:` custom<ComplexOpType>(type($lhs), type($rhs), type($result))
  }];
  let hasVerifier = 1;
}

// --- Three operands ---------------------------------------------------------
def Stablehlo_ClampOp : HLO_Op<"clamp", [Pure]> {
  let summary = "bounded from below and above";
  let description = [{
    - `clamp_c1`: `min` is a scalar or has the operand's shape.
    - `clamp_c2`: `max` is a scalar or has the operand's shape.
    - `clamp_c3`: all element types are equal.
    - `clamp_c4`: the result has the operand's type.
  }];
  let arguments = (ins HLO_AnyTensor:$min, HLO_AnyTensor:$operand, HLO_AnyTensor:$max);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = [{
    $min `,` $operand `,` $max attr-dict `:`
    custom<SameOperandsAndResultType>(type($min), type($operand), type($max), type($result))
  }];
  let hasVerifier = 1;
}
def Stablehlo_SelectOp : HLO_Op<"select", [Pure]> {
  let summary = "one of two elements, by a predicate";
  let description = [{
    - `select_c1`: `pred` is a scalar or has the shape of `on_true`.
    - `select_c2`: `on_true`, `on_false` and the result have one type.
  }];
  let arguments = (ins HLO_PredTensor:$pred, HLO_AnyTensor:$on_true, HLO_AnyTensor:$on_false);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = [{
    $pred `,` $on_true `,` $on_false attr-dict `:`
    custom<SelectOpType>(type($pred), type($on_true), type($on_false), type($result))
  }];
  let hasVerifier = 1;
  let hasFolder = 1;
}

#endif // ALPA_DIALECTS_STABLEHLO_STABLEHLOELEMENTWISE
