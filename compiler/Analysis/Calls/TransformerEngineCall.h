//===- TransformerEngineCall.h - kernels of Transformer Engine ---*- C++ -*-===//

#ifndef ALPA_COMPILER_ANALYSIS_CALLS_TRANSFORMERENGINECALL_H
#define ALPA_COMPILER_ANALYSIS_CALLS_TRANSFORMERENGINECALL_H

#include "compiler/Analysis/ShardingRule.h"
#include "dialects/StableHLO/StableHLOOps.h"

namespace alpa::analysis {

/// What an FFI call is given beside its operands.
class FfiAttributes {
public:
  explicit FfiAttributes(mlir::stablehlo::CustomCallOp op);

  std::optional<int64_t> number(llvm::StringRef name) const;
  std::optional<double> real(llvm::StringRef name) const;

private:
  mlir::DictionaryAttr given;
};

/// A call that Transformer Engine's JAX functions make, in the form of versions 2.0 to 2.20
/// (`transformer_engine/jax/cpp_extensions`). Rows are all dimensions but the last. Attention is
/// an AttentionCall.
///
///   te_norm_forward_ffi:  x, scale, (amax,) gamma, beta
///                         -> output, 4 of quantization, mean, 1 / deviation, workspace
///   te_norm_backward_ffi: output gradient, x, mean, 1 / deviation, gamma
///                         -> gradients of x, gamma and beta, workspace
///   te_scaled_(masked_|upper_triang_masked_)softmax_forward_ffi: logits, mask? -> output
///   te_scaled_(masked_|upper_triang_masked_)softmax_backward_ffi:
///                         output gradient, output -> gradient of the logits
///   te_act_lu_ffi:        x, scale, .. -> output, 4 of quantization
///   te_dact_dbias_quantize_ffi: output gradient, x, scale, ..
///                         -> gradient of x, 4 of quantization, gradient of the bias, workspace
///   te_gemm_ffi, te_gemm_v2_ffi: lhs, its scale, rhs, its scale, bias?, ..
///                         -> product plus bias, .., of te_gemm_ffi what GELU is applied to
///   te_dbias_quantize_ffi: x, scale, largest before?, .. -> quantized, quantized by columns,
///                         scales, scales by columns, largest, sum over rows, workspace
///   te_fused_topk_with_score_function_forward_ffi:  logits, bias
///                         -> probabilities, routing map, values for the backward call
///   te_fused_topk_with_score_function_backward_ffi: routing map, values, gradient -> gradient
///   te_fused_moe_aux_loss_forward_ffi:  probabilities, tokens per expert -> loss, factor
///   te_fused_moe_aux_loss_backward_ffi: factor, tokens per expert, gradient -> gradient
struct TransformerEngineCall {
  enum class Kind {
    NormForward,
    NormBackward,
    SoftmaxForward,
    SoftmaxBackward,
    Activation,
    ActivationBackward,
    Product,
    Quantize,
    Router, // Forward or backward: each row is worked on by itself.
    AuxLoss,
    AuxLossBackward,
  };
  /// Numbers as in transformer_engine/jax/csrc/extensions/misc.h.
  enum Scaling { NoScaling = 0, Delayed = 1, Blocks = 2, Current = 3 };
  enum class Mask { None, Given, Causal };

  mlir::stablehlo::CustomCallOp op;
  Kind kind = Kind::NormForward;
  // Of norms.
  bool isRootMeanSquare = false;
  bool isZeroCentered = false; // The weight is gamma plus one.
  double epsilon = 0;
  // Of softmax.
  Mask mask = Mask::None;
  double scale = 1;
  // Of products: all dimensions on one side of a boundary are contracted, the later ones of lhs
  // and the earlier ones of rhs unless it is transposed. A bias has those of rhs that are left.
  int64_t lhsBoundary = 0, rhsBoundary = 0;
  bool isLhsTransposed = false, isRhsTransposed = false;
  bool hasBias = false, hasGelu = false;
  // Of products and quantization.
  int64_t scaling = NoScaling;
  // Of quantization: the dimension where columns begin.
  int64_t flattenAxis = 0;
  // Of the loss of a router: what it multiplies by.
  double factor = 1;

  /// Nothing for other ops, and for calls of other forms: some that are quantized, other versions.
  static std::optional<TransformerEngineCall> read(mlir::Operation *op);

  /// Calls of which results are used that mix rows (gradients of weights, largest elements)
  /// stay whole; `alpa-import` writes those of norms' weights and of quantization in plain ops.
  ShardingRule rule() const;

  /// Of a product.
  double flops() const;
  llvm::SmallVector<int64_t> lhsContracting() const;
  llvm::SmallVector<int64_t> rhsContracting() const;
  mlir::Value rhs() const { return op->getOperand(2); }
  mlir::Value bias() const { return op->getOperand(4); }

  /// Of norms.
  mlir::Value input() const { return op->getOperand(kind == Kind::NormBackward ? 1 : 0); }
  mlir::Value gamma() const {
    return op->getOperand(op->getNumOperands() - (kind == Kind::NormForward ? 2 : 1));
  }
};

} // namespace alpa::analysis

#endif // ALPA_COMPILER_ANALYSIS_CALLS_TRANSFORMERENGINECALL_H
