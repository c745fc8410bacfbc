#include "pool/plan.h"

#include "append/append.h"
#include "attend/routes.h"
#include "kernels/pool/append.h"
#include "kernels/pool/table.h"
#include "kernels/wide/wide.h"
#include "pages/codecs.h"

#include <algorithm>

namespace kvq::cuda {
namespace {

bool is_centred(const PooledLayer& layer) { return format_code(*layer.format).centred(); }

bool is_wide(const AttendBatch& queries) { return needs_wide(queries.head, *queries.rope); }

bool any_gains(FormatCode format) { return format.keys().has_gains() || format.values().has_gains(); }

/// Beginnings of rounds, and the end.
size_t rounds_of(const PoolStarts& starts) { return static_cast<size_t>(starts.n_rounds) + 1; }
size_t rounds_bytes(const PoolStarts& starts) { return DeviceArrays::bytes_for_room<int32_t>(rounds_of(starts)); }

void set_starts(AttendArguments& arguments, const PoolStarts& starts) {
  PoolPages& pages = arguments.lists.pages;
  pages.sequences = starts.sequences;
  pages.row_starts = starts.rows;
  pages.page_starts = starts.pages;
  arguments.group = divisor(static_cast<uint32_t>(starts.division.group));
}

/// Floats that the blocks of any wide kernel leave for merging.
size_t wide_partials(const Device& device, const HeadShape& head) {
  size_t most = 0;
  for (const auto& choose : {sliced_wide_8, sliced_wide_16, large_wide, hopper_wide}) {
    const WideKernel kernel = choose(head, device.shared_limit());
    most = std::max(most, static_cast<size_t>(kernel.blocks) * static_cast<size_t>(kernel.partial_floats));
  }
  return most * static_cast<size_t>(device.multiprocessors());
}

}  // namespace

CudaPoolPlan::Readers CudaPoolPlan::readers_of(const AttendBatch& queries, bool centred) const {
  const PoolTiling tiling = choose_tiling(device_, queries, centred, maxima_, pool_.block_pages);
  return {tiling, queries.q_heads / queries.kv_heads,
          tiling.rounds > 0 ? tiling.division.least_queries - 1 : INT32_MAX};
}

Vector<PoolStarts> CudaPoolPlan::divisions_of(Allocator& allocator) const {
  Vector<PoolStarts> starts(allocator);
  const auto add = [&starts](const PoolDivision& division, int32_t rounds) {
    const auto found = std::ranges::find(starts, division, &PoolStarts::division);
    if (found == starts.end()) starts.push_back({division, nullptr, nullptr, nullptr, nullptr, rounds});
  };
  for (const bool centred : {false, true}) {
    if (std::ranges::none_of(pool_.layers, [&](const auto& each) { return is_centred(each) == centred; })) continue;
    for (const AttendBatch& queries : pool_.queries) {
      const Readers readers = readers_of(queries, centred);
      for (const int32_t rows : {8, 16}) add(readers.others(rows), 0);
      if (is_wide(queries)) add(readers.others(kManyRows), 0);
      if (readers.tiling.rounds > 0) add(readers.tiling.division, readers.tiling.rounds);
    }
  }
  return starts;
}

CudaPoolPlan::Sizes CudaPoolPlan::sizes_of() const {
  constexpr size_t kMostPartial = std::max(16 * (128 + 2), 8 * (kMaxHeadDim + 2));
  Sizes sizes;
  const auto sequences = static_cast<size_t>(maxima_.sequences);
  sizes.blocks = sequences * static_cast<size_t>(maxima_.blocks);
  sizes.partials = 2 * static_cast<size_t>(device_.multiprocessors()) * kMostPartial;
  for (const PoolStarts& each : starts_) {
    if (each.n_rounds > 0) sizes.round_bytes += rounds_bytes(each);
  }
  const PooledWork work{maxima_.tokens, maxima_.queries, 0};
  for (const AttendBatch& queries : pool_.queries) {
    const Readers readers = readers_of(queries, false);
    if (readers.tiling.rounds > 0) sizes.tiles = std::max(sizes.tiles, readers.tiling.bytes());
    sizes.frequency_bytes += DeviceArrays::bytes_for_room<float>(queries.rope->inv_freq.size());
    if (is_wide(queries)) {
      sizes.partials = std::max(sizes.partials, wide_partials(device_, queries.head));
      sizes.zeros = std::max(sizes.zeros, static_cast<size_t>(largest_page(queries.head)));
      sizes.table = std::max(
          sizes.table, sizes.blocks * static_cast<size_t>(pool_.block_pages) * static_cast<size_t>(queries.kv_heads));
    } else {
      const int64_t row_blocks = most_row_blocks(work, maxima_.sequences, readers.others(8));
      sizes.tickets = std::max(sizes.tickets, static_cast<size_t>(row_blocks * queries.kv_heads));
    }
  }
  const auto work_pages = static_cast<size_t>(maxima_.tokens / kSlots) + sequences;
  for (const PooledLayer& layer : pool_.layers) {
    sizes.writes = std::max(sizes.writes, static_cast<size_t>(maxima_.tokens / kSlots) * (layer.has_tails() ? 2 : 1) *
                                              static_cast<size_t>(layer.kv_heads));
    if (!layer.has_tails()) continue;
    sizes.work = std::max(sizes.work, work_pages * static_cast<size_t>(layer.kv_heads) * layer.float16->bytes());
  }
  return sizes;
}

size_t CudaPoolPlan::bytes_of(const Sizes& sizes) const {
  const auto n = static_cast<size_t>(maxima_.sequences);
  const size_t starts = DeviceArrays::bytes_for_room<int32_t>(n + 1);
  const size_t sequences = DeviceArrays::bytes_for_room<PooledSequence>(n);
  return sequences + DeviceArrays::bytes_for_room<int32_t>(sizes.blocks) + 2 * starts +
         DeviceArrays::bytes_for_room<DeviceWrite>(sizes.writes) + starts_.size() * (sequences + 2 * starts) +
         sizes.round_bytes + DeviceArrays::bytes_for_room<PoolStarts>(starts_.size()) +
         DeviceArrays::bytes_for_room<std::byte>(sizes.tiles) + DeviceArrays::bytes_for_room<float>(sizes.partials) +
         DeviceArrays::bytes_for_room<int32_t>(sizes.tickets) + DeviceArrays::bytes_for_room<std::byte>(sizes.work) +
         DeviceArrays::bytes_for_room<DevicePage>(sizes.table) + DeviceArrays::bytes_for_room<std::byte>(sizes.zeros) +
         sizes.frequency_bytes;
}

CudaPoolPlan::CudaPoolPlan(Device& device, Allocator& allocator, const Call& call, const BlockPool& pool,
                           const PoolMaxima& maxima)
    : device_(device),
      pool_(pool),
      maxima_(maxima),
      starts_(divisions_of(allocator)),
      sizes_(sizes_of()),
      arrays_(device, allocator, bytes_of(sizes_)),
      frequencies_(allocator),
      layers_(allocator) {
  const auto n = static_cast<size_t>(maxima.sequences);
  plan_.block_pages = pool.block_pages;
  plan_.n_blocks = pool.n_blocks;
  plan_.n_tails = pool.n_tails;
  plan_.capacity = maxima.blocks;
  plan_.sequences = arrays_.take<PooledSequence>(n);
  plan_.blocks = arrays_.take<int32_t>(sizes_.blocks);
  plan_.job_starts = arrays_.take<int32_t>(n + 1);
  plan_.whole_starts = arrays_.take<int32_t>(n + 1);
  partials_ = arrays_.take<float>(sizes_.partials);
  tickets_ = arrays_.take<int32_t>(sizes_.tickets);
  writes_ = arrays_.take<DeviceWrite>(sizes_.writes);
  tiles_ = arrays_.take<std::byte>(sizes_.tiles);
  auto* work = arrays_.take<std::byte>(sizes_.work);
  auto* zeros = arrays_.take<std::byte>(sizes_.zeros);
  const auto clear = [&call](void* memory, size_t bytes) {
    call.require(cudaMemsetAsync(memory, 0, bytes, call.stream()), "cudaMemsetAsync");
  };
  clear(tickets_, sizes_.tickets * sizeof(int32_t));
  // Pages that no call has written are zeros, which products may read.
  clear(work, sizes_.work);
  clear(zeros, sizes_.zeros);
  make_starts();
  make_frequencies(pool);
  make_layers(pool, work, zeros);
}

void CudaPoolPlan::make_starts() {
  const auto n = static_cast<size_t>(maxima_.sequences);
  for (PoolStarts& each : starts_) {
    each.sequences = arrays_.take<PooledSequence>(n);
    each.rows = arrays_.take<int32_t>(n + 1);
    each.pages = arrays_.take<int32_t>(n + 1);
    if (each.n_rounds > 0) each.rounds = arrays_.take<int32_t>(rounds_of(each));
  }
  plan_.starts = arrays_.put(starts_);
  plan_.n_starts = static_cast<int32_t>(starts_.size());
}

void CudaPoolPlan::make_frequencies(const BlockPool& pool) {
  for (const AttendBatch& queries : pool.queries) {
    const Rope* rope = queries.rope;
    if (std::ranges::find(frequencies_, rope, &Frequencies::rope) != frequencies_.end()) continue;
    frequencies_.push_back({rope, arrays_.put(rope->inv_freq)});
  }
}

void CudaPoolPlan::make_layers(const BlockPool& pool, const std::byte* work, const std::byte* zeros) {
  auto* table = arrays_.take<DevicePage>(sizes_.table);
  layers_.reserve(pool.layers.size());
  for (const PooledLayer& from : pool.layers) {
    Layer layer{};
    const FormatCode format = format_code(*from.format);
    layer.written.add(format);
    layer.written = fit(layer.written, from.format->head, device_.shared_limit());
    layer.scales = from.scales;
    PoolPages& pages = layer.pages;
    pages.sequences = plan_.sequences;
    pages.blocks = plan_.blocks;
    pages.capacity = maxima_.blocks;
    pages.block_pages = pool.block_pages;
    pages.format = format.bits;
    pages.page_bytes = static_cast<int32_t>(from.format->bytes());
    pages.float16_bytes = static_cast<int32_t>(from.float16->bytes());
    pages.kv_heads = from.kv_heads;
    pages.tails = reinterpret_cast<uint64_t>(from.tails);
    pages.tail_stride = static_cast<int64_t>(from.tail_stride);
    pages.work = reinterpret_cast<uint64_t>(work);
    pages.table = table;
    pages.table_pages = maxima_.blocks * pool.block_pages;
    pages.zeros = reinterpret_cast<uint64_t>(zeros);
    for (const BlockRange& range : from.ranges) {
      pages.ranges[pages.n_ranges++] = {reinterpret_cast<uint64_t>(range.data), static_cast<int64_t>(range.stride),
                                        range.blocks};
    }
    layers_.push_back(layer);
  }
}

void CudaPoolPlan::plan(const PooledBatch& batch) {
  const Call call(device_);
  plan_.n_sequences = batch.n_sequences;
  plan_.n_tokens = batch.n_tokens;
  plan_.max_queries = batch.max_queries;
  plan_.max_length = batch.max_length;
  plan_.query_starts = batch.query_starts;
  plan_.lengths = batch.lengths;
  plan_.block_table = batch.block_table;
  plan_.table_stride = batch.table_stride;
  plan_.tails = batch.tails;
  call.require(launch_pool_plan(plan_, call.stream()), "planning kernel");
}

void CudaPoolPlan::run(const PooledCall& work) {
  const Call call(device_);
  const Layer& layer = layers_[static_cast<size_t>(work.layer)];
  PoolPages pages = layer.pages;
  pages.extends = work.tokens != nullptr && work.queries != nullptr ? 1 : 0;
  if (work.tokens != nullptr) store(call, layer, pages, *work.tokens);
  if (work.queries != nullptr) attend(call, layer, pages, *work.queries);
}

/// Stores all pages but the first and the last ones of sequences, if many may be new.
bool CudaPoolPlan::store_whole_pages(const Call& call, AppendArguments& arguments, const PoolPages& pages) const {
  constexpr int32_t kLeastTokens = 256;  // from which on a second launch is worth while
  if (plan_.max_queries < kLeastTokens) return false;
  const PoolWholePages whole{.starts = plan_.whole_starts,
                             .n_sequences = plan_.n_sequences,
                             .most = plan_.n_tokens / kSlots,
                             .writes = writes_,
                             .copies = pages.extends != 0 && pages.tails != 0 ? 2 : 1};
  arguments.writes = writes_;
  arguments.n_writes = whole.most * whole.copies * pages.kv_heads;
  if (!writes_whole_pages(arguments)) return false;
  call.require(launch_pool_writes(whole, pages, call.stream()), "append kernel");
  call.require(launch_append(arguments, call.stream()), "append kernel");
  return true;
}

void CudaPoolPlan::store(const Call& call, const Layer& layer, const PoolPages& pages, const TokenBatch& tokens) const {
  AppendArguments arguments = append_arguments(device_, tokens);
  arguments.pages = layer.written;
  arguments.target.view.scales = layer.scales;
  // Every job has a new token, and every one but a sequence's first fills a page.
  const int32_t most = std::min(plan_.n_tokens, plan_.n_tokens / kSlots + plan_.n_sequences);
  const PoolJobs jobs = store_whole_pages(call, arguments, pages)
                            ? PoolJobs{nullptr, plan_.n_sequences, 2 * plan_.n_sequences, 1}
                        : plan_.max_queries == 1 ? PoolJobs{nullptr, plan_.n_sequences, plan_.n_sequences, 0}
                                                 : PoolJobs{plan_.job_starts, plan_.n_sequences, most, 0};
  call.require(launch_pool_append(arguments, pages, jobs, call.stream()), "append kernel");
}

void CudaPoolPlan::attend(const Call& call, const Layer& layer, const PoolPages& pages,
                          const AttendBatch& queries) const {
  AttendArguments arguments{};
  const auto frequencies = std::ranges::find(frequencies_, queries.rope, &Frequencies::rope);
  set_batch(arguments, queries, frequencies->numbers);
  const FormatCode format{pages.format};
  arguments.any_gains = any_gains(format) ? 1 : 0;
  arguments.any_centres = format.centred() ? 1 : 0;
  arguments.n_sequences = plan_.n_sequences;
  arguments.uniform_pages = -1;
  arguments.pooled = 1;
  arguments.lists.pages = pages;
  arguments.lists.common.view.scales = layer.scales;
  PooledWork work{plan_.n_tokens, plan_.max_queries, (plan_.max_length + kSlots - 1) / kSlots};
  const Readers readers = readers_of(queries, format.centred());
  if (work.queries > readers.most_queries) {
    AttendArguments many = arguments;
    const PoolStarts& starts = starts_of(readers.tiling.division);
    set_starts(many, starts);
    attend_tiles(device_, call, {readers.tiling, starts, tiles_}, many, work);
    work.queries = readers.most_queries;
  }
  if (is_wide(queries)) {
    attend_wide(call, readers, arguments, work);
  } else {
    attend_pages(call, readers, arguments, work);
  }
}

const PoolStarts& CudaPoolPlan::starts_of(const PoolDivision& division) const {
  return *std::ranges::find(starts_, division, &PoolStarts::division);
}

void CudaPoolPlan::attend_pages(const Call& call, const Readers& readers, AttendArguments& arguments,
                                const PooledWork& work) const {
  const AttendLaunch launch = choose_pooled_launch(arguments, work, device_.multiprocessors(), device_.shared_limit());
  set_starts(arguments, starts_of(readers.others(launch.rows)));
  call.require(launch_attend(launch, arguments, partials_, tickets_, call.stream()), "attention kernel");
}

void CudaPoolPlan::attend_wide(const Call& call, const Readers& readers, AttendArguments& arguments,
                               const PooledWork& work) const {
  const int32_t group = readers.group;
  const WideWork of_call{.most_rows = work.queries * group,
                         .rows = work.tokens * group * arguments.kv_heads,
                         .longest = work.pages,
                         .multiprocessors = device_.multiprocessors(),
                         .tiles = false};
  const WideKernel kernel = require_wide(device_, arguments.head, of_call);
  WideLaunch launch{};
  static_cast<WideWidths&>(launch) = kernel.widths;
  launch.ring_bytes = kernel.ring_bytes;
  launch.heads = arguments.kv_heads;
  launch.row_blocks = static_cast<int32_t>(most_row_blocks(work, arguments.n_sequences, readers.others(kernel.rows)));
  launch.parts = parts_of(launch.row_blocks * launch.heads, work.pages, kernel.blocks * device_.multiprocessors());
  launch.partials = partials_;
  set_starts(arguments, starts_of(readers.others(kernel.rows)));
  arguments.lists.common.view.pages = arguments.lists.pages.table;
  arguments.lists.common.view.capacity = arguments.lists.pages.table_pages;
  call.require(launch_pool_table(arguments.lists.pages, arguments.n_sequences, call.stream()), "planning kernel");
  call.require(kernel.launch(arguments, launch, kernel.shared_bytes, call.stream()), "attention kernel");
}

}  // namespace kvq::cuda
