#include "kernels/wide/instances.cuh"

namespace kvq::cuda {

WideKernel medium_wide(const HeadShape& head, int32_t shared_limit) {
  return wide_kernel_by_values<1, 2, 4, 1>(head, 1, shared_limit);
}

}  // namespace kvq::cuda
