//===- Registration.cpp - every dialect and pass of the compiler ----------===//

#include "compiler/Registration.h"

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Export/Passes.h"
#include "compiler/Import/Passes.h"
#include "compiler/Reshard/Passes.h"
#include "compiler/Schedule/Passes.h"
#include "compiler/Sharding/Passes.h"
#include "compiler/Spmd/Passes.h"
#include "compiler/Stage/Passes.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Chlo/ChloOps.h"
#include "dialects/Interop/InteropDialects.h"
#include "dialects/Sdy/SdyOps.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/Extensions/InlinerExtension.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Transforms/Passes.h"

void alpa::registerDialects(mlir::DialectRegistry &registry) {
  registry.insert<AlpaDialect, mlir::chlo::ChloDialect, mlir::func::FuncDialect,
                  mlir::sdy::SdyDialect, mlir::stablehlo::StablehloDialect>();
  registerInteropDialects(registry);
  mlir::func::registerInlinerExtension(registry);
  analysis::registerShardingRules(registry);
  // A location says where; a note with the whole op, often all of @main, hides the error.
  registry.addExtension(+[](mlir::MLIRContext *context, mlir::func::FuncDialect *) {
    context->printOpOnDiagnostic(false);
  });
}

void alpa::registerPasses() {
  mlir::registerCanonicalizerPass();
  mlir::registerCSEPass();
  mlir::registerInlinerPass();
  mlir::registerSymbolDCEPass();
  importer::registerAlpaImportPasses();
  sharding::registerShardingPasses();
  spmd::registerSpmdPasses();
  stage::registerAlpaStagePasses();
  schedule::registerAlpaSchedulePasses();
  reshard::registerAlpaReshardPasses();
  exporter::registerAlpaExportPasses();
}
