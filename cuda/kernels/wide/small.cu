#include "kernels/wide/instances.cuh"

namespace kvq::cuda {

WideKernel small_wide(const HeadShape& head, int32_t shared_limit) {
  return wide_kernel_by_values<1, 1, 4, 1>(head, 2, shared_limit);
}

}  // namespace kvq::cuda
