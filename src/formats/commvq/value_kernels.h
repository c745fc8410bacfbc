// The two hot loops of encoding and training values, for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// Vectors encoded together: the columns of a product.
inline constexpr size_t kValueBlock = 32;

/// Padding of bit arrays, so that kernels need no remainders.
inline constexpr size_t kValueBitPadding = 32;

/// Search for one vector's code w = offset + Σ of the rows c_n of C with a set bit, where w / inverse_scale
/// approximates x. Arrays are [bits], padded; a padding element has `step` 0 and `half_norm` > 0.
struct FlipSearch {
  size_t bits = 0;                   // including padding
  const float* wanted = nullptr;     // c_n · x
  const float* half_norm = nullptr;  // |c_n|² / 2
  float* decoded = nullptr;          // c_n · w
  float* step = nullptr;             // change of bit n when flipped: +1 or −1
};

struct Flip {
  float gain;   // half the decrease of the squared distance of w and inverse_scale · x
  int32_t bit;  // the lowest bit of largest gain
};

/// A matrix or its transpose: row r has its element d at r · row_stride + d · stride.
struct MatrixView {
  const float* data;
  size_t row_stride;
  size_t stride = 1;
};

/// All kernels round every product and every sum of an element separately and in the same order, so that instruction
/// sets agree to the last bit.
struct ValueKernels {
  const char* name;

  /// out[r][i] = Σ_d matrix[r][d] · columns[d][i] for `rows` rows and kValueBlock columns.
  void (*multiply)(const MatrixView& matrix, size_t rows, size_t depth, const float* columns, float* out);

  /// Add `change` times a row of the Gram matrix to `search.decoded`, then find the best flip.
  Flip (*best_flip)(const FlipSearch& search, const float* gram_row, float change, float inverse_scale);
};

/// Kernels that this processor can run, best first; the last one runs everywhere.
std::span<const ValueKernels* const> value_kernels();

}  // namespace kvq
