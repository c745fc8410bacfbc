// Codebooks and centres trained on every device, on data with a known best error.
#include "support/build.h"
#include "support/failure.h"
#include "support/handles.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace conformance::training_test {
namespace {

using kvq_test::failure;
using kvq_test::api::CentresTrainer;
using kvq_test::api::CodebookTrainer;

constexpr int32_t kHeads = 2;
constexpr int32_t kDim = 32;
constexpr int32_t kWidth = kHeads * kDim;
constexpr int32_t kTokens = 6000;

/// Tokens near a few directions of a head, as in models, with noise.
std::vector<float> near_directions(uint64_t seed, int32_t tokens = kTokens) {
  constexpr int32_t kDirections = 6;
  kvq_test::Random random(seed);
  std::vector<double> directions(kDirections * kWidth);
  for (double& each : directions) each = random.normal();
  std::vector<float> numbers;
  for (int32_t t = 0; t < tokens; ++t) {
    double factors[kHeads][kDirections];
    for (auto& head : factors) {
      for (double& factor : head) factor = random.normal();
    }
    for (int32_t c = 0; c < kWidth; ++c) {
      double sum = 0.1 * random.normal();
      for (int32_t i = 0; i < kDirections; ++i) {
        sum += factors[c / kDim][i] * directions[static_cast<size_t>(i * kWidth + c)];
      }
      numbers.push_back(static_cast<float>(sum));
    }
  }
  return numbers;
}

/// Each token is one of `spots` points, with an offset of a thousandth.
std::vector<float> on_spots(int32_t spots, uint64_t seed) {
  kvq_test::Random random(seed);
  std::vector<double> places(static_cast<size_t>(spots * kWidth));
  for (double& each : places) each = random.normal();
  std::vector<float> numbers;
  for (int32_t t = 0; t < kTokens; ++t) {
    const auto place = static_cast<size_t>(random.integer(0, spots - 1) * kWidth);
    for (size_t c = 0; c < kWidth; ++c) {
      numbers.push_back(static_cast<float>(places[place + c] + 1e-3 * random.normal()));
    }
  }
  return numbers;
}

/// Signs along random orthogonal directions, which one bit per scalar can represent.
std::vector<float> signs_along_directions(uint64_t seed) {
  kvq_test::Random random(seed);
  std::vector<std::vector<double>> directions;
  while (directions.size() < kWidth) {
    std::vector<double> next(kWidth);
    for (double& each : next) each = random.normal();
    for (const auto& other : directions) {
      double product = 0.0;
      for (size_t c = 0; c < kWidth; ++c) product += next[c] * other[c];
      for (size_t c = 0; c < kWidth; ++c) next[c] -= product * other[c];
    }
    double norm = 0.0;
    for (const double each : next) norm += each * each;
    for (double& each : next) each /= std::sqrt(norm);
    // Different lengths, so that directions differ.
    for (double& each : next) each *= 1.0 + 0.05 * static_cast<double>(directions.size());
    directions.push_back(next);
  }
  std::vector<float> numbers;
  for (int32_t t = 0; t < kTokens; ++t) {
    std::vector<double> token(kWidth);
    for (const auto& direction : directions) {
      const double sign = random.integer(0, 1) == 0 ? -1.0 : 1.0;
      for (size_t c = 0; c < kWidth; ++c) token[c] += sign * direction[c];
    }
    for (const double each : token) numbers.push_back(static_cast<float>(each));
  }
  return numbers;
}

template <typename Options>
Options one_layer() {
  auto options = kvq_test::initialised<Options>();
  options.n_layers = 1;
  options.kv_heads = kHeads;
  options.head_dim = kDim;
  return options;
}

kvq_codebook_trainer_options codebook_options(int32_t stages, int32_t bits) {
  auto options = one_layer<kvq_codebook_trainer_options>();
  options.key_stages = stages;
  options.key_codes = 16;
  options.value_bits = bits;
  return options;
}

kvq_centres_trainer_options centres_options(int32_t keys, int32_t values) {
  auto options = one_layer<kvq_centres_trainer_options>();
  options.key_centres = keys;
  options.value_centres = values;
  return options;
}

// Result of training a codebook or centres on keys and values.
template <typename Options>
auto train(kvq_context* context, const Options& options, const std::vector<float>& k, const std::vector<float>& v) {
  constexpr bool kOfCodes = std::is_same_v<Options, kvq_codebook_trainer_options>;
  std::conditional_t<kOfCodes, CodebookTrainer, CentresTrainer> trainer(context, options);
  trainer.add(0, static_cast<int32_t>(k.size()) / kWidth, k, v);
  trainer.run(0);
  return trainer.result();
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// Errors of keys and values in a CPU cache with a codebook.
double stored_error(const std::vector<std::byte>& file, const std::vector<float>& k, const std::vector<float>& v) {
  const kvq_test::Context context = kvq_test::make_context();
  const kvq_test::Codebook codebook = kvq_test::Codebook::load(context, file);
  kvq_cache_options options = kvq_test::cache_options(kHeads, kHeads, kDim);
  options.codebook = codebook;
  const kvq_test::Cache cache =
      kvq_test::make_cache(context, options, "{version: 1, keys: commvq, values: commvq, sink: 0}");
  kvq_test::Sequence sequence(cache);
  constexpr int32_t kStored = 256;
  sequence.append(0, kStored + 1, std::span(k).first((kStored + 1) * kWidth),
                  std::span(v).first((kStored + 1) * kWidth));
  double error = 0.0;
  double norm = 0.0;
  for (int32_t head = 0; head < kHeads; ++head) {
    std::vector<float> keys(kStored * kDim);
    std::vector<float> values(keys.size());
    sequence.decode(0, head, 0, kStored, keys, values);
    for (size_t i = 0; i < keys.size(); ++i) {
      const size_t at = i / kDim * kWidth + static_cast<size_t>(head) * kDim + i % kDim;
      error += std::pow(double{values[i]} - double{v[at]}, 2);
      norm += std::pow(double{v[at]}, 2);
    }
  }
  return error / norm;
}

}  // namespace

TEST_CASE("codes for keys and values learn what is there to learn, on every device") {
  for (const char* device : kvq_test::devices()) {
    CAPTURE(device);
    const kvq_test::Context context = kvq_test::make_context(device, 2);
    // A single stage has a centre for each of as many points as it has codes.
    const std::vector<float> k = on_spots(16, 1);
    const std::vector<float> v = signs_along_directions(2);
    auto options = codebook_options(6, 1);
    const kvq_codebook_info info = train(context, options, k, v).describe();
    CHECK(info.key_error < 1e-3);
    CHECK(info.value_error < 0.02);
    options.value_scope = options.key_norms = KVQ_SCOPE_HEAD;
    CHECK(train(context, options, k, near_directions(3)).describe().value_error < 0.25);
  }
}

TEST_CASE("a GPU trains codes as well as a CPU, and the same ones every time") {
  const std::vector<float> k = near_directions(4);
  const std::vector<float> v = near_directions(5);
  for (const int32_t bits : {1, 2}) {
    for (const kvq_scope scope : {KVQ_SCOPE_LAYER, KVQ_SCOPE_HEAD}) {
      if (kvq_test::kSmallRun && (bits == 2) != (scope == KVQ_SCOPE_HEAD)) continue;
      CAPTURE(bits);
      CAPTURE(scope);
      auto options = codebook_options(3 * bits, bits);
      options.value_scope = options.key_norms = scope;
      kvq_codebook_info expected{};
      for (const char* device : kvq_test::devices()) {
        CAPTURE(device);
        const kvq_test::Context context = kvq_test::make_context(device, 2);
        const kvq_test::Codebook codebook = train(context, options, k, v);
        const kvq_codebook_info info = codebook.describe();
        CHECK(train(context, options, k, v).save() == codebook.save());
        if (device == nullptr) expected = info;
        CHECK(info.key_error == doctest::Approx(expected.key_error).epsilon(0.01));
        // Training is sensitive to rounding: with two bits, inputs that differ by 1e-7 change a CPU's errors by up to
        // 2.4 %.
        CHECK(info.value_error == doctest::Approx(expected.value_error).epsilon(bits == 1 ? 0.01 : 0.05));
      }
    }
  }
}

TEST_CASE("the paper's network proposes bits on every device") {
  const std::vector<float> k = near_directions(6, 1000);
  const std::vector<float> v = near_directions(7, 1000);
  auto options = codebook_options(0, 1);
  options.value_method = KVQ_VALUES_NETWORK;
  options.value_rounds = 2;
  for (const char* device : kvq_test::devices()) {
    CAPTURE(device);
    CHECK(train(kvq_test::make_context(device, 2).get(), options, k, v).describe().value_error < 0.4);
  }
}

TEST_CASE("codes trained on one device are loaded on another and used on the CPU") {
  const std::vector<float> k = near_directions(8);
  const std::vector<float> v = near_directions(9);
  double expected = 0.0;
  for (const char* device : kvq_test::devices()) {
    CAPTURE(device);
    const kvq_test::Codebook trained = train(kvq_test::make_context(device, 2).get(), codebook_options(6, 1), k, v);
    const std::vector<std::byte> file = trained.save();
    for (const char* other : kvq_test::devices()) {
      const kvq_test::Context context = kvq_test::make_context(other);
      CHECK(kvq_test::Codebook::load(context, file).save() == file);
    }
    const double error = stored_error(file, k, v);
    if (device == nullptr) expected = error;
    CHECK(error < 0.3);
    CHECK(error == doctest::Approx(expected).epsilon(0.02));
  }
}

TEST_CASE("centres lie where vectors lie, on every device, the same every time") {
  const std::vector<float> k = on_spots(20, 10);
  const std::vector<float> v = near_directions(11);
  double expected = 0.0;
  for (const char* device : kvq_test::devices()) {
    CAPTURE(device);
    const kvq_test::Context context = kvq_test::make_context(device, 2);
    const kvq_test::Centres centres = train(context, centres_options(64, 100), k, v);
    const kvq_centres_layer_info info = centres.describe_layer(0);
    CHECK(info.key_residual < 1e-4);
    CHECK(info.value_residual < 0.7);
    if (device == nullptr) expected = info.value_residual;
    CHECK(info.value_residual == doctest::Approx(expected).epsilon(0.01));
    CHECK(train(context, centres_options(64, 100), k, v).save() == centres.save());
    const kvq_test::Centres mean = train(context, centres_options(1, 0), k, v);
    CHECK(mean.describe_layer(0).key_residual > 0.5);
  }
}

TEST_CASE("training that fails leaves a layer its tokens, on every device") {
  for (const char* device : kvq_test::devices()) {
    CAPTURE(device);
    const kvq_test::Context context = kvq_test::make_context(device, 2);
    std::vector<float> k = near_directions(12, 200);
    CodebookTrainer trainer(context, codebook_options(2, 1));
    trainer.add(0, 10, std::span(k).first(10 * kWidth), std::span(k).first(10 * kWidth));
    CHECK(contains(failure(KVQ_E_ARGUMENT, [&] { trainer.run(0); }), "10 tokens are too few to train 16 key codes"));
    trainer.add(0, 200, k, k);
    k[3] = std::numeric_limits<float>::quiet_NaN();
    failure(KVQ_E_ARGUMENT, [&] { trainer.add(0, 200, k, k); });
    int calls = 0;
    failure(KVQ_E_CANCELLED, [&] { trainer.run(0, [&](double) -> int32_t { return ++calls == 30 ? 1 : 0; }); });
    trainer.run(0);
    CHECK(trainer.result().describe_layer(0).tokens == 210);

    k[3] = 0.0F;
    CentresTrainer centres(context, centres_options(16, 16));
    centres.add(0, 10, std::span(k).first(10 * kWidth), std::span(k).first(10 * kWidth));
    CHECK(contains(failure(KVQ_E_ARGUMENT, [&] { centres.run(0); }), "too few for 16 centres"));
    centres.add(0, 200, k, k);
    failure(KVQ_E_CANCELLED, [&] { centres.run(0, [](double) -> int32_t { return 1; }); });
    centres.run(0);
    CHECK(centres.result().describe_layer(0).tokens == 210);
  }
}

TEST_CASE("training counts its memory, on a device too, and keeps to its limit") {
  const std::vector<float> k = near_directions(13, 2000);
  for (const char* device : kvq_test::devices()) {
    CAPTURE(device);
    const kvq_test::Context context = kvq_test::make_context(device);
    auto options = codebook_options(2, 1);
    options.max_bytes = uint64_t{1} << 20U;
    CodebookTrainer trainer(context, options);
    trainer.add(0, 2000, k, k);
    failure(KVQ_E_LIMIT, [&] { trainer.run(0); });
  }
}

}  // namespace conformance::training_test
