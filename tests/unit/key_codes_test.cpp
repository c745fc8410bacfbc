// Encoding and decoding keys, against brute force over all centres.
#include "key_codes.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "core/error.h"
#include "core/float16.h"
#include "formats/commvq/commvq.h"

namespace key_codes_test {

using namespace key_codes;

TEST_CASE("every stage takes the nearest of all centres") {
  for (const auto& sizes : {std::pair{2, 8}, {4, 3}, {16, 16}, {64, 64}, {256, 5}}) {
    const int32_t n_codes = sizes.first;
    const int32_t group = sizes.second;
    CAPTURE(n_codes);
    constexpr int32_t kTokens = 20;
    const Codes codes = random_codes(3, n_codes, group, 1);
    const Floats keys = normal(static_cast<size_t>(2 * kTokens * group), 2);
    const Indices indices = encode(codes.encoder(), pairs_of(keys, group), kTokens);
    for (int32_t t = 0; t < kTokens; ++t) {
      std::vector<Complex> x = key_at(keys, group, t);
      for (int32_t stage = 0; stage < codes.stages; ++stage) {
        double nearest = HUGE_VAL;
        for (int32_t a = 0; a < n_codes; ++a) {
          for (int32_t b = 0; b < n_codes; ++b) nearest = std::min(nearest, distance(codes, stage, x, a, b));
        }
        const uint8_t* index = indices.data() + 2 * (t * codes.stages + stage);
        CHECK(distance(codes, stage, x, index[0], index[1]) <= nearest * (1 + 1e-5) + 1e-5);
        for (int32_t j = 0; j < group; ++j) {
          x[static_cast<size_t>(j)] -= codes.centre(stage, index[0], index[1], j);
        }
      }
    }
  }
}

TEST_CASE("a wide enough beam finds the best sum of two stages") {
  constexpr int32_t kTokens = 40;
  const Codes codes = random_codes(2, 4, 6, 3);
  const Floats keys = normal(2 * kTokens * 6, 4);
  const Indices indices = encode(codes.encoder(), pairs_of(keys, 6), kTokens, 16);  // all 16 centres of the first stage
  for (int32_t t = 0; t < kTokens; ++t) {
    const std::vector<Complex> key = key_at(keys, 6, t);
    const auto rest = [&](int32_t a, int32_t b) {
      std::vector<Complex> x = key;
      for (int32_t j = 0; j < 6; ++j) x[static_cast<size_t>(j)] -= codes.centre(0, a, b, j);
      return x;
    };
    double best = HUGE_VAL;
    for (int32_t i = 0; i < 256; ++i) {
      best = std::min(best, distance(codes, 1, rest(i / 64, i / 16 % 4), i / 4 % 4, i % 4));
    }
    const uint8_t* index = indices.data() + 4 * static_cast<ptrdiff_t>(t);
    CHECK(distance(codes, 1, rest(index[0], index[1]), index[2], index[3]) == doctest::Approx(best).epsilon(1e-5));
  }
}

TEST_CASE("of equally near centres the lowest is taken") {
  Codes codes = random_codes(1, 8, 4, 5);
  std::copy_n(codes.z.begin(), 4 * 8, codes.z.begin() + 4 * 8);  // codes 4 to 7 repeat 0 to 3
  const Floats keys = normal(2 * 50 * 4, 6);
  for (const int32_t beam : {1, 3}) {
    for (const uint8_t index : encode(codes.encoder(), pairs_of(keys, 4), 50, beam)) CHECK(index < 4);
  }
}

TEST_CASE("indices are the same on every instruction set, alone or together with others") {
  constexpr int32_t kTokens = 37;
  const Codes codes = random_codes(4, 64, 24, 7);
  const Floats keys = normal(2 * kTokens * 24, 8);
  for (const int32_t beam : {1, 3}) {
    const Indices expected = encode(codes.encoder(), pairs_of(keys, 24), kTokens, beam);
    for (const kvq::keys::KeyKernels* kernels : kvq::keys::key_kernels()) {
      CAPTURE(kernels->name);
      CHECK(encode(codes.encoder(*kernels), pairs_of(keys, 24), kTokens, beam) == expected);
    }
    Indices single;
    for (int32_t t = 0; t < kTokens; ++t) {
      const Indices one = encode(codes.encoder(), pairs_of(keys, 24).from(t), 1, beam);
      single.insert(single.end(), one.begin(), one.end());
    }
    CHECK(single == expected);
  }
}

TEST_CASE("what is found about a key's centres is what they are, the same bits on every instruction set") {
  constexpr int32_t kTokens = 37;
  const Codes codes = random_codes(3, 64, 24, 10);
  const Floats keys = normal(2 * kTokens * 24, 11, 3.0F);
  Floats norms;
  for (size_t t = 0; t < kTokens; ++t) norms.push_back(kvq::key_norm(std::span(keys).subspan(48 * t, 48)));
  for (const int32_t beam : {1, 3}) {
    std::vector<kvq::KeyFit> fits(kTokens);
    const Indices indices = encode(codes.encoder(), pairs_of(keys, 24), kTokens, beam, norms.data(), fits.data());
    for (int32_t t = 0; t < kTokens; ++t) {
      const std::vector<Complex> key = key_at(keys, 24, t);
      double energy = 0.0;
      double product = 0.0;
      for (int32_t j = 0; j < 24; ++j) {
        Complex sum;
        for (int32_t stage = 0; stage < 3; ++stage) {
          const uint8_t* index = indices.data() + 2 * (t * 3 + stage);
          sum += codes.centre(stage, index[0], index[1], j);
        }
        energy += std::norm(key[static_cast<size_t>(j)]);
        product += std::real(std::conj(key[static_cast<size_t>(j)]) * sum);
      }
      CHECK(fits[static_cast<size_t>(t)].energy == doctest::Approx(energy));
      CHECK(std::fabs(fits[static_cast<size_t>(t)].product - product) < 1e-6 * std::sqrt(energy));
    }
    for (const kvq::keys::KeyKernels* kernels : kvq::keys::key_kernels()) {
      CAPTURE(kernels->name);
      for (int32_t t = 0; t < kTokens; ++t) {
        kvq::KeyFit alone;
        encode(codes.encoder(*kernels), pairs_of(keys, 24).from(t), 1, beam, &norms[static_cast<size_t>(t)], &alone);
        CHECK(alone.energy == fits[static_cast<size_t>(t)].energy);
        CHECK(alone.product == fits[static_cast<size_t>(t)].product);
      }
    }
  }
}

TEST_CASE("a gain makes a key unbiased, or is its norm where no sum of centres stands for it") {
  const auto gain = [](double energy, double product) {
    return kvq::from_float16(kvq::KeyFit{energy, product}.gain());
  };
  CHECK(gain(9.0, 2.5) == doctest::Approx(3.6).epsilon(0x1p-11));
  CHECK(gain(9.0, 6.0) == 1.5F);  // longer than the key
  CHECK(gain(9.0, 1.5) == 6.0F);  // twice the norm
  for (const double product : {1.49, 1e-300, 0.0, -1.5}) CHECK(gain(9.0, product) == 3.0F);
  CHECK(gain(0.0, 0.0) == 0.0F);
  CHECK(gain(3.6e9, 5e4) == 65504.0F);  // 72 000
  CHECK(gain(1e10, -1.0) == 65504.0F);
}

TEST_CASE("decoding gives a head's sum of centres in either pairing, and zeros for a zero key") {
  for (const kvq_rope pairing : {KVQ_ROPE_HALF, KVQ_ROPE_INTERLEAVED}) {
    const kvq::CodebookShape shape{1, 2, 16, pairing, {2, 8, 4, kvq::Scope::kHead}, {}};
    kvq::LayerCodebook layer(memory());
    const Floats z = normal(4 * shape.key_codes_of_head(), 9);
    layer.key_codes.assign(z.begin(), z.end());
    // One token of two heads; the second is made of the centres (3, 5) and (6, 1) of its second group.
    Floats keys(32, 0.0F);
    constexpr int32_t kGroup = 1;
    const size_t at = 2 * shape.key_codes_of_head() + kGroup * size_t{2 * 2 * 8 * 4};
    const Codes codes{
        2, 8, 4,
        Floats(z.begin() + static_cast<ptrdiff_t>(at), z.begin() + static_cast<ptrdiff_t>(at) + 2 * 2 * 8 * 4)};
    for (int32_t j = 0; j < 4; ++j) {
      const Complex sum = 3.0 * (codes.centre(0, 3, 5, j) + codes.centre(1, 6, 1, j));
      const int32_t pair = kGroup * 4 + j;
      keys[static_cast<size_t>(16 + (pairing == KVQ_ROPE_HALF ? pair : 2 * pair))] = static_cast<float>(sum.real());
      keys[static_cast<size_t>(16 + (pairing == KVQ_ROPE_HALF ? pair + 8 : 2 * pair + 1))] =
          static_cast<float>(sum.imag());
    }
    const float norm = 3.0F;
    const Indices found = encode(codes.encoder(), kvq::key_pairs(shape, keys.data(), 1, kGroup), 1, 16, &norm);
    Floats decoded(16);
    Indices indices(8, 0);
    std::copy(found.begin(), found.end(), indices.begin() + 4);
    kvq::commvq::decode_key(shape, layer, 1, indices.data(), norm, decoded.data());
    for (int32_t j = 0; j < 4; ++j) {
      for (const int32_t channel :
           {pairing == KVQ_ROPE_HALF ? 4 + j : 8 + 2 * j, pairing == KVQ_ROPE_HALF ? 12 + j : 9 + 2 * j}) {
        CHECK(decoded[static_cast<size_t>(channel)] ==
              doctest::Approx(keys[static_cast<size_t>(16 + channel)]).epsilon(1e-5));
      }
    }

    const float zero = kvq::key_norm(std::span(keys).first(16));
    CHECK(zero == 0.0F);
    CHECK(encode(codes.encoder(), kvq::key_pairs(shape, keys.data(), 0, 0), 1, 2, &zero) == Indices(4, 0));
    kvq::commvq::decode_key(shape, layer, 0, indices.data(), zero, decoded.data());
    CHECK(decoded == Floats(16, 0.0F));
  }
}

TEST_CASE("norms are Euclidean, rounded to half precision, and finite") {
  CHECK(kvq::key_norm(Floats{3.0F, 4.0F}) == 5.0F);
  CHECK(kvq::key_norm(Floats{1.0F, 1.0F}) == 1.4140625F);
  CHECK(kvq::key_norm(Floats(128, 60000.0F)) == 65504.0F);
}

TEST_CASE("codes of another shape than keys can have are refused") {
  const auto encoder = [&](int32_t stages, int32_t codes, int32_t group, size_t numbers) {
    return refusal([&] { KeyEncoder(memory(), stages, codes, group, Floats(numbers)); });
  };
  CHECK(encoder(2, 4, 8, 10).find("10 numbers") != std::string::npos);
  CHECK(encoder(2, 6, 8, 192).find("power of two") != std::string::npos);
  CHECK(encoder(0, 4, 8, 0).find("0 stages") != std::string::npos);
  CHECK(encoder(2, 4, 0, 0).find("0 pairs") != std::string::npos);
  const Floats keys(128);
  const kvq::CodebookShape shape{1, 1, 128, KVQ_ROPE_HALF, {11, 64, 24, kvq::Scope::kHead}, {}};
  CHECK(refusal([&] { kvq::key_pairs(shape, keys.data(), 0, 0); }).find("do not divide") != std::string::npos);
}

}  // namespace key_codes_test
