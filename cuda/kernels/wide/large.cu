#include "kernels/wide/attend.cuh"
#include "kernels/wide/instances.cuh"

namespace kvq::cuda {

WideKernel large_wide(const HeadShape& head, int32_t shared_limit) {
  using Half = WideShape<2, 2, 4, 2, 256>;
  using Whole = WideShape<2, 2, 4, 2, 512>;
  const WideWidths widths = least_widths(head);
  return head.values <= 256 ? wide_kernel_of<Half, wide_kernel<Half>>(head, widths, shared_limit)
                            : wide_kernel_of<Whole, wide_kernel<Whole>>(head, widths, shared_limit);
}

}  // namespace kvq::cuda
