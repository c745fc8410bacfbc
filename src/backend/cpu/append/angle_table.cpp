#include "backend/cpu/append/angle_table.h"

#include "formats/page_format.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvq::cpu {
namespace {

constexpr int32_t kSpan = 32;
/// Positions below have exact angles in double: 29 bits times the 24 of a float.
constexpr int32_t kExactPositions = 1 << 29;
constexpr double kMicrosecondsPerPair = 0.02;

/// Whether angles of a few are added to those of the others.
bool has_offsets(int32_t tokens) { return tokens > 2 * kSpan; }

}  // namespace

AngleTable::AngleTable(const Rope& rope, RotationKernel fill_rotation, int32_t tokens, int32_t slice,
                       Parallel& parallel, Allocator& scratch)
    : rope_(rope),
      fill_rotation_(fill_rotation),
      parallel_(parallel),
      offsets_(scratch),
      rows_(static_cast<size_t>(slice) * rope.table_stride(), scratch) {
  if (has_offsets(tokens)) fill_offsets();
}

uint64_t AngleTable::bytes_of(const Rope& rope, int32_t tokens, int32_t slice) {
  const size_t offsets = has_offsets(tokens) ? kSpan * rope.table_stride() * sizeof(double) : 0;
  return Allocator::bytes_in_block(offsets) +
         Allocator::bytes_in_block(static_cast<size_t>(slice) * rope.table_stride() * sizeof(float));
}

void AngleTable::fill_offsets() {
  offsets_.resize(kSpan * rope_.table_stride());
  parallel_.run(kSpan, kSpan * rope_.pairs() * kMicrosecondsPerPair, [this](int32_t i) noexcept {
    fill_exact(i, offsets_.data() + static_cast<size_t>(i) * rope_.table_stride());
  });
}

void AngleTable::fill(std::span<const int32_t> positions) {
  const auto n = static_cast<int32_t>(positions.size());
  const int32_t computed = offsets_.empty() ? n : (n + kSpan - 1) / kSpan;
  const double microseconds = computed * rope_.pairs() * kMicrosecondsPerPair;
  parallel_.run((n + kSpan - 1) / kSpan, microseconds, [&](int32_t i) noexcept {
    const int32_t begin = i * kSpan;
    const auto span = positions.subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(kSpan, n - begin)));
    float* rows = rows_.data() + static_cast<size_t>(begin) * rope_.table_stride();
    if (offsets_.empty()) {
      rope_.fill_table(span, rows);
    } else {
      fill_span(span, rows);
    }
  });
}

void AngleTable::fill_span(std::span<const int32_t> positions, float* rows) const noexcept {
  std::array<double, kMaxHeadDim> base;
  int64_t first = -kSpan;
  for (size_t i = 0; i < positions.size(); ++i, rows += rope_.table_stride()) {
    const int32_t position = positions[i];
    // The next sequence's positions may begin anywhere.
    if ((position < first || position - first >= kSpan) && position < kExactPositions) {
      fill_exact(position, base.data());
      first = position;
    }
    const int64_t offset = position - first;
    if (offset >= kSpan ||
        !fill_rotation_(base.data(), offsets_.data() + static_cast<size_t>(offset) * rope_.table_stride(),
                        rope_.pairs(), rows)) {
      rope_.fill_table(positions.subspan(i, 1), rows);
    }
  }
}

void AngleTable::fill_exact(int32_t position, double* cos_sin) const noexcept {
  for (int32_t pair = 0; pair < rope_.pairs(); ++pair) {
    const double angle = rope_.angle(position, pair);
    cos_sin[pair] = std::cos(angle);
    cos_sin[rope_.pairs() + pair] = std::sin(angle);
  }
}

}  // namespace kvq::cpu
