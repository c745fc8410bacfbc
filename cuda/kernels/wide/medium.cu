#include "kernels/wide/instances.cuh"

namespace kvq::cuda {

WideKernel medium_wide(const HeadShape& head, int32_t shared_limit) {
  const int32_t ring = largest_copy(head);
  return head.values <= 256 ? wide_kernel_of<WideShape<1, 2, 4, 1, 256>>(head, 2, ring, shared_limit)
                            : wide_kernel_of<WideShape<1, 2, 4, 1, 512>>(head, 2, ring, shared_limit);
}

}  // namespace kvq::cuda
