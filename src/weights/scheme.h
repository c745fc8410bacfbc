// Names and widths of quantization schemes of matrices.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kvq::weights {

/// Q-Palette, section 3; a trellis of single weights; and FP16, for comparison and for lossless layers: no levels, no
/// scales, no rotation, [16 columns, 16 rows] per tile.
enum class Family : uint8_t { kNuq, kVq, kTcq, kTcx, kFloat16 };

/// State bits of a trellis: a step reads this many bits of a tile's stream, the next step some new ones.
inline constexpr int32_t kStateBits = 16;
inline constexpr int32_t kStates = 1 << kStateBits;

/// Weights of a tile: 16 rows by 16 columns.
inline constexpr int32_t kTileRows = 16;
inline constexpr int32_t kTileColumns = 16;
inline constexpr int32_t kTileWeights = kTileRows * kTileColumns;

/// Panels of `out` rows: 16 rows each, of all columns.
constexpr int32_t panels_of(int32_t out) { return (out + kTileRows - 1) / kTileRows; }

/// Code of a tile: a family at one width. A small value.
struct Code {
  Family family;
  int32_t quarters;  // width in quarters of a bit per weight

  constexpr double bits() const { return quarters / 4.0; }
  /// Weights per step.
  constexpr int32_t dims() const { return family == Family::kVq || family == Family::kTcq ? 2 : 1; }
  constexpr int32_t steps() const { return kTileWeights / dims(); }
  /// Whether steps overlap.
  constexpr bool is_trellis() const { return family == Family::kTcq || family == Family::kTcx; }
  /// First bit of a step's window in the tile's circular stream.
  constexpr int32_t first_bit(int32_t step) const { return step * quarters * dims() / 4; }
  constexpr int32_t window_bits() const { return is_trellis() ? kStateBits : quarters * dims() / 4; }
  constexpr size_t tile_bytes() const { return static_cast<size_t>(kTileWeights / 32 * quarters); }

  constexpr bool operator==(const Code&) const = default;
};

/// Place of a step's weights in their tile: down the 16 rows, four columns at a time, so that four neighbouring bytes
/// of decoded levels are summed by an integer product of four. The two weights of a pair are four columns apart.
struct Place {
  int32_t row;
  int32_t column;
};
constexpr Place place_of(const Code& code, int32_t step, int32_t dim) {
  const int32_t columns = step / (4 * kTileRows) * 4 * code.dims();
  return {step / 4 % kTileRows, columns + 4 * dim + step % 4};
}
/// Step whose first weight is there.
constexpr int32_t step_of(const Code& code, const Place& place) {
  return place.column / (4 * code.dims()) * (4 * kTileRows) + 4 * place.row + place.column % 4;
}

/// Columns coded together, without feedback of each other's errors.
constexpr int32_t coded_together(const Code& code) { return code.is_trellis() ? kTileColumns : code.dims(); }

/// Column of a tile that is coded as number `index`.
constexpr int32_t coding_order(const Code& code, int32_t index) {
  if (code.family != Family::kVq) return index;
  return index / 8 * 8 + index % 2 * 4 + index / 2 % 4;  // pairs are four columns apart
}

/// Columns of a matrix in the same code.
struct Segment {
  Code code;
  int32_t first_column;
  int32_t columns;
};

/// All columns of a matrix, from left to right: one segment, or two halves.
class Segments {
 public:
  explicit Segments(const Segment& whole) : list_{whole}, count_(1) {}
  Segments(const Segment& left, const Segment& right) : list_{left, right}, count_(2) {}

  size_t size() const { return count_; }
  const Segment& operator[](size_t i) const { return list_[i]; }
  const Segment* begin() const { return list_.data(); }
  const Segment* end() const { return list_.data() + count_; }

 private:
  std::array<Segment, 2> list_;
  size_t count_;
};

/// Scheme of a whole matrix: one code, or two of neighbouring widths for the halves of each row (half-TCQ).
struct Scheme {
  Family family;
  int32_t quarters;

  constexpr double bits() const { return quarters / 4.0; }
  constexpr bool has_halves() const { return family == Family::kTcq && quarters % 2 != 0; }
  /// Segments of rows of `in` weights, a multiple of 64.
  Segments segments(int32_t in) const;

  constexpr bool operator==(const Scheme&) const = default;
};

/// Longest name with its final zero.
inline constexpr size_t kSchemeNameSize = 16;

/// "nuq-4", "vq-2.5", "tcq-2.75", "tcx-3" or "fp16".
std::array<char, kSchemeNameSize> scheme_name(const Scheme& scheme);
/// Index in kSchemes.
int32_t index_of(const Scheme& scheme);
/// Scheme of this name, if any.
std::optional<Scheme> parse_scheme(std::string_view name);
inline constexpr size_t kSchemeCount = 39;
inline constexpr Scheme kFloat16Scheme = {Family::kFloat16, 64};
/// All schemes by family and width.
inline constexpr std::array<Scheme, kSchemeCount> kSchemes = [] {
  std::array<Scheme, kSchemeCount> schemes{};
  size_t n = 0;
  for (const int32_t bits : {1, 2, 3, 4, 5, 6, 8}) schemes[n++] = {Family::kNuq, 4 * bits};
  for (int32_t quarters = 6; quarters <= 20; quarters += 2) schemes[n++] = {Family::kVq, quarters};
  for (int32_t quarters = 6; quarters <= 20; ++quarters) schemes[n++] = {Family::kTcq, quarters};
  for (int32_t quarters = 6; quarters <= 20; quarters += 2) schemes[n++] = {Family::kTcx, quarters};
  schemes[n++] = kFloat16Scheme;
  return schemes;
}();

}  // namespace kvq::weights
