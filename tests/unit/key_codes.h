// Shared by the tests of key codes: random keys and codes, and centres by definition.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <complex>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "formats/commvq/key_encoder.h"

namespace key_codes {

using kvq::KeyEncoder;
using kvq::KeyPairs;
using Complex = std::complex<double>;
using Floats = std::vector<float>;
using Indices = std::vector<uint8_t>;

inline kvq::Allocator& memory() {
  static kvq::Allocator allocator({}, UINT64_MAX);
  return allocator;
}

inline Floats normal(size_t n, unsigned seed, float scale = 1.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution(0.0F, scale);
  Floats numbers(n);
  for (float& x : numbers) x = distribution(random);
  return numbers;
}

/// Numbers of one group, [tokens][group]{re, im}.
inline KeyPairs pairs_of(const Floats& keys, int32_t group) {
  return {keys.data(), keys.data() + 1, 2 * static_cast<size_t>(group), 2};
}

inline Indices encode(const KeyEncoder& encoder, const KeyPairs& keys, int32_t n, int32_t beam = 1,
                      const float* norms = nullptr, kvq::KeyFit* fits = nullptr) {
  std::vector<std::byte> work(encoder.work_bytes());
  Indices indices(static_cast<size_t>(2 * n * encoder.stages()));
  encoder.encode(keys, norms, n, beam, work, indices.data(), fits);
  return indices;
}

/// Codes of one group of one head.
struct Codes {
  int32_t stages, codes, group;
  Floats z;

  KeyEncoder encoder(const kvq::keys::KeyKernels& kernels = *kvq::keys::key_kernels().front()) const {
    return {memory(), stages, codes, group, z, kernels};
  }
  Complex at(int32_t stage, int32_t code, int32_t pair) const {
    const auto i = 2 * static_cast<size_t>((stage * codes + code) * group + pair);
    return {double{z[i]}, double{z[i + 1]}};
  }
  Complex centre(int32_t stage, int32_t a, int32_t b, int32_t pair) const {
    return at(stage, a, pair) + Complex(0, 1) * at(stage, b, pair);
  }
};

inline Codes random_codes(int32_t stages, int32_t codes, int32_t group, unsigned seed) {
  return {stages, codes, group, normal(static_cast<size_t>(2 * stages * codes * group), seed, 0.5F)};
}

/// Message of an action refused with KVQ_E_ARGUMENT; "" if it succeeds.
template <typename Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const kvq::Error& error) {
    CHECK(error.status() == KVQ_E_ARGUMENT);
    return error.what();
  }
  return "";
}

inline double distance(const Codes& codes, int32_t stage, const std::vector<Complex>& x, int32_t a, int32_t b) {
  double sum = 0.0;
  for (int32_t j = 0; j < codes.group; ++j) sum += std::norm(x[static_cast<size_t>(j)] - codes.centre(stage, a, b, j));
  return sum;
}

inline std::vector<Complex> key_at(const Floats& keys, int32_t group, int32_t token) {
  std::vector<Complex> x(static_cast<size_t>(group));
  const float* from = keys.data() + 2 * static_cast<ptrdiff_t>(token) * group;
  for (size_t j = 0; j < x.size(); ++j) x[j] = {double{from[2 * j]}, double{from[2 * j + 1]}};
  return x;
}

}  // namespace key_codes
