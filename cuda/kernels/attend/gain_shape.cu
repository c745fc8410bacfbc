#include "kernels/attend/kernel.cuh"

namespace kvq::cuda {

AttendKernel choose_gains(int32_t head_dim, int32_t rows) { return choose<Lists::kGains>(head_dim, rows); }

}  // namespace kvq::cuda
