#include "formats/commvq/commvq.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "formats/commvq/model_codebook.h"
#include "support/allocator.h"
#include "support/random.h"

namespace commvq_format_test {
namespace {

using kvq::CodebookShape;
using kvq::kPageSlots;
using kvq::PageFormat;
using kvq::Scope;
using kvq::Side;

CodebookShape shape_of(int32_t kv_heads, int32_t head_dim, Scope scope, int32_t stages, int32_t codes, int32_t group,
                       int32_t bits = 1) {
  CodebookShape shape;
  shape.n_layers = 1;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.keys = {.stages = stages, .codes = codes, .group = group, .norms = scope};
  shape.values = {.bits = bits, .scope = scope};
  return shape;
}

/// A format and the codebook that it refers to.
struct CommvqFormat {
  explicit CommvqFormat(const CodebookShape& shape)
      : codebook(kvq_test::test_allocator(), shape), format(kCommvq, kCommvq, shape.head_dim, &codebook) {}

  static constexpr kvq::SideFormat kCommvq{.code = kvq::CodeType::commvq()};
  kvq::ModelCodebook codebook;
  PageFormat format;
};

/// `bits` bits from bit `first` of a little-endian stream, one at a time.
int32_t bits_at(const std::byte* stream, int32_t first, int32_t bits) {
  int32_t value = 0;
  for (int32_t i = 0; i < bits; ++i) {
    const auto byte = static_cast<int32_t>(stream[(first + i) / 8]);
    value |= (byte >> ((first + i) % 8) & 1) << i;
  }
  return value;
}

}  // namespace

TEST_CASE("indices of keys are fields of a little-endian stream, 64 a stage, for every number of codes") {
  kvq_test::Random random(1);
  int32_t index_bits = 1;
  for (int32_t codes = 2; codes <= 256; codes *= 2, ++index_bits) {
    CAPTURE(codes);
    constexpr int32_t kStages = 6;  // two groups of three
    const kvq::commvq::KeyLayout layout = kvq::commvq::key_layout(shape_of(1, 16, Scope::kHead, 3, codes, 4));
    REQUIRE(layout.head_stages == kStages);
    CHECK(layout.index_bits == index_bits);
    constexpr auto kGuard = std::byte{0xA5};
    std::vector<std::byte> side(layout.bytes() + 8, kGuard);
    std::array<std::array<uint8_t, 2 * kPageSlots>, kStages> indices{};
    for (int32_t stage = kStages - 1; stage >= 0; --stage) {  // backwards: a stage must not spoil the one after it
      uint8_t fields[2 * kPageSlots];
      for (uint8_t& field : fields) field = static_cast<uint8_t>(random.integer(0, codes - 1));
      layout.pack(fields, stage, side.data());
      std::copy(fields, fields + 2 * kPageSlots, indices[static_cast<size_t>(stage)].begin());
    }
    for (int32_t stage = 0; stage < kStages; ++stage) {
      uint8_t fields[2 * kPageSlots] = {};
      layout.unpack(side.data(), stage, fields);
      for (int32_t i = 0; i < 2 * kPageSlots; ++i) {
        const int32_t expected = indices[static_cast<size_t>(stage)][static_cast<size_t>(i)];
        CHECK(fields[i] == expected);
        CHECK(bits_at(side.data(), (stage * 2 * kPageSlots + i) * index_bits, index_bits) == expected);
      }
    }
    CHECK(std::all_of(side.begin() + static_cast<ptrdiff_t>(layout.norms.offset), side.end(),
                      [](std::byte b) { return b == kGuard; }));
  }
}

// 11 stages of 64 indices of 6 bits are 528 bytes; 128 channels of 32 bits are 512. Norms and scales are 32 FP16
// numbers per head, or 32 for all four heads.
TEST_CASE("sides of a page take the bytes that the format says") {
  const CommvqFormat made_of_layer(shape_of(4, 128, Scope::kLayer, 11, 64, 64));
  const PageFormat& of_layer = made_of_layer.format;
  CHECK(kvq::side_bytes(Side::kKeys, of_layer) == 528 + 16);
  CHECK(kvq::side_bytes(Side::kValues, of_layer) == 512 + 16);
  CHECK(of_layer.bytes() == 544 + 528);
  CHECK(of_layer.spans_heads());
  const CommvqFormat made_of_head(shape_of(4, 128, Scope::kHead, 11, 64, 64));
  const PageFormat& of_head = made_of_head.format;
  CHECK(kvq::side_bytes(Side::kKeys, of_head) == 528 + 64);
  CHECK(kvq::side_bytes(Side::kValues, of_head) == 512 + 64);
  CHECK(!of_head.spans_heads());
  const CommvqFormat made_two_bits(shape_of(4, 128, Scope::kLayer, 21, 64, 64, 2));
  const PageFormat& two_bits = made_two_bits.format;
  CHECK(two_bits.bytes() == 21 * 48 + 16 + 1024 + 16);
  const CommvqFormat made_groups(shape_of(4, 128, Scope::kLayer, 2, 16, 16));
  const PageFormat& groups = made_groups.format;
  CHECK(groups.key_bytes() == 4 * 2 * 32 + 16);
  const CommvqFormat made_one_head(shape_of(1, 128, Scope::kLayer, 11, 64, 64));
  const PageFormat& one_head = made_one_head.format;
  CHECK(one_head.key_bytes() == 528 + 64);
  CHECK(!one_head.spans_heads());
  // Five heads hold 7 numbers each, the last one 4 of them: both sides end at a multiple of 8 bytes.
  const CommvqFormat made_padded(shape_of(5, 128, Scope::kLayer, 11, 64, 64));
  const PageFormat& padded = made_padded.format;
  CHECK(kvq::side_bytes(Side::kKeys, padded) == 528 + 14);
  CHECK(padded.key_bytes() == 544);
  CHECK(padded.value_bytes() == 528);
}

TEST_CASE("every slot's number has a place of its own, whatever the number of heads") {
  struct Shares {
    int32_t kv_heads;
    int32_t share;
  };
  for (const Shares& each : {Shares{1, 32}, {2, 16}, {3, 11}, {5, 7}, {6, 6}, {8, 4}, {32, 1}, {40, 1}}) {
    const int32_t kv_heads = each.kv_heads;
    const int32_t share = each.share;
    CAPTURE(kv_heads);
    const CodebookShape shape = shape_of(kv_heads, 16, Scope::kLayer, 2, 16, 8);
    for (const kvq::commvq::TokenNumbers& numbers :
         {kvq::commvq::key_layout(shape).norms, kvq::commvq::value_layout(shape).scales}) {
      CHECK(numbers.share == share);
      const size_t halves = numbers.offset / 2 + static_cast<size_t>(share);
      std::vector<uint16_t> memory(static_cast<size_t>(kv_heads) * halves, 0xFFFF);
      std::vector<std::byte*> sides;
      for (int32_t head = 0; head < kv_heads; ++head) {
        sides.push_back(reinterpret_cast<std::byte*>(memory.data() + static_cast<size_t>(head) * halves));
      }
      for (int32_t slot = 0; slot < kPageSlots; ++slot) {
        numbers.put(sides.data(), 0, slot, static_cast<uint16_t>(slot));
      }
      for (int32_t slot = 0; slot < kPageSlots; ++slot) CHECK(numbers.get(sides.data(), 0, slot) == slot);
      CHECK(std::count(memory.begin(), memory.end(), 0xFFFF) == static_cast<ptrdiff_t>(memory.size()) - kPageSlots);
    }
  }
}

TEST_CASE("a side with a number that is not finite is not valid") {
  for (const Scope scope : {Scope::kLayer, Scope::kHead}) {
    const CommvqFormat made_format(shape_of(3, 16, scope, 2, 16, 8));
    const PageFormat& format = made_format.format;
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const size_t bytes = kvq::side_bytes(side, format);
      std::vector<uint16_t> halves(bytes / 2, 0xFFFF);  // codes are arbitrary
      const size_t share = scope == Scope::kHead ? 32 : 11;
      std::fill(halves.end() - static_cast<ptrdiff_t>(share), halves.end(), uint16_t{0x3C00});
      const auto valid = [&] {
        return kvq::side_is_valid(side, format, reinterpret_cast<const std::byte*>(halves.data()));
      };
      CHECK(valid());
      for (size_t i = halves.size() - share; i < halves.size(); ++i) {
        halves[i] = 0x7C00;
        CHECK(!valid());
        halves[i] = 0x3C00;
      }
    }
  }
}

}  // namespace commvq_format_test
