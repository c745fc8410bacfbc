#pragma once

#include "cache/append_memory.h"
#include "cache/cache.h"
#include "formats/page.h"

#include <algorithm>
#include <mutex>

namespace kvq {

class Reserve;
class Observations;

/// The pages of one conversation: for every layer and KV head a list, oldest first.
class Sequence {
 public:
  explicit Sequence(Cache& cache);
  /// A fork: shares every page of `parent`.
  Sequence(Cache& cache, const Sequence& parent);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  using PageList = Vector<Page*>;

  PageList& list(int32_t layer, int32_t head) { return lists[list_index(layer, head)]; }
  const PageList& list(int32_t layer, int32_t head) const { return lists[list_index(layer, head)]; }

  /// Slots that the newest page of a list has left, 0 if it takes no more tokens.
  static int32_t open_slots(const PageList& list) {
    const bool is_open = !list.empty() && list.back()->is_float16() && list.back()->count < kPageSlots;
    return is_open ? kPageSlots - list.back()->count : 0;
  }
  /// Pages of a list after `tokens` more.
  static int32_t pages_after(const PageList& list, int32_t tokens) {
    const int64_t more = std::max(tokens - open_slots(list), 0);
    return static_cast<int32_t>(static_cast<int64_t>(list.size()) + (more + kPageSlots - 1) / kPageSlots);
  }

  /// Pages in their final format lie in runs; pages that will be sealed lie by themselves. `sealed`: it is sealed now,
  /// which a router may do in FP16.
  bool is_final(const PageFormat* format, int32_t layer, bool sealed) const {
    const Cache::Layer& of_layer = cache.layers[static_cast<size_t>(layer)];
    return !format->is_float16() || of_layer.stays_float16() || (sealed && of_layer.is_routed());
  }
  /// Whether page `index` of a list is FP16 in its final format, whatever is in it.
  bool ends_float16(int32_t layer, int32_t index) const {
    return index < cache.sink || cache.layers[static_cast<size_t>(layer)].stays_float16();
  }
  /// Pages of the next run of a list: those known to come, else a part of the list's length that bounds the slack.
  static int32_t run_capacity(int32_t list_pages, int32_t pages_wanted) {
    return std::clamp(std::max(pages_wanted, std::min(list_pages / 16, kMaxSparePages)), 1, kMaxRunPages);
  }

  /// Position of a layer's newest token, −1 if it is empty.
  int32_t last_position(int32_t layer) const { return layers[static_cast<size_t>(layer)].last_position; }
  LayerMirror* mirror(int32_t layer) const {
    return mirrors.empty() ? nullptr : mirrors[static_cast<size_t>(layer)].get();
  }
  /// Null if no pages have been made ahead.
  Reserve* reserve(int32_t layer) const {
    return reserves.empty() ? nullptr : reserves[static_cast<size_t>(layer)].get();
  }
  /// Where a layer is, with `tokens` more.
  LayerState state(int32_t layer, int32_t tokens, int32_t last_position) const;
  /// Pages of each list of a layer; valid until the next call.
  const int32_t* counts(int32_t layer);
  /// Tokens that a head holds: fewer than the layer's length once some have been evicted.
  int32_t slots(int32_t layer, int32_t head) const;
  bool evicted(int32_t layer, int32_t head) const { return slots(layer, head) < length(layer); }
  int32_t length(int32_t layer) const { return layers[static_cast<size_t>(layer)].length; }

  /// Position of the token `back` places from the end (1: the newest), 1 ≤ back ≤ length. Every token of the last
  /// positions is held by every head. Throws KVQ_E_STATE if eviction has left no trace of it.
  int32_t position_from_end(int32_t layer, int32_t back) const;

  struct Layer {
    int32_t length = 0;          // tokens appended and not truncated
    int32_t last_position = -1;  // of the newest token
  };

  /// What a list that holds `slots` must hold at least; at most, it holds as many slots as its layer has tokens and
  /// ends where the layer does.
  struct ListMinimum {
    int32_t slots;
    int32_t last_position;  // −1: it may be empty
  };
  ListMinimum least_of_list(int32_t layer, int64_t slots) const {
    const auto [tokens, last] = layers[static_cast<size_t>(layer)];
    if (cache.eviction.budget == 0 || slots == tokens) return {tokens, last};
    // A cut among evicted tokens leaves lists that end before it. It needs positions that count the tokens.
    return {0, last == tokens - 1 ? -1 : last};
  }

  /// Of the object and those of its lists whose lengths the cache's shape says. `mirrored`: the backend keeps mirrors.
  static uint64_t record_bytes(const Cache& cache, bool mirrored);

  Cache& cache;
  Vector<PageList> lists;  // [n_layers, kv_heads]
  /// [n_layers, kv_heads, cache.runs_of_list()] what each list takes its next page of a format from, or null.
  Vector<PageRun*> runs;
  Vector<Layer> layers;
  Vector<Owned<LayerMirror>> mirrors;  // [n_layers], or empty if the backend keeps none
  Vector<Owned<Reserve>> reserves;     // [n_layers], or empty
  Owned<Observations> observations;    // null without eviction
  /// Appends have been recorded: what they appended when they were replayed, only the backend knows.
  bool recorded = false;
  std::mutex replayed_mutex;
  Vector<const Page* const*> published_lists;  // [kv_heads], used by publish()
  Vector<int32_t> published_counts;
  AppendMemory append_memory;

  /// Of a format of sealed pages.
  PageRun*& run(size_t list, const PageFormat* format) {
    return runs[list * cache.runs_of_list() + cache.run_number(layer_of(list), format)];
  }
  std::span<PageRun*> runs_of(size_t list) {
    return std::span(runs).subspan(list * cache.runs_of_list(), cache.runs_of_list());
  }
  std::span<PageRun* const> runs_of(size_t list) const {
    return std::span(runs).subspan(list * cache.runs_of_list(), cache.runs_of_list());
  }

  int32_t layer_of(size_t list) const { return static_cast<int32_t>(list / static_cast<size_t>(cache.kv_heads)); }
  int32_t head_of(size_t list) const { return static_cast<int32_t>(list % static_cast<size_t>(cache.kv_heads)); }
  size_t list_index(int32_t layer, int32_t head) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(cache.kv_heads) + static_cast<size_t>(head);
  }
};

/// Let the host's lists catch up with appends that a backend replayed. The API's first step with every sequence that it
/// is given; it only reads, as far as anybody can see, so several threads may call it.
void follow_replays(const Sequence& sequence);

/// Do to the lists of a layer what a backend did that appended `tokens` tokens.
void repeat_append(Sequence& sequence, int32_t layer, int32_t tokens);

/// Tell the backend all that it has to know to append by itself.
void publish(Sequence& sequence);

/// Keep the first `length` tokens of every layer; throws KVQ_E_STATE for a cut inside a sealed page.
void truncate(Sequence& sequence, int32_t length);

/// Bytes and counts of one sequence, shared pages in full.
kvq_usage usage(const Sequence& sequence);
/// The same for everything a cache holds, shared pages once.
kvq_usage usage(const Cache& cache);
/// What that would be if the cache held so many new sequences alone, with `tokens` tokens each, for which pages were
/// made ahead, and if there are `queries`, so many of each had attended to them in one batch.
kvq_usage predict_usage(const Cache& cache, int32_t sequences, int32_t tokens, int32_t queries);

}  // namespace kvq
