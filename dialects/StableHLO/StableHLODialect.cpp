//===- StableHLODialect.cpp - what the dialect registers ------------------===//

#include "dialects/Common/UnknownOps.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/Interfaces/FoldInterfaces.h"
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

std::optional<Dialect::ParseOpHook> StablehloDialect::getParseOperationHook(StringRef) const {
  return alpa::refuseUnknownOps();
}

void StablehloDialect::initialize() {
  registerAttributes();
  registerTypes();
  registerOps();
  addInterfaces<alpa::InlineAnything, StablehloFoldInterface>();
  alpa::explainUnknownOps(*this);
}

Operation *StablehloDialect::materializeConstant(OpBuilder &builder, Attribute value, Type type,
                                                 Location loc) {
  auto elements = dyn_cast<ElementsAttr>(value);
  if (!elements || elements.getType() != type)
    return nullptr;
  return ConstantOp::create(builder, loc, type, elements);
}
