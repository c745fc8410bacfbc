// Sides of pages of heads of any shape as numbers in shared memory, for kernels that need not be fast.
#pragma once

#include "kernels/prefill/unpack.cuh"

namespace kvq::cuda {

using AnySide = UnpackGeometry<kMaxChannels, false>;
using AnyMemory = UnpackMemory<kMaxChannels>;

/// A block's memory for one side at a time, which its first warp fills.
class AnySides {
 public:
  __device__ AnySides(const HeadShape& head, AnyMemory& memory)
      : head_(head), keys_{head_.keys}, values_{head_.values}, memory_(memory), lane_(this_lane()) {
    if (threadIdx.x == 0) make_copy_barrier(shared_address(&memory_.arrived));
    order_before_copies();
    __syncwarp();
  }

  /// Reads a side and rotates it back. Called by the first warp alone.
  template <Side kSide>
  __device__ void read(uint64_t page, FormatCode format) {
    constexpr bool kKeys = kSide == Side::kKeys;
    const PageLayout layout{page_places(format, head_), format, format.group_shift()};
    const AnySide& geometry = kKeys ? keys_ : values_;
    const MadeSide<AnySide> made{geometry, kMaxChannels, lane_, memory_.made};
    const int32_t begin = kKeys ? 0 : layout.values_at;
    if (format.code(kKeys).is_float16()) {
      copy<kSide>(reinterpret_cast<const std::byte*>(page) + begin);
    } else if constexpr (kKeys) {
      made.decode_keys(page_side(geometry, layout, lane_, load(page, layout, begin, layout.keys.bytes)));
    } else {
      made.decode_values(page_side(geometry, layout, lane_, load(page, layout, begin, layout.values.bytes)));
    }
    if (kKeys ? format.hadamard_keys() : format.hadamard_values()) {
      static_assert(sizeof(memory_.side) >= kRotatedRows * kMaxChannels * sizeof(float));
      auto* scratch = reinterpret_cast<float*>(memory_.side);  // codes are no longer needed
      rotate_side<kSide>(geometry, kPlane, scratch, memory_.made);
    }
    __syncwarp();
  }

  /// A number of the side that was read last.
  template <Side kSide>
  __device__ __half* number(int32_t slot, int32_t channel) const {
    const int32_t at = kSide == Side::kKeys ? plane_chunk_at(kPlane, kSlots, slot, channel) + channel % 8 * 2
                                            : value_chunk_at(slot, channel) + slot % 8 * 2;
    return reinterpret_cast<__half*>(memory_.made + at);
  }

 private:
  static constexpr int32_t kPlane = plane_channels(kMaxChannels);

  /// Copies a side that begins `at` bytes into a page to shared memory, and returns its shared address.
  __device__ uint32_t load(uint64_t page, const PageLayout& layout, int32_t at, int32_t bytes) {
    const bool mixed = layout.format.both_have_gains();
    const uint32_t to = shared_address(memory_.side);
    const uint32_t arrived = shared_address(&memory_.arrived);
    order_before_copies();
    __syncwarp();
    start_copy(to, page + static_cast<uint64_t>(mixed ? 0 : at), mixed ? layout.bytes : bytes, arrived, lane_.index, 0);
    wait_copy(arrived, parity_);
    parity_ ^= 1U;
    return to + static_cast<uint32_t>(mixed ? at : 0);
  }

  /// Copies a side in FP16, a word of two neighbours at a time: channels of keys, slots of values.
  template <Side kSide>
  __device__ void copy(const std::byte* side) const {
    constexpr CodeType kCode = CodeType::float16();
    constexpr bool kKeys = kSide == Side::kKeys;
    const int32_t values = head_.values;
    for (int32_t i = lane_.index; i < kSlots / 2 * (kKeys ? head_.keys : values); i += 32) {
      const int32_t slot = kKeys ? i % kSlots : i / values * 2;
      const int32_t channel = kKeys ? i / kSlots * 2 : i % values;
      const int32_t chunk = kKeys ? key_chunk(kCode, channel / 2 * (kSlots / 4) + slot / 4)
                                  : value_chunk(kCode, values, slot / 2 * (value_lanes(values) / 4) + channel / 4);
      const int32_t word = kKeys ? slot % 4 : channel % 4;
      *reinterpret_cast<uint32_t*>(number<kSide>(slot, channel)) =
          *(reinterpret_cast<const uint32_t*>(side + chunk * 16) + word);
    }
  }

  const HeadShape head_;
  const AnySide keys_;
  const AnySide values_;
  AnyMemory& memory_;
  const Lane lane_;
  uint32_t parity_ = 0;
};

}  // namespace kvq::cuda
