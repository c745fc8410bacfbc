// Centres of random numbers and scales, written as files by hand.
#pragma once

#include "kvq.h"
#include "support/random.h"
#include "support/safetensors_text.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvq_test {

inline bool wants_centres(std::string_view policy) {
  return policy.find("+centres") != std::string_view::npos || policy.find("trained") != std::string_view::npos;
}

// Centres per head; by default two different numbers that are not powers of two.
struct CentreCounts {
  int32_t keys = 5;
  int32_t values = 3;
  uint64_t seed = 31;
  bool scales = false;

  std::string name() const { return std::to_string(keys) + "/" + std::to_string(values) + " centres"; }
};

// Scales of a layer's head: powers of two, with which scaling rounds nothing; those of a RoPE pair are equal.
inline float test_key_scale(const kvq_cache_options& options, int32_t layer, int32_t head, int32_t channel) {
  const int32_t dim = options.rotary_dim != 0 ? options.rotary_dim : options.head_dim;
  const bool rotated = options.rope != KVQ_ROPE_NONE && channel < dim;
  const int32_t of_pair = !rotated ? channel : options.rope == KVQ_ROPE_HALF ? channel % (dim / 2) : channel / 2;
  return std::exp2(-static_cast<float>((of_pair * 7 + head * 3 + layer) % 5));
}
inline float test_value_scale(int32_t layer, int32_t head, int32_t channel) {
  return std::exp2(-static_cast<float>((channel * 5 + head + 2 * layer) % 4));
}
inline float test_value_offset(int32_t layer, int32_t head, int32_t channel) {
  return 0.125F * static_cast<float>((channel * 3 + head + layer) % 9 - 4);
}

// Writes the file. Centres of keys and of values have separate seeds: more of one do not change the other.
inline std::vector<std::byte> test_centres(const kvq_cache_options& options, const CentreCounts& counts = {}) {
  SafetensorsText text;
  const auto add = [&text](const std::string& name, const std::string& value) { text.add_metadata(name, value); };
  add("type", "kvq.centres");
  add("version", "1");
  add("n_layers", std::to_string(options.n_layers));
  add("kv_heads", std::to_string(options.kv_heads));
  add("head_dim", std::to_string(options.head_dim));
  add("rope", options.rope == KVQ_ROPE_NONE ? "none" : options.rope == KVQ_ROPE_HALF ? "half" : "interleaved");
  add("key_centres", std::to_string(counts.keys));
  add("value_centres", std::to_string(counts.values));
  if (counts.scales) {
    add("key_scales", "1");
    add("value_scales", "1");
  }
  add("model_id", hexadecimal(options.model_id));
  add("seed", "0");
  add("note", "random");
  for (int32_t i = 0; i < options.n_layers; ++i) {
    const std::string layer = "layers." + std::to_string(i) + ".";
    add(layer + "tokens", "1");
    add(layer + "key_residual", "1");
    add(layer + "value_residual", "1");
    if (counts.scales) {
      add(layer + "key_spread", "0 16 2 1");
      add(layer + "value_spread", "0 8 2 1");
      std::vector<float> keys;
      std::vector<float> values;
      std::vector<float> offsets;
      for (int32_t head = 0; head < options.kv_heads; ++head) {
        for (int32_t channel = 0; channel < options.head_dim; ++channel) {
          keys.push_back(test_key_scale(options, i, head, channel));
          values.push_back(test_value_scale(i, head, channel));
          offsets.push_back(test_value_offset(i, head, channel));
        }
      }
      text.add_tensor(layer + "keys.scales", {options.kv_heads, options.head_dim}, keys, true);
      text.add_tensor(layer + "values.scales", {options.kv_heads, options.head_dim}, values, true);
      text.add_tensor(layer + "values.offsets", {options.kv_heads, options.head_dim}, offsets, true);
    }
    for (const bool keys : {true, false}) {
      const int32_t count = keys ? counts.keys : counts.values;
      Random random(1000 * counts.seed + 2 * static_cast<uint64_t>(i) + (keys ? 0 : 1));
      std::vector<float> numbers;
      for (int32_t n = 0; n < options.kv_heads * count * options.head_dim; ++n) {
        numbers.push_back(static_cast<float>(random.normal()));
      }
      if (count > 0) {
        text.add_tensor(layer + (keys ? "keys.centres" : "values.centres"), {options.kv_heads, count, options.head_dim},
                        numbers, true);
      }
    }
  }
  return text.file();
}

}  // namespace kvq_test
