// One page per warp, one token per lane. Sums follow the host's order: votes differ from the host's only by rounding of
// angles and exponentials.
#include "kernels/append/vote.h"

#include "kernels/device/rope.cuh"

#include <cuda_fp16.h>

namespace kvq::cuda {
namespace {

constexpr int32_t kWarps = 2;
constexpr uint32_t kAll = 0xFFFFFFFFU;

/// Padded row length that keeps lanes free of bank conflicts.
__host__ __device__ constexpr int32_t row_stride(int32_t head_dim) { return head_dim + 1; }

size_t shared_bytes(int32_t head_dim) { return sizeof(float) * kWarps * kSlots * row_stride(head_dim); }

/// Stores the lane's key before RoPE to `key`.
__device__ void load_key(const VoteArguments& arguments, const VotingPage& page, int32_t slot, float* key) {
  const auto* words = reinterpret_cast<const __half2*>(page.data);
  for (int32_t row = 0; row < arguments.head_dim / 2; ++row) {
    const int32_t chunk = key_chunk(CodeType::float16(), row * (kSlots / 4) + slot / 4);
    const float2 two = __half22float2(words[4 * chunk + slot % 4]);
    key[2 * row] = two.x;
    key[2 * row + 1] = two.y;
  }
  for (int32_t channel = 0; page.key_factors != nullptr && channel < arguments.head_dim; ++channel) {
    key[channel] *= __ldg(page.key_factors + channel);
  }
  const RopeArguments& rope = arguments.rope;
  for (int32_t pair = 0; pair < rope.rotary_dim / 2; ++pair) {
    const float2 rotation =
        cos_sin(static_cast<double>(page.positions[slot]) * static_cast<double>(rope.inv_freq[pair]));
    const int32_t first = rope.first_channel(pair);
    const int32_t second = rope.partner_of(first);
    const float x = key[first];
    const float y = key[second];
    key[first] = x * rotation.x + y * rotation.y;
    key[second] = y * rotation.x - x * rotation.y;
  }
}

/// Equals the host's dot_product, for two rows of weights.
__device__ float2 dot_products(const float* key, const float* a, const float* b, int32_t n) {
  float sums[2][8] = {};
  for (int32_t i = 0; i < n; i += 8) {  // head sizes are multiples of eight
#pragma unroll
    for (int32_t lane = 0; lane < 8; ++lane) {
      sums[0][lane] += key[i + lane] * __ldg(a + i + lane);
      sums[1][lane] += key[i + lane] * __ldg(b + i + lane);
    }
  }
  const auto whole = [](const float(&s)[8]) {
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
  };
  return {whole(sums[0]), whole(sums[1])};
}

__device__ int32_t preferred(const VoteArguments& arguments, const float* key) {
  const int32_t experts = arguments.n_experts;
  float logits[kMaxExperts] = {};
  for (int32_t from = 0; from < experts; ++from) {
    const int32_t row = from * arguments.head_dim;
    const float2 both = dot_products(key, arguments.network.w1 + row, arguments.network.w2 + row, arguments.head_dim);
    const float gate = both.x;
    const float silu = gate / (1.0F + static_cast<float>(exp(static_cast<double>(-gate))));
    const float hidden = silu * both.y;
#pragma unroll
    for (int32_t to = 0; to < kMaxExperts; ++to) {
      if (to < experts) logits[to] += hidden * __ldg(arguments.network.w3 + from * experts + to);
    }
  }
  int32_t best = 0;
  float highest = logits[0];
#pragma unroll
  for (int32_t to = 1; to < kMaxExperts; ++to) {
    if (to < experts && logits[to] > highest) {
      highest = logits[to];
      best = to;
    }
  }
  return best;
}

__global__ void __launch_bounds__(32 * kWarps) vote_kernel(const __grid_constant__ VoteArguments arguments) {
  extern __shared__ float keys[];
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto index = static_cast<int32_t>(blockIdx.x) * kWarps + warp;
  if (index >= arguments.n_pages) return;
  float* key = keys + (warp * kSlots + lane) * row_stride(arguments.head_dim);
  load_key(arguments, arguments.pages[index], lane, key);
  const int32_t mine = preferred(arguments, key);
  for (int32_t expert = 0; expert < arguments.n_experts; ++expert) {
    const int32_t votes = __popc(__ballot_sync(kAll, mine == expert));
    if (lane == 0) arguments.counts[index * arguments.n_experts + expert] = votes;
  }
}

}  // namespace

cudaError_t prepare_vote() {
  return cudaFuncSetAttribute(vote_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(shared_bytes(kMaxHeadDim)));
}

cudaError_t launch_vote(const VoteArguments& arguments, cudaStream_t stream) {
  const auto blocks = static_cast<uint32_t>((arguments.n_pages + kWarps - 1) / kWarps);
  vote_kernel<<<blocks, 32 * kWarps, shared_bytes(arguments.head_dim), stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
