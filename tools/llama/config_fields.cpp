#include "config_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "error.h"

namespace llama {
namespace {

/// Value of a field that models of some kind need not give. `norms` (of a layer, of the hidden size), `qk_norm`,
/// `o_bias`, `mlp_bias`, `mlp_gate` and `attention_sinks` often have no field at all. The first that applies counts.
struct Assumption {
  std::string_view model_type;  // how its name begins
  std::string_view field;
  int64_t value;
};

constexpr auto kAssumptions = std::to_array<Assumption>({
    {"gemma4", "global_head_dim", 512},
    {"gemma4", "sliding_window_pattern", 6},
    {"gemma3_", "sliding_window_pattern", 6},
    {"gemma3_", "vocab_size", 262208},
    {"gemma3_", "num_attention_heads", 8},
    {"gemma3_", "num_key_value_heads", 4},
    {"gemma3_", "max_position_embeddings", 131072},
    {"gemma2", "sliding_window_pattern", 2},
    {"gemma4", "qk_norm", 1},
    {"gemma3", "qk_norm", 1},
    {"gemma4", "norms", 4},
    {"gemma3", "norms", 4},
    {"gemma2", "norms", 4},
    {"glm4_moe", "norms", 2},
    {"glm4", "norms", 4},
    {"gemma", "tie_word_embeddings", 1},
    {"gemma", "head_dim", 256},
    {"cohere", "tie_word_embeddings", 1},
    {"cohere", "norms", 1},
    {"cohere2", "sliding_window_pattern", 4},
    {"qwen2", "attention_bias", 1},
    {"qwen2", "o_bias", 0},
    {"qwen3_next", "attn_output_gate", 1},
    {"qwen3_next", "full_attention_interval", 4},
    {"qwen3_5", "attn_output_gate", 1},
    {"qwen3_5", "full_attention_interval", 4},
    {"qwen3", "qk_norm", 1},
    {"glm", "o_bias", 0},
    {"gpt_oss", "attention_sinks", 1},
    {"gpt_oss", "mlp_bias", 1},
    {"gpt_oss", "mlp_gate", 1},
    {"llama4", "n_shared_experts", 1},
    {"nemotron", "mlp_gate", 0},
    {"starcoder2", "mlp_gate", 0},
    {"phi3", "mlp_gate", 1},
    {"phi4", "mlp_gate", 1},
    {"phimoe", "mlp_gate", 1},
    {"phi", "mlp_gate", 0},
    {"gpt", "mlp_gate", 0},
    {"opt", "mlp_gate", 0},
    {"bloom", "mlp_gate", 0},
    {"falcon_h1", "mlp_gate", 1},
    {"falcon", "mlp_gate", 0},
});

constexpr ConfigFields::Names kLayerCounts = {"num_hidden_layers", "num_layers", "n_layer", "n_layers"};

/// The object that describes the decoder: models that also see or hear nest it.
JsonObject find_decoder(const JsonObject& root) {
  JsonObject object = root;
  for (bool found = true; found;) {
    if (std::ranges::any_of(kLayerCounts, [&](const char* name) { return object.has(name); })) return object;
    found = false;
    for (const char* name : {"text_config", "language_config", "llm_config", "thinker_config"}) {
      if (!object.has(name)) continue;
      object = object.object(name);
      found = true;
      break;
    }
  }
  return object;
}

}  // namespace

ConfigFields::ConfigFields(const JsonObject& root) : root_(root), decoder_(find_decoder(root)) {
  model_type_ = decoder_.string("model_type", root_.string("model_type", ""));
}

ConfigFields::Place ConfigFields::place_of(Names names) const {
  for (const JsonObject* object : {&decoder_, &root_}) {
    for (const char* name : names) {
      if (object->has(name)) return {object, name};
    }
  }
  return {};
}

const int64_t* ConfigFields::assumed(Names names) const {
  for (const Assumption& each : kAssumptions) {
    if (!model_type_.starts_with(each.model_type)) continue;
    if (std::ranges::any_of(names, [&](const char* name) { return each.field == name; })) return &each.value;
  }
  return nullptr;
}

bool ConfigFields::has(Names names) const { return place_of(names).object != nullptr || assumed(names) != nullptr; }

int64_t ConfigFields::integer(Names names, int64_t low, int64_t high) const {
  const Place place = place_of(names);
  if (place.object != nullptr) return place.object->integer(place.name, low, high);
  if (const int64_t* value = assumed(names)) return *value;
  return decoder_.integer(*names.begin(), low, high);  // which says that it is missing
}

int64_t ConfigFields::integer(Names names, int64_t low, int64_t high, int64_t fallback) const {
  return has(names) ? integer(names, low, high) : fallback;
}

bool ConfigFields::flag(Names names, bool fallback) const {
  const Place place = place_of(names);
  if (place.object != nullptr) return place.object->boolean(place.name, fallback);
  const int64_t* value = assumed(names);
  return value != nullptr ? *value != 0 : fallback;
}

std::string ConfigFields::string(Names names, const std::string& fallback) const {
  const Place place = place_of(names);
  return place.object != nullptr ? place.object->string(place.name) : fallback;
}

std::vector<std::string> ConfigFields::strings(Names names, size_t length) const {
  const Place place = place_of(names);
  if (place.object == nullptr) return {};
  const nlohmann::json& list = place.object->at(place.name);
  const bool valid = list.is_array() && list.size() == length &&
                     std::ranges::all_of(list, [](const nlohmann::json& each) { return each.is_string(); });
  if (!valid) place.object->refuse(place.name, "expected a list of " + std::to_string(length) + " names");
  return list.get<std::vector<std::string>>();
}

std::vector<int64_t> ConfigFields::integers(Names names) const {
  const Place place = place_of(names);
  if (place.object == nullptr) return {};
  const nlohmann::json& list = place.object->at(place.name);
  std::vector<int64_t> integers;
  if (list.is_array()) {
    for (const nlohmann::json& each : list) {
      const std::optional<int64_t> integer = as_integer(each);
      if (integer) integers.push_back(*integer);
    }
  }
  if (!list.is_array() || integers.size() != list.size()) {
    place.object->refuse(place.name, "expected a list of integers");
  }
  return integers;
}

bool ConfigFields::is_list(const char* name) const {
  const Place place = place_of({name});
  return place.object != nullptr && place.object->at(name).is_array();
}

void ConfigFields::refuse(const char* name, const std::string& expected) const {
  const Place place = place_of({name});
  (place.object != nullptr ? *place.object : decoder_).refuse(name, expected);
}

}  // namespace llama
