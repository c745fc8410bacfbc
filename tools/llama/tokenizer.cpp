#include "tokenizer.h"

#include <nlohmann/json.hpp>

#include "added_tokens.h"
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

constexpr size_t kMaxAddedTokenBytes = 1024;  // compared at every place of a text
constexpr uint64_t kMergeSteps = 8;           // per byte of a normalized text

struct AddedToken {
  int32_t id;
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
    tokens.push_back({static_cast<int32_t>(token.integer("id", 0, INT32_MAX)), token.string("content"),
                      token.boolean("special", false)});
    if (tokens.back().content.size() > kMaxAddedTokenBytes) {
      token.refuse("content", "expected at most " + std::to_string(kMaxAddedTokenBytes) + " bytes");
    }
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

  /// Append the ids of a text, or of a part of the text that the budget is for.
  void encode(std::string_view text, TextBudget& budget, std::vector<int32_t>& ids) const;

  /// The bytes of every token inside a text.
  void read_pieces(const std::vector<std::optional<std::string>>& tokens);

  std::string source;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BytePairEncoder encoder;
  TokenDecoder decoder;
  AddedTokens added;
  std::vector<std::optional<std::string>> pieces;  // by id
};

Tokenizer::Parts::Parts(const JsonObject& root)
    : source(root.place()),
      normalizer(or_null(root.find("normalizer")), source + ": normalizer"),
      pre_tokenizer(or_null(root.find("pre_tokenizer")), source + ": pre_tokenizer"),
      encoder(root.object("model"), pre_tokenizer.byte_level()),
      decoder(root.at("decoder"), source + ": decoder") {
  const std::vector<AddedToken> added_tokens = read_added_tokens(root);
  std::vector<AddedTokens::Token> contents;
  IdTable table(encoder.vocabulary().size() + added_tokens.size(), source);
  for (const auto& [token, id] : encoder.vocabulary()) table.add(id, token);
  for (const AddedToken& token : added_tokens) {
    const auto known = encoder.vocabulary().find(token.content);
    if (known != encoder.vocabulary().end() && known->second != token.id) {
      throw Error(source + ": token " + in_quotes(token.content) + " has both id " + std::to_string(known->second) +
                  " and id " + std::to_string(token.id));
    }
    table.add(token.id, token.content);
    contents.push_back({token.content, token.id});
  }
  added = AddedTokens(std::move(contents));
  read_pieces(table.tokens());
  for (const AddedToken& token : added_tokens) {
    pieces[static_cast<size_t>(token.id)] = token.special ? std::string() : token.content;
  }
}

void Tokenizer::Parts::encode(std::string_view text, TextBudget& budget, std::vector<int32_t>& ids) const {
  std::string normalized = normalizer.apply(std::string(text), budget);
  budget.take(kMergeSteps * normalized.size(), source);
  for (const std::string& word : pre_tokenizer.split(std::move(normalized), budget)) encoder.encode(word, ids);
}

void Tokenizer::Parts::read_pieces(const std::vector<std::optional<std::string>>& tokens) {
  size_t spelled = 0;
  for (const auto& token : tokens) spelled += token ? token->size() : 0;
  TextBudget budget(spelled);
  size_t bytes = 0;
  for (const auto& token : tokens) {
    pieces.push_back(token ? std::optional(decoder.piece(*token, budget)) : std::nullopt);
    bytes += token ? pieces.back()->size() : 0;
    budget.check_size(bytes, decoder.place());
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
  TextBudget budget(text.size());
  parts_->encode(text, budget, ids);
  return ids;
}

std::vector<int32_t> Tokenizer::encode_with_added(std::string_view text) const {
  std::vector<int32_t> ids;
  TextBudget budget(text.size());
  size_t begin = 0;
  const auto encode_until = [&](size_t end) {
    if (end == begin) return;
    parts_->encode(text.substr(begin, end - begin), budget, ids);
  };
  for (size_t i = 0; i < text.size();) {
    const AddedTokens::Token* longest = parts_->added.longest_at(text.substr(i));
    if (longest == nullptr) {
      ++i;
      continue;
    }
    encode_until(i);
    ids.push_back(longest->id);
    begin = i += longest->content.size();
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
  if (const AddedTokens::Token* added = parts_->added.find(token)) return added->id;
  const Vocabulary& vocabulary = parts_->encoder.vocabulary();
  const auto found = vocabulary.find(token);
  return found != vocabulary.end() ? std::optional(found->second) : std::nullopt;
}

}  // namespace llama
