//===- ConstraintPins.cpp - the program's sharding constraints ------------===//

#include "compiler/Sharding/Methods/ConstraintPins.h"

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Alpa/PackedSpec.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"

#include <array>
#include <map>
#include <set>
#include <tuple>

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;

//===----------------------------------------------------------------------===//
// What the program asks for
//===----------------------------------------------------------------------===//

ConstraintPins::ConstraintPins(func::FuncOp main) {
  auto table = main->getParentOp()->getAttrOfType<ArrayAttr>(attr::pinAxes);
  if (!table)
    return;
  if (auto why = main->getParentOp()->getAttrOfType<StringAttr>(attr::pinDropped))
    allDropped = why.getValue();
  std::vector<std::vector<unsigned>> meshes;
  for (Attribute mesh : table) { // As the dialect's verifier wants them.
    std::vector<unsigned> &own = meshes.emplace_back();
    for (Attribute entry : cast<ArrayAttr>(mesh)) {
      auto pair = cast<ArrayAttr>(entry);
      std::pair<std::string, int64_t> axis(cast<StringAttr>(pair[0]).getValue().str(),
                                           cast<IntegerAttr>(pair[1]).getInt());
      auto known = llvm::find(axes, axis);
      own.push_back(known - axes.begin());
      if (known == axes.end())
        axes.push_back(std::move(axis));
    }
  }
  apart.assign(axes.size(), std::vector<bool>(axes.size()));
  for (const std::vector<unsigned> &mesh : meshes)
    for (unsigned some : mesh)
      for (unsigned other : mesh)
        apart[some][other] = some != other;
  for (BlockArgument argument : main.getArguments())
    if (DictionaryAttr attributes = main.getArgAttrDict(argument.getArgNumber()))
      add(argument, attributes, /*isInBody=*/false);
  main.walk([&](Operation *op) {
    if (op->getNumResults() == 1 && op->hasAttr(attr::pin))
      add(op->getResult(0), op->getAttrDictionary(), op->getParentOp() != main);
  });
  std::set<std::tuple<std::string, uint64_t, std::vector<int64_t>>> known;
  for (auto [index, pin] : llvm::enumerate(pins)) {
    llvm::ArrayRef<int64_t> shape = analysis::shapeOf(pin.value);
    if (known.emplace(pin.wanted.str(), pin.open, shape.vec()).second)
      kinds.push_back(index);
  }
}

void ConstraintPins::add(Value value, DictionaryAttr attributes, bool isInBody) {
  auto wanted = attributes.getAs<ShardingAttr>(attr::pin);
  auto type = dyn_cast<RankedTensorType>(value.getType());
  if (!wanted || !type || wanted.getSpec().dims.size() != size_t(type.getRank()))
    return;
  for (llvm::ArrayRef<unsigned> dim : wanted.getSpec().dims)
    if (llvm::any_of(dim, [&](unsigned axis) { return axis >= axes.size(); }))
      return;
  Pin pin{value, wanted.getSpec(), 0, isInBody};
  if (auto open = attributes.getAs<DenseI64ArrayAttr>(attr::pinOpen))
    for (int64_t dim : open.asArrayRef())
      if (dim >= 0 && dim < 64)
        pin.open |= uint64_t(1) << dim;
  pins.push_back(std::move(pin));
}

std::string ConstraintPins::textOf(const Pin &pin) const {
  std::vector<std::string> dims;
  for (auto [index, dim] : llvm::enumerate(pin.wanted.dims)) {
    std::vector<std::string> names;
    for (unsigned axis : dim)
      names.push_back("'" + axes[axis].first + "'");
    std::string text = llvm::join(names, ", ");
    bool isOpen = index < 64 && ((pin.open >> index) & 1);
    dims.push_back(names.empty()      ? (isOpen ? "UNCONSTRAINED" : "None")
                   : names.size() > 1 ? "(" + text + ")"
                                      : text);
  }
  return "P(" + llvm::join(dims, ", ") + ")";
}

//===----------------------------------------------------------------------===//
// What a mesh makes of it
//===----------------------------------------------------------------------===//

/// Sets of mesh axes that split something and are not in `used`, the first axes first.
static llvm::SmallVector<llvm::SmallVector<unsigned, 4>>
setsOf(int64_t parts, llvm::ArrayRef<int64_t> meshShape, unsigned used) {
  llvm::SmallVector<llvm::SmallVector<unsigned, 4>> sets;
  for (unsigned bits = 1; bits < (1u << meshShape.size()); ++bits) {
    int64_t product = 1;
    llvm::SmallVector<unsigned, 4> set;
    bool isFree = (bits & used) == 0;
    for (unsigned axis = 0; axis < meshShape.size(); ++axis)
      if ((bits >> axis) & 1) {
        isFree &= meshShape[axis] > 1;
        product *= meshShape[axis];
        set.push_back(axis);
      }
    if (isFree && product == parts)
      sets.push_back(std::move(set));
  }
  return sets;
}

static unsigned bitsOf(llvm::ArrayRef<unsigned> set) {
  unsigned bits = 0;
  for (unsigned axis : set)
    bits |= 1u << axis;
  return bits;
}

/// The axes that split a dimension by a group of the program's axes; none if it has none.
ConstraintPins::Axes ConstraintPins::axesOf(llvm::ArrayRef<unsigned> group,
                                            const Binding &binding) const {
  Axes found;
  for (unsigned axis : group) {
    if (binding.axes[axis].empty()) {
      std::vector<unsigned> key = group.vec();
      llvm::sort(key);
      auto it = binding.groups.find(key);
      return it == binding.groups.end() ? Axes() : it->second;
    }
    llvm::append_range(found, binding.axes[axis]);
  }
  llvm::sort(found);
  return found;
}

/// JAX keeps the words of a random key together.
static bool splitsKey(Value value, const ShardingSpec &spec) {
  auto type = cast<RankedTensorType>(value.getType());
  return type.getRank() > 0 && type.getElementType().isUnsignedInteger(32) &&
         type.getShape().back() <= 4 && !spec.dims.back().empty();
}

static std::string textOfMesh(llvm::ArrayRef<int64_t> meshShape) {
  std::vector<std::string> sizes;
  for (int64_t size : meshShape)
    if (size > 1)
      sizes.push_back(std::to_string(size));
  return sizes.empty() ? "one device" : llvm::join(sizes, " x ");
}

ConstraintPins::Held ConstraintPins::hold(const Pin &pin, const Binding &binding,
                                          llvm::ArrayRef<int64_t> meshShape) const {
  llvm::ArrayRef<int64_t> shape = analysis::shapeOf(pin.value);
  ShardingSpec spec = ShardingSpec::replicated(shape.size());
  unsigned used = 0;
  for (auto [dim, group] : llvm::enumerate(pin.wanted.dims)) {
    if (group.empty())
      continue;
    std::vector<std::string> names;
    int64_t parts = 1;
    for (unsigned axis : group) {
      names.push_back("'" + axes[axis].first + "'");
      parts *= axes[axis].second;
    }
    Axes found = axesOf(group, binding);
    if (found.empty() || (bitsOf(found) & used))
      return {std::nullopt, llvm::formatv("a mesh of {0} has no axes left for the {1} parts of {2}",
                                          textOfMesh(meshShape), parts, llvm::join(names, ", "))};
    used |= bitsOf(found);
    if (shape[dim] % parts != 0 || shape[dim] == 0)
      return {std::nullopt, llvm::formatv("{0} parts do not divide dimension {1}, which is {2}",
                                          parts, dim, shape[dim])};
    spec.dims[dim].assign(found.begin(), found.end());
  }
  if (splitsKey(pin.value, spec))
    return {std::nullopt, "it would split random keys"};
  std::optional<PackedSpec> packed = PackedSpec::pack(spec);
  if (!packed || !llvm::is_contained(allSpecs(shape, meshShape), *packed))
    return {std::nullopt, "the mesh does not split it evenly"};
  return {std::move(spec), ""};
}

/// Whether some axes are none of the others, but of one mesh with them.
bool ConstraintPins::isApart(llvm::ArrayRef<unsigned> some, llvm::ArrayRef<unsigned> others) const {
  bool isAny = false;
  for (unsigned axis : some)
    for (unsigned other : others) {
      if (axis == other)
        return false;
      isAny |= apart[axis][other];
    }
  return isAny;
}

/// The first of those that hold the most kinds of pins.
ConstraintPins::Binding ConstraintPins::bind(llvm::ArrayRef<int64_t> meshShape) const {
  std::set<unsigned> singles;
  std::set<std::vector<unsigned>> together;
  for (unsigned kind : kinds)
    for (llvm::ArrayRef<unsigned> dim : pins[kind].wanted.dims) {
      singles.insert(dim.begin(), dim.end());
      std::vector<unsigned> group = dim.vec();
      llvm::sort(group);
      if (group.size() > 1)
        together.insert(std::move(group));
    }
  std::vector<unsigned> wanted(singles.begin(), singles.end());
  std::vector<std::vector<unsigned>> groups(together.begin(), together.end());
  Binding binding, best;
  binding.axes.resize(axes.size());
  int most = -1;
  auto count = [&] {
    int held = llvm::count_if(kinds, [&](unsigned kind) {
      return hold(pins[kind], binding, meshShape).spec.has_value();
    });
    if (held > most) {
      most = held;
      best = binding;
    }
  };
  auto bindGroup = [&](auto &&self, size_t index) -> void {
    if (index == groups.size())
      return count();
    const std::vector<unsigned> &group = groups[index];
    if (llvm::none_of(group, [&](unsigned axis) { return binding.axes[axis].empty(); }))
      return self(self, index + 1);
    unsigned used = 0;
    int64_t parts = 1;
    for (unsigned axis : group)
      parts *= axes[axis].second;
    for (unsigned axis = 0; axis < axes.size(); ++axis)
      if (isApart(group, axis))
        used |= bitsOf(binding.axes[axis]);
    for (const auto &[other, bound] : binding.groups)
      if (isApart(group, other))
        used |= bitsOf(bound);
    for (const Axes &set : setsOf(parts, meshShape, used)) {
      binding.groups[group] = set;
      self(self, index + 1);
    }
    binding.groups.erase(group);
    self(self, index + 1);
  };
  auto bindAxis = [&](auto &&self, size_t index) -> void {
    if (index == wanted.size())
      return bindGroup(bindGroup, 0);
    unsigned axis = wanted[index], used = 0;
    for (unsigned other = 0; other < axes.size(); ++other)
      if (apart[axis][other])
        used |= bitsOf(binding.axes[other]);
    for (const Axes &set : setsOf(axes[axis].second, meshShape, used)) {
      binding.axes[axis] = set;
      self(self, index + 1);
    }
    binding.axes[axis].clear();
    self(self, index + 1);
  };
  bindAxis(bindAxis, 0);
  return best;
}

std::vector<ConstraintPins::Held> ConstraintPins::hold(llvm::ArrayRef<int64_t> meshShape) const {
  if (!allDropped.empty())
    return std::vector<Held>(pins.size(), {std::nullopt, allDropped});
  Binding binding = bind(meshShape);
  std::vector<Held> held;
  for (const Pin &pin : pins)
    held.push_back(hold(pin, binding, meshShape));
  return held;
}

unsigned ConstraintPins::numHeld(llvm::ArrayRef<int64_t> meshShape) const {
  return llvm::count_if(hold(meshShape), [](const Held &held) { return held.spec.has_value(); });
}

std::string ConstraintPins::keyOn(llvm::ArrayRef<int64_t> meshShape) const {
  if (!allDropped.empty())
    return "dropped";
  std::string key;
  llvm::raw_string_ostream os(key);
  Binding binding = bind(meshShape);
  for (const auto &[axis, bound] : llvm::zip_equal(axes, binding.axes)) {
    os << axis.second << '=';
    llvm::interleave(bound, os, ".");
    os << ' ';
  }
  for (const auto &[group, bound] : binding.groups) {
    llvm::interleave(group, os, "+");
    os << '=';
    llvm::interleave(bound, os, ".");
    os << ' ';
  }
  return key;
}

/// Whether a value is held as wanted; open dimensions may be split further.
static bool agrees(const ShardingSpec &spec, const ShardingSpec &wanted, uint64_t open) {
  for (size_t dim = 0; dim < spec.dims.size(); ++dim) {
    llvm::ArrayRef<unsigned> have = spec.dims[dim], want = wanted.dims[dim];
    auto has = [&](unsigned axis) { return llvm::is_contained(have, axis); };
    bool isOpen = dim < 64 && ((open >> dim) & 1);
    if (isOpen ? !llvm::all_of(want, has) : have != want)
      return false;
  }
  return true;
}

void ConstraintPins::restrict(PlanFilter &filter, llvm::ArrayRef<int64_t> meshShape) const {
  struct OpenPin {
    ShardingSpec spec;
    uint64_t open;
  };
  auto open = std::make_shared<llvm::DenseMap<Value, OpenPin>>();
  for (auto [pin, held] : llvm::zip_equal(pins, hold(meshShape))) {
    if (!held.spec)
      continue;
    if (pin.open)
      (*open)[pin.value] = {std::move(*held.spec), pin.open};
    else
      filter.pinned[pin.value] = std::move(*held.spec);
  }
  if (open->empty())
    return;
  filter.allowsSpec = [open, others = std::move(filter.allowsSpec)](Value value,
                                                                    const ShardingSpec &spec) {
    auto it = open->find(value);
    if (it == open->end())
      return !others || others(value, spec);
    return agrees(spec, it->second.spec, it->second.open);
  };
}

//===----------------------------------------------------------------------===//
// What became of them
//===----------------------------------------------------------------------===//

/// Of a step.
static double secondsOf(const IntraOpResult &result, int64_t numMicroBatches) {
  return double(numMicroBatches) * (result.forwardSeconds + result.backwardSeconds) +
         result.prepareSeconds + result.barrierSeconds + result.updateSeconds;
}

llvm::Error ConstraintPins::explain(Explanation &explanation, const StageView &stage,
                                    const cost::CostModel &model, const IntraOpResult &result,
                                    llvm::ArrayRef<FreeWay> ways) const {
  llvm::DenseSet<Operation *> own(stage.ops.begin(), stage.ops.end());
  auto isOwn = [&](Operation *op) {
    Operation *top = op;
    while (top && !own.contains(top))
      top = top->getParentOp();
    return top != nullptr;
  };
  std::map<std::array<std::string, 4>, size_t> rows;
  bool isAnyHeld = false;
  for (auto [pin, held] : llvm::zip_equal(pins, hold(model.getMesh().shape))) {
    auto argument = dyn_cast<BlockArgument>(pin.value);
    if (argument ? llvm::none_of(argument.getUsers(), isOwn) : !isOwn(pin.value.getDefiningOp()))
      continue;
    std::string line;
    if (!argument)
      line = lineOf(pin.value.getDefiningOp());
    else if (auto name = cast<func::FuncOp>(argument.getOwner()->getParentOp())
                             .getArgAttrOfType<StringAttr>(argument.getArgNumber(), attr::name))
      line = name.getValue().str();
    auto spec = result.specs.find(pin.value);
    std::string text, dropped = held.dropped;
    if (held.spec && !pin.isInBody) {
      text = (spec == result.specs.end() ? *held.spec : spec->second).str();
    } else if (held.spec) {
      auto found = explanation.bodySpecs.find(pin.value);
      if (found != explanation.bodySpecs.end() && agrees(found->second, *held.spec, pin.open))
        text = found->second.str();
      else
        dropped = "the loop or branch that it stands in is split otherwise";
    }
    isAnyHeld |= !text.empty();
    auto [it, isNew] =
        rows.try_emplace({line, textOf(pin), text, dropped}, explanation.constraints.size());
    if (isNew)
      explanation.constraints.push_back({line, textOf(pin), text, dropped, 0});
    ++explanation.constraints[it->second].count;
  }
  if (!isAnyHeld)
    return llvm::Error::success();
  for (const FreeWay &way : ways) {
    llvm::Expected<IntraOpResult> without = solveIntraOp(stage, way.model, way.options);
    if (!without)
      return without.takeError();
    if (without->solution.status == solver::SolveStatus::Infeasible)
      continue;
    int64_t count = way.options.numMicroBatches;
    double more = secondsOf(result, count) - secondsOf(*without, count);
    explanation.constraintSeconds = std::max(explanation.constraintSeconds.value_or(0), more);
  }
  return llvm::Error::success();
}
