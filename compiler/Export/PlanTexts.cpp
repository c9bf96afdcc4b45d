//===- PlanTexts.cpp - MLIR attributes and types as JSON ------------------===//

#include "compiler/Export/PlanTexts.h"
#include "compiler/Nesting.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace alpa;

std::string alpa::numpyName(Type element) {
  if (auto complex = dyn_cast<ComplexType>(element)) {
    unsigned width = complex.getElementType().getIntOrFloatBitWidth();
    return "complex" + std::to_string(2 * width);
  }
  if (auto integer = dyn_cast<IntegerType>(element)) {
    if (integer.getWidth() == 1)
      return "bool";
    return (integer.isUnsigned() ? "uint" : "int") + std::to_string(integer.getWidth());
  }
  if (element.isBF16())
    return "bfloat16";
  if (isa<Float16Type, Float32Type, Float64Type>(element))
    return "float" + std::to_string(element.getIntOrFloatBitWidth());
  // f8E4M3FN is float8_e4m3fn.
  std::string text;
  llvm::raw_string_ostream(text) << element;
  size_t exponent = text.find('E');
  if (!isa<FloatType>(element) || exponent == std::string::npos)
    return "";
  return "float" + text.substr(1, exponent - 1) + "_" +
         StringRef(text).drop_front(exponent).lower();
}

llvm::json::Value alpa::toJson(Attribute attribute) {
  if (auto dictionary = dyn_cast<DictionaryAttr>(attribute)) {
    llvm::json::Object object;
    for (NamedAttribute item : dictionary)
      object[item.getName().getValue()] = toJson(item.getValue());
    return object;
  }
  if (auto array = dyn_cast<ArrayAttr>(attribute)) {
    llvm::json::Array items;
    for (Attribute item : array)
      items.push_back(toJson(item));
    return items;
  }
  if (auto array = dyn_cast<DenseI64ArrayAttr>(attribute))
    return shapeJson(array.asArrayRef());
  if (auto flag = dyn_cast<BoolAttr>(attribute))
    return flag.getValue();
  if (auto number = dyn_cast<IntegerAttr>(attribute))
    return number.getInt();
  if (auto number = dyn_cast<FloatAttr>(attribute))
    return number.getValueAsDouble();
  if (auto text = dyn_cast<StringAttr>(attribute))
    return text.getValue();
  std::string text;
  llvm::raw_string_ostream(text) << attribute;
  return text;
}

llvm::json::Value alpa::clusterJson(ModuleOp module) {
  Attribute cluster = module->getAttr("alpa.cluster");
  if (auto text = dyn_cast_or_null<StringAttr>(cluster)) {
    if (llvm::Error error = checkNesting(text.getValue(), "alpa.cluster"))
      llvm::consumeError(std::move(error));
    else if (llvm::Expected<llvm::json::Value> value = llvm::json::parse(text.getValue()))
      return *value;
    else
      llvm::consumeError(value.takeError());
  }
  if (isa_and_nonnull<DictionaryAttr>(cluster))
    return toJson(cluster);
  return llvm::json::Object();
}

llvm::json::Array alpa::shapeJson(ArrayRef<int64_t> shape) {
  llvm::json::Array sizes;
  for (int64_t size : shape)
    sizes.push_back(size);
  return sizes;
}

llvm::json::Array alpa::specJson(ShardingAttr sharding, MeshAttr mesh) {
  llvm::json::Array dims;
  for (ArrayRef<unsigned> axes : sharding.getSpec().dims) {
    llvm::json::Array dim;
    for (unsigned axis : axes)
      if (mesh.getShape()[axis] > 1)
        dim.push_back(axisNames[axis]);
    dims.push_back(std::move(dim));
  }
  return dims;
}

static DictionaryAttr withoutAlpa(DictionaryAttr attributes, MLIRContext *context) {
  SmallVector<NamedAttribute> kept;
  if (attributes)
    for (NamedAttribute attribute : attributes)
      if (!attribute.getName().strref().starts_with("alpa."))
        kept.push_back(attribute);
  return DictionaryAttr::get(context, kept);
}

std::string alpa::plainText(ModuleOp stage) {
  OwningOpRef<ModuleOp> copy = stage.clone();
  copy->walk([](Operation *op) {
    for (NamedAttribute attribute : llvm::to_vector(op->getDiscardableAttrs()))
      if (attribute.getName().strref().starts_with("alpa."))
        op->removeDiscardableAttr(attribute.getName());
    auto function = dyn_cast<func::FuncOp>(op);
    if (!function)
      return;
    SmallVector<DictionaryAttr> argAttrs, resultAttrs;
    for (unsigned i = 0; i < function.getNumArguments(); ++i)
      argAttrs.push_back(withoutAlpa(function.getArgAttrDict(i), op->getContext()));
    for (unsigned i = 0; i < function.getNumResults(); ++i)
      resultAttrs.push_back(withoutAlpa(function.getResultAttrDict(i), op->getContext()));
    function.setAllArgAttrs(argAttrs);
    function.setAllResultAttrs(resultAttrs);
  });
  std::string text;
  llvm::raw_string_ostream os(text);
  copy->print(os);
  os << "\n";
  return text;
}
