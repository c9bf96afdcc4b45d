//===- Signature.cpp - what the tracer knows about @main ------------------===//

#include "compiler/Import/Signature.h"
#include "compiler/ParserInput.h"

#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "llvm/Support/JSON.h"

using namespace mlir;

static llvm::Error fail(const llvm::Twine &message) {
  return llvm::createStringError("bad signature: " + message);
}

/// Mesh axes of each dimension, as far as the user has decided.
static llvm::Error pinInput(func::FuncOp main, unsigned index, const llvm::json::Array &dims) {
  alpa::ShardingSpec spec;
  auto type = dyn_cast<RankedTensorType>(main.getArgumentTypes()[index]);
  if (!type || type.getRank() != static_cast<int64_t>(dims.size()))
    return fail("input " + llvm::Twine(index) + " has a sharding of " + llvm::Twine(dims.size()) +
                " dimensions, which are not the tensor's");
  for (const llvm::json::Value &dim : dims) {
    const llvm::json::Array *axes = dim.getAsArray();
    auto &known = spec.dims.emplace_back();
    for (const llvm::json::Value &axis : axes ? *axes : llvm::json::Array()) {
      std::optional<int64_t> number = axis.getAsInteger();
      if (!number || *number < 0 || *number > 255)
        return fail("input " + llvm::Twine(index) + " has a sharding by something that is no axis");
      known.push_back(*number);
    }
    if (!axes)
      return fail("input " + llvm::Twine(index) + " has a sharding that is not a list of lists");
  }
  MLIRContext *context = main.getContext();
  context->getOrLoadDialect<alpa::AlpaDialect>();
  main.setArgAttr(index, alpa::attr::sharding, alpa::ShardingAttr::get(context, spec));
  return llvm::Error::success();
}

llvm::Error alpa::importer::annotateSignature(ModuleOp module, llvm::StringRef json) {
  auto main = module.lookupSymbol<func::FuncOp>("main");
  if (!main)
    return fail("the module has no function @main");
  if (llvm::Error error = checkNesting(json, "<signature>"))
    return error;
  llvm::Expected<llvm::json::Value> value = llvm::json::parse(json);
  if (!value)
    return value.takeError();
  const llvm::json::Object *object = value->getAsObject();
  const llvm::json::Array *inputs = object ? object->getArray("inputs") : nullptr;
  const llvm::json::Array *outputs = object ? object->getArray("outputs") : nullptr;
  if (!inputs || !outputs)
    return fail("expected an object with the lists `inputs` and `outputs`");
  if (inputs->size() != main.getNumArguments() || outputs->size() != main.getNumResults())
    return fail("got " + llvm::Twine(inputs->size()) + " inputs and " +
                llvm::Twine(outputs->size()) + " outputs, but @main has " +
                llvm::Twine(main.getNumArguments()) + " and " + llvm::Twine(main.getNumResults()));

  Builder builder(module.getContext());
  for (auto [index, item] : llvm::enumerate(*inputs)) {
    const llvm::json::Object *input = item.getAsObject();
    std::optional<llvm::StringRef> kind = input ? input->getString("kind") : std::nullopt;
    if (!kind || (*kind != "state" && *kind != "batch"))
      return fail("input " + llvm::Twine(index) + " needs `kind`: \"state\" or \"batch\"");
    main.setArgAttr(index, attr::kind, builder.getStringAttr(*kind));
    if (std::optional<llvm::StringRef> name = input->getString("name"))
      main.setArgAttr(index, attr::name, builder.getStringAttr(*name));
    if (const llvm::json::Array *dims = input->getArray("sharding"))
      if (llvm::Error error = pinInput(main, index, *dims))
        return error;
    if (std::optional<int64_t> result = input->getInteger("carried_by")) {
      if (*result < 0 || *result >= int64_t(main.getNumResults()))
        return fail("input " + llvm::Twine(index) + " is carried by result " +
                    llvm::Twine(*result) + ", which does not exist");
      if (main.getArgumentTypes()[index] != main.getResultTypes()[*result])
        return fail("input " + llvm::Twine(index) + " and result " + llvm::Twine(*result) +
                    " that carries it differ in type");
      main.setArgAttr(index, attr::carriedBy, builder.getI64IntegerAttr(*result));
    }
  }
  for (auto [index, item] : llvm::enumerate(*outputs)) {
    const llvm::json::Object *output = item.getAsObject();
    if (!output)
      return fail("output " + llvm::Twine(index) + " is not an object");
    if (std::optional<llvm::StringRef> name = output->getString("name"))
      main.setResultAttr(index, attr::name, builder.getStringAttr(*name));
  }
  return llvm::Error::success();
}
