#include "added_tokens.h"

#include <algorithm>
#include <utility>

namespace llama {

AddedTokens::AddedTokens(std::vector<Token> tokens) {
  std::ranges::stable_sort(tokens, {}, &Token::content);
  for (Token& token : tokens) {
    if (!tokens_.empty() && tokens_.back().content == token.content) tokens_.pop_back();
    tokens_.push_back(std::move(token));
  }
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& content = tokens_[i].content;
    size_t other = i > 0 ? i - 1 : kNone;
    while (other != kNone && !content.starts_with(tokens_[other].content)) other = beginnings_[other];
    beginnings_.push_back(other);
    longest_ = std::max(longest_, content.size());
  }
}

const AddedTokens::Token* AddedTokens::longest_at(std::string_view text) const {
  const std::string_view front = text.substr(0, longest_);
  const auto after = std::ranges::upper_bound(tokens_, front, {}, &Token::content);
  if (after == tokens_.begin()) return nullptr;
  // Tokens that the text begins with are this one or its beginnings.
  auto i = static_cast<size_t>(after - tokens_.begin()) - 1;
  const auto common = std::ranges::mismatch(tokens_[i].content, front).in2 - front.begin();
  while (i != kNone && std::cmp_greater(tokens_[i].content.size(), common)) i = beginnings_[i];
  return i != kNone && !tokens_[i].content.empty() ? &tokens_[i] : nullptr;
}

const AddedTokens::Token* AddedTokens::find(std::string_view content) const {
  const auto found = std::ranges::lower_bound(tokens_, content, {}, &Token::content);
  return found != tokens_.end() && found->content == content ? &*found : nullptr;
}

}  // namespace llama
