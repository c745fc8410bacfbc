#include "backend/cpu/attend/attend_sizes.h"

#include <algorithm>
#include <thread>

namespace kvq::cpu {

/// A host's parallel loop may have more threads than known here; the excess waits.
size_t CallSizes::items_at_once(int32_t n_threads) {
  return n_threads > 0 ? static_cast<size_t>(n_threads) : std::max(1U, std::thread::hardware_concurrency());
}

void CallSizes::add_cut(uint64_t heads, const HeadCut& head, int32_t pages) {
  const auto whole = static_cast<uint64_t>(head.rows / head.item_rows);
  const int32_t rest = head.rows % head.item_rows;
  const auto ranges = static_cast<uint64_t>(std::max(pages + head.item_pages - 1, head.item_pages) / head.item_pages);
  const uint64_t merges = whole + (rest > 0 ? 1 : 0);
  merges_ += heads * merges;
  items_ += heads * merges * ranges;
  partials_ += heads * ranges * (whole * layout_.item_floats(head.item_rows) + layout_.item_floats(rest));
}

void AttendSizes::join(const AttendSizes& other) {
  for (const auto member :
       {&AttendSizes::rope_table, &AttendSizes::queries, &AttendSizes::rotated_queries, &AttendSizes::rounded_queries,
        &AttendSizes::biases, &AttendSizes::stream_keys, &AttendSizes::stream_values, &AttendSizes::stream_queries,
        &AttendSizes::partials, &AttendSizes::items, &AttendSizes::merges, &AttendSizes::largest, &AttendSizes::pieces,
        &AttendSizes::piece_bytes}) {
    this->*member = std::max(this->*member, other.*member);
  }
}

uint64_t AttendSizes::bytes() const {
  const uint64_t streams = stream_keys + stream_values + stream_queries;
  return (rope_table + queries + rotated_queries + biases + streams + partials + largest) * sizeof(float) +
         rounded_queries * sizeof(int32_t) + items * (sizeof(AttendItem) + sizeof(int32_t)) +
         merges * sizeof(AttendMerge) + ScratchPool::bytes_of(pieces, piece_bytes);
}

void AttendWorkspace::make_room(const AttendSizes& sizes) {
  grow(rope_table, size(sizes.rope_table));
  grow(queries, size(sizes.queries));
  grow(rotated_queries, size(sizes.rotated_queries));
  grow(rounded_queries, size(sizes.rounded_queries));
  grow(biases, size(sizes.biases));
  grow(stream(StreamTensor::kKeys), size(sizes.stream_keys));
  grow(stream(StreamTensor::kValues), size(sizes.stream_values));
  grow(stream(StreamTensor::kQueries), size(sizes.stream_queries));
  grow(partials, size(sizes.partials));
  cpu::make_room(items, size(sizes.items));
  cpu::make_room(order, size(sizes.items));
  cpu::make_room(merges, size(sizes.merges));
  cpu::make_room(largest, size(sizes.largest));
  largest.resize(size(sizes.largest), 0.0F);
  scratch.prepare(size(sizes.pieces), size(sizes.piece_bytes));
}

AttendSizes sizes_of(const ExpectedCall& call, const KernelTable& kernels, int32_t n_threads) {
  AttendSizes most;
  for (const AttendBatch& layer : call.layers) {
    CallSizes sizes(layer, kernels);
    const auto sequences = static_cast<uint64_t>(call.sequences);
    sizes.add(sequences * static_cast<uint64_t>(layer.kv_heads), call.queries, call.pages);
    if (call.more_queries > 0) sizes.add(static_cast<uint64_t>(layer.kv_heads), call.more_queries, call.pages);
    const uint64_t tokens = sequences * static_cast<uint64_t>(call.queries) + static_cast<uint64_t>(call.more_queries);
    AttendSizes of_layer = sizes.sum(tokens, n_threads);
    if (layer.rope->has_streams()) {
      const auto kv_heads = static_cast<uint64_t>(layer.kv_heads);
      const auto key_dim = static_cast<uint64_t>(layer.head.whole_key());
      of_layer.stream_keys = tokens * kv_heads * key_dim;
      of_layer.stream_values = layer.head.is_latent ? 0 : tokens * kv_heads * static_cast<uint64_t>(layer.head.values);
      of_layer.stream_queries = tokens * static_cast<uint64_t>(layer.q_heads) * key_dim;
    }
    if (call.weighed == Pooling::kMax) {  // sequences run one after another
      of_layer.largest = static_cast<uint64_t>(layer.kv_heads) * static_cast<uint64_t>(call.pages) * kPageSlots;
    }
    most.join(of_layer);
  }
  return most;
}

uint64_t workspace_bytes(std::span<const ExpectedCall> calls, const KernelTable& kernels, int32_t n_threads) {
  AttendSizes most;
  for (const ExpectedCall& call : calls) most.join(sizes_of(call, kernels, n_threads));
  return sizeof(AttendWorkspace) + most.bytes();
}

}  // namespace kvq::cpu
