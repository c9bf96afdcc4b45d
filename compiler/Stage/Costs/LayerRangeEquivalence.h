//===- LayerRangeEquivalence.h - equal layer ranges --------------*- C++ -*-===//
//
// Layer ranges with equal keys pose the same intra-operator problem: equal ops
// with equal attributes, types and phases, connected alike, that read the same
// kinds of values from outside and whose results are used outside in the same
// phases. Each layer is hashed once, with what it reads numbered within the layer;
// values that several layers touch link the layers of a range by their distance.
// Keys are made of names and printed attributes only, so that they mean the same
// in another process.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_STAGE_COSTS_LAYERRANGEEQUIVALENCE_H
#define ALPA_COMPILER_STAGE_COSTS_LAYERRANGEEQUIVALENCE_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"

#include <array>
#include <functional>
#include <map>
#include <vector>

namespace alpa::stage {

using LayerRangeKey = std::array<uint64_t, 2>;

/// What else tells values apart, such as what a method may look at; null for nothing.
using DescribeValue = std::function<void(mlir::Value, std::vector<uint64_t> &)>;

/// The ops of a layer range in an order that ranges of one class have in common, every
/// op after those whose results it reads: forward and backward in program order, the
/// update layer by layer. (Programs update weights in the order of their names.)
llvm::SmallVector<mlir::Operation *>
orderLayerRange(llvm::ArrayRef<llvm::SmallVector<mlir::Operation *>> opsOfLayer);

/// Parts the layer ranges of a step into classes of equal keys.
class LayerRangeEquivalence {
public:
  /// With `allDiffer` no two ranges are alike.
  LayerRangeEquivalence(llvm::ArrayRef<llvm::SmallVector<mlir::Operation *>> opsOfLayer,
                        const DescribeValue &describe = nullptr, bool allDiffer = false);

  unsigned numLayers() const { return layers.size(); }
  unsigned numClasses() const { return keys.size(); }
  /// Layers [lo, hi).
  unsigned classOf(unsigned lo, unsigned hi) const { return classes[lo * (numLayers() + 1) + hi]; }
  const LayerRangeKey &keyOf(unsigned rangeClass) const { return keys[rangeClass]; }
  /// Some range of the class.
  std::pair<unsigned, unsigned> exampleOf(unsigned rangeClass) const {
    return examples[rangeClass];
  }
  /// Values whose state or activations a lower layer may hold as well: to be counted
  /// there alone when bytes of layers are added up.
  const llvm::DenseSet<mlir::Value> &countedBelow(unsigned layer) const {
    return layers[layer].countedBelow;
  }
  /// Layers with equal values here count the same.
  uint64_t countingOf(unsigned layer) const { return layers[layer].counting; }

private:
  struct Value {
    std::vector<unsigned> touches; // Layers, rising.
    std::vector<unsigned> numbers; // In each of them.
    std::vector<uint8_t> readers;  // Phases of the readers in each of them, as bits.
    std::vector<bool> keeps;       // Whether the layer may hold it from phase to phase.
    unsigned definedBy = ~0u;      // The layer, if one does.
    bool isArgument = false;
    int next = -1; // The value that the next step finds in this argument.
  };
  struct Touch {
    unsigned value;         // Only of values that several layers touch, or linked to such.
    unsigned number, index; // The layer is the value's touch of that index.
  };
  struct Layer {
    std::vector<uint64_t> words;
    std::vector<Touch> touches;
    llvm::DenseSet<mlir::Value> countedBelow;
    uint64_t counting = 0;
  };

  class LayerReader;
  void findClasses(bool allDiffer);
  LayerRangeKey hashRange(unsigned lo, unsigned hi, std::vector<uint64_t> &words,
                          std::vector<uint64_t> &below) const;

  std::vector<Value> values;
  std::vector<Layer> layers;
  std::vector<unsigned> classes;
  std::vector<LayerRangeKey> keys;
  std::vector<std::pair<unsigned, unsigned>> examples;
};

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_COSTS_LAYERRANGEEQUIVALENCE_H
