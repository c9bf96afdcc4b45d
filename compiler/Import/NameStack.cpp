//===- NameStack.cpp - what JAX's name stack says about an op -------------===//

#include "compiler/Import/NameStack.h"

#include "mlir/IR/BuiltinAttributes.h"

using namespace mlir;
using namespace alpa;
using namespace alpa::importer;

static constexpr llvm::StringLiteral kEqnScope = "alpa_eqn_";

/// Position after `word(` where `word` starts a component of the name stack.
static size_t findTransform(llvm::StringRef name, llvm::StringRef word, size_t from = 0) {
  for (size_t at = name.find(word, from); at != llvm::StringRef::npos;
       at = name.find(word, at + 1)) {
    bool starts = at == 0 || name[at - 1] == '/' || name[at - 1] == '(';
    size_t end = at + word.size();
    if (starts && end < name.size() && name[end] == '(')
      return end + 1;
  }
  return llvm::StringRef::npos;
}

/// The text from `begin` to the parenthesis that closes it.
static llvm::StringRef insideParentheses(llvm::StringRef name, size_t begin) {
  int depth = 1;
  size_t end = begin;
  for (; end < name.size() && depth > 0; ++end)
    depth += name[end] == '(' ? 1 : name[end] == ')' ? -1 : 0;
  return name.slice(begin, end);
}

/// Whether the name has a `transpose` around a `jvp`.
static bool isOfGradient(llvm::StringRef name) {
  for (size_t at = findTransform(name, "transpose"); at != llvm::StringRef::npos;
       at = findTransform(name, "transpose", at))
    if (findTransform(insideParentheses(name, at), "jvp") != llvm::StringRef::npos)
      return true;
  return false;
}

NameStack importer::parseNameStack(llvm::StringRef name) {
  NameStack result;
  size_t tag = name.find(kEqnScope);
  int64_t eqn;
  if (tag != llvm::StringRef::npos) {
    llvm::StringRef digits = name.substr(tag + kEqnScope.size());
    if (!digits.consumeInteger(10, eqn) && eqn >= 0)
      result.eqn = eqn;
  }
  // What an equation of the loss has within itself, such as the gradient in a gradient penalty, is
  // of its phase.
  if (result.eqn) {
    result.isInnerGradient =
        isOfGradient(name.drop_front(tag)) && !isOfGradient(name.take_front(tag));
    name = name.take_front(tag);
  }
  if (isOfGradient(name))
    result.phase = NamedPhase::Backward;
  else if (findTransform(name, "jvp") != llvm::StringRef::npos)
    result.phase = NamedPhase::Forward;
  return result;
}

/// Frames of a Python traceback are names too ("train.<locals>.step"); name
/// stacks have transforms or a path.
static bool isNameStack(llvm::StringRef name) { return name.contains('(') || name.contains('/'); }

static std::optional<NameStack> read(Location location) {
  if (auto callSite = dyn_cast<CallSiteLoc>(location)) {
    std::optional<NameStack> caller = read(callSite.getCaller());
    if (caller && (caller->phase != NamedPhase::None || caller->eqn))
      return caller;
    std::optional<NameStack> callee = read(callSite.getCallee());
    return callee ? callee : caller;
  }
  if (auto name = dyn_cast<NameLoc>(location)) {
    if (isNameStack(name.getName()))
      return parseNameStack(name.getName());
    return read(name.getChildLoc());
  }
  if (auto fused = dyn_cast<FusedLoc>(location))
    for (Location part : fused.getLocations())
      if (std::optional<NameStack> stack = read(part))
        return stack;
  return std::nullopt;
}

NameStack importer::readNameStack(Location location) {
  return read(location).value_or(NameStack());
}

static constexpr llvm::StringLiteral kBoundaryScope = "alpa_layer_boundary";

bool importer::isLayerBoundary(Operation *op) {
  if (op->getName().getStringRef() != "stablehlo.optimization_barrier")
    return false;
  return op->getLoc()
      ->walk([](Location location) {
        auto name = dyn_cast<NameLoc>(location);
        return name && name.getName().getValue().contains(kBoundaryScope) ? WalkResult::interrupt()
                                                                          : WalkResult::advance();
      })
      .wasInterrupted();
}

static std::optional<int64_t> readBodyEqn(Location location, llvm::StringRef scope) {
  if (auto callSite = dyn_cast<CallSiteLoc>(location)) {
    if (std::optional<int64_t> caller = readBodyEqn(callSite.getCaller(), scope))
      return caller;
    return readBodyEqn(callSite.getCallee(), scope);
  }
  if (auto name = dyn_cast<NameLoc>(location)) {
    llvm::StringRef text = name.getName();
    size_t at = text.find(scope);
    int64_t eqn;
    if (at == llvm::StringRef::npos)
      return readBodyEqn(name.getChildLoc(), scope);
    text = text.substr(at + scope.size());
    return text.consumeInteger(10, eqn) || eqn < 0 ? std::nullopt : std::optional(eqn);
  }
  if (auto fused = dyn_cast<FusedLoc>(location))
    for (Location part : fused.getLocations())
      if (std::optional<int64_t> eqn = readBodyEqn(part, scope))
        return eqn;
  return std::nullopt;
}

std::optional<int64_t> importer::readBodyEqn(Location location, unsigned level) {
  return ::readBodyEqn(location, ("alpa_inner" + llvm::Twine(level) + "_").str());
}
