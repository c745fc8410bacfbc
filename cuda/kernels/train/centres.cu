#include "kernels/train/centres.h"

#include "kernels/device/warp.cuh"
#include "kernels/train/products.cuh"

namespace kvq::cuda {
namespace {

constexpr int32_t kWarps = 4;
constexpr int32_t kThreads = kWarps * kWarpLanes;

/// 1 for a vector's nearest centre, otherwise 0.
struct IsNearest {
  static constexpr bool kAlongDepth = false;
  const uint8_t* nearest;

  __device__ float operator()(int32_t centre, int32_t vector) const { return nearest[vector] == centre ? 1.0F : 0.0F; }
};

/// One vector per warp.
__global__ void __launch_bounds__(kThreads) nearest_kernel(NearestCentres search) {
  const auto lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
  const int32_t at = static_cast<int32_t>(blockIdx.x) * kWarps + static_cast<int32_t>(threadIdx.x) / kWarpLanes;
  if (at >= search.n) return;
  const float* products = search.products + int64_t{at} * search.count;
  Placed best{INFINITY, 0};
  for (int32_t centre = lane; centre < search.count; centre += kWarpLanes) {
    const Placed each{search.half_norms[centre] - products[centre], centre};
    if (comes_before(each, best)) best = each;
  }
  best = first_of_lanes(best);
  const float* vector = search.vectors + int64_t{at} * search.dim;
  const float* nearest = search.centres + int64_t{best.place} * search.dim;
  float distance = 0.0F;
  for (int32_t i = lane; i < search.dim; i += kWarpLanes) {
    const float difference = vector[i] - nearest[i];
    distance = fmaf(difference, difference, distance);
  }
  distance = sum_of_lanes(distance);
  if (lane != 0) return;
  search.nearest[at] = static_cast<uint8_t>(best.place);
  search.distances[at] = distance;
}

}  // namespace

cudaError_t launch_nearest_centres(const NearestCentres& search, cudaStream_t stream) {
  const cudaError_t status = multiply(Rows{search.vectors, search.dim}, Rows{search.centres, search.dim}, search.n,
                                      search.count, search.dim, Store{search.products, search.count}, stream);
  if (status != cudaSuccess) return status;
  nearest_kernel<<<static_cast<uint32_t>((search.n + kWarps - 1) / kWarps), kThreads, 0, stream>>>(search);
  return cudaGetLastError();
}

cudaError_t sum_nearest(const NearestCentres& found, double* parts, double* sums, cudaStream_t stream) {
  return sum_products<false>(IsNearest{found.nearest}, Columns{found.vectors, found.dim}, found.count, found.dim,
                             found.n, parts, sums, stream);
}

}  // namespace kvq::cuda
