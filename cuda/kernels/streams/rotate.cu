#include "kernels/device/rope.cuh"
#include "kernels/device/tensor.cuh"
#include "kernels/streams/rotate.h"

#include <algorithm>

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = 128;
/// Heads of a block, which computes the angles of its token once.
constexpr int32_t kHeads = 8;

__global__ void __launch_bounds__(kThreads) rotate_streams(const __grid_constant__ StreamArguments a) {
  __shared__ float2 turns[kMaxChannels / 2];
  const auto token = static_cast<int32_t>(blockIdx.x);
  const int32_t pairs = a.rope.rotary_dim / 2;
  for (auto pair = static_cast<int32_t>(threadIdx.x); pair < pairs; pair += kThreads) {
    const int32_t position = a.positions[int64_t{token} * kRopeStreams + a.sections.stream_of(pair)];
    turns[pair] = cos_sin(static_cast<double>(position) * static_cast<double>(a.rope.inv_freq[pair]));
  }
  __syncthreads();
  const int32_t begin = a.rope_channel + a.rope.begin;  // of the channels that are rotated
  const int32_t first_head = static_cast<int32_t>(blockIdx.y) * kHeads;
  const int32_t heads = min(kHeads, a.heads - first_head);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < heads * a.channels; i += kThreads) {
    const int32_t head = first_head + i / a.channels;
    const int32_t channel = i % a.channels;
    const int64_t row = token * a.strides.token + head * a.strides.head;
    float x = read_float(a.x, a.dtype, row + channel);
    if (const int32_t rotated = channel - begin; rotated >= 0 && rotated < a.rope.rotary_dim) {
      const int32_t pair = a.rope.pair_of(rotated);
      const bool is_first = rotated == a.rope.first_channel(pair);
      const float other = read_float(a.x, a.dtype, row + begin + a.rope.partner_of(rotated));
      x = is_first ? x * turns[pair].x - other * turns[pair].y : other * turns[pair].y + x * turns[pair].x;
    }
    a.out[(int64_t{token} * a.heads + head) * a.channels + channel] = x;
  }
}

}  // namespace

cudaError_t launch_rotate_streams(const StreamArguments& arguments, cudaStream_t stream) {
  const dim3 blocks(static_cast<uint32_t>(arguments.n), static_cast<uint32_t>((arguments.heads + kHeads - 1) / kHeads));
  rotate_streams<<<blocks, kThreads, 0, stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
