// Shared memory of a block that writes any page.
#pragma once

#include "kernels/append/centres.cuh"
#include "kernels/append/gains.cuh"

namespace kvq::cuda {

/// FP16 page and scratch space of a block. Key rows are padded by a word so that neither channels nor slots conflict in
/// banks.
struct Layout {
  HeadShape head;
  PagesWritten pages;

  __host__ __device__ int32_t lanes() const { return value_lanes(head.values); }
  __host__ __device__ int32_t key_words() const {
    const int32_t words = head.keys / 2 * (kSlots + 1);
    const int32_t codes = pages.search_lanes > 0 ? GainLayout::code_words(head.keys) : 0;
    return words > codes ? words : codes;
  }
  __host__ __device__ int32_t value_words() const { return kSlots / 2 * lanes(); }
  __host__ __device__ static constexpr int32_t row_floats(int32_t channels) { return channels + 1; }
  /// Angles of the tokens [slots][pairs]{cos, sin}, later one side as floats [slots][channels + 1].
  __host__ __device__ int32_t scratch_words() const { return kSlots * row_floats(head.largest()); }
  __host__ __device__ int32_t shared_scratch_words() const { return pages.scratch_apart != 0 ? 0 : scratch_words(); }
  __host__ __device__ int32_t groups() const {
    const int32_t of_values = kSlots * ((head.values + 31) / 32);
    return head.keys > of_values ? head.keys : of_values;
  }
  __host__ __device__ int32_t pairs() const { return head.keys / 2; }
  __host__ __device__ GainLayout gains(int32_t channels) const { return {channels, pages.search_lanes}; }
  /// Offset of the memory for gains, 16-byte aligned.
  __host__ __device__ int32_t gain_begin() const {
    return (key_words() + value_words() + shared_scratch_words() + 2 * groups() + pairs() + 3) / 4 * 4;
  }
  /// Offset of the memory for trained centres.
  __host__ __device__ int32_t centre_begin() const {
    return gain_begin() + (pages.gains != 0 ? gains(head.largest()).words() : 0);
  }
  __host__ __device__ int32_t bytes() const {
    return 4 * (centre_begin() + (pages.centres != 0 ? CentreTaker<true>::words(head.keys) : 0));
  }
};

}  // namespace kvq::cuda
