#include "backend/cpu/attend/attend_sizes.h"

#include <algorithm>
#include <thread>

namespace kvq::cpu {
namespace {

/// Loops of the caller's, whose threads nobody knows, may have to wait for each other.
size_t items_at_once(int32_t n_threads) {
  return n_threads > 0 ? static_cast<size_t>(n_threads) : std::max(1U, std::thread::hardware_concurrency());
}

template <typename T>
void grow(Vector<T>& vector, size_t n) {
  if (vector.size() >= n) return;
  vector.reserve(n);  // no more than that
  vector.resize(n);
}

}  // namespace

CallSizes::CallSizes(const AttendBatch& batch, const KernelTable& kernels)
    : batch_(batch), kernels_(kernels), codec_(kernels.codec(batch.context)), layout_(batch, kernels) {}

HeadCut CallSizes::cut(int32_t queries, int32_t pages) const {
  const int32_t rows = queries * (batch_.q_heads / batch_.kv_heads);
  const ContextPlan plan = codec_ != nullptr ? codec_->plan(batch_, kernels_, rows) : ContextPlan{0, kItemRows, 0};
  // Many rows are work enough without splitting the pages, and their partials would be large.
  const int32_t item_pages = rows <= kItemRows ? kSplitPages : std::max(pages, 1);
  return {.rows = rows,
          .item_rows = plan.item_rows,
          .item_pages = item_pages,
          .way = plan.way,
          .work_bytes = plan.work_bytes};
}

void CallSizes::add(size_t heads, int32_t queries, int32_t pages) {
  const HeadCut head = cut(queries, pages);
  const auto whole = static_cast<size_t>(head.rows / head.item_rows);
  const int32_t rest = head.rows % head.item_rows;
  const auto stretches = static_cast<size_t>(std::max(pages + head.item_pages - 1, head.item_pages) / head.item_pages);
  const size_t merges = whole + (rest > 0 ? 1 : 0);
  merges_ += heads * merges;
  items_ += heads * merges * stretches;
  partials_ += heads * stretches * (whole * layout_.item_floats(head.item_rows) + layout_.item_floats(rest));
  work_bytes_ = std::max(work_bytes_, head.work_bytes);
}

AttendSizes CallSizes::sum(size_t queries, int32_t n_threads) const {
  const size_t rows = queries * static_cast<size_t>(batch_.q_heads) + kBlockRows;
  const size_t floats = rows * static_cast<size_t>(batch_.head_dim);
  AttendSizes sizes;
  sizes.rope_table = queries * batch_.rope->table_stride();
  sizes.queries = floats;
  if (batch_.any_hadamard_keys) sizes.rotated_queries = floats;
  if (batch_.any_gain_shape_keys) sizes.rounded_queries = rows * rounded_stride(batch_.head_dim);
  sizes.partials = partials_;
  sizes.items = items_;
  sizes.merges = merges_;
  sizes.pieces = work_bytes_ > 0 ? std::min(items_, items_at_once(n_threads)) : 0;
  sizes.piece_bytes = work_bytes_;
  return sizes;
}

void AttendSizes::join(const AttendSizes& other) {
  for (const auto member :
       {&AttendSizes::rope_table, &AttendSizes::queries, &AttendSizes::rotated_queries, &AttendSizes::rounded_queries,
        &AttendSizes::partials, &AttendSizes::items, &AttendSizes::merges, &AttendSizes::largest, &AttendSizes::pieces,
        &AttendSizes::piece_bytes}) {
    this->*member = std::max(this->*member, other.*member);
  }
}

uint64_t AttendSizes::bytes() const {
  return (rope_table + queries + rotated_queries + partials + largest) * sizeof(float) +
         rounded_queries * sizeof(int32_t) + items * (sizeof(AttendItem) + sizeof(int32_t)) +
         merges * sizeof(AttendMerge) + ScratchPool::bytes_of(pieces, piece_bytes);
}

void AttendWorkspace::make_room(const AttendSizes& sizes) {
  grow(rope_table, sizes.rope_table);
  grow(queries, sizes.queries);
  grow(rotated_queries, sizes.rotated_queries);
  grow(rounded_queries, sizes.rounded_queries);
  grow(partials, sizes.partials);
  items.clear();
  items.reserve(sizes.items);
  order.clear();
  order.reserve(sizes.items);
  merges.clear();
  merges.reserve(sizes.merges);
  largest.clear();
  largest.reserve(sizes.largest);
  largest.resize(sizes.largest, 0.0F);
  scratch.prepare(sizes.pieces, sizes.piece_bytes);
}

uint64_t workspace_bytes(const ExpectedCall& call, const KernelTable& kernels, int32_t n_threads) {
  AttendSizes most;
  for (const AttendBatch& layer : call.layers) {
    if (call.queries == 0) break;
    CallSizes sizes(layer, kernels);
    const auto sequences = static_cast<size_t>(call.sequences);
    sizes.add(sequences * static_cast<size_t>(layer.kv_heads), call.queries, call.pages);
    AttendSizes of_layer = sizes.sum(sequences * static_cast<size_t>(call.queries), n_threads);
    if (call.weighed == Pooling::kMax) {  // of one sequence after the other
      of_layer.largest = static_cast<size_t>(layer.kv_heads) * static_cast<size_t>(call.pages) * kPageSlots;
    }
    most.join(of_layer);
  }
  return sizeof(AttendWorkspace) + most.bytes();
}

}  // namespace kvq::cpu
