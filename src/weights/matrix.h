// Matrix in packed form, with the layout of files and of CPU kernels.
#pragma once

#include "core/memory.h"
#include "weights/scheme.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq::weights {

/// Inputs are multiples of this.
inline constexpr int32_t kInputMultiple = 64;
/// Limits of matrices.
inline constexpr int32_t kMostRows = 1 << 24;
inline constexpr int32_t kMostColumns = 1 << 20;
/// Inputs that share a scale of integer activations.
inline constexpr int32_t kActivationBlock = 256;
/// Readable padding bytes after the codes of a matrix.
inline constexpr size_t kCodePadding = 64;

/// Bytes of one panel, 16 rows of all columns: its tiles from left to right.
size_t panel_bytes(const Scheme& scheme, int32_t in);

/// Sizes of a matrix's arrays.
struct MatrixShape {
  Scheme scheme;
  int32_t out;
  int32_t in;
  bool has_bias = false;

  uint64_t code_bytes() const { return static_cast<uint64_t>(panels_of(out)) * panel_bytes(scheme, in); }
  bool is_rotated() const { return scheme.family != Family::kFloat16; }  // and has scales
  size_t row_scales() const { return is_rotated() ? static_cast<size_t>(out) : 0; }
  size_t signs() const { return is_rotated() ? static_cast<size_t>(in) / 8 : 0; }
  /// Bytes of codes, scales and signs.
  uint64_t weight_bytes() const;
  uint64_t bias_bytes() const { return has_bias ? static_cast<uint64_t>(out) * sizeof(float) : 0; }
  /// Bytes of everything, bias included.
  uint64_t bytes() const { return weight_bytes() + bias_bytes(); }
  /// Bytes that a Matrix allocates.
  uint64_t allocated_bytes() const;
};

/// W ≈ diag(scale · row_scales) · Q · R: Q is unit · level of every weight, R rotates the inputs (rotation.h). FP16 has
/// Q alone, without scales and signs.
struct Matrix {
  Matrix(Allocator& allocator, const Scheme& scheme, int32_t out, int32_t in);

  Scheme scheme;
  int32_t out;
  int32_t in;
  float scale = 1.0F;
  double error = 0.0;           // ‖Ŵ − W‖² / ‖W‖² when it was quantized
  double proxy_error = 0.0;     // tr(E H Eᵀ) / tr(W H Wᵀ) then; 0 without a Hessian
  AlignedBytes codes;           // [panels][panel_bytes], kCodePadding
  Vector<uint16_t> row_scales;  // FP16, [out]; rows of the last panel beyond `out` are undefined
  Vector<uint8_t> signs;        // of the rotation, [in / 8]: bit i of byte j negates input 8j + i
  Vector<float> bias;           // [out], or empty

  Segments segments;
  MatrixShape shape() const { return {scheme, out, in, !bias.empty()}; }
  size_t code_bytes() const { return size(shape().code_bytes()); }
  std::span<uint8_t> panel(int32_t index);
  std::span<const uint8_t> panel(int32_t index) const;
  /// Bytes of codes, scales and signs.
  uint64_t weight_bytes() const { return shape().weight_bytes(); }
  /// Bits per weight of these.
  double true_bits() const;
  /// Bytes of its arrays.
  uint64_t bytes() const { return shape().bytes(); }
};

/// Description of a matrix, wherever its bytes are.
struct MatrixInfo {
  explicit MatrixInfo(const Matrix& matrix);
  /// Bytes that it allocates.
  static uint64_t allocated_bytes(const MatrixShape& shape) { return shape.signs(); }

  Scheme scheme;
  int32_t out;
  int32_t in;
  bool has_bias;
  uint64_t bytes;  // of codes, scales, signs and bias
  double bits;     // per weight, without the bias
  double error;
  double proxy_error;
  Vector<uint8_t> signs;  // of the rotation; empty in FP16
};

/// Dequantize rows and undo the rotation, [count, in].
void dequantize_rows(const Matrix& matrix, int32_t first, int32_t count, std::span<float> rows);

}  // namespace kvq::weights
