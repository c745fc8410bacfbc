// How the host has slots weighed, chosen and moved.
#include "eviction/eviction.h"

#include "attend_call.h"
#include "codecs.h"
#include "device_block.h"
#include "kernels/weigh.h"
#include "page_table.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace kvq::cuda {
namespace {

/// Queries that are weighed at a time: what they attend to is kept nowhere but must go somewhere.
constexpr int32_t kQueriesTogether = 4096;

}  // namespace

void CudaBackend::copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  const Call call(*this, Call::Reports::kNothing);
  call.require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "cudaMemcpyAsync");
}

void CudaBackend::clear(void* data, size_t bytes) {
  const Call call(*this, Call::Reports::kNothing);
  call.require(cudaMemsetAsync(data, 0, bytes, stream_), "cudaMemsetAsync");
}

void CudaBackend::keep_queries(const QueriesToKeep& queries) noexcept {
  const std::lock_guard lock(mutex_);
  const DeviceGuard guard(device_);
  const AttendBatch& batch = queries.batch;
  const cudaError_t status = launch_keep({.q = batch.q,
                                          .strides = batch.q_strides,
                                          .dtype = batch.q_dtype,
                                          .first = queries.first,
                                          .count = queries.count,
                                          .q_heads = batch.q_heads,
                                          .head_dim = batch.head_dim,
                                          .rows = queries.rows},
                                         stream_);
  if (status != cudaSuccess && broken_ == cudaSuccess) broken_ = status;
}

void CudaBackend::weigh(const AttendBatch& batch, Pooling group, Workspace& workspace, std::span<float* const> masses) {
  const Call call(*this);
  const AttendSequence& whole = batch.sequences.front();
  auto* table = static_cast<PageTable*>(whole.mirror);
  table->catch_up(whole.pages, whole.page_counts);
  const int32_t pages = *std::max_element(whole.page_counts, whole.page_counts + batch.kv_heads);
  auto& space = static_cast<AttendWorkspace&>(workspace);
  const int32_t most = std::min(whole.query_count, kQueriesTogether);
  const size_t scalars = static_cast<size_t>(most) * static_cast<size_t>(batch.q_heads);
  const size_t lse_bytes = (scalars * sizeof(float) + 255) / 256 * 256;
  const size_t target_bytes = (masses.size_bytes() + 255) / 256 * 256;
  const DeviceBlock scratch(
      *this, space.allocator(),
      target_bytes + lse_bytes + scalars * static_cast<size_t>(batch.head_dim) * sizeof(uint16_t));
  auto* staged = static_cast<float**>(staging_->take(masses.size_bytes()));
  std::copy(masses.begin(), masses.end(), staged);
  call.require(cudaMemcpyAsync(scratch.memory(), staged, masses.size_bytes(), cudaMemcpyHostToDevice, stream_),
               "cudaMemcpyAsync");
  staging_->done(stream_);
  for (int32_t begin = 0; begin < whole.query_count; begin += most) {
    AttendSequence some = whole;
    some.query_begin = 0;
    some.query_count = std::min(most, whole.query_count - begin);
    const int32_t first = whole.query_begin + begin;
    AttendBatch part = batch;
    part.sequences = {&some, 1};
    part.query_positions =
        batch.query_positions.subspan(static_cast<size_t>(first), static_cast<size_t>(some.query_count));
    part.newest_queries = false;
    part.q = static_cast<const std::byte*>(batch.q) +
             static_cast<int64_t>(batch.q_strides.at(static_cast<size_t>(first), 0) * dtype_bytes(batch.q_dtype));
    part.lse = reinterpret_cast<float*>(scratch.memory() + target_bytes);
    part.out = scratch.memory() + target_bytes + lse_bytes;
    part.out_dtype = KVQ_F16;
    part.out_strides = {int64_t{batch.q_heads} * batch.head_dim, batch.head_dim};
    AttendCall attention(*this, call, part, space);
    attention.run();
    const WeighArguments weighing{.lse = part.lse,
                                  .masses = reinterpret_cast<float**>(scratch.memory()),
                                  .largest = group == Pooling::kMax ? 1 : 0,
                                  .rows = some.query_count * (batch.q_heads / batch.kv_heads),
                                  .ring_bytes = 0};
    call.require(launch_weigh(attention.arguments(), weighing, pages, shared_limit_, stream_), "weighing kernel");
    attention.done();
  }
}

void CudaBackend::select(Allocator& allocator, const Selection& selection, std::span<Vector<int32_t>> slots) {
  const Call call(*this);
  size_t total = 0;
  for (const int32_t count : selection.counts) total += static_cast<size_t>(count);
  auto* staged = static_cast<float*>(staging_->take(total * sizeof(float)));
  Vector<HeadScores> masses{StlAllocator<HeadScores>(allocator)};
  for (size_t head = 0; head < selection.counts.size(); ++head) {
    masses.emplace_back(staged, static_cast<size_t>(selection.counts[head]));
    call.require(
        cudaMemcpyAsync(staged, selection.masses[head], masses[head].size_bytes(), cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpyAsync");
    staged += masses[head].size();
  }
  call.require(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  select_slots(allocator, selection.eviction, masses, selection.total, slots);
}

void CudaBackend::take(float* to, const float* from, std::span<const int32_t> slots) {
  if (slots.empty()) return;
  const Call call(*this, Call::Reports::kNothing);
  auto* staged = static_cast<int32_t*>(staging_->take(slots.size_bytes()));
  std::copy(slots.begin(), slots.end(), staged);
  call.require(launch_take(to, from, staged, static_cast<int32_t>(slots.size()), stream_), "gathering kernel");
  staging_->done(stream_);
}

bool CudaBackend::moves(const PageFormat& format) const {
  return cuda::knows(format) && !format_code(format).centred();
}

void CudaBackend::move(const SlotMoves& moves) {
  if (moves.moves.empty()) return;
  const Call call(*this, Call::Reports::kNothing);
  auto* staged = static_cast<DeviceMove*>(staging_->take(moves.moves.size() * sizeof(DeviceMove)));
  std::transform(moves.moves.begin(), moves.moves.end(), staged, [&moves](const SlotMove& each) {
    const Page& page = *moves.lists[each.head][each.index];
    return DeviceMove{.page = reinterpret_cast<uint64_t>(page.data),
                      .target = reinterpret_cast<uint64_t>(moves.targets[static_cast<size_t>(each.head)]),
                      .slots = each.slots,
                      .rank = each.rank,
                      .format = format_code(*page.format()).bits,
                      .padding = 0};
  });
  const MoveArguments arguments{
      .moves = staged, .n = static_cast<int32_t>(moves.moves.size()), .head_dim = moves.head_dim};
  call.require(launch_move(arguments, multiprocessors_, stream_), "moving kernel");
  staging_->done(stream_);
}

}  // namespace kvq::cuda
