// The order in which weights of query rows become masses of slots.
#pragma once

#include "kernels/evict/weigh.h"

namespace kvq::cuda {

/// Rows from `first` on that are weighed together, at most `most`: for largest weights, whole queries or a part of one
/// query. `group`: rows of a query.
__device__ __forceinline__ int32_t rows_together(const WeighArguments& weighing, int32_t group, int32_t first,
                                                 int32_t most) {
  if (weighing.largest != 0) most = group <= most ? most / group * group : min(most, group - first % group);
  return min(most, weighing.rows - first);
}

/// Adds the weights that a slot has in rows [first, first + rows) to its mass. `largest`: of the current query.
template <typename Weight>
__device__ __forceinline__ void add_weights(const WeighArguments& weighing, int32_t group, int32_t first, int32_t rows,
                                            const Weight& weight, float& mass, float& largest) {
  if (weighing.largest == 0) {
    float sum = 0.0F;
    for (int32_t row = 0; row < rows; ++row) sum += weight(row);
    mass += sum / static_cast<float>(group);
    return;
  }
  for (int32_t row = 0; row < rows; ++row) {
    largest = fmaxf(largest, weight(row));
    if ((first + row + 1) % group != 0) continue;
    mass += largest;
    largest = 0.0F;
  }
}

}  // namespace kvq::cuda
