//===- ExplainNames.cpp - what explanations call ops and values -----------===//

#include "compiler/Sharding/Explain/ExplainNames.h"

#include "dialects/Alpa/AlpaDialect.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"

using namespace alpa;
using namespace mlir;

const char *alpa::phaseName(OpPhase phase) {
  static constexpr llvm::StringLiteral names[] = {"forward", "barrier", "backward", "update"};
  return names[static_cast<unsigned>(phase)].data();
}

std::string alpa::whereIs(Value value, Operation *op) {
  if (auto argument = llvm::dyn_cast_or_null<BlockArgument>(value)) {
    auto function = llvm::dyn_cast<FunctionOpInterface>(argument.getOwner()->getParentOp());
    auto name = function
                    ? function.getArgAttrOfType<StringAttr>(argument.getArgNumber(), "alpa.name")
                    : StringAttr();
    return name ? name.getValue().str() : llvm::formatv("{0}", argument.getArgNumber()).str();
  }
  if (!op && value)
    op = value.getDefiningOp();
  std::string where;
  if (op)
    op->getLoc()->walk([&](Location location) {
      if (auto name = llvm::dyn_cast<NameLoc>(location)) {
        where = name.getName().str();
        return WalkResult::interrupt();
      }
      if (auto file = llvm::dyn_cast<FileLineColLoc>(location); file && where.empty())
        where = llvm::formatv("line {0}", file.getLine()).str();
      return WalkResult::advance();
    });
  return where;
}

std::string alpa::nameOf(Value value, Operation *op) {
  if (!op && value)
    op = value.getDefiningOp();
  return op ? op->getName().getStringRef().str() : "argument";
}

std::optional<int64_t> alpa::layerOf(Operation *op) {
  auto layer = op ? op->getAttrOfType<IntegerAttr>(attr::layer) : IntegerAttr();
  return layer ? std::optional(layer.getInt()) : std::nullopt;
}

std::optional<int64_t> alpa::layerOf(Value value) {
  if (Operation *op = value.getDefiningOp())
    return layerOf(op);
  std::optional<int64_t> first;
  for (Operation *user : value.getUsers())
    if (std::optional<int64_t> layer = layerOf(user); layer && (!first || *layer < *first))
      first = layer;
  return first;
}

std::string alpa::typeText(Type type) {
  std::string text;
  llvm::raw_string_ostream os(text);
  if (auto tensor = llvm::dyn_cast<RankedTensorType>(type)) {
    for (int64_t size : tensor.getShape())
      os << size << "x";
    type = tensor.getElementType();
  }
  os << type;
  return text;
}

std::string alpa::typesText(Operation *op) {
  auto list = [](TypeRange types) { return llvm::join(llvm::map_range(types, typeText), ", "); };
  return "(" + list(op->getOperandTypes()) + ") -> " + list(op->getResultTypes());
}

std::string alpa::argumentOf(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (op->getNumOperands() != 1 || op->getNumRegions() > 0)
      return "";
    value = op->getOperand(0);
  }
  return whereIs(value, nullptr);
}
