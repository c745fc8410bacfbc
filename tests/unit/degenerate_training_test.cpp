// Every training on degenerate numbers: its result can be saved, loaded and used.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "support/handles.h"
#include "support/random.h"

namespace degenerate_training_test {
namespace {

constexpr int32_t kHeads = 2;
constexpr int32_t kDim = 8;
constexpr int32_t kQueryHeads = 4;
constexpr int32_t kTokens = 192;
constexpr float kLargest = 65504.0F;
constexpr float kRoomToRotate = 0.5F;  // in caches

struct Input {
  const char* name;
  float (*number)(int32_t token, int32_t channel);
};

float noise(int32_t token, int32_t channel) {
  kvq_test::Random random(static_cast<uint64_t>(token) * 64 + static_cast<uint64_t>(channel) + 1);
  return static_cast<float>(random.normal());
}

const Input kInputs[] = {
    {"zeros", [](int32_t, int32_t) { return 0.0F; }},
    {"ones", [](int32_t, int32_t) { return 1.0F; }},
    {"the largest numbers", [](int32_t, int32_t) { return kLargest; }},
    {"the largest numbers of random signs", [](int32_t t, int32_t c) { return std::copysign(kLargest, noise(t, c)); }},
    {"denormal numbers", [](int32_t t, int32_t c) { return 6e-8F * std::round(2 * noise(t, c)); }},
    {"numbers that are zero in FP16", [](int32_t t, int32_t c) { return 1e-30F * noise(t, c); }},
    {"one token repeated", [](int32_t, int32_t c) { return noise(0, c); }},
    {"two tokens in turn", [](int32_t t, int32_t c) { return noise(t % 2, c); }},
    {"a single channel", [](int32_t t, int32_t c) { return c == 3 ? noise(t, c) : 0.0F; }},
    {"a single channel, constant", [](int32_t, int32_t c) { return c == 3 ? 1.0F : 0.0F; }},
    {"a single token", [](int32_t t, int32_t c) { return t == 7 ? noise(t, c) : 0.0F; }},
    {"huge beside tiny channels", [](int32_t, int32_t c) { return c == 0 ? kLargest : 1e-7F; }},
    {"huge beside tiny channels, random",
     [](int32_t t, int32_t c) { return (c == 0 ? 3e4F : 1e-6F) * std::clamp(noise(t, c), -2.0F, 2.0F); }},
    {"huge after tiny tokens", [](int32_t t, int32_t c) { return (t < 150 ? 1e-6F : 2e4F) * std::sin(noise(t, c)); }},
    {"a constant with the least noise", [](int32_t t, int32_t c) { return 1.0F + 0x1p-10F * std::round(noise(t, c)); }},
};

std::vector<float> tensor(const Input& input, int32_t heads, float factor) {
  std::vector<float> numbers;
  for (int32_t t = 0; t < kTokens; ++t) {
    for (int32_t c = 0; c < heads * kDim; ++c) numbers.push_back(factor * input.number(t, c % (kHeads * kDim)));
  }
  return numbers;
}

bool all_finite(std::span<const float> numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); });
}

/// A cache with the trained object stores the tokens and decodes finite ones.
void use(kvq_context* context, const kvq_cache_options& options, const char* policy,
         const std::vector<float>& numbers) {
  const kvq_test::Cache cache = kvq_test::make_cache(context, options, policy);
  kvq_test::Sequence sequence(cache);
  sequence.append(0, kTokens, numbers, numbers);
  std::vector<float> k(static_cast<size_t>(kTokens * kDim));
  std::vector<float> v(k.size());
  for (int32_t head = 0; head < kHeads; ++head) {
    sequence.decode(0, head, 0, kTokens, k, v);
    CHECK(all_finite(k));
    CHECK(all_finite(v));
  }
}

void train_codebook(kvq_context* context, const Input& input, const kvq_codebook_trainer_options& options) {
  const std::vector<float> numbers = tensor(input, kHeads, 1.0F);
  kvq_test::api::CodebookTrainer trainer(context, options);
  trainer.add(0, kTokens, numbers, numbers);
  trainer.run(0);
  const kvq_test::Codebook codebook = kvq_test::Codebook::load(context, trainer.result().save());
  const kvq_codebook_info info = codebook.describe();
  CHECK(std::isfinite(info.key_error));
  CHECK(std::isfinite(info.value_error));
  kvq_cache_options cache = kvq_test::cache_options(kQueryHeads, kHeads, kDim);
  cache.codebook = codebook;
  use(context, cache, "commvq", tensor(input, kHeads, kRoomToRotate));
}

void train_router(kvq_context* context, const Input& input, kvq_router_method method) {
  const std::vector<float> numbers = tensor(input, kHeads, kRoomToRotate);
  const std::vector<float> queries = tensor(input, kQueryHeads, kRoomToRotate);
  kvq_cache_options cache = kvq_test::cache_options(kQueryHeads, kHeads, kDim);
  auto options = kvq_test::initialised<kvq_router_trainer_options>();
  options.method = method;
  options.epochs = 3;
  options.mean_bits = 12.0;
  const kvq_test::Policy policy =
      kvq_test::Policy::load(context, "{version: 1, router: {experts: [fp16, int4, int2]}}");
  kvq_test::api::RouterTrainer trainer(context, cache, policy, options);
  trainer.add(0, kTokens, queries, numbers, numbers);
  trainer.run(2.0);
  const kvq_test::Router router = kvq_test::Router::load(context, trainer.result().save());
  cache.router = router;
  use(context, cache, "{version: 1, router: {experts: [fp16, int4, int2]}}", numbers);
}

}  // namespace

TEST_CASE("codebooks are trained from any numbers, and code them") {
  const kvq_test::Context context = kvq_test::make_context();
  for (const Input& input : kInputs) {
    for (const kvq_value_method method : {KVQ_VALUES_LEAST_SQUARES, KVQ_VALUES_NETWORK}) {
      for (const int32_t bits : {1, 2}) {
        for (const kvq_scope scope : {KVQ_SCOPE_LAYER, KVQ_SCOPE_HEAD}) {
          CAPTURE(std::string(input.name));
          CAPTURE(method);
          CAPTURE(bits);
          CAPTURE(scope);
          auto options = kvq_test::initialised<kvq_codebook_trainer_options>();
          options.n_layers = 1;
          options.kv_heads = kHeads;
          options.head_dim = kDim;
          options.key_stages = 3;
          options.key_codes = 16;
          options.key_rounds = 2;
          options.key_norms = scope;
          options.value_bits = bits;
          options.value_scope = scope;
          options.value_rounds = 4;
          options.value_method = method;
          CHECK_NOTHROW(train_codebook(context, input, options));
        }
      }
    }
  }
}

TEST_CASE("routers are trained from any numbers, and choose formats") {
  const kvq_test::Context context = kvq_test::make_context();
  for (const Input& input : kInputs) {
    for (const kvq_router_method method : {KVQ_ROUTER_LABEL, KVQ_ROUTER_PAPER}) {
      CAPTURE(std::string(input.name));
      CAPTURE(method);
      CHECK_NOTHROW(train_router(context, input, method));
    }
  }
}

}  // namespace degenerate_training_test
