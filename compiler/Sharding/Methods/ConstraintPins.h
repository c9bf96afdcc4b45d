//===- ConstraintPins.h - the program's sharding constraints -----*- C++ -*-===//
//
// A constraint names axes of the user's mesh. On a mesh of a stage it says in how many
// parts a dimension is split, on whichever axes have that product; an axis of the user's
// is the same axes of the mesh in all constraints where that is possible. What a mesh
// cannot do is dropped there, and the plan says so. docs/methods.md says more.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SHARDING_METHODS_CONSTRAINTPINS_H
#define ALPA_COMPILER_SHARDING_METHODS_CONSTRAINTPINS_H

#include "compiler/Sharding/Explain/Explain.h"
#include "compiler/Sharding/Problem/IntraOp.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

#include <map>
#include <string>
#include <vector>

namespace alpa::sharding {

/// The pins of a function whose module has `alpa.pin_axes` (docs/ir.md).
class ConstraintPins {
public:
  /// An argument of the function, or the result of an op that asks for a sharding.
  struct Pin {
    mlir::Value value;
    ShardingSpec wanted;   // In axes of the program's meshes.
    uint64_t open = 0;     // Dimensions that may be split further, as bits.
    bool isInBody = false; // Of a loop or branch.
  };
  /// What a mesh makes of a pin: a spec of it, or why there is none.
  struct Held {
    std::optional<ShardingSpec> spec;
    std::string dropped;
  };

  /// Empty for a function without pins.
  explicit ConstraintPins(mlir::func::FuncOp main);

  bool empty() const { return pins.empty(); }
  llvm::ArrayRef<Pin> getPins() const { return pins; }
  /// What each pin is on a mesh, in the order of getPins.
  std::vector<Held> hold(llvm::ArrayRef<int64_t> meshShape) const;
  /// How many of them a mesh holds.
  unsigned numHeld(llvm::ArrayRef<int64_t> meshShape) const;
  /// Adds the pins that the mesh can have; they come before what the filter allows.
  void restrict(PlanFilter &filter, llvm::ArrayRef<int64_t> meshShape) const;
  /// What decides `hold`, beside the attributes and the type of a pinned value.
  std::string keyOn(llvm::ArrayRef<int64_t> meshShape) const;
  /// A mesh that the same devices make, and the options of a stage on it without pins.
  struct FreeWay {
    cost::CostModel model;
    IntraOpOptions options;
  };
  /// Adds what became of those of a stage on a mesh, and what they cost: what `result` takes,
  /// less the least that the stage takes in one of the free ways.
  llvm::Error explain(Explanation &explanation, const StageView &stage,
                      const cost::CostModel &model, const IntraOpResult &result,
                      llvm::ArrayRef<FreeWay> ways) const;
  /// As JAX writes it, such as `P('data', None)`.
  std::string textOf(const Pin &pin) const;

private:
  using Axes = llvm::SmallVector<unsigned, 4>;
  /// For each axis of the program's meshes the axes of a mesh that it is; none if it has none.
  /// Groups of axes that split a dimension together and are none of a mesh's one by one may be
  /// so together. Different axes of one mesh are different axes.
  struct Binding {
    std::vector<Axes> axes;
    std::map<std::vector<unsigned>, Axes> groups;
  };

  void add(mlir::Value value, mlir::DictionaryAttr attributes, bool isInBody);
  Binding bind(llvm::ArrayRef<int64_t> meshShape) const;
  Held hold(const Pin &pin, const Binding &binding, llvm::ArrayRef<int64_t> meshShape) const;
  bool isApart(llvm::ArrayRef<unsigned> some, llvm::ArrayRef<unsigned> others) const;
  Axes axesOf(llvm::ArrayRef<unsigned> group, const Binding &binding) const;

  std::vector<std::pair<std::string, int64_t>> axes; // Names and sizes.
  std::vector<std::vector<bool>> apart;              // Whether two are different axes of a mesh.
  std::string allDropped;                            // Why; empty if they are not.
  std::vector<Pin> pins;
  std::vector<unsigned> kinds; // Pins that stand for all that want the same of the same shape.
};

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_METHODS_CONSTRAINTPINS_H
