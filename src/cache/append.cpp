#include "cache/sequence.h"

#include "cache/prepared_append.h"
#include "core/error.h"

#include <climits>

namespace kvq {
namespace {

/// One sequence's tokens in a request, and their arguments' names in messages.
struct Arrival {
  const SequenceTokens& of;
  int32_t index;  // of the sequence
  int32_t first;  // of its tokens
  bool is_batch;

  const char* prefix() const { return is_batch ? "batch->" : ""; }
  /// Refuse the argument that counts the tokens.
  template <typename... Arguments>
  [[noreturn]] void refuse_count(const char* why, Arguments... arguments) const {
    char reason[sizeof(kvq_error::message)];
    std::snprintf(reason, sizeof(reason), why, arguments...);
    if (is_batch) fail(KVQ_E_ARGUMENT, "batch->token_counts[%d] is %d: %s", index, of.count, reason);
    fail(KVQ_E_ARGUMENT, "n is %d: %s", of.count, reason);
  }
};

/// Calls use(arrival) for every sequence.
template <typename Use>
void for_each_arrival(const AppendRequest& request, const Use& use) {
  int32_t first = 0;
  for (size_t i = 0; i < request.sequences.size(); ++i) {
    use(Arrival{request.sequences[i], static_cast<int32_t>(i), first, request.is_batch});
    first += request.sequences[i].count;
  }
}

void check_positions(const Arrival& arrival, int32_t layer, const int32_t* all) {
  const Sequence& sequence = *arrival.of.sequence;
  const int32_t n = arrival.of.count;
  int32_t previous = sequence.last_position(layer);
  if (n > INT32_MAX - sequence.length(layer)) {
    arrival.refuse_count("the layer holds %d tokens and can hold at most %d", sequence.length(layer), INT32_MAX);
  }
  if (all == nullptr) {
    if (n > int64_t{INT32_MAX} - previous) arrival.refuse_count("positions after %d would overflow", previous);
    return;
  }
  for (int32_t i = arrival.first; i < arrival.first + n; ++i) {
    if (all[i] < 0) {
      fail(KVQ_E_ARGUMENT, "%spositions[%d] is %d, must not be negative", arrival.prefix(), i, all[i]);
    }
    if (all[i] <= previous) {
      fail(KVQ_E_ARGUMENT, "%spositions[%d] is %d, must be greater than the one before it, %d", arrival.prefix(), i,
           all[i], previous);
    }
    previous = all[i];
  }
}

void record(int32_t layer, const AppendRequest& request) {
  for_each_arrival(request, [&](const Arrival& arrival) {
    if (request.positions != nullptr) {
      fail(KVQ_E_ARGUMENT, "%spositions must be NULL while a CUDA graph is captured", arrival.prefix());
    }
    if (arrival.of.count > kPageSlots) {
      arrival.refuse_count("one append in a CUDA graph takes at most %d tokens", kPageSlots);
    }
    if (arrival.of.sequence->reserve(layer) == nullptr) {
      fail(KVQ_E_STATE,
           "sequence %d has no preallocated pages: call kvq_sequence_reserve before capturing a CUDA graph",
           arrival.index);
    }
    arrival.of.sequence->mirror(layer)->require_recordable();
  });
  for_each_arrival(request, [&](const Arrival& arrival) {
    Sequence& sequence = *arrival.of.sequence;
    sequence.mirror(layer)->record_append(request.tokens.part(arrival.first, arrival.of.count));
    sequence.recorded = true;
  });
}

/// Append to one sequence without other memory than its own.
void append_to_one(Cache& cache, int32_t layer, const AppendRequest& request) {
  const SequenceTokens& only = request.sequences.front();
  PreparedAppend prepared(*only.sequence, layer, only.count, request.positions);
  const AppendedLayer after = prepared.appended();
  TokenBatch tokens = request.tokens;
  tokens.positions = prepared.positions();
  prepared.route(tokens);
  prepared.prepare();
  cache.backend.pages().append(tokens, cache.page_writes(layer, prepared.writes()), {&after, 1}, cache.allocator);
  prepared.commit();
}

/// One sequence's append, and its tokens in the request.
struct Part {
  Owned<PreparedAppend> prepared;
  int32_t first;
  int32_t count;
};

/// Join the writes head by head, as within one sequence, so that pages written together stay groups.
Vector<PageWrite> join_writes(Cache& cache, std::span<const Part> parts) {
  size_t total = 0;
  for (const Part& part : parts) total += part.prepared->writes().size();
  Vector<PageWrite> writes(cache.allocator);
  writes.reserve(total);
  Vector<size_t> next(parts.size(), 0, cache.allocator);
  for (int32_t head = 0; head < cache.kv_heads; ++head) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::span<const PageWrite> own = parts[i].prepared->writes();
      for (; next[i] < own.size() && own[next[i]].head == head; ++next[i]) {
        writes.push_back(own[next[i]]);
        writes.back().token_begin += parts[i].first;
        writes.back().sequence = static_cast<int32_t>(i);
      }
    }
  }
  return writes;
}

/// Append to all sequences of a request, which are carried out together.
void append_to_all(Cache& cache, int32_t layer, const AppendRequest& request) {
  TokenBatch tokens = request.tokens;
  Vector<int32_t> following(cache.allocator);  // positions, where the caller gives none
  if (request.positions == nullptr) {
    following.reserve(static_cast<size_t>(tokens.n));
    for_each_arrival(request, [&](const Arrival& arrival) {
      const int32_t last = arrival.of.sequence->last_position(layer);
      for (int32_t i = 1; i <= arrival.of.count; ++i) following.push_back(last + i);
    });
  }
  const int32_t* positions = request.positions != nullptr ? request.positions : following.data();
  tokens.positions = {positions, static_cast<size_t>(tokens.n)};
  Vector<Part> parts(cache.allocator);
  Vector<AppendedLayer> layers(cache.allocator);
  parts.reserve(request.sequences.size());
  layers.reserve(request.sequences.size());
  for_each_arrival(request, [&](const Arrival& arrival) {
    const auto [sequence, n] = arrival.of;
    parts.push_back({make_owned<PreparedAppend>(cache.allocator, *sequence, layer, n, positions + arrival.first),
                     arrival.first, n});
    layers.push_back(parts.back().prepared->appended());
  });
  for (const Part& part : parts) {
    part.prepared->route(tokens.part(part.first, part.count));
    part.prepared->prepare();
  }
  const Vector<PageWrite> writes = join_writes(cache, parts);
  cache.backend.pages().append(tokens, cache.page_writes(layer, writes), layers, cache.allocator);
  for (const Part& part : parts) part.prepared->commit();
}

}  // namespace

void append(Cache& cache, int32_t layer, const AppendRequest& request) {
  if (cache.backend.recording()) return record(layer, request);
  for_each_arrival(request, [&](const Arrival& arrival) { check_positions(arrival, layer, request.positions); });
  if (request.sequences.size() == 1) return append_to_one(cache, layer, request);
  append_to_all(cache, layer, request);
}

void append(Sequence& sequence, int32_t layer, const void* k, const void* v, kvq_dtype dtype, int32_t n,
            const int32_t* positions) {
  const SequenceTokens only{&sequence, n};
  TokenBatch tokens = sequence.cache.no_tokens(layer);
  tokens.k = k;
  tokens.v = v;
  tokens.dtype = dtype;
  tokens.n = n;
  append(sequence.cache, layer, {{&only, 1}, tokens, positions, false});
}

void repeat_append(Sequence& sequence, int32_t layer, int32_t tokens) {
  // At most a page at a time, so that pages equal those that the backend chose.
  for (int32_t n = 0; tokens > 0; tokens -= n) {
    n = std::min(tokens, kPageSlots);
    PreparedAppend prepared(sequence, layer, n, nullptr);
    prepared.prepare();
    prepared.commit();
  }
}

}  // namespace kvq
