// Codebooks of random numbers, written as files by hand: tests know their contents independently of the library.
#pragma once

#include "kvq.h"
#include "support/float_formats.h"
#include "support/random.h"
#include "support/safetensors_text.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace kvq_test {

// Code parameters that cache options lack.
struct Codes {
  int32_t stages = 3;  // 0: none for keys
  int32_t codes = 16;
  int32_t group = 0;  // 0: all pairs of a head
  int32_t bits = 1;   // 0: none for values
  kvq_scope scope = KVQ_SCOPE_LAYER;
  kvq_scope norms = KVQ_SCOPE_LAYER;
  uint64_t seed = 1;
  uint64_t scales = 0;  // checksum of those that it was trained with

  std::string name() const {
    std::string text = scope == KVQ_SCOPE_LAYER ? "layer" : "head";
    if (norms != scope) text += norms == KVQ_SCOPE_LAYER ? ", norms of layer" : ", norms of head";
    return text + " R" + std::to_string(stages) + " Nc" + std::to_string(codes) +
           (group == 0 ? "" : " g" + std::to_string(group)) + " b" + std::to_string(bits) +
           (seed == 1 ? "" : " seed " + std::to_string(seed));
  }
};

class TestCodebook {
 public:
  struct Layer {
    std::vector<float> key_codes;      // [kv_heads][groups][stages][codes][group]{re, im}
    std::vector<float> channel_scale;  // [kv_heads][head_dim]
    std::vector<float> value_codes;    // [vectors][code_bits][width]
    std::vector<float> offset;         // [vectors][width]
  };

  TestCodebook(const kvq_cache_options& options, const Codes& codes_)
      : codes(codes_),
        n_layers(options.n_layers),
        kv_heads(options.kv_heads),
        head_dim(options.head_dim),
        rope(options.rope == KVQ_ROPE_NONE ? KVQ_ROPE_HALF : options.rope),
        model_id(options.model_id) {
    if (codes.group == 0) codes.group = head_dim / 2;
    for (int32_t layer = 0; layer < n_layers; ++layer) layers.push_back(random_layer(layer));
  }

  int32_t vectors() const { return codes.scope == KVQ_SCOPE_LAYER ? 1 : kv_heads; }
  int32_t width() const { return kv_heads * head_dim / vectors(); }
  int32_t code_bits() const { return codes.bits * width(); }
  int32_t groups() const { return head_dim / 2 / codes.group; }

  // Writes the file; layers from `n_present` on are missing.
  std::vector<std::byte> file(int32_t n_present) const {
    SafetensorsText text;
    add_metadata(n_present, text);
    for (int32_t i = 0; i < n_present; ++i) {
      const Layer& layer = layers[static_cast<size_t>(i)];
      const auto add = [&](const char* name, const std::vector<int32_t>& shape, const std::vector<float>& numbers,
                           bool halves) {
        text.add_tensor("layers." + std::to_string(i) + "." + name, shape, numbers, halves);
      };
      if (codes.stages > 0) {
        add("keys.codes", {kv_heads, groups(), codes.stages, codes.codes, codes.group, 2}, layer.key_codes, true);
      }
      if (codes.bits == 0) continue;
      const std::vector<float> bias(static_cast<size_t>(vectors() * code_bits()), 0.0F);
      add("values.channel_scale", {kv_heads, head_dim}, layer.channel_scale, false);
      add("values.codes", {vectors(), code_bits(), width()}, layer.value_codes, true);
      add("values.offset", {vectors(), width()}, layer.offset, false);
      add("values.proposal", {vectors(), code_bits(), width()}, layer.value_codes, true);
      add("values.proposal_bias", {vectors(), code_bits()}, bias, false);
    }
    return text.file();
  }
  std::vector<std::byte> file() const { return file(n_layers); }

  Codes codes;
  int32_t n_layers;
  int32_t kv_heads;
  int32_t head_dim;
  kvq_rope rope;
  uint64_t model_id;
  std::vector<Layer> layers;

 private:
  void add_metadata(int32_t n_present, SafetensorsText& text) const {
    const auto add = [&text](const std::string& name, const std::string& value) { text.add_metadata(name, value); };
    const auto name = [](kvq_scope scope) { return scope == KVQ_SCOPE_LAYER ? "layer" : "head"; };
    add("type", "kvq.codebook");
    add("version", "1");
    add("n_layers", std::to_string(n_layers));
    add("kv_heads", std::to_string(kv_heads));
    add("head_dim", std::to_string(head_dim));
    add("rope", rope == KVQ_ROPE_HALF ? "half" : "interleaved");
    add("key_stages", std::to_string(codes.stages));
    add("key_codes", std::to_string(codes.codes));
    add("key_group", std::to_string(codes.group));
    add("key_norms", name(codes.norms));
    add("value_bits", std::to_string(codes.bits));
    add("value_scope", name(codes.scope));
    add("model_id", hexadecimal(model_id));
    add("seed", "0");
    if (codes.scales != 0) add("scales", hexadecimal(codes.scales));
    add("note", "random");
    for (int32_t i = 0; i < n_present; ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".";
      add(layer + "tokens", "1");
      std::string errors;
      for (int32_t stage = 0; stage < codes.stages; ++stage) errors += errors.empty() ? "0" : " 0";
      add(layer + "key_errors", errors);
      add(layer + "value_error", "0");
    }
  }

  // Scaled for unit vectors: centres of later stages are smaller, and half of all bits add up to zero.
  Layer random_layer(int32_t index) const {
    Random random(1000 * codes.seed + static_cast<uint64_t>(index));
    const auto half = [&random](double size) { return static_cast<float>(to_half(size * random.normal())); };
    Layer layer;
    for (int32_t part = 0; codes.stages > 0 && part < kv_heads * groups(); ++part) {
      double size = 0.6 / std::sqrt(double{1} * head_dim * (codes.norms == KVQ_SCOPE_LAYER ? kv_heads : 1));
      for (int32_t stage = 0; stage < codes.stages; ++stage, size *= 0.75) {
        for (int32_t i = 0; i < codes.codes * codes.group * 2; ++i) layer.key_codes.push_back(half(size));
      }
    }
    if (codes.bits == 0) return layer;
    for (int32_t i = 0; i < kv_heads * head_dim; ++i) {
      layer.channel_scale.push_back(static_cast<float>(0.5 + random.uniform()));
    }
    const auto channels = static_cast<size_t>(width());
    for (int32_t vector = 0; vector < vectors(); ++vector) {
      std::vector<double> sum(channels);
      for (size_t i = 0; i < static_cast<size_t>(code_bits()) * channels; ++i) {
        layer.value_codes.push_back(half(1.0 / width()));
        sum[i % channels] += double{layer.value_codes.back()};
      }
      for (const double s : sum) layer.offset.push_back(static_cast<float>(-0.5 * s));
    }
    return layer;
  }
};

// Created once per shape.
inline const TestCodebook& test_codebook(const kvq_cache_options& options, const Codes& codes) {
  static std::map<std::string, TestCodebook> made;
  const std::string key = codes.name() + " " + std::to_string(options.n_layers) + " " +
                          std::to_string(options.kv_heads) + " " + std::to_string(options.head_dim) + " " +
                          std::to_string(options.rope) + " " + std::to_string(options.model_id) + " " +
                          std::to_string(codes.scales);
  const auto found = made.find(key);
  return found != made.end() ? found->second : made.emplace(key, TestCodebook(options, codes)).first->second;
}

}  // namespace kvq_test
