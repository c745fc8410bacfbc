// Pages and centres as a GPU has them, as far as the host can tell.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <vector>

#include "centre_arrays.h"
#include "codecs.h"
#include "core/float16.h"
#include "formats/codec.h"
#include "formats/gain_shape/model_centres.h"
#include "support/random.h"

namespace {

using kvq::Kind;
using kvq::kPageSlots;
using kvq::PageFormat;
using kvq::Side;
using kvq::SideFormat;
using kvq::cuda::CentreCode;

constexpr int32_t kKvHeads = 2;

kvq::ModelCentres random_centres(kvq::Allocator& allocator, int32_t head_dim, int32_t of_keys, int32_t of_values) {
  kvq::CentresShape shape;
  shape.n_layers = 1;
  shape.kv_heads = kKvHeads;
  shape.head_dim = head_dim;
  shape.key_centres = of_keys;
  shape.value_centres = of_values;
  kvq::ModelCentres centres(allocator, shape);
  kvq_test::Random random(3);
  auto numbers = std::make_shared<kvq::LayerCentres>(allocator);
  for (const Side side : {Side::kKeys, Side::kValues}) {
    for (int32_t i = 0; i < kKvHeads * shape.centres(side) * head_dim; ++i) {
      numbers->side(side).push_back(static_cast<float>(random.normal()));
    }
  }
  centres.layers.front().numbers = numbers;
  return centres;
}

/// Every kind with trained centres with itself, and with kinds that have other bytes behind their codes, or none.
std::vector<std::pair<SideFormat, SideFormat>> centred_formats() {
  std::vector<std::pair<SideFormat, SideFormat>> pairs;
  const SideFormat page_mean{Kind::kGs2, false, 32, true};
  for (const Kind kind : {Kind::kGs4Centres, Kind::kGs3Centres, Kind::kGs2Centres, Kind::kGs1Centres, Kind::kGt3Centres,
                          Kind::kGt2Centres, Kind::kGt1Centres}) {
    const SideFormat centred{kind};
    pairs.insert(pairs.end(), {{centred, centred},
                               {page_mean, centred},
                               {centred, {Kind::kGs3}},
                               {centred, {Kind::kFloat16}},
                               {{Kind::kInt4}, centred},
                               {centred, {Kind::kInt3, true, 64}}});
  }
  return pairs;
}

/// Calls `use` with formats, how many centres they have, and head sizes.
template <typename Use>
void for_each_format(const Use& use) {
  kvq::Allocator allocator({}, UINT64_MAX);
  for (const int32_t head_dim : {8, 24, 64, 80, 128, 256}) {
    for (const int32_t of_keys : {1, 5}) {
      for (const int32_t of_values : {1, 256}) {
        const kvq::ModelCentres centres = random_centres(allocator, head_dim, of_keys, of_values);
        for (const auto& [keys, values] : centred_formats()) use(PageFormat(keys, values, head_dim, &centres), centres);
      }
    }
  }
}

/// Random bytes where a side has some, zeros where it is padded.
std::vector<std::byte> random_page(const PageFormat& format) {
  std::vector<std::byte> page(format.bytes());
  kvq_test::Random random(7);
  for (const Side side : {Side::kKeys, Side::kValues}) {
    std::byte* at = page.data() + format.offset(side);
    for (size_t i = 0; i < kvq::side_bytes(side, format); ++i) at[i] = static_cast<std::byte>(random.integer(0, 255));
  }
  return page;
}

}  // namespace

TEST_CASE("a page around trained centres comes back from a GPU's order of bytes as it was") {
  for_each_format([](const PageFormat& format, const kvq::ModelCentres& /*centres*/) {
    CAPTURE(format.head_dim);
    REQUIRE(kvq::cuda::knows(format));
    const std::vector<std::byte> page = random_page(format);
    std::vector<std::byte> device(format.bytes(), std::byte{0xA5});
    std::vector<std::byte> back(format.bytes(), std::byte{0x5A});
    kvq::cuda::to_device_order(format, page.data(), device.data());
    kvq::cuda::to_host_order(format, device.data(), back.data());
    CHECK(back == page);
    const kvq::cuda::PageBytes places = kvq::cuda::page_bytes(kvq::cuda::format_code(format), format.head_dim);
    CHECK(static_cast<size_t>(places.bytes) == format.bytes());
  });
}

TEST_CASE("the centres of the four tokens that a GPU's lane takes are one aligned word") {
  for_each_format([](const PageFormat& format, const kvq::ModelCentres& centres) {
    CAPTURE(format.head_dim);
    const kvq::cuda::FormatCode code = kvq::cuda::format_code(format);
    const kvq::cuda::PageBytes places = kvq::cuda::page_bytes(code, format.head_dim);
    const std::vector<std::byte> page = random_page(format);
    std::vector<std::byte> device(format.bytes());
    kvq::cuda::to_device_order(format, page.data(), device.data());
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const SideFormat& of_side = format.side(side);
      const bool centred = kvq::gain_shape::has_trained_centres(of_side.kind);
      const int32_t count = centres.shape.centres(side);
      const bool keys = side == Side::kKeys;
      CHECK((keys ? code.keys() : code.values()) == kvq::gain_shape::without_centres(of_side.kind));
      CHECK((keys ? code.centred_keys() : code.centred_values()) == centred);
      CHECK((keys ? code.key_indices() : code.value_indices()) == (centred && count > 1));
      if (!centred) continue;
      const kvq::gain_shape::Layout layout = kvq::gain_shape::layout(side, of_side, format.head_dim, count);
      const std::byte* host = page.data() + format.offset(side);
      const std::byte* of_device = device.data() + (keys ? 0 : places.values_at);
      if (keys) {
        const std::byte* turn = of_device + places.key_halves + 2 * kvq::cuda::kKeyTurn;
        CHECK(std::equal(turn, turn + 2, host + layout.turn_offset()));
      }
      if (count == 1) continue;
      const int32_t indices = keys ? places.key_indices : places.value_indices;
      CHECK((indices + (keys ? 0 : places.values_at)) % 4 == 0);
      // Lane g's: 8 · (g / 2) + 2 · (g % 2) + {0, 1, 4, 5}.
      for (int32_t g = 0; g < 8; ++g) {
        for (int32_t i = 0; i < 4; ++i) {
          const auto slot = static_cast<size_t>(8 * (g / 2) + 2 * (g % 2) + 4 * (i / 2) + i % 2);
          CHECK(of_device[indices + 4 * g + i] == host[layout.index_offset() + slot]);
        }
      }
    }
  });
}

TEST_CASE("formats without trained centres have the codes that they had, whatever is trained") {
  const PageFormat plain(SideFormat{Kind::kGs2, false, 32, true}, SideFormat{Kind::kGt1}, 64);
  const kvq::cuda::FormatCode code = kvq::cuda::format_code(plain);
  CHECK(code.page_mean());
  CHECK_FALSE(code.centred());
  CHECK(code.value_centre() == CentreCode::kNone);
  const PageFormat none(SideFormat{Kind::kGs2}, SideFormat{Kind::kGt1}, 64);
  CHECK(kvq::cuda::format_code(none).key_centre() == CentreCode::kNone);
}

TEST_CASE("a GPU's centres of values are rotated, those of keys stand in a page from position 0") {
  kvq::Allocator allocator({}, UINT64_MAX);
  constexpr int32_t kHeadDim = 48;
  const kvq::ModelCentres centres = random_centres(allocator, kHeadDim, 3, 2);
  const kvq::LayerCentres& numbers = *centres.layers.front().numbers;
  const kvq::cuda::SideArrays values(allocator, centres, 0, Side::kValues);
  REQUIRE(values.halves.size() == static_cast<size_t>(kKvHeads * 2 * kHeadDim));
  CHECK(std::equal(values.floats.begin(), values.floats.end(), numbers.values.begin(), numbers.values.end()));
  for (size_t i = 0; i < values.halves.size(); ++i) {
    const size_t block = i / 16 * 16;  // the largest power of two that divides 48
    double sum = 0.0;
    for (size_t j = 0; j < 16; ++j) {
      const double sign = std::popcount((i - block) & j) % 2 == 0 ? 1.0 : -1.0;
      sum += sign * static_cast<double>(numbers.values[block + j]) / 4.0;
    }
    CHECK(static_cast<double>(kvq::from_float16(values.halves[i])) == doctest::Approx(sum).epsilon(0.001));
  }

  kvq::Rope rope(allocator);
  rope.pairing = KVQ_ROPE_INTERLEAVED;
  rope.rotary_dim = 8;
  for (const float frequency : {1.0F, 0.02F, 0.5F, 0.001F}) rope.inv_freq.push_back(frequency);
  const kvq::cuda::TurnArrays turns(allocator, centres, 0, rope);
  CHECK(turns.fast_pairs == 3);  // the last is the only slow one behind all fast ones
  double mean = 0.0;
  for (int32_t slot = 0; slot < kPageSlots; ++slot) mean += std::cos((slot - 15.5) * 0.001) / kPageSlots;
  const double c = mean * std::cos(15.5 * 0.001);
  const double s = mean * std::sin(15.5 * 0.001);
  for (size_t begin = 0; begin < turns.keys.size(); begin += kHeadDim) {
    for (size_t channel = 0; channel < kHeadDim; ++channel) {
      double expected = static_cast<double>(numbers.keys[begin + channel]);
      if (channel == 6) expected = c * expected - s * static_cast<double>(numbers.keys[begin + 7]);
      if (channel == 7) expected = c * expected + s * static_cast<double>(numbers.keys[begin + 6]);
      CHECK(static_cast<double>(kvq::from_float16(turns.keys[begin + channel])) ==
            doctest::Approx(expected).epsilon(0.001));
    }
  }
  CHECK(turns.page_turns.size() == static_cast<size_t>(kPageSlots * 8));
  CHECK(static_cast<double>(turns.page_turns[5 * 8]) == doctest::Approx(std::cos(5.0)));
  CHECK(static_cast<double>(turns.page_turns[5 * 8 + 4]) == doctest::Approx(std::sin(5.0)));
}

TEST_CASE("a side without centres has no arrays on a GPU") {
  kvq::Allocator allocator({}, UINT64_MAX);
  const kvq::ModelCentres centres = random_centres(allocator, 16, 0, 2);
  const kvq::cuda::SideArrays keys(allocator, centres, 0, Side::kKeys);
  CHECK(keys.floats.empty());
  CHECK(keys.rounded.empty());
  kvq::Rope rope(allocator);
  const kvq::cuda::TurnArrays turns(allocator, centres, 0, rope);
  CHECK(turns.keys.empty());
  CHECK(turns.page_turns.empty());
  CHECK(turns.fast_pairs == 0);
}
