// Every instruction set's append kernels against scalar versions of the same operations, byte for byte.
#include "backend/cpu/append/kernels.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/append/angle_table.h"
#include "backend/cpu/dispatch/isa.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "formats/float16/float16.h"
#include "formats/format_name.h"
#include "formats/gain_shape/gain_shape.h"
#include "formats/integer/integer.h"
#include "support/allocator.h"

namespace append_kernels_test {

using kvq::kPageSlots;
using kvq::Side;
using kvq::cpu::AppendKernels;
using kvq::cpu::KernelTable;

namespace {

constexpr int32_t kHeadDims[] = {8, 24, 40, 64, 80, 96, 112, 120, 128, 192, 200, 248, 256};
constexpr Side kSides[] = {Side::kKeys, Side::kValues};

enum class Numbers { kNormal, kConstantGroups, kZeros, kSubnormal, kLargest, kAnySize };
constexpr Numbers kAllNumbers[] = {Numbers::kNormal,    Numbers::kConstantGroups, Numbers::kZeros,
                                   Numbers::kSubnormal, Numbers::kLargest,        Numbers::kAnySize};

// Channel `channel` of token `token`.
float number(Numbers kind, int32_t token, int32_t channel, std::mt19937& random) {
  const float normal = std::normal_distribution<float>()(random);
  const auto any = random();
  switch (kind) {
    case Numbers::kNormal:
      return normal;
    case Numbers::kConstantGroups:
      if (channel % 3 == 0) return 0.25F * static_cast<float>(channel);
      return token % 2 == 0 ? -1.5F : normal;
    case Numbers::kZeros:  // both signs; only positive or negative in some groups
      if (channel % 16 > 12 && any % 4 == 0) return std::fabs(normal);
      if (token % 8 == 7 && any % 5 == 0) return -std::fabs(normal) * 1e-6F;
      return any % 2 == 0 ? 0.0F : -0.0F;
    case Numbers::kSubnormal:
      return normal * 1e-6F;
    case Numbers::kLargest:
      return any % 2 == 0 ? kvq::kMaxFloat16 : -kvq::kMaxFloat16;
    case Numbers::kAnySize:
      return std::clamp(std::ldexp(normal, static_cast<int>(any % 36) - 24), -kvq::kMaxFloat16, kvq::kMaxFloat16);
  }
  return 0.0F;
}

// An FP16 plane of `used` tokens.
std::vector<std::byte> float16_plane(Side side, int32_t head_dim, Numbers kind, int32_t used) {
  std::mt19937 random(static_cast<unsigned>(head_dim));
  std::vector<std::byte> plane(kvq::float16::plane(side, head_dim).bytes());
  auto* halves = reinterpret_cast<uint16_t*>(plane.data());
  for (int32_t token = 0; token < used; ++token) {
    for (int32_t channel = 0; channel < head_dim; ++channel) {
      halves[kvq::float16::index(side, head_dim, token, channel)] =
          kvq::to_float16(number(kind, token, channel, random));
    }
  }
  return plane;
}

// Results of every instruction set, compared with one run of the slow reference.
void check_encoders(Side side, const kvq::SideFormat& format, int32_t head_dim, Numbers kind,
                    int32_t used = kPageSlots) {
  const std::vector<std::byte> plane = float16_plane(side, head_dim, kind, used);
  const kvq::PageFormat page(format, format, head_dim);
  const size_t bytes = kvq::side_bytes(side, page);
  std::vector<std::byte> expected(bytes);
  const std::byte* source = plane.data();
  std::byte* target = expected.data();
  kvq::codec_of(format.code)
      .encode({.side = side,
               .format = page,
               .first_head = 0,
               .float16 = {&source, 1},
               .out = {&target, 1},
               .used = used,
               .positions = {nullptr, 0},
               .context = nullptr});
  CAPTURE(head_dim);
  CAPTURE(kvq::format_name(format));
  CAPTURE(int{format.group});
  CAPTURE(used);
  CAPTURE(static_cast<int>(kind));
  for (const KernelTable* table : kvq::cpu::available_tables()) {
    CAPTURE(std::string(table->name));
    std::vector<std::byte> encoded(bytes, std::byte{0xA5});
    kvq::AlignedBytes room(kvq_test::test_allocator());
    const kvq::cpu::SideKernels& kernels = table->side(format);
    room.resize(kernels.room_bytes != nullptr ? kernels.room_bytes(head_dim) : 0);
    kernels.encode(side, format, head_dim, plane.data(), used, encoded.data(), room.data());
    CHECK((encoded == expected));
  }
}

kvq::Rope make_rope(kvq::Allocator& allocator, kvq_rope pairing, int32_t rotary_dim) {
  kvq::Rope rope(allocator);
  rope.pairing = pairing;
  rope.rotary_dim = rotary_dim;
  for (int32_t pair = 0; pair < rope.pairs(); ++pair) {
    rope.inv_freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * pair / rotary_dim)));
  }
  return rope;
}

// Tokens of one head among `heads` in a tensor that is not aligned.
struct Tokens {
  static constexpr int32_t kHeads = 3;
  static constexpr int32_t kHead = 1;

  Tokens(kvq_dtype type, int32_t n, int32_t dim, Numbers kind) : dtype(type), count(n), head_dim(dim) {
    std::mt19937 random(static_cast<unsigned>(dim + n));
    std::vector<float> numbers;
    for (int32_t i = 0; i < n * kHeads * dim; ++i) numbers.push_back(number(kind, i / dim, i % dim, random));
    bytes.resize(1 + numbers.size() * kvq::dtype_bytes(type));
    kvq::write_floats(numbers.data(), n * kHeads * dim, bytes.data() + 1, type, 0);
  }

  size_t row_bytes() const { return static_cast<size_t>(head_dim) * kvq::dtype_bytes(dtype); }
  kvq::cpu::HeadRows rows() const {
    const std::byte* first = bytes.data() + 1 + kHead * row_bytes();
    return {.first = first,
            .later = first,
            .stride = kHeads * row_bytes(),
            .later_stride = kHeads * row_bytes(),
            .dtype = dtype,
            .count = count,
            .head_dim = head_dim};
  }
  std::vector<float> row(int32_t token) const {
    std::vector<float> head(static_cast<size_t>(head_dim));
    const auto index = static_cast<size_t>(token * kHeads + kHead);
    kvq::read_floats(bytes.data() + 1, dtype, index * head.size(), head_dim, head.data());
    return head;
  }

  kvq_dtype dtype;
  int32_t count;
  int32_t head_dim;
  std::vector<std::byte> bytes;
};

void check_store(const AppendKernels& kernels, const Tokens& tokens, const kvq::Rope& rope, int32_t slot) {
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < tokens.count; ++i) positions.push_back(100 + 3 * i);
  std::vector<float> angles(positions.size() * rope.table_stride() + 1);
  rope.fill_table(positions, angles.data());
  for (const Side side : kSides) {
    std::vector<uint16_t> expected(kvq::float16::plane(side, tokens.head_dim).bytes() / 2, 0x1234);
    std::vector<uint16_t> stored = expected;
    for (int32_t i = 0; i < tokens.count; ++i) {
      std::vector<float> head = tokens.row(i);
      if (side == Side::kKeys) rope.rotate(angles.data() + static_cast<size_t>(i) * rope.table_stride(), head.data());
      for (int32_t channel = 0; channel < tokens.head_dim; ++channel) {
        expected[kvq::float16::index(side, tokens.head_dim, slot + i, channel)] =
            kvq::to_float16(head[static_cast<size_t>(channel)]);
      }
    }
    if (side == Side::kKeys) kernels.store_keys(tokens.rows(), rope, angles.data(), slot, stored.data());
    if (side == Side::kValues) kernels.store_values(tokens.rows(), slot, stored.data());
    CAPTURE(tokens.head_dim);
    CAPTURE(rope.rotary_dim);
    CAPTURE(slot);
    CHECK((stored == expected));
  }
}

}  // namespace

TEST_CASE("every instruction set encodes the bytes of the reference, one number at a time") {
  for (const int32_t head_dim : kHeadDims) {
    for (const Numbers kind : kAllNumbers) {
      for (const kvq::NamedCode& format : kvq::integer::kCodec.codes) {
        for (const kvq::Rotation rotation : {kvq::Rotation::kNone, kvq::Rotation::kHadamard}) {
          kvq::SideFormat side{.code = format.code, .rotation = rotation};
          check_encoders(Side::kKeys, side, head_dim, kind);
          for (const uint8_t group : {uint8_t{32}, uint8_t{64}, uint8_t{128}}) {
            side.group = group;
            check_encoders(Side::kValues, side, head_dim, kind);
          }
        }
      }
      for (const Side side : kSides) check_encoders(side, {}, head_dim, kind);
    }
  }
}

TEST_CASE("every instruction set finds the codes and gains of the reference, one vector at a time") {
  for (const int32_t head_dim : kHeadDims) {
    for (const Numbers kind : kAllNumbers) {
      for (const kvq::NamedCode& format : kvq::gain_shape::kCodec.codes) {
        for (const int32_t used : {kPageSlots, 1, 7, 31}) {
          kvq::SideFormat side{.code = format.code, .rotation = kvq::Rotation::kHadamard};
          check_encoders(Side::kValues, side, head_dim, kind, used);
          for (const kvq::Centre centre : {kvq::Centre::kNone, kvq::Centre::kPageMean}) {
            side.centre = centre;
            check_encoders(Side::kKeys, side, head_dim, kind, used);
          }
        }
      }
    }
  }
}

TEST_CASE("every instruction set rotates, rounds and places tokens as scalars are, and leaves other slots alone") {
  kvq::Allocator allocator({}, 0);
  struct Slots {
    int32_t first;
    int32_t count;
  };
  for (const KernelTable* table : kvq::cpu::available_tables()) {
    CAPTURE(std::string(table->name));
    for (const int32_t head_dim : kHeadDims) {
      for (const kvq_rope pairing : {KVQ_ROPE_NONE, KVQ_ROPE_HALF, KVQ_ROPE_INTERLEAVED}) {
        for (const int32_t rotary_dim : {head_dim, head_dim - 2, head_dim / 2, 2}) {
          const kvq::Rope rope = make_rope(allocator, pairing, pairing == KVQ_ROPE_NONE ? 0 : rotary_dim);
          for (const auto& [first, count] : {Slots{0, 32}, Slots{0, 1}, Slots{31, 1}, Slots{7, 18}, Slots{10, 7}}) {
            for (const kvq_dtype dtype : {KVQ_F32, KVQ_F16, KVQ_BF16}) {
              check_store(*table->append, Tokens(dtype, count, head_dim, Numbers::kAnySize), rope, first);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("only tokens whose numbers all are of ordinary size are stored without a closer look") {
  kvq::Allocator allocator({}, 0);
  const kvq::Rope rope(allocator);
  std::vector<uint16_t> plane(size_t{kPageSlots} * 24);
  for (const KernelTable* table : kvq::cpu::available_tables()) {
    for (const kvq_dtype dtype : {KVQ_F32, KVQ_F16, KVQ_BF16}) {
      for (const float x : {1024.0F, -1024.0F, 1032.0F, -1032.0F, HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
        Tokens tokens(dtype, 3, 24, Numbers::kNormal);
        kvq::write_floats(&x, 1, tokens.bytes.data() + 1, dtype, static_cast<size_t>(8 * 24 - 1));
        CAPTURE(x);
        CHECK_EQ(table->append->store_keys(tokens.rows(), rope, nullptr, 4, plane.data()), std::fabs(x) <= 1024.0F);
        CHECK_EQ(table->append->store_values(tokens.rows(), 4, plane.data()), std::fabs(x) <= 1024.0F);
      }
    }
  }
}

TEST_CASE("angles of many tokens are cos and sin in double, rounded once") {
  kvq::Allocator allocator({}, 0);
  kvq::Parallel parallel(2, nullptr, nullptr);
  std::mt19937 random(3);
  std::vector<int32_t> positions;
  const auto add_run = [&](int32_t begin, int32_t n, int32_t largest_gap) {
    for (int32_t i = 0; i < n; ++i) {
      positions.push_back(begin);
      begin += 1 + static_cast<int32_t>(random() % static_cast<unsigned>(largest_gap));
    }
  };
  add_run(0, 500, 1);
  add_run(1000, 300, 3);
  add_run(131000, 300, 1);
  add_run(200000, 100, 100);
  add_run((1 << 29) - 60, 100, 2);
  add_run(INT32_MAX - 50, 50, 1);
  // Other sequences.
  add_run(3000, 40, 1);
  add_run(2990, 40, 1);
  for (int32_t i = 40; i > 0; --i) add_run(50 * i, 1, 1);
  add_run((1 << 29) - 10, 20, 1);
  add_run(0, 5, 1);
  const auto n = static_cast<int32_t>(positions.size());
  for (const int32_t rotary_dim : {2, 6, 80, 128, 256}) {
    const kvq::Rope rope = make_rope(allocator, KVQ_ROPE_HALF, rotary_dim);
    std::vector<float> expected(positions.size() * rope.table_stride());
    rope.fill_table(positions, expected.data());
    for (const KernelTable* table : kvq::cpu::available_tables()) {
      kvq::cpu::AngleTable angles(rope, table->append->fill_rotation, n, n, parallel, allocator);
      angles.fill(positions);
      CAPTURE(rotary_dim);
      CHECK_EQ(std::memcmp(angles.row(0), expected.data(), expected.size() * sizeof(float)), 0);
    }
  }
}

}  // namespace append_kernels_test
