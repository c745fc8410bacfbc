// The two loops that encoding and training values spend their time in, for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// Vectors that are encoded together: the columns of a product.
inline constexpr size_t kValueBlock = 32;

/// Arrays of bits are padded to a multiple of this, so that kernels need no remainders.
inline constexpr size_t kValueBitPadding = 32;

/// The search for one vector's code w = offset + Σ of the rows c_n of C whose bit is set, where w / inverse_scale is to
/// approach x. Arrays are [bits], padded; a padding element has `step` 0 and `half_norm` > 0.
struct FlipSearch {
  size_t bits = 0;                   // with padding
  const float* wanted = nullptr;     // c_n · x
  const float* half_norm = nullptr;  // |c_n|² / 2
  float* decoded = nullptr;          // c_n · w
  float* step = nullptr;             // what flipping bit n adds to it: +1 or −1
};

struct Flip {
  float gain;   // half of what it takes off the squared distance of w and inverse_scale · x
  int32_t bit;  // the lowest one of the largest gain
};

/// A matrix, or its transpose: row r has its element d at r · row_stride + d · stride.
struct MatrixView {
  const float* data;
  size_t row_stride;
  size_t stride = 1;
};

/// All kernels round every product and every sum of an element on its own and in the same order, so that instruction
/// sets agree to the last bit.
struct ValueKernels {
  const char* name;

  /// out[r][i] = Σ_d matrix[r][d] · columns[d][i] for `rows` rows and kValueBlock columns.
  void (*multiply)(const MatrixView& matrix, size_t rows, size_t depth, const float* columns, float* out);

  /// Add `change` times a row of the Gram matrix to `search.decoded`, then find the best flip.
  Flip (*best_flip)(const FlipSearch& search, const float* gram_row, float change, float inverse_scale);
};

/// What the processor at hand can run, best first; the last one runs everywhere.
std::span<const ValueKernels* const> value_kernels();

}  // namespace kvq
