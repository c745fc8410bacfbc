// Tests of the reference itself: if it were wrong, so would be every result of this program.
#include "support/random.h"
#include "support/reference.h"
#include "support/tensor.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

namespace conformance::oracle_test {

using kvq_test::kBrain;
using kvq_test::kHalf;

TEST_CASE("the reference's 16-bit conversions take every number back to its bits") {
  for (const kvq_test::FloatFormat format : {kHalf, kBrain}) {
    for (unsigned bits = 0; bits < 0x10000; ++bits) {
      const double value = kvq_test::decode_bits(static_cast<uint16_t>(bits), format);
      if (!std::isfinite(value)) continue;
      CHECK_EQ(kvq_test::encode_bits(value, format), bits);
      CHECK_EQ(kvq_test::round_to(value, format), value);
    }
  }
}

TEST_CASE("the reference rounds to nearest, ties to even") {
  CHECK_EQ(kvq_test::to_half(1.0 + 0x1p-11), 1.0);               // a tie, down to even
  CHECK_EQ(kvq_test::to_half(1.0 + 3 * 0x1p-11), 1.0 + 0x1p-9);  // a tie, up to even
  CHECK_EQ(kvq_test::to_half(1.0 + 0x1.01p-11), 1.0 + 0x1p-10);
  CHECK_EQ(kvq_test::to_half(65519.9), 65504.0);
  CHECK(std::isinf(kvq_test::to_half(65520.0)));
  CHECK_EQ(kvq_test::to_half(0x1p-25), 0.0);
  CHECK_EQ(kvq_test::to_half(0x1.8p-25), 0x1p-24);
  CHECK_EQ(kvq_test::round_to(-1.00390625, kBrain), -1.0);
  CHECK_EQ(kvq_test::decode_bits(0x3C00, kHalf), 1.0);
  CHECK_EQ(kvq_test::decode_bits(0x3555, kHalf), doctest::Approx(1.0 / 3).epsilon(1e-3));
  CHECK_EQ(kvq_test::decode_bits(0x3F80, kBrain), 1.0);
}

TEST_CASE("the reference rotates heads by a matrix that is its own inverse and, of powers of two, Sylvester's") {
  const std::vector<double> x = {1.0, 2.0, 3.0, 4.0};
  const std::vector<double> h = kvq_test::rotated_head(x);
  CHECK_EQ(h[0], doctest::Approx(5.0));
  CHECK_EQ(h[1], doctest::Approx(-1.0));
  CHECK_EQ(h[2], doctest::Approx(-2.0));
  CHECK_EQ(h[3], doctest::Approx(0.0));
  for (const size_t dim : {8U, 24U, 80U, 120U, 128U, 200U}) {
    const std::vector<float> given = kvq_test::normal_tensor(dim, dim);
    const std::vector<double> head(given.begin(), given.end());
    const std::vector<double> rotated = kvq_test::rotated_head(head);
    const std::vector<double> back = kvq_test::rotated_head(rotated);
    for (size_t c = 0; c < dim; ++c) {
      double product = 0.0;
      for (size_t i = 0; i < dim; ++i) product += kvq_test::rotation_entry(dim, c, i) * head[i];
      CHECK_EQ(rotated[c], doctest::Approx(product));
      CHECK_EQ(back[c], doctest::Approx(head[c]));
    }
  }
}

TEST_CASE("the reference rotates each pair by its own angle") {
  kvq_cache_options options;
  kvq_cache_options_init(&options, sizeof(options));
  options.head_dim = 8;
  options.rotary_dim = 4;
  const float quarter_turns[] = {static_cast<float>(std::numbers::pi / 2), 0.0F};
  options.inv_freq = quarter_turns;
  std::vector<double> half = {1, 2, 3, 4, 5, 6, 7, 8};
  kvq_test::Rotation::from(options).apply(half, 1);
  const double expected_half[] = {-3, 2, 1, 4, 5, 6, 7, 8};
  options.rope = KVQ_ROPE_INTERLEAVED;
  std::vector<double> interleaved = {1, 2, 3, 4, 5, 6, 7, 8};
  kvq_test::Rotation::from(options).apply(interleaved, 1);
  const double expected_interleaved[] = {-2, 1, 3, 4, 5, 6, 7, 8};
  for (size_t c = 0; c < 8; ++c) {
    CHECK_EQ(half[c], doctest::Approx(expected_half[c]));
    CHECK_EQ(interleaved[c], doctest::Approx(expected_interleaved[c]));
  }
  options.inv_freq = nullptr;
  CHECK_EQ(kvq_test::Rotation::from(options).inv_freq[1], doctest::Approx(0.01));  // 10000^(-2/4)
}

TEST_CASE("the reference's attention of two tokens is a logistic function") {
  const std::vector<double> q = {2.0, 0.0};
  const std::vector<double> k = {1.0, 5.0, 0.0, 5.0};
  const std::vector<double> v = {1.0, 10.0, 0.0, 20.0};
  const std::vector<int32_t> positions = {3, 4};
  const auto out = [&](const kvq_test::AttentionRule& rule, int32_t position) {
    return kvq_test::attention<double>(rule, q, position, k, v, positions);
  };
  const double p = 1.0 / (1.0 + std::exp(-1.0));  // logits 1 and 0
  CHECK_EQ(out({.scale = 0.5}, 4)[0], doctest::Approx(p));
  CHECK_EQ(out({.scale = 0.5}, 4)[1], doctest::Approx(10 * p + 20 * (1 - p)));
  CHECK_EQ(out({.scale = 0.5}, 3)[1], 10.0);  // causal
  CHECK_EQ(out({.scale = 0.5}, 2)[1], 0.0);   // sees no token
  CHECK_EQ(out({.scale = 0.5, .sliding_window = 1}, 4)[1], 20.0);
  CHECK_EQ(out({.scale = 0.5, .sliding_window = 1}, 5)[1], 0.0);
  const double capped = 1.0 / (1.0 + std::exp(-0.3 * std::tanh(1.0 / 0.3)));
  CHECK_EQ(out({.scale = 0.5, .logit_softcap = 0.3}, 4)[0], doctest::Approx(capped));
}

}  // namespace conformance::oracle_test
