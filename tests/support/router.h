// Routers of random numbers, written as files by hand: tests know their contents independently of the library.
#pragma once

#include "kvq.h"
#include "support/float_formats.h"
#include "support/random.h"
#include "support/safetensors_text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvq_test {

class TestRouter {
 public:
  struct Network {
    std::vector<float> w1, w2;  // [experts][head_dim]
    std::vector<float> w3;      // [experts from][experts to]
  };

  TestRouter(const kvq_cache_options& options_, std::vector<std::string> experts_, int32_t sharing_ = 3,
             uint64_t seed = 1)
      : options(options_), experts(std::move(experts_)), sharing(sharing_) {
    for (int32_t group = 0; group * sharing < options.n_layers; ++group) {
      Random random(100 * seed + static_cast<uint64_t>(group));
      const auto normal = [&random](size_t n, double size) {
        std::vector<float> numbers(n);
        for (float& x : numbers) x = static_cast<float>(to_half(size * random.normal()));
        return numbers;
      };
      const size_t inputs = experts.size() * static_cast<size_t>(options.head_dim);
      const double size = 1.0 / std::sqrt(double{1} * options.head_dim);
      networks.push_back({normal(inputs, size), normal(inputs, size), normal(experts.size() * experts.size(), 1.0)});
    }
  }

  // Its logits in double.
  std::vector<double> logits(int32_t layer, std::span<const double> key) const {
    const Network& network = networks[static_cast<size_t>(layer / sharing)];
    const size_t n = experts.size();
    std::vector<double> result(n, 0.0);
    for (size_t from = 0; from < n; ++from) {
      double gate = 0.0;
      double linear = 0.0;
      for (size_t c = 0; c < key.size(); ++c) {
        gate += key[c] * double{network.w1[from * key.size() + c]};
        linear += key[c] * double{network.w2[from * key.size() + c]};
      }
      const double hidden = gate / (1.0 + std::exp(-gate)) * linear;
      for (size_t to = 0; to < n; ++to) result[to] += hidden * double{network.w3[from * n + to]};
    }
    return result;
  }
  size_t preferred(int32_t layer, std::span<const double> key) const {
    const std::vector<double> each = logits(layer, key);
    return static_cast<size_t>(std::max_element(each.begin(), each.end()) - each.begin());
  }

  std::vector<std::byte> file() const {
    SafetensorsText text;
    const char* const ropes[] = {"none", "half", "interleaved"};
    std::string names;
    std::string bits;
    std::string shares;
    for (size_t i = 0; i < experts.size(); ++i) {
      names += (i > 0 ? ", " : "") + experts[i];
      bits += (i > 0 ? " " : "") + std::to_string(16 - i);
      shares += i > 0 ? " 0" : "1";
    }
    text.add_metadata("type", "kvq.router");
    text.add_metadata("version", "1");
    text.add_metadata("n_layers", std::to_string(options.n_layers));
    text.add_metadata("kv_heads", std::to_string(options.kv_heads));
    text.add_metadata("head_dim", std::to_string(options.head_dim));
    text.add_metadata("rope", ropes[options.rope]);
    text.add_metadata("sharing", std::to_string(sharing));
    text.add_metadata("experts", names);
    text.add_metadata("expert_bits", bits);
    text.add_metadata("method", "label");
    for (const char* figure : {"lambda", "mean_bits", "tolerance", "accuracy", "tokens", "seed", "model_id"}) {
      text.add_metadata(figure, "0");
    }
    text.add_metadata("note", "random");
    for (size_t i = 0; i < networks.size(); ++i) {
      text.add_metadata("groups." + std::to_string(i) + ".shares", shares);
      text.add_metadata("groups." + std::to_string(i) + ".accuracy", "0");
    }
    const auto n = static_cast<int32_t>(experts.size());
    for (size_t i = 0; i < networks.size(); ++i) {
      const std::string group = "groups." + std::to_string(i) + ".";
      text.add_tensor(group + "w1", {n, options.head_dim}, networks[i].w1, true);
      text.add_tensor(group + "w2", {n, options.head_dim}, networks[i].w2, true);
      text.add_tensor(group + "w3", {n, n}, networks[i].w3, true);
    }
    return text.file();
  }

  kvq_cache_options options;
  std::vector<std::string> experts;
  int32_t sharing;
  std::vector<Network> networks;
};

}  // namespace kvq_test
