// Merges partial outputs of blocks that shared a row's pages.
#include "kernels/wide/memory.cuh"

namespace kvq::cuda {
namespace {

constexpr int32_t kLanes = 128;  // of four channels each
constexpr int32_t kGroups = 4;   // divide the parts

/// The highest number of a block's threads.
__device__ __forceinline__ float highest_of_block(float x) {
  __shared__ float of_warps[kLanes * kGroups / 32];
#pragma unroll
  for (int32_t d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, d));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  for (const float each : of_warps) x = fmaxf(x, each);
  return x;
}

/// A block per row.
template <int kRows>
__global__ void __launch_bounds__(kLanes* kGroups)
    wide_merge_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ WideLaunch launch,
                      int32_t values) {
  const auto index = static_cast<int32_t>(blockIdx.x) / kRows;
  const auto row = static_cast<int32_t>(blockIdx.x) % kRows;
  const int32_t row_block = launch.row_blocks - 1 - index % launch.row_blocks;
  const Unit unit = unit_of<kRows>(arguments, row_block, launch.first_head + index / launch.row_blocks);
  if (row >= row_count<kRows>(arguments, unit)) return;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const size_t stride = partial_floats(kRows, values);
  const float* partials = launch.partials + static_cast<size_t>(index * launch.parts) * stride;
  const auto sums_of = [&](int32_t part) {
    return __ldcg(reinterpret_cast<const float2*>(partials + static_cast<size_t>(part) * stride) + row);
  };
  float highest = minus_infinity();
  for (int32_t part = thread; part < launch.parts; part += kLanes * kGroups) highest = fmaxf(highest, sums_of(part).x);
  highest = highest_of_block(highest);
  const int32_t channel = 4 * (thread % kLanes);
  const int32_t group = thread / kLanes;
  const bool inside = channel < arguments.head.values;
  float4 x{0.0F, 0.0F, 0.0F, 0.0F};
  float sum = 0.0F;
#pragma unroll 4
  for (int32_t part = group; part < launch.parts; part += kGroups) {
    const float2 both = sums_of(part);
    const float weight = highest == minus_infinity() ? 0.0F : exp2_fast(both.x - highest);
    const float* from = partials + static_cast<size_t>(part) * stride + 2 * kRows + row * values + channel;
    const float4 four = inside ? __ldcg(reinterpret_cast<const float4*>(from)) : float4{0.0F, 0.0F, 0.0F, 0.0F};
    sum = fmaf(both.y, weight, sum);
    x = {fmaf(four.x, weight, x.x), fmaf(four.y, weight, x.y), fmaf(four.z, weight, x.z), fmaf(four.w, weight, x.w)};
  }
  __shared__ float4 outputs[kGroups][kLanes];
  __shared__ float sums[kGroups];
  outputs[group][thread % kLanes] = x;
  if (thread % kLanes == 0) sums[group] = sum;
  __syncthreads();
  if (group != 0 || !inside) return;
  sum = 0.0F;
  float four[4] = {};
#pragma unroll
  for (int32_t i = 0; i < kGroups; ++i) {
    const float4& of_group = outputs[i][thread];
    sum += sums[i];
    four[0] += of_group.x;
    four[1] += of_group.y;
    four[2] += of_group.z;
    four[3] += of_group.w;
  }
  const RowPlace place = row_place(arguments, unit, row);
  const float factor = finish_row(arguments, place, {highest, sum}, thread == 0);
  const LayerScales scales = scales_of(arguments, unit);
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    four[i] *= factor;
    if (scales) four[i] = unscale_output(scales, unit.head, arguments.head, channel + i, four[i], factor * sum);
  }
  write_four(arguments.out, arguments.out_dtype, row_offset(arguments.out_strides, place) + channel, four);
}

template <int kRows>
cudaError_t launch(const AttendArguments& arguments, const WideLaunch& launch, int32_t values, cudaStream_t stream) {
  const auto rows = static_cast<uint32_t>(launch.row_blocks * launch.heads * kRows);
  wide_merge_kernel<kRows><<<rows, kLanes * kGroups, 0, stream>>>(arguments, launch, values);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_wide_merge(const AttendArguments& arguments, const WideLaunch& of_blocks, int32_t rows,
                              int32_t values, cudaStream_t stream) {
  switch (rows) {
    case 8:
      return launch<8>(arguments, of_blocks, values, stream);
    case 16:
      return launch<16>(arguments, of_blocks, values, stream);
    default:
      return launch<64>(arguments, of_blocks, values, stream);
  }
}

}  // namespace kvq::cuda
