#pragma once

#include <array>
#include <functional>
#include <unordered_map>
#include <vector>

#include "json_document.h"

namespace llama {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

using Vocabulary = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

/// Byte-pair encoding of one word: of all neighbours that may be merged, the pair that comes first in the list of
/// merges is, the leftmost if it occurs several times, until no more can be.
class BytePairEncoder {
 public:
  /// \param model       the `model` of a tokenizer.json
  /// \param byte_level  words start as bytes in the byte-level alphabet instead of as characters
  BytePairEncoder(const JsonObject& model, bool byte_level);

  /// Append the ids of `word` to `ids`. Time grows as n log n.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    uint32_t rank;
    int32_t merged;
  };

  void read_vocabulary(const JsonObject& model);
  void read_unknowns(const JsonObject& model);
  void read_merges(const JsonObject& model);
  std::vector<int32_t> initial_symbols(std::string_view word) const;
  const Merge* find_merge(int32_t left, int32_t right) const;
  void merge_all(const std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const;

  Vocabulary vocabulary_;
  std::unordered_map<uint64_t, Merge> merges_;  // key: left id, right id
  std::array<int32_t, 256> byte_tokens_{};      // of the byte-level alphabet or "<0x00>" to "<0xFF>"; -1: none
  bool byte_level_;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool fuse_unknown_ = false;
  int32_t unknown_ = -1;
};

}  // namespace llama
