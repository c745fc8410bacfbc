// Training of centres: nearest centres and sums for means.
#pragma once

#include <cuda_runtime_api.h>
#include <cstdint>

namespace kvq::cuda {

struct NearestCentres {
  const float* vectors;  // [n][dim]
  int32_t n;
  int32_t dim;
  const float* centres;     // [count][dim]
  const float* half_norms;  // ‖c‖² / 2, [count]
  int32_t count;
  float* products;   // [n][count]
  uint8_t* nearest;  // [n]
  float* distances;  // [n]: ‖x − c‖²
};
cudaError_t launch_nearest_centres(const NearestCentres& search, cudaStream_t stream);

/// Sums the vectors nearest to each centre: [count][dim]. For `parts` see products.cuh.
cudaError_t sum_nearest(const NearestCentres& found, double* parts, double* sums, cudaStream_t stream);

}  // namespace kvq::cuda
