//===- ProgramText.h - instruction lists as lines of text --------*- C++ -*-===//

#ifndef ALPA_COMPILER_EXPORT_PROGRAMTEXT_H
#define ALPA_COMPILER_EXPORT_PROGRAMTEXT_H

#include "dialects/Alpa/AlpaDialect.h"

#include <string>
#include <vector>

namespace alpa {

/// A program with a number (slot) for each buffer; docs/plan.md gives the form of
/// the lines. Slots are used again once freed.
struct ProgramText {
  std::vector<std::string> lines;
  int64_t slots = 0;
};

/// `reshards` has the numbers of transfers in the plan, by symbol.
ProgramText programText(ProgramOp program, MeshAttr mesh,
                        const llvm::DenseMap<mlir::Attribute, int64_t> &reshards);

} // namespace alpa

#endif // ALPA_COMPILER_EXPORT_PROGRAMTEXT_H
