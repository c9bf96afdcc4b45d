//===- Registration.cpp - every dialect and pass of the compiler ----------===//

#include "compiler/Registration.h"

#include "compiler/Export/Passes.h"
#ifdef ALPA_HAS_PLANNER
#include "compiler/Import/Passes.h"
#endif
#include "compiler/Schedule/Passes.h"
#include "compiler/Stage/Passes.h"
#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/Dialect/Func/Extensions/InlinerExtension.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Transforms/Passes.h"

void alpa::registerDialects(mlir::DialectRegistry &registry) {
  registry.insert<AlpaDialect, mlir::func::FuncDialect>();
  mlir::func::registerInlinerExtension(registry);
}

void alpa::registerPasses() {
  mlir::registerCanonicalizerPass();
  mlir::registerCSEPass();
  mlir::registerInlinerPass();
  mlir::registerSymbolDCEPass();
#ifdef ALPA_HAS_PLANNER
  registerAlpaImportPasses();
  registerAlpaStagePasses();
#else
  registerAlpaSliceStages();
#endif
  registerAlpaSchedulePasses();
  registerAlpaExportPasses();
}
