//===- AttentionCall.h - calls of fused attention ---------------*- C++ -*-===//

#ifndef ALPA_COMPILER_ANALYSIS_CALLS_ATTENTIONCALL_H
#define ALPA_COMPILER_ANALYSIS_CALLS_ATTENTIONCALL_H

#include "compiler/Analysis/ShardingRule.h"
#include "dialects/StableHLO/StableHLOOps.h"

namespace alpa::analysis {

/// A call of cuDNN's fused attention as JAX makes it
/// (`jax.nn.dot_product_attention(.., implementation="cudnn")`), forward or backward.
/// Queries are [batch, tokens, heads, features] or, with `headsFirst`, [batch, heads,
/// tokens, features]; keys and values may have fewer heads, each for a group of the
/// queries'. Results are always [batch, heads, tokens, features].
///
///   forward:  query, key, value, bias?, lengths?, offsets? -> output, statistics?, workspace
///   backward: query, key, value, statistics, output gradient, bias?, output, lengths?, offsets?
///             -> gradients of query, key, value and bias?, workspace
///
/// Or as Transformer Engine makes it (`te_fused_attn_forward_ffi`, `te_fused_attn_backward_ffi`
/// of versions 2.3 to 2.20), where results are like operands, an operand may hold keys and values,
/// or all three, in a dimension in front of the heads, and lengths are sums over the examples
/// before:
///
///   forward:  query, key, value, bias, softmax offset?, seed, lengths, others
///             -> output, statistics, maximum?, random state, workspace
///   backward: query, key, value, bias, softmax offset?, statistics, random state, output, output
///             gradient, lengths, others -> gradients of query, key, value, bias and softmax
///             offset?, workspace
///
/// The statistics are the logarithms of the sums of exponentials, one for each row. cuDNN's of
/// packed sequences are [batch * sequences, heads, tokens], each from its sequence's first token
/// on, and lengths and offsets are numbered through all examples. With
/// `own_sequences` in the configuration, until `alpa-expand-maps`, statistics are [batch, heads,
/// tokens] like others and examples have lists of their own, lengths [batch, sequences] and offsets
/// [batch, sequences + 1] in tokens, where a length of zero or less is no sequence.
struct AttentionCall {
  mlir::stablehlo::CustomCallOp op;
  bool isBackward = false;
  bool headsFirst = false;
  bool isCausal = false;
  bool isPadded = false; // Keys and queries behind their example's lengths count nothing.
  bool isTransformerEngine = false;
  int64_t packed = 1;       // Of three, how many tensors the last that is not empty holds.
  bool hasPlainForm = true; // Whether `alpa-expand-kernels` knows what is computed.
  double scale = 1;
  double dropout = 0;   // The rate.
  int64_t window = 0;   // Keys that a query sees, itself the last; 0 for all.
  int64_t segments = 1; // Most sequences that are packed in one example.
  int64_t batch = 0, heads = 0, keyHeads = 0, tokens = 0, keyTokens = 0;
  int64_t features = 0, valueFeatures = 0;
  // Numbers of operands and results; -1 where there is none.
  int bias = -1, statistics = -1, outputGradient = -1, output = -1;
  int queryLengths = -1, keyLengths = -1;
  int queryOffsets = -1, keyOffsets = -1; // Where packed sequences begin, in numbers of elements.
  int biasGradient = -1;
  // Of Transformer Engine, those that the kernel does not read, for it draws and packs nothing.
  llvm::SmallVector<int> unread;

  /// Nothing for other ops and for kinds that are not known (8-bit floats, pages,
  /// functions of scores, ALiBi): those are calls like any others.
  static std::optional<AttentionCall> read(mlir::Operation *op);

  /// Dimensions of an operand like the query's.
  int64_t tokenDim() const { return headsFirst ? 2 : 1; }
  int64_t headDim() const { return headsFirst ? 1 : 2; }
  /// Whether the lengths of Transformer Engine are those of each example, [batch], which is an
  /// attribute of the kernel's until `alpa-expand-maps` sums them.
  bool hasOwnLengths = false;
  bool hasOwnSequences = false; // Of packed ones.
  static void setOwnSequences(mlir::stablehlo::CustomCallOp call, bool holds);
  /// Whether sequences are those of all examples.
  bool isNumbered() const { return segments > 1 && !hasOwnSequences; }
  void setOwnLengths(bool holds);

  /// Of devices that have so many tokens each: the kernels that each of them calls forward, and the
  /// tokens before its own whose keys it needs.
  int64_t windowKernels(int64_t own) const { return window > own ? 3 : window > 1 ? 2 : 1; }
  int64_t windowKeys(int64_t own) const { return std::min(window - 1, tokens - own); }

  ShardingRule rule() const;
  /// Why neither examples nor heads can be computed apart; empty where they can.
  llvm::StringRef whyWhole() const;
  /// The same of examples alone.
  llvm::StringRef whyExamplesStay() const;
  /// Whether devices can share the tokens of queries and keys: in a ring, or with the keys of a
  /// window from devices before.
  bool mayRing() const { return whyTokensStay().empty(); }
  /// What is against it; empty if nothing is.
  llvm::StringRef whyTokensStay() const;
  /// Whether they may as well have all keys and values, gathered: of a window that is too much.
  bool mayGather() const { return mayRing() && !hasWindow(); }
  /// Whether they do, if they share tokens.
  bool gathersKeys() const;
  /// The kernels that each of them calls then: causal, each half of its queries sees its own keys
  /// and those before.
  int64_t gatherKernels() const { return isBalanced() ? 4 : 1; }
  /// Whether the window leaves out anything.
  bool hasWindow() const { return window > 0 && window < tokens; }
  /// Whether devices that share tokens take an early and a late half each, to have as much to do.
  bool isBalanced() const { return isCausal && !hasWindow(); }
  /// Of the scores that the masks leave, which are all that the kernel computes.
  double flops() const;
};

/// Whether the compiler knows what a call computes, and so how it can be split.
bool isKnownCall(mlir::Operation *op);

/// Sets what a query sees: whether the keys behind its own place, whether those within lengths
/// only, and how many, 0 for all.
void setMask(mlir::stablehlo::CustomCallOp call, bool isCausal, bool isPadded, int64_t window,
             int64_t segments = 1);
/// Sets what the configuration or the attributes repeat of the operands' shapes.
void fitAttention(mlir::stablehlo::CustomCallOp call);

} // namespace alpa::analysis

#endif // ALPA_COMPILER_ANALYSIS_CALLS_ATTENTIONCALL_H
