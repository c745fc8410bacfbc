#include "kernels/attend/kernel.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Chooses which blocks walk which pages.
void plan_blocks(AttendPlan& plan, const AttendArguments& arguments, int32_t even_pages, int32_t multiprocessors) {
  const int32_t warps = plan.threads / 32;
  plan.parts = 1;
  plan.part_pages = INT32_MAX;
  plan.blocks = dim3(static_cast<uint32_t>(plan.units / arguments.kv_heads), static_cast<uint32_t>(arguments.kv_heads));
  if (plan.units > kMaxSplitUnits || plan.units >= 2 * multiprocessors) return;
  plan.tickets = static_cast<size_t>(plan.units);
  plan.parts = even_pages < 0 ? 0 : multiprocessors / plan.units;
  if (plan.parts > 0) {
    const int64_t in_a_row = std::max<int64_t>(ceiling(int64_t{even_pages} * plan.units, multiprocessors), warps);
    plan.part_pages = std::max(static_cast<int32_t>(ceiling(even_pages, plan.parts)), warps);
    if (plan.part_pages > in_a_row + kCrossing) plan.parts = 0;
  }
  if (plan.parts == 0) {
    plan.blocks = dim3(static_cast<uint32_t>(multiprocessors));
    return;
  }
  if (arguments.uniform_pages >= 0) {
    plan.parts = std::max(static_cast<int32_t>(ceiling(even_pages, plan.part_pages)), 1);
  } else {
    plan.part_pages = 0;
  }
  plan.blocks.z = static_cast<uint32_t>(plan.parts);
}

}  // namespace

AttendKernel choose_plain(int32_t head_dim, int32_t rows) { return choose<Lists::kPlain>(head_dim, rows); }

cudaError_t prepare_attend(int32_t shared_limit) {
  for (const int32_t head_dim : {64, 80, 128, 256}) {
    for (const int32_t rows : {8, 16}) {
      for (const auto& choose : {choose_plain, choose_gains, choose_centre, choose_centres, choose_far_centres}) {
        const cudaError_t status = cudaFuncSetAttribute(choose(head_dim, rows).function,
                                                        cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit);
        if (status != cudaSuccess) return status;
      }
    }
  }
  return cudaSuccess;
}

AttendPlan plan_attend(const AttendArguments& arguments, int32_t even_pages, int32_t multiprocessors,
                       int32_t shared_limit) {
  const int32_t group = arguments.q_heads / arguments.kv_heads;
  int32_t rows = 0;
  for (int32_t i = 0; i < arguments.n_sequences; ++i) {
    rows = std::max(rows, arguments.sequences[i].query_count > 8 ? 16 : arguments.sequences[i].query_count * group);
  }
  // A ring holds at least one side of an FP16 page, and a warp's outputs after the walk.
  const auto least_ring = [&arguments](const AttendKernel& kernel) {
    const int32_t side = std::max(side_places(Side::kKeys, CodeType::float16(), arguments.head_dim).bytes,
                                  side_places(Side::kValues, CodeType::float16(), arguments.head_dim).bytes);
    return std::max((side + 127) / 128 * 128, kernel.rows * kernel.width * 4);
  };
  const auto room = [&arguments, shared_limit](const AttendKernel& kernel) {
    return shared_limit - kernel.header - kernel.centre_bytes(arguments.centres) - kOverrun;
  };
  AttendKernel chosen =
      arguments.any_gains != 0 ? choose_gains(arguments.head_dim, rows) : choose_plain(arguments.head_dim, rows);
  if (arguments.any_centres != 0) {
    const bool several = arguments.centres.key_centres > 1 || arguments.centres.value_centres > 1;
    chosen = several ? choose_centres(arguments.head_dim, rows) : choose_centre(arguments.head_dim, rows);
    if (several && room(chosen) < chosen.warps * least_ring(chosen))
      chosen = choose_far_centres(arguments.head_dim, rows);
  }
  const int32_t least = least_ring(chosen);
  const int32_t available = room(chosen);
  const int32_t warps = std::max(1, std::min(chosen.warps, available / least));
  AttendPlan plan{};
  plan.kernel = chosen.function;
  plan.threads = 32 * warps;
  plan.ring_bytes = available / warps / 128 * 128;
  plan.shared_bytes = shared_limit - available + warps * plan.ring_bytes;
  plan.one_row_block = true;
  plan.single_newest = arguments.query_positions == nullptr && arguments.window == 0;
  int64_t row_blocks = 0;
  for (int32_t i = 0; i < arguments.n_sequences; ++i) {
    const int32_t queries = arguments.sequences[i].query_count;
    const int64_t of_sequence = ceiling(int64_t{queries} * group, chosen.rows);
    row_blocks += of_sequence;
    plan.one_row_block = plan.one_row_block && of_sequence == 1;
    plan.single_newest = plan.single_newest && queries == 1;
  }
  plan.units = static_cast<int32_t>(row_blocks * arguments.kv_heads);
  plan_blocks(plan, arguments, even_pages, multiprocessors);
  plan.partial_floats = plan.tickets == 0 ? 0
                                          : (static_cast<size_t>(multiprocessors) + plan.tickets) *
                                                static_cast<size_t>(chosen.rows * (chosen.width + 2));
  return plan;
}

cudaError_t launch_attend(const AttendPlan& plan, AttendArguments& arguments, float* partials, int32_t* tickets,
                          cudaStream_t stream) {
  arguments.partials = partials;
  arguments.tickets = tickets;
  arguments.group = divisor(static_cast<uint32_t>(arguments.q_heads / arguments.kv_heads));
  arguments.units = plan.units;
  arguments.parts = plan.parts;
  arguments.part_pages = plan.part_pages;
  arguments.one_row_block = plan.one_row_block ? 1 : 0;
  arguments.single_newest = plan.single_newest ? 1 : 0;
  arguments.ring_bytes = plan.ring_bytes;
  void* parameters[] = {&arguments};
  return cudaLaunchKernel(plan.kernel, plan.blocks, dim3(static_cast<uint32_t>(plan.threads)), parameters,
                          static_cast<size_t>(plan.shared_bytes), stream);
}

}  // namespace kvq::cuda
