#include "tokenizer_parts.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <queue>

#include "error.h"
#include "unicode.h"

namespace llama {

namespace {

constexpr int32_t kNone = -1;

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

/// Both spellings of a merge: ["a", "b"], and the older "a b".
std::pair<std::string, std::string> read_merge(const nlohmann::json& merge, const std::string& place) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  throw Error(place + " is not a pair of tokens");
}

/// The symbols of a word as a list from which merged neighbours drop out.
class SymbolList {
 public:
  explicit SymbolList(const std::vector<int32_t>& ids) : symbols_(ids.size()) {
    const auto count = static_cast<int32_t>(ids.size());
    for (int32_t i = 0; i < count; ++i) at(i) = {ids[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : kNone};
  }

  int32_t id(int32_t position) const { return symbols_[static_cast<size_t>(position)].id; }
  int32_t previous(int32_t position) const { return symbols_[static_cast<size_t>(position)].previous; }
  int32_t next(int32_t position) const { return symbols_[static_cast<size_t>(position)].next; }

  void merge_with_next(int32_t position, int32_t merged) {
    Symbol& right = at(next(position));
    Symbol& left = at(position);
    left.id = merged;
    left.next = right.next;
    if (left.next != kNone) at(left.next).previous = position;
    right = {kNone, kNone, kNone};
  }

 private:
  struct Symbol {
    int32_t id;
    int32_t previous;
    int32_t next;
  };

  Symbol& at(int32_t position) { return symbols_[static_cast<size_t>(position)]; }

  std::vector<Symbol> symbols_;
};

}  // namespace

BytePairEncoder::BytePairEncoder(const JsonObject& model, bool byte_level) : byte_level_(byte_level) {
  if (model.string("type", "BPE") != "BPE") model.refuse("type", "expected \"BPE\"");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.string(affix, "").empty()) model.refuse(affix, "which is not supported");
  }
  if (model.number("dropout", 0.0, 1.0, 0.0) != 0.0) model.refuse("dropout", "which is not supported");
  ignore_merges_ = model.boolean("ignore_merges", false);
  read_vocabulary(model);
  read_unknowns(model);
  read_merges(model);
}

void BytePairEncoder::read_vocabulary(const JsonObject& model) {
  const JsonObject vocabulary = model.object("vocab");
  vocabulary_.reserve(vocabulary.json().size());
  for (const auto& [token, value] : vocabulary.json().items()) {
    const std::optional<int64_t> id = as_integer(value);
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      throw Error(vocabulary.place() + ": the id of " + in_quotes(token) + " is " + value.dump() +
                  ", expected an integer from 0 to 2^31 - 1");
    }
    vocabulary_.emplace(token, static_cast<int32_t>(*id));
  }
}

void BytePairEncoder::read_unknowns(const JsonObject& model) {
  byte_fallback_ = model.boolean("byte_fallback", false);
  fuse_unknown_ = model.boolean("fuse_unk", false);
  if (model.has("unk_token")) {
    const auto found = vocabulary_.find(model.string("unk_token"));
    if (found == vocabulary_.end()) model.refuse("unk_token", "which is not in the vocabulary");
    unknown_ = found->second;
  }
  byte_tokens_.fill(kNone);
  if (byte_level_) {
    for (size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
      const auto found = vocabulary_.find(to_byte_alphabet(std::string(1, static_cast<char>(byte))));
      if (found != vocabulary_.end()) byte_tokens_[byte] = found->second;
    }
  } else if (byte_fallback_) {
    for (const auto& [token, id] : vocabulary_) {
      if (const int byte = byte_of_token(token); byte >= 0) byte_tokens_[static_cast<size_t>(byte)] = id;
    }
  }
  const auto missing = std::find(byte_tokens_.begin(), byte_tokens_.end(), kNone) - byte_tokens_.begin();
  const bool every_byte = missing == static_cast<std::ptrdiff_t>(byte_tokens_.size());
  if (every_byte || (unknown_ != kNone && (byte_level_ || !byte_fallback_))) return;
  if (byte_level_ || byte_fallback_) {
    throw Error(model.place() + ": vocab has no token for byte " + std::to_string(missing));
  }
  throw Error(model.place() + ": neither unk_token nor byte_fallback says what becomes of unknown characters");
}

void BytePairEncoder::read_merges(const JsonObject& model) {
  const nlohmann::json& list = model.at("merges");
  if (!list.is_array()) model.refuse("merges", "expected a list");
  merges_.reserve(list.size());
  for (size_t rank = 0; rank < list.size(); ++rank) {
    const std::string place = model.place() + ": merges[" + std::to_string(rank) + "]";
    const auto [left, right] = read_merge(list[rank], place);
    const auto id_of = [&](const std::string& token) {
      const auto found = vocabulary_.find(token);
      if (found == vocabulary_.end()) throw Error(place + ": token " + in_quotes(token) + " is not in the vocabulary");
      return found->second;
    };
    const int32_t left_id = id_of(left);
    const int32_t right_id = id_of(right);
    // The last of equal merges counts, as in the format.
    merges_.insert_or_assign(pair_key(left_id, right_id), Merge{static_cast<uint32_t>(rank), id_of(left + right)});
  }
}

const BytePairEncoder::Merge* BytePairEncoder::find_merge(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found != merges_.end() ? &found->second : nullptr;
}

void BytePairEncoder::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() > size_t{std::numeric_limits<int32_t>::max()}) {
    throw Error("a text of " + std::to_string(word.size()) + " bytes is too long to encode as one word");
  }
  if (ignore_merges_) {
    const auto found = byte_level_ ? vocabulary_.find(to_byte_alphabet(word)) : vocabulary_.find(word);
    if (found != vocabulary_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  merge_all(initial_symbols(word), ids);
}

std::vector<int32_t> BytePairEncoder::initial_symbols(std::string_view word) const {
  std::vector<int32_t> symbols;
  symbols.reserve(word.size());
  const auto add_unknown = [&] {
    if (!fuse_unknown_ || symbols.empty() || symbols.back() != unknown_) symbols.push_back(unknown_);
  };
  if (byte_level_) {
    for (char c : word) {
      const int32_t id = byte_tokens_[static_cast<unsigned char>(c)];
      id != kNone ? symbols.push_back(id) : add_unknown();
    }
    return symbols;
  }
  while (!word.empty()) {
    const std::string_view character = word.substr(0, std::max<size_t>(utf8_character_size(word), 1));
    word.remove_prefix(character.size());
    if (const auto found = vocabulary_.find(character); found != vocabulary_.end()) {
      symbols.push_back(found->second);
    } else if (byte_fallback_) {
      for (char c : character) symbols.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
    } else {
      add_unknown();
    }
  }
  return symbols;
}

void BytePairEncoder::merge_all(const std::vector<int32_t>& initial, std::vector<int32_t>& ids) const {
  SymbolList symbols(initial);
  // Rank above position: the smallest number is the next merge.
  std::vector<uint64_t> candidates;
  const auto candidate_at = [&](int32_t position) -> std::optional<uint64_t> {
    if (position == kNone || symbols.next(position) == kNone) return std::nullopt;
    const Merge* merge = find_merge(symbols.id(position), symbols.id(symbols.next(position)));
    if (merge == nullptr) return std::nullopt;
    return uint64_t{merge->rank} << 32 | static_cast<uint32_t>(position);
  };
  for (int32_t i = 0; std::cmp_less(i, initial.size()); ++i) {
    if (const auto candidate = candidate_at(i)) candidates.push_back(*candidate);
  }
  std::priority_queue queue(std::greater<>(), std::move(candidates));
  while (!queue.empty()) {
    const uint64_t candidate = queue.top();
    queue.pop();
    const auto position = static_cast<int32_t>(candidate & 0xffffffffu);
    // Stale if an earlier merge took one of the two symbols.
    if (candidate_at(position) != candidate) continue;
    const Merge* merge = find_merge(symbols.id(position), symbols.id(symbols.next(position)));
    symbols.merge_with_next(position, merge->merged);
    for (int32_t changed : {symbols.previous(position), position}) {
      if (const auto next = candidate_at(changed)) queue.push(*next);
    }
  }
  for (int32_t i = initial.empty() ? kNone : 0; i != kNone; i = symbols.next(i)) ids.push_back(symbols.id(i));
}

}  // namespace llama
