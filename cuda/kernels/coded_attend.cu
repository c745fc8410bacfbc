#include "kernels/coded_attend.h"

#include "kernels/coded_outputs.cuh"
#include "kernels/coded_scores.cuh"
#include "kernels/coded_sums.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

__global__ void __launch_bounds__(kMostScoreWarps* kWarpLanes, 1)
    coded_scores_kernel(const __grid_constant__ AttendArguments arguments,
                        const __grid_constant__ CodedAttention coded) {
  extern __shared__ __align__(128) std::byte memory[];
  Scorer(arguments, coded, memory).run();
}

template <int kTiles>
__global__ void __launch_bounds__(kSumThreads, 1)
    coded_sums_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ CodedAttention coded) {
  extern __shared__ __align__(128) std::byte memory[];
  BitSummer<kTiles>(arguments, coded, *reinterpret_cast<SumShared<kTiles>*>(memory)).run();
}

__global__ void __launch_bounds__(kOutputThreads)
    coded_outputs_kernel(const __grid_constant__ AttendArguments arguments,
                         const __grid_constant__ CodedAttention coded) {
  extern __shared__ __align__(128) std::byte memory[];
  OutputMaker(arguments, coded, *reinterpret_cast<OutputShared*>(memory)).run();
}

int32_t score_bytes(const KeyTables& keys, int32_t warps) {
  return static_cast<int32_t>(sizeof(ScoreShared)) + Scorer::table_bytes(keys) + warps * Scorer::warp_bytes(keys);
}

template <int kTiles>
void sum_bits(const AttendArguments& arguments, const CodedAttention& coded, cudaStream_t stream) {
  const int32_t bit_blocks = (coded.tables.values.bits + kBlockBits - 1) / kBlockBits;
  const int32_t row_blocks = (coded.vector_rows() + 8 * kTiles - 1) / (8 * kTiles);
  const dim3 grid(static_cast<uint32_t>(coded.sum_parts / coded.page_warps()),
                  static_cast<uint32_t>(bit_blocks * row_blocks),
                  static_cast<uint32_t>(arguments.n_sequences * coded.vectors()));
  coded_sums_kernel<kTiles><<<grid, kSumThreads, sizeof(SumShared<kTiles>), stream>>>(arguments, coded);
}

}  // namespace

int32_t coded_warps(const CodebookTables& tables, const KeyBytes& bytes, int32_t shared_limit) {
  constexpr int32_t kLeastWarps = 4;
  const KeyTables& keys = tables.keys;
  const ValueTables& values = tables.values;
  const bool fits = bytes.rows != nullptr && tables.head_dim == kCodedDim && keys.groups == 1 &&
                    8 * keys.stages * keys.index_bits <= kMostIndexBytes && values.lanes % kWarpBits == 0 &&
                    values.lanes > 0 && (values.bits % kBlockBits == 0 || kBlockBits % values.bits == 0);
  if (!fits) return 0;
  const int32_t warps = (shared_limit - score_bytes(keys, 0)) / Scorer::warp_bytes(keys);
  return warps >= kLeastWarps ? std::min(warps, kMostScoreWarps) : 0;
}

cudaError_t prepare_coded_attention(int32_t shared_limit) {
  const auto allow = [](auto* kernel, int32_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  cudaError_t status = allow(coded_scores_kernel, shared_limit);
  if (status == cudaSuccess) status = allow(coded_outputs_kernel, sizeof(OutputShared));
  if (status == cudaSuccess) status = allow(coded_sums_kernel<1>, sizeof(SumShared<1>));
  if (status == cudaSuccess) status = allow(coded_sums_kernel<2>, sizeof(SumShared<2>));
  if (status == cudaSuccess) status = allow(coded_sums_kernel<4>, sizeof(SumShared<4>));
  return status;
}

cudaError_t launch_coded_attention(const AttendArguments& arguments, const CodedAttention& coded, cudaStream_t stream) {
  const auto heads = static_cast<uint32_t>(coded.tables.kv_heads);
  const auto sequences = static_cast<uint32_t>(arguments.n_sequences);
  const auto row_tiles = static_cast<uint32_t>((coded.rows + kCodedRows - 1) / kCodedRows);
  const dim3 grid(static_cast<uint32_t>(coded.parts), heads, sequences * row_tiles);
  const auto bytes = static_cast<size_t>(score_bytes(coded.tables.keys, coded.warps));
  coded_scores_kernel<<<grid, static_cast<uint32_t>(kWarpLanes * coded.warps), bytes, stream>>>(arguments, coded);
  if (coded.vector_rows() <= 8) {
    sum_bits<1>(arguments, coded, stream);
  } else if (coded.vector_rows() <= 16) {
    sum_bits<2>(arguments, coded, stream);
  } else {
    sum_bits<4>(arguments, coded, stream);
  }
  coded_outputs_kernel<<<dim3(static_cast<uint32_t>(coded.output_blocks()), heads, sequences), kOutputThreads,
                         sizeof(OutputShared), stream>>>(arguments, coded);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
