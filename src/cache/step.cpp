#include "cache/step.h"

#include "cache/forget.h"
#include "cache/observations.h"
#include "cache/reserve.h"
#include "core/error.h"

#include <algorithm>
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
    sequence_.layers[static_cast<size_t>(layer_)] = {sequence_.length(layer_) - dropped_, last};
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

/// End the step with the first `kept` tokens, as checked.
void roll_back(Sequence& sequence, int32_t kept) {
  bool any = false;
  Observations* observations = sequence.observations.get();
  for (int32_t layer = 0; layer < sequence.cache.n_layers && kept == 0 && observations != nullptr; ++layer) {
    observations->undo_all(layer);
  }
  for_each_rollback(sequence, kept, [&](LayerRollback rollback, int32_t layer) {
    any = true;
    if (kept > 0 && observations != nullptr) observations->undo(layer, rollback.last_position(), rollback.length());
    rollback.run();
  });
  end_step(sequence, kept > 0);
  if (!any) return;
  int32_t longest = 0;
  for (const Sequence::Layer& layer : sequence.layers) longest = std::max(longest, layer.length);
  sequence.states.truncate(longest);
  publish(sequence);
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

void commit_step(std::span<const SequenceTokens> sequences, bool keeps_all) {
  const auto kept_of = [&](size_t i) { return keeps_all ? all_tokens(*sequences[i].sequence, i) : sequences[i].count; };
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i].sequence;
    require_step(sequence, i);
    const int32_t kept = kept_of(i);
    for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
      if (kept >= 0 && kept <= sequence.step_tokens(layer)) continue;
      fail(KVQ_E_ARGUMENT, "batch->token_counts[%zu] is %d, but layer %d has received %d tokens in the step", i, kept,
           sequence.cache.number(layer), sequence.step_tokens(layer));
    }
    check_rollback(sequence, kept);
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = *sequences[i].sequence;
    roll_back(sequence, kept_of(i));
    for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
      forget_hidden(sequence, layer, sequence.step.begin[static_cast<size_t>(layer)].last_position + 1);
    }
  }
}

void abort_step(std::span<const SequenceTokens> sequences) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    require_step(*sequences[i].sequence, i);
    check_rollback(*sequences[i].sequence, 0);
  }
  for (const SequenceTokens& each : sequences) roll_back(*each.sequence, 0);
}

}  // namespace kvq
