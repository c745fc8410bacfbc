#include "kernels/wide/slice_instances.cuh"

namespace kvq::cuda {

WideKernel sliced_wide_16(const HeadShape& head, int32_t shared_limit) { return sliced_wide_of<2>(head, shared_limit); }

}  // namespace kvq::cuda
