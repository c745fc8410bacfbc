#include "kernels/wide/instances.cuh"

namespace kvq::cuda {

WideKernel large_wide(const HeadShape& head, int32_t shared_limit) {
  return head.values <= 256 ? wide_kernel_of<WideShape<2, 2, 4, 2, 256>>(head, shared_limit)
                            : wide_kernel_of<WideShape<2, 2, 4, 2, 512>>(head, shared_limit);
}

}  // namespace kvq::cuda
