#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "layer_kinds.h"

namespace llama {

/// Heads of a decoder layer, if it attends.
struct LayerShape {
  Mixer mixer = Mixer::kFull;
  int q_heads = 0;
  int kv_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  bool is_latent = false;  ///< MLA: values are the first `value_dim` channels of the one key
  int window = 0;          ///< tokens that one sees, with itself; 0: all
  int chunk = 0;           ///< a token sees those of its chunk of so many; 0: all
  int reads_layer = -1;    ///< whose keys and values it attends to; -1: its own

  bool attends() const { return mixer == Mixer::kFull || mixer == Mixer::kWindowed; }
  bool has_cache() const { return attends() && reads_layer < 0; }
  bool has_heads_of(const LayerShape& other) const {
    return q_heads == other.q_heads && kv_heads == other.kv_heads && key_dim == other.key_dim &&
           value_dim == other.value_dim && is_latent == other.is_latent && window == other.window &&
           chunk == other.chunk;
  }
};

/// Linear layers of one shape.
struct WeightMatrix {
  int64_t out = 0;
  int64_t in = 0;
  int64_t count = 1;
  bool bias = false;
  int64_t read = -1;  ///< how many of them a token needs; -1: all

  /// Without those of biases.
  double weights() const { return static_cast<double>(out) * static_cast<double>(in) * static_cast<double>(count); }
  double parameters() const { return weights() + (bias ? static_cast<double>(out) * static_cast<double>(count) : 0.0); }
  double share_read() const { return read < 0 ? 1.0 : static_cast<double>(read) / static_cast<double>(count); }
};

/// What a decoder consists of, as far as its `config.json` says: enough to count bytes, not to run it.
struct ModelShape {
  std::vector<LayerShape> layers;
  std::vector<WeightMatrix> matrices;  ///< empty: not known
  uint64_t other_numbers = 0;          ///< of tensors that are never packed: embeddings, norms, biases of routers
  uint64_t looked_up_numbers = 0;      ///< of these, tables of which a token reads a row
  int max_positions = 0;
  std::vector<std::string> uncounted;  ///< parts of the model that the numbers leave out

  double parameters() const;
  /// Those of experts that a token does not need left out.
  double active_parameters() const;
  bool has_experts() const;
};

/// Read `config.json` in a directory, or a file of that kind. Goes by the names of fields, not of architectures; a
/// field that is needed and missing is named in the Error.
ModelShape load_model_shape(const std::filesystem::path& directory_or_file);

}  // namespace llama
