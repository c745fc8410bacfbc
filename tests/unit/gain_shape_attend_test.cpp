// Every instruction set's kernels on gain-shape pages, against sums in double over the decoded pages. Pages are random
// bytes: all codes and gains are valid.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/dispatch/isa.h"
#include "core/float16.h"
#include "formats/gain_shape/gain_shape.h"
#include "formats/gain_shape/gains.h"
#include "formats/gain_shape/trellis.h"

namespace gain_shape_attend_test {

using kvq::Centre;
using kvq::CodeType;
using kvq::kPageSlots;
using kvq::Side;
using kvq::cpu::KernelTable;
using kvq::cpu::kTileSlots;
using kvq::cpu::RoundedQueries;

namespace {

constexpr CodeType kCodes[] = {CodeType::gain_scalar(4), CodeType::gain_scalar(3),  CodeType::gain_scalar(2),
                               CodeType::gain_scalar(1), CodeType::gain_trellis(3), CodeType::gain_trellis(2),
                               CodeType::gain_trellis(1)};
constexpr int32_t kHeadDims[] = {8, 16, 24, 40, 64, 72, 96, 104, 128, 200, 256};
constexpr int32_t kRows[] = {1, 2, 4};

// Limit of random errors, in standard deviations.
constexpr double kDeviations = 6.5;

/// One side of a page, its decoded numbers, and its mean.
struct AnySide {
  AnySide(Side which, CodeType code, int32_t dim, bool page_mean, bool equal_gains, std::mt19937& random)
      : side(which),
        format{.code = code,
               .rotation = kvq::Rotation::kHadamard,
               .centre = page_mean ? Centre::kPageMean : Centre::kNone},
        page(format, format, dim) {
    const auto layout = kvq::gain_shape::layout(side, page);
    // Vectors of values at the end of a page may not read beyond it, which sanitizers detect.
    data.resize(layout.bytes());
    for (std::byte& each : data) each = static_cast<std::byte>(random());
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      std::byte& gain = data[layout.gain_offset() + static_cast<size_t>(slot)];
      gain = equal_gains
                 ? std::byte{255}
                 : static_cast<std::byte>(slot % 7 == 6 ? static_cast<uint32_t>(slot) % 2 : 128 + random() % 128);
    }
    half(layout.largest_offset()) = kvq::to_float16(0.37F);
    if (layout.has_mean()) half(layout.mean_scale_offset()) = kvq::to_float16(0.02F);

    decoded.resize(static_cast<size_t>(kPageSlots * dim));
    const std::byte* bytes = data.data();
    kvq::gain_shape::decode(
        {.side = side, .format = page, .layer = 0, .head = 0, .sides = &bytes, .rope = nullptr, .positions = nullptr},
        0, kPageSlots, decoded.data());
    mean.resize(static_cast<size_t>(dim));
    for (size_t i = 0; layout.has_mean() && i < mean.size(); ++i) {
      mean[i] = static_cast<int8_t>(data[layout.mean_offset() + i]) *
                double{kvq::from_float16(half(layout.mean_scale_offset()))};
    }
  }

  uint16_t& half(size_t offset) { return *reinterpret_cast<uint16_t*>(data.data() + offset); }
  double number(int32_t slot, int32_t channel) const {
    return decoded[static_cast<size_t>(slot * page.head.keys + channel)];
  }
  double gain(int32_t slot) {
    const auto layout = kvq::gain_shape::layout(side, page);
    const auto code = static_cast<size_t>(data[layout.gain_offset() + static_cast<size_t>(slot)]);
    return double{kvq::gain_shape::kGainFactors[code]} * kvq::from_float16(half(layout.largest_offset()));
  }

  Side side;
  kvq::SideFormat format;
  kvq::PageFormat page;
  std::vector<std::byte> data;
  std::vector<float> decoded;
  std::vector<double> mean;
};

/// The largest weight of a token of a page, in units of rounding. Most instruction sets multiply bytes in pairs to 16
/// bits, which leaves less for levels of trellises than for codes.
int32_t top_weight(const KernelTable& table, CodeType code) {
  const std::string name = table.name;
  for (int32_t bits = 1; bits <= 3 && !name.ends_with("vnni") && name != "amx"; ++bits) {
    const int32_t top_level = kvq::gain_shape::levels(bits)[kvq::gain_shape::kSubsets * (1 << (bits - 1)) - 1];
    if (code != CodeType::gain_trellis(bits)) continue;
    return name.starts_with("neon") ? 127 : std::min(255, 32767 / (2 * top_level));
  }
  return 255;
}

/// Scores of a page from a table's kernel.
std::vector<float> scores_of(const KernelTable& table, const AnySide& keys, int32_t rows, const std::vector<float>& q) {
  const int32_t dim = keys.page.head.keys;
  const int32_t words = RoundedQueries::words_of(dim);
  const int32_t stride = RoundedQueries::stride_of(words);
  std::vector<int32_t> rounded(static_cast<size_t>(rows * stride), 0x55555555);
  for (int32_t r = 0; r < rows; ++r) kvq::cpu::round_query(q.data() + r * dim, dim, rounded.data() + r * stride);
  std::vector<float> scores(static_cast<size_t>(rows * kTileSlots), -7.0F);
  const kvq::cpu::SideData side{keys.data.data(), keys.data.data()};
  table.side(keys.format)
      .keys({dim, keys.format.group, keys.format.centre == Centre::kPageMean}, &side, 1, rows,
            {q.data(), {rounded.data(), words}}, scores.data());
  return scores;
}

void check_keys(const KernelTable& table, CodeType code, int32_t dim, bool page_mean, int32_t rows, bool exact,
                std::mt19937& random) {
  const AnySide keys(Side::kKeys, code, dim, page_mean, false, random);
  std::normal_distribution<float> normal;
  std::vector<float> q(static_cast<size_t>(rows * dim));
  for (float& each : q)
    each = exact ? 0.25F * static_cast<float>(static_cast<int32_t>(random() % 255) - 127) : normal(random);
  for (int32_t r = 0; exact && r < rows; ++r) q[static_cast<size_t>(r * dim + r)] = -0.25F * 127.0F;
  const std::vector<float> scores = scores_of(table, keys, rows, q);
  for (int32_t r = 0; r < rows; ++r) {
    const std::span row(q.data() + r * dim, static_cast<size_t>(dim));
    double largest = 0.0;
    for (const float each : row) largest = std::max(largest, std::abs(double{each}));
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      double expected = 0.0;
      double size = 0.0;
      double squares = 0.0;
      double mean_squares = 0.0;
      for (int32_t i = 0; i < dim; ++i) {
        const double query = row[static_cast<size_t>(i)];
        const double mean = keys.mean[static_cast<size_t>(i)];
        const double number = keys.number(slot, i);
        expected += query * number;
        size += std::abs(query) * (std::abs(number - mean) + std::abs(mean));
        squares += std::pow(number - mean, 2);
        mean_squares += std::pow(mean, 2);
      }
      // Rounding errors of queries: uniform over a step.
      double limit = 1e-5 * size;
      if (!exact) {
        limit += kDeviations * std::sqrt(squares / 12.0) * largest / 127.0;
        limit += kDeviations * std::sqrt(mean_squares / 12.0) * largest / 32512.0;
      }
      const double score = scores[static_cast<size_t>(r * kTileSlots + slot)];
      CHECK(std::abs(score - expected) <= limit);
    }
    for (int32_t slot = kPageSlots; slot < kTileSlots; ++slot) {
      CHECK(scores[static_cast<size_t>(r * kTileSlots + slot)] == -7.0F);
    }
  }
}

void check_values(const KernelTable& table, CodeType code, int32_t dim, int32_t pages, int32_t rows, bool exact,
                  std::mt19937& random) {
  std::vector<AnySide> sides;
  std::vector<kvq::cpu::SideData> data;
  for (int32_t page = 0; page < pages; ++page) sides.emplace_back(Side::kValues, code, dim, false, exact, random);
  for (const AnySide& each : sides) data.push_back({each.data.data(), each.data.data()});
  const int32_t width = kvq::cpu::padded_dim(dim);
  const int32_t top = top_weight(table, code);
  std::normal_distribution<float> normal;
  std::vector<float> p(static_cast<size_t>(rows * kTileSlots), 1e30F);
  std::vector<float> out(static_cast<size_t>(rows * width), 0.5F);
  for (int32_t r = 0; r < rows; ++r) {
    for (int32_t slot = 0; slot < pages * kPageSlots; ++slot) {
      float& each = p[static_cast<size_t>(r * kTileSlots + slot)];
      const auto integer = static_cast<float>(random() % static_cast<uint32_t>(top + 1));
      each = exact ? integer / static_cast<float>(top) : std::exp(2.0F * normal(random));
      if (slot % 5 == 1) each = 0.0F;
      if (slot % kPageSlots == 7) each = 1.0F;
    }
  }
  table.plain(code).values({dim, kvq::SideFormat{}.group, false}, data.data(), pages, rows, p.data(), out.data());
  for (int32_t r = 0; r < rows; ++r) {
    for (int32_t channel = 0; channel < dim; ++channel) {
      double expected = 0.5;
      double size = 0.5;
      double squares = 0.0;
      for (int32_t page = 0; page < pages; ++page) {
        AnySide& side = sides[static_cast<size_t>(page)];
        const float* of_page = p.data() + r * kTileSlots + page * kPageSlots;
        double largest = 0.0;
        double of_shapes = 0.0;
        for (int32_t slot = 0; slot < kPageSlots; ++slot) {
          const double gain = side.gain(slot);
          expected += of_page[slot] * side.number(slot, channel);
          size += of_page[slot] * std::abs(side.number(slot, channel));
          largest = std::max(largest, of_page[slot] * gain);
          if (gain > 0.0) of_shapes += std::pow(side.number(slot, channel) / gain, 2);
        }
        squares += of_shapes * std::pow(largest / top, 2);
      }
      // A weight is rounded up or down: its error has at most half a step as standard deviation.
      const double limit = exact ? 2e-4 * size : 1e-5 * size + kDeviations * 0.5 * std::sqrt(squares);
      CHECK(std::abs(out[static_cast<size_t>(r * width + channel)] - expected) <= limit);
    }
  }
}

/// check(table, code, head_dim, rows, random)
template <typename Check>
void for_each_kernel(const Check& check) {
  for (const KernelTable* table : kvq::cpu::available_tables()) {
    CAPTURE(std::string(table->name));
    for (const CodeType code : kCodes) {
      CAPTURE(code.packed());
      for (const int32_t dim : kHeadDims) {
        CAPTURE(dim);
        for (const int32_t rows : kRows) {
          CAPTURE(rows);
          std::mt19937 random(static_cast<unsigned>(dim + rows));
          check(*table, code, dim, rows, random);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("scores of gain-shape keys are exact where bytes can tell queries") {
  for_each_kernel([](const KernelTable& table, CodeType code, int32_t dim, int32_t rows, std::mt19937& random) {
    check_keys(table, code, dim, false, rows, true, random);
    check_keys(table, code, dim, true, rows, true, random);
  });
}

TEST_CASE("scores of gain-shape keys are as far off as rounding queries to bytes makes them") {
  for_each_kernel([](const KernelTable& table, CodeType code, int32_t dim, int32_t rows, std::mt19937& random) {
    check_keys(table, code, dim, false, rows, false, random);
    check_keys(table, code, dim, true, rows, false, random);
  });
}

TEST_CASE("sums of gain-shape values are exact where bytes can tell weights") {
  for_each_kernel([](const KernelTable& table, CodeType code, int32_t dim, int32_t rows, std::mt19937& random) {
    check_values(table, code, dim, 1 + dim / 8 % 8, rows, true, random);
  });
}

TEST_CASE("sums of gain-shape values are as far off as rounding weights to bytes makes them") {
  for_each_kernel([](const KernelTable& table, CodeType code, int32_t dim, int32_t rows, std::mt19937& random) {
    check_values(table, code, dim, 1 + dim / 8 % 8, rows, false, random);
  });
}

TEST_CASE("many small weights of gain-shape values count beside a large one") {
  for (const KernelTable* table : kvq::cpu::available_tables()) {
    CAPTURE(std::string(table->name));
    // Constant levels, so that errors do not average out: the small weights add up to half of the large one.
    std::mt19937 random(3);
    AnySide values(Side::kValues, CodeType::gain_scalar(2), 64, false, true, random);
    std::fill_n(values.data.begin(), kvq::gain_shape::layout(Side::kValues, values.page).bytes(kvq::Field::kCodes),
                std::byte{0xFF});
    std::vector<float> p(kTileSlots, 0.0F);
    for (int32_t slot = 0; slot < kPageSlots; ++slot) p[static_cast<size_t>(slot)] = 0.0015F;
    p[11] = 1.0F;
    std::vector<float> out(64, 0.0F);
    const kvq::cpu::SideData side{values.data.data(), values.data.data()};
    table->plain(CodeType::gain_scalar(2))
        .values({64, kvq::SideFormat{}.group, false}, &side, 1, 1, p.data(), out.data());
    const double gain = kvq::from_float16(kvq::to_float16(0.37F));
    CHECK(out[5] == doctest::Approx(1.5 * gain * (1.0 + 31 * 0.0015)).epsilon(0.005));
  }
}

TEST_CASE("a rounded query is within half a step of its row, and zero beyond it") {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const int32_t dim : kHeadDims) {
    CAPTURE(dim);
    std::vector<float> q(static_cast<size_t>(dim));
    for (float& each : q) each = normal(random);
    const int32_t words = RoundedQueries::words_of(dim);
    std::vector<int32_t> memory(static_cast<size_t>(RoundedQueries::stride_of(words)), -1);
    kvq::cpu::round_query(q.data(), dim, memory.data());
    const RoundedQueries rounded{memory.data(), words};
    const auto* bytes = reinterpret_cast<const int8_t*>(rounded.bytes(0));
    int32_t sum = 0;
    for (int32_t i = 0; i < 4 * words; ++i) {
      const float exact = i < dim ? q[static_cast<size_t>(i)] : 0.0F;
      const auto fine = static_cast<int16_t>(static_cast<uint32_t>(rounded.fine(0)[i / 2]) >> (16 * (i % 2)));
      CHECK(std::abs(static_cast<float>(bytes[i]) * rounded.step(0) - exact) <= 0.5001F * rounded.step(0));
      CHECK(std::abs(static_cast<float>(fine) * rounded.fine_step(0) - exact) <= 0.51F * rounded.fine_step(0));
      if (i >= dim) CHECK(int{bytes[i]} == 0);
      if (i >= dim) CHECK(int{fine} == 0);
      sum += bytes[i];
    }
    CHECK(rounded.sum(0) == sum);
    std::fill(q.begin(), q.end(), 0.0F);
    kvq::cpu::round_query(q.data(), dim, memory.data());
    CHECK(rounded.step(0) == 0.0F);
    CHECK(rounded.sum(0) == 0);
  }
}

}  // namespace gain_shape_attend_test
