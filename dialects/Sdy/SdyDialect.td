//===- SdyDialect.td - sharding annotations -------------------------------===//

#ifndef ALPA_DIALECTS_SDY_SDYDIALECT
#define ALPA_DIALECTS_SDY_SDYDIALECT

include "mlir/IR/OpBase.td"

def Sdy_Dialect : Dialect {
  let name = "sdy";
  let cppNamespace = "::mlir::sdy";
  let summary = "Sharding annotations, in the text form that XLA reads";
  let description = [{
    The part of Shardy's dialect that JAX emits and that stages carry when they
    are handed to XLA: meshes, shardings of tensors, sharding constraints and
    manual computations.

    ```
    alpa-export-shardy -> sdy -> text -> XLA's partitioner
    ```

    Shardings are discardable attributes named `sdy.sharding` on arguments and
    results (`#sdy.sharding<..>`) and on ops (`#sdy.sharding_per_value<..>`).
  }];
  let useDefaultAttributePrinterParser = 1;
  let extraClassDeclaration = [{
  private:
    void registerAttributes();
  }];
}

#endif // ALPA_DIALECTS_SDY_SDYDIALECT
