// Assignment of thread blocks to the matrices of a launch.
#pragma once

#include "kernels/linear/linear.h"

#include <cstddef>
#include <cstdint>

namespace kvq::cuda {

/// A matrix and the division of its panels among thread blocks.
struct LinearShare {
  LinearProduct product;
  int32_t panels;  // per thread block
  int32_t more;    // leading thread blocks with one panel more
};
struct LinearShares {
  int32_t ends[kMostTogether];  // end of each matrix's thread blocks, except the last matrix's
  LinearShare of[kMostTogether];
};

/// Divides thread blocks of at most `panels` panels among matrices.
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

/// \param block  in: index in the launch; out: index within the matrix.
__device__ __forceinline__ const LinearShare& share_of(const LinearShares& shares, int32_t& block) {
  int32_t before = 0;
#pragma unroll
  for (size_t i = 0; i + 1 < kMostTogether; ++i) before += block >= shares.ends[i] ? 1 : 0;
  if (before > 0) block -= shares.ends[before - 1];
  return shares.of[before];
}

}  // namespace kvq::cuda
