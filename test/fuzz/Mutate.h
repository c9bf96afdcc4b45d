//===- Mutate.h - damage to texts --------------------------------*- C++ -*-===//

#ifndef ALPA_TEST_FUZZ_MUTATE_H
#define ALPA_TEST_FUZZ_MUTATE_H

#include <random>
#include <string>

namespace alpa {

class Mutator {
public:
  explicit Mutator(unsigned seed) : random(seed) {}

  size_t below(size_t bound) { return random() % bound; }

  /// One random change; `other` is a text to take parts from.
  void damage(std::string &text, const std::string &other);

private:
  void rename(std::string &text, const std::string &other);
  /// Begin and length of something: a number, a word, a line, a bracketed part.
  std::pair<size_t, size_t> piece(const std::string &text);

  std::mt19937 random;
};

} // namespace alpa

#endif // ALPA_TEST_FUZZ_MUTATE_H
