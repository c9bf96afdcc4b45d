//===- StructText.h - `<name = value, ...>` as text --------------*- C++ -*-===//

#ifndef ALPA_DIALECTS_COMMON_STRUCTTEXT_H
#define ALPA_DIALECTS_COMMON_STRUCTTEXT_H

#include "mlir/IR/OpImplementation.h"

namespace alpa {

struct StructField {
  llvm::StringRef name;
  llvm::function_ref<mlir::ParseResult()> parse;
};

/// `<name = value, ...>` in any order, each name at most once.
mlir::ParseResult parseStruct(mlir::AsmParser &parser, llvm::ArrayRef<StructField> fields);

/// `[0, 1]`
mlir::ParseResult parseDims(mlir::AsmParser &parser, llvm::SmallVectorImpl<int64_t> &dims);
void printDims(mlir::AsmPrinter &printer, llvm::ArrayRef<int64_t> dims);

/// Prints `<name = value, ...>`; empty lists are left out unless asked for.
class StructPrinter {
public:
  explicit StructPrinter(mlir::AsmPrinter &printer) : printer(printer) { printer << "<"; }
  ~StructPrinter() { printer << ">"; }
  StructPrinter(const StructPrinter &) = delete;
  StructPrinter &operator=(const StructPrinter &) = delete;

  StructPrinter &dims(llvm::StringRef name, llvm::ArrayRef<int64_t> value, bool always = false) {
    if (!value.empty() || always) {
      start(name);
      printDims(printer, value);
    }
    return *this;
  }
  template <typename T> StructPrinter &value(llvm::StringRef name, T value) {
    start(name) << value;
    return *this;
  }
  mlir::AsmPrinter &start(llvm::StringRef name) {
    printer << (first ? "" : ", ") << name << " = ";
    first = false;
    return printer;
  }

private:
  mlir::AsmPrinter &printer;
  bool first = true;
};

} // namespace alpa

#endif // ALPA_DIALECTS_COMMON_STRUCTTEXT_H
