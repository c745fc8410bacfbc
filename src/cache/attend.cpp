#include "cache/attend.h"

#include "cache/stream_positions.h"
#include "core/window.h"

namespace kvq {
namespace {

/// What the queries of a call see in a layer, as of newest_hidden().
int32_t window_of(const LayerShape& shape, const Cache& cache, int32_t given) {
  if (given == 0) return shape.window;
  const int32_t kept = cache.layer(shape.pages_index).window;
  if (kept < 0) {
    fail(KVQ_E_ARGUMENT, "batch->sliding_window is %d, must be 0: layer %d has chunks of %d positions", given,
         shape.number, -kept);
  }
  if (kept > 0 && given > kept) {
    fail(KVQ_E_ARGUMENT, "batch->sliding_window is %d, but layer %d keeps a window of %d", given, shape.number, kept);
  }
  return given;
}

}  // namespace

AttendBatch attend_batch(const Cache& cache, const LayerShape& shape, const kvq_attend_batch& given) {
  AttendBatch batch = cache.attend_batch(shape);
  batch.q = given.q;
  batch.q_dtype = given.q_dtype;
  batch.q_strides = {given.q_token_stride, given.q_head_stride};
  batch.out = given.output;
  batch.out_dtype = given.output_dtype;
  batch.out_strides = {given.output_token_stride, given.output_head_stride};
  batch.lse = given.lse;
  batch.sinks = given.sinks;
  batch.mask = given.mask;
  batch.mask_slots = given.mask_slots;
  if (given.logit_softcap != 0.0F) batch.softcap = given.logit_softcap;
  return batch;
}

AttendRequest::AttendRequest(Cache& cache, const LayerShape& shape, const kvq_attend_batch& batch, CallSpace& space)
    : cache_(cache),
      shape_(shape),
      layer_(shape.pages_index),
      batch_(batch),
      recorded_(cache.backend.recording()),
      window_(window_of(shape, cache, batch.sliding_window)),
      space_(space) {
  if (recorded_ && cache.eviction.observes()) {
    fail(
        KVQ_E_UNSUPPORTED,
        "the cache's policy evicts by queries, which replays of a CUDA graph do not show: attend outside of the graph, "
        "or evict with method: streaming");
  }
  if (batch.mask != nullptr && cache.eviction.budget > 0) {
    fail(KVQ_E_UNSUPPORTED, "batch->mask is given, but the cache's policy evicts: slots of its lists have no numbers");
  }
  space_.sequences.clear();
  space_.lists.clear();
  space_.counts.clear();
  space_.positions.clear();
  // Entries of `sequences` point into lists and counts: reserved in full, never reallocated.
  space_.reserve(static_cast<size_t>(batch.n_sequences), 0, shape.kv_heads);
}

void AttendRequest::add(int32_t index, const Sequence& sequence) {
  const int32_t count = batch_.query_counts != nullptr ? batch_.query_counts[index] : 1;
  if (count < 1) fail(KVQ_E_ARGUMENT, "batch->query_counts[%d] is %d, must be at least 1", index, count);
  if (recorded_) {
    if (sequence.reserve(layer_) == nullptr) {
      fail(KVQ_E_STATE, "batch->sequences[%d] has no preallocated pages: call kvq_sequence_reserve before capturing",
           index);
    }
    require_calibrated(sequence, layer_, "a CUDA graph cannot attend to the sequence");
  } else {
    follow_replays(sequence);
  }
  const int32_t length = sequence.length(layer_);
  if (!recorded_ && batch_.query_positions == nullptr && count > length) {
    fail(KVQ_E_ARGUMENT, "batch->query_counts[%d] is %d, but layer %d of the sequence holds %d tokens: append first",
         index, count, shape_.pages_layer, length);
  }
  if (const int32_t least = recorded_ ? 0 : sequence.slots_to_mask(layer_); batch_.mask_slots < least) {
    fail(KVQ_E_STATE,
         "batch->mask_slots is %d, must be at least %d: positions of batch->sequences[%d] do not ascend from there on "
         "in layer %d",
         batch_.mask_slots, least, index, shape_.pages_layer);
  }
  const size_t first_list = space_.lists.size();
  for (int32_t head = 0; head < shape_.kv_heads; ++head) {
    const Sequence::PageList& list = sequence.list(layer_, head);
    space_.lists.push_back(list.data());
    space_.counts.push_back(static_cast<int32_t>(list.size()));
  }
  space_.sequences.push_back({.mirror = sequence.mirror(layer_),
                              .pages = space_.lists.data() + first_list,
                              .page_counts = space_.counts.data() + first_list,
                              .query_begin = queries_,
                              .query_count = count,
                              .scales = sequence.scales(layer_),
                              .first_masked = length - sequence.forgotten_slots(layer_) - batch_.mask_slots});
  queries_ += count;
}

void AttendRequest::place(int32_t index, const Sequence& sequence) {
  if (recorded_) return;
  space_.positions.reserve(static_cast<size_t>(queries_));
  const AttendSequence& entry = space_.sequences[static_cast<size_t>(index)];
  const int32_t first = entry.query_begin;
  const int32_t count = entry.query_count;
  const int32_t forgotten = sequence.layers[static_cast<size_t>(layer_)].forgotten;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t position = batch_.query_positions != nullptr ? batch_.query_positions[first + i]
                                                               : sequence.position_from_end(layer_, count - i);
    if (position < 0)
      fail(KVQ_E_ARGUMENT, "batch->query_positions[%d] is %d, must not be negative", first + i, position);
    if (forgotten >= 0 && newest_hidden(position, window_) < forgotten) {
      fail(KVQ_E_STATE, "query %d is at position %d and sees tokens up to position %d, which layer %d has freed",
           first + i, position, forgotten, shape_.pages_layer);
    }
    space_.positions.push_back(position);
  }
}

AttendBatch AttendRequest::run() {
  AttendBatch batch = attend_batch(cache_, shape_, batch_);
  batch.sequences = space_.sequences;
  batch.query_positions = space_.positions;
  if (recorded_ && batch_.query_positions != nullptr) {
    batch.query_positions = {batch_.query_positions, static_cast<size_t>(queries_)};
  }
  batch.newest_queries = batch_.query_positions == nullptr;
  batch.recorded = recorded_;
  batch.window = window_;
  rotate_queries(cache_, shape_, queries_, batch_.rope_positions, *space_.workspace, batch);
  cache_.backend.attention().attend(batch, *space_.workspace);
  return batch;
}

}  // namespace kvq
