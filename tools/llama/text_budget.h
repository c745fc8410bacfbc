#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace llama {

/// Bounds of what the stages of a tokenizer may make of one text and of their work, in proportion to its bytes: real
/// files stay far below them, and files come with downloaded weights.
class TextBudget {
 public:
  explicit TextBudget(size_t bytes)
      : bytes_(bytes), most_bytes_(16 * bytes + (size_t{64} << 10)), most_steps_(128 * uint64_t{bytes} + 4'000'000) {}

  /// Throws Error, naming `place`, if a stage made more bytes than the text may grow to.
  void check_size(size_t bytes, const std::string& place) const;

  /// A step is about a byte read, or an item of a regular expression tried. False: no steps are left.
  bool take(uint64_t steps) {
    steps_ += steps;
    return steps_ <= most_steps_;
  }
  void take(uint64_t steps, const std::string& place) {
    if (!take(steps)) refuse_work(place);
  }
  [[noreturn]] void refuse_work(const std::string& place) const;

 private:
  size_t bytes_;
  size_t most_bytes_;
  uint64_t most_steps_;
  uint64_t steps_ = 0;
};

}  // namespace llama
