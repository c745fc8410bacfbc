#include "core/rotation_table.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <random>
#include <vector>

namespace rotation_table_test {
namespace {

kvq::Rope rope_of(kvq::Allocator& allocator, int32_t dim) {
  kvq::Rope rope(allocator);
  rope.pairing = KVQ_ROPE_HALF;
  rope.rotary_dim = dim;
  for (int32_t pair = 0; pair < dim / 2; ++pair) {
    rope.inv_freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * pair / dim)));
  }
  return rope;
}

}  // namespace

TEST_CASE("turns of all positions are cos and sin of their angles") {
  kvq::Allocator allocator({}, UINT64_MAX);
  const kvq::Rope rope = rope_of(allocator, 64);
  const kvq::RotationTable rotations(allocator, rope);
  std::vector<int32_t> positions{0, 1, 31, 32, 1023, 1024, INT_MAX - 1, INT_MAX};
  std::mt19937 random(1);
  for (int bits = 1; bits <= 31; ++bits) {
    for (int i = 0; i < 20; ++i) positions.push_back(static_cast<int32_t>(random() >> (32 - bits)));
  }
  double worst = 0.0;
  std::vector<float> row(64);
  for (const int32_t position : positions) {
    rotations.fill(position, row.data());
    for (int32_t pair = 0; pair < rope.pairs(); ++pair) {
      const double angle = rope.angle(position, pair);
      worst = std::max({worst, std::abs(double{row[static_cast<size_t>(pair)]} - std::cos(angle)),
                        std::abs(double{row[static_cast<size_t>(32 + pair)]} - std::sin(angle))});
    }
  }
  MESSAGE("worst error " << worst);
  CHECK(worst < 1e-6);
  CHECK(worst > 0.0);
}

TEST_CASE("turning back undoes a rotation in both pairings") {
  kvq::Allocator allocator({}, UINT64_MAX);
  for (const kvq_rope pairing : {KVQ_ROPE_HALF, KVQ_ROPE_INTERLEAVED}) {
    kvq::Rope rope = rope_of(allocator, 16);
    rope.pairing = pairing;
    const kvq::RotationTable rotations(allocator, rope);
    std::vector<float> row(16);
    rotations.fill(12345, row.data());
    std::vector<float> head(16);
    for (size_t i = 0; i < head.size(); ++i) head[i] = static_cast<float>(i) - 7.5F;
    const std::vector<float> before = head;
    rope.rotate(row.data(), head.data());
    CHECK(head != before);
    kvq::undo_rope(rope, row.data(), head.data());
    for (size_t i = 0; i < head.size(); ++i) CHECK(head[i] == doctest::Approx(before[i]).epsilon(1e-5));
  }
}

}  // namespace rotation_table_test
