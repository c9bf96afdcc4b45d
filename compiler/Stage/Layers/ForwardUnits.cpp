//===- ForwardUnits.cpp - the equations of the forward computation --------===//

#include "compiler/Stage/Layers/ForwardUnits.h"

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "dialects/Alpa/AlpaDialect.h"

#include "llvm/ADT/Hashing.h"
#include <map>

using namespace mlir;
using namespace alpa;

static int64_t eqnOf(Operation *op) { return op->getAttrOfType<IntegerAttr>(attr::eqn).getInt(); }

/// What the op does, whatever values it works on: where they come from differs
/// between the blocks of a model, and so may the values of constants.
static llvm::hash_code hashOp(Operation *op) {
  NamedAttrList attributes(op->getAttrDictionary());
  for (StringRef name : {attr::eqn, attr::layer, attr::stage})
    attributes.erase(name);
  if (op->getName().getStringRef() == "stablehlo.constant")
    attributes.erase("value");
  llvm::hash_code hash =
      llvm::hash_combine(op->getName().getAsOpaquePointer(),
                         attributes.getDictionary(op->getContext()).getAsOpaquePointer());
  for (Type type : op->getOperandTypes())
    hash = llvm::hash_combine(hash, type.getAsOpaquePointer());
  for (Type type : op->getResultTypes())
    hash = llvm::hash_combine(hash, type.getAsOpaquePointer());
  for (Region &region : op->getRegions())
    for (Block &block : region)
      for (Operation &nested : block)
        hash = llvm::hash_combine(hash, hashOp(&nested));
  return hash;
}

namespace {

class UnitCollector {
public:
  UnitCollector(func::FuncOp main, ArrayRef<Operation *> forward) : main(main) {
    for (Operation *op : forward)
      opsOfEqn[eqnOf(op)].push_back(op);
  }

  ForwardUnits run() {
    orderEqns();
    for (int64_t eqn : order)
      addUnit(eqn);
    return std::move(units);
  }

private:
  /// Equations whose ops only prepare state go to their first reader.
  void orderEqns() {
    BatchAnalysis batch(main);
    // A step without a batch has nothing but state.
    bool anyBatch = false;
    for (auto &[eqn, ops] : opsOfEqn)
      for (Operation *op : ops)
        for (Value result : op->getResults())
          anyBatch |= batch.dependsOnBatch(result);
    for (auto &[eqn, ops] : llvm::reverse(opsOfEqn)) {
      std::optional<int64_t> first;
      bool movable = anyBatch;
      for (Operation *op : ops)
        for (Value result : op->getResults()) {
          movable &= !batch.dependsOnBatch(result);
          for (Operation *user : getUsers(result)) {
            auto phase = user->getAttrOfType<StringAttr>(attr::phase);
            if (!phase || phase.getValue() != "forward" || eqnOf(user) == eqn)
              continue;
            // Readers come later, unless ops without a name were given an equation.
            auto at = place.find(eqnOf(user));
            int64_t reader = at == place.end() ? eqnOf(user) : at->second;
            first = std::min(first.value_or(reader), reader);
          }
        }
      place[eqn] = movable && first ? std::max(*first, eqn) : eqn;
    }
    for (auto &[eqn, ops] : opsOfEqn)
      order.push_back(eqn);
    llvm::sort(order, [&](int64_t a, int64_t b) {
      return std::pair(place[a], a) < std::pair(place[b], b);
    });
  }

  void addUnit(int64_t eqn) {
    unsigned number = units.ops.size();
    LayerProblem::Unit &unit = units.problem.units.emplace_back();
    units.eqns.push_back(eqn);
    units.places.push_back(place[eqn]);
    llvm::hash_code kind(0);
    for (Operation *op : opsOfEqn[eqn]) {
      unitOfOp[op] = number;
      unit.flops += getFlops(op);
      if (std::optional<ShardingRule> rule = getShardingRule(op); rule && rule->heavy)
        ++unit.heavy;
      kind = llvm::hash_combine(kind, hashOp(op));
      for (Value value : getUsedValues(op)) {
        auto source = unitOfOp.find(value.getDefiningOp());
        if (source == unitOfOp.end() || source->second >= number)
          continue;
        unsigned id = valueNumbers.try_emplace(value, valueNumbers.size()).first->second;
        unit.inputs.push_back({source->second, id, getTensorBytes(value.getType())});
      }
    }
    unit.kind = size_t(kind);
    units.ops.push_back(std::move(opsOfEqn[eqn]));
  }

  func::FuncOp main;
  std::map<int64_t, SmallVector<Operation *>> opsOfEqn;
  std::vector<int64_t> order;
  std::map<int64_t, int64_t> place; // By equation.
  llvm::DenseMap<Operation *, unsigned> unitOfOp;
  llvm::DenseMap<Value, unsigned> valueNumbers;
  ForwardUnits units;
};

} // namespace

ForwardUnits alpa::collectForwardUnits(func::FuncOp main, ArrayRef<Operation *> forward) {
  return UnitCollector(main, forward).run();
}
