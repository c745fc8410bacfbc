// Moves slots of FP16 pages to the front: what a step keeps of its tokens.
#pragma once

#include "formats/head_shape.h"

#include <cuda_runtime_api.h>
#include <cstdint>

namespace kvq::cuda {

struct CompactArguments {
  const uint64_t* pages;  // [heads, pages_of_head] addresses
  const int32_t* slots;   // [n] ascending; slots[i] moves to slot first + i, which is not behind it
  int32_t n;
  int32_t pages_of_head;
  int32_t first;
  HeadShape head;
};

cudaError_t launch_compact(const CompactArguments& arguments, int32_t heads, cudaStream_t stream);

}  // namespace kvq::cuda
