#include "weights/matrix.h"

#include "core/float16.h"
#include "weights/codebook.h"
#include "weights/rotation.h"

#include <cstring>

namespace kvq::weights {

size_t panel_bytes(const Scheme& scheme, int32_t in) {
  size_t bytes = 0;
  for (const Segment& segment : scheme.segments(in)) {
    bytes += static_cast<size_t>(segment.columns / kTileColumns) * segment.code.tile_bytes();
  }
  return bytes;
}

Matrix::Matrix(Allocator& allocator, const Scheme& scheme_, int32_t out_, int32_t in_)
    : scheme(scheme_),
      out(out_),
      in(in_),
      codes(allocator),
      row_scales(allocator),
      signs(allocator),
      bias(allocator),
      segments(scheme_.segments(in_)) {
  codes.resize(size(shape().code_bytes() + kCodePadding));
  row_scales.resize(shape().row_scales());
  signs.resize(shape().signs());
}

std::span<uint8_t> Matrix::panel(int32_t index) {
  const size_t bytes = panel_bytes(scheme, in);
  return {reinterpret_cast<uint8_t*>(codes.data()) + static_cast<size_t>(index) * bytes, bytes};
}

std::span<const uint8_t> Matrix::panel(int32_t index) const {
  const size_t bytes = panel_bytes(scheme, in);
  return {reinterpret_cast<const uint8_t*>(codes.data()) + static_cast<size_t>(index) * bytes, bytes};
}

uint64_t MatrixShape::weight_bytes() const {
  const size_t scales = is_rotated() ? row_scales() * sizeof(uint16_t) + sizeof(Matrix::scale) : 0;
  return code_bytes() + scales + signs();
}

uint64_t MatrixShape::allocated_bytes() const {
  return AlignedBytes::bytes_of(code_bytes() + kCodePadding) + row_scales() * sizeof(uint16_t) + signs() + bias_bytes();
}

double Matrix::true_bits() const {
  return 8.0 * static_cast<double>(weight_bytes()) / (static_cast<double>(out) * static_cast<double>(in));
}

MatrixInfo::MatrixInfo(const Matrix& matrix)
    : scheme(matrix.scheme),
      out(matrix.out),
      in(matrix.in),
      has_bias(!matrix.bias.empty()),
      bytes(matrix.bytes()),
      bits(matrix.true_bits()),
      error(matrix.error),
      proxy_error(matrix.proxy_error),
      signs(matrix.signs) {}

namespace {

/// Dequantized rows of a panel, level · unit, [16, in].
void decode_panel(const Matrix& matrix, int32_t panel, const auto& store) {
  std::span<const uint8_t> bytes = matrix.panel(panel);
  std::array<int8_t, kTileWeights> levels{};
  for (const Segment& segment : matrix.segments) {
    const Codebook& codebook = codebook_of(segment.code);
    for (int32_t i = 0; i < segment.columns; i += kTileColumns) {
      decode_tile(codebook, bytes.first(segment.code.tile_bytes()), levels);
      bytes = bytes.subspan(segment.code.tile_bytes());
      for (int32_t k = 0; k < kTileWeights; ++k) {
        store(k / kTileColumns, segment.first_column + i + k % kTileColumns,
              codebook.unit * static_cast<float>(levels[static_cast<size_t>(k)]));
      }
    }
  }
}

void decode_halves(const Matrix& matrix, int32_t panel, const auto& store) {
  const std::span<const uint8_t> bytes = matrix.panel(panel);
  for (int32_t i = 0; i < matrix.in * kTileRows; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, bytes.data() + 2 * static_cast<size_t>(i), sizeof(half));
    store(i % kTileRows, i / kTileRows, from_float16(half));
  }
}

}  // namespace

void dequantize_rows(const Matrix& matrix, int32_t first, int32_t count, std::span<float> rows) {
  const auto in = static_cast<size_t>(matrix.in);
  const bool rotated = matrix.scheme.family != Family::kFloat16;
  for (int32_t panel = first / kTileRows; panel * kTileRows < first + count; ++panel) {
    const auto store = [&](int32_t row, int32_t column, float value) {
      const int32_t at = panel * kTileRows + row - first;
      if (at >= 0 && at < count) rows[static_cast<size_t>(at) * in + static_cast<size_t>(column)] = value;
    };
    if (rotated) {
      decode_panel(matrix, panel, store);
    } else {
      decode_halves(matrix, panel, store);
    }
  }
  if (!rotated) return;
  for (int32_t row = 0; row < count; ++row) {
    const std::span<float> values = rows.subspan(static_cast<size_t>(row) * in, in);
    const float scale = matrix.scale * from_float16(matrix.row_scales[static_cast<size_t>(first + row)]);
    for (float& value : values) value *= scale;
    rotate_back(matrix.signs, values);
  }
}

}  // namespace kvq::weights
