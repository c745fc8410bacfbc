#include "kernels/attend_outputs.cuh"
#include "kernels/attend_queries.cuh"
#include "kernels/attend_scores.cuh"
#include "kernels/attend_units.cuh"
#include "kernels/attend_values.cuh"
#include "kernels/attend_walk.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

template <int DP, int NT>
inline constexpr int32_t kSharedHeader = (static_cast<int32_t>(sizeof(Shared<DP, NT>)) + 127) / 128 * 128;

template <int DP, bool kFull, int NT>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) attend_kernel(const __grid_constant__ AttendArguments arguments) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<DP, NT>*>(memory);
  Block<DP, kFull, NT>(arguments, shared, memory + kSharedHeader<DP, NT>).run();
}

/// One instantiation.
struct Kernel {
  const void* function;
  int32_t width;  // largest head size
  int32_t rows;
  int32_t header;
  int32_t warps;
};

template <int DP, bool kFull, int NT>
Kernel kernel() {
  return {reinterpret_cast<const void*>(attend_kernel<DP, kFull, NT>), DP, 8 * NT, kSharedHeader<DP, NT>, kMaxWarps};
}

Kernel choose(int32_t head_dim, int32_t rows) {
  const bool two = rows > 8;
  if (head_dim == 64) return two ? kernel<64, true, 2>() : kernel<64, true, 1>();
  if (head_dim == 128) return two ? kernel<128, true, 2>() : kernel<128, true, 1>();
  if (head_dim < 128) return two ? kernel<128, false, 2>() : kernel<128, false, 1>();
  return kernel<256, false, 1>();
}

}  // namespace

cudaError_t prepare_attend(int32_t shared_limit) {
  for (const int32_t head_dim : {64, 80, 128, 256}) {
    for (const int32_t rows : {8, 16}) {
      const Kernel each = choose(head_dim, rows);
      const cudaError_t status =
          cudaFuncSetAttribute(each.function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit);
      if (status != cudaSuccess) return status;
    }
  }
  return cudaSuccess;
}

AttendPlan plan_attend(const AttendArguments& arguments, int32_t multiprocessors, int32_t shared_limit) {
  const int32_t group = arguments.q_heads / arguments.kv_heads;
  int32_t rows = 0;
  for (int32_t i = 0; i < arguments.n_sequences; ++i) {
    rows = std::max(rows, arguments.sequences[i].query_count > 8 ? 16 : arguments.sequences[i].query_count * group);
  }
  const Kernel chosen = choose(arguments.head_dim, rows);
  int64_t units = 0;
  for (int32_t i = 0; i < arguments.n_sequences; ++i) {
    const int64_t of_sequence = static_cast<int64_t>(arguments.sequences[i].query_count) * group;
    units += (of_sequence + chosen.rows - 1) / chosen.rows * arguments.kv_heads;
  }
  // A ring holds at least one side of an FP16 page, and later a warp's outputs.
  const int32_t side = std::max(key_bytes(Kind::kFloat16, arguments.head_dim).bytes(),
                                value_bytes(Kind::kFloat16, 0, arguments.head_dim).bytes());
  const int32_t least = std::max((side + 127) / 128 * 128, chosen.rows * chosen.width * 4);
  const int32_t available = shared_limit - chosen.header - kOverrun;
  const int32_t warps = std::max(1, std::min(chosen.warps, available / least));
  AttendPlan plan{};
  plan.kernel = chosen.function;
  plan.threads = 32 * warps;
  plan.ring_bytes = available / warps / 128 * 128;
  plan.shared_bytes = chosen.header + warps * plan.ring_bytes + kOverrun;
  plan.units = static_cast<int32_t>(units);
  plan.split = units <= kMaxSplitUnits && units < 2 * static_cast<int64_t>(multiprocessors);
  plan.blocks = plan.split ? multiprocessors : plan.units;
  plan.tickets = plan.split ? static_cast<size_t>(plan.units) : 0;
  plan.partial_floats =
      plan.split ? static_cast<size_t>(plan.blocks + plan.units) * static_cast<size_t>(chosen.rows * (chosen.width + 2))
                 : 0;
  return plan;
}

cudaError_t launch_attend(const AttendPlan& plan, AttendArguments& arguments, float* partials, int32_t* tickets,
                          cudaStream_t stream) {
  arguments.partials = partials;
  arguments.tickets = tickets;
  arguments.units = plan.units;
  arguments.split = plan.split ? 1 : 0;
  arguments.ring_bytes = plan.ring_bytes;
  void* parameters[] = {&arguments};
  return cudaLaunchKernel(plan.kernel, dim3(static_cast<uint32_t>(plan.blocks)),
                          dim3(static_cast<uint32_t>(plan.threads)), parameters, static_cast<size_t>(plan.shared_bytes),
                          stream);
}

}  // namespace kvq::cuda
