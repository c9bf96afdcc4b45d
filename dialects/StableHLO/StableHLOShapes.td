//===- StableHLOShapes.td - constants and movement of data ----------------===//

#ifndef ALPA_DIALECTS_STABLEHLO_STABLEHLOSHAPES
#define ALPA_DIALECTS_STABLEHLO_STABLEHLOSHAPES

include "dialects/StableHLO/StableHLOBase.td"

// --- From nothing -----------------------------------------------------------
def Stablehlo_ConstantOp : HLO_Op<"constant", [
    Pure, ConstantLike, DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmResultNames"]>]> {
  let summary = "a tensor known at compile time";
  let description = [{
    `constant_c1`: the result has the type of `value`.
  }];
  let arguments = (ins ElementsAttr:$value);
  let results = (outs HLO_AnyTensor:$output);
  let builders = [OpBuilder<(ins "ElementsAttr":$value), [{
    build($_builder, $_state, value.getType(), value);
  }]>];
  let hasCustomAssemblyFormat = 1;
  let hasFolder = 1;
  let hasVerifier = 1;
}
def Stablehlo_IotaOp : HLO_Op<"iota", [Pure]> {
  let summary = "counts up along one dimension";
  let description = [{
    `iota_c1`: `iota_dimension` is a dimension of the result.
  }];
  let arguments = (ins I64Attr:$iota_dimension);
  let results = (outs StaticShapeTensorOf<[HLO_Int, HLO_Float, HLO_Complex]>:$output);
  let assemblyFormat = "`dim` `=` $iota_dimension attr-dict `:` type($output)";
  let hasVerifier = 1;
}

// --- One tensor, another arrangement ----------------------------------------
def Stablehlo_BitcastConvertOp : HLO_Op<"bitcast_convert", [Pure]> {
  let summary = "the same bits in another element type";
  let description = [{
    - `bitcast_convert_c1`: the shapes agree; the wider element type's tensor
      lacks a last dimension of the ratio of the widths.
    - `bitcast_convert_c2`: both or none of the element types are complex.
  }];
  let arguments = (ins HLO_AnyTensor:$operand);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = "$operand attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}
def Stablehlo_BroadcastInDimOp : HLO_Op<"broadcast_in_dim", [Pure]> {
  let summary = "repeats along dimensions that are new or of size 1";
  let description = [{
    - `broadcast_in_dim_c1`: operand and result have one element type.
    - `broadcast_in_dim_c2`: `broadcast_dimensions` names one dimension of the
      result for each of the operand.
    - `broadcast_in_dim_c3`: each is a dimension of the result.
    - `broadcast_in_dim_c4`: none is named twice.
    - `broadcast_in_dim_c5`: each dimension of the operand has size 1 or the
      size of the named dimension.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, DenseI64ArrayAttr:$broadcast_dimensions);
  let results = (outs HLO_StaticTensor:$result);
  let assemblyFormat = [{
    $operand `,` `dims` `=` $broadcast_dimensions attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
  let hasFolder = 1;
}
def Stablehlo_ReshapeOp : HLO_Op<"reshape", [Pure]> {
  let summary = "the same elements in row-major order in another shape";
  let description = [{
    - `reshape_c1`: operand and result have one element type.
    - `reshape_c2`: they have the same number of elements.
  }];
  let arguments = (ins HLO_AnyTensor:$operand);
  let results = (outs HLO_StaticTensor:$result);
  let assemblyFormat = "$operand attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
  let hasFolder = 1;
}
def Stablehlo_ReverseOp : HLO_OneTypeOp<"reverse", [Pure]> {
  let summary = "turns dimensions around";
  let description = [{
    - `reverse_c2`: no dimension is named twice.
    - `reverse_c3`: each is a dimension of the operand.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, DenseI64ArrayAttr:$dimensions);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = [{
    $operand `,` `dims` `=` $dimensions attr-dict `:`
    custom<SameOperandsAndResultType>(type($operand), type($result))
  }];
  let hasVerifier = 1;
}
def Stablehlo_TransposeOp : HLO_Op<"transpose", [Pure]> {
  let summary = "dimension i of the result is dimension permutation[i] of the operand";
  let description = [{
    - `transpose_c1`: operand and result have one element type.
    - `transpose_c2`: `permutation` is a permutation of the operand's dimensions.
    - `transpose_c3`: the result has the permuted shape.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, DenseI64ArrayAttr:$permutation);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = [{
    $operand `,` `dims` `=` $permutation attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
  let hasFolder = 1;
}

// --- Parts ------------------------------------------------------------------
def Stablehlo_ConcatenateOp : HLO_Op<"concatenate", [Pure]> {
  let summary = "tensors one behind the other along a dimension";
  let description = [{
    - `concatenate_c1`: all element types are equal.
    - `concatenate_c2`: shapes differ in `dimension` only.
    - `concatenate_c3`: there is an operand.
    - `concatenate_c4`: `dimension` is a dimension of the operands.
    - `concatenate_c6`: the result's size there is the sum of the operands'.
  }];
  let arguments = (ins Variadic<HLO_AnyTensor>:$inputs, I64Attr:$dimension);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = [{
    custom<VariadicOperandWithAttribute>($inputs) `dim` `=` $dimension attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
  let hasFolder = 1;
}
def Stablehlo_SliceOp : HLO_Op<"slice", [Pure]> {
  let summary = "elements start, start + stride, ... before limit";
  let description = [{
    - `slice_c1`: operand and result have one element type.
    - `slice_c2`: starts, limits and strides have one entry a dimension.
    - `slice_c3`: 0 <= start <= limit <= size.
    - `slice_c4`: strides are positive.
    - `slice_c5`: the result has ceil((limit - start) / stride) elements.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, DenseI64ArrayAttr:$start_indices,
                       DenseI64ArrayAttr:$limit_indices, DenseI64ArrayAttr:$strides);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = [{
    $operand custom<SliceRanges>($start_indices, $limit_indices, $strides) attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
  let hasFolder = 1;
}
def Stablehlo_DynamicSliceOp : HLO_Op<"dynamic_slice", [Pure]> {
  let summary = "a slice that starts where run-time values say";
  let description = [{
    - `dynamic_slice_c1`: operand and result have one element type.
    - `dynamic_slice_c2`: one start index and one size a dimension.
    - `dynamic_slice_c3`: start indices are integer scalars of one type.
    - `dynamic_slice_c4`: 0 <= size <= size of the operand.
    - `dynamic_slice_c5`: the result has the shape of `slice_sizes`.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, Variadic<HLO_IntTensor>:$start_indices,
                       DenseI64ArrayAttr:$slice_sizes);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = [{
    $operand `,` custom<VariadicOperandWithAttribute>($start_indices) `sizes` `=` $slice_sizes
    attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}
def Stablehlo_DynamicUpdateSliceOp : HLO_Op<"dynamic_update_slice", [Pure]> {
  let summary = "a tensor with a slice replaced where run-time values say";
  let description = [{
    - `dynamic_update_slice_c1`: the result has the operand's type.
    - `dynamic_update_slice_c2`: all element types are equal.
    - `dynamic_update_slice_c3`: operand and update have one rank.
    - `dynamic_update_slice_c4`: one start index a dimension.
    - `dynamic_update_slice_c5`: start indices are integer scalars of one type.
    - `dynamic_update_slice_c6`: the update fits the operand.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, HLO_AnyTensor:$update,
                       Variadic<HLO_IntTensor>:$start_indices);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = "operands attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}
def Stablehlo_PadOp : HLO_Op<"pad", [Pure]> {
  let summary = "a value put around and between the elements";
  let description = [{
    - `pad_c1`: all element types are equal; the padding value is a scalar.
    - `pad_c2`: low, high and interior have one entry a dimension.
    - `pad_c3`: interior padding is not negative.
    - `pad_c4`: the result has low + size + (size - 1) * interior + high elements.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, HLO_AnyTensor:$padding_value,
                       DenseI64ArrayAttr:$edge_padding_low, DenseI64ArrayAttr:$edge_padding_high,
                       DenseI64ArrayAttr:$interior_padding);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = [{
    $operand `,` $padding_value `,` `low` `=` $edge_padding_low `,` `high` `=` $edge_padding_high
    `,` `interior` `=` $interior_padding attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}
def Stablehlo_GatherOp : HLO_Op<"gather", [Pure]> {
  let summary = "slices from where a tensor of indices says";
  let description = [{
    - `gather_c1`: offset, collapsed and batching dimensions make up the
      operand's rank.
    - `gather_c2`: `index_vector_dim` is a dimension of the indices, or their rank.
    - `gather_c3`: `start_index_map` has one entry an element of an index vector.
    - `gather_c4`: `offset_dims` are in order, each once.
    - `gather_c5`: they are dimensions of the result.
    - `gather_c6`: no dimension is collapsed or batching twice.
    - `gather_c7`, `gather_c8`: `collapsed_slice_dims` are in order, and of the operand.
    - `gather_c9`: their slices have size 1 or less.
    - `gather_c10`, `gather_c11`: `operand_batching_dims` are in order, and of the operand.
    - `gather_c12`: their slices have size 1 or less.
    - `gather_c13`, `gather_c14`: `start_indices_batching_dims` are of the indices, each once.
    - `gather_c15`: `index_vector_dim` is none of them.
    - `gather_c16`, `gather_c17`: batching dimensions pair up, of one size.
    - `gather_c18`, `gather_c19`: `start_index_map` holds dimensions of the operand that
      are not batching, each once.
    - `gather_c20`: `slice_sizes` has one entry a dimension.
    - `gather_c21`: 0 <= slice size <= size of the operand.
    - `gather_c22`: the result's shape is that of the batches and the offsets.
    - `gather_c23`: operand and result have one element type.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, HLO_IntTensor:$start_indices,
                       Stablehlo_GatherDimensionNumbers:$dimension_numbers,
                       DenseI64ArrayAttr:$slice_sizes, HLO_FlagAttr:$indices_are_sorted);
  let results = (outs HLO_AnyTensor:$result);
  let hasVerifier = 1;
}
def Stablehlo_GetDimensionSizeOp : HLO_Op<"get_dimension_size", [Pure]> {
  let summary = "size of one dimension";
  let description = [{
    `get_dimension_size_c1`: `dimension` is a dimension of the operand.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, I64Attr:$dimension);
  let results = (outs 0DTensorOf<[I32]>:$result);
  let assemblyFormat = [{
    $operand `,` `dim` `=` $dimension attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

// --- Sizes of run-time values -----------------------------------------------
//
// Import makes the op of known sizes of each whose sizes it can compute.

def Stablehlo_DynamicBroadcastInDimOp : HLO_Op<"dynamic_broadcast_in_dim", [Pure]> {
  let summary = "broadcast_in_dim to a shape that run-time values say";
  let description = [{
    - `dynamic_broadcast_in_dim_c1`: operand and result have one element type.
    - `dynamic_broadcast_in_dim_c2`: `broadcast_dimensions` names one dimension of the
      result for each of the operand.
    - `dynamic_broadcast_in_dim_c3`, `dynamic_broadcast_in_dim_c4`: each is a dimension
      of the result, named once.
    - `dynamic_broadcast_in_dim_c5`: each dimension of the operand has size 1 or the
      size of the named dimension.
    - `dynamic_broadcast_in_dim_c7`: `output_dimensions` has one entry a dimension of
      the result.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, HLO_Sizes:$output_dimensions,
                       DenseI64ArrayAttr:$broadcast_dimensions,
                       OptionalAttr<DenseI64ArrayAttr>:$known_expanding_dimensions,
                       OptionalAttr<DenseI64ArrayAttr>:$known_nonexpanding_dimensions);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = [{
    $operand `,` $output_dimensions `,` `dims` `=` $broadcast_dimensions attr-dict
    `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}
def Stablehlo_DynamicReshapeOp : HLO_Op<"dynamic_reshape", [Pure]> {
  let summary = "reshape to a shape that run-time values say";
  let description = [{
    - `dynamic_reshape_c1`: operand and result have one element type.
    - `dynamic_reshape_c2`: they have the same number of elements.
    - `dynamic_reshape_c3`: `output_shape` has one entry a dimension of the result.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, HLO_Sizes:$output_shape);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = "operands attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}
def Stablehlo_DynamicIotaOp : HLO_Op<"dynamic_iota", [Pure]> {
  let summary = "iota of a shape that run-time values say";
  let description = [{
    - `dynamic_iota_c1`: `iota_dimension` is a dimension of the result.
    - `dynamic_iota_c2`: `output_shape` has one entry a dimension of the result.
  }];
  let arguments = (ins HLO_Sizes:$output_shape, I64Attr:$iota_dimension);
  let results = (outs RankedTensorOf<[HLO_Int, HLO_Float, HLO_Complex]>:$output);
  let assemblyFormat = [{
    $output_shape `,` `dim` `=` $iota_dimension attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}
def Stablehlo_DynamicPadOp : HLO_Op<"dynamic_pad", [Pure]> {
  let summary = "pad by what run-time values say";
  let description = [{
    - `dynamic_pad_c1`: all element types are equal; the padding value is a scalar.
    - `dynamic_pad_c2`: low, high and interior have one entry a dimension.
    - `dynamic_pad_c4`: the result has the operand's rank.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, HLO_AnyTensor:$padding_value,
                       HLO_Sizes:$edge_padding_low, HLO_Sizes:$edge_padding_high,
                       HLO_Sizes:$interior_padding);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = "operands attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}
def Stablehlo_RealDynamicSliceOp : HLO_Op<"real_dynamic_slice", [Pure]> {
  let summary = "slice whose starts, limits and strides run-time values say";
  let description = [{
    - `real_dynamic_slice_c1`: operand and result have one element type and rank.
    - `real_dynamic_slice_c2`: starts, limits and strides have one entry a dimension.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, HLO_Sizes:$start_indices, HLO_Sizes:$limit_indices,
                       HLO_Sizes:$strides);
  let results = (outs HLO_AnyTensor:$result);
  let assemblyFormat = "operands attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}
def Stablehlo_DynamicGatherOp : HLO_Op<"dynamic_gather", [Pure]> {
  let summary = "gather of slices whose sizes run-time values say";
  let description = [{
    - `dynamic_gather_c1`: `slice_sizes` has one entry a dimension of the operand.
    - `dynamic_gather_c2`: operand and result have one element type.

    The other constraints of `gather` are checked where the sizes are known.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, HLO_IntTensor:$start_indices,
                       HLO_Sizes:$slice_sizes, Stablehlo_GatherDimensionNumbers:$dimension_numbers,
                       HLO_FlagAttr:$indices_are_sorted);
  let results = (outs HLO_AnyTensor:$result);
  let hasVerifier = 1;
}

// --- Tuples, tokens, barriers -----------------------------------------------
def Stablehlo_TupleOp : HLO_Op<"tuple", [Pure]> {
  let summary = "values as one";
  let description = [{
    `tuple_c1`: the result is the tuple of the operands' types.
  }];
  let arguments = (ins Variadic<HLO_TensorTokenOrTuple>:$val);
  let results = (outs AnyTuple:$result);
  let assemblyFormat = "$val attr-dict `:` custom<TupleOpType>(type($val), type($result))";
  let hasVerifier = 1;
}
def Stablehlo_GetTupleElementOp : HLO_Op<"get_tuple_element", [Pure]> {
  let summary = "one value of a tuple";
  let description = [{
    - `get_tuple_element_c1`: the tuple has an element `index`.
    - `get_tuple_element_c2`: the result has that element's type.
  }];
  let arguments = (ins AnyTuple:$operand, I32Attr:$index);
  let results = (outs HLO_TensorTokenOrTuple:$result);
  let assemblyFormat = [{
    $operand `[` $index `]` attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
  let hasFolder = 1;
}
def Stablehlo_OptimizationBarrierOp : HLO_Op<"optimization_barrier", [Pure]> {
  let summary = "its operands; computations do not move across";
  let description = [{
    `optimization_barrier_c1`: results have the operands' types.
  }];
  let arguments = (ins Variadic<HLO_TensorOrToken>:$operand);
  let results = (outs Variadic<HLO_TensorOrToken>:$result);
  let assemblyFormat = [{
    attr-dict ($operand^ `:` custom<PairwiseOpType>(type($operand), type($result))):(`(` `)`)?
  }];
  let hasVerifier = 1;
}
def Stablehlo_CreateTokenOp : HLO_Op<"create_token", [Pure]> {
  let summary = "a token that waits for nothing";
  let results = (outs HLO_Token:$output);
  let assemblyFormat = "attr-dict `:` type(results)";
}
def Stablehlo_AfterAllOp : HLO_Op<"after_all", [Pure]> {
  let summary = "a token that waits for others";
  let arguments = (ins Variadic<HLO_Token>:$inputs);
  let results = (outs HLO_Token:$result);
  let assemblyFormat = [{
    $inputs attr-dict `:` custom<VariadicSameOperandsAndResultType>(ref($inputs), type($inputs), type($result))
  }];
}

#endif // ALPA_DIALECTS_STABLEHLO_STABLEHLOSHAPES
