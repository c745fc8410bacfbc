// The value encoder, against brute force and properties of the search.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/float16.h"
#include "io/trained_files.h"
#include "support/codebook.h"
#include "support/handles.h"
#include "value_codes.h"

namespace value_codes_test {
namespace {

using namespace kvq;
using namespace value_codes;

/// A code of normal numbers; the proposal uses the code's own rows, a poor initial guess that flips must correct.
struct RandomCode {
  RandomCode(int32_t width_, int32_t bits_, unsigned seed) : width(width_), bits(bits_), random(seed) {
    codes = normals(width * bits, 1.0F / std::sqrt(static_cast<float>(bits)));
    offset = normals(width, 0.5F);
    proposal = codes;
    bias.assign(static_cast<size_t>(bits), 0.0F);
    channel_scale = normals(width, 0.1F);
    for (float& each : channel_scale) each = 1 + std::fabs(each);
  }

  ValueCode code() const { return {width, bits, channel_scale, codes, offset, proposal, bias}; }

  std::vector<float> normals(int32_t n, float deviation) {
    std::normal_distribution<float> normal(0.0F, deviation);
    std::vector<float> numbers(static_cast<size_t>(n));
    for (float& each : numbers) each = normal(random);
    return numbers;
  }

  int32_t width;
  int32_t bits;
  std::mt19937 random;
  std::vector<float> channel_scale, codes, offset, proposal, bias;
};

/// offset + the sum of the rows whose bit is set, in double.
std::vector<double> decoded_shape(const ValueCode& code, const uint32_t* packed) {
  std::vector<double> w(code.offset.begin(), code.offset.end());
  for (size_t n = 0; n < static_cast<size_t>(code.bits); ++n) {
    if (((packed[n / 32] >> (n % 32)) & 1U) == 0) continue;
    for (size_t c = 0; c < w.size(); ++c) w[c] += static_cast<double>(code.codes[n * w.size() + c]);
  }
  return w;
}

/// Error of x = v / channel_scale against its decoded code.
struct Products {
  Products(const ValueCode& code, const float* vector, const uint32_t* packed) {
    const std::vector<double> w = decoded_shape(code, packed);
    for (size_t c = 0; c < w.size(); ++c) {
      const double x = static_cast<double>(vector[c]) / static_cast<double>(code.channel_scale[c]);
      xw += x * w[c];
      ww += w[c] * w[c];
      xx += x * x;
    }
  }

  double best_scale() const { return xw > 0 ? xw / ww : 0; }
  /// |x − scale · w|² / |x|²
  double error(double scale) const { return (xx - 2 * scale * xw + scale * scale * ww) / xx; }

  double xw = 0, ww = 0, xx = 0;
};

double best_error(const ValueCode& code, const float* vector, const uint32_t* packed) {
  const Products products(code, vector, packed);
  return products.error(products.best_scale());
}

}  // namespace

TEST_CASE("every flip lowers the error of a code") {
  RandomCode random(48, 48, 1);
  Machine machine;
  const std::vector<float> vectors = random.normals(48 * 40, 1.0F);
  std::vector<double> before(40, 2.0);
  for (const int32_t flips : {0, 1, 2, 3, 5, 8, 13}) {
    const Encoded encoded = encode(machine, random.code(), vectors, flips);
    for (size_t i = 0; i < before.size(); ++i) {
      const double error = best_error(random.code(), vectors.data() + i * 48, encoded.codes.data() + i * 2);
      CHECK(error <= before[i] + 1e-5);
      before[i] = error;
    }
  }
}

TEST_CASE("no single flip improves a finished code at its scale") {
  for (const int32_t bits : {40, 80}) {  // one stage and two; not multiples of a word
    RandomCode random(40, bits, 2);
    Machine machine;
    const std::vector<float> vectors = random.normals(40 * 33, 1.0F);
    const ValueCode code = random.code();
    const Encoded encoded = encode(machine, code, vectors);
    for (size_t i = 0; i < 33; ++i) {
      const float* vector = vectors.data() + i * 40;
      std::vector<uint32_t> packed(encoded.codes.begin() + static_cast<long>(i * code.words()),
                                   encoded.codes.begin() + static_cast<long>((i + 1) * code.words()));
      const Products found(code, vector, packed.data());
      for (size_t n = 0; n < static_cast<size_t>(bits); ++n) {
        packed[n / 32] ^= 1U << (n % 32);
        const Products other(code, vector, packed.data());
        CHECK(other.error(found.best_scale()) > found.error(found.best_scale()) - 1e-5);
        packed[n / 32] ^= 1U << (n % 32);
      }
    }
  }
}

TEST_CASE("a search for bits ends where rounding errors let two bits flip back and forth") {
  const std::vector<float> codes = {-0.026001F, 0,           0,          0,
                                    1400,       0,           -0.669922F, -0.0010004F,
                                    0.026001F,  0,           0,          0,
                                    -1403,      0,           0.669922F,  0.00100231F,
                                    0,          0,           0,          0.0149994F,
                                    -1800,      0,           0,          0,
                                    0,          0,           0,          -0.0149994F,
                                    1804,       0,           0,          0,
                                    1.09961F,   -0.189941F,  -160,       0.00056982F,
                                    -2.09961F,  0.0149994F,  35,         0.799805F,
                                    -1.10254F,  0.189941F,   160.375F,   -0.000571251F,
                                    2.10352F,   -0.0150299F, -35.0625F,  -0.801758F,
                                    0,          -0.026001F,  0.180054F,  0,
                                    0,          0,           0,          0.859863F,
                                    0,          0.026001F,   -0.180054F, 0,
                                    0,          0,           0,          -0.859863F};
  kvq_test::TestCodebook written(kvq_test::cache_options(1, 1, 8), {.stages = 0, .codes = 2, .bits = 1});
  kvq_test::TestCodebook::Layer& layer = written.layers.front();
  layer.value_codes = codes;
  layer.channel_scale.assign(8, 1.0F);
  layer.offset = {0.0011F, 0, -0.159996F, 5.69999e-7F, -0.402124F, 1.49999e-5F, 0.0349998F, 0.000798984F};

  constexpr int32_t kForEver = 100000;
  Machine machine;
  const ModelCodebook read = io::read_codebook(machine.allocator, written.file());
  const ValueCode code = value_code(read.shape, *read.layers.front().numbers, 0);
  const std::vector<float> vector = {0, 0, 0.00556182861F, 0.0134811401F, 0, 0.054901123F, 0, 0.939453125F};
  const ValueEncoder encoder(machine.allocator, machine.parallel, code);
  uint32_t packed = 0;
  uint16_t scale = 0;
  CHECK_LT(encoder.encode(machine.allocator, machine.parallel, vector.data(), 8, 1, &packed, &scale, kForEver), 1000);
}

TEST_CASE("correlations kept up through a search are those of the final code") {
  RandomCode random(64, 64, 3);
  const ValueCode code = random.code();
  std::vector<float> gram(64 * 64);
  std::vector<double> exact(64);
  std::vector<float> wanted(64), half_norm(64), decoded(64), step(64, 1.0F);
  const std::vector<float> x = random.normals(64, 0.2F);
  const auto dot = [](const float* a, const float* b) {
    double sum = 0;
    for (size_t c = 0; c < 64; ++c) sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
    return sum;
  };
  for (size_t n = 0; n < 64; ++n) {
    const float* row = random.codes.data() + n * 64;
    for (size_t m = 0; m < 64; ++m) gram[n * 64 + m] = static_cast<float>(dot(row, random.codes.data() + m * 64));
    wanted[n] = static_cast<float>(dot(row, x.data()));
    half_norm[n] = gram[n * 64 + n] / 2;
    exact[n] = dot(row, random.offset.data());
    decoded[n] = static_cast<float>(exact[n]);
  }
  const FlipSearch search{64, wanted.data(), half_norm.data(), decoded.data(), step.data()};
  std::vector<uint32_t> packed(2);
  Flip best = value_kernels().front()->best_flip(search, gram.data(), 0.0F, 1.0F);
  for (int flips = 0; flips < 30 && best.gain > 0; ++flips) {
    const auto bit = static_cast<size_t>(best.bit);
    packed[bit / 32] ^= 1U << (bit % 32);
    const float change = step[bit];
    step[bit] = -change;
    best = value_kernels().front()->best_flip(search, gram.data() + bit * 64, change, 1.0F);
    const std::vector<double> w = decoded_shape(code, packed.data());
    for (size_t n = 0; n < 64; ++n) {
      double sum = 0;
      for (size_t c = 0; c < 64; ++c) sum += w[c] * static_cast<double>(random.codes[n * 64 + c]);
      CHECK(static_cast<double>(decoded[n]) == doctest::Approx(sum).epsilon(1e-4));
    }
  }
  CHECK(packed[0] + packed[1] != 0);
}

TEST_CASE("with few bits most codes are the best of all, and none is better") {
  RandomCode random(12, 8, 4);
  Machine machine;
  const ValueCode code = random.code();
  const std::vector<float> vectors = random.normals(12 * 200, 1.0F);
  const Encoded encoded = encode(machine, code, vectors);
  int best_found = 0;
  for (size_t i = 0; i < 200; ++i) {
    double least = 1;
    for (uint32_t packed = 0; packed < 256; ++packed) {
      least = std::min(least, best_error(code, vectors.data() + i * 12, &packed));
    }
    const double error = best_error(code, vectors.data() + i * 12, encoded.codes.data() + i);
    CHECK(error >= least - 1e-9);
    best_found += error < least + 1e-5 ? 1 : 0;
  }
  CHECK(best_found > 100);
}

TEST_CASE("the scale is the best one, rounded to FP16") {
  RandomCode random(32, 32, 5);
  Machine machine;
  const ValueCode code = random.code();
  const std::vector<float> vectors = random.normals(32 * 50, 3.0F);
  const Encoded encoded = encode(machine, code, vectors);
  for (size_t i = 0; i < 50; ++i) {
    const Products products(code, vectors.data() + i * 32, encoded.codes.data() + i);
    CHECK(static_cast<double>(from_float16(encoded.scales[i])) == doctest::Approx(products.best_scale()).epsilon(1e-3));
  }
}

TEST_CASE("instruction sets, threads and neighbours do not change codes") {
  RandomCode random(72, 144, 6);
  Machine one(1);
  Machine three(3);
  const std::vector<float> vectors = random.normals(72 * 100, 1.0F);
  const Encoded expected = encode(one, random.code(), vectors);
  CHECK(encode(three, random.code(), vectors) == expected);
  for (const ValueKernels* kernels : value_kernels()) {
    CAPTURE(kernels->name);
    CHECK(encode(one, random.code(), vectors, kFlipsUnlimited, *kernels) == expected);
  }
  const std::vector<float> last(vectors.end() - 72, vectors.end());
  const Encoded alone = encode(one, random.code(), last);
  CHECK(std::equal(alone.codes.begin(), alone.codes.end(), expected.codes.end() - 5));
  CHECK(alone.scales[0] == expected.scales[99]);
}

TEST_CASE("a vector of zeros decodes to zeros, among others and alone") {
  RandomCode random(32, 64, 7);
  Machine machine;
  std::vector<float> vectors = random.normals(32 * 3, 1.0F);
  std::fill(vectors.begin() + 32, vectors.begin() + 64, 0.0F);
  const Encoded encoded = encode(machine, random.code(), vectors);
  CHECK(encoded.codes[2] == 0);
  CHECK(encoded.codes[3] == 0);
  CHECK(encoded.scales[1] == 0);
  CHECK(encoded.scales[0] != 0);
  std::vector<float> decoded(32, 1.0F);
  decode_value(random.code(), encoded.codes.data() + 2, from_float16(encoded.scales[1]), decoded.data());
  for (const float each : decoded) CHECK(each == 0.0F);
}

TEST_CASE("numbers at both ends of what a cache takes keep their scale finite") {
  RandomCode random(32, 32, 8);
  Machine machine;
  std::vector<float> vectors(64, 65504.0F);
  std::fill(vectors.begin() + 32, vectors.end(), 0x1p-24F);
  const Encoded encoded = encode(machine, random.code(), vectors);
  for (const uint16_t scale : encoded.scales) CHECK(is_finite_float16(scale));
}

}  // namespace value_codes_test
