// The attention kernel and the choice among its instances.
#pragma once

#include "kernels/attend/walk.cuh"

namespace kvq::cuda {

/// One instance.
struct AttendKernel {
  const void* function;
  int32_t width;  // largest head size
  int32_t rows;
  int32_t header;
  int32_t (*centre_bytes)(const CentreRows& rows);  // shared memory between header and rings
  int32_t warps;
};

/// One translation unit per list type, each with all its instances: more page kinds in a kernel slow all of them down.
AttendKernel choose_plain(int32_t head_dim, int32_t rows);
AttendKernel choose_gains(int32_t head_dim, int32_t rows);
AttendKernel choose_centre(int32_t head_dim, int32_t rows);
AttendKernel choose_centres(int32_t head_dim, int32_t rows);
AttendKernel choose_far_centres(int32_t head_dim, int32_t rows);

template <typename G>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) attend_kernel(const __grid_constant__ AttendArguments arguments) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<SharedOf<G>*>(memory);
  const Rings rings{memory + kCentreRowsAt<G> + centre_row_bytes<G>(arguments.centres), arguments.ring_bytes};
  run_block(Block<G>{arguments, shared, rings, {arguments.head.keys}, this_lane()});
}

template <int DP, bool kFull, int NT, Lists kLists>
AttendKernel kernel() {
  using G = Geometry<DP, kFull, NT, kLists>;
  return {.function = reinterpret_cast<const void*>(attend_kernel<G>),
          .width = DP,
          .rows = 8 * NT,
          .header = kCentreRowsAt<G>,
          .centre_bytes = centre_row_bytes<G>,
          .warps = kMaxWarps};
}

template <Lists kLists>
AttendKernel choose(int32_t head_dim, int32_t rows) {
  const bool two = rows > 8;
  if constexpr (kLists ==
                Lists::kFarCentres) {  // fewer instances: small heads hardly need them and all wait for memory
    if (head_dim == 128) return two ? kernel<128, true, 2, kLists>() : kernel<128, true, 1, kLists>();
    return head_dim < 128 ? kernel<128, false, 1, kLists>() : kernel<256, false, 1, kLists>();
  } else {
    if (head_dim == 64) return two ? kernel<64, true, 2, kLists>() : kernel<64, true, 1, kLists>();
    if (head_dim == 128) return two ? kernel<128, true, 2, kLists>() : kernel<128, true, 1, kLists>();
    if (head_dim < 128) return two ? kernel<128, false, 2, kLists>() : kernel<128, false, 1, kLists>();
    return kernel<256, false, 1, kLists>();
  }
}

}  // namespace kvq::cuda
