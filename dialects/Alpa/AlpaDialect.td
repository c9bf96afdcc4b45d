//===- AlpaDialect.td - meshes, shardings, stages and programs ------------===//

#ifndef ALPA_DIALECTS_ALPA_ALPADIALECT
#define ALPA_DIALECTS_ALPA_ALPADIALECT

include "mlir/IR/OpBase.td"

def Alpa_Dialect : Dialect {
  let name = "alpa";
  let cppNamespace = "::alpa";
  let summary = "Where a training step runs: meshes, shardings, stages, programs";
  let description = [{
    The dialect starts as attributes on StableHLO ops and ends as one program
    per mesh:

    ```
    import -> cluster -> search        alpa.phase, alpa.layer, alpa.stage, alpa.shardings
                           |           (discardable attributes on the ops of @main)
                         slice         one module per stage, alpa.value on signatures
                           |
                        schedule       alpa.program: run, send, recv, accumulate, free
                           |
                         export        sdy annotations and plan.json; no alpa left
    ```

    Discardable attributes are checked where that needs no second op
    (`alpa_attribute_c1`: a known attribute has the form that
    docs/ir.md gives it; unknown `alpa.*` names are left alone).
  }];
  let useDefaultAttributePrinterParser = 1;
  let hasOperationAttrVerify = 1;
  let hasRegionArgAttrVerify = 1;
  let hasRegionResultAttrVerify = 1;
  let extraClassDeclaration = [{
  private:
    void registerAttributes();
    void registerOps();
  }];
}

#endif // ALPA_DIALECTS_ALPA_ALPADIALECT
