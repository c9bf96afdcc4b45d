//===- ChloOps.td - client ops that JAX emits beside StableHLO ------------===//

#ifndef ALPA_DIALECTS_CHLO_CHLOOPS
#define ALPA_DIALECTS_CHLO_CHLOOPS

include "mlir/IR/OpBase.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def Chlo_Dialect : Dialect {
  let name = "chlo";
  let cppNamespace = "::mlir::chlo";
  let summary = "Mathematical functions that XLA expands by itself";
  let description = [{
    The client-level ops that JAX 0.10 leaves for XLA to expand. They are kept
    as they are and handed on: their expansions are XLA's business.
  }];
}

class Chlo_Op<string mnemonic, list<Trait> traits = []> : Op<Chlo_Dialect, mnemonic, traits>;

def Chlo_FloatOrComplexTensor : RankedTensorOf<[AnyFloat, AnyComplex]>;
def Chlo_FloatTensor : RankedTensorOf<[AnyFloat]>;
def Chlo_NumberTensor : RankedTensorOf<[AnyFloat, AnyComplex, AnyInteger]>;

class Chlo_Unary<string mnemonic, string what, Type type = Chlo_FloatOrComplexTensor>
    : Chlo_Op<mnemonic, [Pure, Elementwise, SameOperandsAndResultType]> {
  let summary = what # " of every element";
  let arguments = (ins type:$operand);
  let results = (outs type:$result);
  let assemblyFormat = "$operand attr-dict `:` type($operand) `->` type($result)";
}

class Chlo_Binary<string mnemonic, string what, Type type = Chlo_FloatTensor>
    : Chlo_Op<mnemonic, [Pure, Elementwise, SameOperandsAndResultType]> {
  let summary = what # " of every pair of elements";
  let arguments = (ins type:$lhs, type:$rhs);
  let results = (outs type:$result);
  let assemblyFormat =
      "$lhs `,` $rhs attr-dict `:` type($lhs) `,` type($rhs) `->` type($result)";
}

def Chlo_AcosOp : Chlo_Unary<"acos", "Arc cosine">;
def Chlo_AcoshOp : Chlo_Unary<"acosh", "Inverse hyperbolic cosine">;
def Chlo_AsinOp : Chlo_Unary<"asin", "Arc sine">;
def Chlo_AsinhOp : Chlo_Unary<"asinh", "Inverse hyperbolic sine">;
def Chlo_AtanOp : Chlo_Unary<"atan", "Arc tangent">;
def Chlo_AtanhOp : Chlo_Unary<"atanh", "Inverse hyperbolic tangent">;
def Chlo_BesselI1eOp
    : Chlo_Unary<"bessel_i1e", "Exponentially scaled Bessel function of order 1", Chlo_FloatTensor>;
def Chlo_ConjOp : Chlo_Unary<"conj", "Complex conjugate", Chlo_NumberTensor>;
def Chlo_CoshOp : Chlo_Unary<"cosh", "Hyperbolic cosine">;
def Chlo_DigammaOp : Chlo_Unary<"digamma", "Derivative of the logarithm of gamma", Chlo_FloatTensor>;
def Chlo_ErfOp : Chlo_Unary<"erf", "Error function", Chlo_FloatTensor>;
def Chlo_ErfInvOp : Chlo_Unary<"erf_inv", "Inverse of the error function", Chlo_FloatTensor>;
def Chlo_ErfcOp : Chlo_Unary<"erfc", "Complement of the error function", Chlo_FloatTensor>;
def Chlo_LgammaOp : Chlo_Unary<"lgamma", "Logarithm of the absolute value of gamma", Chlo_FloatTensor>;
def Chlo_SinhOp : Chlo_Unary<"sinh", "Hyperbolic sine">;
def Chlo_SquareOp : Chlo_Unary<"square", "Square", Chlo_NumberTensor>;
def Chlo_TanOp : Chlo_Unary<"tan", "Tangent">;

def Chlo_NextAfterOp : Chlo_Binary<"next_after", "Neighbour of the first towards the second">;
def Chlo_PolygammaOp : Chlo_Binary<"polygamma", "Polygamma function">;
def Chlo_ZetaOp : Chlo_Binary<"zeta", "Hurwitz zeta function">;

def Chlo_TopKOp : Chlo_Op<"top_k", [Pure]> {
  let summary = "The k largest entries along the last dimension, and where they stand";
  let description = [{
    Constraints:
    - chlo_top_k_c1: the operand has a last dimension, of size k at least.
    - chlo_top_k_c2: both results have the operand's shape with the last
      dimension k; values have its element type, indices are i32.
  }];
  let arguments = (ins RankedTensorOf<[AnyFloat, AnyInteger]>:$operand,
                       ConfinedAttr<I64Attr, [IntNonNegative]>:$k);
  let results = (outs RankedTensorOf<[AnyFloat, AnyInteger]>:$values,
                      RankedTensorOf<[I32]>:$indices);
  let assemblyFormat = [{
    `(` $operand `,` `k` `=` $k `)` attr-dict `:` type($operand) `->`
    `(` type($values) `,` type($indices) `)`
  }];
  let hasVerifier = 1;
}

#endif // ALPA_DIALECTS_CHLO_CHLOOPS
