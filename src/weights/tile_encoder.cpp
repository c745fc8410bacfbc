#include "weights/tile_encoder.h"

#include <limits>

namespace kvq::weights {
namespace {

using Rows = std::array<float, kTileRows>;
using Indices = std::array<uint32_t, kTileRows>;

void write_code(const Code& code, std::span<uint8_t> stream, int32_t step, uint32_t value) {
  const int32_t bits = code.window_bits();
  const auto first = static_cast<size_t>(step * bits);
  value <<= first % 8;
  for (size_t at = first / 8; value != 0; ++at, value >>= 8U) stream[at] |= static_cast<uint8_t>(value);
}

/// Index of the nearest of ascending levels.
Indices nearest(const Vector<float>& levels, const Rows& targets) {
  Indices best{};
  for (uint32_t i = 1; i < levels.size(); ++i) {
    const float border = 0.5F * (levels[i - 1] + levels[i]);
    for (size_t r = 0; r < kTileRows; ++r) best[r] += targets[r] > border ? 1U : 0U;
  }
  return best;
}

Indices nearest(const Vector<float>& x, const Vector<float>& y, const Rows& target_x, const Rows& target_y) {
  Indices best{};
  Rows distance;
  distance.fill(std::numeric_limits<float>::max());
  for (uint32_t i = 0; i < x.size(); ++i) {
    for (size_t r = 0; r < kTileRows; ++r) {
      const float dx = target_x[r] - x[i];
      const float dy = target_y[r] - y[i];
      const float each = dx * dx + dy * dy;
      best[r] = each < distance[r] ? i : best[r];
      distance[r] = each < distance[r] ? each : distance[r];
    }
  }
  return best;
}

Rows column_of(const TileNumbers& numbers, size_t column) {
  Rows rows;
  for (size_t r = 0; r < kTileRows; ++r) rows[r] = numbers[r][column];
  return rows;
}

}  // namespace

TileEncoder::TileEncoder(Allocator& allocator, const Code& code)
    : codebook_(codebook_of(code)), values_{Vector<float>(allocator), Vector<float>(allocator)} {
  if (code.is_trellis()) {
    states_.emplace(allocator, codebook_);
    return;
  }
  const auto dims = static_cast<size_t>(code.dims());
  for (size_t i = 0; i < codebook_.levels.size(); ++i) values_[i % dims].push_back(value(codebook_.levels[i]));
}

void TileEncoder::encode(const TileNumbers& targets, int32_t begin, std::span<float> work, std::span<uint8_t> stream,
                         TileNumbers& decoded) const noexcept {
  if (code().is_trellis()) return encode_path(targets, work, stream, decoded);
  const auto first = static_cast<size_t>(begin);
  const Indices best = code().dims() == 1
                           ? nearest(values_[0], column_of(targets, first))
                           : nearest(values_[0], values_[1], column_of(targets, first), column_of(targets, first + 1));
  const int32_t column = coding_order(code(), begin);
  for (size_t row = 0; row < kTileRows; ++row) {
    write_code(code(), stream, step_of(code(), {static_cast<int32_t>(row), column}), best[row]);
    for (size_t dim = 0; dim < static_cast<size_t>(code().dims()); ++dim) {
      decoded[row][first + dim] = values_[dim][best[row]];
    }
  }
}

void TileEncoder::encode_path(const TileNumbers& targets, std::span<float> work, std::span<uint8_t> stream,
                              TileNumbers& decoded) const noexcept {
  const auto steps = static_cast<size_t>(code().steps());
  std::array<float, kTileWeights> path{};  // [dims][steps]
  for (int32_t step = 0; step < code().steps(); ++step) {
    for (int32_t dim = 0; dim < code().dims(); ++dim) {
      const Place place = place_of(code(), step, dim);
      path[static_cast<size_t>(dim) * steps + static_cast<size_t>(step)] =
          targets[static_cast<size_t>(place.row)][static_cast<size_t>(place.column)];
    }
  }
  search_trellis(code(), *states_, *trellis_kernels().front(), path, work, stream);
  decode(stream, decoded);
}

void TileEncoder::decode(std::span<const uint8_t> stream, TileNumbers& decoded) const noexcept {
  std::array<int8_t, kTileWeights> levels{};
  decode_tile(codebook_, stream, levels);
  for (size_t row = 0; row < kTileRows; ++row) {
    for (int32_t i = 0; i < kTileColumns; ++i) {
      const auto column = static_cast<size_t>(coding_order(code(), i));
      decoded[row][static_cast<size_t>(i)] = value(levels[row * kTileColumns + column]);
    }
  }
}

}  // namespace kvq::weights
