#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llama {

/// Tokens beside the vocabulary, such as "<|user|>", found inside texts. A search takes the logarithm of their number.
class AddedTokens {
 public:
  struct Token {
    std::string content;
    int32_t id;
  };

  AddedTokens() = default;
  /// Of tokens with equal content the last counts.
  explicit AddedTokens(std::vector<Token> tokens);

  /// The longest that the text begins with; nullptr if there is none.
  const Token* longest_at(std::string_view text) const;
  const Token* find(std::string_view content) const;

 private:
  static constexpr size_t kNone = SIZE_MAX;

  std::vector<Token> tokens_;       // in ascending order
  std::vector<size_t> beginnings_;  // of each: the longest other token that it begins with, or kNone
  size_t longest_ = 0;
};

}  // namespace llama
