//===- StableHLOCompute.td - contractions, transforms, random bits, calls -===//

#ifndef ALPA_DIALECTS_STABLEHLO_STABLEHLOCOMPUTE
#define ALPA_DIALECTS_STABLEHLO_STABLEHLOCOMPUTE

include "mlir/IR/SymbolInterfaces.td"
include "dialects/StableHLO/StableHLOBase.td"

def Stablehlo_DotGeneralOp : HLO_Op<"dot_general", [Pure]> {
  let summary = "sums of products over paired dimensions";
  let description = [{
    - `dot_general_c1`: as many batching dimensions on either side.
    - `dot_general_c2`: as many contracting dimensions on either side.
    - `dot_general_c3`: no dimension of lhs is named twice.
    - `dot_general_c4`: no dimension of rhs is named twice.
    - `dot_general_c5` to `dot_general_c8`: named dimensions exist (lhs batching,
      lhs contracting, rhs batching, rhs contracting).
    - `dot_general_c9`: batching dimensions that pair up have one size.
    - `dot_general_c10`: contracting dimensions that pair up have one size.
    - `dot_general_c11`: `precision_config` is empty or has two entries.
    - `dot_general_c21`: `precision_config` is DEFAULT where there is an algorithm.
    - `dot_general_c22` to `dot_general_c24`: its component and operation counts are
      positive; some hardware has an algorithm of its types and counts.
    - `dot_general_c12`: the result's shape is batching dimensions, then what is
      left of lhs, then what is left of rhs.
  }];
  let arguments = (ins HLO_AnyTensor:$lhs, HLO_AnyTensor:$rhs,
                       Stablehlo_DotDimensionNumbers:$dot_dimension_numbers,
                       HLO_PrecisionConfig:$precision_config,
                       OptionalAttr<Stablehlo_DotAlgorithm>:$algorithm);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = [{
    $lhs `,` $rhs `,` custom<DotDimensionNumbers>($dot_dimension_numbers) ``
    custom<PrecisionConfigAndAlgorithm>($precision_config, $algorithm) attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}
def Stablehlo_ConvolutionOp : HLO_Op<"convolution", [Pure]> {
  let summary = "sums of products over a window that slides";
  let description = [{
    - `convolution_c1`: operands have one rank, at least 2.
    - `convolution_c2`: window attributes have one entry a spatial dimension.
    - `convolution_c3`: strides and dilations are positive.
    - `convolution_c9`: so has `window_reversal`.
    - `convolution_c10`, `convolution_c15`: `batch_group_count` divides the input's
      batch and the kernel's output features.
    - `convolution_c11`, `convolution_c16`: `feature_group_count` divides the input's
      and the kernel's output features.
    - `convolution_c12`, `convolution_c13`: input dimensions are each named once.
    - `convolution_c14`: input features are kernel input features times groups.
    - `convolution_c17`, `convolution_c18`: so are kernel dimensions.
    - `convolution_c19`, `convolution_c20`: so are output dimensions.
    - `convolution_c21`, `convolution_c22`: group counts are positive.
    - `convolution_c23`: at most one of the group counts is above 1.
    - `convolution_c24`: `precision_config` is empty or has two entries.
    - `convolution_c25`: the result's shape follows from window and batch.
    - `convolution_c27`: operands have one element type.
  }];
  let arguments = (ins HLO_AnyTensor:$lhs, HLO_AnyTensor:$rhs,
                       OptionalAttr<DenseI64ArrayAttr>:$window_strides,
                       OptionalAttr<I64ElementsAttr>:$padding,
                       OptionalAttr<DenseI64ArrayAttr>:$lhs_dilation,
                       OptionalAttr<DenseI64ArrayAttr>:$rhs_dilation,
                       OptionalAttr<DenseBoolArrayAttr>:$window_reversal,
                       Stablehlo_ConvDimensionNumbers:$dimension_numbers,
                       I64Attr:$feature_group_count, I64Attr:$batch_group_count,
                       HLO_PrecisionConfig:$precision_config);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = [{
    `(` operands `)` `dim_numbers` `=` custom<ConvolutionDimensions>($dimension_numbers) `,`
    `window` `=` `{` custom<WindowAttributes>($window_strides, $padding, $lhs_dilation,
                                             $rhs_dilation, $window_reversal) `}`
    attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}
def Stablehlo_CholeskyOp : HLO_OneTypeOp<"cholesky", [Pure]> {
  let summary = "Cholesky factor of symmetric matrices";
  let description = [{
    - `cholesky_c2`: the rank is at least 2.
    - `cholesky_c3`: the last two dimensions have one size.
  }];
  let arguments = (ins HLO_FloatOrComplexTensor:$a, HLO_FlagAttr:$lower);
  let results = (outs HLO_FloatOrComplexTensor:$result);
  let assemblyFormat = [{
    $a (`,` `lower` `=` $lower^)? attr-dict `:` custom<SameOperandsAndResultType>(type($a), type($result))
  }];
  let hasVerifier = 1;
}
def Stablehlo_TriangularSolveOp : HLO_Op<"triangular_solve", [Pure]> {
  let summary = "solves triangular systems";
  let description = [{
    - `triangular_solve_c1`: all element types are equal.
    - `triangular_solve_c2`: both operands have one rank, at least 2.
    - `triangular_solve_c3`: `a` is square, its batch shape that of `b`, its size
      that of `b` on the side of the solve.
    - `triangular_solve_c4`: the result has the type of `b`.
  }];
  let arguments = (ins HLO_FloatOrComplexTensor:$a, HLO_FloatOrComplexTensor:$b,
                       BoolAttr:$left_side, BoolAttr:$lower, BoolAttr:$unit_diagonal,
                       Stablehlo_TransposeAttr:$transpose_a);
  let results = (outs HLO_FloatOrComplexTensor:$result);
  let hasVerifier = 1;
}
def Stablehlo_FftOp : HLO_Op<"fft", [Pure]> {
  let summary = "Fourier transform of the last dimensions";
  let description = [{
    - `fft_c1`: the rank is at least that of `fft_length`.
    - `fft_c2`: element types fit `fft_type`.
    - `fft_c3`: one to three dimensions are transformed.
    - `fft_c4`: the last dimensions of the real one of operand and result, if one is,
      are those of `fft_length`.
    - `fft_c5`: operand and result have one shape; for RFFT and IRFFT, the last
      dimension of the complex one is halved.
  }];
  let arguments = (ins HLO_FloatOrComplexTensor:$operand, Stablehlo_FftTypeAttr:$fft_type,
                       DenseI64ArrayAttr:$fft_length);
  let results = (outs HLO_FloatOrComplexTensor:$result);
  let assemblyFormat = [{
    $operand `,` `type` `=` `` $fft_type `,` `length` `=` $fft_length attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}
def Stablehlo_RngOp : HLO_Op<"rng"> {
  let summary = "random numbers of a hidden state";
  let description = [{
    `rng_c1`: `a` and `b` are scalars of the result's element type; `shape` has
    one entry a dimension of the result.
  }];
  let arguments = (ins 0DTensorOf<[HLO_Pred, HLO_Int, HLO_Float]>:$a,
                       0DTensorOf<[HLO_Pred, HLO_Int, HLO_Float]>:$b,
                       StaticShapeTensorOf<[HLO_Int]>:$shape,
                       Stablehlo_RngDistributionAttr:$rng_distribution);
  let results = (outs HLO_RealTensor:$result);
  let assemblyFormat = [{
    $a `,` $b `,` $shape `,` `distribution` `=` `` $rng_distribution attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}
def Stablehlo_RngBitGeneratorOp : HLO_Op<"rng_bit_generator", [
    Pure, DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmResultNames"]>]> {
  let summary = "random bits and the next state";
  let description = [{
    - `rng_bit_generator_c1`: the next state has the state's type.
    - `rng_bit_generator_c2`: the state's size fits the algorithm.
  }];
  let arguments = (ins HLO_IntTensor:$initial_state, Stablehlo_RngAlgorithmAttr:$rng_algorithm);
  let results = (outs HLO_IntTensor:$output_state, StaticShapeTensorOf<[HLO_Int, HLO_Float]>:$output);
  let assemblyFormat = [{
    $initial_state `,` `algorithm` `=` `` $rng_algorithm attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

// --- Calls ------------------------------------------------------------------
def Stablehlo_CustomCallOp : HLO_Op<"custom_call", [
    DeclareOpInterfaceMethods<MemoryEffectsOpInterface>]> {
  let summary = "a computation known by name only";
  let description = [{
    - `custom_call_c1`: layouts are given for all operands and results or none;
      each is a permutation of its value's dimensions.
    - `custom_call_c2`: an alias names parts of an operand and of a result that
      exist and have one type.
    - `custom_call_c3`: `api_version` is one of 0 to 4.
    - `custom_call_c4`: `backend_config` is a dictionary for version 4, else a string.

    The specification has no numbers of its own for this op.
  }];
  let arguments = (ins Variadic<HLO_TensorTokenOrTuple>:$inputs, StrAttr:$call_target_name,
                       HLO_FlagAttr:$has_side_effect, OptionalAttr<AnyAttr>:$backend_config,
                       DefaultValuedOptionalAttr<I32Attr, "1">:$api_version,
                       DefaultValuedOptionalAttr<
                         TypedArrayAttrBase<FlatSymbolRefAttr, "functions">, "{}">:$called_computations,
                       OptionalAttr<ArrayAttr>:$operand_layouts,
                       OptionalAttr<ArrayAttr>:$result_layouts,
                       DefaultValuedOptionalAttr<
                         TypedArrayAttrBase<Stablehlo_OutputOperandAlias, "aliases">, "{}">
                         :$output_operand_aliases);
  let results = (outs Variadic<HLO_TensorTokenOrTuple>:$results);
  let assemblyFormat = [{
    custom<CustomCallTarget>($call_target_name) `(` $inputs `)` attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}
def Stablehlo_CompositeOp : HLO_Op<"composite", [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "a function that a backend may know better under a name";
  let description = [{
    - `composite_c1`: `name` has the form of an op name.
    - `composite_c2`: `decomposition` is a function of the module.
    - `composite_c3`: it has the op's operand types.
    - `composite_c4`: it has the op's result types.
  }];
  let arguments = (ins Variadic<HLO_TensorTokenOrTuple>:$inputs, StrAttr:$name,
                       DefaultValuedOptionalAttr<DictionaryAttr, "{}">:$composite_attributes,
                       FlatSymbolRefAttr:$decomposition,
                       DefaultValuedOptionalAttr<I32Attr, "0">:$version);
  let results = (outs Variadic<HLO_TensorTokenOrTuple>:$results);
  let assemblyFormat = "$name $inputs attr-dict `:` functional-type(operands, results)";
}

#endif // ALPA_DIALECTS_STABLEHLO_STABLEHLOCOMPUTE
