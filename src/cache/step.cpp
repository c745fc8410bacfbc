#include "cache/step.h"

#include "cache/forget.h"
#include "cache/kept_tokens.h"
#include "cache/observations.h"
#include "cache/reserve.h"
#include "core/error.h"

#include <algorithm>
#include <climits>
#include <exception>
#include <optional>
#include <utility>

namespace kvq {
namespace {

bool holds(Sequence& sequence, int32_t tokens) {
  return !sequence.reserves.empty() &&
         std::ranges::all_of(sequence.reserves, [tokens](const Owned<Reserve>& each) { return each->holds(tokens); });
}

int32_t pages_of(int32_t tokens) { return (tokens + kPageSlots - 1) / kPageSlots; }

/// Tokens to preallocate where pages for `tokens` are lacking: a page at least, where the caller reserved nothing, and
/// what there is.
int32_t tokens_to_reserve(const Sequence& sequence, int32_t tokens) {
  tokens = std::max(tokens, kPageSlots);
  for (const Owned<Reserve>& each : sequence.reserves) tokens = std::max(tokens, each->room_without_freeing());
  return tokens;
}

/// What a sequence lacks for a step, made so that beginning it cannot fail but for a GPU's copy.
class PreparedStep {
 public:
  PreparedStep(Sequence& sequence, int32_t tokens, Allocator& scratch) : sequence_(sequence), tokens_(tokens) {
    if (!holds(sequence, tokens)) reserve(scratch);
    if (sequence.calibration != nullptr)
      counted_queries_.emplace(sequence.calibration->counted(sequence.cache.allocator));
    if (sequence.observations == nullptr) return;
    const int32_t slots = prepared_ ? prepared_->observed_slots() : sequence.observations->reserved_slots();
    observed_ = sequence.observations->prepare_step(sequence, slots, scratch);
  }

  void begin() {
    if (prepared_) {
      counted_->keep();
      sequence_.reserved_by_step = sequence_.reserved_by_step || sequence_.reserves.empty();
      prepared_->commit();
    }
    if (observed_) sequence_.observations->begin_step(*observed_);
    if (counted_queries_) sequence_.calibration->begin_step(*counted_queries_);
    std::ranges::copy(sequence_.layers, sequence_.step.begin.begin());
    sequence_.step.tokens = tokens_;
  }

 private:
  void reserve(Allocator& scratch) {
    const int32_t wanted = tokens_to_reserve(sequence_, tokens_);
    check_reserve(sequence_, wanted, "batch->token_counts, or a page,");
    counted_.emplace(sequence_);
    prepared_.emplace(sequence_, wanted, pages_of(tokens_), scratch);
  }

  Sequence& sequence_;
  int32_t tokens_;
  std::optional<CountedReserve> counted_;
  std::optional<PreparedReserve> prepared_;
  std::optional<Observations::StepRoom> observed_;
  std::optional<Vector<QueryEnergies>> counted_queries_;
};

void require_step(const Sequence& sequence, size_t index) {
  if (sequence.step.tokens > 0) return;
  fail(KVQ_E_STATE, "batch->sequences[%zu] is not in a step: call kvq_step_begin first", index);
}

/// Takes back the newest tokens of a layer.
class LayerRollback {
 public:
  LayerRollback(Sequence& sequence, int32_t layer, int32_t kept)
      : sequence_(sequence),
        cache_(sequence.cache),
        reserve_(*sequence.reserve(layer)),
        layer_(layer),
        kept_(kept),
        dropped_(sequence.step_tokens(layer) - kept) {}

  /// Throws if originals are gone.
  void check() const {
    for (int32_t head = 0; head < cache_.layer(layer_).kv_heads; ++head) {
      const Cut cut = find_cut(head);
      const Sequence::PageList& list = sequence_.list(layer_, head);
      for (int32_t i = first_open(cut.pages); i < cut.pages; ++i) {
        const Page& page = *list[static_cast<size_t>(i)];
        const bool must_open = i + 1 == cut.pages && cut.slots < page.count;
        if (page.is_float16() || reserve_.original(head, i) != nullptr || !must_open) continue;
        fail(KVQ_E_STATE,
             "launches of a CUDA graph have appended more to layer %d than the step's %d tokens, or several at once by "
             "kvq_append, which keeps no originals of the pages that it seals: commit all tokens",
             cache_.number(layer_), sequence_.step.tokens);
      }
    }
  }

  void run() noexcept {
    int32_t last = sequence_.step.begin[static_cast<size_t>(layer_)].last_position;
    for (int32_t head = 0; head < cache_.layer(layer_).kv_heads; ++head) {
      const Cut cut = find_cut(head);
      const int32_t first_changed = std::min(shorten(head, cut), open_again(head, cut));
      Sequence::PageList& list = sequence_.list(layer_, head);
      if (cut.pages > 0) {
        Page* newest = list.back();
        cache_.set_count(newest, cut.slots);
        if (newest->positions != nullptr && !newest->has_gaps()) cache_.release_positions(newest);
        if (kept_ > 0) last = std::max(last, newest->last_position());
      }
      if (LayerMirror* mirror = sequence_.mirror(layer_)) mirror->invalidate(head, first_changed);
    }
    Sequence::Layer& state = sequence_.layers[static_cast<size_t>(layer_)];
    state = {state.length - dropped_, last, -1, state.forgotten};
  }

  int32_t last_position() const {
    const int32_t before = sequence_.step.begin[static_cast<size_t>(layer_)].last_position;
    if (kept_ == 0) return before;
    const Cut cut = find_cut(0);
    return sequence_.list(layer_, 0)[static_cast<size_t>(cut.pages) - 1]->position(cut.slots - 1);
  }
  int32_t length() const { return sequence_.length(layer_) - dropped_; }

 private:
  /// A list without the dropped tokens: pages, and slots of the newest.
  struct Cut {
    int32_t pages;
    int32_t slots;
  };
  Cut find_cut(int32_t head) const {
    const Sequence::PageList& list = sequence_.list(layer_, head);
    int32_t left = dropped_;
    size_t pages = list.size();
    while (left > 0 && list[pages - 1]->count <= left) left -= list[--pages]->count;
    return {static_cast<int32_t>(pages), pages > 0 ? list[pages - 1]->count - left : 0};
  }

  /// First page of a list of `pages` pages that may be open.
  int32_t first_open(int32_t pages) const {
    return std::max({0, sequence_.storage->sink, pages - sequence_.storage->recent});
  }

  /// Returns the first page that is gone.
  int32_t shorten(int32_t head, const Cut& cut) noexcept {
    Sequence::PageList& list = sequence_.list(layer_, head);
    for (auto i = static_cast<int32_t>(list.size()) - 1; i >= cut.pages; --i) {
      Page* page = list.back();
      if (!reserve_.keep(head, i, page)) cache_.release(page);
      list.pop_back();
    }
    return std::max(cut.pages - 1, 0);
  }

  /// Put back the originals of pages that are not to be sealed yet. Returns the first one, or the list's end.
  int32_t open_again(int32_t head, const Cut& cut) noexcept {
    Sequence::PageList& list = sequence_.list(layer_, head);
    int32_t first = cut.pages;
    for (int32_t i = cut.pages - 1; i >= first_open(cut.pages); --i) {
      Page*& place = list[static_cast<size_t>(i)];
      Page* original = place->is_float16() ? nullptr : reserve_.original(head, i);
      if (original == nullptr) continue;
      reserve_.took(head, i, original->format());
      original->first_position = place->first_position;
      std::swap(original->positions, place->positions);
      cache_.set_count(original, place->count);
      Page* sealed = std::exchange(place, original);
      if (!reserve_.keep(head, i, sealed)) cache_.release(sealed);
      first = i;
    }
    return first;
  }

  Sequence& sequence_;
  Cache& cache_;
  Reserve& reserve_;
  int32_t layer_;
  int32_t kept_;
  int32_t dropped_;
};

/// Calls use(rollback, layer) for the layers that have received more than `kept` tokens.
template <typename Use>
void for_each_rollback(Sequence& sequence, int32_t kept, const Use& use) {
  for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
    if (sequence.step_tokens(layer) > kept) use(LayerRollback(sequence, layer, kept), layer);
  }
}

void check_rollback(Sequence& sequence, int32_t kept) {
  for_each_rollback(sequence, kept, [&](const LayerRollback& rollback, int32_t layer) {
    rollback.check();
    if (kept > 0 && sequence.observations != nullptr) {
      sequence.observations->check_undo(sequence.cache, layer, rollback.last_position());
    }
  });
}

void end_step(Sequence& sequence, bool keeps_any) noexcept {
  sequence.step.tokens = 0;
  if (sequence.calibration != nullptr) sequence.calibration->end_step(sequence, keeps_any);
  if (sequence.observations != nullptr) sequence.observations->end_step();
}

/// Calls use(compaction) for the layers whose kept tokens are not the first ones.
template <typename Use>
void for_each_compaction(Sequence& sequence, std::span<const int32_t> kept, const Use& use) {
  for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
    LayerCompaction compaction(sequence, layer, kept);
    if (!compaction.is_idle()) use(compaction);
  }
}

/// Tokens that one sequence keeps.
struct Kept {
  int32_t count;
  std::span<const int32_t> slots;  // their numbers; empty: the first

  /// How many of them are the first ones.
  int32_t leading() const {
    int32_t n = 0;
    while (n < count && (slots.empty() || slots[static_cast<size_t>(n)] == n)) ++n;
    return n;
  }
};

/// Take back all other tokens, as checked. Returns whether lists have changed.
bool drop_others(Sequence& sequence, const Kept& kept, CompactionRoom& room) {
  bool any = false;
  Observations* observations = sequence.observations.get();
  for (int32_t layer = 0; layer < sequence.cache.n_layers && kept.count == 0 && observations != nullptr; ++layer) {
    observations->undo_all(layer);
  }
  for_each_compaction(sequence, kept.slots, [&room](LayerCompaction& compaction) { compaction.run(room); });
  for_each_rollback(sequence, kept.count, [&](LayerRollback rollback, int32_t layer) {
    any = true;
    if (kept.count > 0 && observations != nullptr) {
      observations->undo(layer, rollback.last_position(), rollback.length());
    }
    rollback.run();
  });
  if (!any) return false;
  int32_t longest = 0;
  for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
    const int32_t begin = sequence.step.begin[static_cast<size_t>(layer)].length;
    longest = std::max(longest, std::min(sequence.length(layer), begin + kept.leading()));
  }
  sequence.states.truncate(longest);
  return true;
}

/// End the step of a sequence that has kept what it keeps.
void finish(Sequence& sequence, const Kept& kept, bool changed, Allocator& scratch) {
  std::exception_ptr failure;
  for_each_compaction(sequence, kept.slots, [&](const LayerCompaction& compaction) {
    try {
      compaction.seal(scratch);
    } catch (...) {  // pages stay in FP16
      if (failure == nullptr) failure = std::current_exception();
    }
  });
  end_step(sequence, kept.count > 0);
  if (changed) publish(sequence);
  if (failure != nullptr) std::rethrow_exception(failure);
}

/// Tokens of the step if all are kept. Throws unless layers agree.
int32_t all_tokens(const Sequence& sequence, size_t index) {
  const int32_t n = sequence.step_tokens(0);
  for (int32_t layer = 1; layer < sequence.cache.n_layers; ++layer) {
    if (sequence.step_tokens(layer) == n) continue;
    fail(KVQ_E_STATE,
         "batch->sequences[%zu] cannot keep all tokens: layer %d has received %d in the step, layer 0 %d; give "
         "token_counts or abort",
         index, sequence.cache.number(layer), sequence.step_tokens(layer), n);
  }
  return n;
}

}  // namespace

void require_no_step(const Sequence& sequence) {
  if (sequence.step.tokens == 0) return;
  fail(KVQ_E_STATE, "the sequence is in a step: call kvq_step_commit or kvq_step_abort first");
}

ExpectedBatch check_step(const Cache& cache, std::span<const SequenceTokens> sequences) {
  if (cache.backend.recording()) {
    fail(KVQ_E_STATE, "a step cannot begin while a CUDA graph is captured: begin it before or around launches");
  }
  ExpectedBatch calls{.sequences = static_cast<int32_t>(sequences.size())};
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto [sequence, count] = sequences[i];
    if (sequence->step.tokens > 0) fail(KVQ_E_STATE, "batch->sequences[%zu] is in a step already", i);
    if (count < 1) fail(KVQ_E_ARGUMENT, "batch->token_counts[%zu] is %d, must be at least 1", i, count);
    check_reserve(*sequence, count, "batch->token_counts");
    calls.tokens += count;
    calls.queries = std::max(calls.queries, count);
    for (const Owned<Reserve>& each : sequence->reserves) calls.pages = std::max(calls.pages, each->longest());
    if (!holds(*sequence, count))
      calls.pages = std::max(
          calls.pages, longest_after(*sequence, tokens_to_reserve(*sequence, count), pages_of(count) * kPageSlots));
  }
  return calls;
}

void begin_step(std::span<const SequenceTokens> sequences, Allocator& scratch) {
  for (const SequenceTokens& each : sequences) find_own_scales(*each.sequence, scratch);
  Vector<Owned<PreparedStep>> prepared(scratch);
  prepared.reserve(sequences.size());
  for (const auto [sequence, count] : sequences) {
    prepared.push_back(make_owned<PreparedStep>(scratch, *sequence, count, scratch));
  }
  for (Owned<PreparedStep>& each : prepared) each->begin();
}

namespace {

/// End the steps of all sequences, as checked.
void end_steps(std::span<const SequenceTokens> sequences, std::span<const Kept> kept, Allocator& scratch) {
  CompactionRoom room(scratch);
  for (size_t i = 0; i < sequences.size(); ++i) {
    for_each_compaction(*sequences[i].sequence, kept[i].slots,
                        [&room](const LayerCompaction& compaction) { compaction.prepare(room); });
  }
  Vector<bool> changed(sequences.size(), false, scratch);
  for (size_t i = 0; i < sequences.size(); ++i) changed[i] = drop_others(*sequences[i].sequence, kept[i], room);
  room.release();
  std::exception_ptr failure;
  for (size_t i = 0; i < sequences.size(); ++i) {
    try {
      finish(*sequences[i].sequence, kept[i], changed[i], scratch);
    } catch (...) {
      if (failure == nullptr) failure = std::current_exception();
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

/// Throws unless positions ascend among the kept tokens of a layer. `first`: of its list in the caller's array.
void check_kept_positions(const Sequence& sequence, size_t index, int32_t layer, const Kept& kept, size_t first) {
  const auto& [begin, last_before, none, forgotten] = sequence.step.begin[static_cast<size_t>(layer)];
  const int32_t fall = sequence.layers[static_cast<size_t>(layer)].first_fall;
  if (fall < 0) return;
  if (kept.slots.empty()) {
    if (kept.count <= fall - begin) return;
    fail(
        KVQ_E_ARGUMENT,
        "batch->sequences[%zu] cannot keep the first %d tokens: token %d of layer %d is not beyond the position of the "
        "one before it; give kept_slots or abort",
        index, kept.count, fall - begin, sequence.cache.number(layer));
  }
  int32_t previous = last_before;
  for (size_t i = 0; i < kept.slots.size(); ++i) {
    const int32_t slot = begin + kept.slots[i] - sequence.forgotten_slots(layer);
    const int32_t position =
        sequence.list(layer, 0)[static_cast<size_t>(slot / kPageSlots)]->position(slot % kPageSlots);
    if (position <= previous) {
      fail(KVQ_E_ARGUMENT,
           "batch->kept_slots[%zu] is %d, a token at position %d of layer %d, which must be greater than that of the "
           "one before it, %d",
           first + i, kept.slots[i], position, sequence.cache.number(layer), previous);
    }
    previous = position;
  }
}

/// Throws unless the numbers ascend and every layer has received such tokens.
void check_kept_slots(const Sequence& sequence, const Kept& kept, size_t first) {
  int32_t previous = -1;
  int32_t received = INT32_MAX;
  int32_t shortest = 0;
  for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
    if (sequence.step_tokens(layer) < received) {
      received = sequence.step_tokens(layer);
      shortest = layer;
    }
  }
  for (size_t i = 0; i < kept.slots.size(); ++i) {
    const int32_t slot = kept.slots[i];
    if (slot <= previous) {
      fail(KVQ_E_ARGUMENT, "batch->kept_slots[%zu] is %d, must be greater than the one before it, %d", first + i, slot,
           previous);
    }
    if (slot >= received) {
      fail(KVQ_E_ARGUMENT, "batch->kept_slots[%zu] is %d, but layer %d has received %d tokens in the step", first + i,
           slot, sequence.cache.number(shortest), received);
    }
    previous = slot;
  }
  if (sequence.cache.eviction.budget > 0 && kept.leading() < kept.count) {
    const auto at = static_cast<size_t>(kept.leading());
    fail(KVQ_E_UNSUPPORTED,
         "batch->kept_slots[%zu] is %d, must be %d: the cache's policy evicts, so a step keeps its first tokens",
         first + at, kept.slots[at], kept.leading());
  }
}

}  // namespace

void commit_step(std::span<const SequenceTokens> sequences, bool keeps_all, const int32_t* kept_slots,
                 Allocator& scratch) {
  Vector<Kept> all(scratch);
  all.reserve(sequences.size());
  size_t first = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i].sequence;
    require_step(sequence, i);
    Kept kept{keeps_all ? all_tokens(sequence, i) : sequences[i].count, {}};
    for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
      if (kept.count >= 0 && kept.count <= sequence.step_tokens(layer)) continue;
      fail(KVQ_E_ARGUMENT, "batch->token_counts[%zu] is %d, but layer %d has received %d tokens in the step", i,
           kept.count, sequence.cache.number(layer), sequence.step_tokens(layer));
    }
    if (kept_slots != nullptr) {
      kept.slots = {kept_slots + first, static_cast<size_t>(kept.count)};
      check_kept_slots(sequence, kept, first);
    }
    for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
      check_kept_positions(sequence, i, layer, kept, first);
    }
    check_rollback(sequence, kept.count);
    for_each_compaction(sequence, kept.slots, [](const LayerCompaction& compaction) { compaction.check(); });
    first += kept.slots.size();
    all.push_back(kept);
  }
  end_steps(sequences, all, scratch);
  for (const SequenceTokens& each : sequences) {
    for (int32_t layer = 0; layer < each.sequence->cache.n_layers; ++layer) {
      const int32_t before = each.sequence->step.begin[static_cast<size_t>(layer)].last_position;
      forget_hidden(*each.sequence, layer, before + 1);
    }
  }
}

uint64_t commit_bytes(const Cache& cache, const ExpectedBatch& expected) {
  const auto n = static_cast<uint64_t>(expected.sequences);
  const auto tokens = static_cast<uint64_t>(expected.queries);
  return Allocator::bytes_in_block(n * sizeof(Kept)) + Allocator::bytes_in_block(n * sizeof(bool)) +
         CompactionRoom::bytes_of(static_cast<uint64_t>(cache.most_kv_heads()), tokens);
}

void abort_step(std::span<const SequenceTokens> sequences, Allocator& scratch) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    require_step(*sequences[i].sequence, i);
    check_rollback(*sequences[i].sequence, 0);
  }
  end_steps(sequences, Vector<Kept>(sequences.size(), Kept{0, {}}, scratch), scratch);
}

}  // namespace kvq
