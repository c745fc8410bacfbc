#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llama {

/// A byte-pair-encoding tokenizer read from a `tokenizer.json`: the Llama 2 layout (U+2581 for spaces, byte fallback)
/// and the byte-level layout (Llama 3, Qwen). Ids equal those of the file's own tools; parts of the format that would
/// change them and are not built here are refused by name when loading. Constant calls may run concurrently.
class Tokenizer {
 public:
  explicit Tokenizer(const std::filesystem::path& tokenizer_json);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Ids of plain text: no BOS is added, and added or special tokens spelled in `text` are text like any other.
  /// Bytes that are not UTF-8 are encoded one by one, so that decode() returns them unchanged. Throws Error where the
  /// file lets a text grow, or asks for work, out of proportion to its length.
  std::vector<int32_t> encode(std::string_view text) const;

  /// The same of text in which added and special tokens are spelled, as a chat template writes it: each becomes its id,
  /// the longest where several begin at the same place.
  std::vector<int32_t> encode_with_added(std::string_view text) const;

  /// The text of `ids`, without the space that a Llama 2 encode() puts in front. Special tokens give nothing. Tokens of
  /// raw bytes give those bytes, so the text of arbitrary ids need not be UTF-8. Throws Error for an id outside the
  /// vocabulary.
  std::string decode(std::span<const int32_t> ids) const;

  /// The bytes of one token as they appear inside a text, possibly a part of a character; for streaming.
  std::string decode_piece(int32_t id) const;

  /// One more than the largest id, added tokens included.
  int vocab_size() const;

  /// Id of a token or added token by its spelling in the file, for example "</s>".
  std::optional<int32_t> token_id(std::string_view token) const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace llama
