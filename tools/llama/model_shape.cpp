#include "model_shape.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "config.h"
#include "config_limits.h"
#include "error.h"
#include "model_matrices.h"

namespace llama {
namespace {

constexpr double kMaxParameters = 1e15;

/// Heads of one kind of layers: models whose windowed or global layers differ have fields for them beside the usual
/// ones.
class Heads {
 public:
  Heads(const ConfigFields& fields, Mixer mixer) : fields_(fields), is_windowed_(mixer == Mixer::kWindowed) {}

  int queries() const {
    return number(is_windowed_ ? "swa_num_attention_heads" : nullptr, {"num_attention_heads", "n_head", "n_heads"},
                  kMaxHeads);
  }
  int keys_and_values(int queries) const {
    const bool for_global = !is_windowed_ && fields_.flag({"attention_k_eq_v"}, true);
    const char* special =
        is_windowed_ ? "swa_num_key_value_heads" : (for_global ? "num_global_key_value_heads" : nullptr);
    return number(special, {"num_key_value_heads", "num_kv_heads", "multi_query_group_num"}, kMaxHeads, queries);
  }
  int key_dim(int queries) const {
    const ConfigFields::Names usual = {"head_dim", "kv_channels", "attention_head_dim"};
    const char* special = is_windowed_ ? "swa_head_dim" : "global_head_dim";
    if (fields_.has({special}) || fields_.has(usual)) return number(special, usual, kMaxHeadDim);
    const int64_t hidden = fields_.integer({"hidden_size", "n_embd", "d_model"}, 1, kMaxWidth);
    if (hidden % queries != 0) {
      fields_.refuse("hidden_size", "which num_attention_heads, " + std::to_string(queries) +
                                        ", does not divide; head_dim is missing");
    }
    return static_cast<int>(hidden / queries);
  }
  int value_dim(int key_dim) const {
    return number(is_windowed_ ? "swa_v_head_dim" : nullptr, {"v_head_dim"}, kMaxHeadDim, key_dim);
  }

 private:
  int number(const char* special, ConfigFields::Names usual, int64_t high, int64_t fallback = 0) const {
    if (special != nullptr && fields_.has({special})) return static_cast<int>(fields_.integer({special}, 1, high));
    return static_cast<int>(fallback != 0 ? fields_.integer(usual, 1, high, fallback)
                                          : fields_.integer(usual, 1, high));
  }

  const ConfigFields& fields_;
  bool is_windowed_;
};

/// How far back the tokens of a layer see.
void read_window(const ConfigFields& fields, LayerShape& layer) {
  if (layer.mixer != Mixer::kWindowed) return;
  const auto size = [&](ConfigFields::Names names) {
    const int64_t given = fields.integer(names, -1, int64_t{1} << 40, 0);
    return static_cast<int>(std::clamp<int64_t>(given, 0, std::numeric_limits<int>::max()));
  };
  layer.chunk = size({"attention_chunk_size"});
  if (layer.chunk == 0) layer.window = size({"sliding_window", "sliding_window_size"});
}

/// Latent attention: a token leaves one vector, whose first channels all heads expand to their keys and values.
LayerShape latent_layer(const ConfigFields& fields, Mixer mixer) {
  LayerShape layer{.mixer = mixer, .kv_heads = 1, .is_latent = true};
  layer.q_heads = Heads(fields, mixer).queries();
  layer.value_dim = static_cast<int>(fields.integer({"kv_lora_rank"}, 1, kMaxHeadDim));
  layer.key_dim = layer.value_dim + static_cast<int>(fields.integer({"qk_rope_head_dim"}, 1, kMaxHeadDim));
  read_window(fields, layer);
  return layer;
}

LayerShape attending_layer(const ConfigFields& fields, Mixer mixer) {
  if (fields.has({"kv_lora_rank"})) return latent_layer(fields, mixer);
  const Heads heads(fields, mixer);
  LayerShape layer{.mixer = mixer};
  layer.q_heads = heads.queries();
  layer.kv_heads = heads.keys_and_values(layer.q_heads);
  layer.key_dim = heads.key_dim(layer.q_heads);
  layer.value_dim = heads.value_dim(layer.key_dim);
  read_window(fields, layer);
  if (layer.q_heads % layer.kv_heads != 0) {
    fields.refuse("num_key_value_heads", "which does not divide num_attention_heads, " + std::to_string(layer.q_heads));
  }
  return layer;
}

/// The last `num_kv_shared_layers` layers attend to what the last layer of their kind before them cached.
void share_caches(const ConfigFields& fields, std::vector<LayerShape>& layers) {
  const auto n = static_cast<int64_t>(layers.size());
  const int64_t own = n - fields.integer({"num_kv_shared_layers"}, 0, n, 0);
  if (own == 0) return;
  for (int64_t i = own; i < n; ++i) {
    LayerShape& layer = layers[static_cast<size_t>(i)];
    for (int64_t k = own - 1; k >= 0 && layer.reads_layer < 0; --k) {
      if (layers[static_cast<size_t>(k)].mixer == layer.mixer) layer.reads_layer = static_cast<int>(k);
    }
    if (layer.attends() && layer.reads_layer < 0) {
      fields.refuse("num_kv_shared_layers", "but no layer before is like layer " + std::to_string(i));
    }
  }
}

std::vector<std::string> uncounted_parts(const ConfigFields& fields) {
  std::vector<std::string> parts;
  if (fields.has({"vision_config", "audio_config", "vit_config"})) parts.emplace_back("encoders of images and sound");
  if (fields.integer({"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"}, 0, kMaxLayers, 0) > 0) {
    parts.emplace_back("layers that draft further tokens (MTP)");
  }
  if (fields.has({"altup_num_inputs"})) parts.emplace_back("AltUp and LAuReL");
  if (fields.has({"index_head_dim"})) parts.emplace_back("keys of the indexer that chooses tokens to attend to");
  return parts;
}

}  // namespace

double ModelShape::parameters() const {
  return std::accumulate(matrices.begin(), matrices.end(), static_cast<double>(other_numbers),
                         [](double sum, const WeightMatrix& each) { return sum + each.parameters(); });
}

double ModelShape::active_parameters() const {
  return std::accumulate(
      matrices.begin(), matrices.end(), static_cast<double>(other_numbers),
      [](double sum, const WeightMatrix& each) { return sum + each.parameters() * each.share_read(); });
}

bool ModelShape::has_experts() const {
  return std::ranges::any_of(matrices, [](const WeightMatrix& each) { return each.read >= 0; });
}

ModelShape load_model_shape(const std::filesystem::path& directory_or_file) {
  const std::filesystem::path path = config_file(directory_or_file);
  const nlohmann::json document = read_json(path);
  const ConfigFields fields(JsonObject(document, path.string()));
  ModelShape shape;
  const auto n_layers =
      static_cast<int>(fields.integer({"num_hidden_layers", "num_layers", "n_layer", "n_layers"}, 1, kMaxLayers));
  const std::vector<LayerKind> kinds = layer_kinds(fields, n_layers);
  for (const LayerKind& kind : kinds) {
    shape.layers.push_back(kind.attends() ? attending_layer(fields, kind.mixer) : LayerShape{.mixer = kind.mixer});
  }
  share_caches(fields, shape.layers);
  shape.max_positions = static_cast<int>(fields.integer(
      {"max_position_embeddings", "n_positions", "model_max_length", "seq_length", "max_seq_len"}, 1, kMaxPositions));
  shape.uncounted = uncounted_parts(fields);
  add_weights(fields, kinds, shape);
  if (shape.parameters() > kMaxParameters) throw Error(path.string() + ": more than 10^15 parameters");
  return shape;
}

}  // namespace llama
