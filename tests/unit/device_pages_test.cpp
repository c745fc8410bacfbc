// GPU layouts of pages and centres, checked on the host.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <memory>
#include <numbers>
#include <vector>

#include "core/float16.h"
#include "formats/codec.h"
#include "formats/gain_shape/model_centres.h"
#include "kernels/pages/known_codes.h"
#include "pages/centre_arrays.h"
#include "pages/codecs.h"
#include "support/random.h"
#include "support/reference.h"

namespace device_pages_test {
namespace {

using kvq::Centre;
using kvq::CodeType;
using kvq::kPageSlots;
using kvq::PageFormat;
using kvq::Rotation;
using kvq::Side;
using kvq::SideFormat;

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

/// Every kind with trained centres, paired with itself and with kinds that store other bytes after their codes, or
/// none.
std::vector<std::pair<SideFormat, SideFormat>> centred_formats() {
  std::vector<std::pair<SideFormat, SideFormat>> pairs;
  const SideFormat page_mean{.code = CodeType::gain_scalar(2), .centre = Centre::kPageMean};
  for (const CodeType code :
       {CodeType::gain_scalar(4), CodeType::gain_scalar(3), CodeType::gain_scalar(2), CodeType::gain_scalar(1),
        CodeType::gain_trellis(3), CodeType::gain_trellis(2), CodeType::gain_trellis(1)}) {
    const SideFormat centred{.code = code, .centre = Centre::kTrained};
    pairs.insert(pairs.end(), {{centred, centred},
                               {page_mean, centred},
                               {centred, {CodeType::gain_scalar(3)}},
                               {centred, {CodeType::float16()}},
                               {{CodeType::integer(4)}, centred},
                               {centred, {CodeType::integer(3), Rotation::kHadamard, Centre::kNone, 64}}});
  }
  return pairs;
}

/// Calls `use` with formats, numbers of centres and head sizes.
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

/// Random bytes for a side, zeros in its padding.
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
    CAPTURE(format.head.keys);
    REQUIRE(kvq::cuda::knows(format));
    const std::vector<std::byte> page = random_page(format);
    std::vector<std::byte> device(format.bytes(), std::byte{0xA5});
    std::vector<std::byte> back(format.bytes(), std::byte{0x5A});
    kvq::cuda::to_device_order(format, page.data(), device.data());
    kvq::cuda::to_host_order(format, device.data(), back.data());
    CHECK(back == page);
    const kvq::PagePlaces places = kvq::cuda::page_places(kvq::cuda::format_code(format), format.head.keys);
    CHECK(static_cast<size_t>(places.bytes) == format.bytes());
  });
}

TEST_CASE("a page of any head comes back from a GPU's order of bytes as it was") {
  std::vector<CodeType> codes(std::begin(kvq::cuda::kPlainCodes), std::end(kvq::cuda::kPlainCodes));
  codes.insert(codes.end(), std::begin(kvq::cuda::kGainCodes), std::end(kvq::cuda::kGainCodes));
  for (const kvq::HeadShape head : {kvq::HeadShape(192, 128), kvq::HeadShape(64, 256), kvq::HeadShape(8, 40),
                                    kvq::HeadShape(512), kvq::HeadShape(576, 512), kvq::HeadShape::latent(576, 512)}) {
    CAPTURE(head.keys);
    CAPTURE(head.values);
    for (const CodeType code : codes) {
      const SideFormat keys{.code = code, .centre = code.has_gains() ? Centre::kPageMean : Centre::kNone};
      for (const CodeType of_values : {code, CodeType::integer(2), CodeType::gain_trellis(3)}) {
        const PageFormat format(keys, {of_values}, head);
        const std::vector<std::byte> page = random_page(format);
        std::vector<std::byte> device(format.bytes(), std::byte{0xA5});
        std::vector<std::byte> back(format.bytes(), std::byte{0x5A});
        kvq::cuda::to_device_order(format, page.data(), device.data());
        kvq::cuda::to_host_order(format, device.data(), back.data());
        CHECK(back == page);
        const kvq::PagePlaces places = kvq::cuda::page_places(kvq::cuda::format_code(format), head);
        CHECK(static_cast<size_t>(places.bytes) == format.bytes());
      }
    }
  }
}

TEST_CASE("the centres of the four tokens that a GPU's lane takes are one aligned word") {
  for_each_format([](const PageFormat& format, const kvq::ModelCentres& centres) {
    CAPTURE(format.head.keys);
    const kvq::cuda::FormatCode code = kvq::cuda::format_code(format);
    const kvq::PagePlaces places = kvq::cuda::page_places(code, format.head.keys);
    const std::vector<std::byte> page = random_page(format);
    std::vector<std::byte> device(format.bytes());
    kvq::cuda::to_device_order(format, page.data(), device.data());
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const SideFormat& of_side = format.side(side);
      const bool centred = of_side.has_trained_centres();
      const int32_t count = centres.shape.centres(side);
      const bool keys = side == Side::kKeys;
      CHECK((keys ? code.keys() : code.values()) == of_side.code);
      CHECK((keys ? code.centred_keys() : code.centred_values()) == centred);
      CHECK((keys ? code.key_indices() : code.value_indices()) == (centred && count > 1));
      if (!centred) continue;
      const kvq::SideLayout layout = kvq::side_layout(side, of_side, format.head.keys, count);
      const std::byte* host = page.data() + format.offset(side);
      const std::byte* of_device = device.data() + (keys ? 0 : places.values_at);
      if (keys) {
        const std::byte* rotation = of_device + places.keys.numbers + 2 * kvq::kKeySlotRotation;
        CHECK(std::equal(rotation, rotation + 2, host + layout.slot_rotation_offset()));
      }
      if (count == 1) continue;
      const int32_t indices = keys ? places.keys.centres : places.values.centres;
      CHECK((indices + (keys ? 0 : places.values_at)) % 4 == 0);
      // Numbers of lane g: 8 · (g / 2) + 2 · (g % 2) + {0, 1, 4, 5}.
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
  const PageFormat plain(SideFormat{.code = CodeType::gain_scalar(2), .centre = Centre::kPageMean},
                         SideFormat{CodeType::gain_trellis(1)}, 64);
  const kvq::cuda::FormatCode code = kvq::cuda::format_code(plain);
  CHECK(code.page_mean());
  CHECK_FALSE(code.centred());
  CHECK(code.key_layout(64).centre == Centre::kPageMean);
  CHECK(code.value_layout(64).centre == Centre::kNone);
  const PageFormat none(SideFormat{CodeType::gain_scalar(2)}, SideFormat{CodeType::gain_trellis(1)}, 64);
  CHECK(kvq::cuda::format_code(none).key_layout(64).centre == Centre::kNone);
}

namespace {

/// FP16 number of row `row`, whose chunks are swapped.
double number_at(const kvq::Vector<uint16_t>& rows, int32_t head_dim, int32_t row, int32_t number, int32_t place) {
  const int32_t at = row * kvq::cuda::row_width(head_dim) + (place ^ 8 * kvq::cuda::row_swizzle(number));
  return static_cast<double>(kvq::from_float16(rows[static_cast<size_t>(at)]));
}

/// Whether two numbers are the same in FP16, or nearly so.
doctest::Approx half_of(double number) { return doctest::Approx(number).epsilon(0.001); }

/// Four pairs of neighbouring channels; only the last one is slow, after all fast ones.
kvq::Rope four_pairs(kvq::Allocator& allocator) {
  kvq::Rope rope(allocator);
  rope.pairing = KVQ_ROPE_INTERLEAVED;
  rope.rotary_dim = 8;
  for (const float frequency : {1.0F, 0.02F, 0.5F, 0.001F}) rope.inv_freq.push_back(frequency);
  return rope;
}

/// Rotation of a pair by the middle of a page that starts at position 0 (CentreTurns), or by the slot.
std::complex<double> page_rotation(double frequency, int32_t slot) {
  if (frequency * kPageSlots > 1.0) return std::polar(1.0, slot * frequency);
  double mean = 0.0;
  for (int32_t each = 0; each < kPageSlots; ++each) mean += std::cos((each - 15.5) * frequency) / kPageSlots;
  return std::polar(mean, 15.5 * frequency);
}

/// Unchanged numbers of unrotated pairs, which follow the rotated ones.
void check_pair(const kvq::cuda::CentreRowArrays& rows, int32_t row, int32_t number, int32_t pair,
                const std::complex<double>& expected) {
  constexpr int32_t kHeadDim = 48;
  CHECK(number_at(rows.keys, kHeadDim, row, number, kvq::cuda::key_place(pair, 0)) == half_of(expected.real()));
  CHECK(number_at(rows.keys, kHeadDim, row, number, kvq::cuda::key_place(pair, 1)) == half_of(expected.imag()));
}

std::complex<double> pair_of(const kvq::Vector<float>& numbers, int32_t centre, int32_t pair) {
  const auto at = static_cast<size_t>(48 * centre + 2 * pair);
  return {static_cast<double>(numbers[at]), static_cast<double>(numbers[at + 1])};
}

}  // namespace

TEST_CASE("rows of values' centres are rotated") {
  kvq::Allocator allocator({}, UINT64_MAX);
  constexpr int32_t kHeadDim = 48;
  constexpr int32_t kCentres = 9;
  const kvq::ModelCentres centres = random_centres(allocator, kHeadDim, 0, kCentres);
  const kvq::Vector<float>& numbers = centres.layers.front().numbers->values;
  const kvq::cuda::CentreRowArrays rows(allocator, centres, 0, kvq::Rope(allocator));
  CHECK(rows.counts.value_centres == kCentres);
  REQUIRE(rows.values.size() == static_cast<size_t>(kKvHeads * kCentres * 128));
  for (int32_t row = 0; row < kKvHeads * kCentres; ++row) {
    for (int32_t channel = 0; channel < 128; ++channel) {
      double sum = 0.0;
      for (size_t j = 0; j < kHeadDim && channel < kHeadDim; ++j) {
        sum += kvq_test::rotation_entry(kHeadDim, static_cast<size_t>(channel), j) *
               static_cast<double>(numbers[static_cast<size_t>(row * kHeadDim) + j]);
      }
      CHECK(number_at(rows.values, kHeadDim, row, row % kCentres, kvq::cuda::value_place(channel)) == half_of(sum));
    }
  }
}

TEST_CASE("rows of keys' centres stand where the middle of a page rotations what rotations slowly") {
  kvq::Allocator allocator({}, UINT64_MAX);
  const kvq::ModelCentres centres = random_centres(allocator, 48, 3, 0);
  const kvq::Rope rope = four_pairs(allocator);
  const kvq::cuda::CentreRowArrays rows(allocator, centres, 0, rope);
  CHECK(rows.counts.key_rows == 3);
  CHECK(rows.counts.fast_pairs == 3);
  for (int32_t row = 0; row < kKvHeads * 3; ++row) {
    for (int32_t pair = 0; pair < 24; ++pair) {
      const std::complex<double> rotation = pair == 3 ? page_rotation(0.001, 0) : 1.0;
      check_pair(rows, row, row % 3, pair, pair_of(centres.layers.front().numbers->keys, row, pair) * rotation);
    }
  }
  // Slots rotate the others.
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    const int32_t g = kvq::cuda::slot_place(slot) / 4;
    const int32_t tile = kvq::cuda::slot_place(slot) % 4;
    for (int32_t pair = 0; pair < 32; ++pair) {
      const std::complex<double> rotation =
          pair < 3 ? page_rotation(static_cast<double>(rope.inv_freq[static_cast<size_t>(pair)]), slot) : 1.0;
      const int32_t vector = kvq::cuda::slot_rotation_place(pair, tile / 2) + 4 * g + pair % 8 / 2;
      const int32_t within = 2 * (tile % 2 + pair % 16 / 8 * 2) + pair % 2;
      const auto at = static_cast<size_t>(8 * vector + within);
      CHECK(static_cast<double>(kvq::from_float16(rows.slot_rotations[at])) == half_of(rotation.real()));
      CHECK(static_cast<double>(kvq::from_float16(rows.slot_rotations[at + 8 * 32])) == half_of(rotation.imag()));
    }
  }
}

TEST_CASE("a single centre of keys has a row for each slot of a page") {
  kvq::Allocator allocator({}, UINT64_MAX);
  const kvq::ModelCentres centres = random_centres(allocator, 48, 1, 0);
  const kvq::Rope rope = four_pairs(allocator);
  const kvq::cuda::CentreRowArrays rows(allocator, centres, 0, rope);
  REQUIRE(rows.counts.key_rows == kPageSlots);
  CHECK(rows.counts.rotation_blocks == 0);
  std::vector<int32_t> slots;
  for (int32_t row = 0; row < kPageSlots; ++row) {
    const int32_t slot = kvq::cuda::slot_of_row(row);
    slots.push_back(slot);
    CHECK(row == 8 * (kvq::cuda::slot_place(slot) % 4) + kvq::cuda::slot_place(slot) / 4);
    for (int32_t head = 0; head < kKvHeads; ++head) {
      for (int32_t pair = 0; pair < 24; ++pair) {
        const std::complex<double> rotation =
            pair < 4 ? page_rotation(static_cast<double>(rope.inv_freq[static_cast<size_t>(pair)]), slot) : 1.0;
        check_pair(rows, head * kPageSlots + row, row, pair,
                   pair_of(centres.layers.front().numbers->keys, head, pair) * rotation);
      }
    }
  }
  std::sort(slots.begin(), slots.end());
  for (int32_t slot = 0; slot < kPageSlots; ++slot) CHECK(slots[static_cast<size_t>(slot)] == slot);
}

TEST_CASE("fractions of rotations say where a position is, far out too") {
  kvq::Allocator allocator({}, UINT64_MAX);
  const kvq::ModelCentres centres = random_centres(allocator, 48, 1, 0);
  kvq::Rope rope = four_pairs(allocator);
  rope.inv_freq[2] = -0.7F;
  const kvq::cuda::CentreRowArrays rows(allocator, centres, 0, rope);
  REQUIRE(rows.frequencies.size() == 64);
  for (size_t pair = 0; pair < 5; ++pair) {
    for (const uint32_t position : {0U, 1U, 131072U, 1234567U}) {
      const auto fraction = static_cast<double>(rows.frequencies[pair] * position) * 0x1p-64;
      const double angle = pair < 4 ? static_cast<double>(rope.inv_freq[pair]) * position : 0.0;
      CHECK(std::cos(2.0 * std::numbers::pi * fraction) == doctest::Approx(std::cos(angle)).epsilon(1e-6));
      CHECK(std::sin(2.0 * std::numbers::pi * fraction) == doctest::Approx(std::sin(angle)).epsilon(1e-6));
    }
  }
}

TEST_CASE("a GPU searches the centres as they were trained, and rotations slots as pages do") {
  kvq::Allocator allocator({}, UINT64_MAX);
  const kvq::ModelCentres centres = random_centres(allocator, 48, 3, 2);
  const kvq::Vector<float>& numbers = centres.layers.front().numbers->values;
  const kvq::cuda::SideArrays values(allocator, centres, 0, Side::kValues);
  CHECK(std::equal(values.floats.begin(), values.floats.end(), numbers.begin(), numbers.end()));
  const kvq::cuda::RotationArrays rotations(allocator, centres, 0, four_pairs(allocator));
  CHECK(rotations.page_rotations.size() == static_cast<size_t>(kPageSlots * 8));
  CHECK(static_cast<double>(rotations.page_rotations[5 * 8]) == doctest::Approx(std::cos(5.0)));
  CHECK(static_cast<double>(rotations.page_rotations[5 * 8 + 4]) == doctest::Approx(std::sin(5.0)));
}

TEST_CASE("a side without centres has no arrays on a GPU") {
  kvq::Allocator allocator({}, UINT64_MAX);
  const kvq::ModelCentres centres = random_centres(allocator, 16, 0, 2);
  const kvq::cuda::SideArrays keys(allocator, centres, 0, Side::kKeys);
  CHECK(keys.floats.empty());
  CHECK(keys.rounded.empty());
  const kvq::Rope rope(allocator);
  CHECK(kvq::cuda::RotationArrays(allocator, centres, 0, rope).page_rotations.empty());
  const kvq::cuda::CentreRowArrays rows(allocator, centres, 0, rope);
  CHECK(rows.keys.empty());
  CHECK(rows.slot_rotations.empty());
  CHECK(rows.counts.key_rows == 0);
}

}  // namespace device_pages_test
