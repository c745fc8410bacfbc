#include "linear_layers.h"

namespace llama {

std::array<LinearLayer, kLinearRoles> linear_layers(const ModelConfig& config, int32_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  const int64_t q_size = int64_t{config.q_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.kv_heads} * config.head_dim;
  using enum LinearRole;
  return {{{attention + "q_proj", q_size, hidden, config.qkv_bias, layer, LinearInput::kAttention, kQ},
           {attention + "k_proj", kv_size, hidden, config.qkv_bias, layer, LinearInput::kAttention, kK},
           {attention + "v_proj", kv_size, hidden, config.qkv_bias, layer, LinearInput::kAttention, kV},
           {attention + "o_proj", hidden, q_size, config.o_bias, layer, LinearInput::kOutput, kO},
           {mlp + "gate_proj", intermediate, hidden, config.mlp_bias, layer, LinearInput::kMlp, kGate},
           {mlp + "up_proj", intermediate, hidden, config.mlp_bias, layer, LinearInput::kMlp, kUp},
           {mlp + "down_proj", hidden, intermediate, config.mlp_bias, layer, LinearInput::kDown, kDown}}};
}

std::vector<LinearLayer> all_linear_layers(const ModelConfig& config) {
  std::vector<LinearLayer> layers;
  for (int32_t i = 0; i < config.n_layers; ++i) {
    for (LinearLayer& layer : linear_layers(config, i)) layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace llama
