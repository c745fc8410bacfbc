#include "kernels/wide/instances.cuh"

namespace kvq::cuda {

WideKernel large_wide(const HeadShape& head, int32_t shared_limit) {
  const int32_t ring = 2 * largest_copy(head);
  return head.values <= 256 ? wide_kernel_of<WideShape<2, 2, 4, 2, 256>>(head, 1, ring, shared_limit)
                            : wide_kernel_of<WideShape<2, 2, 4, 2, 512>>(head, 1, ring, shared_limit);
}

}  // namespace kvq::cuda
