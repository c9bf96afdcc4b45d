//===- ProgramText.h - instruction lists as lines of text --------*- C++ -*-===//

#ifndef ALPA_COMPILER_EXPORT_PROGRAMTEXT_H
#define ALPA_COMPILER_EXPORT_PROGRAMTEXT_H

#include "compiler/Schedule/ProgramOrder.h"

#include <string>
#include <vector>

namespace alpa::exporter {

/// A program with a number (slot) for each buffer; docs/plan.md gives the form of
/// the lines. Slots are used again once freed.
struct ProgramText {
  std::vector<std::string> lines;
  std::vector<uint32_t> ends; // Of each line: how many instructions are in it and before it.
  int64_t slots = 0;
};

/// `reshards` has the numbers of transfers in the plan, by symbol.
ProgramText programText(ProgramOp program, MeshAttr mesh,
                        const llvm::DenseMap<mlir::Attribute, int64_t> &reshards);

/// The order of all programs' lines: from which mesh how many come next.
std::vector<std::string> orderText(const schedule::ProgramTable &table,
                                   llvm::ArrayRef<schedule::Place> places,
                                   llvm::ArrayRef<ProgramText> programs);

} // namespace alpa::exporter

#endif // ALPA_COMPILER_EXPORT_PROGRAMTEXT_H
