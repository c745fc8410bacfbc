// Training of value codes, against known properties of the data.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/training/cross_products.h"
#include "core/error.h"
#include "core/float16.h"
#include "training/commvq/value_alternation.h"
#include "training/commvq/value_trainer.h"
#include "value_codes.h"

namespace value_training_test {
namespace {

using namespace kvq;
using namespace value_codes;

LayerCodebook train(Machine& machine, const CodebookShape& shape, const std::vector<float>& values,
                    const ValueTrainingOptions& options, double* error = nullptr) {
  LayerCodebook codebook(machine.allocator);
  const std::optional<double> result =
      train_values(machine.allocator, machine.parallel, machine.backend, shape, values, options, {}, codebook);
  REQUIRE(result.has_value());
  if (error != nullptr) *error = *result;
  return codebook;
}

/// Values near a low-dimensional plane, as in models.
std::vector<float> correlated_values(size_t tokens, size_t channels, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const size_t rank = std::max<size_t>(1, channels / 4);
  std::vector<float> mix(rank * channels);
  for (float& each : mix) each = normal(random);
  std::vector<float> values(tokens * channels);
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < channels; ++c) values[t * channels + c] = 0.3F * normal(random);
    for (size_t r = 0; r < rank; ++r) {
      const float weight = normal(random);
      for (size_t c = 0; c < channels; ++c) values[t * channels + c] += weight * mix[r * channels + c];
    }
  }
  return values;
}

double held_out_error(int32_t bits, int32_t rounds, Scope scope = Scope::kLayer) {
  Machine machine(2);
  ValueTrainingOptions options;
  options.rounds = rounds;
  double error = 0;
  train(machine, shape_of(2, 16, bits, scope), correlated_values(3000, 32, 5), options, &error);
  return error;
}

std::string refusal(const CodebookShape& shape, const std::vector<float>& values,
                    const ValueTrainingOptions& options = {}) {
  Machine machine;
  LayerCodebook codebook(machine.allocator);
  try {
    train_values(machine.allocator, machine.parallel, machine.backend, shape, values, options, {}, codebook);
  } catch (const Error& error) {
    CHECK(error.status() == KVQ_E_ARGUMENT);
    return error.what();
  }
  return "accepted";
}

/// Σ|v̂ − v|² / Σ|v|² of all tokens, encoded with the trained code.
double error_of(Machine& machine, const CodebookShape& shape, const LayerCodebook& codebook,
                const std::vector<float>& values) {
  const ValueCode code = value_code(shape, codebook, 0);
  const auto width = static_cast<size_t>(code.width);
  const size_t tokens = values.size() / width;
  const ValueEncoder encoder(machine.allocator, machine.parallel, code);
  std::vector<uint32_t> packed(tokens * code.words());
  std::vector<uint16_t> scales(tokens);
  encoder.encode(machine.allocator, machine.parallel, values.data(), width, tokens, packed.data(), scales.data());
  std::vector<float> decoded(width);
  double error = 0;
  double norm = 0;
  for (size_t t = 0; t < tokens; ++t) {
    decode_value(code, packed.data() + t * code.words(), from_float16(scales[t]), decoded.data());
    for (size_t c = 0; c < width; ++c) {
      error += std::pow(static_cast<double>(decoded[c]) - static_cast<double>(values[t * width + c]), 2);
      norm += std::pow(static_cast<double>(values[t * width + c]), 2);
    }
  }
  return error / norm;
}

}  // namespace

TEST_CASE("ridge regression satisfies its normal equations") {
  constexpr size_t kUnknowns = 7;
  constexpr size_t kColumns = 3;
  constexpr size_t kTokens = 700;  // more tokens than a chunk of the sums
  Machine machine(2);
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> inputs(kTokens * kUnknowns), targets(kTokens * kColumns), prior(kUnknowns * kColumns);
  for (auto* numbers : {&inputs, &targets, &prior}) {
    for (float& each : *numbers) each = normal(random);
  }
  const auto input = [&](size_t t, size_t i) { return inputs[t * kUnknowns + i]; };
  const auto target = [&](size_t t, size_t c) { return targets[t * kColumns + c]; };
  Vector<double> a(kUnknowns * kUnknowns, StlAllocator<double>(machine.allocator));
  Vector<double> x(kUnknowns * kColumns, StlAllocator<double>(machine.allocator));
  cross_products<true>(machine.allocator, machine.parallel, kTokens, kUnknowns, kUnknowns, input, input, a);
  cross_products<false>(machine.allocator, machine.parallel, kTokens, kUnknowns, kColumns, input, target, x);
  solve_ridge(a, 0.01, prior.data(), kColumns, x);
  double trace = 0;
  for (const float each : inputs) trace += static_cast<double>(each) * static_cast<double>(each);
  for (size_t i = 0; i < kUnknowns; ++i) {
    for (size_t c = 0; c < kColumns; ++c) {  // the gradient of the ridge objective is zero
      double gradient = 0.01 * trace / kUnknowns * (x[i * kColumns + c] - static_cast<double>(prior[i * kColumns + c]));
      for (size_t t = 0; t < kTokens; ++t) {
        double error = -static_cast<double>(target(t, c));
        for (size_t j = 0; j < kUnknowns; ++j) error += static_cast<double>(input(t, j)) * x[j * kColumns + c];
        gradient += error * static_cast<double>(input(t, i));
      }
      CHECK(std::fabs(gradient) < 1e-2);
    }
  }
}

TEST_CASE("errors fall with rounds and with bits") {
  const double one = held_out_error(1, 1);
  const double more = held_out_error(1, 8);
  CHECK(more < one);
  CHECK(more < 0.25);
  CHECK(held_out_error(2, 8) < more / 2);
  CHECK(held_out_error(2, 8, Scope::kHead) < held_out_error(1, 8, Scope::kHead));
}

TEST_CASE("values made by a code of orthogonal rows are recovered") {
  constexpr size_t kWidth = 16;
  constexpr size_t kTokens = 3000;
  std::mt19937 random(10);
  std::normal_distribution<float> normal;
  std::vector<float> values(kTokens * kWidth);
  for (size_t t = 0; t < kTokens; ++t) {
    const float scale = 1 + 0.2F * std::fabs(normal(random));
    const auto bits = static_cast<uint32_t>(random());
    for (size_t n = 0; n < kWidth; ++n) {  // rows of a Hadamard matrix, told apart by their lengths
      const float length = 0.5F + 0.1F * static_cast<float>(n);
      for (size_t c = 0; c < kWidth; ++c) {
        const bool negative = (std::popcount(n & c) % 2 == 1) != (((bits >> n) & 1U) == 0);
        values[t * kWidth + c] += scale * (negative ? -length : length);
      }
    }
  }
  Machine machine(2);
  double error = 1;
  train(machine, shape_of(1, kWidth, 1, Scope::kLayer), values, {}, &error);
  CHECK(error < 0.01);
}

TEST_CASE("the trained proposal and flips end about as low as flips from nothing") {
  const std::vector<float> values = correlated_values(3000, 32, 11);
  Machine machine(2);
  const CodebookShape shape = shape_of(1, 32, 1, Scope::kLayer);
  LayerCodebook codebook = train(machine, shape, values, {});
  const double proposed = error_of(machine, shape, codebook, values);
  std::fill(codebook.proposal.begin(), codebook.proposal.end(), 0.0F);
  std::fill(codebook.proposal_bias.begin(), codebook.proposal_bias.end(), -1.0F);
  CHECK(proposed < 1.02 * error_of(machine, shape, codebook, values));
}

TEST_CASE("training repeats itself to the last bit on any number of threads") {
  const std::vector<float> values = correlated_values(600, 32, 12);
  const CodebookShape shape = shape_of(2, 16, 2, Scope::kHead);
  ValueTrainingOptions options;
  options.rounds = 2;
  Machine one(1);
  Machine three(3);
  const LayerCodebook a = train(one, shape, values, options);
  const LayerCodebook b = train(three, shape, values, options);
  CHECK(a.channel_scale == b.channel_scale);
  CHECK(a.value_codes == b.value_codes);
  CHECK(a.value_offset == b.value_offset);
  CHECK(a.proposal == b.proposal);
  CHECK(a.proposal_bias == b.proposal_bias);
  CHECK(a.value_codes.size() == 2 * 32 * 16);
  options.seed = 2;
  const LayerCodebook c = train(one, shape, values, options);
  CHECK(a.value_codes != c.value_codes);
}

TEST_CASE("dead channels, constant channels and equal tokens can be trained on") {
  std::vector<float> values = correlated_values(500, 16, 13);
  for (size_t t = 0; t < 500; ++t) {
    values[t * 16] = 0.0F;
    values[t * 16 + 1] = 2.5F;
  }
  Machine machine;
  double error = 1;
  const LayerCodebook codebook = train(machine, shape_of(1, 16, 1, Scope::kLayer), values, {}, &error);
  CHECK(error < 0.5);
  for (const float each : codebook.channel_scale) CHECK(each > 0.0F);
  for (const float each : codebook.value_codes) CHECK(std::isfinite(each));

  std::vector<float> same(500 * 16);
  for (size_t i = 0; i < same.size(); ++i) same[i] = values[i % 16 + 16];
  train(machine, shape_of(1, 16, 2, Scope::kLayer), same, {}, &error);
  CHECK(error < 1e-5);
  train(machine, shape_of(1, 16, 1, Scope::kLayer), std::vector<float>(500 * 16), {}, &error);
  CHECK(error == 0.0);
  train(machine, shape_of(1, 16, 1, Scope::kLayer), std::vector<float>(2 * 16, 1.0F), {}, &error);
  CHECK(error < 1e-5);
}

TEST_CASE("a cancelled training leaves the codebook as it was") {
  Machine machine;
  LayerCodebook codebook(machine.allocator);
  int calls = 0;
  const ValueTrainingCallback cancel{[](void* user, const ValueTrainingProgress& progress) {
                                       CHECK(progress.round == ++*static_cast<int*>(user));
                                       CHECK(progress.rounds == 8);
                                       return progress.round < 3;
                                     },
                                     &calls};
  CHECK(!train_values(machine.allocator, machine.parallel, machine.backend, shape_of(1, 16, 1, Scope::kLayer),
                      correlated_values(300, 16, 14), {}, cancel, codebook)
             .has_value());
  CHECK(calls == 3);
  CHECK(codebook.channel_scale.empty());
  CHECK(codebook.value_codes.empty());
}

TEST_CASE("training refuses what it cannot use and says why") {
  const std::vector<float> values = correlated_values(10, 16, 15);
  const CodebookShape shape = shape_of(1, 16, 1, Scope::kLayer);
  CHECK(refusal(shape_of(1, 16, 3, Scope::kLayer), values) == "codes for values have 1 or 2 bits a scalar, not 3");
  CHECK(refusal(shape_of(1, 16, 0, Scope::kLayer), values) == "codes for values have 1 or 2 bits a scalar, not 0");
  CHECK(refusal(shape_of(0, 16, 1, Scope::kLayer), values) == "0 KV heads of 16 channels have no values");
  CHECK(refusal(shape, std::vector<float>(17)) == "17 numbers are no tokens of 16 channels");
  CHECK(refusal(shape, std::vector<float>(16)).find("two tokens or more") != std::string::npos);
  std::vector<float> bad = values;
  bad[21] = std::numeric_limits<float>::quiet_NaN();
  CHECK(refusal(shape, bad) == "the value at index 21 is not finite");
  ValueTrainingOptions options;
  options.ridge = 0;
  CHECK(refusal(shape, values, options) == "a ridge must be positive");
  options = {};
  options.held_out = 1;
  CHECK(refusal(shape, values, options) == "held_out must be between 0 and 1");
  options = {};
  options.rounds = 0;
  CHECK(refusal(shape, values, options) == "0 rounds and 4 joint ones are too few");
}

}  // namespace value_training_test
