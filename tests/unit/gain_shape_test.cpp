// Gain-shape codes: decoding is unbiased, the error is as expected, and the search finds the best path.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/float16.h"
#include "formats/float16/layout.h"
#include "formats/gain_shape/encode.h"
#include "formats/gain_shape/gain_shape.h"
#include "formats/gain_shape/gains.h"
#include "formats/gain_shape/trellis_search.h"

namespace gain_shape_test {
namespace {

using kvq::Centre;
using kvq::CodeType;
using kvq::kPageSlots;
using kvq::Side;
namespace gain_shape = kvq::gain_shape;

constexpr CodeType kCodes[] = {CodeType::gain_scalar(4), CodeType::gain_scalar(3),  CodeType::gain_scalar(2),
                               CodeType::gain_scalar(1), CodeType::gain_trellis(3), CodeType::gain_trellis(2),
                               CodeType::gain_trellis(1)};

/// 32 vectors and their decoded values, compared in rotated form: a rotation changes no product.
struct Coded {
  Coded(Side side, CodeType code, bool page_mean, int32_t head_dim, int32_t used, unsigned seed, double offset = 0.0)
      : rows(static_cast<size_t>(kPageSlots * head_dim)), decoded(rows.size()) {
    const kvq::SideFormat format{.code = code, .centre = page_mean ? Centre::kPageMean : Centre::kNone};
    const kvq::PageFormat page(format, format, head_dim);
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    std::vector<std::byte> plane(kvq::float16::plane(side, head_dim).bytes());
    auto* halves = reinterpret_cast<uint16_t*>(plane.data());
    for (int32_t slot = 0; slot < used; ++slot) {
      for (int32_t i = 0; i < head_dim; ++i) {
        const uint16_t half = kvq::to_float16(static_cast<float>(normal(random) + (i % 3 == 0 ? offset : 0.0)));
        halves[kvq::float16::index(side, head_dim, slot, i)] = half;
        rows[static_cast<size_t>(slot * head_dim + i)] = kvq::from_float16(half);
      }
    }
    std::vector<std::byte> data(kvq::side_bytes(side, page));
    const std::byte* source = plane.data();
    std::byte* target = data.data();
    gain_shape::encode({.side = side,
                        .format = page,
                        .first_head = 0,
                        .float16 = {&source, 1},
                        .out = {&target, 1},
                        .used = used,
                        .positions = {nullptr, 0},
                        .context = nullptr});
    CHECK(gain_shape::valid(side, page, data.data()));
    const std::byte* sides = data.data();
    kvq::decode_side(
        {.side = side, .format = page, .layer = 0, .head = 0, .sides = &sides, .rope = nullptr, .positions = nullptr},
        0, kPageSlots, decoded.data());
  }

  std::vector<float> rows;
  std::vector<float> decoded;
};

double dot(const float* a, const float* b, int32_t n) {
  double sum = 0.0;
  for (int32_t i = 0; i < n; ++i) sum += double{a[i]} * b[i];
  return sum;
}

}  // namespace

TEST_CASE("gains have 32 steps an octave, and the nearest one is taken") {
  CHECK(gain_shape::kGainFactors[0] == 0.0F);
  for (int code = 1; code < 256; ++code) {
    CAPTURE(code);
    const double exact = std::exp2((code - 255) / 32.0);
    CHECK(gain_shape::kGainFactors[static_cast<size_t>(code)] == doctest::Approx(exact).epsilon(1e-7));
    for (const double off : {-0.49, -0.2, 0.0, 0.3, 0.49}) {
      if (code == 255 && off > 0) continue;
      const double gain = 3.0 * std::exp2((code + off - 255) / 32.0);
      CHECK(int{gain_shape::gain_code(static_cast<float>(gain), 3.0F)} == code);
    }
  }
  CHECK(int{gain_shape::gain_code(0.0F, 3.0F)} == 0);
  CHECK(int{gain_shape::gain_code(1e-30F, 3.0F)} == 0);
  CHECK(int{gain_shape::gain_code(3.01F, 3.0F)} == 255);
}

TEST_CASE("what gain-shape codes decode to is unbiased for every vector") {
  for (const Side side : {Side::kKeys, Side::kValues}) {
    for (const CodeType code : kCodes) {
      for (const int32_t dim : {8, 24, 64, 80, 128, 256}) {
        CAPTURE(dim);
        CAPTURE(code.packed());
        const Coded coded(side, code, false, dim, kPageSlots, 7);
        for (int32_t slot = 0; slot < kPageSlots; ++slot) {
          const float* x = coded.rows.data() + slot * dim;
          const float* decoded = coded.decoded.data() + slot * dim;
          // Half a step of the gain, plus the largest gain's rounding.
          CHECK(dot(decoded, x, dim) / dot(x, x, dim) == doctest::Approx(1.0).epsilon(0.0115));
        }
      }
    }
  }
}

// The error of an unbiased reconstruction is e / (1 − e), e that of the least-error gain: for a uniform quantizer's
// best step published as .3634, .1188, .03744 and .01154, for the trellis found by a search that shares no code with
// this.
TEST_CASE("the squared error of normal vectors is that of the best quantizers of a normal distribution") {
  struct Line {
    CodeType code;
    double error;
  };
  constexpr Line kLines[] = {{CodeType::gain_scalar(1), 0.3634},  {CodeType::gain_scalar(2), 0.1188},
                             {CodeType::gain_scalar(3), 0.0374},  {CodeType::gain_scalar(4), 0.0115},
                             {CodeType::gain_trellis(1), 0.2823}, {CodeType::gain_trellis(2), 0.0749},
                             {CodeType::gain_trellis(3), 0.0197}};
  for (const Side side : {Side::kKeys, Side::kValues}) {
    for (const Line& line : kLines) {
      double error = 0.0;
      double norm = 0.0;
      for (unsigned seed = 1; seed <= 40; ++seed) {
        const Coded coded(side, line.code, false, 128, kPageSlots, seed);
        for (size_t i = 0; i < coded.rows.size(); ++i) {
          error += std::pow(double{coded.decoded[i]} - coded.rows[i], 2);
          norm += std::pow(double{coded.rows[i]}, 2);
        }
      }
      CAPTURE(line.code.packed());
      CHECK(error / norm == doctest::Approx(line.error / (1.0 - line.error)).epsilon(0.02));
    }
  }
}

TEST_CASE("keys relative to their page's mean lose as little as if they had none, however large it is") {
  const Coded far(Side::kKeys, CodeType::gain_scalar(2), true, 128, kPageSlots, 3, 20.0);
  double error = 0.0;
  for (size_t i = 0; i < far.rows.size(); ++i) error += std::pow(double{far.decoded[i]} - far.rows[i], 2);
  CHECK(error / static_cast<double>(far.rows.size()) < 0.16);
}

TEST_CASE("slots that hold no token decode to the page's mean or zeros, and do not move it") {
  const Coded part(Side::kKeys, CodeType::gain_trellis(2), true, 64, 5, 11, 4.0);
  double error = 0.0;
  for (size_t i = 0; i < 5 * 64; ++i) error += std::pow(double{part.decoded[i]} - part.rows[i], 2);
  CHECK(error / (5 * 64) < 0.12);
  const Coded values(Side::kValues, CodeType::gain_trellis(2), true, 64, 5, 11, 4.0);
  for (size_t i = 5 * 64; i < values.decoded.size(); ++i) CHECK(values.decoded[i] == 0.0F);
}

TEST_CASE("a path is the cheapest of all closed ones with its register at the seam") {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal(0.0, 48.0);
  for (int trial = 0; trial < 6; ++trial) {
    constexpr int kSteps = 16;
    std::vector<int16_t> targets(kSteps);
    for (int16_t& each : targets) each = static_cast<int16_t>(std::lround(normal(random)));
    for (int32_t bits = 1; bits <= 3; ++bits) {
      std::vector<uint8_t> codes(kSteps);
      gain_shape::search_trellis(bits, targets, codes);
      // Cost of a path of highest bits, with the other bits chosen optimally.
      const auto cost = [&](uint32_t path) {
        int64_t sum = 0;
        for (int step = 0; step < kSteps; ++step) {
          uint32_t window = 0;
          for (int d = 0; d <= 6; ++d) window |= (path >> ((step - d + kSteps) % kSteps) & 1U) << d;
          int32_t least = 1 << 30;
          int32_t free = 1 << 30;
          for (int32_t subset = 0; subset < 8; ++subset) {
            for (int32_t other = 0; other < 1 << (bits - 1); ++other) {
              const int32_t each = gain_shape::distance(targets[static_cast<size_t>(step)],
                                                        gain_shape::levels(bits)[8 * other + subset]);
              free = std::min(free, each);
              if (subset == gain_shape::parities(window)) least = std::min(least, each);
            }
          }
          sum += std::min(least - free, gain_shape::kLargestCost);
        }
        return sum;
      };
      uint32_t found = 0;
      for (int step = 0; step < kSteps; ++step) {
        found |= static_cast<uint32_t>(codes[static_cast<size_t>(step)] >> (bits - 1)) << step;
      }
      const uint32_t seam = found >> (kSteps - 6);
      int64_t best = 1 << 30;
      for (uint32_t free_bits = 0; free_bits < 1U << (kSteps - 6); ++free_bits) {
        best = std::min(best, cost(free_bits | seam << (kSteps - 6)));
      }
      CHECK(cost(found) == best);
    }
  }
}

TEST_CASE("pages are as long as a GPU copies them, at every head size, and no longer than their sides need") {
  for (int32_t head_dim = 8; head_dim <= 256; head_dim += 8) {
    for (const CodeType code : kCodes) {
      for (const bool page_mean : {false, true}) {
        const kvq::SideFormat keys{.code = code, .centre = page_mean ? Centre::kPageMean : Centre::kNone};
        const kvq::PageFormat page(keys, {.code = code}, head_dim);
        const size_t least = kvq::side_bytes(Side::kKeys, page) + kvq::side_bytes(Side::kValues, page);
        CHECK(page.bytes() % 16 == 0);
        CHECK(page.key_bytes() % 8 == 0);
        CHECK(page.bytes() < least + 24);
      }
    }
  }
}

}  // namespace gain_shape_test
