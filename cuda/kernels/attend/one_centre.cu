#include "kernels/attend/kernel.cuh"

namespace kvq::cuda {

AttendKernel choose_centre(int32_t head_dim, int32_t rows) { return choose<Lists::kCentre>(head_dim, rows); }

}  // namespace kvq::cuda
