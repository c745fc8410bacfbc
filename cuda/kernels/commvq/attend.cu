#include "kernels/commvq/attend.h"

#include "kernels/commvq/outputs.cuh"
#include "kernels/commvq/scores.cuh"
#include "kernels/commvq/value_sums.cuh"

#include <algorithm>
#include <type_traits>

namespace kvq::cuda {
namespace {

template <int kTiles>
__global__ void __launch_bounds__(kMostScoreWarps* kWarpLanes, 1)
    commvq_scores_kernel(const __grid_constant__ AttendArguments arguments,
                         const __grid_constant__ CommvqAttention commvq) {
  extern __shared__ __align__(128) std::byte memory[];
  Scorer<kTiles>(arguments, commvq, memory).run();
}

template <int kTiles>
__global__ void __launch_bounds__(kSumThreads, 1) commvq_sums_kernel(const __grid_constant__ AttendArguments arguments,
                                                                     const __grid_constant__ CommvqAttention commvq) {
  extern __shared__ __align__(128) std::byte memory[];
  BitSummer<kTiles>(arguments, commvq, *reinterpret_cast<SumShared<kTiles>*>(memory)).run();
}

template <int kTiles>
__global__ void __launch_bounds__(kOutputThreads)
    commvq_outputs_kernel(const __grid_constant__ AttendArguments arguments,
                          const __grid_constant__ CommvqAttention commvq) {
  extern __shared__ __align__(128) std::byte memory[];
  OutputMaker<kTiles>(arguments, commvq, *reinterpret_cast<OutputShared<kTiles>*>(memory)).run();
}

/// Calls `use` with the least number of tiles of 8 rows that fits, as a constant.
template <typename Use>
auto with_row_tiles(int32_t rows, const Use& use) {
  if (rows <= 8) return use(std::integral_constant<int, 1>());
  if (rows <= 16) return use(std::integral_constant<int, 2>());
  return use(std::integral_constant<int, 4>());
}

int32_t score_bytes(const KeyTables& keys, int32_t rows, int32_t warps) {
  return with_row_tiles(rows, [&](auto tiles) { return Scorer<tiles()>::shared_bytes(keys, warps); });
}

template <int kTiles>
void sum_bits(const AttendArguments& arguments, const CommvqAttention& commvq, cudaStream_t stream) {
  const int32_t bit_blocks = (commvq.tables.values.bits + kBlockBits - 1) / kBlockBits;
  const int32_t row_blocks = (commvq.vector_rows() + 8 * kTiles - 1) / (8 * kTiles);
  const dim3 grid(static_cast<uint32_t>(commvq.sum_parts / commvq.page_warps()),
                  static_cast<uint32_t>(bit_blocks * row_blocks),
                  static_cast<uint32_t>(arguments.n_sequences * commvq.vectors()));
  commvq_sums_kernel<kTiles><<<grid, kSumThreads, sizeof(SumShared<kTiles>), stream>>>(arguments, commvq);
}

template <int kTiles>
void find_scores(const AttendArguments& arguments, const CommvqAttention& commvq, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(commvq.parts), static_cast<uint32_t>(commvq.tables.kv_heads),
                  static_cast<uint32_t>(arguments.n_sequences));
  const auto threads = static_cast<uint32_t>(kWarpLanes * commvq.warps);
  const auto bytes = static_cast<size_t>(Scorer<kTiles>::shared_bytes(commvq.tables.keys, commvq.warps));
  commvq_scores_kernel<kTiles><<<grid, threads, bytes, stream>>>(arguments, commvq);
}

template <int kTiles>
void make_outputs(const AttendArguments& arguments, const CommvqAttention& commvq, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(commvq.output_blocks()), static_cast<uint32_t>(commvq.tables.kv_heads),
                  static_cast<uint32_t>(arguments.n_sequences));
  commvq_outputs_kernel<kTiles><<<grid, kOutputThreads, sizeof(OutputShared<kTiles>), stream>>>(arguments, commvq);
}

}  // namespace

int32_t commvq_warps(const CodebookTables& tables, const KeyBytes& bytes, int32_t rows, int32_t shared_limit) {
  constexpr int32_t kLeastWarps = 4;
  const KeyTables& keys = tables.keys;
  const ValueTables& values = tables.values;
  const bool fits = rows <= kMostCommvqRows && bytes.rows != nullptr && tables.head_dim == kCommvqDim &&
                    keys.groups == 1 && 8 * keys.stages * keys.index_bits <= kMostIndexBytes &&
                    values.lanes % kOutputBits == 0 && values.lanes > 0 &&
                    (values.bits % kBlockBits == 0 || kBlockBits % values.bits == 0);
  if (!fits) return 0;
  const int32_t fixed = score_bytes(keys, rows, 0);
  const int32_t warps = (shared_limit - fixed) / (score_bytes(keys, rows, 1) - fixed);
  return warps >= kLeastWarps ? std::min(warps, kMostScoreWarps) : 0;
}

cudaError_t prepare_commvq_attention(int32_t shared_limit) {
  const auto allow = [](auto* kernel, int32_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  cudaError_t status = allow(commvq_scores_kernel<1>, shared_limit);
  if (status == cudaSuccess) status = allow(commvq_scores_kernel<2>, shared_limit);
  if (status == cudaSuccess) status = allow(commvq_scores_kernel<4>, shared_limit);
  if (status == cudaSuccess) status = allow(commvq_outputs_kernel<1>, sizeof(OutputShared<1>));
  if (status == cudaSuccess) status = allow(commvq_outputs_kernel<2>, sizeof(OutputShared<2>));
  if (status == cudaSuccess) status = allow(commvq_outputs_kernel<4>, sizeof(OutputShared<4>));
  if (status == cudaSuccess) status = allow(commvq_sums_kernel<1>, sizeof(SumShared<1>));
  if (status == cudaSuccess) status = allow(commvq_sums_kernel<2>, sizeof(SumShared<2>));
  if (status == cudaSuccess) status = allow(commvq_sums_kernel<4>, sizeof(SumShared<4>));
  return status;
}

cudaError_t launch_commvq_attention(const AttendArguments& arguments, const CommvqAttention& commvq,
                                    cudaStream_t stream) {
  with_row_tiles(commvq.rows, [&](auto tiles) { find_scores<tiles()>(arguments, commvq, stream); });
  with_row_tiles(commvq.vector_rows(), [&](auto tiles) { sum_bits<tiles()>(arguments, commvq, stream); });
  with_row_tiles(commvq.rows, [&](auto tiles) { make_outputs<tiles()>(arguments, commvq, stream); });
  return cudaGetLastError();
}

}  // namespace kvq::cuda
