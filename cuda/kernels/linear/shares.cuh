// Which blocks of threads multiply by which of the matrices of a launch.
#pragma once

#include "kernels/linear/linear.h"

#include <cstddef>
#include <cstdint>

namespace kvq::cuda {

/// A matrix and how the blocks of threads that multiply by it divide its panels.
struct LinearShare {
  LinearProduct product;
  int32_t panels;  // of a block of threads
  int32_t more;    // first blocks of threads that have one panel more
};
struct LinearShares {
  int32_t ends[kMostTogether];  // behind the blocks of threads of each; there is none behind the last matrix
  LinearShare of[kMostTogether];
};

/// Divides blocks of threads of no more than so many panels among matrices.
inline LinearShares share_blocks(LinearProducts products, int32_t panels) {
  LinearShares shares{};
  int32_t before = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const int32_t all = panels_of(products[i]);
    const int32_t blocks = up_to(all, panels);
    before += blocks;
    shares.ends[i] = before;
    shares.of[i] = {.product = products[i], .panels = all / blocks, .more = all % blocks};
  }
  for (size_t i = products.size() - 1; i < kMostTogether; ++i) shares.ends[i] = INT32_MAX;
  return shares;
}

/// \param block  in: of the launch; out: of the matrix.
__device__ __forceinline__ const LinearShare& share_of(const LinearShares& shares, int32_t& block) {
  int32_t before = 0;
#pragma unroll
  for (size_t i = 0; i + 1 < kMostTogether; ++i) before += block >= shares.ends[i] ? 1 : 0;
  if (before > 0) block -= shares.ends[before - 1];
  return shares.of[before];
}

}  // namespace kvq::cuda
