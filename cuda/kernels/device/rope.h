// RoPE parameters as a kernel argument passed by value, without device memory.
#pragma once

#include "kernels/pages/records.h"

namespace kvq::cuda {

struct RopeArguments {
  int32_t pairing;  // kvq_rope
  int32_t begin;    // first channel that is rotated
  int32_t rotary_dim;
  float inv_freq[kMaxChannels / 2];

  // Channels count from `begin`.
  KVQ_HOST_DEVICE bool half() const { return pairing == 1; }
  KVQ_HOST_DEVICE int32_t first_channel(int32_t pair) const { return half() ? pair : 2 * pair; }
  KVQ_HOST_DEVICE int32_t pair_of(int32_t channel) const { return half() ? channel % (rotary_dim / 2) : channel / 2; }
  /// Returns the other channel of a rotated channel's pair.
  KVQ_HOST_DEVICE int32_t partner_of(int32_t channel) const {
    if (!half()) return channel ^ 1;
    return channel < rotary_dim / 2 ? channel + rotary_dim / 2 : channel - rotary_dim / 2;
  }
};

}  // namespace kvq::cuda
