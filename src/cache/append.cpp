#include "cache/sequence.h"

#include "cache/attend.h"
#include "cache/forget.h"
#include "cache/prepared_append.h"
#include "cache/step.h"
#include "core/error.h"

#include <climits>
#include <functional>
#include <optional>

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
  if (sequence.step.tokens > 0 && n > sequence.step.tokens - sequence.step_tokens(layer)) {
    arrival.refuse_count("the step began with %d tokens, of which layer %d has received %d", sequence.step.tokens,
                         sequence.cache.number(layer), sequence.step_tokens(layer));
  }
  const bool in_step = sequence.step.tokens > 0;
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
    if (all[i] > previous) {
      previous = all[i];
      continue;
    }
    if (!in_step || sequence.cache.eviction.budget > 0) {
      fail(KVQ_E_ARGUMENT, "%spositions[%d] is %d, must be greater than the one before it, %d%s", arrival.prefix(), i,
           all[i], previous, in_step ? ", as the cache's policy evicts" : "");
    }
    const int32_t before_step = sequence.step.begin[static_cast<size_t>(layer)].last_position;
    if (all[i] <= before_step) {
      fail(KVQ_E_ARGUMENT, "%spositions[%d] is %d, must be greater than the last one before the step, %d",
           arrival.prefix(), i, all[i], before_step);
    }
    previous = all[i];
  }
}

/// Refuse a request that cannot be recorded.
void check_recordable(int32_t layer, const AppendRequest& request) {
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
    require_calibrated(*arrival.of.sequence, layer, "a CUDA graph cannot append to the sequence");
    arrival.of.sequence->mirror(layer)->require_recordable();
  });
}

void record(int32_t layer, const AppendRequest& request, AppendKind kind) {
  for_each_arrival(request, [&](const Arrival& arrival) {
    Sequence& sequence = *arrival.of.sequence;
    TokenBatch tokens = request.tokens.part(arrival.first, arrival.of.count);
    tokens.scales = sequence.scales(layer);
    sequence.mirror(layer)->record_append(tokens, kind);
    sequence.recorded = true;
  });
}

/// One sequence's append, and its tokens in the request.
struct Part {
  Owned<PreparedAppend> prepared;
  int32_t first;
  int32_t count;
};

/// Join the writes head by head, as within one sequence, so that pages written together stay groups.
Vector<PageWrite> join_writes(int32_t kv_heads, Allocator& scratch, std::span<const Part> parts) {
  size_t total = 0;
  for (const Part& part : parts) total += part.prepared->writes().size();
  Vector<PageWrite> writes(scratch);
  writes.reserve(total);
  Vector<size_t> next(parts.size(), 0, scratch);
  for (int32_t head = 0; head < kv_heads; ++head) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::span<const PageWrite> own = parts[i].prepared->writes();
      for (; next[i] < own.size() && own[next[i]].head == head; ++next[i]) {
        writes.push_back(own[next[i]]);
        if (writes.back().token_count > 0) writes.back().token_begin += parts[i].first;
        if (writes.back().given_token >= 0) writes.back().given_token += parts[i].first;
        writes.back().sequence = static_cast<int32_t>(i);
      }
    }
  }
  return writes;
}

/// Appends to one layer of all sequences of a request, carried out together. For one sequence it needs no memory but
/// the sequence's own.
class JointAppend {
 public:
  JointAppend(Cache& cache, int32_t layer, const AppendRequest& request, AppendKind kind)
      : JointAppend(cache, layer, request, kind, request.tokens) {
    if (request.sequences.size() == 1) {
      const auto [sequence, n] = request.sequences.front();
      only_.emplace(*sequence, layer, n, request.positions, scratch_, kind);
      tokens_.positions = only_->positions();
      return;
    }
    tokens_.positions = {positions_of(request), static_cast<size_t>(tokens_.n)};
    parts_.reserve(request.sequences.size());
    for_each_arrival(request, [&](const Arrival& arrival) {
      const auto [sequence, n] = arrival.of;
      const int32_t* positions = tokens_.positions.data() + arrival.first;
      add(arrival, make_owned<PreparedAppend>(scratch_, *sequence, layer_, n, positions, scratch_, kind_));
    });
  }
  /// Seal what `opened` has appended by AppendKind::kOpen.
  JointAppend(const AppendRequest& request, const JointAppend& opened)
      : JointAppend(opened.cache_, opened.layer_, request, AppendKind::kSeal, opened.tokens_) {
    if (opened.only_) {
      const auto [sequence, n] = request.sequences.front();
      only_.emplace(*sequence, layer_, n, scratch_);
      return;
    }
    parts_.reserve(request.sequences.size());
    for_each_arrival(request, [&](const Arrival& arrival) {
      const auto [sequence, n] = arrival.of;
      add(arrival, make_owned<PreparedAppend>(scratch_, *sequence, layer_, n, scratch_));
    });
  }

  /// Prepare the changes, and let the backend write their pages.
  void write() {
    if (only_) {
      const AppendedLayer after = only_->appended();
      prepare(*only_, tokens_);
      if (!is_idle(only_->writes())) write(only_->writes(), {&after, 1});
      return;
    }
    Vector<AppendedLayer> layers(scratch_);
    layers.reserve(parts_.size());
    for (const Part& part : parts_) layers.push_back(part.prepared->appended());
    for (const Part& part : parts_) prepare(*part.prepared, tokens_.part(part.first, part.count));
    const Vector<PageWrite> writes = join_writes(tokens_.kv_heads, scratch_, parts_);
    if (!is_idle(writes)) write(writes, layers);
  }

  void commit() noexcept {
    for_each([](PreparedAppend& prepared) { prepared.commit(); });
  }
  void undo() noexcept {
    for_each([](PreparedAppend& prepared) { prepared.undo(); });
  }

 private:
  JointAppend(Cache& cache, int32_t layer, const AppendRequest& request, AppendKind kind, const TokenBatch& tokens)
      : cache_(cache),
        scratch_(request.scratch),
        layer_(layer),
        kind_(kind),
        tokens_(tokens),
        following_(scratch_),
        parts_(scratch_) {}

  const int32_t* positions_of(const AppendRequest& request) {
    if (request.positions != nullptr) return request.positions;
    following_.reserve(static_cast<size_t>(tokens_.n));
    for_each_arrival(request, [&](const Arrival& arrival) {
      const int32_t last = arrival.of.sequence->last_position(layer_);
      for (int32_t i = 1; i <= arrival.of.count; ++i) following_.push_back(last + i);
    });
    return following_.data();
  }

  void add(const Arrival& arrival, Owned<PreparedAppend> prepared) {
    parts_.push_back({std::move(prepared), arrival.first, arrival.of.count});
  }

  void prepare(PreparedAppend& prepared, const TokenBatch& tokens) {
    prepared.route(tokens);
    prepared.prepare();
  }

  /// Whether there is nothing to seal.
  bool is_idle(std::span<const PageWrite> writes) const { return kind_ == AppendKind::kSeal && writes.empty(); }

  void write(std::span<const PageWrite> writes, std::span<const AppendedLayer> layers) {
    cache_.backend.pages().append(tokens_, cache_.page_writes(layer_, writes), layers, scratch_);
  }

  template <typename Use>
  void for_each(const Use& use) noexcept {
    if (only_) use(*only_);
    for (const Part& part : parts_) use(*part.prepared);
  }

  Cache& cache_;
  Allocator& scratch_;
  int32_t layer_;
  AppendKind kind_;
  TokenBatch tokens_;
  Vector<int32_t> following_;  // positions, where the caller gives none
  std::optional<PreparedAppend> only_;
  Vector<Part> parts_;
};

/// The backend's record of a layer follows a taken-back append.
void forget(const AppendRequest& request, int32_t layer) {
  for (const SequenceTokens& each : request.sequences) {
    LayerMirror* mirror = each.sequence->mirror(layer);
    for (int32_t head = 0; mirror != nullptr && head < each.sequence->cache.layer(layer).kv_heads; ++head) {
      // Of pages that it had, the append may have changed the newest `recent`: filled the last, sealed the first.
      const auto pages = static_cast<int32_t>(each.sequence->list(layer, head).size());
      mirror->invalidate(head, std::max(pages - each.sequence->storage->recent, 0));
    }
    if (!each.sequence->reserves.empty()) publish(*each.sequence);
  }
}

/// Whether appending `n` tokens in one go seals pages with some of them.
bool seals_own_tokens(const Sequence& sequence, int32_t layer, int32_t n) {
  return n > 1 && std::ranges::any_of(sequence.lists_of(layer), [&](const Sequence::PageList& list) {
           const auto existing = static_cast<int32_t>(list.size());
           const int32_t first = existing - (Sequence::open_slots(list) > 0 ? 1 : 0);
           return first < Sequence::pages_after(list, n) - sequence.storage->recent;
         });
}

/// Append, then seal. Pages are whole in FP16 in between, where `between(seal)` is called, which has to call seal().
template <typename Between>
void append_and_seal(Cache& cache, int32_t layer, const AppendRequest& request, const Between& between) {
  JointAppend opened(cache, layer, request, AppendKind::kOpen);
  opened.write();
  opened.commit();
  try {
    JointAppend sealed(request, opened);
    between([&sealed] { sealed.write(); });
    sealed.commit();
  } catch (...) {
    opened.undo();
    forget(request, layer);
    throw;
  }
}

/// Let sequences that have waited long enough find their scales; their pages are then sealed by the append. None does
/// inside a step, which could not be taken back.
template <typename Filter>
void calibrate(Calibrators& calibrators, const AppendRequest& request, int32_t layer, const Filter& filter) {
  for (const SequenceTokens& each : request.sequences) {
    if (each.sequence->step.tokens == 0 && filter(each)) calibrators.add(*each.sequence, layer);
  }
}

/// After its pages have been sealed. A device that appends by itself learns that they are others.
void end_backlog(Sequence& sequence, int32_t layer) {
  if (!sequence.has_backlog(layer)) return;
  sequence.calibration->layer(layer).backlog = false;
  if (!sequence.reserves.empty()) publish(sequence, layer);
}

/// The same of all sequences, when the lists have the sealed pages.
void end_backlogs(const AppendRequest& request, int32_t layer) {
  for (const SequenceTokens& each : request.sequences) end_backlog(*each.sequence, layer);
}

/// Free what neither the tokens of a request nor later ones see: they can then be taken back.
void forget_hidden(const AppendRequest& request, int32_t layer) {
  for_each_arrival(request, [&](const Arrival& arrival) {
    Sequence& sequence = *arrival.of.sequence;
    const int32_t first = request.positions != nullptr ? request.positions[arrival.first]
                                                       : sequence.last_position(layer) - arrival.of.count + 1;
    forget_hidden(sequence, layer, first);
  });
}

}  // namespace

void append(Cache& cache, int32_t layer, const AppendRequest& request) {
  if (cache.backend.recording()) {
    check_recordable(layer, request);
    for (const SequenceTokens& each : request.sequences) {
      each.sequence->seals_at_once = each.sequence->seals_at_once || each.count > 1;
    }
    return record(layer, request, AppendKind::kAppend);
  }
  for_each_arrival(request, [&](const Arrival& arrival) {
    check_positions(arrival, layer, request.positions);
    keep_compress_room(*arrival.of.sequence, layer, arrival.of.count);
  });
  const auto seals_own = [layer](const SequenceTokens& each) {
    return each.sequence->step.tokens > 0 && seals_own_tokens(*each.sequence, layer, each.count);
  };
  if (std::ranges::any_of(request.sequences, seals_own)) {
    // These would never be whole in FP16, as taking others back may need them.
    return append_and_seal(cache, layer, request, [](const auto& seal) { seal(); });  // in a step: none is freed
  }
  const auto waits_too_long = [layer](const SequenceTokens& each) {
    return each.count > kMostCalibrationTokens && each.sequence->waits(layer) && each.sequence->step.tokens == 0;
  };
  Calibrators calibrators(request.scratch);
  calibrate(calibrators, request, layer, std::not_fn(waits_too_long));
  if (std::ranges::any_of(request.sequences, waits_too_long)) {
    // Their queries are not waited for: pages are sealed now.
    append_and_seal(cache, layer, request, [&](const auto& seal) {
      Calibrators of_long_ones(request.scratch);  // undone before the tokens' pages are
      calibrate(of_long_ones, request, layer, waits_too_long);
      seal();
      of_long_ones.keep();
    });
  } else {
    JointAppend joint(cache, layer, request, AppendKind::kAppend);
    joint.write();
    joint.commit();
  }
  calibrators.keep();
  end_backlogs(request, layer);
  forget_hidden(request, layer);
}

void extend(Cache& cache, int32_t layer, const AppendRequest& request, const kvq_attend_batch& batch,
            CallSpace& space) {
  const auto sequence_at = [&request](int32_t i) -> const Sequence& {
    return *request.sequences[static_cast<size_t>(i)].sequence;
  };
  const auto attend_and = [&](const auto& seal) {
    // Undone before the tokens' pages are.
    Calibrators calibrators(request.scratch);
    attend(cache, cache.layer(layer), batch, space, sequence_at, [&] {
      if (!cache.backend.recording())
        calibrate(calibrators, request, layer, [](const SequenceTokens&) { return true; });
      seal();
    });
    calibrators.keep();
  };
  if (cache.backend.recording()) {
    check_recordable(layer, request);
    record(layer, request, AppendKind::kOpen);
    return attend_and([&] { record(layer, request, AppendKind::kSeal); });
  }
  for_each_arrival(request, [&](const Arrival& arrival) {
    check_positions(arrival, layer, request.positions);
    keep_compress_room(*arrival.of.sequence, layer, arrival.of.count);
  });
  append_and_seal(cache, layer, request, attend_and);
  end_backlogs(request, layer);
  forget_hidden(request, layer);
}

void find_own_scales(Sequence& sequence, Allocator& scratch) {
  Cache& cache = sequence.cache;
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    if (!sequence.waits(layer)) continue;
    Calibrators calibrators(scratch);
    calibrators.add(sequence, layer);
    if (sequence.has_backlog(layer)) {
      PreparedAppend sealed(sequence, layer, 0, scratch);
      const AppendedLayer after = sealed.appended();
      sealed.prepare();
      const auto writes = sealed.writes();
      if (!writes.empty()) {
        cache.backend.pages().append(cache.no_tokens(layer), cache.page_writes(layer, writes), {&after, 1}, scratch);
      }
      sealed.commit();
    }
    calibrators.keep();
    end_backlog(sequence, layer);
  }
}

void append(Sequence& sequence, int32_t layer, const void* k, const void* v, kvq_dtype dtype, int32_t n,
            const int32_t* positions) {
  const SequenceTokens only{&sequence, n};
  TokenBatch tokens = sequence.cache.no_tokens(layer);
  tokens.dtype = dtype;
  tokens.set_tensors(k, v);
  tokens.n = n;
  const CallSpaces::Lease space(sequence.cache.call_spaces);
  append(sequence.cache, layer, {{&only, 1}, tokens, positions, false, space->scratch});
}

uint64_t scratch_bytes(const Cache& cache, const ExpectedBatch& expected) {
  const auto n = static_cast<uint64_t>(expected.sequences);
  const auto piece = [](uint64_t count, uint64_t bytes) { return Allocator::bytes_in_block(count * bytes); };
  uint64_t of_backend = 0;
  uint64_t pages = 0;
  uint64_t recent = 0;
  uint64_t runs = 0;
  cache.for_each_storage([&](const Storage& storage) {
    recent = std::max(recent, static_cast<uint64_t>(storage.recent));
    runs = std::max(runs, static_cast<uint64_t>(cache.most_kv_heads()) * storage.runs_of_list());
    for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
      TokenBatch tokens = cache.no_tokens(layer);
      tokens.n = static_cast<int32_t>(std::min<int64_t>(expected.tokens, INT32_MAX));
      const ExpectedAppend append{tokens, storage.layer_at(layer).formats, expected.sequences,
                                  cache.page_writes(layer, {}).heads_together()};
      of_backend = std::max(of_backend, cache.backend.pages().append_bytes(append));
      pages = std::max(pages, append.pages());
    }
  });
  const uint64_t lists =
      piece(n, sizeof(SequenceTokens)) + piece(n, sizeof(const Sequence*)) + piece(n, sizeof(SlotMasses));
  const uint64_t masses =
      piece(static_cast<uint64_t>(cache.most_kv_heads()), sizeof(float*) + sizeof(int32_t)) + piece(0, 0);
  const uint64_t reserving =
      piece(cache.n_lists(), sizeof(Sequence::PageList)) + piece(recent + 1, 1) + Observations::scratch_bytes(cache);
  // Appends of a page have memory of their own.
  const uint64_t of_long = expected.queries <= kPageSlots
                               ? 0
                               : piece(pages, sizeof(PageWrite)) + piece(pages, sizeof(PageChange)) +
                                     n * (3 * piece(0, 0) + piece(runs, sizeof(StagedRun))) +
                                     piece(static_cast<uint64_t>(expected.tokens), sizeof(int32_t));
  const uint64_t least = std::max(reserving, lists + of_long + commit_bytes(cache, expected) + of_backend);
  if (n == 1) return std::max(lists + 2 * of_long + std::max(of_backend, masses), least);
  const uint64_t joint = piece(n, sizeof(Part)) + n * piece(1, sizeof(PreparedAppend)) +
                         piece(static_cast<uint64_t>(expected.tokens), sizeof(int32_t));
  const uint64_t writing = piece(n, sizeof(AppendedLayer)) + piece(pages, sizeof(PageWrite)) + piece(n, sizeof(size_t));
  // Tokens stay prepared while their pages are sealed.
  return std::max(lists + 2 * (joint + of_long) + std::max(writing + of_backend, masses), least);
}

void repeat_append(Sequence& sequence, int32_t layer, int32_t tokens) {
  Allocator& scratch = sequence.cache.allocator;
  // At most a page at a time, so that pages equal those that the backend chose.
  for (int32_t n = 0; tokens > 0; tokens -= n) {
    n = std::min(tokens, kPageSlots);
    if (sequence.cache.layer(layer).window != 0) {
      // The device frees pages when it opens one.
      const int32_t open = Sequence::open_slots(sequence.list(layer, 0));
      if (open > 0) n = std::min(n, open);
      if (open == 0) {
        forget_for_page(sequence, layer, sequence.last_position(layer) + 1, sequence.reserve(layer)->step_tokens());
      }
    }
    const AppendKind kind = sequence.seals_at_once ? AppendKind::kAppend : AppendKind::kOpen;
    PreparedAppend prepared(sequence, layer, n, nullptr, scratch, kind);
    prepared.prepare();
    prepared.commit();
    if (sequence.seals_at_once) continue;
    PreparedAppend sealed(sequence, layer, n, scratch);
    sealed.prepare();
    sealed.commit();
  }
}

}  // namespace kvq
