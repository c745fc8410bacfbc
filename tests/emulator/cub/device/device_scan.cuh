#pragma once

#include <driver_types.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace cub {

struct DeviceScan {
  template <typename From, typename To>
  static cudaError_t ExclusiveSum(void* scratch, size_t& bytes, From from, To to, int n,
                                  cudaStream_t /*stream*/ = nullptr) {
    bytes = std::max<size_t>(bytes, 1);
    if (scratch != nullptr) std::exclusive_scan(from, from + n, to, 0);
    return cudaSuccess;
  }
};

}  // namespace cub
