#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "error.h"
#include "jinja.h"

namespace llama::jinja {

/// What rendering one template may take, memory and time alike: bytes of the texts and lists that it makes and reads.
class Budget {
 public:
  /// \param given  bytes of what the template is to render.
  explicit Budget(size_t given) : most_(std::min(kMost, kLeast + kPerByte * given)) {}

  static constexpr size_t kStep = 64;  // what a statement, an expression or an item of a list counts as

  void take(size_t bytes) {
    taken_ += bytes;
    if (taken_ <= most_) return;
    throw Error("the template takes more than " + std::to_string(most_) + " bytes of texts, items of lists and steps");
  }

  /// A call within the present one, as long as the result lives.
  Nesting nested() {
    if (depth_ == kMostCalls) throw Error("the template is nested too deeply, or a macro calls itself without end");
    return Nesting(depth_);
  }

 private:
  static constexpr size_t kLeast = size_t{32} << 20;
  static constexpr size_t kPerByte = 256;
  static constexpr size_t kMost = size_t{512} << 20;
  static constexpr int32_t kMostCalls = 1000;  // what the stack has room for

  size_t most_;
  size_t taken_ = 0;
  int32_t depth_ = 0;
};

}  // namespace llama::jinja
