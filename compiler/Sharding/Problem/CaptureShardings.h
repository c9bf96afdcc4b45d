//===- CaptureShardings.h - what bodies use from outside, as attribute ------===//

#ifndef ALPA_COMPILER_SHARDING_PROBLEM_CAPTURESHARDINGS_H
#define ALPA_COMPILER_SHARDING_PROBLEM_CAPTURESHARDINGS_H

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Sharding/Problem/IntraOp.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "mlir/IR/Builders.h"

namespace alpa {

/// How the body of an op wants each of its rule's captures; `heldAs` gives the
/// sharding of a value. Null for ops without captures.
inline mlir::Attribute captureShardings(
    mlir::Operation *op,
    const llvm::DenseMap<std::pair<mlir::Operation *, unsigned>, ShardingSpec> &useSpecs,
    llvm::function_ref<mlir::Attribute(mlir::Value)> heldAs) {
  if (op->getNumRegions() == 0)
    return {};
  std::optional<ShardingRule> rule = getShardingRule(op);
  if (!rule || rule->captures.empty())
    return {};
  llvm::SmallVector<mlir::Attribute> wanted;
  unsigned number = op->getNumOperands();
  for (const auto &capture : rule->captures) {
    auto use = useSpecs.find({op, number++});
    wanted.push_back(use == useSpecs.end()
                         ? heldAs(capture.first)
                         : mlir::Attribute(ShardingAttr::get(op->getContext(), use->second)));
  }
  return mlir::Builder(op->getContext()).getArrayAttr(wanted);
}

} // namespace alpa

#endif // ALPA_COMPILER_SHARDING_PROBLEM_CAPTURESHARDINGS_H
