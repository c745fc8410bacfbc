// Texts of models with outlier channels, and sequences that find scales by them.
#pragma once

#include "conversation.h"
#include "support/reference.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace conformance::calibration_test {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Decoded;
using kvq_test::Sequence;
using kvq_test::Snapshot;

inline constexpr int32_t kWaits = 128;

inline std::string policy_of(const std::string& keys, const std::string& values, const std::string& more = "") {
  return "version: 1\nkeys: " + keys + "\nvalues: " + values + "\ncalibrate: first\n" + more;
}
inline const std::string kGs2 = policy_of("gs2", "gs2");

inline std::vector<std::string> policies() {
  return {kGs2, policy_of("gs4", "gt2", "sink: 0\nrecent: 2\n"), policy_of("int4+hadamard", "int2"),
          policy_of("int3", "fp16", "layers:\n  - {range: [1, 1], keys: fp16, values: fp16}\n")};
}

// A text whose keys and values have a few large channels and offsets; queries are small where keys are large.
struct Text {
  Text(const Shape& shape_, int32_t n_, uint64_t seed) : shape(shape_), n(n_) {
    for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
      const uint64_t own = 100 * seed + 3 * static_cast<uint64_t>(layer);
      k.push_back(kvq_test::normal_tensor(static_cast<size_t>(n) * shape.token_scalars(), own));
      v.push_back(kvq_test::normal_tensor(static_cast<size_t>(n) * shape.token_scalars(), own + 1));
      q.push_back(kvq_test::normal_tensor(static_cast<size_t>(n) * shape.query_scalars(), own + 2));
      for (size_t i = 0; i < k.back().size(); ++i) {
        const size_t channel = i % static_cast<size_t>(shape.head_dim);
        k.back()[i] = size(channel) * (k.back()[i] + (channel % 16 == 5 ? 3.0F : 0.0F));
        v.back()[i] = size(channel + 7) * v.back()[i] + (channel % 16 == 9 ? 2.0F : 0.0F);
      }
      for (size_t i = 0; i < q.back().size(); ++i) q.back()[i] /= size(i % static_cast<size_t>(shape.head_dim));
    }
  }
  // Pairs of channels alike, of both pairings.
  float size(size_t channel) const {
    const size_t half = static_cast<size_t>(shape.head_dim) / 2;
    return channel % half % 11 == 3 ? 12.0F : channel % half % 5 == 1 ? 0.5F : 1.0F;
  }
  // Token t becomes token t % period.
  void repeat(int32_t period, int32_t until) {
    for (auto* tensors : {&k, &v, &q}) {
      for (std::vector<float>& of_layer : *tensors) {
        const size_t width = of_layer.size() / static_cast<size_t>(n);
        for (size_t t = 0; t < static_cast<size_t>(until); ++t) {
          std::copy_n(of_layer.begin() + static_cast<ptrdiff_t>(t % static_cast<size_t>(period) * width), width,
                      of_layer.begin() + static_cast<ptrdiff_t>(t * width));
        }
      }
    }
  }

  const float* keys(int32_t layer, int32_t t) const { return at(k, layer, t, shape.token_scalars()); }
  const float* values(int32_t layer, int32_t t) const { return at(v, layer, t, shape.token_scalars()); }
  const float* queries(int32_t layer, int32_t t) const { return at(q, layer, t, shape.query_scalars()); }

  Shape shape;
  int32_t n;
  std::vector<std::vector<float>> k, v, q;

 private:
  static const float* at(const std::vector<std::vector<float>>& of, int32_t layer, int32_t t, size_t width) {
    return of[static_cast<size_t>(layer)].data() + static_cast<size_t>(t) * width;
  }
};

inline std::vector<float> extend(const Cache& cache, Sequence& sequence, const Text& text, int32_t layer, int32_t begin,
                                 int32_t n) {
  kvq_sequence* pointer = sequence.get();
  std::vector<float> out(static_cast<size_t>(n) * text.shape.query_scalars());
  auto batch = kvq_test::initialised<kvq_extend_batch>();
  batch.n_sequences = 1;
  batch.sequences = &pointer;
  batch.token_counts = &n;
  batch.k = text.keys(layer, begin);
  batch.v = text.values(layer, begin);
  batch.q = text.queries(layer, begin);
  batch.output = out.data();
  kvq_test::extend(cache, layer, batch);
  return out;
}

enum class Way { kExtend, kAttend, kAppend };

// Tokens [begin, end), `chunk` at a time.
inline void feed(const Cache& cache, Sequence& sequence, const Text& text, Way way, int32_t chunk, int32_t begin,
                 int32_t end) {
  for (int32_t at = begin; at < end; at += chunk) {
    const int32_t n = std::min(chunk, end - at);
    for (int32_t layer = 0; layer < text.shape.n_layers; ++layer) {
      if (way == Way::kExtend) {
        extend(cache, sequence, text, layer, at, n);
        continue;
      }
      kvq_test::append(sequence, layer, n, text.keys(layer, at), text.values(layer, at));
      if (way == Way::kAppend) continue;
      const std::vector<float> q(text.queries(layer, at),
                                 text.queries(layer, at) + static_cast<size_t>(n) * text.shape.query_scalars());
      attend_last(text.shape, cache, {sequence.get()}, n, q, layer);
    }
  }
}

struct Conversation {
  Conversation(const std::string& backend, const std::string& policy, const Shape& shape = {})
      : context(kvq_test::make_context(backend.c_str(), 2)),
        cache(make_cache(context, shape.options(), policy)),
        sequence(cache) {}

  uint64_t sealed_pages() const { return sequence.usage().sealed_pages; }

  Context context;
  Cache cache;
  Sequence sequence;
};

inline Snapshot saved(const std::string& backend, const std::string& policy, const Text& text, Way way, int32_t chunk) {
  Conversation conversation(backend, policy);
  feed(conversation.cache, conversation.sequence, text, way, chunk, 0, text.n - 1);
  feed(conversation.cache, conversation.sequence, text, way, 1, text.n - 1, text.n);
  return conversation.sequence.save();
}

// Root mean square error of all that is stored in the first layer, in units of scores: keys times the channel's query
// size.
inline double error_of(const Sequence& sequence, const Text& text) {
  double sum = 0.0;
  double all = 0.0;
  for (int32_t head = 0; head < text.shape.kv_heads; ++head) {
    const Decoded tokens = kvq_test::decode(sequence, 0, head, 0, text.n, text.shape.head_dim);
    const kvq_test::Rotation rotation = kvq_test::Rotation::from(text.shape.options());
    const auto dim = static_cast<size_t>(text.shape.head_dim);
    for (size_t t = 0; t < static_cast<size_t>(text.n); ++t) {
      const float* given = text.keys(0, static_cast<int32_t>(t)) + static_cast<size_t>(head) * dim;
      std::vector<double> key(given, given + dim);
      rotation.apply(key, static_cast<int32_t>(t));
      for (size_t c = 0; c < dim; ++c) {
        sum += std::pow((double{tokens.k[t * dim + c]} - key[c]) / text.size(c), 2.0);
        all += std::pow(key[c] / text.size(c), 2.0);
      }
    }
  }
  return std::sqrt(sum / all);
}

}  // namespace conformance::calibration_test
