#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "llama/model.h"

namespace cli {

/// What the attention of every layer took and gave for some tokens.
struct AttentionRecord {
  struct Layer {
    std::vector<float> q, k, v;   // [tokens, heads, head_dim], before RoPE
    std::vector<float> attended;  // [tokens, q_heads, head_dim]
  };
  int32_t tokens = 0;
  int32_t head_dim = 0;
  std::vector<Layer> layers;
};

/// Run `tokens` at the end of the session, which is one of the model's.
AttentionRecord record_attention(llama::Model& model, llama::Session session, std::span<const int32_t> tokens);

/// How far attention over the session's cache is from the recorded one when it gets the same queries, keys and values:
/// the mean of ‖o − o_recorded‖₁ / ‖o_recorded‖₁ over layers, queries and query heads.
double attention_error(llama::Model& model, llama::Session session, const AttentionRecord& record);

}  // namespace cli
