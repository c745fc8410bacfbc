#include "tokenizer.h"

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "error.h"
#include "json_document.h"
#include "tokenizer_parts.h"

namespace llama {

namespace {

/// Every id has one spelling; ids may have gaps, but fewer than there are tokens.
class IdTable {
 public:
  IdTable(size_t token_count, const std::string& source) : source_(source), limit_(2 * token_count + 1) {}

  void add(int64_t id, const std::string& token) {
    if (id < 0 || std::cmp_greater_equal(id, limit_)) {
      throw Error(source_ + ": the id of token " + in_quotes(token) + " is " + std::to_string(id) +
                  ", out of proportion to the number of tokens");
    }
    const auto index = static_cast<size_t>(id);
    if (index >= tokens_.size()) tokens_.resize(index + 1);
    if (tokens_[index] && *tokens_[index] != token) {
      throw Error(source_ + ": id " + std::to_string(id) + " belongs to both " + in_quotes(*tokens_[index]) + " and " +
                  in_quotes(token));
    }
    tokens_[index] = token;
  }

  const std::vector<std::optional<std::string>>& tokens() const { return tokens_; }

 private:
  std::string source_;
  size_t limit_;
  std::vector<std::optional<std::string>> tokens_;  // by id
};

struct AddedToken {
  int64_t id;
  std::string content;
  bool special;
};

std::vector<AddedToken> read_added_tokens(const JsonObject& root) {
  std::vector<AddedToken> tokens;
  const nlohmann::json* list = root.find("added_tokens");
  if (list == nullptr) return tokens;
  if (!list->is_array()) root.refuse("added_tokens", "expected a list");
  for (size_t i = 0; i < list->size(); ++i) {
    const JsonObject token((*list)[i], root.place() + ": added_tokens[" + std::to_string(i) + "]");
    tokens.push_back({token.integer("id", 0, INT32_MAX), token.string("content"), token.boolean("special", false)});
  }
  return tokens;
}

const nlohmann::json& or_null(const nlohmann::json* value) {
  static const nlohmann::json null;
  return value != nullptr ? *value : null;
}

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(const JsonObject& root);

  const std::string& piece(int32_t id) const {
    if (id < 0 || std::cmp_greater_equal(id, pieces.size()) || !pieces[static_cast<size_t>(id)]) {
      throw Error(source + ": token id " + std::to_string(id) + " is not in the vocabulary");
    }
    return *pieces[static_cast<size_t>(id)];
  }

  /// The longest added token that the text begins with; nullptr if there is none.
  const Vocabulary::value_type* added_at(std::string_view text) const {
    const auto [first, last] = added_by_first_byte.equal_range(text.front());
    const Vocabulary::value_type* longest = nullptr;
    for (auto token = first; token != last; ++token) {
      const bool longer = longest == nullptr || token->second->first.size() > longest->first.size();
      if (longer && text.starts_with(token->second->first)) longest = token->second;
    }
    return longest;
  }

  std::string source;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BytePairEncoder encoder;
  TokenDecoder decoder;
  Vocabulary added;
  std::unordered_multimap<char, const Vocabulary::value_type*> added_by_first_byte;
  std::vector<std::optional<std::string>> pieces;  // by id
};

Tokenizer::Parts::Parts(const JsonObject& root)
    : source(root.place()),
      normalizer(or_null(root.find("normalizer")), source + ": normalizer"),
      pre_tokenizer(or_null(root.find("pre_tokenizer")), source + ": pre_tokenizer"),
      encoder(root.object("model"), pre_tokenizer.byte_level()),
      decoder(root.at("decoder"), source + ": decoder") {
  const std::vector<AddedToken> added_tokens = read_added_tokens(root);
  IdTable table(encoder.vocabulary().size() + added_tokens.size(), source);
  for (const auto& [token, id] : encoder.vocabulary()) table.add(id, token);
  for (const AddedToken& token : added_tokens) {
    const auto known = encoder.vocabulary().find(token.content);
    if (known != encoder.vocabulary().end() && known->second != token.id) {
      throw Error(source + ": token " + in_quotes(token.content) + " has both id " + std::to_string(known->second) +
                  " and id " + std::to_string(token.id));
    }
    table.add(token.id, token.content);
    added.insert_or_assign(token.content, static_cast<int32_t>(token.id));
  }
  for (const Vocabulary::value_type& token : added) {
    if (!token.first.empty()) added_by_first_byte.emplace(token.first.front(), &token);
  }
  for (const std::optional<std::string>& token : table.tokens()) {
    pieces.push_back(token ? std::optional(decoder.piece(*token)) : std::nullopt);
  }
  for (const AddedToken& token : added_tokens) {
    pieces[static_cast<size_t>(token.id)] = token.special ? std::string() : token.content;
  }
}

Tokenizer::Tokenizer(const std::filesystem::path& tokenizer_json) {
  const nlohmann::json document = read_json(tokenizer_json);
  parts_ = std::make_unique<const Parts>(JsonObject(document, tokenizer_json.string()));
}

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  for (const std::string& word : parts_->pre_tokenizer.split(parts_->normalizer.apply(std::string(text)))) {
    parts_->encoder.encode(word, ids);
  }
  return ids;
}

std::vector<int32_t> Tokenizer::encode_with_added(std::string_view text) const {
  std::vector<int32_t> ids;
  size_t begin = 0;
  const auto encode_until = [&](size_t end) {
    if (end == begin) return;
    const std::vector<int32_t> more = encode(text.substr(begin, end - begin));
    ids.insert(ids.end(), more.begin(), more.end());
  };
  for (size_t i = 0; i < text.size();) {
    const Vocabulary::value_type* longest = parts_->added_at(text.substr(i));
    if (longest == nullptr) {
      ++i;
      continue;
    }
    encode_until(i);
    ids.push_back(longest->second);
    begin = i += longest->first.size();
  }
  encode_until(text.size());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (int32_t id : ids) text += parts_->piece(id);
  return text.erase(0, parts_->decoder.prefix_size(text));
}

std::string Tokenizer::decode_piece(int32_t id) const { return parts_->piece(id); }
int Tokenizer::vocab_size() const { return static_cast<int>(parts_->pieces.size()); }

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
  for (const Vocabulary* tokens : {&parts_->added, &parts_->encoder.vocabulary()}) {
    if (const auto found = tokens->find(token); found != tokens->end()) return found->second;
  }
  return std::nullopt;
}

}  // namespace llama
