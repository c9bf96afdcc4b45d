//===- InteropDialects.cpp - dialects known by attributes only ------------===//

#include "dialects/Interop/InteropDialects.h"

#include "dialects/Common/Diagnostics.h"

#include "mlir/IR/Dialect.h"
#include "mlir/IR/DialectImplementation.h"

using namespace mlir;

namespace {

struct MhloDialect : Dialect {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(MhloDialect)
  explicit MhloDialect(MLIRContext *context)
      : Dialect(getDialectNamespace(), context, TypeID::get<MhloDialect>()) {}
  static constexpr StringLiteral getDialectNamespace() { return StringLiteral("mhlo"); }
};

struct JaxDialect : Dialect {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(JaxDialect)
  explicit JaxDialect(MLIRContext *context)
      : Dialect(getDialectNamespace(), context, TypeID::get<JaxDialect>()) {}
  static constexpr StringLiteral getDialectNamespace() { return StringLiteral("jax"); }
};

struct TfDialect : Dialect {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(TfDialect)
  explicit TfDialect(MLIRContext *context)
      : Dialect(getDialectNamespace(), context, TypeID::get<TfDialect>()) {}
  static constexpr StringLiteral getDialectNamespace() { return StringLiteral("tf"); }
};

struct QuantDialect : Dialect {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(QuantDialect)
  explicit QuantDialect(MLIRContext *context)
      : Dialect(getDialectNamespace(), context, TypeID::get<QuantDialect>()) {}
  static constexpr StringLiteral getDialectNamespace() { return StringLiteral("quant"); }

  Type parseType(DialectAsmParser &parser) const override {
    alpa::withCode(parser.emitError(parser.getNameLoc()), alpa::ErrorCode::UnsupportedOp)
        << "quantized type !quant." << parser.getFullSymbolSpec()
        << " is not supported; write the program in integers and scales, as StableHLO's pass "
           "stablehlo-legalize-quant-to-math does";
    return {};
  }
};

} // namespace

void alpa::registerInteropDialects(DialectRegistry &registry) {
  registry.insert<MhloDialect, JaxDialect, TfDialect, QuantDialect>();
}
