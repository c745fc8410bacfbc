#include "balance.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <span>

#include "core/float16.h"
#include "core/tensor.h"
#include "error.h"

namespace llama {
namespace {

constexpr int32_t kPageTokens = 32;      // whose mean the cache subtracts from keys
constexpr double kSmallestShare = 1e-6;  // of the mean energy: a channel that does nothing has any scale

using Energies = std::vector<double>;

std::vector<float> read(const Checkpoint& checkpoint, const std::string& name, size_t size) {
  std::vector<float> numbers = to_float(checkpoint.at(name));
  if (numbers.size() != size) {
    throw Error("tensor " + name + " has " + std::to_string(numbers.size()) + " numbers, config.json asks for " +
                std::to_string(size));
  }
  if (!std::ranges::all_of(numbers, [](float number) { return std::isfinite(number); })) {
    throw Error("tensor " + name + " has numbers that are not finite");
  }
  return numbers;
}

class LayerReader {
 public:
  LayerReader(const Checkpoint& checkpoint, const ModelConfig& config, int32_t layer, ThreadPool& threads)
      : checkpoint_(checkpoint), threads_(threads), prefix_("model.layers." + std::to_string(layer) + ".") {
    for (const LinearLayer& linear : linear_layers(config, layer)) linear_[static_cast<size_t>(linear.role)] = linear;
    input_norm_ = vector("input_layernorm.weight", config.hidden_size);
  }

  std::vector<float> vector(const std::string& name, int64_t size) const {
    return read(checkpoint_, prefix_ + name, static_cast<size_t>(size));
  }
  /// Zeros if the layer has none.
  std::vector<float> bias(LinearRole role) const {
    const LinearLayer& linear = at(role);
    const auto size = static_cast<size_t>(linear.out);
    return linear.bias ? read(checkpoint_, linear.name + ".bias", size) : std::vector<float>(size, 0.0F);
  }
  /// Of outputs, for white inputs.
  Energies output_energies(LinearRole role) const {
    const LinearLayer& linear = at(role);
    const std::vector<float> weights = matrix(linear);
    const auto in = static_cast<size_t>(linear.in);
    Energies energies(static_cast<size_t>(linear.out));
    threads_.run(static_cast<int32_t>(linear.out), [&](int32_t row) {
      const std::span<const float> numbers = std::span(weights).subspan(static_cast<size_t>(row) * in, in);
      double sum = 0.0;
      for (size_t i = 0; i < in; ++i) sum += std::pow(double{numbers[i]} * input_norm_[i], 2.0);
      energies[static_cast<size_t>(row)] = sum;
    });
    return energies;
  }
  /// Of columns.
  Energies input_energies(LinearRole role) const {
    const LinearLayer& linear = at(role);
    const std::vector<float> weights = matrix(linear);
    const auto in = static_cast<size_t>(linear.in);
    Energies energies(in, 0.0);
    for (size_t i = 0; i < weights.size(); ++i) energies[i % in] += double{weights[i]} * weights[i];
    return energies;
  }

 private:
  const LinearLayer& at(LinearRole role) const { return linear_[static_cast<size_t>(role)]; }
  std::vector<float> matrix(const LinearLayer& linear) const {
    return read(checkpoint_, linear.name + ".weight", static_cast<size_t>(linear.weights()));
  }

  const Checkpoint& checkpoint_;
  ThreadPool& threads_;
  std::string prefix_;
  std::array<LinearLayer, kLinearRoles> linear_;
  std::vector<float> input_norm_;
};

double sum(const Energies& energies) { return std::accumulate(energies.begin(), energies.end(), 0.0); }

// Energies of a norm's outputs, whose mean before its weights is 1.
void normalize(std::span<double> energies, std::span<const float> weights) {
  const double mean = std::accumulate(energies.begin(), energies.end(), 0.0) / static_cast<double>(energies.size());
  for (size_t i = 0; i < energies.size(); ++i) {
    energies[i] = (mean > 0.0 ? energies[i] / mean : 0.0) * weights[i] * weights[i];
  }
}

/// Channels of one KV head, or of all of them where they share scales.
struct Channels {
  explicit Channels(size_t n) : read(n, 0.0), stored(n, 0.0), offsets(n, 0.0) {}

  Energies read;     // what multiplies the stored numbers: queries, columns of the output projection
  Energies stored;   // around the offsets
  Energies offsets;  // what pages store of them

  Channels operator+(const Channels& other) const {
    Channels both = *this;
    for (size_t i = 0; i < read.size(); ++i) {
      both.read[i] += other.read[i];
      both.stored[i] += other.stored[i];
      both.offsets[i] += other.offsets[i];
    }
    return both;
  }

  /// Every channel's energies become those of its RoPE pair.
  void join_pairs() {
    const size_t half = read.size() / 2;
    for (Energies* energies : {&read, &stored, &offsets}) {
      for (size_t i = 0; i < half; ++i) {
        (*energies)[i] = (*energies)[i + half] = 0.5 * ((*energies)[i] + (*energies)[i + half]);
      }
    }
  }

  /// The scales that make the noise least, with a geometric mean of 1.
  std::vector<double> scales(bool powers_of_two) const {
    const double least_read = kSmallestShare * sum(read) / static_cast<double>(read.size());
    const double least_stored = kSmallestShare * (sum(stored) + sum(offsets)) / static_cast<double>(read.size());
    std::vector<double> scales(read.size(), 1.0);
    if (!(least_read > 0.0 && least_stored > 0.0)) return scales;  // a head that does nothing
    double mean = 0.0;
    for (size_t i = 0; i < scales.size(); ++i) {
      scales[i] = 0.25 * std::log2(std::max(read[i], least_read) / std::max(stored[i] + offsets[i], least_stored));
      mean += scales[i] / static_cast<double>(scales.size());
    }
    for (double& scale : scales) scale = std::exp2(powers_of_two ? std::round(scale - mean) : scale - mean);
    return scales;
  }

  /// Noise of codes that spread it evenly over all channels, in proportion to all that is stored, relative to the least
  /// that scales could reach without offsets.
  double noise(const std::vector<double>& scales) const {
    double of_reading = 0.0;
    double of_storing = 0.0;
    double least = 0.0;
    for (size_t i = 0; i < scales.size(); ++i) {
      const double square = scales[i] * scales[i];
      of_reading += read[i] / square;
      of_storing += square * (stored[i] + offsets[i]);
      least += std::sqrt(read[i] * stored[i]);
    }
    return least > 0.0 ? of_reading * of_storing / (least * least) : 1.0;
  }
};

double ratio(const std::vector<double>& scales) {
  const auto [least, largest] = std::ranges::minmax(scales);
  return largest / least;
}

// Share of the energy of an offset that turns by `angle` a token, after a page's mean has been subtracted.
double left_by_page_mean(double angle) {
  const double half = 0.5 * angle;
  if (std::abs(std::sin(half)) < 1e-9) return 0.0;
  const double mean = std::sin(kPageTokens * half) / (kPageTokens * std::sin(half));
  return std::max(0.0, 1.0 - mean * mean);
}

struct Heads {
  size_t kv_heads;
  size_t group;  // query heads of a KV head
  size_t dim;

  explicit Heads(const ModelConfig& config)
      : kv_heads(static_cast<size_t>(config.kv_heads)),
        group(static_cast<size_t>(config.q_heads / config.kv_heads)),
        dim(static_cast<size_t>(config.head_dim)) {}

  std::span<double> query(Energies& energies, size_t head) const {
    return std::span(energies).subspan(head * dim, dim);
  }
};

// The largest bias over what is added to it.
double largest_offset(std::span<const float> bias, const Energies& energies) {
  double largest = 0.0;
  for (size_t i = 0; i < bias.size(); ++i) {
    if (bias[i] != 0.0F && energies[i] > 0.0) largest = std::max(largest, std::abs(bias[i]) / std::sqrt(energies[i]));
  }
  return largest;
}

struct KeyChannels {
  std::vector<Channels> heads;
  double largest_offset;
};

KeyChannels key_channels(const LayerReader& reader, const ModelConfig& config) {
  const Heads heads(config);
  Energies queries = reader.output_energies(LinearRole::kQ);
  Energies keys = reader.output_energies(LinearRole::kK);
  const std::vector<float> query_bias = reader.bias(LinearRole::kQ);
  const std::vector<float> key_bias = reader.bias(LinearRole::kK);
  KeyChannels channels{{}, largest_offset(key_bias, keys)};
  for (size_t i = 0; i < queries.size(); ++i) queries[i] += double{query_bias[i]} * query_bias[i];
  if (config.qk_norm) {
    const std::vector<float> q_norm = reader.vector("self_attn.q_norm.weight", config.head_dim);
    const std::vector<float> k_norm = reader.vector("self_attn.k_norm.weight", config.head_dim);
    for (size_t head = 0; head < heads.kv_heads * heads.group; ++head) normalize(heads.query(queries, head), q_norm);
    for (size_t head = 0; head < heads.kv_heads; ++head) normalize(heads.query(keys, head), k_norm);
  }
  for (size_t head = 0; head < heads.kv_heads; ++head) {
    Channels& of_head = channels.heads.emplace_back(heads.dim);
    for (size_t i = 0; i < heads.dim; ++i) {
      of_head.stored[i] = keys[head * heads.dim + i];
      // A norm has made the bias a part of the energies.
      const double bias = config.qk_norm ? 0.0 : key_bias[head * heads.dim + i];
      of_head.offsets[i] = bias * bias * left_by_page_mean(config.inv_freq[i % (heads.dim / 2)]);
      for (size_t query = 0; query < heads.group; ++query) {
        of_head.read[i] += queries[(head * heads.group + query) * heads.dim + i];
      }
    }
    of_head.join_pairs();
  }
  return channels;
}

std::vector<Channels> value_channels(const LayerReader& reader, const ModelConfig& config) {
  const Heads heads(config);
  const Energies values = reader.output_energies(LinearRole::kV);
  const Energies columns = reader.input_energies(LinearRole::kO);
  const std::vector<float> bias = reader.bias(LinearRole::kV);
  std::vector<Channels> channels;
  for (size_t head = 0; head < heads.kv_heads; ++head) {
    Channels& of_head = channels.emplace_back(heads.dim);
    for (size_t i = 0; i < heads.dim; ++i) {
      const size_t channel = head * heads.dim + i;
      of_head.stored[i] = values[channel];
      of_head.offsets[i] = double{bias[channel]} * bias[channel];
      for (size_t query = 0; query < heads.group; ++query) {
        of_head.read[i] += columns[(head * heads.group + query) * heads.dim + i];
      }
    }
  }
  return channels;
}

/// What a layer's numbers are multiplied with, by row or by column.
struct Factors {
  bool by_column;
  std::vector<float> factors;
};

std::vector<float> inverse(std::vector<float> scales) {
  for (float& scale : scales) scale = 1.0F / scale;
  return scales;
}

// `[kv_heads, head_dim]` for every query head.
std::vector<float> of_query_heads(const std::vector<float>& scales, const ModelConfig& config) {
  const Heads heads(config);
  std::vector<float> all;
  for (size_t head = 0; head < heads.kv_heads * heads.group; ++head) {
    const auto first = scales.begin() + static_cast<std::ptrdiff_t>(head / heads.group * heads.dim);
    all.insert(all.end(), first, first + static_cast<std::ptrdiff_t>(heads.dim));
  }
  return all;
}

using AllFactors = std::map<std::string, Factors, std::less<>>;

void add_factors(AllFactors& all, const ModelConfig& config, int32_t layer, const LayerBalance& balance) {
  const auto [q, k, v, o, gate, up, down] = linear_layers(config, layer);
  const auto rows = [&all](const LinearLayer& linear, const std::vector<float>& factors) {
    all[linear.name + ".weight"] = {false, factors};
    if (linear.bias) all[linear.name + ".bias"] = {false, factors};
  };
  if (config.qk_norm) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
    const std::vector<float> of_all_heads(balance.keys.begin(), balance.keys.begin() + config.head_dim);
    all[prefix + "q_norm.weight"] = {false, inverse(of_all_heads)};
    all[prefix + "k_norm.weight"] = {false, of_all_heads};
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
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] *= factors.factors[factors.by_column ? i % n : i / columns];
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

LayerBalance balance_of(const Checkpoint& checkpoint, const ModelConfig& config, int32_t layer, bool powers_of_two,
                        ThreadPool& threads) {
  const LayerReader reader(checkpoint, config, layer, threads);
  const auto [keys, offset] = key_channels(reader, config);
  const std::vector<Channels> values = value_channels(reader, config);
  const auto heads = static_cast<double>(keys.size());
  const std::vector<double> ones(keys.front().read.size(), 1.0);
  LayerBalance balance;
  balance.largest_offset = offset;
  balance.key_noise = balance.value_noise = 0.0;
  balance.balanced_key_noise = balance.balanced_value_noise = 0.0;
  // Weights of norms belong to all heads.
  const Channels together = std::accumulate(keys.begin() + 1, keys.end(), keys.front());
  for (size_t head = 0; head < keys.size(); ++head) {
    const std::vector<double> of_keys = (config.qk_norm ? together : keys[head]).scales(powers_of_two);
    const std::vector<double> of_values = values[head].scales(powers_of_two);
    balance.keys.insert(balance.keys.end(), of_keys.begin(), of_keys.end());
    balance.values.insert(balance.values.end(), of_values.begin(), of_values.end());
    balance.key_imbalance = std::max(balance.key_imbalance, ratio(of_keys));
    balance.value_imbalance = std::max(balance.value_imbalance, ratio(of_values));
    balance.key_noise += keys[head].noise(ones) / heads;
    balance.value_noise += values[head].noise(ones) / heads;
    balance.balanced_key_noise += keys[head].noise(of_keys) / heads;
    balance.balanced_value_noise += values[head].noise(of_values) / heads;
  }
  return balance;
}

void fold(const Checkpoint& checkpoint, const ModelConfig& config, const std::vector<LayerBalance>& layers,
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
