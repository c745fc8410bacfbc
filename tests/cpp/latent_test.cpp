// Layers whose values are a prefix of their keys: appends have no values there, and must have them elsewhere.
#include <array>
#include <cmath>

#include "model.h"

namespace latent_test {
namespace {

constexpr int32_t kLatent = 1;  // the other layer is ordinary
constexpr size_t kKeyDim = 96;
constexpr size_t kValueDim = 64;

struct Bench {
  static kvq::Cache made(const kvq::Context& context) {
    auto shape = kvq::initialised<kvq_layer_shape>();
    shape.first_layer = kLatent;
    shape.kv_heads = 1;
    shape.key_dim = kKeyDim;
    shape.value_dim = kValueDim;
    shape.values_are_key_prefix = 1;
    shape.rope = KVQ_ROPE_NONE;
    shape.scale = 0.1F;
    kvq_cache_options options = small_options(2);
    options.shapes = &shape;
    options.n_shapes = 1;
    return kvq::Cache(context, options, nullptr);
  }

  kvq::Context context;
  kvq::Cache cache = made(context);
  kvq::Sequence sequence{cache};
  std::vector<float> k = kvq_test::normal_tensor(50 * kKeyDim, 1);
  std::vector<float> q = kvq_test::normal_tensor(kQueryHeads * kKeyDim, 2);
  std::vector<float> out = std::vector<float>(kQueryHeads * kValueDim);
};

// Of the last token's queries.
double difference(const Bench& bench) {
  double worst = 0.0;
  for (size_t head = 0; head < kQueryHeads; ++head) {
    double total = 0.0;
    std::array<double, kValueDim> sum{};
    for (const float* key = bench.k.data(); key != bench.k.data() + bench.k.size(); key += kKeyDim) {
      double logit = 0.0;
      for (size_t c = 0; c < kKeyDim; ++c) logit += 0.1 * double{key[c]} * double{bench.q[head * kKeyDim + c]};
      total += std::exp(logit);
      for (size_t c = 0; c < kValueDim; ++c) sum[c] += std::exp(logit) * double{key[c]};
    }
    for (size_t c = 0; c < kValueDim; ++c) {
      worst = std::max(worst, std::abs(sum[c] / total - double{bench.out[head * kValueDim + c]}));
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("values may be a prefix of keys, and are not appended then") {
  Bench bench;
  CHECK(bench.cache.describe_layer(kLatent).values_are_key_prefix == 1);
  CHECK(bench.cache.describe_layer(0).values_are_key_prefix == 0);
  kvq::Sequence batched(bench.cache), extended(bench.cache);
  const std::span<const float> k = bench.k, before = k.first(49 * kKeyDim), last = k.last(kKeyDim);
  bench.sequence.append(kLatent, 49, before);
  bench.sequence.append(kLatent, 1, last, {}, std::array{49});
  bench.cache.attend(kLatent, {.sequences = kvq::pointers(bench.sequence), .q = bench.q, .output = bench.out});
  CHECK(difference(bench) < 2e-3);

  bench.cache.append(kLatent, {.sequences = kvq::pointers(batched), .token_counts = std::array{50}, .k = k});
  CHECK(batched.save() == bench.sequence.save());
  extended.append(kLatent, 49, before.data(), nullptr, KVQ_F32, {});
  bench.out.assign(bench.out.size(), 0.0F);
  bench.cache.extend(kLatent, {.sequences = kvq::pointers(extended), .k = last, .q = bench.q, .output = bench.out});
  CHECK(difference(bench) < 2e-3);
  CHECK(extended.save() == bench.sequence.save());

  std::vector<float> keys(k.size()), values(50 * kValueDim);
  extended.decode(kLatent, 0, 0, 50, keys, values);
  bool same = true;
  for (size_t i = 0; i < values.size(); ++i) same = same && values[i] == keys[i / kValueDim * kKeyDim + i % kValueDim];
  CHECK(same);
}

TEST_CASE("values are given exactly where keys do not contain them") {
  Bench bench;
  const std::span<const float> k = bench.k, latent = k.first(kKeyDim), v = k.first(kValueDim);
  const auto plain = k.first(kTokenScalars);
  const std::vector<float> q(kQueryScalars);
  std::vector<float> out(kQueryScalars);
  const auto list = kvq::pointers(bench.sequence);
  const char* given = "v is given, must be NULL: values of layer 1 are a prefix of its keys";
  CHECK_FAILS(KVQ_E_ARGUMENT, given, bench.sequence.append(kLatent, 1, latent, v));
  CHECK_FAILS(KVQ_E_ARGUMENT, given, bench.cache.append(kLatent, {.sequences = list, .k = latent, .v = v}));
  CHECK_FAILS(KVQ_E_ARGUMENT, given,
              bench.cache.extend(kLatent, {.sequences = list, .k = latent, .v = v, .q = bench.q, .output = bench.out}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "v is NULL", bench.sequence.append(0, 1, plain));
  CHECK_FAILS(KVQ_E_ARGUMENT, "v is NULL", bench.cache.append(0, {.sequences = list, .k = plain}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "v is NULL",
              bench.cache.extend(0, {.sequences = list, .k = plain, .q = q, .output = out}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "v has 8 elements instead of 32",
              bench.cache.append(0, {.sequences = list, .k = plain, .v = v.first(8)}));
  CHECK(bench.sequence.length(0) == 0);
  CHECK(bench.sequence.length(kLatent) == 0);
}

}  // namespace latent_test
