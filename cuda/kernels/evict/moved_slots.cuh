// Slots of a page that stay after eviction, and their places in FP16 pages.
#pragma once

#include "kernels/evict/weigh.h"

#include <cuda_fp16.h>

namespace kvq::cuda {

class MovedSlots {
 public:
  __device__ __forceinline__ MovedSlots(const HeadShape& head, const DeviceMove& move)
      : head_(head), float16_(page_places(FormatCode{}, head)), move_(move) {}

  __device__ __forceinline__ bool has(int32_t slot) const { return (move_.slots >> slot & 1U) != 0; }

  /// Place of a slot in an FP16 page.
  struct Target {
    std::byte* page;
    int32_t slot;
  };
  __device__ __forceinline__ Target target_of(int32_t slot) const {
    const int32_t rank = move_.rank + __popc(move_.slots & ((1U << slot) - 1U));
    return {reinterpret_cast<std::byte*>(move_.target) + static_cast<int64_t>(rank / kSlots) * float16_.bytes,
            rank % kSlots};
  }
  /// Word of two neighbours from an even channel on.
  __device__ __forceinline__ static uint32_t* key_word(const Target& target, int32_t channel) {
    const int32_t chunk = key_chunk(CodeType::float16(), channel / 2 * (kSlots / 4) + target.slot / 4);
    return reinterpret_cast<uint32_t*>(target.page + chunk * 16) + target.slot % 4;
  }
  __device__ __forceinline__ __half* value_half(const Target& target, int32_t channel) const {
    return reinterpret_cast<__half*>(target.page + float16_.values_at + value_at(target.slot, channel));
  }

  /// A channel of keys, or of values.
  template <Side kSide>
  __device__ __forceinline__ __half* half_at(const Target& target, int32_t channel) const {
    if constexpr (kSide == Side::kValues) return value_half(target, channel);
    return reinterpret_cast<__half*>(key_word(target, channel - channel % 2)) + channel % 2;
  }

  /// Copies a side in FP16.
  __device__ __forceinline__ void copy_keys(const std::byte* keys, int32_t lane) const {
    if (!has(lane)) return;
    const Target target = target_of(lane);
    const Target source{const_cast<std::byte*>(keys), lane};
    for (int32_t channel = 0; channel < head_.keys; channel += 2) {
      *key_word(target, channel) = *key_word(source, channel);
    }
  }
  __device__ __forceinline__ void copy_values(const std::byte* values, int32_t lane) const {
    for (uint32_t left = move_.slots; left != 0; left &= left - 1) {
      const int32_t slot = __ffs(static_cast<int>(left)) - 1;
      const Target target = target_of(slot);
      for (int32_t channel = lane; channel < head_.values; channel += 32) {
        *value_half(target, channel) = *reinterpret_cast<const __half*>(values + value_at(slot, channel));
      }
    }
  }

 private:
  __device__ __forceinline__ int32_t value_at(int32_t slot, int32_t channel) const {
    const int32_t chunk =
        value_chunk(CodeType::float16(), head_.values, slot / 2 * (value_lanes(head_.values) / 4) + channel / 4);
    return chunk * 16 + channel % 4 * 4 + slot % 2 * 2;
  }

  const HeadShape head_;
  const PagePlaces float16_;
  const DeviceMove move_;
};

}  // namespace kvq::cuda
