// Votes of pages' tokens for the experts of a router.
#pragma once

#include "formats/router/router.h"
#include "kernels/device/rope.h"

#include <cuda_runtime_api.h>
#include <cstdint>

namespace kvq::cuda {

/// Network of one group of layers in device memory; see RouterNetwork.
struct VotingNetwork {
  const float* w1;
  const float* w2;
  const float* w3;
};

/// Full FP16 page, as PageToRoute.
struct VotingPage {
  const std::byte* data;
  int32_t positions[kSlots];
  const float* key_factors;  // or null
};

struct VoteArguments {
  const VotingPage* pages;  // [n_pages], read by the device
  int32_t n_pages;
  int32_t n_experts;
  int32_t head_dim;
  RopeArguments rope;
  VotingNetwork network;
  int32_t* counts;  // [n_pages, n_experts], written by the device
};

cudaError_t prepare_vote();
cudaError_t launch_vote(const VoteArguments& arguments, cudaStream_t stream);

}  // namespace kvq::cuda
