#include "kernels/wide/warpgroup.cuh"

#include "kernels/wide/instances.cuh"

namespace kvq::cuda {

WideKernel hopper_wide(const HeadShape& head, int32_t shared_limit) {
  switch (wide_widths(head).value_width) {
    case 256:
      return wide_kernel_of<WarpgroupShape<256>>(head, shared_limit);
    case 512:
      return wide_kernel_of<WarpgroupShape<512>>(head, shared_limit);
    default:
      return {};
  }
}

}  // namespace kvq::cuda
