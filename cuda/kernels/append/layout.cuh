// Shared memory of a block that writes any page.
#pragma once

#include "kernels/append/centres.cuh"
#include "kernels/append/gains.cuh"

namespace kvq::cuda {

/// FP16 page and scratch space of a block. Key rows are padded by a word so that neither channels nor slots conflict in
/// banks.
struct Layout {
  int32_t head_dim;
  PagesWritten pages;

  __host__ __device__ int32_t lanes() const { return value_lanes(head_dim); }
  __host__ __device__ int32_t key_words() const {
    const int32_t words = head_dim / 2 * (kSlots + 1);
    const int32_t codes = pages.search_lanes > 0 ? GainLayout::code_words(head_dim) : 0;
    return words > codes ? words : codes;
  }
  __host__ __device__ int32_t value_words() const { return kSlots / 2 * lanes(); }
  __host__ __device__ int32_t row_floats() const { return head_dim + 1; }
  /// Angles of the tokens [slots][pairs]{cos, sin}, later one side as floats [slots][head_dim + 1].
  __host__ __device__ int32_t scratch_words() const { return kSlots * row_floats(); }
  __host__ __device__ int32_t groups() const {
    return head_dim > kSlots * ((head_dim + 31) / 32) ? head_dim : kSlots * ((head_dim + 31) / 32);
  }
  __host__ __device__ GainLayout gains() const { return {head_dim, pages.search_lanes}; }
  /// Offset of the memory for gains, 16-byte aligned.
  __host__ __device__ int32_t gain_begin() const {
    return (key_words() + value_words() + scratch_words() + 2 * groups() + kMaxHeadDim / 2 + 3) / 4 * 4;
  }
  /// Offset of the memory for trained centres.
  __host__ __device__ int32_t centre_begin() const { return gain_begin() + (pages.gains != 0 ? gains().words() : 0); }
  __host__ __device__ int32_t bytes() const {
    return 4 * (centre_begin() + (pages.centres != 0 ? CentreTaker<true>::words(head_dim) : 0));
  }
};

}  // namespace kvq::cuda
