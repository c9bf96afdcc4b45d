//===- StableHLORegions.td - ops that hold computations -------------------===//

#ifndef ALPA_DIALECTS_STABLEHLO_STABLEHLOREGIONS
#define ALPA_DIALECTS_STABLEHLO_STABLEHLOREGIONS

include "dialects/StableHLO/StableHLOBase.td"

def Stablehlo_ReturnOp : HLO_Op<"return", [Pure, ReturnLike, Terminator]> {
  let summary = "ends a region of an op of this dialect";
  let arguments = (ins Variadic<HLO_TensorTokenOrTuple>:$results);
  let assemblyFormat = "$results attr-dict (`:` type($results)^)?";
}

// --- Control flow -----------------------------------------------------------
def Stablehlo_CaseOp : HLO_RegionOp<"case", [SingleBlock]> {
  let summary = "one of several computations, by an index";
  let description = [{
    - `case_c1`: there is a branch.
    - `case_c2`: branches have no arguments.
    - `case_c3`: every branch returns the types of the results.
    - `case_c4`: the index is a scalar of i32.
  }];
  let arguments = (ins RankedTensorOf<[I32]>:$index);
  let regions = (region VariadicRegion<SizedRegion<1>>:$branches);
  let results = (outs Variadic<HLO_TensorTokenOrTuple>);
  let hasVerifier = 1;
}
def Stablehlo_IfOp : HLO_RegionOp<"if", [SingleBlock]> {
  let summary = "one of two computations, by a predicate; import makes a case of it";
  let description = [{
    - `if_c1`: branches have no arguments.
    - `if_c2`, `if_c3`: both return the types of the results.
    - `if_c4`: the predicate is a scalar of i1.
  }];
  let arguments = (ins RankedTensorOf<[I1]>:$pred);
  let regions = (region SizedRegion<1>:$true_branch, SizedRegion<1>:$false_branch);
  let results = (outs Variadic<HLO_TensorTokenOrTuple>);
  let hasVerifier = 1;
}
def Stablehlo_WhileOp : HLO_RegionOp<"while", [
    SingleBlock, DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmBlockArgumentNames"]>]> {
  let summary = "repeats a computation while a condition holds";
  let description = [{
    - `while_c1`: `cond` takes the operands' types and returns a scalar of i1.
    - `while_c2`: `body` takes and returns the operands' types.
    - `while_c3`: results have the operands' types.
  }];
  let arguments = (ins Variadic<HLO_TensorTokenOrTuple>:$operand);
  let regions = (region SizedRegion<1>:$cond, SizedRegion<1>:$body);
  let results = (outs Variadic<HLO_TensorTokenOrTuple>);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}

def Stablehlo_MapOp : HLO_RegionOp<"map", [SingleBlock, SameOperandsAndResultShape]> {
  let summary = "a computation of scalars for every element; import writes it over arrays";
  let description = [{
    - `map_c1`: inputs and result have one shape.
    - `map_c2`: there is an input.
    - `map_c3`: `dimensions` are all dimensions, in order.
    - `map_c4`: the computation takes a scalar of each input and returns one of the
      result's element type.
  }];
  let arguments = (ins Variadic<HLO_AnyTensor>:$inputs, DenseI64ArrayAttr:$dimensions);
  let regions = (region SizedRegion<1>:$computation);
  let results = (outs HLO_AnyTensor:$result);
  let hasVerifier = 1;
}

// --- Reductions -------------------------------------------------------------
def Stablehlo_ReduceOp : HLO_RegionOp<"reduce", [SameVariadicOperandSize, SingleBlock]> {
  let summary = "combines all elements along dimensions";
  let description = [{
    - `reduce_c1`: inputs have one shape.
    - `reduce_c2`: initial values are scalars of the inputs' element types.
    - `reduce_c3`: there is an input, and one result for each.
    - `reduce_c4`: reduced dimensions exist.
    - `reduce_c5`: none is named twice.
    - `reduce_c6`: the body combines 2N scalars to N of the results' element types.
    - `reduce_c7`: results have the inputs' shape without the reduced dimensions.
  }];
  let arguments = (ins Variadic<HLO_AnyTensor>:$inputs, Variadic<HLO_AnyTensor>:$init_values,
                       DenseI64ArrayAttr:$dimensions);
  let regions = (region SizedRegion<1>:$body);
  let results = (outs Variadic<HLO_AnyTensor>);
  let hasCustomAssemblyFormat = 1;
  let hasVerifier = 1;
}
def Stablehlo_ReduceWindowOp : HLO_RegionOp<"reduce_window", [SameVariadicOperandSize, SingleBlock]> {
  let summary = "combines the elements of a window that slides";
  let description = [{
    - `reduce_window_c1`: there is an input, and one result for each.
    - `reduce_window_c2`: inputs have one shape.
    - `reduce_window_c3`: initial values are scalars of the inputs' element types.
    - `reduce_window_c4`: window attributes have one entry a dimension.
    - `reduce_window_c5`: window sizes, strides and dilations are positive.
    - `reduce_window_c13`: the body combines 2N scalars to N.
    - `reduce_window_c15`: the results' shape follows from the window.
  }];
  let arguments = (ins Variadic<HLO_AnyTensor>:$inputs, Variadic<HLO_AnyTensor>:$init_values,
                       DenseI64ArrayAttr:$window_dimensions,
                       OptionalAttr<DenseI64ArrayAttr>:$window_strides,
                       OptionalAttr<DenseI64ArrayAttr>:$base_dilations,
                       OptionalAttr<DenseI64ArrayAttr>:$window_dilations,
                       OptionalAttr<I64ElementsAttr>:$padding);
  let regions = (region SizedRegion<1>:$body);
  let results = (outs Variadic<HLO_AnyTensor>);
  let hasVerifier = 1;
}
def Stablehlo_ScatterOp : HLO_RegionOp<"scatter", [SameVariadicOperandSize, SingleBlock]> {
  let summary = "combines slices of updates into places that indices say";
  let description = [{
    - `scatter_c1`: inputs have one shape.
    - `scatter_c2`: window, inserted and batching dimensions make up the inputs' rank.
    - `scatter_c3`: updates have one shape.
    - `scatter_c4`: it is that of the batches and the windows, which fit the inputs.
    - `scatter_c5`: there is an input, and an update and a result for each.
    - `scatter_c6`: updates can be combined in the inputs' element types.
    - `scatter_c7`, `scatter_c8`: `update_window_dims` are in order, each once, and of
      the updates.
    - `scatter_c9`: no dimension is inserted or batching twice.
    - `scatter_c10`, `scatter_c11`: `inserted_window_dims` are in order, and of the inputs.
    - `scatter_c12`, `scatter_c13`: `input_batching_dims` are in order, and of the inputs.
    - `scatter_c14`, `scatter_c15`: `scatter_indices_batching_dims` are of the indices,
      each once.
    - `scatter_c16`: `index_vector_dim` is none of them.
    - `scatter_c17`, `scatter_c18`: batching dimensions pair up, of one size.
    - `scatter_c19`: `scatter_dims_to_operand_dims` has one entry an element of
      an index vector.
    - `scatter_c20`, `scatter_c21`: it holds dimensions of the inputs that are not
      batching, each once.
    - `scatter_c22`: `index_vector_dim` is a dimension of the indices, or their rank.
    - `scatter_c23`: the body combines 2N scalars to N.
    - `scatter_c24`: results have the inputs' shapes.
  }];
  let arguments = (ins Variadic<HLO_AnyTensor>:$inputs, RankedTensorOf<[HLO_Int]>:$scatter_indices,
                       Variadic<HLO_AnyTensor>:$updates,
                       Stablehlo_ScatterDimensionNumbers:$scatter_dimension_numbers,
                       HLO_FlagAttr:$indices_are_sorted, HLO_FlagAttr:$unique_indices);
  let regions = (region SizedRegion<1>:$update_computation);
  let results = (outs Variadic<HLO_AnyTensor>);
  let hasVerifier = 1;
}
def Stablehlo_SelectAndScatterOp : HLO_RegionOp<"select_and_scatter", [SingleBlock]> {
  let summary = "puts sources where a window selects (gradient of pooling)";
  let description = [{
    - `select_and_scatter_c1`: operand and source have one element type.
    - `select_and_scatter_c2`: the source's shape follows from the window.
    - `select_and_scatter_c3`: the initial value is a scalar of the operand's
      element type.
    - `select_and_scatter_c4`: window attributes have one entry a dimension.
    - `select_and_scatter_c5`: window sizes are positive.
    - `select_and_scatter_c9`: `select` takes two scalars and returns a scalar of i1.
    - `select_and_scatter_c10`: `scatter` combines two scalars to one.
    - `select_and_scatter_c11`: the result has the operand's shape.
  }];
  let arguments = (ins HLO_AnyTensor:$operand, HLO_AnyTensor:$source, HLO_AnyTensor:$init_value,
                       OptionalAttr<DenseI64ArrayAttr>:$window_dimensions,
                       OptionalAttr<DenseI64ArrayAttr>:$window_strides,
                       OptionalAttr<I64ElementsAttr>:$padding);
  let regions = (region SizedRegion<1>:$select, SizedRegion<1>:$scatter);
  let results = (outs HLO_AnyTensor:$result);
  let hasVerifier = 1;
}
def Stablehlo_SortOp : HLO_RegionOp<"sort", [SameOperandsAndResultShape, SingleBlock]> {
  let summary = "sorts slices of tensors together, by a comparison";
  let description = [{
    - `sort_c1`: there is an input.
    - `sort_c2`: results have the inputs' types.
    - `sort_c3`: all shapes are equal.
    - `sort_c4`: `dimension` exists (negative ones count from the end).
    - `sort_c5`: the comparison takes two scalars of each input and returns a
      scalar of i1.
  }];
  let arguments = (ins Variadic<HLO_AnyTensor>:$inputs,
                       DefaultValuedOptionalAttr<I64Attr, "-1">:$dimension,
                       HLO_FlagAttr:$is_stable);
  let regions = (region SizedRegion<1>:$comparator);
  let results = (outs Variadic<HLO_AnyTensor>);
  let hasVerifier = 1;
}

#endif // ALPA_DIALECTS_STABLEHLO_STABLEHLOREGIONS
