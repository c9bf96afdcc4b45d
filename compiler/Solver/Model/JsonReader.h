//===- JsonReader.h - JSON read from left to right ---------------*- C++ -*-===//
//
// Problem files hold millions of integers, and what reads them wants to name the
// line of a mistake; a tree of values would cost memory and forget the lines. The
// first error is kept; after it every call returns false.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_MODEL_JSONREADER_H
#define ALPA_COMPILER_SOLVER_MODEL_JSONREADER_H

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/Twine.h"

#include <cstdint>
#include <string>
#include <vector>

namespace alpa {

class JsonReader {
public:
  explicit JsonReader(llvm::StringRef text)
      : at(text.begin()), end(text.end()), lineBegin(text.begin()) {}

  /// Calls `field` with each key; it must read or skip the value.
  bool object(llvm::function_ref<bool(const std::string &)> field);
  /// Calls `entry` before each value; it must read or skip the value.
  bool array(llvm::function_ref<bool()> entry);
  bool integers(std::vector<int64_t> &values);
  /// 1.0 and 1e3 are integers too, as long as 64 bits hold them.
  bool integer(int64_t &value);
  bool string(std::string &value);
  /// Any value.
  bool skip();
  /// Nothing but white space is left.
  bool finish();

  /// The first character of what comes next; 0 at the end.
  char peek();
  /// Of what comes next, from 1.
  unsigned line();

  /// Notes an error at the current place; always false.
  bool fail(const llvm::Twine &message);
  /// Passes `ok` on; names the value that an error is in, from the inside out.
  bool within(const llvm::Twine &where, bool ok);
  /// The first error in one line, with line and column.
  std::string error() const { return place + context + message; }

private:
  void skipSpace();
  bool expect(char wanted);
  bool expected(const llvm::Twine &what);
  bool nest();
  bool real(const char *begin, int64_t &value);
  bool escape(std::string &value);
  bool hex(unsigned &code);

  const char *at;
  const char *end;
  const char *lineBegin;
  unsigned lineNumber = 1;
  unsigned depth = 0;
  std::string place, context, message;
};

} // namespace alpa

#endif // ALPA_COMPILER_SOLVER_MODEL_JSONREADER_H
