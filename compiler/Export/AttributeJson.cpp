//===- AttributeJson.cpp - MLIR attributes and types as JSON --------------===//

#include "compiler/Export/AttributeJson.h"
#include "compiler/ParserInput.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace alpa;
using namespace alpa::exporter;

std::string exporter::numpyName(Type element) {
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

void exporter::writeJson(llvm::json::OStream &json, Attribute attribute) {
  if (auto dictionary = dyn_cast<DictionaryAttr>(attribute)) {
    json.object([&] {
      for (NamedAttribute item : dictionary) {
        json.attributeBegin(item.getName().getValue());
        writeJson(json, item.getValue());
        json.attributeEnd();
      }
    });
  } else if (auto array = dyn_cast<ArrayAttr>(attribute)) {
    json.array([&] {
      for (Attribute item : array)
        writeJson(json, item);
    });
  } else if (auto array = dyn_cast<DenseI64ArrayAttr>(attribute)) {
    json.value(shapeJson(array.asArrayRef()));
  } else if (auto flag = dyn_cast<BoolAttr>(attribute)) {
    json.value(flag.getValue());
  } else if (auto number = dyn_cast<IntegerAttr>(attribute)) {
    json.value(number.getInt());
  } else if (auto number = dyn_cast<FloatAttr>(attribute)) {
    json.value(number.getValueAsDouble());
  } else if (auto text = dyn_cast<StringAttr>(attribute)) {
    json.value(text.getValue());
  } else {
    std::string printed;
    llvm::raw_string_ostream(printed) << attribute;
    json.value(printed);
  }
}

void exporter::writeCluster(llvm::json::OStream &json, ModuleOp module) {
  Attribute cluster = module->getAttr(attr::cluster);
  if (auto text = dyn_cast_or_null<StringAttr>(cluster)) {
    if (llvm::Error error = checkNesting(text.getValue(), attr::cluster))
      llvm::consumeError(std::move(error));
    else if (llvm::Expected<llvm::json::Value> value = llvm::json::parse(text.getValue()))
      return json.value(*value);
    else
      llvm::consumeError(value.takeError());
  }
  if (isa_and_nonnull<DictionaryAttr>(cluster))
    return writeJson(json, cluster);
  json.object([] {});
}

llvm::json::Array exporter::shapeJson(ArrayRef<int64_t> shape) {
  llvm::json::Array sizes;
  for (int64_t size : shape)
    sizes.push_back(size);
  return sizes;
}

llvm::json::Array exporter::specJson(ShardingAttr sharding, MeshAttr mesh) {
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

std::string exporter::tensorText(Type type, ShardingAttr sharding, MeshAttr mesh, bool isOnHost) {
  auto tensor = cast<RankedTensorType>(type);
  std::string text = numpyName(tensor.getElementType());
  llvm::raw_string_ostream os(text);
  os << "[";
  llvm::interleave(tensor.getShape(), os, ",");
  os << "][";
  llvm::interleave(
      sharding.getSpec().dims, os,
      [&](ArrayRef<unsigned> axes) {
        auto splits = [&](unsigned axis) { return mesh.getShape()[axis] > 1; };
        auto names = llvm::map_range(llvm::make_filter_range(axes, splits),
                                     [](unsigned axis) { return axisNames[axis]; });
        if (names.empty())
          os << "R";
        llvm::interleave(names, os, "*");
      },
      ",");
  os << "]" << (isOnHost ? "@host" : "");
  return text;
}

static DictionaryAttr withoutAlpa(DictionaryAttr attributes, MLIRContext *context) {
  SmallVector<NamedAttribute> kept;
  if (attributes)
    for (NamedAttribute attribute : attributes)
      if (!attribute.getName().strref().starts_with("alpa."))
        kept.push_back(attribute);
  return DictionaryAttr::get(context, kept);
}

/// Texts of many Booleans differ between versions of MLIR (compiler/ParserInput.h); those of bytes
/// do not.
static void writeBooleansAsBytes(Operation *op) {
  constexpr int64_t kFew = 32; // That are written one by one.
  auto values = op->getName().getStringRef() == "stablehlo.constant"
                    ? op->getAttrOfType<DenseIntElementsAttr>("value")
                    : DenseIntElementsAttr();
  if (!values || values.isSplat() || !values.getElementType().isInteger(1) ||
      values.getNumElements() <= kFew)
    return;
  OpBuilder builder(op->getContext());
  Type type = op->getResult(0).getType();
  SmallVector<int8_t> bytes(values.getValues<bool>());
  auto wide = cast<RankedTensorType>(type).clone(builder.getI8Type());
  op->setAttr("value", DenseElementsAttr::get(wide, ArrayRef<int8_t>(bytes)));
  op->getResult(0).setType(wide);
  builder.setInsertionPointAfter(op);
  Operation *converted =
      builder.create(OperationState(op->getLoc(), "stablehlo.convert", op->getResult(0), type));
  op->getResult(0).replaceAllUsesExcept(converted->getResult(0), converted);
}

std::string exporter::plainText(ModuleOp stage) {
  OwningOpRef<ModuleOp> copy = stage.clone();
  copy->walk([](Operation *op) {
    writeBooleansAsBytes(op);
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
