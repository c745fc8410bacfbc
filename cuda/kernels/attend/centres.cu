#include "kernels/attend/kernel.cuh"

namespace kvq::cuda {

AttendKernel choose_centres(int32_t head_dim, int32_t rows) { return choose<Lists::kCentres>(head_dim, rows); }

}  // namespace kvq::cuda
