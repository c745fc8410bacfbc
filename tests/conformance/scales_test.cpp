// Caches with scales of channels: with powers of two, they do exactly what plain caches do with scaled tensors.
#include "conversation.h"
#include "support/reference.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace conformance::scales_test {
namespace {

using kvq_test::Cache;
using kvq_test::CentreCounts;
using kvq_test::Centres;
using kvq_test::Context;
using kvq_test::Decoded;
using kvq_test::Sequence;

Centres make_scales(const Context& context, const kvq_cache_options& options, const std::string& policy) {
  CentreCounts counts{.keys = 0, .values = 0, .scales = true};
  if (kvq_test::wants_centres(policy)) counts = {.scales = true};
  if (policy == kOneCentre) counts = {.keys = 1, .values = 1, .scales = true};
  return Centres::load(context.get(), kvq_test::test_centres(options, counts));
}

Cache make_scaled(const Context& context, kvq_cache_options options, const std::string& policy) {
  const Centres centres = make_scales(context, options, policy);
  options.centres = centres.get();
  return make_cache(context, options, policy);
}

// Tensors of one call for a cache with scales, and what a plain cache gets in their place.
struct Tensors {
  std::vector<float> k, v, q;

  Tensors(const Shape& shape, int32_t n, uint64_t seed)
      : k(kvq_test::normal_tensor(static_cast<size_t>(n) * shape.token_scalars(), 3 * seed)),
        v(kvq_test::normal_tensor(static_cast<size_t>(n) * shape.token_scalars(), 3 * seed + 1)),
        q(kvq_test::normal_tensor(static_cast<size_t>(n) * shape.query_scalars(), 3 * seed + 2)) {}

  Tensors scaled(const Shape& shape, int32_t layer) const {
    Tensors to = *this;
    const kvq_cache_options options = shape.options();
    for (size_t i = 0; i < k.size(); ++i) {
      const auto channel = static_cast<int32_t>(i) % shape.head_dim;
      const int32_t head = static_cast<int32_t>(i) / shape.head_dim % shape.kv_heads;
      to.k[i] *= kvq_test::test_key_scale(options, layer, head, channel);
      to.v[i] -= kvq_test::test_value_offset(layer, head, channel);
      to.v[i] *= kvq_test::test_value_scale(layer, head, channel);
    }
    for (size_t i = 0; i < q.size(); ++i) {
      const int32_t head = static_cast<int32_t>(i) / shape.head_dim % shape.q_heads * shape.kv_heads / shape.q_heads;
      to.q[i] /= kvq_test::test_key_scale(options, layer, head, static_cast<int32_t>(i) % shape.head_dim);
    }
    return to;
  }
};

struct Conversation {
  Conversation(const Shape& shape_, Cache made) : shape(shape_), cache(std::move(made)), sequence(cache) {}

  std::vector<float> extend(int32_t layer, int32_t n, const Tensors& tensors, const float* sinks = nullptr) {
    kvq_sequence* pointer = sequence.get();
    std::vector<float> out(tensors.q.size());
    auto batch = kvq_test::initialised<kvq_extend_batch>();
    batch.n_sequences = 1;
    batch.sequences = &pointer;
    batch.token_counts = &n;
    batch.k = tensors.k.data();
    batch.v = tensors.v.data();
    batch.q = tensors.q.data();
    batch.sinks = sinks;
    batch.output = out.data();
    kvq_test::extend(cache, layer, batch);
    return out;
  }
  std::vector<float> append_and_attend(int32_t layer, int32_t n, const Tensors& tensors) {
    kvq_test::append(sequence, layer, n, tensors.k.data(), tensors.v.data());
    return attend_last(shape, cache, {sequence.get()}, n, tensors.q, layer);
  }

  Shape shape;
  Cache cache;
  Sequence sequence;
};

// Outputs of the plain cache as the cache with scales gives them.
void unscale(const Shape& shape, int32_t layer, std::vector<float>& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const auto channel = static_cast<int32_t>(i) % shape.head_dim;
    const int32_t head = static_cast<int32_t>(i) / shape.head_dim % shape.q_heads * shape.kv_heads / shape.q_heads;
    out[i] =
        out[i] / kvq_test::test_value_scale(layer, head, channel) + kvq_test::test_value_offset(layer, head, channel);
  }
}

void check_close(const std::vector<float>& found, const std::vector<float>& expected, double limit = 2e-6) {
  REQUIRE(found.size() == expected.size());
  double worst = 0.0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = std::abs(double{found[i]} - double{expected[i]});
    worst = std::isnan(error) ? 1.0 : std::max(worst, error / (1.0 + std::abs(double{expected[i]})));
  }
  CHECK(worst <= limit);
}

// Tokens as a plain cache with scaled tensors has them, in the scale of the given ones.
void check_same_tokens(const Shape& shape, const Sequence& scaled, const Sequence& plain) {
  const kvq_cache_options options = shape.options();
  for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
    for (int32_t head = 0; head < shape.kv_heads; ++head) {
      const int32_t slots = plain.slots(layer, head);
      REQUIRE(scaled.slots(layer, head) == slots);
      const Decoded found = kvq_test::decode(scaled, layer, head, 0, slots, shape.head_dim);
      Decoded expected = kvq_test::decode(plain, layer, head, 0, slots, shape.head_dim);
      for (size_t i = 0; i < expected.k.size(); ++i) {
        const auto channel = static_cast<int32_t>(i) % shape.head_dim;
        expected.k[i] /= kvq_test::test_key_scale(options, layer, head, channel);
        expected.v[i] /= kvq_test::test_value_scale(layer, head, channel);
        expected.v[i] += kvq_test::test_value_offset(layer, head, channel);
      }
      CHECK(found.k == expected.k);
      CHECK(found.v == expected.v);
      CHECK(found.positions == expected.positions);
    }
  }
}

std::vector<std::string> policies() {
  std::vector<std::string> all = graph_policies();
  for (const std::string& policy : coded_policies()) all.push_back(policy);
  return all;
}

// Chunks that fill, open and seal pages, in decoding and in prompts.
constexpr int32_t kChunks[] = {1, 33, 1, 70, 31, 1, 200, 2};

}  // namespace

TEST_CASE("a cache with scales stores and returns what a plain cache does with scaled tensors") {
  for (const std::string& backend : kvq_test::backends()) {
    for (const std::string& policy : policies()) {
      CAPTURE(backend);
      CAPTURE(policy);
      const Shape shape{};
      const Context context = kvq_test::make_context(backend.c_str(), 2);
      Conversation scaled(shape, make_scaled(context, shape.options(), policy));
      Conversation plain(shape, make_cache(context, shape.options(), policy));
      uint64_t seed = 1;
      for (const int32_t n : kChunks) {
        for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
          const Tensors tensors(shape, n, ++seed);
          const Tensors given = tensors.scaled(shape, layer);
          const bool together = seed % 3 == 0;
          const std::vector<float> found =
              together ? scaled.extend(layer, n, tensors) : scaled.append_and_attend(layer, n, tensors);
          std::vector<float> expected =
              together ? plain.extend(layer, n, given) : plain.append_and_attend(layer, n, given);
          unscale(shape, layer, expected);
          check_close(found, expected);
        }
      }
      check_same_tokens(shape, scaled.sequence, plain.sequence);
    }
  }
}

TEST_CASE("scales suit heads and RoPE of every kind, many queries, and elements of 16 bits") {
  struct Case {
    Shape shape;
    kvq_rope rope;
    int32_t rotary_dim;
  };
  const Case cases[] = {{{8, 2, 128, 1}, KVQ_ROPE_HALF, 0}, {{4, 4, 64, 1}, KVQ_ROPE_INTERLEAVED, 32},
                        {{6, 2, 80, 1}, KVQ_ROPE_HALF, 40}, {{4, 1, 256, 1}, KVQ_ROPE_HALF, 0},
                        {{8, 1, 128, 1}, KVQ_ROPE_NONE, 0}, {{3, 1, 96, 1}, KVQ_ROPE_INTERLEAVED, 0}};
  for (const std::string& backend : kvq_test::backends()) {
    for (const Case& each : cases) {
      for (const char* policy : {"gs2", "gt2/int4", "int4+hadamard", "int3"}) {
        CAPTURE(backend);
        CAPTURE(policy);
        CAPTURE(each.shape.head_dim);
        const Context context = kvq_test::make_context(backend.c_str(), 2);
        kvq_cache_options options = each.shape.options();
        options.rope = each.rope;
        options.rotary_dim = each.rotary_dim;
        const Centres centres =
            Centres::load(context.get(), kvq_test::test_centres(options, {.keys = 0, .values = 0, .scales = true}));
        kvq_cache_options with = options;
        with.centres = centres.get();
        Conversation scaled(each.shape, make_cache(context, with, std::string(policy)));
        uint64_t seed = 1;
        // Against float64 attention to the tokens that the cache decodes.
        const kvq_test::Rotation rotation = kvq_test::Rotation::from(options);
        for (const int32_t n : {150, 40, 1}) {
          const Tensors tensors(each.shape, n, ++seed);
          const std::vector<float> out = scaled.append_and_attend(0, n, tensors);
          const auto dim = static_cast<size_t>(each.shape.head_dim);
          double worst = 0.0;
          for (int32_t head = 0; head < each.shape.q_heads; ++head) {
            const int32_t kv_head = head * each.shape.kv_heads / each.shape.q_heads;
            const int32_t slots = scaled.sequence.slots(0, kv_head);
            const Decoded tokens = kvq_test::decode(scaled.sequence, 0, kv_head, 0, slots, each.shape.head_dim);
            for (const int32_t query : {0, n / 2, n - 1}) {
              const size_t row = (static_cast<size_t>(query * each.shape.q_heads) + static_cast<size_t>(head)) * dim;
              std::vector<double> q(tensors.q.begin() + static_cast<ptrdiff_t>(row),
                                    tensors.q.begin() + static_cast<ptrdiff_t>(row + dim));
              const int32_t position = slots - n + query;
              rotation.apply(q, position);
              const std::vector<double> expected =
                  kvq_test::attention<float>({.scale = 1.0 / std::sqrt(static_cast<double>(each.shape.head_dim))}, q,
                                             position, tokens.k, tokens.v, tokens.positions);
              for (size_t c = 0; c < dim; ++c) {
                worst = std::max(worst, std::abs(double{out[row + c]} - expected[c]));
              }
            }
          }
          CHECK(worst < 0.12);  // of values up to 4; queries over scales are as uneven as these here
        }
      }
    }
  }
}

TEST_CASE("a sink takes its share of the values' offsets") {
  const Shape shape{};
  const std::vector<float> sinks(static_cast<size_t>(shape.q_heads), 2.0F);
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    const Context context = kvq_test::make_context(backend.c_str(), 1);
    Conversation scaled(shape, make_scaled(context, shape.options(), "fp16"));
    Conversation plain(shape, make_cache(context, shape.options(), std::string("fp16")));
    const Tensors tensors(shape, 50, 3);
    const std::vector<float> found = scaled.extend(0, 50, tensors, sinks.data());
    const std::vector<float> expected = plain.extend(0, 50, tensors, sinks.data());
    check_close(found, expected, 4e-3);  // FP16 pages of other numbers
    CHECK(found != expected);
  }
}

TEST_CASE("eviction, forks, truncation, recoding and snapshots keep scaled pages as they are") {
  const std::string evicting =
      "version: 1\nkeys: gs2\nvalues: gs2\neviction: {method: adasnap, budget: 64, window: 16}\n";
  const Shape shape{};
  for (const std::string& backend : kvq_test::backends()) {
    CAPTURE(backend);
    const Context context = kvq_test::make_context(backend.c_str(), 2);
    Conversation scaled(shape, make_scaled(context, shape.options(), evicting));
    Conversation plain(shape, make_cache(context, shape.options(), evicting));
    for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
      const Tensors tensors(shape, 230, static_cast<uint64_t>(layer) + 5);
      scaled.append_and_attend(layer, 230, tensors);
      plain.append_and_attend(layer, 230, tensors.scaled(shape, layer));
    }
    scaled.sequence.compress();
    plain.sequence.compress();
    check_same_tokens(shape, scaled.sequence, plain.sequence);
    const Sequence fork = scaled.sequence.fork();
    check_same_tokens(shape, fork, plain.sequence);

    const kvq_test::Snapshot saved = scaled.sequence.save();
    const Sequence loaded = Sequence::load(scaled.cache, saved);
    check_same_tokens(shape, loaded, plain.sequence);
    CHECK(loaded.save() == saved);
    // The other cache's pages have another scale.
    CHECK_THROWS_WITH_AS(Sequence::load(plain.cache, saved), doctest::Contains("scales of channels"),
                         kvq_test::api::Error);
    CHECK_THROWS_WITH_AS(Sequence::load(scaled.cache, plain.sequence.save()), doctest::Contains("scales of channels"),
                         kvq_test::api::Error);

    Conversation whole(shape, make_scaled(context, shape.options(), "gs4"));
    Conversation expected(shape, make_cache(context, shape.options(), "gs4"));
    for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
      const Tensors tensors(shape, 230, static_cast<uint64_t>(layer) + 7);
      whole.append_and_attend(layer, 230, tensors);
      expected.append_and_attend(layer, 230, tensors.scaled(shape, layer));
    }
    for (const int32_t length : {225, 192}) {
      whole.sequence.truncate(length);
      expected.sequence.truncate(length);
      check_same_tokens(shape, whole.sequence, expected.sequence);
    }
    for (const char* policy : {"gs2", "int4+hadamard/int8"}) {
      const kvq_test::Policy to = kvq_test::load_plain_policy(context, policy);
      whole.sequence.recode(to);
      expected.sequence.recode(to);
      check_same_tokens(shape, whole.sequence, expected.sequence);
    }
  }
}

TEST_CASE("routers read keys without their scales") {
  const Shape shape{};
  for (const std::string& backend : kvq_test::backends()) {
    for (const std::string& policy : routed_policies()) {
      if (kvq_test::wants_centres(policy)) continue;  // their centres belong to scaled keys
      CAPTURE(backend);
      CAPTURE(policy);
      const Context context = kvq_test::make_context(backend.c_str(), 2);
      Conversation scaled(shape, make_scaled(context, shape.options(), policy));
      Conversation plain(shape, make_cache(context, shape.options(), policy));
      for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
        const Tensors tensors(shape, 400, static_cast<uint64_t>(layer) + 11);
        kvq_test::append(scaled.sequence, layer, 400, tensors.k.data(), tensors.v.data());
        kvq_test::append(plain.sequence, layer, 400, tensors.k.data(), tensors.v.data());
      }
      // As many bytes: the same experts, which all differ in size.
      CHECK(scaled.sequence.save().size() == plain.sequence.save().size() + sizeof(uint64_t));
    }
  }
}

}  // namespace conformance::scales_test
