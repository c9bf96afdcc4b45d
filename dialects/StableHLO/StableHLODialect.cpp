//===- StableHLODialect.cpp - what the dialect registers ------------------===//

#include "dialects/Common/UnknownOps.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/Interfaces/FoldInterfaces.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace mlir::stablehlo;

#include "dialects/StableHLO/StableHLODialect.cpp.inc"
#define GET_TYPEDEF_CLASSES
#include "dialects/StableHLO/StableHLOTypes.cpp.inc"

void StablehloDialect::registerTypes() {
  addTypes<
#define GET_TYPEDEF_LIST
#include "dialects/StableHLO/StableHLOTypes.cpp.inc"
      >();
}

void StablehloDialect::registerOps() { registerStablehloDialectOperations(this); }

namespace {

/// Constants stay in the region that uses them: reducers and comparisons may not
/// use values from outside.
struct StablehloFoldInterface : DialectFoldInterface {
  using DialectFoldInterface::DialectFoldInterface;
  bool shouldMaterializeInto(Region *) const final { return true; }
};

} // namespace

/// Why an op of the specification is not of the set, and what to do instead.
static StringRef reasonOf(StringRef name) {
  return llvm::StringSwitch<StringRef>(name)
      .Cases({"uniform_quantize", "uniform_dequantize"},
             "makes or reads quantized types, which are not supported; write the program in "
             "integers and scales, as StableHLO's pass stablehlo-legalize-quant-to-math does")
      .Cases({"dynamic_conv", "set_dimension_size"},
             "has sizes that are known at run time only; write the step for arrays of fixed "
             "shapes")
      .Cases({"send", "recv", "infeed", "outfeed"},
             "exchanges data with another program while it runs; pass the data as an argument "
             "or a result of the step")
      .Cases({"broadcast", "cross-replica-sum", "dot", "einsum"},
             "is an old form; StableHLO's pass stablehlo-legalize-deprecated-ops writes it anew")
      .Cases({"torch_index_select", "unary_einsum"},
             "is an old form; StableHLO's pass stablehlo-legalize-deprecated-ops writes it anew")
      .Cases({"batch_norm_training", "batch_norm_inference", "batch_norm_grad"},
             "is written in other ops by JAX; write the normalization out")
      .Default("");
}

std::optional<Dialect::ParseOpHook> StablehloDialect::getParseOperationHook(StringRef) const {
  return alpa::refuseUnknownOps();
}

void StablehloDialect::initialize() {
  registerAttributes();
  registerTypes();
  registerOps();
  addInterfaces<alpa::InlineAnything, StablehloFoldInterface>();
  alpa::explainUnknownOps(*this, reasonOf);
}

Operation *StablehloDialect::materializeConstant(OpBuilder &builder, Attribute value, Type type,
                                                 Location loc) {
  auto elements = dyn_cast<ElementsAttr>(value);
  if (!elements || elements.getType() != type)
    return nullptr;
  return ConstantOp::create(builder, loc, type, elements);
}
