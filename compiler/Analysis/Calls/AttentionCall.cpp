//===- AttentionCall.cpp - calls of fused attention -----------------------===//

#include "compiler/Analysis/Calls/AttentionCall.h"

#include "compiler/Analysis/Calls/BlockScaledDot.h"
#include "compiler/Analysis/Calls/CallRule.h"
#include "compiler/Analysis/Calls/TransformerEngineCall.h"
#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"

using namespace alpa;
using namespace alpa::analysis;
using namespace mlir;
namespace hlo = mlir::stablehlo;

static constexpr llvm::StringLiteral kConfig = "cudnn_fmha_backend_config";
static constexpr llvm::StringLiteral kAttributes = "mhlo.backend_config";
static constexpr llvm::StringLiteral kOwnLengths = "alpa.own_lengths";
static constexpr llvm::StringLiteral kOwnSequences = "own_sequences";

static std::optional<llvm::json::Value> configOf(hlo::CustomCallOp op) {
  auto text = dyn_cast_or_null<StringAttr>(op.getBackendConfigAttr());
  if (!text)
    return std::nullopt;
  llvm::Expected<llvm::json::Value> value = llvm::json::parse(text.getValue());
  if (!value) {
    llvm::consumeError(value.takeError());
    return std::nullopt;
  }
  const llvm::json::Object *outer = value->getAsObject();
  if (!outer || !outer->getObject(kConfig))
    return std::nullopt;
  return std::move(*value);
}

/// Whether a dot of the configuration has its heads in dimension 1 of the queries.
static std::optional<bool> hasHeadsFirst(const llvm::json::Object &config, bool isBackward) {
  const llvm::json::Object *dot = config.getObject(
      isBackward ? "bmm2_grad_gemm2_dot_dimension_numbers" : "bmm1_dot_dimension_numbers");
  const llvm::json::Array *dims = dot ? dot->getArray("lhs_batch_dimensions") : nullptr;
  if (!dims || dims->size() != 2)
    return std::nullopt;
  auto is = [&](size_t i, llvm::StringRef text) { return (*dims)[i].getAsString() == text; };
  if (!is(0, "0") || !(is(1, "1") || is(1, "2")))
    return std::nullopt;
  return is(1, "1");
}

static bool hasRank(Value value, size_t rank) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type && type.hasStaticShape() && type.getShape().size() == rank;
}

/// Sizes of queries, keys and values that are [batch, tokens, (2 or 3,) heads, features].
static bool readPacked(AttentionCall &call) {
  hlo::CustomCallOp op = call.op;
  auto isOfRank = [&](unsigned operand, size_t rank) {
    return hasRank(op->getOperand(operand), rank);
  };
  auto sizes = [&](unsigned operand) { return shapeOf(op->getOperand(operand)); };
  size_t queryRank = call.packed == 3 ? 5 : 4, keyRank = call.packed == 2 ? 5 : 4;
  if (!isOfRank(0, queryRank) || (call.packed < 3 && !isOfRank(1, keyRank)) ||
      (call.packed < 2 && !isOfRank(2, 4)))
    return false;
  llvm::ArrayRef<int64_t> query = sizes(0), key = sizes(call.packed == 3 ? 0 : 1),
                          value = sizes(3 - static_cast<unsigned>(call.packed));
  if (call.packed > 1 && value[2] != call.packed)
    return false;
  call.batch = query[0];
  call.tokens = query[1];
  call.heads = query[query.size() - 2];
  call.features = query.back();
  call.keyTokens = key[1];
  call.keyHeads = key[key.size() - 2];
  call.valueFeatures = value.back();
  return key[0] == call.batch && key.back() == call.features && value[0] == call.batch &&
         value[1] == call.keyTokens && value[value.size() - 2] == call.keyHeads &&
         call.keyHeads > 0 && call.heads % call.keyHeads == 0;
}

/// Examples of one length each, [batch, tokens, ..]. The numbers are those of
/// transformer_engine/common/include/transformer_engine/fused_attn.h.
static bool readTransformerEngine(AttentionCall &call) {
  enum Layout { PackedAll = 5, PackedKeysAndValues = 7, Separate = 9 };
  enum Bias { NoBias = 0, BeforeScale = 1, BehindScale = 2 };
  enum Mask { NoMask = 0, Padding = 1, Causal = 2, PaddingCausal = 3, BottomRight = 4 };
  hlo::CustomCallOp op = call.op;
  FfiAttributes given(op);
  std::optional<int64_t> layout = given.number("qkv_layout"), bias = given.number("bias_type"),
                         mask = given.number("mask_type"), left = given.number("window_size_left"),
                         right = given.number("window_size_right");
  std::optional<double> scale = given.real("scaling_factor"),
                        dropout = given.real("dropout_probability");
  if (!layout || !bias || !mask || !left || !right || !scale || !dropout || *bias > BehindScale ||
      *mask < NoMask || *mask > 5 || *dropout > 0)
    return false;
  for (StringRef name : {"softmax_type", "return_max_logit"})
    if (given.number(name).value_or(0) != 0)
      return false;
  if (*layout != PackedAll && *layout != PackedKeysAndValues && *layout != Separate)
    return false;
  call.packed = *layout == PackedAll ? 3 : *layout == PackedKeysAndValues ? 2 : 1;
  int fewest = call.isBackward ? 16 : 13, operands = static_cast<int>(op->getNumOperands());
  bool hasOffset = operands == fewest + 1; // Of the softmax; empty.
  int results = static_cast<int>(op->getNumResults()), least = call.isBackward ? 5 : 4;
  if ((operands != fewest && !hasOffset) || (results != least && results != least + 1) ||
      !readPacked(call))
    return false;

  int next = hasOffset ? 5 : 4;
  if (call.isBackward) {
    call.statistics = next++;
    call.unread.push_back(next++);
    call.output = next++;
    call.outputGradient = next++;
  } else {
    ++next; // The seed.
  }
  call.queryLengths = next++;
  call.keyLengths = next++;
  for (; next < operands; ++next)
    call.unread.push_back(next);
  call.hasOwnLengths = given.number(kOwnLengths).has_value();
  int64_t lengths = call.batch + (call.hasOwnLengths ? 0 : 1);
  for (int operand : {call.queryLengths, call.keyLengths})
    if (shapeOf(op->getOperand(operand)) != llvm::ArrayRef(lengths))
      return false;
  if (*bias != NoBias) {
    llvm::ArrayRef<int64_t> shape = shapeOf(op->getOperand(3));
    if (shape.size() != 4 || (shape[0] != 1 && shape[0] != call.batch) ||
        (shape[1] != 1 && shape[1] != call.heads) ||
        shape.take_back(2) != llvm::ArrayRef({call.tokens, call.keyTokens}))
      return false;
    call.bias = 3;
    if (call.isBackward)
      call.biasGradient = 3;
  }
  llvm::SmallVector<int64_t> made{call.batch, call.tokens, call.heads, call.valueFeatures};
  if (call.isBackward ? shapeOf(op->getOperand(call.output)) != llvm::ArrayRef(made) ||
                            shapeOf(op->getOperand(call.outputGradient)) != llvm::ArrayRef(made) ||
                            op->getResult(0).getType() != op->getOperand(0).getType()
                      : shapeOf(op->getResult(0)) != llvm::ArrayRef(made))
    return false;
  Value statistics = call.isBackward ? op->getOperand(call.statistics) : Value(op->getResult(1));
  if (!hasRank(statistics, 4) ||
      shapeOf(statistics).take_front(3) != llvm::ArrayRef({call.batch, call.heads, call.tokens}))
    return false;

  call.scale = *scale;
  call.isCausal = *mask >= Causal;
  call.isPadded = *mask == Padding || *mask == PaddingCausal || *mask > BottomRight;
  if (*left >= 0)
    call.window = *left + 1;
  bool isAligned = *mask < BottomRight || (!call.isPadded && call.tokens == call.keyTokens);
  call.hasPlainForm = isAligned && *bias != BeforeScale && shapeOf(statistics)[3] == 1 &&
                      (*right < 0 || (*right == 0 && call.isCausal)) &&
                      (*left < 0 || call.isCausal);
  return true;
}

std::optional<AttentionCall> AttentionCall::read(Operation *op) {
  auto custom = dyn_cast<hlo::CustomCallOp>(op);
  if (!custom || custom.getHasSideEffect())
    return std::nullopt;
  llvm::StringRef target = custom.getCallTargetName();
  if (target == "te_fused_attn_forward_ffi" || target == "te_fused_attn_backward_ffi") {
    AttentionCall call;
    call.op = custom;
    call.isTransformerEngine = true;
    call.isBackward = target.contains("backward");
    return readTransformerEngine(call) ? std::optional(call) : std::nullopt;
  }
  if (!target.consume_front("__cudnn$fmha") || !custom.getCalledComputations().empty())
    return std::nullopt;
  AttentionCall call;
  call.op = custom;
  call.isBackward = target.consume_back("Backward");
  bool hasDropout = target.consume_back("Dropout");
  bool hasBias = target == "ScaleBiasSoftmax";
  if (!hasBias && target != "Softmax")
    return std::nullopt;
  std::optional<llvm::json::Value> parsed = configOf(custom);
  if (!parsed)
    return std::nullopt;
  const llvm::json::Object &config = *parsed->getAsObject()->getObject(kConfig);
  std::optional<bool> order = hasHeadsFirst(config, call.isBackward);
  std::optional<llvm::StringRef> mask = config.getString("mask_type");
  if (!order || !mask || config.getBoolean("is_paged_attention").value_or(false))
    return std::nullopt;
  call.headsFirst = *order;
  call.isCausal = *mask == "CAUSAL" || *mask == "PADDING_CAUSAL";
  call.isPadded = *mask == "PADDING" || *mask == "PADDING_CAUSAL";
  if (!call.isCausal && !call.isPadded && *mask != "NO_MASK")
    return std::nullopt;
  call.scale = config.getNumber("fmha_scale").value_or(1);
  call.dropout = config.getNumber("dropout_rate").value_or(0);
  if (hasDropout != (call.dropout > 0))
    return std::nullopt;
  call.window = config.getInteger("sliding_window_length").value_or(0);
  call.segments = config.getInteger("max_seg_per_batch").value_or(1);

  int next = 3;
  if (call.isBackward) {
    call.statistics = next++;
    call.outputGradient = next++;
  }
  if (hasBias)
    call.bias = next++;
  if (call.isBackward)
    call.output = next++;
  if (call.isPadded || call.segments > 1) {
    call.queryLengths = next++;
    call.keyLengths = next++;
  }
  if (call.segments > 1) {
    call.queryOffsets = next++;
    call.keyOffsets = next++;
  }
  call.hasOwnSequences = call.segments > 1 && config.getBoolean(kOwnSequences).value_or(false);
  int results = static_cast<int>(op->getNumResults());
  if (call.isBackward && results == 5)
    call.biasGradient = 3;
  bool fits =
      static_cast<int>(op->getNumOperands()) == next &&
      (call.isBackward ? results == 4 || (results == 5 && hasBias) : results == 2 || results == 3);
  for (int i = 0; fits && i < next; ++i)
    fits = hasRank(op->getOperand(i),
                   i == call.statistics ? 3
                   : i < 3 || i == call.bias || i == call.output || i == call.outputGradient
                       ? 4
                       : shapeOf(op->getOperand(i)).size());
  if (!fits)
    return std::nullopt;
  llvm::ArrayRef<int64_t> query = shapeOf(op->getOperand(0)), key = shapeOf(op->getOperand(1)),
                          value = shapeOf(op->getOperand(2));
  call.batch = query[0];
  call.heads = query[call.headDim()];
  call.tokens = query[call.tokenDim()];
  call.keyHeads = key[call.headDim()];
  call.keyTokens = key[call.tokenDim()];
  call.features = query[3];
  call.valueFeatures = value[3];
  auto hasShape = [&](int operand, int64_t columns) {
    return operand < 0 || shapeOf(op->getOperand(operand)) == llvm::ArrayRef({call.batch, columns});
  };
  if (call.segments > 1 &&
      !(hasShape(call.queryLengths, call.segments) && hasShape(call.keyLengths, call.segments) &&
        hasShape(call.queryOffsets, call.segments + 1) &&
        hasShape(call.keyOffsets, call.segments + 1)))
    return std::nullopt;
  llvm::SmallVector<int64_t> made{call.batch, call.heads, call.tokens,
                                  call.isBackward ? call.features : call.valueFeatures};
  fits = key[0] == call.batch && key[3] == call.features && value[0] == call.batch &&
         value[call.headDim()] == call.keyHeads && value[call.tokenDim()] == call.keyTokens &&
         call.keyHeads > 0 && call.heads % call.keyHeads == 0 &&
         shapeOf(op->getResult(0)) == llvm::ArrayRef(made);
  if (!fits)
    return std::nullopt;
  return call;
}

/// Examples are parallel, and so are groups of heads that share their keys. The gradient of a bias
/// for all examples or heads is their sum. Masks of dropout are drawn by place, and sequences that
/// are numbered through all examples count from the first one: there the kernel needs all of them.
/// Lengths that are sums over the examples before need all examples.
ShardingRule AttentionCall::rule() const {
  RuleBuilder builder(op);
  bool isWhole = !whyWhole().empty();
  llvm::ArrayRef<int64_t> biasShape =
      bias < 0 ? llvm::ArrayRef<int64_t>() : shapeOf(op->getOperand(bias));
  auto kindOf = [&](int64_t dim, int64_t size) {
    bool isShared =
        biasGradient >= 0 && !op->getResult(biasGradient).use_empty() && biasShape[dim] != size;
    return isWhole    ? FactorKind::Sequential
           : isShared ? FactorKind::Reduction
                      : FactorKind::Parallel;
  };
  bool hasSums = isTransformerEngine && !hasOwnLengths;
  unsigned example = builder.factor(batch, hasSums ? FactorKind::Sequential : kindOf(0, batch));
  unsigned keyHead = builder.factor(keyHeads, kindOf(1, heads));
  unsigned inGroup = builder.factor(heads / keyHeads, FactorKind::Sequential);
  DimFactors queryHeads{keyHead, inGroup};
  auto operand = [&](int index, int64_t dim, const DimFactors &factors) {
    builder.operand(static_cast<unsigned>(index), dim, factors);
  };
  auto headsOf = [](Value value) { return static_cast<int64_t>(shapeOf(value).size()) - 2; };
  for (int index : {0, outputGradient, output})
    if (index >= 0) {
      operand(index, 0, {example});
      operand(index, headsFirst ? 1 : headsOf(op->getOperand(index)), queryHeads);
    }
  for (int index : {1, 2})
    if (Value value = op->getOperand(index); shapeOf(value).size() >= 4) {
      operand(index, 0, {example});
      operand(index, headsFirst ? 1 : headsOf(value), {keyHead});
    }
  auto biasDims = [&](auto &&set) {
    if (biasShape[0] == batch)
      set(0, DimFactors{example});
    if (biasShape[1] == heads)
      set(1, queryHeads);
  };
  if (bias >= 0)
    biasDims([&](int64_t dim, const DimFactors &factors) { operand(bias, dim, factors); });
  for (int index : {queryLengths, keyLengths, queryOffsets, keyOffsets})
    if (index >= 0 && !isNumbered() && !hasSums)
      operand(index, 0, {example});
  if (statistics >= 0 && !isNumbered()) {
    operand(statistics, 0, {example});
    operand(statistics, 1, queryHeads);
  }
  auto made = [&](unsigned index, const DimFactors &ofHeads) {
    Value value = op->getResult(index);
    if (shapeOf(value).size() >= 4)
      builder.result(index, 0, {example})
          .result(index, isTransformerEngine ? headsOf(value) : 1, ofHeads);
  };
  made(0, queryHeads);
  DimFactors ring;
  if (mayRing()) {
    ring.push_back(builder.factor(isBalanced() ? tokens / 2 : tokens, FactorKind::Ring));
    if (isBalanced()) // Each device has two halves, an early and a late one.
      ring.push_back(builder.factor(2, FactorKind::Sequential));
    for (int index : {0, 1, 2, outputGradient, output})
      if (index >= 0)
        operand(index, tokenDim(), ring);
    for (int index : {statistics, bias})
      if (index >= 0)
        operand(index, 2, ring);
    for (unsigned index = 0; index + 1 < op->getNumResults(); ++index)
      builder.result(index, 2, ring);
  }
  if (isBackward) {
    made(1, {keyHead});
    made(2, {keyHead});
    if (biasGradient >= 0)
      biasDims([&](int64_t dim, const DimFactors &factors) {
        builder.result(static_cast<unsigned>(biasGradient), dim, factors);
      });
  } else if (isTransformerEngine || (op->getNumResults() == 3 && !isNumbered())) {
    builder.result(1, 0, {example}).result(1, 1, queryHeads);
  }
  builder.rule.heavy = true;
  return builder.rule;
}

llvm::StringRef AttentionCall::whyWhole() const {
  if (dropout > 0)
    return "dropout draws its bits by an element's place in the call";
  return isNumbered() ? "packed sequences are numbered through all examples" : "";
}

llvm::StringRef AttentionCall::whyExamplesStay() const {
  bool hasSums = isTransformerEngine && !hasOwnLengths;
  return hasSums ? "lengths are sums over the examples before" : whyWhole();
}

/// What the ring is written for: the kernel's statistics put parts together, queries and keys are
/// split alike, and what masks them is known for each part.
llvm::StringRef AttentionCall::whyTokensStay() const {
  bool hasStatistics = isBackward ? statistics >= 0 : op->getNumResults() == 3;
  if (isTransformerEngine)
    return "calls of Transformer Engine are not looked into so far";
  if (!hasStatistics)
    return "without statistics parts cannot be put together";
  if (llvm::StringRef why = whyWhole(); !why.empty())
    return why;
  if (tokens != keyTokens)
    return "there are other keys than queries";
  if (isBalanced() && tokens % 2 != 0)
    return "an odd number of tokens has no halves";
  if (queryLengths >= 0 && segments == 1 && shapeOf(op->getOperand(queryLengths)).size() != 1)
    return "lengths are lists of one sequence";
  // Then one sequence at most has queries on one device and keys on another.
  bool isSelf = queryLengths < 0 ||
                (op->getOperand(queryLengths) == op->getOperand(keyLengths) &&
                 (queryOffsets < 0 || op->getOperand(queryOffsets) == op->getOperand(keyOffsets)));
  if (hasWindow() || segments > 1) {
    if (!isCausal)
      return "packed sequences or a window without a causal mask";
    if (bias >= 0)
      return "a bias together with packed sequences or a window";
    return isSelf ? "" : "queries have other lengths than keys";
  }
  if (bias < 0)
    return "";
  llvm::ArrayRef<int64_t> shape = shapeOf(op->getOperand(bias));
  if (shape[2] != tokens || shape[3] != keyTokens)
    return "the bias is not for each query and key";
  // It would have terms of examples that are too short for a part.
  bool isShared = biasGradient >= 0 && shape[0] != batch && queryLengths >= 0;
  return isShared ? "lengths together with the gradient of a bias for all examples" : "";
}

bool AttentionCall::gathersKeys() const {
  return mayGather() && hlo::CustomCallOp(op)->hasAttr(attr::gathersKeys);
}

double AttentionCall::flops() const {
  // Pairs of a query and a key that it sees; queries are the last ones of the keys.
  double rows = static_cast<double>(tokens), columns = static_cast<double>(keyTokens);
  double pairs = rows * columns;
  if (isCausal) {
    double seen = std::min(rows, columns);
    pairs -= seen * (seen - 1) / 2;
  }
  if (window > 0)
    pairs = std::min(pairs, rows * static_cast<double>(window));
  double all = static_cast<double>(batch) * static_cast<double>(heads) * pairs;
  double toScores = 2 * all * static_cast<double>(features);
  double toValues = 2 * all * static_cast<double>(valueFeatures);
  // Backward: scores again, and two products for each of the two forward.
  return isBackward ? 3 * toScores + 2 * toValues : toScores + toValues;
}

/// Changes fields of the configuration.
static void configure(hlo::CustomCallOp custom,
                      llvm::function_ref<void(llvm::json::Object &)> change) {
  std::optional<llvm::json::Value> config = configOf(custom);
  if (!config)
    return;
  change(*config->getAsObject()->getObject(kConfig));
  custom.setBackendConfigAttr(
      StringAttr::get(custom.getContext(), llvm::formatv("{0}", *config).str()));
}

void AttentionCall::setOwnSequences(hlo::CustomCallOp custom, bool holds) {
  configure(custom, [&](llvm::json::Object &fields) {
    if (holds)
      fields[kOwnSequences] = true;
    else
      fields.erase(kOwnSequences);
  });
}

void analysis::setMask(hlo::CustomCallOp custom, bool isCausal, bool isPadded, int64_t window,
                       int64_t segments) {
  configure(custom, [&](llvm::json::Object &fields) {
    fields["mask_type"] = isPadded   ? (isCausal ? "PADDING_CAUSAL" : "PADDING")
                          : isCausal ? "CAUSAL"
                                     : "NO_MASK";
    fields["sliding_window_length"] = window;
    fields["max_seg_per_batch"] = segments;
  });
}

void analysis::fitAttention(hlo::CustomCallOp custom) {
  std::optional<AttentionCall> call = AttentionCall::read(custom);
  if (!call)
    return;
  if (call->isTransformerEngine) {
    auto given = custom->getAttrOfType<DictionaryAttr>(kAttributes);
    if (!given)
      return;
    llvm::ArrayRef<int64_t> bias = shapeOf(custom->getOperand(3));
    NamedAttrList held(given);
    Builder builder(custom.getContext());
    for (auto [size, number] : {std::pair("input_batch", call->batch),
                                {"attn_heads", call->heads},
                                {"num_gqa_groups", call->keyHeads},
                                {"bias_batch", call->bias < 0 ? 0 : bias[0]},
                                {"bias_heads", call->bias < 0 ? 0 : bias[1]}})
      held.set(size, builder.getI64IntegerAttr(number));
    custom->setAttr(kAttributes, held.getDictionary(custom.getContext()));
    return;
  }
  configure(custom, [&](llvm::json::Object &fields) {
    llvm::json::Object *shape = fields.getObject("intermediate_tensor_shape");
    if (!shape)
      return;
    llvm::json::Array sizes;
    for (int64_t size : {call->batch, call->heads, call->tokens, call->keyTokens})
      sizes.push_back(std::to_string(size));
    (*shape)["dimensions"] = std::move(sizes);
  });
}

void AttentionCall::setOwnLengths(bool holds) {
  NamedAttrList held(op->getAttrOfType<DictionaryAttr>(kAttributes));
  if (holds)
    held.set(kOwnLengths, UnitAttr::get(op.getContext()));
  else
    held.erase(kOwnLengths);
  op->setAttr(kAttributes, held.getDictionary(op.getContext()));
  hasOwnLengths = holds;
}

static ShardingRule customCall(Operation *op) {
  if (std::optional<ShardingRule> rule = getCallRule(op))
    return *rule;
  if (std::optional<AttentionCall> call = AttentionCall::read(op))
    return call->rule();
  if (std::optional<TransformerEngineCall> call = TransformerEngineCall::read(op))
    return call->rule();
  if (std::optional<BlockScaledDot> call = BlockScaledDot::read(op))
    return call->rule();
  return RuleBuilder(op).rule; // Not looked into: it runs on whole tensors.
}

bool analysis::isKnownCall(Operation *op) {
  return AttentionCall::read(op) || TransformerEngineCall::read(op) || BlockScaledDot::read(op);
}

void analysis::attachCallRules(MLIRContext &context) {
  attachRule<customCall, hlo::CustomCallOp>(context);
}
