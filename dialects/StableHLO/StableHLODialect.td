//===- StableHLODialect.td - the dialect of single-device programs --------===//

#ifndef ALPA_DIALECTS_STABLEHLO_STABLEHLODIALECT
#define ALPA_DIALECTS_STABLEHLO_STABLEHLODIALECT

include "mlir/IR/OpBase.td"

def Stablehlo_Dialect : Dialect {
  let name = "stablehlo";
  let cppNamespace = "::mlir::stablehlo";
  let summary = "Tensor programs in the form in which JAX hands them over";
  let description = [{
    Our own definition of the StableHLO ops that JAX emits, after the public
    specification; names of ops, operands and attributes are the
    specification's, so that text goes both ways between this compiler and
    JAX.

    ```
    jax.jit(f).lower() -> text -> stablehlo (this dialect) -> passes -> text -> XLA
    ```

    The set is closed: an op outside of it is an error that lists the set.
    Every op lists its constraints with the specification's numbers
    (`dot_general_c12`); errors start with the label.
  }];
  let useDefaultAttributePrinterParser = 1;
  let useDefaultTypePrinterParser = 1;
  let hasConstantMaterializer = 1;
  let extraClassDeclaration = [{
    /// Any op that is not of the set is read by name, so that the error can
    /// name it.
    std::optional<ParseOpHook> getParseOperationHook(StringRef name) const override;

  private:
    void registerAttributes();
    void registerTypes();
    void registerOps();
  }];
}

#endif // ALPA_DIALECTS_STABLEHLO_STABLEHLODIALECT
