#pragma once

#include "cache/observations.h"
#include "cache/sequence.h"
#include "core/error.h"

#include <climits>

namespace kvq {

/// Tensors and options of a checked batch, for a layer; no sequences, and the layer's own window.
AttendBatch attend_batch(const Cache& cache, const LayerShape& shape, const kvq_attend_batch& given);

/// Collects the page lists of a batch and hands it to the backend.
class AttendRequest {
 public:
  AttendRequest(Cache& cache, const LayerShape& shape, const kvq_attend_batch& batch, CallSpace& space);
  void add(int32_t index, const Sequence& sequence);
  /// Find the queries of each sequence, after the last one was added.
  void place(int32_t index, const Sequence& sequence);
  /// Batch of the backend; valid as long as this lives.
  AttendBatch run();

 private:
  Cache& cache_;
  const LayerShape& shape_;
  int32_t layer_;  // with the pages
  const kvq_attend_batch& batch_;
  bool recorded_;
  int32_t window_;
  CallSpace& space_;
  int32_t queries_ = 0;
};

/// Attend in a layer of the model. Only queries of the layer that holds the pages are observed.
/// `sequence_at(i)` is sequence i of the batch; the other arguments of `batch` have been checked, and all strides are
/// given. `complete()` does what else may fail before the queries count as observed. `space` is the call's alone.
template <typename SequenceAt, typename Complete>
void attend(Cache& cache, const LayerShape& shape, const kvq_attend_batch& batch, CallSpace& space,
            const SequenceAt& sequence_at, const Complete& complete) {
  AttendRequest request(cache, shape, batch, space);
  for (int32_t i = 0; i < batch.n_sequences; ++i) request.add(i, sequence_at(i));
  for (int32_t i = 0; i < batch.n_sequences; ++i) request.place(i, sequence_at(i));
  const AttendBatch attended = request.run();
  if (!shape.has_own_pages()) return complete();
  const int32_t layer = shape.pages_index;
  Vector<ObservedQueries> counted(space.scratch);
  for (int32_t i = 0; i < batch.n_sequences; ++i) {
    if (!sequence_at(i).waits(layer)) continue;
    counted.reserve(counted.size() + 1);
    counted.emplace_back(sequence_at(i), layer, attended, attended.sequences[static_cast<size_t>(i)]);
  }
  const auto keep_counted = [&counted] {
    for (ObservedQueries& each : counted) each.keep();
  };
  if (!cache.eviction.observes()) {
    complete();
    return keep_counted();
  }
  // Queries count for the whole batch; a failure counts none.
  const auto for_first = [&](size_t n, const auto& use) {
    for (size_t i = 0; i < n; ++i) {
      const Sequence& sequence = sequence_at(static_cast<int32_t>(i));
      use(*sequence.observations, sequence, attended.sequences[i]);
    }
  };
  const auto n = static_cast<size_t>(batch.n_sequences);
  Vector<SlotMasses> staged(space.scratch);
  staged.reserve(n);
  try {
    for_first(n, [&](Observations& of, const Sequence& sequence, const AttendSequence& entry) {
      staged.push_back(of.stage(sequence, layer, attended, entry, space));
    });
    complete();
  } catch (...) {
    auto next = staged.begin();
    for_first(staged.size(), [&](Observations& of, const Sequence&, const AttendSequence& entry) {
      of.discard(layer, entry, *next++);
    });
    throw;
  }
  keep_counted();
  auto next = staged.begin();
  for_first(n, [&](Observations& of, const Sequence& sequence, const AttendSequence& entry) {
    of.commit(sequence, layer, attended, entry, *next++);
  });
}

}  // namespace kvq
