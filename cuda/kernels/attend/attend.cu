#include "kernels/attend/kernel.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Each unit is one block's.
void choose_whole_units(AttendLaunch& launch, const AttendArguments& arguments) {
  launch.parts = 1;
  launch.part_pages = INT32_MAX;
  launch.blocks =
      dim3(static_cast<uint32_t>(launch.units / arguments.kv_heads), static_cast<uint32_t>(arguments.kv_heads));
}

/// Chooses which blocks walk which pages.
void choose_blocks(AttendLaunch& launch, const AttendArguments& arguments, int32_t even_pages,
                   int32_t multiprocessors) {
  const int32_t warps = launch.threads / 32;
  choose_whole_units(launch, arguments);
  if (arguments.pooled == 0 && (launch.units > kMaxSplitUnits || launch.units >= 2 * multiprocessors)) return;
  launch.tickets = static_cast<size_t>(launch.units);
  launch.parts = even_pages < 0 ? 0 : multiprocessors / launch.units;
  if (launch.parts > 0) {
    const int64_t in_a_row = std::max<int64_t>(ceiling(int64_t{even_pages} * launch.units, multiprocessors), warps);
    launch.part_pages = std::max(static_cast<int32_t>(ceiling(even_pages, launch.parts)), warps);
    if (launch.part_pages > in_a_row + kCrossing) launch.parts = 0;
  }
  if (launch.parts == 0) {
    launch.blocks = dim3(static_cast<uint32_t>(multiprocessors));
    // Fewer units are padded to whole shares.
    launch.planned = arguments.pooled != 0 && launch.units >= multiprocessors;
    return;
  }
  if (arguments.uniform_pages >= 0) {
    launch.parts = std::max(static_cast<int32_t>(ceiling(even_pages, launch.part_pages)), 1);
  } else {
    launch.part_pages = 0;
  }
  launch.blocks.z = static_cast<uint32_t>(launch.parts);
}

/// A kernel for blocks of at least so many rows if there is one, and its memory.
AttendLaunch choose_kernel(const AttendArguments& arguments, int32_t rows, int32_t shared_limit, int32_t& width) {
  // A ring holds at least one side of an FP16 page, and a warp's outputs after the walk.
  const auto least_ring = [&arguments](const AttendKernel& kernel) {
    const int32_t side = std::max(side_places(Side::kKeys, CodeType::float16(), arguments.head.keys).bytes,
                                  side_places(Side::kValues, CodeType::float16(), arguments.head.keys).bytes);
    return std::max((side + 127) / 128 * 128, kernel.rows * kernel.width * 4);
  };
  const auto room = [&arguments, shared_limit](const AttendKernel& kernel) {
    return shared_limit - kernel.header - kernel.centre_bytes(arguments.centres) - kOverrun;
  };
  AttendKernel chosen =
      arguments.any_gains != 0 ? choose_gains(arguments.head.keys, rows) : choose_plain(arguments.head.keys, rows);
  if (arguments.any_centres != 0) {
    const bool several = arguments.centres.key_centres > 1 || arguments.centres.value_centres > 1;
    chosen = several ? choose_centres(arguments.head.keys, rows) : choose_centre(arguments.head.keys, rows);
    if (several && room(chosen) < chosen.warps * least_ring(chosen))
      chosen = choose_far_centres(arguments.head.keys, rows);
  }
  const int32_t least = least_ring(chosen);
  const int32_t available = room(chosen);
  const int32_t warps = std::max(1, std::min(chosen.warps, available / least));
  AttendLaunch launch{};
  launch.kernel = chosen.function;
  launch.rows = chosen.rows;
  width = chosen.width;
  launch.threads = 32 * warps;
  launch.ring_bytes = available / warps / 128 * 128;
  launch.shared_bytes = shared_limit - available + warps * launch.ring_bytes;
  return launch;
}

size_t partial_floats(const AttendLaunch& launch, int32_t width, int32_t multiprocessors) {
  if (launch.tickets == 0) return 0;
  return size_t{2} * static_cast<size_t>(multiprocessors) * static_cast<size_t>(launch.rows * (width + 2));
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

AttendLaunch choose_launch(const AttendArguments& arguments, int32_t even_pages, int32_t multiprocessors,
                           int32_t shared_limit) {
  const int32_t group = arguments.q_heads / arguments.kv_heads;
  int32_t rows = 0;
  for (int32_t i = 0; i < arguments.n_sequences; ++i) {
    rows = std::max(rows, arguments.sequences[i].query_count > 8 ? 16 : arguments.sequences[i].query_count * group);
  }
  int32_t width = 0;
  AttendLaunch launch = choose_kernel(arguments, rows, shared_limit, width);
  launch.one_row_block = true;
  launch.single_newest =
      arguments.query_positions == nullptr && arguments.window == 0 && arguments.mask.bits == nullptr;
  int64_t row_blocks = 0;
  for (int32_t i = 0; i < arguments.n_sequences; ++i) {
    const int32_t queries = arguments.sequences[i].query_count;
    const int64_t of_sequence = ceiling(int64_t{queries} * group, launch.rows);
    row_blocks += of_sequence;
    launch.one_row_block = launch.one_row_block && of_sequence == 1;
    launch.single_newest = launch.single_newest && queries == 1;
  }
  launch.units = static_cast<int32_t>(row_blocks * arguments.kv_heads);
  choose_blocks(launch, arguments, even_pages, multiprocessors);
  launch.partial_floats = partial_floats(launch, width, multiprocessors);
  return launch;
}

int64_t most_row_blocks(const PooledWork& work, int32_t n_sequences, const PoolDivision& division) {
  const int64_t of_sequence = ceiling(int64_t{work.queries} * division.group, division.rows);
  const int64_t of_tokens = (int64_t{work.tokens} * division.group - 1) / division.rows;
  return std::min(of_sequence * n_sequences, of_tokens + n_sequences);
}

AttendLaunch choose_pooled_launch(const AttendArguments& arguments, const PooledWork& work, int32_t multiprocessors,
                                  int32_t shared_limit) {
  const int32_t group = arguments.q_heads / arguments.kv_heads;
  const int32_t rows = work.queries > 8 ? 16 : work.queries * group;
  int32_t width = 0;
  AttendLaunch launch = choose_kernel(arguments, rows, shared_limit, width);
  launch.one_row_block = work.queries * group <= launch.rows;
  launch.single_newest = work.queries == 1 && arguments.window == 0 && arguments.mask.bits == nullptr;
  const int64_t row_blocks = most_row_blocks(work, arguments.n_sequences, {group, launch.rows});
  launch.units = static_cast<int32_t>(row_blocks * arguments.kv_heads);
  if (int64_t{launch.units} * work.pages > INT32_MAX / 2) {  // more than sums of pages hold
    choose_whole_units(launch, arguments);
    return launch;
  }
  const bool even = arguments.n_sequences == 1 && launch.one_row_block;
  choose_blocks(launch, arguments, even ? work.pages : -1, multiprocessors);
  launch.partial_floats = partial_floats(launch, width, multiprocessors);
  return launch;
}

cudaError_t launch_attend(const AttendLaunch& launch, AttendArguments& arguments, float* partials, int32_t* tickets,
                          cudaStream_t stream) {
  arguments.partials = partials;
  arguments.tickets = tickets;
  arguments.group = divisor(static_cast<uint32_t>(arguments.q_heads / arguments.kv_heads));
  arguments.units = launch.units;
  arguments.parts = launch.parts;
  arguments.part_pages = launch.part_pages;
  arguments.one_row_block = launch.one_row_block ? 1 : 0;
  arguments.single_newest = launch.single_newest ? 1 : 0;
  arguments.planned = launch.planned ? 1 : 0;
  arguments.ring_bytes = launch.ring_bytes;
  void* parameters[] = {&arguments};
  return cudaLaunchKernel(launch.kernel, launch.blocks, dim3(static_cast<uint32_t>(launch.threads)), parameters,
                          static_cast<size_t>(launch.shared_bytes), stream);
}

}  // namespace kvq::cuda
