#include "kernels/evict/select.h"

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include <algorithm>
#include <utility>

namespace kvq::cuda {
namespace {

constexpr uint32_t kThreads = 256;

uint32_t blocks_for(int64_t n) { return static_cast<uint32_t>((n + kThreads - 1) / kThreads); }

__device__ int64_t thread_index() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

/// Equals pool_scores operation by operation.
__device__ float pooled(const Eviction& eviction, const float* masses, int32_t n, int32_t i) {
  const int32_t reach = eviction.kernel / 2;
  const int32_t begin = max(i - reach, 0);
  const int32_t end = min(i + reach + 1, n);
  float result = eviction.pooling == Pooling::kMax ? masses[begin] : 0.0F;
  for (int32_t at = begin; at < end; ++at) {
    result = eviction.pooling == Pooling::kMax ? fmaxf(result, masses[at]) : result + masses[at];
  }
  return eviction.pooling == Pooling::kMax ? result : result / static_cast<float>(end - begin);
}

__device__ float score(const Eviction& eviction, const SelectHead& head, int32_t i) {
  if (eviction.score == TokenScore::kMass) return head.masses[i];
  if (eviction.score == TokenScore::kWindow) return pooled(eviction, head.masses, head.n, i);
  return static_cast<float>(i) + (i < eviction.first ? 3.0F * static_cast<float>(head.n) : 0.0F);
}

/// Sort key that rises as the score falls.
__device__ uint32_t order_of(float score) {
  const uint32_t bits = __float_as_uint(score + 0.0F);  // clears the sign of −0
  return ~(bits ^ ((bits >> 31U) != 0 ? 0xFFFFFFFFU : 0x80000000U));
}

__global__ void score_kernel(Eviction eviction, const SelectHead* heads, int32_t n_heads, bool joined, Candidates to) {
  const auto h = static_cast<int32_t>(blockIdx.y);
  const int64_t i = thread_index();
  const SelectHead head = heads[h];
  if (i >= head.n) return;
  const auto token = static_cast<int32_t>(i);
  float sum = score(eviction, head, token);
  for (int32_t other = 1; joined && other < n_heads; ++other) sum += score(eviction, heads[other], token);
  to.sorted[head.begin + token] = (static_cast<uint64_t>(order_of(sum)) << to.index_bits | static_cast<uint64_t>(token))
                                      << to.head_bits |
                                  static_cast<uint64_t>(h);
}

__device__ int32_t head_of(const Candidates& candidates, uint64_t candidate) {
  return static_cast<int32_t>(candidate & ((uint64_t{1} << candidates.head_bits) - 1));
}
__device__ int32_t index_of(const Candidates& candidates, uint64_t candidate) {
  return static_cast<int32_t>(candidate >> candidates.head_bits & ((uint64_t{1} << candidates.index_bits) - 1));
}

__global__ void reserve_kernel(const SelectHead* heads, int32_t reserved, Candidates candidates) {
  const int64_t i = thread_index();
  if (i >= candidates.total) return;
  const uint64_t candidate = candidates.sorted[i];
  const bool taken = i - heads[head_of(candidates, candidate)].begin < reserved;
  candidates.other[i] = taken ? ~uint64_t{0} : candidate;
}

__global__ void count_kernel(Candidates candidates, int32_t best, int32_t* counts) {
  const int64_t i = thread_index();
  if (i < best) atomicAdd(counts + head_of(candidates, candidates.sorted[i]), 1);
}

__global__ void flag_kernel(const SelectHead* heads, const int32_t* counts, Candidates candidates, int32_t* flags) {
  const int64_t i = thread_index();
  if (i >= candidates.total) return;
  const uint64_t candidate = candidates.sorted[i];
  const int32_t h = head_of(candidates, candidate);
  const SelectHead head = heads[h];
  flags[head.begin + index_of(candidates, candidate)] = i - head.begin < counts[h] ? 1 : 0;
}

__global__ void slot_kernel(const SelectHead* heads, const int32_t* flags, const int32_t* places, int32_t* slots) {
  const SelectHead head = heads[blockIdx.y];
  const int64_t i = thread_index();
  if (i < head.n && flags[head.begin + i] != 0) slots[places[head.begin + i]] = static_cast<int32_t>(i);
}

cudaError_t sort(Candidates& candidates, int32_t end_bit, cudaStream_t stream) {
  cub::DoubleBuffer<uint64_t> buffers(candidates.sorted, candidates.other);
  size_t bytes = candidates.scratch_bytes;
  const cudaError_t status =
      cub::DeviceRadixSort::SortKeys(candidates.scratch, bytes, buffers, candidates.total, 0, end_bit, stream);
  if (buffers.Current() != candidates.sorted) std::swap(candidates.sorted, candidates.other);
  return status;
}

}  // namespace

size_t select_scratch(int32_t total) {
  size_t sorting = 0;
  cub::DoubleBuffer<uint64_t> buffers(nullptr, nullptr);
  cub::DeviceRadixSort::SortKeys(nullptr, sorting, buffers, total, 0, 64);
  size_t numbering = 0;
  cub::DeviceScan::ExclusiveSum(nullptr, numbering, static_cast<int32_t*>(nullptr), static_cast<int32_t*>(nullptr),
                                total);
  return std::max(sorting, numbering);
}

cudaError_t launch_scores(const Eviction& eviction, const SelectHead* heads, int32_t n_heads, int32_t longest,
                          bool joined, const Candidates& to, cudaStream_t stream) {
  const dim3 blocks(blocks_for(longest), joined ? 1U : static_cast<uint32_t>(n_heads));
  score_kernel<<<blocks, kThreads, 0, stream>>>(eviction, heads, n_heads, joined, to);
  return cudaGetLastError();
}

cudaError_t sort_candidates(Candidates& candidates, cudaStream_t stream) {
  return sort(candidates, candidates.bits(), stream);
}

cudaError_t sort_by_heads(Candidates& candidates, cudaStream_t stream) {
  return candidates.head_bits == 0 ? cudaSuccess : sort(candidates, candidates.head_bits, stream);
}

cudaError_t launch_reserve(const SelectHead* heads, int32_t reserved, Candidates& candidates, cudaStream_t stream) {
  reserve_kernel<<<blocks_for(candidates.total), kThreads, 0, stream>>>(heads, reserved, candidates);
  std::swap(candidates.sorted, candidates.other);
  return cudaGetLastError();
}

cudaError_t launch_count(const Candidates& candidates, int32_t best, int32_t* counts, int32_t n_heads,
                         cudaStream_t stream) {
  const cudaError_t status = cudaMemsetAsync(counts, 0, static_cast<size_t>(n_heads) * sizeof(int32_t), stream);
  if (status != cudaSuccess || best == 0) return status;
  count_kernel<<<blocks_for(best), kThreads, 0, stream>>>(candidates, best, counts);
  return cudaGetLastError();
}

cudaError_t launch_slots(const SelectHead* heads, int32_t n_heads, int32_t longest, const int32_t* counts,
                         const Candidates& candidates, int32_t* numbers, int32_t* slots, cudaStream_t stream) {
  int32_t* places = numbers + candidates.total;
  flag_kernel<<<blocks_for(candidates.total), kThreads, 0, stream>>>(heads, counts, candidates, numbers);
  size_t bytes = candidates.scratch_bytes;
  const cudaError_t status =
      cub::DeviceScan::ExclusiveSum(candidates.scratch, bytes, numbers, places, candidates.total, stream);
  if (status != cudaSuccess) return status;
  slot_kernel<<<dim3(blocks_for(longest), static_cast<uint32_t>(n_heads)), kThreads, 0, stream>>>(heads, numbers,
                                                                                                  places, slots);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
