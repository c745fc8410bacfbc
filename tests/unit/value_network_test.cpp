// The network that proposes bits of value codes, and its training.
#include "formats/commvq/value_network.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/float16.h"
#include "formats/commvq/model_codebook.h"
#include "training/commvq/value_trainer.h"
#include "value_codes.h"

namespace value_network_test {
namespace {

using namespace kvq;
using namespace value_codes;

/// A code of normal numbers and an unrelated network.
struct RandomNetwork {
  RandomNetwork(size_t width_, size_t hidden_, size_t bits_, unsigned seed)
      : width(width_), hidden(hidden_), bits(bits_), random(seed) {
    codes = normals(bits * width, 0.2F);
    offset.assign(width, 0.0F);
    channel_scale.assign(width, 1.0F);
    gain = normals(width, 0.2F);
    for (float& each : gain) each += 1.0F;
    bias = normals(width, 0.2F);
    first = normals(hidden * width, 0.3F);
    first_bias = normals(hidden, 0.3F);
    second = normals(2 * bits * hidden, 0.3F);
    second_bias = normals(2 * bits, 0.3F);
  }

  std::vector<float> normals(size_t n, float deviation) {
    std::normal_distribution<float> normal(0.0F, deviation);
    std::vector<float> numbers(n);
    for (float& each : numbers) each = normal(random);
    return numbers;
  }
  ValueCode code() const {
    return {.width = static_cast<int32_t>(width),
            .bits = static_cast<int32_t>(bits),
            .channel_scale = channel_scale,
            .codes = codes,
            .offset = offset,
            .proposal = {},
            .proposal_bias = {},
            .network = {gain, bias, first, first_bias, second, second_bias}};
  }

  /// The network's output for a vector, in double.
  std::vector<double> outputs(const float* vector) const {
    double mean = 0;
    double squares = 0;
    double variance = 0;
    for (size_t c = 0; c < width; ++c) {
      mean += static_cast<double>(vector[c]) / static_cast<double>(width);
      squares += static_cast<double>(vector[c]) * static_cast<double>(vector[c]);
    }
    for (size_t c = 0; c < width; ++c) {
      variance += std::pow(static_cast<double>(vector[c]) - mean, 2) / static_cast<double>(width);
    }
    const double deviation = std::sqrt(variance + 1e-5 * squares / static_cast<double>(width));
    std::vector<double> out(second_bias.begin(), second_bias.end());
    for (size_t h = 0; h < hidden; ++h) {
      auto x = static_cast<double>(first_bias[h]);
      for (size_t c = 0; c < width; ++c) {
        x += static_cast<double>(first[h * width + c]) *
             ((static_cast<double>(vector[c]) - mean) / deviation * static_cast<double>(gain[c]) +
              static_cast<double>(bias[c]));
      }
      const double active = x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
      for (size_t o = 0; o < out.size(); ++o) out[o] += static_cast<double>(second[o * hidden + h]) * active;
    }
    return out;
  }

  size_t width;
  size_t hidden;
  size_t bits;
  std::mt19937 random;
  std::vector<float> channel_scale, codes, offset, gain, bias, first, first_bias, second, second_bias;
};

/// Σ|v̂ − v|² / Σ|v|²
double error_of(Machine& machine, const ValueCode& code, const std::vector<float>& vectors, int32_t max_flips) {
  const Encoded encoded = encode(machine, code, vectors, max_flips);
  const auto width = static_cast<size_t>(code.width);
  std::vector<float> decoded(width);
  double error = 0;
  double norm = 0;
  for (size_t t = 0; t < encoded.scales.size(); ++t) {
    decode_value(code, encoded.codes.data() + t * code.words(), from_float16(encoded.scales[t]), decoded.data());
    for (size_t c = 0; c < width; ++c) {
      const auto v = static_cast<double>(vectors[t * width + c]);
      error += std::pow(static_cast<double>(decoded[c]) - v, 2);
      norm += v * v;
    }
  }
  return error / norm;
}

CodebookShape network_shape(int32_t kv_heads, int32_t head_dim, int32_t bits, Scope scope) {
  CodebookShape shape = shape_of(kv_heads, head_dim, bits, scope);
  shape.values.proposal = ValueProposal::kNetwork;
  shape.values.hidden = shape.width();
  return shape;
}

/// Values around a few centres that linear maps cannot separate.
std::vector<float> clustered_values(size_t tokens, size_t channels, unsigned seed) {
  constexpr size_t kClusters = 24;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> centres(kClusters * channels);
  for (float& each : centres) each = normal(random);
  std::vector<float> values(tokens * channels);
  for (size_t t = 0; t < tokens; ++t) {
    const size_t cluster = random() % kClusters;
    for (size_t c = 0; c < channels; ++c) {
      values[t * channels + c] = centres[cluster * channels + c] + 0.3F * normal(random);
    }
  }
  return values;
}

LayerCodebook train(Machine& machine, const CodebookShape& shape, const std::vector<float>& values, int32_t rounds,
                    double* error = nullptr, uint64_t seed = 1) {
  LayerCodebook codebook(machine.allocator);
  ValueTrainingOptions options;
  options.network_rounds = rounds;
  options.seed = seed;
  const std::optional<double> result =
      train_values(machine.allocator, machine.parallel, machine.backend, shape, values, options, {}, codebook);
  REQUIRE(result.has_value());
  if (error != nullptr) *error = *result;
  return codebook;
}

}  // namespace

TEST_CASE("without flips a code is what the network's largest outputs say, at one bit and at two") {
  for (const size_t bits : {size_t{24}, size_t{48}}) {
    RandomNetwork random(24, 40, bits, 1);
    Machine machine;
    const std::vector<float> vectors = random.normals(24 * 70, 3.0F);
    const Encoded encoded = encode(machine, random.code(), vectors, 0);
    const size_t words = random.code().words();
    size_t compared = 0;
    for (size_t t = 0; t < 70; ++t) {
      if (encoded.scales[t] == 0) continue;  // a code that points away decodes to zero
      const std::vector<double> out = random.outputs(vectors.data() + t * 24);
      for (size_t pair = 0; pair < bits / 2; ++pair) {
        const auto* largest = std::max_element(&out[4 * pair], &out[4 * pair] + 4);
        const auto choice = static_cast<uint32_t>(largest - &out[4 * pair]);
        CHECK((encoded.codes[t * words + pair / 16] >> (pair % 16 * 2) & 3U) == choice);
        ++compared;
      }
    }
    CHECK(compared > 200);
  }
}

TEST_CASE("of equal outputs the first choice wins") {
  RandomNetwork random(8, 4, 8, 2);
  std::fill(random.second.begin(), random.second.end(), 0.0F);
  random.second_bias = {5, 5, 5, 5, 1, 2, 2, 2, 1, 1, 3, 3, 0, 0, 0, 1};
  std::vector<float> columns(8 * kValueBlock, 0.25F);
  std::vector<float> bits(8 * kValueBlock);
  std::vector<float> workspace(random.code().network.workspace_floats());
  propose_bits(random.code().network, *value_kernels().back(), columns.data(), workspace.data(), bits.data());
  const std::vector<float> expected = {0, 0, 1, 0, 0, 1, 1, 1};
  for (size_t n = 0; n < 8; ++n) {
    for (size_t i = 0; i < kValueBlock; ++i) CHECK(bits[n * kValueBlock + i] == expected[n]);
  }
}

TEST_CASE("flips bring a network's proposal closer") {
  RandomNetwork random(32, 32, 64, 3);
  Machine machine;
  const std::vector<float> vectors = random.normals(32 * 100, 1.0F);
  double before = error_of(machine, random.code(), vectors, 0);
  for (const int32_t flips : {1, 3, 10, 1000}) {
    const double error = error_of(machine, random.code(), vectors, flips);
    CHECK(error < before);
    before = error;
  }
  CHECK(before < 0.5);
}

TEST_CASE("instruction sets, threads and neighbours do not change a network's codes") {
  RandomNetwork random(40, 72, 80, 4);
  Machine one(1);
  Machine three(3);
  std::vector<float> vectors = random.normals(40 * 100, 1.0F);
  std::fill(vectors.begin(), vectors.begin() + 40, 0.0F);
  for (const int32_t flips : {0, 5}) {
    const Encoded expected = encode(one, random.code(), vectors, flips);
    CHECK(expected.scales[0] == 0);
    CHECK(encode(three, random.code(), vectors, flips) == expected);
    for (const ValueKernels* kernels : value_kernels()) {
      CAPTURE(kernels->name);
      CHECK(encode(one, random.code(), vectors, flips, *kernels) == expected);
    }
    const std::vector<float> last(vectors.end() - 40, vectors.end());
    const Encoded alone = encode(one, random.code(), last, flips);
    CHECK(std::equal(alone.codes.begin(), alone.codes.end(), expected.codes.end() - 3));
    CHECK(alone.scales[0] == expected.scales[99]);
  }
}

TEST_CASE("weights at the limits of their type give codes all the same") {
  RandomNetwork random(16, 16, 16, 5);
  std::fill(random.first.begin(), random.first.end(), 65504.0F);
  std::fill(random.gain.begin(), random.gain.end(), -3e38F);
  Machine machine;
  for (const uint16_t scale : encode(machine, random.code(), random.normals(16 * 40, 1.0F), 3).scales) {
    CHECK(is_finite_float16(scale));
  }
}

TEST_CASE("training a network lowers the error, far below that of random codes") {
  const std::vector<float> values = clustered_values(3000, 32, 6);
  const CodebookShape shape = network_shape(1, 32, 1, Scope::kLayer);
  Machine machine(2);
  double little = 0;
  double much = 0;
  const LayerCodebook first = train(machine, shape, values, 1, &little);
  const LayerCodebook last = train(machine, shape, values, 12, &much);
  CHECK(much < little);
  const double proposed = error_of(machine, value_code(shape, last, 0), values, 0);
  CHECK(proposed < 0.7 * error_of(machine, value_code(shape, first, 0), values, 0));
  CHECK(proposed < 0.25 * error_of(machine, RandomNetwork(32, 32, 32, 7).code(), values, 0));
  CHECK(std::all_of(last.value_offset.begin(), last.value_offset.end(), [](float each) { return each == 0.0F; }));
}

TEST_CASE("networks are trained for each head, and do better with two bits") {
  const std::vector<float> values = clustered_values(2000, 32, 8);
  Machine machine(2);
  double one = 0;
  double two = 0;
  const LayerCodebook codebook = train(machine, network_shape(2, 16, 1, Scope::kHead), values, 6, &one);
  CHECK(codebook.network_first.size() == 2 * 16 * 16);
  CHECK(codebook.network_second.size() == 2 * 32 * 16);
  CHECK(codebook.proposal.empty());
  train(machine, network_shape(2, 16, 2, Scope::kHead), values, 6, &two);
  CHECK(one < 0.35);
  CHECK(two < 0.6 * one);
}

TEST_CASE("training a network repeats itself to the last bit on any number of threads") {
  const std::vector<float> values = clustered_values(500, 32, 9);
  const CodebookShape shape = network_shape(2, 16, 2, Scope::kHead);
  Machine one(1);
  Machine three(3);
  const LayerCodebook a = train(one, shape, values, 2);
  const LayerCodebook b = train(three, shape, values, 2);
  const LayerCodebook other = train(three, shape, values, 2, nullptr, 2);
  CHECK(a.value_codes == b.value_codes);
  CHECK(a.network_norm_gain == b.network_norm_gain);
  CHECK(a.network_norm_bias == b.network_norm_bias);
  CHECK(a.network_first == b.network_first);
  CHECK(a.network_first_bias == b.network_first_bias);
  CHECK(a.network_second == b.network_second);
  CHECK(a.network_second_bias == b.network_second_bias);
  CHECK(a.value_codes != other.value_codes);
}

TEST_CASE("a network is trained on dead channels, equal tokens, zeros and two tokens") {
  std::vector<float> values = clustered_values(300, 16, 10);
  for (size_t t = 0; t < 300; ++t) values[t * 16] = 0.0F;
  const CodebookShape shape = network_shape(1, 16, 1, Scope::kLayer);
  Machine machine;
  double error = 1;
  const LayerCodebook codebook = train(machine, shape, values, 2, &error);
  CHECK(error < 0.5);
  for (const float each : codebook.network_first) CHECK(std::isfinite(each));

  std::vector<float> same(300 * 16);
  for (size_t i = 0; i < same.size(); ++i) same[i] = values[i % 16 + 16];
  train(machine, shape, same, 1, &error);
  CHECK(error < 1e-4);
  train(machine, shape, std::vector<float>(300 * 16), 1, &error);
  CHECK(error == 0.0);
  train(machine, shape, std::vector<float>(2 * 16, 1.0F), 1, &error);
  CHECK(error < 1e-4);
}

TEST_CASE("training of a network reports every round, and cancelled leaves the codebook as it was") {
  Machine machine;
  LayerCodebook codebook(machine.allocator);
  ValueTrainingOptions options;
  options.network_rounds = 4;
  int calls = 0;
  const ValueTrainingCallback cancel{[](void* user, const ValueTrainingProgress& progress) {
                                       CHECK(progress.round == ++*static_cast<int*>(user));
                                       CHECK(progress.rounds == 8);
                                       return progress.round < 6;
                                     },
                                     &calls};
  const CodebookShape shape = network_shape(2, 16, 2, Scope::kHead);
  CHECK(!train_values(machine.allocator, machine.parallel, machine.backend, shape, clustered_values(100, 32, 11),
                      options, cancel, codebook)
             .has_value());
  CHECK(calls == 6);
  for_each_value_array(shape, [&](const CodebookArray& array) { CHECK((codebook.*array.numbers).empty()); });
}

TEST_CASE("training refuses networks that it cannot train") {
  Machine machine;
  LayerCodebook codebook(machine.allocator);
  const auto refusal = [&](const CodebookShape& shape, const ValueTrainingOptions& options) -> std::string {
    try {
      train_values(machine.allocator, machine.parallel, machine.backend, shape, clustered_values(10, 16, 12), options,
                   {}, codebook);
    } catch (const Error& error) {
      CHECK(error.status() == KVQ_E_ARGUMENT);
      return error.what();
    }
    return "accepted";
  };
  CodebookShape shape = network_shape(1, 16, 1, Scope::kLayer);
  ValueTrainingOptions options;
  options.network_rounds = 0;
  CHECK(refusal(shape, options) == "0 rounds of a network are too few");
  shape.values.hidden = 0;
  CHECK(refusal(shape, {}) == "a network needs hidden units, not 0");
}

}  // namespace value_network_test
