#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer_replacement.h"

namespace llama {

/// Turns tokens as the vocabulary spells them back into text.
class TokenDecoder {
 public:
  /// \param json  the `decoder` of a file: ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, or a Sequence.
  TokenDecoder(const nlohmann::json& json, const std::string& place);

  /// The bytes of one token inside a text.
  std::string piece(std::string_view token) const;

  /// How much of the front of a whole text was put there by the encoder.
  size_t prefix_size(std::string_view text) const;

 private:
  void add_stages(const nlohmann::json& json, const std::string& place);

  std::vector<Replacement> replacements_;
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool fused_ = false;
  std::string prefix_;  // at most prefix_count_ times in front of a text
  size_t prefix_count_ = 0;
};

/// The byte that a token like "<0x0A>" stands for, or -1.
int byte_of_token(std::string_view token);

}  // namespace llama
