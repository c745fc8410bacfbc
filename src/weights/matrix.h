// A matrix in packed form. The layout is that of files, and what kernels read.
#pragma once

#include "core/aligned_bytes.h"
#include "core/memory.h"
#include "weights/scheme.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq::weights {

/// Inputs come in multiples of this many.
inline constexpr int32_t kInputMultiple = 64;
/// The largest matrices.
inline constexpr int32_t kMostRows = 1 << 24;
inline constexpr int32_t kMostColumns = 1 << 20;
/// Inputs that share a scale when activations become integers.
inline constexpr int32_t kActivationBlock = 256;
/// Bytes after the codes of a matrix that may be read, and mean nothing.
inline constexpr size_t kCodePadding = 64;

/// Bytes of one panel, 16 rows of all columns: its tiles from left to right.
size_t panel_bytes(const Scheme& scheme, int32_t in);

/// What the arrays of a matrix have.
struct MatrixShape {
  Scheme scheme;
  int32_t out;
  int32_t in;
  bool has_bias = false;

  size_t code_bytes() const { return static_cast<size_t>(panels_of(out)) * panel_bytes(scheme, in); }
  bool is_rotated() const { return scheme.family != Family::kFloat16; }  // and has scales
  size_t row_scales() const { return is_rotated() ? static_cast<size_t>(out) : 0; }
  size_t signs() const { return is_rotated() ? static_cast<size_t>(in) / 8 : 0; }
  /// Of codes, scales and signs.
  uint64_t weight_bytes() const;
  uint64_t bias_bytes() const { return has_bias ? static_cast<uint64_t>(out) * sizeof(float) : 0; }
  /// Of everything.
  uint64_t bytes() const { return weight_bytes() + bias_bytes(); }
  /// What a Matrix allocates.
  uint64_t allocated_bytes() const;
};

/// W ≈ diag(scale · row_scales) · Q · R: Q holds unit · level of every weight, R rotates the inputs (rotation.h). In
/// FP16 it is Q alone, without scales and signs.
struct Matrix {
  Matrix(Allocator& allocator, const Scheme& scheme, int32_t out, int32_t in);

  Scheme scheme;
  int32_t out;
  int32_t in;
  float scale = 1.0F;
  double error = 0.0;           // ‖Ŵ − W‖² / ‖W‖² when it was quantized
  double proxy_error = 0.0;     // tr(E H Eᵀ) / tr(W H Wᵀ) then; 0 without a Hessian
  AlignedBytes codes;           // [panels][panel_bytes], kCodePadding
  Vector<uint16_t> row_scales;  // FP16, [out]; rows beyond `out` of the last panel mean nothing
  Vector<uint8_t> signs;        // of the rotation, [in / 8]: bit i of byte j negates input 8j + i
  Vector<float> bias;           // [out], or empty

  Segments segments;
  MatrixShape shape() const { return {scheme, out, in, !bias.empty()}; }
  size_t code_bytes() const { return shape().code_bytes(); }
  std::span<uint8_t> panel(int32_t index);
  std::span<const uint8_t> panel(int32_t index) const;
  /// Of codes, scales and signs.
  uint64_t weight_bytes() const { return shape().weight_bytes(); }
  /// Bits a weight of these.
  double true_bits() const;
  /// Of its arrays.
  uint64_t bytes() const { return shape().bytes(); }
};

/// What a matrix is, wherever its bytes are.
struct MatrixInfo {
  explicit MatrixInfo(const Matrix& matrix);
  /// What it allocates.
  static uint64_t allocated_bytes(const MatrixShape& shape) { return shape.signs(); }

  Scheme scheme;
  int32_t out;
  int32_t in;
  bool has_bias;
  uint64_t bytes;  // of codes, scales, signs and bias
  double bits;     // a weight, without the bias
  double error;
  double proxy_error;
  Vector<uint8_t> signs;  // of the rotation; empty in FP16
};

/// Rows of the matrix as it was before it was rotated, [count, in].
void dequantize_rows(const Matrix& matrix, int32_t first, int32_t count, std::span<float> rows);

}  // namespace kvq::weights
