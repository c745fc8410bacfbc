#include "kernels/wide/slice_instances.cuh"

namespace kvq::cuda {

WideKernel sliced_wide_8(const HeadShape& head, int32_t shared_limit) { return sliced_wide_of<1>(head, shared_limit); }

}  // namespace kvq::cuda
