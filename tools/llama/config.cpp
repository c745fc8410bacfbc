#include "config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>

#include "config_limits.h"
#include "error.h"
#include "json_document.h"

namespace llama {
namespace {

struct Layout {
  std::string_view class_name;
  std::string_view model_type;
};

constexpr auto kLayouts = std::to_array<Layout>({{"LlamaForCausalLM", "llama"},
                                                 {"MistralForCausalLM", "mistral"},
                                                 {"Qwen2ForCausalLM", "qwen2"},
                                                 {"Qwen3ForCausalLM", "qwen3"},
                                                 {"Gemma2ForCausalLM", "gemma2"},
                                                 {"Gemma3ForCausalLM", "gemma3_text"}});

bool is_gemma(const ModelConfig& config) { return config.architecture.starts_with("gemma"); }

/// `architectures` says which code reads the weights; `model_type` stands in where it is absent.
std::string read_architecture(const JsonObject& root) {
  const nlohmann::json* classes = root.find("architectures");
  const bool by_class = classes != nullptr;
  if (by_class && (!classes->is_array() || classes->size() != 1 || !classes->front().is_string())) {
    root.refuse("architectures", "expected a list of one name");
  }
  const std::string name = by_class ? classes->front().get<std::string>() : root.string("model_type");
  for (const Layout& layout : kLayouts) {
    if (name == (by_class ? layout.class_name : layout.model_type)) return std::string(layout.model_type);
  }
  root.refuse(by_class ? "architectures" : "model_type",
              "expected a Llama, Mistral, Qwen2, Qwen3, Gemma 2 or Gemma 3 text model");
}

int read_int(const JsonObject& root, const char* key, int64_t high) {
  return static_cast<int>(root.integer(key, 1, high));
}

void read_dimensions(const JsonObject& root, ModelConfig& config) {
  config.vocab_size = read_int(root, "vocab_size", kMaxVocabulary);
  config.hidden_size = read_int(root, "hidden_size", kMaxWidth);
  config.intermediate_size = read_int(root, "intermediate_size", kMaxWidth);
  config.n_layers = read_int(root, "num_hidden_layers", kMaxLayers);
  config.q_heads = read_int(root, "num_attention_heads", kMaxHeads);
  config.kv_heads = static_cast<int>(root.integer("num_key_value_heads", 1, kMaxHeads, config.q_heads));
  if (config.q_heads % config.kv_heads != 0) {
    root.refuse("num_key_value_heads", "which does not divide num_attention_heads, " + std::to_string(config.q_heads));
  }
  if (!root.has("head_dim") && config.hidden_size % config.q_heads != 0) {
    root.refuse("hidden_size", "which num_attention_heads, " + std::to_string(config.q_heads) +
                                   ", does not divide; head_dim is missing");
  }
  config.head_dim = static_cast<int>(root.integer("head_dim", 1, kMaxHeadDim, config.hidden_size / config.q_heads));
  if (config.head_dim > kMaxHeadDim || config.head_dim % 2 != 0) {
    throw Error(root.place() + ": head_dim is " + std::to_string(config.head_dim) + ", expected an even number up to " +
                std::to_string(kMaxHeadDim));
  }
  config.max_positions = read_int(root, "max_position_embeddings", kMaxPositions);
}

void read_projections(const JsonObject& root, ModelConfig& config) {
  const bool attention_bias = root.boolean("attention_bias", false);
  if (config.architecture == "qwen2") {
    config.qkv_bias = true;  // its code fixes this; the file does not say
  } else if (config.architecture != "mistral") {
    config.qkv_bias = attention_bias;
    config.o_bias = attention_bias;
  }
  config.mlp_bias = config.architecture == "llama" && root.boolean("mlp_bias", false);
  config.qk_norm = config.architecture == "qwen3" || config.architecture == "gemma3_text";
  config.tied_embeddings = root.boolean("tie_word_embeddings", is_gemma(config));
}

void read_activation(const JsonObject& root, ModelConfig& config) {
  const bool gemma = is_gemma(config);
  const char* key = gemma && root.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  const std::string expected = gemma ? "gelu_pytorch_tanh" : "silu";
  if (root.string(key, expected) != expected) root.refuse(key, "expected \"" + expected + "\"");
  if (gemma) config.activation = Activation::kGelu;
}

void read_gemma(const JsonObject& root, ModelConfig& config) {
  config.offset_norms = config.output_norms = true;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  const double scalar = root.number("query_pre_attn_scalar", 1e-6, 1e6, 256.0);
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  if (root.boolean("use_bidirectional_attention", false)) {
    root.refuse("use_bidirectional_attention", "but only causal attention is supported");
  }
  if (config.architecture == "gemma2") {  // Gemma 3 has norms instead, whatever its file says
    config.attention_softcap = static_cast<float>(root.number("attn_logit_softcapping", 1e-3, 1e6, 0.0));
  }
  config.logit_softcap = static_cast<float>(root.number("final_logit_softcapping", 1e-3, 1e6, 0.0));
}

/// Which of Gemma's layers have a window: as a list says, or all but every sixth (Gemma 2: every second).
void read_windowed_layers(const JsonObject& root, ModelConfig& config) {
  const bool second = config.architecture == "gemma2";
  config.sliding_window = static_cast<int>(root.integer("sliding_window", 1, std::numeric_limits<int>::max(), 4096));
  const nlohmann::json* types = root.find("layer_types");
  const int64_t pattern = second ? 2 : root.integer("sliding_window_pattern", 1, kMaxLayers, 6);
  if (types != nullptr && (!types->is_array() || types->size() != static_cast<size_t>(config.n_layers))) {
    root.refuse("layer_types", "expected a list of " + std::to_string(config.n_layers) + " layers");
  }
  for (int i = 0; i < config.n_layers; ++i) {
    if (types == nullptr) {
      config.windowed.push_back((i + 1) % pattern != 0);
      continue;
    }
    const nlohmann::json& type = types->at(static_cast<size_t>(i));
    if (type != "sliding_attention" && type != "full_attention") {
      root.refuse("layer_types", "expected sliding_attention or full_attention for every layer");
    }
    config.windowed.push_back(type == "sliding_attention");
  }
}

/// One window for all layers or none: a mixture of both is refused.
int read_sliding_window(const JsonObject& root, const ModelConfig& config) {
  const bool qwen = config.architecture.starts_with("qwen");
  if (config.architecture == "llama" || (qwen && !root.boolean("use_sliding_window", false))) return 0;
  if (!root.has("sliding_window")) return 0;
  const auto window = static_cast<int>(root.integer("sliding_window", 1, std::numeric_limits<int>::max()));
  if (!qwen) return window;
  // Qwen: the first max_window_layers layers attend to everything.
  const int64_t full_layers = root.integer("max_window_layers", 0, kMaxLayers);
  if (full_layers >= config.n_layers) return 0;
  if (full_layers > 0) {
    root.refuse("max_window_layers", "but a sliding window on some of the " + std::to_string(config.n_layers) +
                                         " layers only is not supported");
  }
  return window;
}

void check_layer_types(const JsonObject& root, const ModelConfig& config) {
  const nlohmann::json* types = root.find("layer_types");
  if (types == nullptr) return;
  const std::string expected = config.sliding_window == 0 ? "full_attention" : "sliding_attention";
  const bool is_uniform = types->is_array() && std::ranges::all_of(*types, [&](const nlohmann::json& type) {
                            return type.is_string() && type.get_ref<const std::string&>() == expected;
                          });
  if (!is_uniform) root.refuse("layer_types", "expected " + expected + " for every layer");
}

/// "Llama 3" scaling: long wavelengths are divided by `factor`, short ones kept, those between interpolated.
void apply_llama3_scaling(const JsonObject& scaling, std::vector<double>& inv_freq) {
  const double factor = scaling.number("factor", 1.0, 1e6);
  const double low_freq_factor = scaling.number("low_freq_factor", 1e-6, 1e6);
  const double high_freq_factor = scaling.number("high_freq_factor", 1e-6, 1e6);
  if (high_freq_factor <= low_freq_factor) scaling.refuse("high_freq_factor", "expected more than low_freq_factor");
  const auto original_positions =
      static_cast<double>(scaling.integer("original_max_position_embeddings", 1, kMaxPositions));
  for (double& frequency : inv_freq) {
    const double turns = original_positions * frequency / (2.0 * std::numbers::pi);
    if (turns < low_freq_factor) {
      frequency /= factor;
    } else if (turns <= high_freq_factor) {
      const double smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
      frequency *= (1.0 - smooth) / factor + smooth;
    }
  }
}

void apply_rope_scaling(const JsonObject& scaling, std::vector<double>& inv_freq) {
  const char* key = scaling.has("rope_type") ? "rope_type" : "type";
  const std::string type = scaling.string(key);
  if (type == "llama3") {
    apply_llama3_scaling(scaling, inv_freq);
  } else if (type == "linear") {
    const double factor = scaling.number("factor", 1.0, 1e6);
    for (double& frequency : inv_freq) frequency /= factor;
  } else if (type != "default") {
    scaling.refuse(key, "expected llama3, linear or default");
  }
}

std::vector<double> frequencies(double theta, int head_dim) {
  std::vector<double> inv_freq;
  for (int i = 0; i < head_dim; i += 2) inv_freq.push_back(std::pow(theta, -static_cast<double>(i) / head_dim));
  return inv_freq;
}

/// Of the layers with a window, if they have their own. `parameters`: rope_parameters, or the root.
void read_window_rope(const JsonObject& parameters, ModelConfig& config) {
  if (config.architecture != "gemma3_text") return;
  constexpr double kLocalTheta = 10000.0;
  std::vector<double> inv_freq;
  if (parameters.has("sliding_attention")) {
    const JsonObject local = parameters.object("sliding_attention");
    inv_freq = frequencies(local.number("rope_theta", 1.0, 1e12, kLocalTheta), config.head_dim);
    apply_rope_scaling(local, inv_freq);
  } else {
    inv_freq = frequencies(parameters.number("rope_local_base_freq", 1.0, 1e12, kLocalTheta), config.head_dim);
  }
  config.window_inv_freq.assign(inv_freq.begin(), inv_freq.end());
}

void read_rope(const JsonObject& root, ModelConfig& config) {
  // Newer files keep base and scaling together in rope_parameters, some by kind of layer.
  const bool together = root.has("rope_parameters");
  const JsonObject all = together ? root.object("rope_parameters") : root;
  const JsonObject parameters = together && all.has("full_attention") ? all.object("full_attention") : all;
  const double theta = parameters.number("rope_theta", 1.0, 1e12, config.architecture == "gemma3_text" ? 1e6 : 10000.0);
  for (const JsonObject& place : {root, parameters}) {
    if (place.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0) {
      place.refuse("partial_rotary_factor", "but rotating a part of the head only is not supported");
    }
  }
  std::vector<double> inv_freq = frequencies(theta, config.head_dim);
  if (together) {
    apply_rope_scaling(parameters, inv_freq);
  } else if (root.has("rope_scaling")) {
    apply_rope_scaling(root.object("rope_scaling"), inv_freq);
  }
  config.rope_theta = static_cast<float>(theta);
  config.inv_freq.assign(inv_freq.begin(), inv_freq.end());
  read_window_rope(all, config);
}

void read_tokens(const JsonObject& root, ModelConfig& config) {
  const int64_t last = config.vocab_size - 1;
  config.bos_token = static_cast<int>(root.integer("bos_token_id", 0, last, -1));
  const nlohmann::json* eos = root.find("eos_token_id");
  if (eos == nullptr) return;
  const nlohmann::json list = eos->is_array() ? *eos : nlohmann::json::array({*eos});
  for (const nlohmann::json& item : list) {
    const std::optional<int64_t> token = as_integer(item);
    if (!token || *token < 0 || *token > last) {
      root.refuse("eos_token_id", "expected token ids from 0 to " + std::to_string(last));
    }
    config.eos_tokens.push_back(static_cast<int>(*token));
  }
}

bool is_gguf(const std::filesystem::path& path) {
  if (path.extension() == ".gguf") return true;
  std::error_code ignored;
  const std::filesystem::directory_iterator files(path, ignored);
  return std::any_of(begin(files), end(files), [](const auto& each) { return each.path().extension() == ".gguf"; });
}

}  // namespace

std::filesystem::path config_file(const std::filesystem::path& place) {
  constexpr const char* kLayout = "Hugging Face's layout with config.json, tokenizer.json and *.safetensors";
  std::error_code ignored;
  if (std::filesystem::is_regular_file(place, ignored) && place.extension() == ".json") return place;
  const std::filesystem::path file = place / "config.json";
  if (std::filesystem::exists(file, ignored)) return file;
  if (is_gguf(place)) {
    throw Error(place.string() + ": GGUF files are not read, but directories in " + kLayout +
                "; transformers converts one, with the package gguf installed beside it: "
                "AutoModelForCausalLM.from_pretrained(DIRECTORY, "
                "gguf_file=NAME).save_pretrained(OUT), and the same with AutoTokenizer");
  }
  std::string message = place.string();
  if (std::filesystem::is_directory(place, ignored)) {
    message += " has no config.json";
  } else {
    message += std::filesystem::exists(place, ignored) ? " is no directory" : " does not exist";
  }
  throw Error(message + ": a model is a directory in " + kLayout);
}

ModelConfig load_config(const std::filesystem::path& directory_or_file) {
  const std::filesystem::path path = config_file(directory_or_file);
  const nlohmann::json document = read_json(path);
  const JsonObject root(document, path.string());
  ModelConfig config;
  config.architecture = read_architecture(root);
  if (root.has("quantization_config")) {
    root.refuse("quantization_config", "but only F32, F16 and BF16 weights are supported");
  }
  read_activation(root, config);
  read_dimensions(root, config);
  config.rms_norm_eps = static_cast<float>(root.number("rms_norm_eps", 1e-12, 1.0));
  read_projections(root, config);
  if (is_gemma(config)) {
    read_gemma(root, config);
    read_windowed_layers(root, config);
  } else {
    config.sliding_window = read_sliding_window(root, config);
    check_layer_types(root, config);
  }
  read_rope(root, config);
  read_tokens(root, config);
  return config;
}

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
