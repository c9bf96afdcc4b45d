//===- StableHLOAttrs.td - dimension numbers and other structures ---------===//

#ifndef ALPA_DIALECTS_STABLEHLO_STABLEHLOATTRS
#define ALPA_DIALECTS_STABLEHLO_STABLEHLOATTRS

include "mlir/IR/AttrTypeBase.td"
include "dialects/StableHLO/StableHLODialect.td"
include "dialects/StableHLO/StableHLOEnums.td"

class Stablehlo_Attr<string name, string attrMnemonic, string what>
    : AttrDef<Stablehlo_Dialect, name> {
  let mnemonic = attrMnemonic;
  let summary = what;
  let hasCustomAssemblyFormat = 1;
}

/// A list of dimension numbers.
class Stablehlo_Dims<string what = ""> : ArrayRefParameter<"int64_t", what>;

def Stablehlo_DotDimensionNumbers
    : Stablehlo_Attr<"DotDimensionNumbers", "dot", "dimensions that dot_general pairs"> {
  let parameters = (ins
    Stablehlo_Dims<>:$lhsBatchingDimensions,
    Stablehlo_Dims<>:$rhsBatchingDimensions,
    Stablehlo_Dims<>:$lhsContractingDimensions,
    Stablehlo_Dims<>:$rhsContractingDimensions);
}

def Stablehlo_DotAlgorithm
    : Stablehlo_Attr<"DotAlgorithm", "dot_algorithm", "how a contraction is computed"> {
  let parameters = (ins
    "Type":$lhsPrecisionType,
    "Type":$rhsPrecisionType,
    "Type":$accumulationType,
    "int64_t":$lhsComponentCount,
    "int64_t":$rhsComponentCount,
    "int64_t":$numPrimitiveOperations,
    "bool":$allowImpreciseAccumulation);
}

def Stablehlo_GatherDimensionNumbers
    : Stablehlo_Attr<"GatherDimensionNumbers", "gather", "roles of the dimensions of gather"> {
  let parameters = (ins
    Stablehlo_Dims<>:$offsetDims,
    Stablehlo_Dims<>:$collapsedSliceDims,
    Stablehlo_Dims<>:$operandBatchingDims,
    Stablehlo_Dims<>:$startIndicesBatchingDims,
    Stablehlo_Dims<>:$startIndexMap,
    "int64_t":$indexVectorDim);
}

def Stablehlo_ScatterDimensionNumbers
    : Stablehlo_Attr<"ScatterDimensionNumbers", "scatter", "roles of the dimensions of scatter"> {
  let parameters = (ins
    Stablehlo_Dims<>:$updateWindowDims,
    Stablehlo_Dims<>:$insertedWindowDims,
    Stablehlo_Dims<>:$inputBatchingDims,
    Stablehlo_Dims<>:$scatterIndicesBatchingDims,
    Stablehlo_Dims<>:$scatterDimsToOperandDims,
    "int64_t":$indexVectorDim);
}

def Stablehlo_ConvDimensionNumbers
    : Stablehlo_Attr<"ConvDimensionNumbers", "conv", "roles of the dimensions of convolution"> {
  let parameters = (ins
    "int64_t":$inputBatchDimension,
    "int64_t":$inputFeatureDimension,
    Stablehlo_Dims<>:$inputSpatialDimensions,
    "int64_t":$kernelInputFeatureDimension,
    "int64_t":$kernelOutputFeatureDimension,
    Stablehlo_Dims<>:$kernelSpatialDimensions,
    "int64_t":$outputBatchDimension,
    "int64_t":$outputFeatureDimension,
    Stablehlo_Dims<>:$outputSpatialDimensions);
}

def Stablehlo_ChannelHandle
    : Stablehlo_Attr<"ChannelHandle", "channel_handle", "pairs the ops of one exchange"> {
  let parameters = (ins "int64_t":$handle, "int64_t":$type);
}

def Stablehlo_OutputOperandAlias
    : Stablehlo_Attr<"OutputOperandAlias", "output_operand_alias",
                     "a result of custom_call that reuses an operand's buffer"> {
  let parameters = (ins
    Stablehlo_Dims<>:$outputTupleIndices,
    "int64_t":$operandIndex,
    Stablehlo_Dims<>:$operandTupleIndices);
}

def Stablehlo_ResultAccuracy
    : Stablehlo_Attr<"ResultAccuracy", "result_accuracy", "error allowed of a function"> {
  let parameters = (ins
    APFloatParameter<"absolute tolerance">:$atol,
    APFloatParameter<"relative tolerance">:$rtol,
    "int64_t":$ulps,
    "ResultAccuracyModeAttr":$mode);
  let description = [{
    - `result_accuracy_c1`: tolerances are not negative.
    - `result_accuracy_c2`: only mode TOLERANCE has tolerances.
  }];
  let genVerifyDecl = 1;
}

class Stablehlo_Type<string name, string typeMnemonic, string what>
    : TypeDef<Stablehlo_Dialect, name> {
  let mnemonic = typeMnemonic;
  let summary = what;
}

def Stablehlo_Token : Stablehlo_Type<"Token", "token", "orders ops with side effects">;

#endif // ALPA_DIALECTS_STABLEHLO_STABLEHLOATTRS
