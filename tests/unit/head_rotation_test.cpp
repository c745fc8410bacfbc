// Rotation of heads: the matrix, and what it leaves of vectors that few channels dominate.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/float16.h"
#include "core/head_rotation.h"
#include "formats/codec.h"
#include "formats/float16/layout.h"
#include "formats/format_name.h"
#include "support/reference.h"

namespace head_rotation_test {
namespace {

using kvq::kPageSlots;

using Vectors = std::vector<std::vector<float>>;  // [kPageSlots][head_dim]

/// What a page of values decodes to, by the reference.
Vectors stored(const std::string& name, const Vectors& vectors) {
  const auto dim = static_cast<int32_t>(vectors.front().size());
  const kvq::SideFormat format = kvq::parse_format(name).value();
  const kvq::PageFormat page(format, format, dim);
  std::vector<std::byte> plane(kvq::float16::plane(kvq::Side::kValues, dim).bytes());
  auto* halves = reinterpret_cast<uint16_t*>(plane.data());
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    for (int32_t i = 0; i < dim; ++i) {
      halves[kvq::float16::index(kvq::Side::kValues, dim, slot, i)] =
          kvq::to_float16(vectors[static_cast<size_t>(slot)][static_cast<size_t>(i)]);
    }
  }
  std::vector<std::byte> data(kvq::side_bytes(kvq::Side::kValues, page));
  const std::byte* source = plane.data();
  std::byte* target = data.data();
  kvq::codec_of(format.code)
      .encode({.side = kvq::Side::kValues,
               .format = page,
               .first_head = 0,
               .float16 = {&source, 1},
               .out = {&target, 1},
               .used = kPageSlots,
               .positions = {nullptr, 0},
               .context = nullptr});
  std::vector<float> decoded(static_cast<size_t>(kPageSlots * dim));
  const std::byte* sides = data.data();
  kvq::decode_side({.side = kvq::Side::kValues,
                    .format = page,
                    .layer = 0,
                    .head = 0,
                    .sides = &sides,
                    .rope = nullptr,
                    .positions = nullptr},
                   0, kPageSlots, decoded.data());
  Vectors result;
  for (auto row = decoded.begin(); row != decoded.end(); row += dim) result.emplace_back(row, row + dim);
  return result;
}

/// Root mean square of the vectors' relative errors.
double relative_error(const std::string& name, const Vectors& vectors) {
  const Vectors decoded = stored(name, vectors);
  double sum = 0.0;
  for (size_t slot = 0; slot < vectors.size(); ++slot) {
    double error = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < vectors[slot].size(); ++i) {
      error += std::pow(double{decoded[slot][i]} - vectors[slot][i], 2);
      norm += std::pow(double{vectors[slot][i]}, 2);
    }
    sum += error / norm;
  }
  return std::sqrt(sum / kPageSlots);
}

/// Normal numbers, changed by `change(slot, vector)`.
Vectors normal_vectors(int32_t dim, const std::function<void(size_t, std::vector<float>&)>& change) {
  std::mt19937_64 random(static_cast<uint64_t>(dim));
  std::normal_distribution<float> normal;
  Vectors vectors(kPageSlots, std::vector<float>(static_cast<size_t>(dim)));
  for (size_t slot = 0; slot < vectors.size(); ++slot) {
    for (float& x : vectors[slot]) x = normal(random);
    change(slot, vectors[slot]);
  }
  return vectors;
}

}  // namespace

TEST_CASE("heads of every size are rotated by the matrix of the definition, which mixes all blocks evenly") {
  for (int32_t dim = 8; dim <= kvq::kMaxHeadDim; dim += 8) {
    CAPTURE(dim);
    const auto n = static_cast<size_t>(dim);
    const bool whole = std::has_single_bit(n);
    const double most = std::sqrt((whole ? 1.0 : 2.0) / dim) + 1e-6;
    double farthest = 0.0;  // from the definition
    double asymmetry = 0.0;
    double largest = 0.0;
    double not_inverse = 0.0;
    for (size_t column = 0; column < n; ++column) {
      std::vector<float> x(n, 0.0F);
      x[column] = 1.0F;
      kvq::rotate_head(x.data(), dim);
      for (size_t row = 0; row < n; ++row) {
        farthest = std::max(farthest, std::fabs(double{x[row]} - kvq_test::rotation_entry(n, row, column)));
        largest = std::max(largest, std::fabs(double{x[row]}));
        asymmetry = std::max(
            asymmetry, std::fabs(kvq_test::rotation_entry(n, row, column) - kvq_test::rotation_entry(n, column, row)));
      }
      kvq::rotate_head(x.data(), dim);
      for (size_t row = 0; row < n; ++row) {
        not_inverse = std::max(not_inverse, std::fabs(double{x[row]} - (row == column ? 1.0 : 0.0)));
      }
    }
    CHECK(farthest < 1e-6);
    CHECK(asymmetry < 1e-12);
    CHECK(largest <= most);
    CHECK(not_inverse < 1e-6);
  }
}

TEST_CASE("heads whose size is a power of two are rotated by a Hadamard matrix, bit by bit") {
  for (int32_t dim = 8; dim <= kvq::kMaxHeadDim; dim *= 2) {
    for (const std::vector<float>& vector : normal_vectors(dim, [](size_t, std::vector<float>&) {})) {
      std::vector<float> rotated = vector;
      std::vector<float> expected = vector;
      kvq::rotate_head(rotated.data(), dim);
      kvq::hadamard(expected.data(), dim);
      CHECK(rotated == expected);
    }
  }
}

TEST_CASE("factors of blocks are the numbers of the Hartley transform, rounded once") {
  for (int32_t blocks = 1; blocks <= kvq::kMaxBlocks; blocks += 2) {
    for (int32_t n = 0; n < blocks; ++n) {
      const double angle = 2.0 * std::acos(-1.0) * n / blocks;
      const double exact = (std::cos(angle) + std::sin(angle)) / std::sqrt(double{1} * blocks);
      CHECK(kvq::kBlockFactors.numbers[kvq::first_factor(blocks) + n] == static_cast<float>(exact));
    }
  }
}

// Normal vectors have an error of .75 (gs1), .63 (gt1), .36 (gs2) and .39 (int2).
TEST_CASE("one large channel costs hardly more than normal vectors do, whatever the head size") {
  struct Line {
    std::string format;
    double most;
  };
  const Line lines[] = {{"gs1", 0.7}, {"gt1", 0.7}, {"gs2", 0.4}, {"int2+hadamard", 0.4}};
  for (const int32_t dim : {24, 40, 72, 80, 88, 96, 112, 120, 136, 192, 248}) {
    for (const Line& line : lines) {
      CAPTURE(dim);
      CAPTURE(line.format);
      for (size_t first = 0; first < static_cast<size_t>(dim); first += kPageSlots) {
        const Vectors vectors = normal_vectors(dim, [&](size_t slot, std::vector<float>& x) {
          x[(first + slot) % x.size()] = slot % 2 == 0 ? 60.0F : -60.0F;
        });
        CHECK(relative_error(line.format, vectors) <= line.most);
      }
    }
  }
}

// A plain Hartley transform would gather them in one block, with an error of up to 7.
TEST_CASE("vectors that repeat from block to block keep most of their shape") {
  for (int32_t dim = 8; dim <= kvq::kMaxHeadDim; dim += 8) {
    if (kvq::hadamard_block(dim) == dim) continue;
    CAPTURE(dim);
    const Vectors vectors = normal_vectors(dim, [&](size_t, std::vector<float>& x) {
      const auto block = static_cast<size_t>(kvq::hadamard_block(dim));
      for (size_t i = block; i < x.size(); ++i) x[i] = x[i - block];
    });
    const bool few = dim / kvq::hadamard_block(dim) <= 31;
    CHECK(relative_error("gs1", vectors) < (few ? 1.6 : 1.8));
    CHECK(relative_error("gs2", vectors) < (few ? 0.8 : 0.9));
  }
}

}  // namespace head_rotation_test
