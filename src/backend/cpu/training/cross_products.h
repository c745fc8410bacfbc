// Sums of products over many tokens, on all threads.
#pragma once

#include "core/memory.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "formats/commvq/value_kernels.h"

#include <algorithm>
#include <cstddef>
#include <span>

namespace kvq {

/// Σ over tokens of left(token, row) · right(token, column): [rows][columns], in its own order of summation. `kLower`:
/// compute only the lower triangle of a symmetric matrix, in blocks of columns from the diagonal; the rest is zero.
template <bool kLower, typename Left, typename Right>
void cross_products(Allocator& allocator, Parallel& parallel, size_t tokens, size_t rows, size_t columns,
                    const Left& left, const Right& right, std::span<double> sums) {
  constexpr size_t kChunk = 512;  // tokens: keeps float sums short and a block of columns in the cache
  const ValueKernels& kernels = *value_kernels().front();
  std::fill(sums.begin(), sums.end(), 0.0);
  Vector<float> transposed(rows * kChunk, allocator);
  for (size_t start = 0; start < tokens; start += kChunk) {
    const size_t n = std::min(kChunk, tokens - start);
    const auto transpose = [&](size_t block, float*) noexcept {
      const size_t end = std::min(rows, (block + 1) * kValueBlock);
      for (size_t t = 0; t < n; ++t) {
        for (size_t r = block * kValueBlock; r < end; ++r) transposed[r * kChunk + t] = left(start + t, r);
      }
    };
    for_each_block(parallel, allocator, (rows + kValueBlock - 1) / kValueBlock, 0, transpose);
    const auto add_columns = [&](size_t block, float* workspace) noexcept {
      float* gathered = workspace;
      float* products = workspace + kChunk * kValueBlock;
      const size_t first = block * kValueBlock;
      const size_t width = std::min(kValueBlock, columns - first);
      const size_t top = kLower ? first : 0;
      for (size_t t = 0; t < n; ++t) {
        for (size_t i = 0; i < kValueBlock; ++i) {
          gathered[t * kValueBlock + i] = i < width ? right(start + t, first + i) : 0.0F;
        }
      }
      kernels.multiply({transposed.data() + top * kChunk, kChunk}, rows - top, n, gathered, products);
      for (size_t r = top; r < rows; ++r) {
        for (size_t i = 0; i < width; ++i) {
          sums[r * columns + first + i] += static_cast<double>(products[(r - top) * kValueBlock + i]);
        }
      }
    };
    for_each_block(parallel, allocator, (columns + kValueBlock - 1) / kValueBlock, (kChunk + rows) * kValueBlock,
                   add_columns);
  }
}

}  // namespace kvq
