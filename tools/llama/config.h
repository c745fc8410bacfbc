#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace llama {

/// What the gate of an MLP goes through.
enum class Activation {
  kSilu,
  kGelu,  ///< its approximation by tanh
};

/// The shape of a decoder-only model of the Llama family, from its `config.json`.
struct ModelConfig {
  std::string architecture;  ///< "llama", "mistral", "qwen2", "qwen3", "gemma2" or "gemma3_text"
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int n_layers = 0;
  int q_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int max_positions = 0;
  float rms_norm_eps = 0.0f;
  float rope_theta = 0.0f;
  std::vector<float> inv_freq;   ///< [head_dim / 2], rope_scaling "llama3" or "linear" already applied
  bool tied_embeddings = false;  ///< the output projection is the embedding matrix
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;  ///< RMSNorm over head_dim of every q and k head, before RoPE
  Activation activation = Activation::kSilu;
  bool offset_norms = false;           ///< weights of norms are stored less 1
  bool output_norms = false;           ///< what attention and MLP add to the residual is normed before
  float embedding_scale = 1.0f;        ///< of what the first layer reads
  float attention_scale = 0.0f;        ///< of q·k; 0: 1 / sqrt(head_dim)
  float attention_softcap = 0.0f;      ///< of its logits; 0: none
  float logit_softcap = 0.0f;          ///< of the model's; 0: none
  int sliding_window = 0;              ///< 0: every layer attends to all earlier tokens
  std::vector<bool> windowed;          ///< [n_layers] that have the window; empty: all
  std::vector<float> window_inv_freq;  ///< inv_freq of these; empty: as others

  bool is_windowed(int layer) const { return windowed.empty() || windowed[static_cast<size_t>(layer)]; }
  /// 0: the layer attends to all earlier tokens.
  int window_of(int layer) const { return is_windowed(layer) ? sliding_window : 0; }
  int bos_token = -1;           ///< -1: none
  std::vector<int> eos_tokens;  ///< any of them ends a text; may be empty
};

/// The `config.json` in a directory, or the file itself if it is one of that kind. An Error that says what there is
/// instead if there is none.
std::filesystem::path config_file(const std::filesystem::path& directory_or_file);

/// Read and check `config.json` in a directory, or a file of that kind. Layouts other than Llama, Mistral, Qwen2,
/// Qwen3, Gemma 2 and Gemma 3 (text) are refused by name.
ModelConfig load_config(const std::filesystem::path& directory_or_file);

/// What a norm's weights are stored less.
inline float norm_offset(const ModelConfig& config) { return config.offset_norms ? 1.0f : 0.0f; }

/// Which linear layers of a decoder layer read the same inputs.
enum class LinearInput {
  kAttention,  // q, k and v
  kOutput,     // o
  kMlp,        // gate and up
  kDown
};

/// What a linear layer is in its decoder layer.
enum class LinearRole { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr size_t kLinearRoles = 7;

struct LinearLayer {
  std::string name;  // in the checkpoint, without ".weight" and ".bias"
  int64_t out;
  int64_t in;
  bool bias;
  int32_t layer;  // whose it is
  LinearInput input;
  LinearRole role;

  int64_t weights() const { return out * in; }
};

/// q, k, v, o, gate, up and down.
std::array<LinearLayer, kLinearRoles> linear_layers(const ModelConfig& config, int32_t layer);
std::vector<LinearLayer> all_linear_layers(const ModelConfig& config);

}  // namespace llama
