//===- Interop.cpp - attributes of JAX's and XLA's own dialects -----------===//

#include "dialects/Interop/Interop.h"

#include "mlir/IR/Dialect.h"

namespace {

/// A dialect whose only content is names of discardable attributes.
template <typename Derived> class AttributesOnly : public mlir::Dialect {
public:
  explicit AttributesOnly(mlir::MLIRContext *context)
      : Dialect(Derived::getDialectNamespace(), context, mlir::TypeID::get<Derived>()) {}
};

struct MhloDialect : AttributesOnly<MhloDialect> {
  using AttributesOnly::AttributesOnly;
  static constexpr llvm::StringLiteral getDialectNamespace() { return "mhlo"; }
};
struct JaxDialect : AttributesOnly<JaxDialect> {
  using AttributesOnly::AttributesOnly;
  static constexpr llvm::StringLiteral getDialectNamespace() { return "jax"; }
};
struct TfDialect : AttributesOnly<TfDialect> {
  using AttributesOnly::AttributesOnly;
  static constexpr llvm::StringLiteral getDialectNamespace() { return "tf"; }
};

} // namespace

void alpa::registerInteropDialects(mlir::DialectRegistry &registry) {
  registry.insert<MhloDialect, JaxDialect, TfDialect>();
}
