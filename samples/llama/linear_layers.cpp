#include "linear_layers.h"

namespace llama {

std::array<LinearLayer, 7> linear_layers(const ModelConfig& config, int32_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  const int64_t q_size = int64_t{config.q_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.kv_heads} * config.head_dim;
  return {{{attention + "q_proj", q_size, hidden, config.qkv_bias, layer, LinearInput::kAttention},
           {attention + "k_proj", kv_size, hidden, config.qkv_bias, layer, LinearInput::kAttention},
           {attention + "v_proj", kv_size, hidden, config.qkv_bias, layer, LinearInput::kAttention},
           {attention + "o_proj", hidden, q_size, config.o_bias, layer, LinearInput::kOutput},
           {mlp + "gate_proj", intermediate, hidden, config.mlp_bias, layer, LinearInput::kMlp},
           {mlp + "up_proj", intermediate, hidden, config.mlp_bias, layer, LinearInput::kMlp},
           {mlp + "down_proj", hidden, intermediate, config.mlp_bias, layer, LinearInput::kDown}}};
}

}  // namespace llama
