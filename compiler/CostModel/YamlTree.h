//===- YamlTree.h - YAML text as a tree with lines ---------------*- C++ -*-===//
//
// Cluster descriptions and profiles are read into a small tree first, so that
// fields may come in any order and each keeps its line.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_COSTMODEL_YAMLTREE_H
#define ALPA_COMPILER_COSTMODEL_YAMLTREE_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace alpa::cost {

struct YamlValue {
  enum Kind { Null, Scalar, Map, List } kind = Null;
  unsigned line = 0;
  std::string text;                                   // Of a scalar.
  std::vector<std::pair<std::string, YamlValue>> map; // In the order of the file.
  std::vector<YamlValue> list;

  /// For messages: "nothing", "'text'", "a mapping", "a list".
  std::string describe() const;
  /// The field of that name, or null.
  const YamlValue *find(llvm::StringRef name) const;
};

/// An error says file and line. `what` is what the text describes, for messages.
llvm::Expected<YamlValue> readYaml(llvm::StringRef text, llvm::StringRef where,
                                   llvm::StringRef what);

/// What a number is multiplied with for what is written behind it ("GiB", "us"). The power
/// of ten is read as a part of the number, so that 1.9us is 1.9e-6 to the last digit.
struct Unit {
  llvm::StringRef name;
  double factor;
  int exponent = 0;
};

/// Reads fields; every method returns false (or null) after an error. Errors are collected.
class FieldReader {
protected:
  FieldReader(llvm::StringRef where) : where(where) {}

  bool error(const YamlValue &at, const llvm::Twine &field, const llvm::Twine &found,
             const llvm::Twine &expected);
  /// All of them, a line each.
  llvm::Error takeError() const;
  bool checkMap(const YamlValue &value, llvm::StringRef path,
                llvm::ArrayRef<llvm::StringRef> fields, llvm::StringRef expected);
  static std::string join(llvm::StringRef path, llvm::StringRef name);
  /// A child that must be there; null after an error.
  const YamlValue *child(const YamlValue &map, llvm::StringRef path, llvm::StringRef name,
                         llvm::StringRef expected);
  bool readNumber(const YamlValue &map, llvm::StringRef path, llvm::StringRef name,
                  llvm::StringRef expected, double &result, bool allowZero = false);
  /// The same with a unit behind the number, or none.
  bool readQuantity(const YamlValue &map, llvm::StringRef path, llvm::StringRef name,
                    llvm::ArrayRef<Unit> units, llvm::StringRef expected, double &result,
                    bool allowZero = false, double most = std::numeric_limits<double>::max());
  bool readCount(const YamlValue &map, llvm::StringRef path, llvm::StringRef name, int64_t most,
                 int64_t &result);

  std::string where;
  std::vector<std::string> messages;
};

/// The shortest text that reads back as the same number.
std::string printNumber(double value);

} // namespace alpa::cost

#endif // ALPA_COMPILER_COSTMODEL_YAMLTREE_H
