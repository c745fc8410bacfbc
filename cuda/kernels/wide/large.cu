#include "kernels/wide/instances.cuh"

namespace kvq::cuda {

WideKernel large_wide(const HeadShape& head, int32_t shared_limit) {
  return wide_kernel_by_values<2, 2, 4, 2>(head, 1, shared_limit);
}

}  // namespace kvq::cuda
