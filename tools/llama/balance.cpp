#include "balance.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>

#include "core/float16.h"
#include "core/tensor.h"
#include "error.h"

namespace llama {
namespace {

std::vector<float> read_finite(const Checkpoint& checkpoint, const std::string& name,
                               const std::vector<int64_t>& shape) {
  std::vector<float> numbers = to_float(checkpoint.at(name, shape));
  if (!std::ranges::all_of(numbers, [](float number) { return std::isfinite(number); })) {
    throw Error("tensor " + name + " has numbers that are not finite");
  }
  return numbers;
}

/// The weights of one layer's attention as floats: the output projection, and with take_inputs() all others.
class AttentionWeights {
 public:
  AttentionWeights(const Checkpoint& checkpoint, const ModelConfig& config, int32_t layer)
      : checkpoint_(checkpoint), weights_(kvq::initialised<kvq_attention_weights>()) {
    weights_.q_heads = config.q_heads;
    weights_.hidden_size = config.hidden_size;
    const auto [q, k, v, o, gate, up, down] = linear_layers(config, layer);
    weights_.o_proj = take(o.name + ".weight", {o.out, o.in});
  }

  void take_inputs(const ModelConfig& config, int32_t layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const auto [q, k, v, o, gate, up, down] = linear_layers(config, layer);
    weights_.q_proj = take(q.name + ".weight", {q.out, q.in});
    weights_.k_proj = take(k.name + ".weight", {k.out, k.in});
    weights_.v_proj = take(v.name + ".weight", {v.out, v.in});
    if (q.bias) weights_.q_bias = take(q.name + ".bias", {q.out});
    if (k.bias) weights_.k_bias = take(k.name + ".bias", {k.out});
    if (v.bias) weights_.v_bias = take(v.name + ".bias", {v.out});
    const float offset = norm_offset(config);
    weights_.input_norm = take(prefix + "input_layernorm.weight", {config.hidden_size}, offset);
    if (!config.qk_norm) return;
    weights_.q_norm = take(prefix + "self_attn.q_norm.weight", {config.head_dim}, offset);
    weights_.k_norm = take(prefix + "self_attn.k_norm.weight", {config.head_dim}, offset);
  }

  operator const kvq_attention_weights&() const { return weights_; }

 private:
  const float* take(const std::string& name, const std::vector<int64_t>& shape, float offset = 0.0F) {
    std::vector<float>& numbers = arrays_.emplace_back(read_finite(checkpoint_, name, shape));
    for (float& number : numbers) number += offset;
    return numbers.data();
  }

  const Checkpoint& checkpoint_;
  kvq_attention_weights weights_;
  std::vector<std::vector<float>> arrays_;
};

/// What a layer's numbers are multiplied with, by row or by column.
struct Factors {
  bool by_column;
  std::vector<float> factors;
  float offset = 0.0F;  // numbers are stored less this
};

std::vector<float> inverse(std::vector<float> scales) {
  for (float& scale : scales) scale = 1.0F / scale;
  return scales;
}

// Around 1, which keeps weights as large as they are: only the ratios within a head mean anything.
std::vector<float> centred(std::vector<float> scales, const ModelConfig& config) {
  const auto dim = static_cast<size_t>(config.head_dim);
  for (size_t head = 0; head < scales.size(); head += dim) {
    double middle = 0.0;
    for (size_t i = 0; i < dim; ++i) middle += std::log2(double{scales[head + i]}) / static_cast<double>(dim);
    for (size_t i = 0; i < dim; ++i) scales[head + i] *= static_cast<float>(std::exp2(-std::round(middle)));
  }
  return scales;
}

// `[kv_heads, head_dim]` for every query head.
std::vector<float> of_query_heads(const std::vector<float>& scales, const ModelConfig& config) {
  std::vector<float> all;
  for (int32_t head = 0; head < config.q_heads; ++head) {
    const auto first = scales.begin() + head / (config.q_heads / config.kv_heads) * config.head_dim;
    all.insert(all.end(), first, first + config.head_dim);
  }
  return all;
}

using AllFactors = std::map<std::string, Factors, std::less<>>;

void add_factors(AllFactors& all, const ModelConfig& config, int32_t layer, const LayerScales& scales) {
  const LayerScales balance{centred(scales.keys, config), centred(scales.values, config)};
  const auto [q, k, v, o, gate, up, down] = linear_layers(config, layer);
  const auto rows = [&all](const LinearLayer& linear, const std::vector<float>& factors) {
    all[linear.name + ".weight"] = {false, factors};
    if (linear.bias) all[linear.name + ".bias"] = {false, factors};
  };
  if (config.qk_norm) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
    const std::vector<float> of_all_heads(balance.keys.begin(), balance.keys.begin() + config.head_dim);
    all[prefix + "q_norm.weight"] = {false, inverse(of_all_heads), norm_offset(config)};
    all[prefix + "k_norm.weight"] = {false, of_all_heads, norm_offset(config)};
  } else {
    rows(q, inverse(of_query_heads(balance.keys, config)));
    rows(k, balance.keys);
  }
  rows(v, balance.values);
  all[o.name + ".weight"] = {true, inverse(of_query_heads(balance.values, config))};
}

std::vector<std::byte> multiplied(const TensorView& tensor, const Factors& factors) {
  std::vector<float> numbers = to_float(tensor);
  const size_t n = factors.factors.size();
  const size_t columns = tensor.shape.size() == 2 ? static_cast<size_t>(tensor.shape[1]) : 1;
  if (numbers.empty() || (factors.by_column ? columns : numbers.size() / columns) != n) {
    throw Error("tensor " + tensor.name + " has another shape than config.json asks for");
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    const float factor = factors.factors[factors.by_column ? i % n : i / columns];
    numbers[i] = (numbers[i] + factors.offset) * factor - factors.offset;
  }
  const kvq_dtype dtype = float_dtype(tensor);
  const auto fits = [dtype](float number) {
    return dtype != KVQ_F16 || kvq::is_finite_float16(kvq::to_float16(number));
  };
  if (!std::ranges::all_of(numbers, fits)) throw Error("tensor " + tensor.name + ": numbers become too large for FP16");
  std::vector<std::byte> bytes(tensor.data.size());
  kvq::write_floats(numbers.data(), numbers.size(), bytes.data(), dtype, 0);
  return bytes;
}

}  // namespace

bool has_attention_weights(const Checkpoint& checkpoint, const ModelConfig& config) {
  return checkpoint.find(linear_layers(config, 0).front().name + ".weight") != nullptr;
}

Outliers outliers_of(const kvq::Centres& scales) {
  const int32_t layers = scales.describe().n_layers;
  const auto mean_of = [&](double kvq_centres_layer_info::*figure) {
    double logarithm = 0.0;
    for (int32_t i = 0; i < layers; ++i) logarithm += std::log(scales.describe_layer(i).*figure);
    return std::exp(logarithm / layers);
  };
  return {.key_noise = mean_of(&kvq_centres_layer_info::key_noise),
          .scaled_key_noise = mean_of(&kvq_centres_layer_info::scaled_key_noise),
          .value_noise = mean_of(&kvq_centres_layer_info::value_noise),
          .scaled_value_noise = mean_of(&kvq_centres_layer_info::scaled_value_noise)};
}

void add_output_projection(kvq::CentresTrainer& trainer, const Checkpoint& checkpoint, const ModelConfig& config,
                           int32_t layer) {
  if (!has_attention_weights(checkpoint, config)) return;
  trainer.add_weights(layer, AttentionWeights(checkpoint, config, layer));
}

kvq::Centres find_scales(kvq_context* context, const Checkpoint& checkpoint, const ModelConfig& config,
                         const ScaleOptions& options, const std::function<void()>& done) {
  auto trainer_options = kvq::initialised<kvq_centres_trainer_options>();
  trainer_options.n_layers = config.n_layers;
  trainer_options.kv_heads = config.kv_heads;
  trainer_options.head_dim = config.head_dim;
  trainer_options.key_centres = trainer_options.value_centres = 0;
  trainer_options.key_scales = trainer_options.value_scales = 1;
  trainer_options.fold = options.fold ? 1 : 0;
  trainer_options.powers_of_two = options.powers_of_two ? 1 : 0;
  trainer_options.inv_freq = config.inv_freq.data();
  trainer_options.model_id = options.model_id;
  trainer_options.note = "weights alone";
  kvq::CentresTrainer trainer(context, trainer_options);
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    AttentionWeights weights(checkpoint, config, layer);
    weights.take_inputs(config, layer);
    trainer.add_weights(layer, weights);
    trainer.run(layer);
    done();
  }
  return trainer.result();
}

LayerScales scales_of(const kvq::Centres& centres, int32_t layer) {
  const kvq_centres_info info = centres.describe();
  const auto size = static_cast<size_t>(info.kv_heads) * static_cast<size_t>(info.head_dim);
  LayerScales scales{std::vector<float>(size), std::vector<float>(size)};
  centres.read_scales(layer, scales.keys, scales.values);
  return scales;
}

void fold(const Checkpoint& checkpoint, const ModelConfig& config, const std::vector<LayerScales>& layers,
          const std::function<void(const std::string& file, const SafetensorsContent& content)>& write) {
  AllFactors factors;
  for (size_t i = 0; i < layers.size(); ++i) add_factors(factors, config, static_cast<int32_t>(i), layers[i]);
  for (const Checkpoint::Shard& shard : checkpoint.shards()) {
    SafetensorsContent content{shard.file.tensors(), shard.file.metadata()};
    std::vector<std::vector<std::byte>> changed;
    for (TensorView& tensor : content.tensors) {
      const auto found = factors.find(tensor.name);
      if (found == factors.end()) continue;
      tensor.data = changed.emplace_back(multiplied(tensor, found->second));
    }
    write(shard.name, content);
    shard.file.forget();
  }
}

}  // namespace llama
