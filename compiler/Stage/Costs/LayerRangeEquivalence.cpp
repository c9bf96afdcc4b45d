//===- LayerRangeEquivalence.cpp - equal layer ranges ---------------------===//

#include "compiler/Stage/Costs/LayerRangeEquivalence.h"

#include "compiler/Import/DataFlow.h"
#include "compiler/Sharding/Problem/ProblemBuilder.h"
#include "dialects/Alpa/AlpaDialect.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Support/xxhash.h"

using namespace mlir;
using namespace alpa;
using namespace alpa::stage;

static uint64_t hashText(StringRef text) { return llvm::xxh3_64bits(text); }

static llvm::ArrayRef<uint8_t> bytesOf(llvm::ArrayRef<uint64_t> words) {
  return {reinterpret_cast<const uint8_t *>(words.data()), words.size() * sizeof(uint64_t)};
}

static uint64_t hashWords(llvm::ArrayRef<uint64_t> words) {
  return llvm::xxh3_64bits(bytesOf(words));
}

static LayerRangeKey keyOfWords(llvm::ArrayRef<uint64_t> words) {
  llvm::XXH128_hash_t hash = llvm::xxh3_128bits(bytesOf(words));
  return {hash.low64, hash.high64};
}

static uint8_t phaseBit(Operation *op) { return uint8_t(1u << unsigned(sharding::opPhaseOf(op))); }

llvm::SmallVector<Operation *>
stage::orderLayerRange(llvm::ArrayRef<llvm::SmallVector<Operation *>> opsOfLayer) {
  llvm::SmallVector<Operation *> ops, updates;
  for (const llvm::SmallVector<Operation *> &layer : opsOfLayer)
    for (Operation *op : layer)
      (sharding::opPhaseOf(op) == sharding::OpPhase::Update ? updates : ops).push_back(op);
  llvm::sort(ops, [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
  llvm::DenseSet<Operation *> left(updates.begin(), updates.end());
  for (Operation *last : updates) {
    // What it reads comes first.
    llvm::SmallVector<std::pair<Operation *, bool>> open{{last, false}};
    while (!open.empty()) {
      auto [op, isReady] = open.pop_back_val();
      if (!left.contains(op))
        continue;
      if (isReady) {
        left.erase(op);
        ops.push_back(op);
        continue;
      }
      open.push_back({op, true});
      llvm::SmallVector<mlir::Value> read = importer::getUsedValues(op);
      for (mlir::Value value : llvm::reverse(read))
        if (Operation *source = value.getDefiningOp(); source && left.contains(source))
          open.push_back({source, false});
    }
  }
  return ops;
}

/// Reads the layers of a step one after another.
class LayerRangeEquivalence::LayerReader {
public:
  LayerReader(LayerRangeEquivalence &classes, const DescribeValue &describe, Block *block)
      : classes(classes), describe(describe), block(block),
        main(dyn_cast<func::FuncOp>(block->getParentOp())) {
    Operation *end = block->getTerminator();
    for (OpOperand &result : end->getOpOperands())
      resultsOf[result.get()].push_back(result.getOperandNumber());
    if (main)
      for (BlockArgument arg : block->getArguments())
        if (auto carried = carriedBy(arg))
          carriers[*carried].push_back(arg);
  }

  void read(unsigned index, llvm::ArrayRef<Operation *> ops) {
    layer = index;
    words = &classes.layers[index].words;
    numbers.clear();
    ordered.clear();
    defined.clear();
    for (Operation *op : ops)
      defined.insert(op);
    for (Operation *op : ops) {
      phase = phaseBit(op);
      add(op);
    }
    for (size_t i = 0; i < ordered.size(); ++i)
      describeValue(ordered[i], i);
  }

  /// After all layers are read.
  void link() {
    for (mlir::Value value : all)
      if (auto arg = dyn_cast<BlockArgument>(value); arg && main)
        if (auto carried = carriedBy(arg)) {
          auto next = known.find(block->getTerminator()->getOperand(*carried));
          if (next != known.end())
            classes.values[known.lookup(value)].next = next->second;
        }
    for (auto [index, value] : llvm::enumerate(classes.values))
      count(value, all[index]);
    for (auto [index, value] : llvm::enumerate(classes.values)) {
      bool isLinked = value.touches.size() > 1;
      if (value.next >= 0)
        isLinked |= classes.values[value.next].touches != value.touches;
      if (isLinked)
        for (auto [i, touch] : llvm::enumerate(value.touches))
          classes.layers[touch].touches.push_back({unsigned(index), value.numbers[i], unsigned(i)});
    }
  }

private:
  void word(uint64_t number) { words->push_back(number); }

  std::optional<unsigned> carriedBy(BlockArgument arg) {
    auto carried = main.getArgAttrOfType<IntegerAttr>(arg.getArgNumber(), attr::carriedBy);
    if (!carried || carried.getInt() < 0 ||
        carried.getInt() >= int64_t(block->getTerminator()->getNumOperands()))
      return std::nullopt;
    return carried.getInt();
  }

  template <typename T> uint64_t contentOf(T attributeOrType) {
    auto [it, isNew] = contents.try_emplace(attributeOrType.getAsOpaquePointer());
    if (isNew) {
      text.clear();
      llvm::raw_string_ostream stream(text);
      attributeOrType.print(stream);
      it->second = hashText(text);
    }
    return it->second;
  }

  uint64_t attributesOf(Operation *op) {
    llvm::SmallVector<uint64_t> parts;
    for (NamedAttribute attribute : op->getAttrDictionary()) {
      StringRef name = attribute.getName();
      if (name == attr::eqn || name == attr::layer || name == attr::stage)
        continue;
      parts.push_back(contentOf(attribute.getName()));
      parts.push_back(contentOf(attribute.getValue()));
    }
    return hashWords(parts);
  }

  void add(Operation *op) {
    word(hashText(op->getName().getStringRef()));
    word(attributesOf(op));
    word(op->getNumOperands());
    for (mlir::Value value : op->getOperands()) {
      word(numberOf(value));
      if (value.getParentBlock() == block)
        classes.values[known.lookup(value)].readers.back() |= phase;
    }
    for (mlir::Value value : op->getResults())
      word(numberOf(value));
    for (Region &region : op->getRegions())
      for (Block &inner : region) {
        word(inner.getNumArguments());
        for (mlir::Value value : inner.getArguments())
          word(numberOf(value));
        for (Operation &nested : inner)
          add(&nested);
      }
  }

  /// Within the layer.
  size_t numberOf(mlir::Value value) {
    auto [it, isNew] = numbers.try_emplace(value, ordered.size());
    if (!isNew)
      return it->second;
    ordered.push_back(value);
    word(contentOf(value.getType()));
    if (value.getParentBlock() != block)
      return it->second;
    auto [place, isFirst] = known.try_emplace(value, classes.values.size());
    if (isFirst) {
      classes.values.emplace_back();
      all.push_back(value);
      classes.values.back().isArgument = isa<BlockArgument>(value);
    }
    LayerRangeEquivalence::Value &entry = classes.values[place->second];
    entry.touches.push_back(layer);
    entry.numbers.push_back(it->second);
    entry.readers.push_back(0);
    entry.keeps.push_back(false);
    if (Operation *source = value.getDefiningOp(); source && defined.contains(source))
      entry.definedBy = layer;
    return it->second;
  }

  void describeValue(mlir::Value value, size_t number) {
    if (describe) {
      extra.clear();
      describe(value, extra);
      word(hashWords(extra));
    }
    if (value.getParentBlock() != block)
      return;
    Operation *source = value.getDefiningOp();
    word(source ? defined.contains(source) : 2);
    if (source)
      word(phaseBit(source));
    // What is made of nothing is made anew where it is read.
    if (source && source->getNumOperands() == 0)
      word(hashWords({hashText(source->getName().getStringRef()), attributesOf(source)}));
    if (auto arg = dyn_cast<BlockArgument>(value); arg && main) {
      Attribute kind = main.getArgAttr(arg.getArgNumber(), attr::kind);
      word(kind ? contentOf(kind) : 0);
      word(isHostArgument(arg));
      // Links tell whether it is part of a range.
      std::optional<unsigned> carried = carriedBy(arg);
      word(carried.has_value());
      if (carried) {
        auto next = numbers.find(block->getTerminator()->getOperand(*carried));
        word(next == numbers.end() ? 0 : next->second + 1);
      }
    }
    auto results = resultsOf.find(value);
    word(results == resultsOf.end() ? 0 : results->second.size());
    if (results == resultsOf.end())
      return;
    for (unsigned result : results->second)
      for (BlockArgument arg : carriers.lookup(result)) {
        auto it = numbers.find(arg);
        word(it == numbers.end() ? 0 : it->second + 1);
      }
  }

  /// Which layers may hold the value as state or activation by themselves.
  void count(LayerRangeEquivalence::Value &value, mlir::Value ir) {
    uint8_t all = 0;
    for (uint8_t readers : value.readers)
      all |= readers;
    constexpr auto kUpdate = uint8_t(1u << unsigned(sharding::OpPhase::Update));
    bool below = false;
    for (auto [i, touch] : llvm::enumerate(value.touches)) {
      uint8_t phases = value.readers[i];
      bool keeps = value.isArgument;
      if (value.definedBy == touch) {
        uint8_t made = phaseBit(ir.getDefiningOp());
        keeps |= (all & kUpdate) != 0 || (phases & ~made) != 0;
      } else {
        keeps |= (phases & (phases - 1)) != 0;
      }
      // In one stage with its maker, what is offloaded is no layer's.
      if (below || isOffloaded(ir)) {
        classes.layers[touch].countedBelow.insert(ir);
        classes.layers[touch].counting =
            hashWords({classes.layers[touch].counting, value.numbers[i]});
      }
      below |= keeps;
      value.keeps[i] = keeps;
    }
  }

  LayerRangeEquivalence &classes;
  const DescribeValue &describe;
  Block *block;
  func::FuncOp main;
  unsigned layer = 0;
  uint8_t phase = 0;
  std::vector<uint64_t> *words = nullptr, extra;
  std::string text;
  llvm::DenseMap<mlir::Value, size_t> numbers; // In this layer.
  std::vector<mlir::Value> ordered;            // In this layer.
  llvm::DenseSet<Operation *> defined;         // By this layer.
  llvm::DenseMap<mlir::Value, unsigned> known;
  std::vector<mlir::Value> all; // As `known`.
  llvm::DenseMap<const void *, uint64_t> contents;
  llvm::DenseMap<mlir::Value, llvm::SmallVector<unsigned, 1>> resultsOf;
  llvm::DenseMap<unsigned, llvm::SmallVector<BlockArgument, 1>> carriers;
};

LayerRangeEquivalence::LayerRangeEquivalence(
    llvm::ArrayRef<llvm::SmallVector<Operation *>> opsOfLayer, const DescribeValue &describe,
    bool allDiffer)
    : layers(opsOfLayer.size()) {
  for (const llvm::SmallVector<Operation *> &ops : opsOfLayer)
    if (!ops.empty()) {
      LayerReader reader(*this, describe, ops.front()->getBlock());
      for (auto [layer, mine] : llvm::enumerate(opsOfLayer))
        reader.read(layer, mine);
      reader.link();
      break;
    }
  for (Layer &layer : layers) {
    LayerRangeKey key = keyOfWords(layer.words);
    layer.words.assign(key.begin(), key.end());
  }
  findClasses(allDiffer);
}

LayerRangeKey LayerRangeEquivalence::hashRange(unsigned lo, unsigned hi,
                                               std::vector<uint64_t> &words,
                                               std::vector<uint64_t> &below) const {
  words.clear();
  for (unsigned layer = lo; layer < hi; ++layer) {
    words.insert(words.end(), layers[layer].words.begin(), layers[layer].words.end());
    for (const Touch &touch : layers[layer].touches) {
      const Value &value = values[touch.value];
      unsigned index = touch.index;
      // Linked to the layer before that has it as well.
      bool isFirst = index == 0 || value.touches[index - 1] < lo;
      if (isFirst) {
        below[touch.value] = 0;
        for (unsigned i = 0; i < index; ++i)
          below[touch.value] |= value.readers[i];
        words.push_back(touch.number);
      } else {
        words.push_back(touch.number | (uint64_t(layer - value.touches[index - 1]) << 32));
        words.push_back(value.numbers[index - 1]);
      }
      bool isLast = index + 1 == value.touches.size() || value.touches[index + 1] >= hi;
      if (isLast) {
        uint64_t outside = below[touch.value];
        for (unsigned i = index + 1; i < value.touches.size(); ++i)
          outside |= value.readers[i];
        bool isInside = value.definedBy >= lo && value.definedBy < hi;
        words.push_back(outside | (uint64_t(isInside) << 8) | (1ull << 40));
      }
      if (value.next < 0)
        continue;
      const Value &next = values[value.next];
      auto it = llvm::lower_bound(next.touches, lo);
      bool isThere = it != next.touches.end() && *it < hi;
      words.push_back(isThere ? (2ull << 40) | (uint64_t(*it - lo) << 20) : 3ull << 40);
      if (isThere)
        words.push_back(next.numbers[it - next.touches.begin()]);
    }
  }
  return keyOfWords(words);
}

void LayerRangeEquivalence::findClasses(bool allDiffer) {
  unsigned n = numLayers();
  classes.assign(size_t(n) * (n + 1), 0);
  std::map<LayerRangeKey, unsigned> known;
  std::vector<uint64_t> words, below(values.size(), 0);
  for (unsigned lo = 0; lo < n; ++lo)
    for (unsigned hi = lo + 1; hi <= n; ++hi) {
      LayerRangeKey key = hashRange(lo, hi, words, below);
      if (allDiffer)
        key[0] = hashWords({key[0], lo, hi});
      auto [it, isNew] = known.try_emplace(key, keys.size());
      if (isNew) {
        keys.push_back(key);
        examples.push_back({lo, hi});
      }
      classes[lo * (n + 1) + hi] = it->second;
    }
}
