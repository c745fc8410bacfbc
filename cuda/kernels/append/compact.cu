// Moves slots of FP16 pages to the front, a block per head. A thread moves the same channels of all slots in their
// order, so that none is overwritten before it has moved.
#include "kernels/append/compact.h"

#include "kernels/pages/order.h"
#include "kernels/pages/records.h"

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = 256;

/// Word of a slot's channels `2 * pair` and the next, in a page's keys.
__device__ __forceinline__ int32_t key_word(int32_t slot, int32_t pair) {
  const int32_t word = pair * kSlots + slot;
  return 4 * key_chunk(CodeType::float16(), word / 4) + word % 4;
}

/// FP16 number of a slot's channel in a page's values.
__device__ __forceinline__ int32_t value_half(int32_t head_dim, int32_t slot, int32_t channel) {
  const int32_t word = slot / 2 * value_lanes(head_dim) + channel;
  return 8 * value_chunk(CodeType::float16(), head_dim, word / 4) + word % 4 * 2 + slot % 2;
}

__global__ void __launch_bounds__(kThreads) compact_kernel(const __grid_constant__ CompactArguments arguments) {
  const HeadShape& head = arguments.head;
  const uint64_t* pages = arguments.pages + static_cast<int64_t>(blockIdx.x) * arguments.pages_of_head;
  const int32_t values_at = page_places(FormatCode{}, head).values_at;
  const int32_t pairs = (head.keys + 1) / 2;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < pairs + head.values; i += kThreads) {
    for (int32_t n = 0; n < arguments.n; ++n) {
      const int32_t from = arguments.slots[n];
      const int32_t to = arguments.first + n;
      auto* source = reinterpret_cast<std::byte*>(pages[from / kSlots]);
      auto* target = reinterpret_cast<std::byte*>(pages[to / kSlots]);
      if (i < pairs) {
        reinterpret_cast<uint32_t*>(target)[key_word(to % kSlots, i)] =
            reinterpret_cast<const uint32_t*>(source)[key_word(from % kSlots, i)];
      } else {
        reinterpret_cast<uint16_t*>(target + values_at)[value_half(head.values, to % kSlots, i - pairs)] =
            reinterpret_cast<const uint16_t*>(source + values_at)[value_half(head.values, from % kSlots, i - pairs)];
      }
    }
  }
}

}  // namespace

cudaError_t launch_compact(const CompactArguments& arguments, int32_t heads, cudaStream_t stream) {
  compact_kernel<<<static_cast<uint32_t>(heads), kThreads, 0, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
