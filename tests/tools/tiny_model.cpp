#include "tiny_model.h"

#include <cmath>
#include <complex>
#include <numbers>
#include <random>
#include <stdexcept>

#include "support/safetensors_bytes.h"

namespace {

constexpr int kLayers = 2;
constexpr int kQueryHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 16;
constexpr double kEpsilon = 1e-5;
constexpr double kTheta = 10000.0;
// Of Gemma
constexpr double kGlobalTheta = 300.0;
constexpr double kScalar = 24.0;  // queries are divided by its root
constexpr double kAttentionCap = 2.0;
constexpr double kLogitCap = 3.0;

double capped(double x, double cap) { return cap > 0.0 ? cap * std::tanh(x / cap) : x; }

std::vector<double> sum(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result(a);
  for (size_t i = 0; i < a.size(); ++i) result[i] += b[i];
  return result;
}

}  // namespace

const std::vector<TinyLayout>& tiny_layouts() {
  static const std::vector<TinyLayout> kLayouts{
      {.name = "Llama", .architecture = "LlamaForCausalLM"},
      {.name = "Llama, tied", .architecture = "LlamaForCausalLM", .tied = true},
      {.name = "Llama, all biases",
       .architecture = "LlamaForCausalLM",
       .qkv_bias = true,
       .o_bias = true,
       .mlp_bias = true},
      {.name = "Mistral with a window", .architecture = "MistralForCausalLM", .sliding_window = 40},
      {.name = "Qwen2", .architecture = "Qwen2ForCausalLM", .qkv_bias = true},
      {.name = "Qwen3", .architecture = "Qwen3ForCausalLM", .qk_norm = true, .tied = true},
      {.name = "Gemma 2", .architecture = "Gemma2ForCausalLM", .tied = true, .sliding_window = 40, .gemma = 2},
      {.name = "Gemma 3",
       .architecture = "Gemma3ForCausalLM",
       .qk_norm = true,
       .tied = true,
       .sliding_window = 40,
       .gemma = 3}};
  return kLayouts;
}

TinyLayout packable_layout(bool biases) {
  return {.name = "Llama of multiples of 64",
          .architecture = "LlamaForCausalLM",
          .qkv_bias = biases,
          .o_bias = biases,
          .mlp_bias = biases,
          .hidden = 64,
          .intermediate = 128};
}

TinyModel::TinyModel(TinyLayout layout) : layout_(std::move(layout)) {
  add("model.embed_tokens.weight", {kVocabulary, layout_.hidden}, 0.0, 0.3);
  if (!layout_.tied) add("lm_head.weight", {kVocabulary, layout_.hidden}, 0.0, 0.3);
  add_norm("model.norm", layout_.hidden, 0.2);
  for (int i = 0; i < kLayers; ++i) add_layer(i);
}

void TinyModel::add(const std::string& name, std::vector<int64_t> shape, double center, double spread) {
  std::mt19937_64 random(tensors_.size());
  std::uniform_real_distribution<double> uniform(center - spread, center + spread);
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  Tensor tensor{std::move(shape), {}};
  for (int64_t i = 0; i < elements; ++i) tensor.values.push_back(static_cast<float>(uniform(random)));
  tensors_[name] = std::move(tensor);
}

void TinyModel::add_linear(const std::string& name, int out, int in, bool bias) {
  add(name + ".weight", {out, in}, 0.0, 0.4);
  if (bias) add(name + ".bias", {out}, 0.0, 0.5);
}

void TinyModel::add_norm(const std::string& name, int size, double spread) {
  add(name + ".weight", {size}, layout_.gemma > 0 ? 0.0 : 1.0, spread);
}

void TinyModel::add_layer(int index) {
  const std::string layer = "model.layers." + std::to_string(index) + ".";
  add_norm(layer + "input_layernorm", layout_.hidden, 0.2);
  add_norm(layer + "post_attention_layernorm", layout_.hidden, 0.2);
  if (layout_.gemma > 0) {
    add_norm(layer + "pre_feedforward_layernorm", layout_.hidden, 0.2);
    add_norm(layer + "post_feedforward_layernorm", layout_.hidden, 0.2);
  }
  add_linear(layer + "self_attn.q_proj", kQueryHeads * kHeadDim, layout_.hidden, layout_.qkv_bias);
  add_linear(layer + "self_attn.k_proj", kKvHeads * kHeadDim, layout_.hidden, layout_.qkv_bias);
  add_linear(layer + "self_attn.v_proj", kKvHeads * kHeadDim, layout_.hidden, layout_.qkv_bias);
  add_linear(layer + "self_attn.o_proj", layout_.hidden, kQueryHeads * kHeadDim, layout_.o_bias);
  if (layout_.qk_norm) {
    add_norm(layer + "self_attn.q_norm", kHeadDim, 0.5);
    add_norm(layer + "self_attn.k_norm", kHeadDim, 0.5);
  }
  add_linear(layer + "mlp.gate_proj", layout_.intermediate, layout_.hidden, layout_.mlp_bias);
  add_linear(layer + "mlp.up_proj", layout_.intermediate, layout_.hidden, layout_.mlp_bias);
  add_linear(layer + "mlp.down_proj", layout_.hidden, layout_.intermediate, layout_.mlp_bias);
}

void TinyModel::replace(const std::string& name, std::vector<float> values) {
  Tensor& tensor = tensors_.at(name);
  if (values.size() != tensor.values.size()) throw std::invalid_argument(name);
  tensor.values = std::move(values);
}

void TinyModel::write(const ScratchDirectory& directory) const {
  nlohmann::json header;
  std::string data;
  for (const auto& [name, tensor] : tensors_) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
    header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  directory.write("model.safetensors", safetensors_bytes(header.dump(), data));

  nlohmann::json config = {{"architectures", {layout_.architecture}},
                           {"vocab_size", kVocabulary},
                           {"hidden_size", layout_.hidden},
                           {"intermediate_size", layout_.intermediate},
                           {"num_hidden_layers", kLayers},
                           {"num_attention_heads", kQueryHeads},
                           {"num_key_value_heads", kKvHeads},
                           {"head_dim", kHeadDim},
                           {"hidden_act", "silu"},
                           {"max_position_embeddings", 1024},
                           {"rms_norm_eps", kEpsilon},
                           {"rope_theta", kTheta},
                           {"tie_word_embeddings", layout_.tied},
                           {"attention_bias", layout_.o_bias},
                           {"mlp_bias", layout_.mlp_bias}};
  if (layout_.sliding_window > 0) config["sliding_window"] = layout_.sliding_window;
  if (layout_.gemma > 0) {
    config.erase("hidden_act");
    config["hidden_activation"] = "gelu_pytorch_tanh";
    config["query_pre_attn_scalar"] = kScalar;
    config["layer_types"] = {"sliding_attention", "full_attention"};
  }
  if (layout_.gemma == 2) {
    config["attn_logit_softcapping"] = kAttentionCap;
    config["final_logit_softcapping"] = kLogitCap;
  } else if (layout_.gemma == 3) {
    config["rope_theta"] = kGlobalTheta;
    config["rope_local_base_freq"] = kTheta;
  }
  directory.write("config.json", config.dump());
}

TinyModel::Vector TinyModel::linear(const std::string& name, const Vector& x) const {
  const Tensor& weight = tensors_.at(name + ".weight");
  Vector y(static_cast<size_t>(weight.shape[0]), 0.0);
  for (size_t row = 0; row < y.size(); ++row) {
    for (size_t i = 0; i < x.size(); ++i) y[row] += static_cast<double>(weight.values[row * x.size() + i]) * x[i];
  }
  const auto bias = tensors_.find(name + ".bias");
  if (bias == tensors_.end()) return y;
  return sum(y, Vector(bias->second.values.begin(), bias->second.values.end()));
}

TinyModel::Vector TinyModel::rms_norm(const std::string& name, const Vector& x) const {
  double squares = 0.0;
  for (const double value : x) squares += value * value;
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = x[i] / std::sqrt(squares / static_cast<double>(x.size()) + kEpsilon) *
           (static_cast<double>(tensors_.at(name).values[i]) + (layout_.gemma > 0 ? 1.0 : 0.0));
  }
  return y;
}

TinyModel::Vector TinyModel::heads(const std::string& norm, Vector x, int position, double theta) const {
  for (size_t begin = 0; begin < x.size(); begin += kHeadDim) {
    Vector head(&x[begin], &x[begin] + kHeadDim);
    if (layout_.qk_norm) head = rms_norm(norm, head);
    for (size_t j = 0; j < kHeadDim / 2; ++j) {
      const double angle = position * std::pow(theta, -2.0 * static_cast<double>(j) / kHeadDim);
      const std::complex<double> z = std::polar(1.0, angle) * std::complex<double>(head[j], head[j + kHeadDim / 2]);
      x[begin + j] = z.real();
      x[begin + j + kHeadDim / 2] = z.imag();
    }
  }
  return x;
}

TinyModel::Vector TinyModel::attend(const Vector& q, const std::vector<Vector>& keys, const std::vector<Vector>& values,
                                    int window) const {
  const size_t end = keys.size();
  const size_t begin = window > 0 && end > static_cast<size_t>(window) ? end - static_cast<size_t>(window) : 0;
  const double scale = 1.0 / std::sqrt(layout_.gemma > 0 ? kScalar : double{kHeadDim});
  const double cap = layout_.gemma == 2 ? kAttentionCap : 0.0;
  Vector out(q.size(), 0.0);
  for (size_t head = 0; head < kQueryHeads; ++head) {
    const size_t kv = head / (kQueryHeads / kKvHeads) * kHeadDim;
    double total = 0.0;
    for (size_t t = begin; t < end; ++t) {
      double dot = 0.0;
      for (size_t i = 0; i < kHeadDim; ++i) dot += q[head * kHeadDim + i] * keys[t][kv + i];
      const double weight = std::exp(capped(scale * dot, cap));
      total += weight;
      for (size_t i = 0; i < kHeadDim; ++i) out[head * kHeadDim + i] += weight * values[t][kv + i];
    }
    for (size_t i = 0; i < kHeadDim; ++i) out[head * kHeadDim + i] /= total;
  }
  return out;
}

TinyModel::Vector TinyModel::attention(int index, const Vector& x, std::vector<Vector>& keys,
                                       std::vector<Vector>& values) const {
  const std::string layer = "model.layers." + std::to_string(index) + ".";
  const double theta = layout_.gemma == 3 && window_of(index) == 0 ? kGlobalTheta : kTheta;
  const auto position = static_cast<int>(keys.size());
  const Vector normed = rms_norm(layer + "input_layernorm.weight", x);
  const std::string name = layer + "self_attn.";
  const Vector q = heads(name + "q_norm.weight", linear(name + "q_proj", normed), position, theta);
  keys.push_back(heads(name + "k_norm.weight", linear(name + "k_proj", normed), position, theta));
  values.push_back(linear(name + "v_proj", normed));
  const Vector out = linear(name + "o_proj", attend(q, keys, values, window_of(index)));
  return layout_.gemma > 0 ? rms_norm(layer + "post_attention_layernorm.weight", out) : out;
}

TinyModel::Vector TinyModel::mlp(const std::string& layer, const Vector& x) const {
  const bool gemma = layout_.gemma > 0;
  const std::string norm = gemma ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight";
  const Vector normed = rms_norm(layer + norm, x);
  Vector gate = linear(layer + "mlp.gate_proj", normed);
  const Vector up = linear(layer + "mlp.up_proj", normed);
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = gate[i];
    const double inner = std::sqrt(2.0 / std::numbers::pi) * (g + 0.044715 * g * g * g);
    gate[i] = (gemma ? 0.5 * g * (1.0 + std::tanh(inner)) : g / (1.0 + std::exp(-g))) * up[i];
  }
  const Vector out = linear(layer + "mlp.down_proj", gate);
  return gemma ? rms_norm(layer + "post_feedforward_layernorm.weight", out) : out;
}

std::vector<std::vector<double>> TinyModel::logits(const std::vector<int32_t>& tokens) const {
  std::vector<std::vector<Vector>> keys(kLayers);
  std::vector<std::vector<Vector>> values(kLayers);
  const std::vector<float>& embedding = tensors_.at("model.embed_tokens.weight").values;
  std::vector<Vector> result;
  for (const int32_t token : tokens) {
    const float* row = &embedding[static_cast<size_t>(token) * static_cast<size_t>(layout_.hidden)];
    Vector x(row, row + layout_.hidden);
    for (double& each : x) each *= layout_.gemma > 0 ? std::sqrt(static_cast<double>(layout_.hidden)) : 1.0;
    for (int i = 0; i < kLayers; ++i) {
      const auto at = static_cast<size_t>(i);
      x = sum(x, attention(i, x, keys[at], values[at]));
      x = sum(x, mlp("model.layers." + std::to_string(i) + ".", x));
    }
    x = rms_norm("model.norm.weight", x);
    result.push_back(linear(layout_.tied ? "model.embed_tokens" : "lm_head", x));
    for (double& logit : result.back()) logit = capped(logit, layout_.gemma == 2 ? kLogitCap : 0.0);
  }
  return result;
}
