#include "kernels/attend/kernel.cuh"

namespace kvq::cuda {

AttendKernel choose_far_centres(int32_t head_dim, int32_t rows) { return choose<Lists::kFarCentres>(head_dim, rows); }

}  // namespace kvq::cuda
