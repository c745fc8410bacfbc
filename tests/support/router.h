// Routers of random numbers, written as files by hand: what a test knows of them it does not know from the library.
#pragma once

#include "kvq.h"
#include "support/float_formats.h"
#include "support/random.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

  // Its probabilities before the softmax, in double.
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
    std::string header;
    const auto add = [&header](const std::string& name, const std::string& value) {
      header += (header.empty() ? "{\"__metadata__\":{\"" : ",\"") + name + "\":\"" + value + "\"";
    };
    const char* const ropes[] = {"none", "half", "interleaved"};
    std::string names;
    std::string bits;
    std::string shares;
    for (size_t i = 0; i < experts.size(); ++i) {
      names += (i > 0 ? ", " : "") + experts[i];
      bits += (i > 0 ? " " : "") + std::to_string(16 - i);
      shares += i > 0 ? " 0" : "1";
    }
    add("type", "kvq.router");
    add("version", "1");
    add("n_layers", std::to_string(options.n_layers));
    add("kv_heads", std::to_string(options.kv_heads));
    add("head_dim", std::to_string(options.head_dim));
    add("rope", ropes[options.rope]);
    add("sharing", std::to_string(sharing));
    add("experts", names);
    add("expert_bits", bits);
    add("method", "label");
    for (const char* figure : {"lambda", "mean_bits", "tolerance", "accuracy", "tokens", "seed", "model_id"}) {
      add(figure, "0");
    }
    add("note", "random");
    for (size_t i = 0; i < networks.size(); ++i) {
      add("groups." + std::to_string(i) + ".shares", shares);
      add("groups." + std::to_string(i) + ".accuracy", "0");
    }
    header += "}";
    std::vector<std::byte> data;
    const auto n = static_cast<int32_t>(experts.size());
    for (size_t i = 0; i < networks.size(); ++i) {
      const std::string group = "groups." + std::to_string(i) + ".";
      add_tensor(group + "w1", n, options.head_dim, networks[i].w1, header, data);
      add_tensor(group + "w2", n, options.head_dim, networks[i].w2, header, data);
      add_tensor(group + "w3", n, n, networks[i].w3, header, data);
    }
    header += "}";
    const uint64_t length = header.size();
    std::vector<std::byte> bytes(sizeof(length) + header.size());
    std::memcpy(bytes.data(), &length, sizeof(length));
    std::memcpy(bytes.data() + sizeof(length), header.data(), header.size());
    bytes.insert(bytes.end(), data.begin(), data.end());
    return bytes;
  }

  kvq_cache_options options;
  std::vector<std::string> experts;
  int32_t sharing;
  std::vector<Network> networks;

 private:
  static void add_tensor(const std::string& name, int32_t rows, int32_t columns, const std::vector<float>& numbers,
                         std::string& header, std::vector<std::byte>& data) {
    const size_t begin = data.size();
    data.resize(begin + numbers.size() * 2);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const uint16_t half = encode_bits(numbers[i], kHalf);
      std::memcpy(data.data() + begin + 2 * i, &half, 2);
    }
    header += ",\"" + name + "\":{\"dtype\":\"F16\",\"shape\":[" + std::to_string(rows) + "," +
              std::to_string(columns) + "],\"data_offsets\":[" + std::to_string(begin) + "," +
              std::to_string(data.size()) + "]}";
  }
};

}  // namespace kvq_test
