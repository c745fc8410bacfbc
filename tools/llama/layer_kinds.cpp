#include "layer_kinds.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "config_limits.h"

namespace llama {
namespace {

struct NamedKind {
  std::string_view name;
  LayerKind kind;
};

/// Names in `layer_types`. Layers that only have an MLP, dense or of experts, stand there too in some models.
constexpr auto kNamedKinds = std::to_array<NamedKind>({
    {"full_attention", {Mixer::kFull}},
    {"attention", {Mixer::kFull}},
    {"global_attention", {Mixer::kFull}},
    {"sliding_attention", {Mixer::kWindowed}},
    {"chunked_attention", {Mixer::kWindowed}},
    {"local_attention", {Mixer::kWindowed}},
    {"linear_attention", {Mixer::kRecurrent}},
    {"mamba", {Mixer::kMamba}},
    {"mamba2", {Mixer::kMamba}},
    {"conv", {Mixer::kConvolution}},
    {"short_conv", {Mixer::kConvolution}},
    {"mlp", {Mixer::kNone}},
    {"moe", {Mixer::kNone, false, true}},
});

constexpr ConfigFields::Names kTypeLists = {"layer_types", "layers_block_type"};

bool contains(const std::vector<int64_t>& numbers, int64_t number) {
  return std::ranges::find(numbers, number) != numbers.end();
}

std::vector<LayerKind> kinds_of_names(const ConfigFields& fields, const std::vector<std::string>& names) {
  std::vector<LayerKind> kinds;
  for (const std::string& name : names) {
    const auto* found = std::ranges::find(kNamedKinds, name, &NamedKind::name);
    if (found == kNamedKinds.end()) {
      const char* field = fields.has({"layer_types"}) ? "layer_types" : "layers_block_type";
      fields.refuse(field,
                    "of which " + in_quotes(name) + " is not known: kvq plan --shape counts caches of any layers");
    }
    kinds.push_back(found->kind);
  }
  // Where MLPs are layers of their own, others have none.
  const auto is_mlp = [](const LayerKind& kind) { return kind.mixer == Mixer::kNone; };
  if (std::ranges::any_of(kinds, is_mlp)) {
    for (LayerKind& kind : kinds) kind.dense = kind.dense && is_mlp(kind);
  }
  return kinds;
}

/// Nemotron-H: layers are letters, and a mixer and its MLP are layers of their own.
std::vector<LayerKind> kinds_of_letters(const ConfigFields& fields, const std::string& letters, size_t n_layers) {
  std::vector<LayerKind> kinds;
  for (const char letter : letters) {
    if (letter == 'M') kinds.push_back({Mixer::kMamba, false});
    if (letter == '*') kinds.push_back({Mixer::kFull, false});
    if (letter == '-') kinds.push_back({Mixer::kNone, true});
    if (letter == 'E') kinds.push_back({Mixer::kNone, false, true});
  }
  if (letters.size() != n_layers || kinds.size() != n_layers) {
    fields.refuse("hybrid_override_pattern", "expected a letter of M, *, - and E for each layer");
  }
  return kinds;
}

/// 1 where a layer attends within a window or, in `attn_type_list`, to everything.
std::optional<Mixer> mixer_of_numbers(const ConfigFields& fields, int layer, size_t n_layers) {
  const auto number = [&](const char* name) {
    const std::vector<int64_t> numbers = fields.integers({name});
    if (numbers.size() != n_layers) fields.refuse(name, "expected a number for each layer");
    return numbers[static_cast<size_t>(layer)];
  };
  if (fields.has({"hybrid_layer_pattern"})) {
    return number("hybrid_layer_pattern") != 0 ? Mixer::kWindowed : Mixer::kFull;
  }
  if (fields.has({"attn_type_list"})) return number("attn_type_list") != 0 ? Mixer::kFull : Mixer::kRecurrent;
  return std::nullopt;
}

/// Layers between those that attend, which come at a period or are listed.
std::optional<Mixer> mixer_of_hybrid(const ConfigFields& fields, int layer) {
  if (fields.has({"linear_attn_config"})) {  // Kimi Linear counts layers from 1
    const JsonObject object = fields.object().object("linear_attn_config");
    const std::vector<int64_t> full = ConfigFields(object).integers({"full_attn_layers"});
    return contains(full, layer + 1) ? Mixer::kFull : Mixer::kRecurrent;
  }
  if (fields.has({"full_attention_interval"})) {
    const int64_t interval = fields.integer({"full_attention_interval"}, 1, kMaxLayers);
    return (layer + 1) % interval == 0 ? Mixer::kFull : Mixer::kRecurrent;
  }
  if (fields.has({"attn_layer_indices"})) {
    return contains(fields.integers({"attn_layer_indices"}), layer) ? Mixer::kFull : Mixer::kMamba;
  }
  if (fields.has({"attn_layer_period"})) {
    const int64_t period = fields.integer({"attn_layer_period"}, 1, kMaxLayers);
    const int64_t offset = fields.integer({"attn_layer_offset"}, 0, kMaxLayers, 0);
    return layer % period == offset ? Mixer::kFull : Mixer::kMamba;
  }
  return std::nullopt;
}

Mixer mixer_of_window(const ConfigFields& fields, int layer) {
  const bool has_window = fields.integer({"sliding_window", "sliding_window_size"}, -1, int64_t{1} << 40, -1) > 0 &&
                          fields.flag({"use_sliding_window"}, !fields.has({"max_window_layers"}));
  if (!has_window) return Mixer::kFull;
  const int64_t full = fields.integer({"max_window_layers"}, 0, kMaxLayers, 0);
  const int64_t period = fields.integer({"sliding_window_pattern", "_sliding_window_pattern"}, 1, kMaxLayers, 0);
  const bool is_full = layer < full || (period > 0 && (layer + 1) % period == 0);
  return is_full ? Mixer::kFull : Mixer::kWindowed;
}

/// From one list of MLPs' kinds or the other; nothing where there is none.
std::optional<bool> listed_experts(const ConfigFields& fields, int layer, size_t n_layers) {
  const std::vector<std::string> types = fields.strings({"mlp_layer_types"}, n_layers);
  if (!types.empty()) return types[static_cast<size_t>(layer)] == "sparse";
  if (fields.is_list("moe_layer_freq")) {
    const std::vector<int64_t> numbers = fields.integers({"moe_layer_freq"});
    if (numbers.size() != n_layers) fields.refuse("moe_layer_freq", "expected a number for each layer");
    return numbers[static_cast<size_t>(layer)] != 0;
  }
  if (fields.has({"moe_layers"})) return contains(fields.integers({"moe_layers"}), layer);
  return std::nullopt;
}

bool has_experts(const ConfigFields& fields, int layer, size_t n_layers) {
  const auto number = [&](ConfigFields::Names names, int64_t low, int64_t fallback) {
    return fields.integer(names, low, kMaxLayers, fallback);
  };
  if (number(kExpertCounts, 0, 0) == 0 || !fields.flag({"enable_moe_block"}, true)) return false;
  if (const std::optional<bool> listed = listed_experts(fields, layer, n_layers)) return *listed;
  if (contains(fields.integers({"mlp_only_layers"}), layer)) return false;
  if (layer < number({"first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"}, 0, 0)) return false;
  if (layer % number({"moe_layer_freq"}, 1, 1) != 0) return false;
  if (fields.has({"expert_layer_period"})) {
    return layer % number({"expert_layer_period"}, 1, 1) == number({"expert_layer_offset"}, 0, 0);
  }
  return (layer + 1) % number({"decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"}, 1, 1) == 0;
}

std::vector<LayerKind> mixers(const ConfigFields& fields, size_t n_layers) {
  const std::vector<std::string> names = fields.strings(kTypeLists, n_layers);
  if (!names.empty()) return kinds_of_names(fields, names);
  const std::string letters = fields.string({"hybrid_override_pattern"}, "");
  if (!letters.empty()) return kinds_of_letters(fields, letters, n_layers);
  std::vector<LayerKind> kinds(n_layers);
  for (size_t i = 0; i < n_layers; ++i) {
    const auto layer = static_cast<int>(i);
    std::optional<Mixer> mixer = mixer_of_numbers(fields, layer, n_layers);
    if (!mixer) mixer = mixer_of_hybrid(fields, layer);
    kinds[i].mixer = mixer ? *mixer : mixer_of_window(fields, layer);
  }
  return kinds;
}

}  // namespace

std::vector<LayerKind> layer_kinds(const ConfigFields& fields, int n_layers) {
  const auto n = static_cast<size_t>(n_layers);
  std::vector<LayerKind> kinds = mixers(fields, n);
  const bool both = fields.flag({"enable_moe_block"}, false);  // Gemma 4: experts beside an MLP
  for (size_t i = 0; i < n; ++i) {
    if (!kinds[i].dense || kinds[i].mixer == Mixer::kNone) continue;
    kinds[i].experts = has_experts(fields, static_cast<int>(i), n);
    kinds[i].dense = !kinds[i].experts || both;
  }
  return kinds;
}

}  // namespace llama
