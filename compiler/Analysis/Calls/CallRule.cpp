//===- CallRule.cpp - rules that stand on calls ---------------------------===//

#include "compiler/Analysis/Calls/CallRule.h"

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/Common/Diagnostics.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/FormatVariadic.h"

using namespace alpa;
using namespace alpa::analysis;
using namespace mlir;

static constexpr llvm::StringLiteral kShardyRule = "sdy.sharding_rule";

//===----------------------------------------------------------------------===//
// Notation
//===----------------------------------------------------------------------===//

namespace {

using NamedDim = llvm::SmallVector<StringRef, 1>;
struct NamedTensor {
  size_t column = 0;
  std::optional<StringRef> leading; // "...", or "...0" and so on, each a group of its own.
  llvm::SmallVector<NamedDim> dims;
};

/// The text taken apart, before it is held against an op.
class RuleText {
public:
  explicit RuleText(StringRef text) : text(text) {}
  llvm::Error read();

  llvm::SmallVector<NamedTensor> operands, results;
  llvm::StringMap<int64_t> sizes;
  llvm::StringSet<> reductions, wholes;

private:
  llvm::Error error(const llvm::Twine &what, std::optional<size_t> column = std::nullopt) const {
    return llvm::createStringError(
        llvm::formatv("sharding rule \"{0}\": column {1}: {2}", text, column.value_or(at) + 1, what)
            .str());
  }
  void skipSpaces() {
    while (at < text.size() && llvm::isSpace(text[at]))
      ++at;
  }
  bool take(StringRef token) {
    skipSpaces();
    if (!text.substr(at).starts_with(token))
      return false;
    at += token.size();
    return true;
  }
  StringRef takeWhile(llvm::function_ref<bool(char)> holds) {
    StringRef taken = text.substr(at).take_while(holds);
    at += taken.size();
    return taken;
  }
  /// A letter, then letters, digits and underscores; empty if there is none.
  StringRef takeName() {
    skipSpaces();
    if (at == text.size() || !llvm::isAlpha(text[at]))
      return {};
    return takeWhile([](char c) { return llvm::isAlnum(c) || c == '_'; });
  }
  llvm::Error readTensors(llvm::SmallVector<NamedTensor> &tensors);
  llvm::Error readTensor(NamedTensor &tensor);
  llvm::Error readSizes();
  llvm::Error readNames(llvm::StringSet<> &names);
  bool isKnown(StringRef name) const {
    return llvm::any_of(
        llvm::concat<const NamedTensor>(operands, results), [&](const NamedTensor &tensor) {
          return llvm::any_of(tensor.dims,
                              [&](const NamedDim &dim) { return llvm::is_contained(dim, name); });
        });
  }

  StringRef text;
  size_t at = 0;
};

} // namespace

llvm::Error RuleText::readTensor(NamedTensor &tensor) {
  skipSpaces();
  tensor.column = at;
  if (take("...")) {
    size_t begin = at - 3;
    takeWhile(llvm::isDigit);
    tensor.leading = text.slice(begin, at);
  }
  while (true) {
    // A word that a list follows is no dimension.
    size_t before = at;
    if (StringRef name = takeName(); !name.empty()) {
      if (take("=")) {
        at = before;
        return llvm::Error::success();
      }
      tensor.dims.push_back({name});
      continue;
    }
    if (take("(")) {
      NamedDim dim;
      for (StringRef name = takeName(); !name.empty(); name = takeName())
        dim.push_back(name);
      if (dim.size() < 2 || !take(")"))
        return error("expected names of at least two factors and ')'");
      tensor.dims.push_back(dim);
      continue;
    }
    if (take("..."))
      return error("'...' stands for leading dimensions, before all others", at - 3);
    return llvm::Error::success();
  }
}

llvm::Error RuleText::readTensors(llvm::SmallVector<NamedTensor> &tensors) {
  do {
    if (llvm::Error failed = readTensor(tensors.emplace_back()))
      return failed;
  } while (take(","));
  return llvm::Error::success();
}

llvm::Error RuleText::readSizes() {
  do {
    skipSpaces();
    size_t begin = at;
    StringRef name = takeName();
    if (name.empty() || !take("="))
      return error("expected a factor and its size, such as {d=64}");
    if (!isKnown(name))
      return error("no dimension has the factor '" + name + "'", begin);
    skipSpaces();
    int64_t size = 0;
    if (takeWhile(llvm::isDigit).getAsInteger(10, size) || size < 1)
      return error("expected a size of at least 1");
    sizes[name] = size;
  } while (take(","));
  return take("}") ? llvm::Error::success() : error("expected '}'");
}

llvm::Error RuleText::readNames(llvm::StringSet<> &names) {
  if (!take("=") || !take("{"))
    return error("expected a list of factors, such as ={k}");
  do {
    skipSpaces();
    size_t begin = at;
    StringRef name = takeName();
    if (name.empty())
      return error("expected the name of a factor");
    if (!isKnown(name))
      return error("no dimension has the factor '" + name + "'", begin);
    names.insert(name);
  } while (take(","));
  return take("}") ? llvm::Error::success() : error("expected '}'");
}

llvm::Error RuleText::read() {
  if (llvm::Error failed = readTensors(operands))
    return failed;
  if (!take("->"))
    return error("expected a name, '(', ',' or '->'");
  if (llvm::Error failed = readTensors(results))
    return failed;
  if (take("{"))
    if (llvm::Error failed = readSizes())
      return failed;
  llvm::StringSet<> ignored;
  while (true) {
    skipSpaces();
    size_t begin = at;
    StringRef word = takeName();
    if (word.empty())
      break;
    llvm::StringSet<> *names = word == "reduction"                                   ? &reductions
                               : word == "need_replication" || word == "permutation" ? &wholes
                               : word == "blocked_propagation"                       ? &ignored
                                                                                     : nullptr;
    if (!names)
      return error("expected reduction, need_replication, permutation or blocked_propagation, "
                   "got '" +
                       word + "'",
                   begin);
    if (llvm::Error failed = readNames(*names))
      return failed;
  }
  skipSpaces();
  return at == text.size() ? llvm::Error::success() : error("expected the end of the rule");
}

//===----------------------------------------------------------------------===//
// A rule of an op
//===----------------------------------------------------------------------===//

namespace {

/// Holds a rule's text against the shapes of an op.
class RuleMaker {
public:
  RuleMaker(StringRef text, const RuleText &parts, Operation *op)
      : text(text), parts(parts), builder(op) {}

  llvm::Expected<ShardingRule> make();

private:
  struct Tensor {
    llvm::SmallVector<NamedDim> dims; // Leading ones have names of their own.
    Value value;
    std::string who; // "operand 1"
  };

  llvm::Error error(const llvm::Twine &what) const {
    return llvm::createStringError(llvm::formatv("sharding rule \"{0}\": {1}", text, what).str());
  }
  llvm::Error spread(llvm::ArrayRef<NamedTensor> named, ValueRange values, StringRef kind);
  llvm::Error setSize(StringRef name, int64_t size, const Tensor &tensor);
  llvm::Error findSizes();
  FactorKind kindOf(StringRef name) const;

  StringRef text;
  const RuleText &parts;
  RuleBuilder builder;
  llvm::SmallVector<Tensor> tensors; // Operands, then results.
  llvm::StringSet<> made;            // Owns names of leading dimensions.
  llvm::StringMap<int64_t> sizes;
  llvm::StringMap<size_t> leading; // How many dimensions a "..." has.
};

} // namespace

llvm::Error RuleMaker::spread(llvm::ArrayRef<NamedTensor> named, ValueRange values,
                              StringRef kind) {
  // "->" alone, or nothing before it, is a list without tensors.
  bool isEmpty = named.size() == 1 && named[0].dims.empty() && !named[0].leading;
  if (values.empty() && isEmpty)
    return llvm::Error::success();
  if (named.size() != values.size())
    return error(
        llvm::formatv("the call has {0} {1}s, the rule {2}", values.size(), kind, named.size()));
  for (auto [index, tensor, value] : llvm::enumerate(named, values)) {
    size_t rank = shapeOf(value).size(), own = tensor.dims.size();
    Tensor &held = tensors.emplace_back();
    held.value = value;
    held.who = llvm::formatv("{0} {1}", kind, index);
    if (tensor.leading ? rank < own : rank != own)
      return error(llvm::formatv("{0} has {1} dimensions, the rule {2}{3} (column {4})", held.who,
                                 rank, tensor.leading ? "at least " : "", own, tensor.column + 1));
    if (tensor.leading) {
      auto [found, isNew] = leading.try_emplace(*tensor.leading, rank - own);
      if (!isNew && found->second != rank - own)
        return error(llvm::formatv("'{0}' stands for {1} dimensions of {2} and for {3} before",
                                   *tensor.leading, rank - own, held.who, found->second));
      for (size_t dim = 0; dim < rank - own; ++dim)
        held.dims.push_back(
            {made.insert(llvm::formatv("{0}[{1}]", *tensor.leading, dim).str()).first->getKey()});
    }
    llvm::append_range(held.dims, tensor.dims);
  }
  return llvm::Error::success();
}

llvm::Error RuleMaker::setSize(StringRef name, int64_t size, const Tensor &tensor) {
  auto [found, isNew] = sizes.try_emplace(name, size);
  if (isNew || found->second == size)
    return llvm::Error::success();
  return error(llvm::formatv("factor '{0}' is {1} in {2} and {3} before", name, size, tensor.who,
                             found->second));
}

/// Dimensions of one factor say its size; in others the missing one is what is left.
llvm::Error RuleMaker::findSizes() {
  for (const Tensor &tensor : tensors)
    for (auto [dim, size] : llvm::zip_equal(tensor.dims, shapeOf(tensor.value)))
      if (dim.size() == 1)
        if (llvm::Error failed = setSize(dim[0], size, tensor))
          return failed;
  for (const auto &given : parts.sizes)
    if (auto [found, isNew] = sizes.try_emplace(given.getKey(), given.second);
        !isNew && found->second != given.second)
      return error(llvm::formatv("factor '{0}' is {1}, its dimension {2}", given.getKey(),
                                 given.second, found->second));
  for (bool goesOn = true; goesOn;) {
    goesOn = false;
    for (const Tensor &tensor : tensors)
      for (auto [dim, size] : llvm::zip_equal(tensor.dims, shapeOf(tensor.value))) {
        if (dim.size() == 1)
          continue;
        int64_t known = 1;
        std::optional<StringRef> missing;
        unsigned numMissing = 0;
        for (StringRef name : dim) {
          auto found = sizes.find(name);
          if (found != sizes.end())
            known *= found->second;
          else
            missing = name, ++numMissing;
        }
        if (numMissing > 1)
          continue;
        if (known <= 0 || size % known != 0 || (!missing && known != size))
          return error(llvm::formatv("factors ({0}) do not make up the {1} elements of {2}",
                                     llvm::join(dim, " "), size, tensor.who));
        if (missing) {
          sizes[*missing] = size / known;
          goesOn = true;
        }
      }
  }
  for (const Tensor &tensor : tensors)
    for (const NamedDim &dim : tensor.dims)
      for (StringRef name : dim)
        if (!sizes.contains(name))
          return error("give the size of factor '" + name + "', such as {" + name + "=64}");
  return llvm::Error::success();
}

/// What a call makes of a part is known only if each of its results has the factor, or none has
/// it and all are sums over it.
FactorKind RuleMaker::kindOf(StringRef name) const {
  if (parts.wholes.contains(name))
    return FactorKind::Sequential;
  bool isRead = false, isReduction = parts.reductions.contains(name);
  for (auto [index, tensor] : llvm::enumerate(tensors)) {
    int64_t times = 0;
    for (const NamedDim &dim : tensor.dims)
      times += llvm::count(dim, name);
    bool isOperand = index < builder.rule.operands.size();
    bool isNothing = llvm::is_contained(shapeOf(tensor.value), 0); // A workspace.
    isRead |= isOperand && times == 1;
    if (times > 1 || (!isOperand && !isNothing && (times == 1) == isReduction) ||
        (!isOperand && isReduction && getElementTypeOrSelf(tensor.value).isInteger(1)))
      return FactorKind::Sequential;
  }
  if (!isRead)
    return FactorKind::Sequential;
  return isReduction ? FactorKind::Reduction : FactorKind::Parallel;
}

llvm::Expected<ShardingRule> RuleMaker::make() {
  if (llvm::Error failed = spread(parts.operands, builder.op->getOperands(), "operand"))
    return failed;
  if (llvm::Error failed = spread(parts.results, builder.op->getResults(), "result"))
    return failed;
  if (llvm::Error failed = findSizes())
    return failed;
  for (const NamedTensor &result : parts.results)
    for (const NamedDim &dim : result.dims)
      for (StringRef name : dim)
        if (parts.reductions.contains(name))
          return error("factor '" + name + "' is summed over and in a result");
  llvm::StringMap<unsigned> factors;
  size_t numOperands = builder.rule.operands.size();
  for (auto [index, tensor] : llvm::enumerate(tensors))
    for (auto [at, dim] : llvm::enumerate(tensor.dims)) {
      DimFactors made;
      for (StringRef name : dim) {
        auto [found, isNew] = factors.try_emplace(name, 0);
        if (isNew)
          found->second = builder.factor(sizes[name], kindOf(name));
        made.push_back(found->second);
      }
      if (index < numOperands)
        builder.operand(index, static_cast<int64_t>(at), made);
      else
        builder.result(index - numOperands, static_cast<int64_t>(at), made);
    }
  builder.rule.leads = true;
  return builder.rule;
}

llvm::Expected<ShardingRule> analysis::parseCallRule(StringRef text, Operation *op) {
  RuleText parts(text);
  if (llvm::Error failed = parts.read())
    return failed;
  return RuleMaker(text, parts, op).make();
}

//===----------------------------------------------------------------------===//
// Shardy's rules
//===----------------------------------------------------------------------===//

/// `<([i, jk])->([k]) {i=2, j=2, k=4} reduction={j}, custom>`: one letter a factor, with a
/// number behind it where letters ran out.
llvm::Expected<std::string> analysis::toCallRule(sdy::OpShardingRuleAttr rule) {
  StringRef text = rule.getText();
  text.consume_back(", custom");
  auto [tensors, rest] = text.split(" {");
  std::string made;
  llvm::SmallVector<std::string> compounds; // Their factors, but for the first.
  size_t depth = 0;
  bool isFirst = true;
  for (size_t at = 0; at < tensors.size();) {
    char c = tensors[at];
    if (c == '[' || c == ']')
      depth += c == '[' ? 1 : -1, isFirst = true;
    if (c == '-' && tensors.substr(at).starts_with("->")) {
      made += " -> ";
      at += 2;
      continue;
    }
    if (c == ',' && depth == 0)
      made += ", ";
    if (!llvm::isAlpha(c)) {
      ++at;
      continue;
    }
    StringRef word =
        tensors.substr(at).take_while([](char next) { return llvm::isAlnum(next) || next == '_'; });
    at += word.size();
    llvm::SmallVector<std::string> names;
    for (size_t letter = 0; letter < word.size();) {
      size_t end = letter + 1;
      if (end < word.size() && word[end] == '_')
        for (++end; end < word.size() && llvm::isDigit(word[end]);)
          ++end;
      names.push_back(word.slice(letter, end).str());
      letter = end;
    }
    made += isFirst ? "" : " ";
    isFirst = false;
    made += names.size() == 1 ? names[0] : "(" + llvm::join(names, " ") + ")";
    for (size_t minor = 1; minor < names.size(); ++minor)
      compounds.push_back(names[minor]);
  }
  auto [given, lists] = rest.split('}');
  // Sizes of other factors follow from the shapes, those of parts too.
  llvm::SmallVector<std::string> sizes;
  for (StringRef item : llvm::split(given, ", "))
    if (llvm::is_contained(compounds, item.split('=').first))
      sizes.push_back(item.str());
  if (!sizes.empty())
    made += " {" + llvm::join(sizes, ", ") + "}";
  return made + lists.str();
}

//===----------------------------------------------------------------------===//
// On calls
//===----------------------------------------------------------------------===//

std::optional<ShardingRule> analysis::getCallRule(Operation *op) {
  auto text = op->getAttrOfType<StringAttr>(kCallRule);
  if (!text)
    return std::nullopt;
  llvm::Expected<ShardingRule> rule = parseCallRule(text.getValue(), op);
  if (rule)
    return std::move(*rule);
  llvm::consumeError(rule.takeError());
  return RuleBuilder(op).rule;
}

void analysis::fitCallRule(Operation *part, Operation *whole) {
  auto flops = part->getAttrOfType<FloatAttr>(kCallFlops);
  if (!flops)
    return;
  std::optional<ShardingRule> of = getCallRule(whole), local = getCallRule(part);
  if (!of || !local || of->factors.size() != local->factors.size())
    return;
  double scaled = flops.getValueAsDouble();
  for (auto [all, some] : llvm::zip_equal(of->factors, local->factors))
    if (all.size > 0)
      scaled *= static_cast<double>(some.size) / static_cast<double>(all.size);
  part->setAttr(kCallFlops, Builder(part->getContext()).getF64FloatAttr(scaled));
}

/// Leading dimensions along which a call is independent, as JAX says it to XLA; 0 if it does not.
static unsigned numBatchDims(Operation *call) {
  auto told = call->getAttrOfType<DictionaryAttr>("mhlo.frontend_attributes");
  auto number = told ? told.getAs<StringAttr>("num_batch_dims") : StringAttr();
  unsigned count = 0;
  return number && !number.getValue().getAsInteger(10, count) ? count : 0;
}

/// The rule with all factors whole that are in other than the leading `count` dimensions.
static llvm::Expected<std::string> withLeadingOnly(std::string text, unsigned count) {
  RuleText parts(text);
  if (llvm::Error failed = parts.read())
    return std::move(failed);
  llvm::SmallVector<StringRef> wholes;
  for (const NamedTensor &tensor : llvm::concat<NamedTensor>(parts.operands, parts.results))
    for (const NamedDim &dim :
         llvm::drop_begin(tensor.dims, std::min<size_t>(count, tensor.dims.size())))
      for (StringRef name : dim)
        if (!llvm::is_contained(wholes, name) && !parts.wholes.contains(name))
          wholes.push_back(name);
  return wholes.empty() ? text : text + " need_replication={" + llvm::join(wholes, ", ") + "}";
}

/// Kernels of Triton, Mosaic GPU and Mosaic: their calls hold the number of blocks and the shapes
/// that they were compiled for, so that a call on parts would read past them.
static bool holdsShapes(StringRef target) {
  return llvm::is_contained({"__gpu$xla.gpu.triton", "triton_kernel_call", "mosaic_gpu",
                             "mosaic_gpu_v2", "tpu_custom_call"},
                            target);
}

bool analysis::mayHaveCallRule(stablehlo::CustomCallOp call) {
  return !call.getHasSideEffect() && !holdsShapes(call.getCallTargetName());
}

/// Shardy's rule alone says where shardings go on, not that parts can be computed apart: that
/// may take a partitioner of its own. Of batches JAX says it besides.
LogicalResult analysis::importCallRule(stablehlo::CustomCallOp call) {
  auto wrong = [&] { return withCode(call.emitOpError(), ErrorCode::Method); };
  Attribute shardy = call->removeAttr(kShardyRule);
  unsigned batchDims = numBatchDims(call);
  if (auto rule = dyn_cast_or_null<sdy::OpShardingRuleAttr>(shardy);
      rule && batchDims > 0 && !call->hasAttr(kCallRule)) {
    llvm::Expected<std::string> text = toCallRule(rule);
    if (text)
      text = withLeadingOnly(*text, batchDims);
    if (!text)
      return wrong() << llvm::toString(text.takeError());
    call->setAttr(kCallRule, StringAttr::get(call.getContext(), *text));
  }
  auto text = call->getAttrOfType<StringAttr>(kCallRule);
  if (!text)
    return success();
  if (call.getHasSideEffect())
    return wrong() << "has side effects and a sharding rule; a call that is split runs several "
                      "times, so say has_side_effect=False or give no rule";
  llvm::Expected<ShardingRule> rule = parseCallRule(text.getValue(), call);
  if (!rule)
    return wrong() << "@" << call.getCallTargetName() << ": " << llvm::toString(rule.takeError());
  if (!holdsShapes(call.getCallTargetName()))
    return success();
  for (const Factor &factor : rule->factors)
    if (factor.kind != FactorKind::Sequential && factor.size > 1)
      return wrong()
             << "@" << call.getCallTargetName() << ": sharding rule \"" << text.getValue()
             << "\" splits a kernel that was compiled for the shapes of the whole call; list all "
                "its factors in need_replication, so that the rule only gives the cost";
  return success();
}
