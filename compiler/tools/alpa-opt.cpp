//===- alpa-opt.cpp - run passes on a StableHLO file ----------------------===//

#include "compiler/Registration.h"

#include "mlir/Tools/mlir-opt/MlirOptMain.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  alpa::registerDialects(registry);
  alpa::registerPasses();
  return mlir::asMainReturnCode(
      mlir::MlirOptMain(argc, argv, "alpa-opt: parallelizing passes on StableHLO\n", registry));
}
