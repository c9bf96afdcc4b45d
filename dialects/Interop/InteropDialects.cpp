//===- InteropDialects.cpp - dialects known by attributes only ------------===//

#include "dialects/Interop/InteropDialects.h"

#include "mlir/IR/Dialect.h"

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

} // namespace

void alpa::registerInteropDialects(DialectRegistry &registry) {
  registry.insert<MhloDialect, JaxDialect, TfDialect>();
}
