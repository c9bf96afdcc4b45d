//===- StageShape.cpp - which stages are the same problem -----------------===//

#include "compiler/Stage/Layers/StageShape.h"

#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace alpa;
using namespace alpa::stage;

namespace {

class ShapeBuilder {
public:
  explicit ShapeBuilder(llvm::ArrayRef<Operation *> ops) {
    shape.ops.assign(ops.begin(), ops.end());
    inStage.insert(ops.begin(), ops.end());
  }

  StageShape build() {
    if (shape.ops.empty())
      return std::move(shape);
    block = shape.ops.front()->getBlock();
    for (Operation *op : shape.ops)
      add(op);
    // Only now is it known which values are inputs, and which results carry them.
    size_t count = shape.values.size();
    for (size_t i = 0; i < count; ++i)
      describeOutside(shape.values[i]);
    return std::move(shape);
  }

private:
  void word(const void *pointer) { shape.words.push_back(uintptr_t(pointer)); }
  void word(size_t number) { shape.words.push_back(number); }

  void add(Operation *op) {
    word(op->getName().getAsOpaquePointer());
    NamedAttrList attributes(op->getAttrDictionary());
    for (StringRef name : {attr::eqn, attr::layer, attr::stage})
      attributes.erase(name);
    word(attributes.getDictionary(op->getContext()).getAsOpaquePointer());
    word(op->getNumOperands());
    for (Value value : op->getOperands())
      word(numberOf(value));
    for (Value value : op->getResults())
      word(numberOf(value));
    if (op->getNumResults() > 1) // What nobody reads of what a call gives is not completed.
      for (Value value : op->getResults())
        word(value.use_empty());
    for (Region &region : op->getRegions())
      for (Block &inner : region) {
        word(inner.getNumArguments());
        for (Value value : inner.getArguments())
          word(numberOf(value));
        for (Operation &nested : inner)
          add(&nested);
      }
  }

  size_t numberOf(Value value) {
    auto [it, inserted] = numbers.try_emplace(value, shape.values.size());
    if (inserted) {
      shape.values.push_back(value);
      word(value.getType().getAsOpaquePointer());
    }
    return it->second;
  }

  static const void *phaseOf(Operation *op) {
    Attribute phase = op->getAttr(attr::phase);
    return phase ? phase.getAsOpaquePointer() : nullptr;
  }

  void describeOutside(Value value) {
    if (value.getParentBlock() != block)
      return;
    Operation *source = value.getDefiningOp();
    word(source && inStage.contains(source));
    if (source && !inStage.contains(source))
      word(phaseOf(source));
    auto main = dyn_cast<func::FuncOp>(block->getParentOp());
    if (auto arg = dyn_cast<BlockArgument>(value); arg && main)
      describeArgument(main, arg);
    // Phases of readers elsewhere, whatever their number and order.
    llvm::SmallVector<uintptr_t> readers;
    for (Operation *user : value.getUsers()) {
      Operation *top = block->findAncestorOpInBlock(*user);
      if (inStage.contains(top))
        continue;
      readers.push_back(uintptr_t(phaseOf(top)));
      if (top->hasTrait<OpTrait::IsTerminator>())
        readers.back() = 1;
    }
    llvm::sort(readers);
    readers.erase(llvm::unique(readers), readers.end());
    word(readers.size());
    shape.words.insert(shape.words.end(), readers.begin(), readers.end());
  }

  void describeArgument(func::FuncOp main, BlockArgument arg) {
    Attribute kind = main.getArgAttr(arg.getArgNumber(), attr::kind);
    word(kind ? kind.getAsOpaquePointer() : nullptr);
    auto carried = main.getArgAttrOfType<IntegerAttr>(arg.getArgNumber(), attr::carriedBy);
    if (!carried) {
      word(size_t(0));
      return;
    }
    // The value that the next step finds in this argument.
    Value next = block->getTerminator()->getOperand(carried.getInt());
    auto it = numbers.find(next);
    word(it == numbers.end() ? size_t(1) : it->second + 2);
  }

  StageShape shape;
  Block *block = nullptr;
  llvm::DenseSet<Operation *> inStage;
  llvm::DenseMap<Value, size_t> numbers;
};

} // namespace

StageShape stage::describeStage(llvm::ArrayRef<Operation *> ops) {
  return ShapeBuilder(ops).build();
}
