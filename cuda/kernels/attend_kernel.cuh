// The attention kernel, and which of its instances serves what.
#pragma once

#include "kernels/attend_walk.cuh"

namespace kvq::cuda {

/// One instantiation.
struct AttendKernel {
  const void* function;
  int32_t width;  // largest head size
  int32_t rows;
  int32_t header;
  int32_t warps;
};

/// For pages without gains, and for any pages: apart, since more kinds in a kernel slow all of them down.
AttendKernel choose_plain(int32_t head_dim, int32_t rows);
AttendKernel choose_gains(int32_t head_dim, int32_t rows);

template <int DP, int NT>
inline constexpr int32_t kSharedHeader = (static_cast<int32_t>(sizeof(Shared<DP, NT>)) + 127) / 128 * 128;

template <int DP, bool kFull, int NT, bool kGains>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) attend_kernel(const __grid_constant__ AttendArguments arguments) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<DP, NT>*>(memory);
  const Rings rings{memory + kSharedHeader<DP, NT>, arguments.ring_bytes};
  run_block(Block<Geometry<DP, kFull, NT, kGains>>{arguments, shared, rings, {arguments.head_dim}, this_lane()});
}

template <int DP, bool kFull, int NT, bool kGains>
AttendKernel kernel() {
  return {.function = reinterpret_cast<const void*>(attend_kernel<DP, kFull, NT, kGains>),
          .width = DP,
          .rows = 8 * NT,
          .header = kSharedHeader<DP, NT>,
          .warps = kMaxWarps};
}

template <bool kGains>
AttendKernel choose(int32_t head_dim, int32_t rows) {
  const bool two = rows > 8;
  if (head_dim == 64) return two ? kernel<64, true, 2, kGains>() : kernel<64, true, 1, kGains>();
  if (head_dim == 128) return two ? kernel<128, true, 2, kGains>() : kernel<128, true, 1, kGains>();
  if (head_dim < 128) return two ? kernel<128, false, 2, kGains>() : kernel<128, false, 1, kGains>();
  return kernel<256, false, 1, kGains>();
}

}  // namespace kvq::cuda
