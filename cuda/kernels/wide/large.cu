#include "kernels/wide/attend.cuh"
#include "kernels/wide/instances.cuh"

namespace kvq::cuda {

WideKernel large_wide(const HeadShape& head, int32_t shared_limit) {
  using Half = WideShape<2, 2, 4, 2, 256>;
  using Whole = WideShape<2, 2, 4, 2, 512>;
  return head.values <= 256 ? wide_kernel_of<Half, wide_kernel<Half>>(head, shared_limit)
                            : wide_kernel_of<Whole, wide_kernel<Whole>>(head, shared_limit);
}

}  // namespace kvq::cuda
