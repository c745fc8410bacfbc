#pragma once

#include "cache/append_memory.h"
#include "cache/cache.h"
#include "cache/calibration.h"
#include "cache/states.h"
#include "formats/page.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace kvq {

class Reserve;
class Observations;

/// Bytes of the cache's limit that eviction needs for a sequence, kept from everything else.
class CompressRoom {
 public:
  explicit CompressRoom(Allocator& limited) : limited_(limited) {}
  CompressRoom(const CompressRoom&) = delete;
  CompressRoom& operator=(const CompressRoom&) = delete;
  ~CompressRoom() { release(); }

  /// Whether there is room for a sequence of `tokens` tokens.
  bool holds(int64_t tokens) const { return tokens <= tokens_; }
  /// Replace by room for so many tokens. Throws KVQ_E_LIMIT.
  void keep(int32_t tokens, uint64_t bytes);
  void release() noexcept {
    limited_.give_back(std::exchange(bytes_, 0));
    tokens_ = 0;
  }

 private:
  Allocator& limited_;
  int32_t tokens_ = 0;
  uint64_t bytes_ = 0;
};

/// The pages of one conversation: for every layer and KV head a list, oldest first.
class Sequence {
 public:
  explicit Sequence(Cache& of) : Sequence(of, *of.storage) {}
  Sequence(Cache& cache, const Storage& storage);
  /// Fork: share every page of `parent`.
  Sequence(Cache& cache, const Sequence& parent);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  using PageList = Vector<Page*>;

  PageList& list(int32_t layer, int32_t head) { return lists[list_index(layer, head)]; }
  const PageList& list(int32_t layer, int32_t head) const { return lists[list_index(layer, head)]; }

  /// The lists of a layer, [kv_heads].
  std::span<PageList> lists_of(int32_t layer) { return std::span(lists).subspan(list_index(layer, 0), heads(layer)); }
  std::span<const PageList> lists_of(int32_t layer) const {
    return std::span(lists).subspan(list_index(layer, 0), heads(layer));
  }

  /// Free slots of a list's open page, 0 without one.
  static int32_t open_slots(const PageList& list) {
    const bool is_open = !list.empty() && list.back()->is_float16() && list.back()->count < kPageSlots;
    return is_open ? kPageSlots - list.back()->count : 0;
  }
  /// Pages of a list after `tokens` more.
  static int32_t pages_after(const PageList& list, int32_t tokens) {
    const int64_t more = std::max(tokens - open_slots(list), 0);
    return static_cast<int32_t>(static_cast<int64_t>(list.size()) + (more + kPageSlots - 1) / kPageSlots);
  }

  /// Whether a page is in its final format and so part of a run; pages to be sealed are separate. `sealed`: it is
  /// sealed now, which a router may do in FP16.
  bool is_final(const PageFormat* format, int32_t layer, bool sealed) const {
    return storage->is_final(format, layer) || (sealed && storage->layer_at(layer).is_routed());
  }
  /// Whether a device that appends by itself frees page `index` of a list one day and writes others in its place.
  bool device_reuses(int32_t layer, int32_t index) const {
    return !mirrors.empty() && cache.layer(layer).window != 0 && index >= storage->sink;
  }
  /// Whether the final format of page `index` of a list is always FP16.
  bool ends_float16(int32_t layer, int32_t index) const { return storage->ends_float16(layer, index); }
  /// Pages of the next run of a list: the known ones, else a share of the list's length that bounds the slack.
  static int32_t run_capacity(int32_t list_pages, int32_t pages_wanted, int32_t most = kMaxRunPages) {
    return std::clamp(std::max(pages_wanted, std::min(list_pages / 16, kMaxSparePages)), 1, most);
  }

  /// Most pages of a run: few where old pages go, since a run is freed as a whole.
  static int32_t most_run_pages(const LayerShape& layer) {
    const int64_t window = std::abs(int64_t{layer.window});
    return window == 0 ? kMaxRunPages
                       : static_cast<int32_t>(std::clamp<int64_t>(window / (4 * kPageSlots), 1, kMaxRunPages));
  }

  /// Those that the sequence has found for a layer, or null.
  const FoundScales* found_scales(int32_t layer) const {
    return calibration != nullptr ? calibration->layer(layer).scales.get() : nullptr;
  }
  /// Scales of a layer's pages: the cache's, or those that the sequence has found.
  LayerScales scales(int32_t layer) const {
    const FoundScales* found = found_scales(layer);
    return found != nullptr ? found->view() : cache.scales(layer);
  }
  /// The same numbers on the host; null without.
  const float* host_scales(int32_t layer) const {
    const FoundScales* found = found_scales(layer);
    return found != nullptr ? found->numbers().data() : cache.host_scales(layer);
  }
  /// Whether a layer's pages stay FP16 until it has scales.
  bool waits(int32_t layer) const {
    if (calibration == nullptr || !storage->calibrates || storage->layer_at(layer).stays_float16()) return false;
    const Calibration::Layer& of_layer = calibration->layer(layer);
    return of_layer.scales == nullptr && !of_layer.given_up;
  }
  /// Whether pages that would have been sealed earlier are still FP16.
  bool has_backlog(int32_t layer) const { return calibration != nullptr && calibration->layer(layer).backlog; }

  /// Position of a layer's newest token, −1 if it is empty.
  int32_t last_position(int32_t layer) const { return layers[static_cast<size_t>(layer)].last_position; }
  LayerMirror* mirror(int32_t layer) const {
    return mirrors.empty() ? nullptr : mirrors[static_cast<size_t>(layer)].get();
  }
  /// Null without preallocated pages.
  Reserve* reserve(int32_t layer) const {
    return reserves.empty() ? nullptr : reserves[static_cast<size_t>(layer)].get();
  }
  /// State of a layer with `tokens` more.
  LayerState state(int32_t layer, int32_t tokens, int32_t last_position) const;
  /// Pages of each list of a layer; valid until the next call.
  const int32_t* counts(int32_t layer);
  /// Tokens of a head: fewer than the layer's length after evictions.
  int32_t slots(int32_t layer, int32_t head) const;
  bool evicted(int32_t layer, int32_t head) const { return slots(layer, head) < length(layer); }
  int32_t length(int32_t layer) const { return layers[static_cast<size_t>(layer)].length; }
  /// Slots that have left each list of a layer, whole pages behind the sink, where nothing is evicted.
  int32_t forgotten_slots(int32_t layer) const {
    const int32_t pages = (length(layer) + kPageSlots - 1) / kPageSlots;
    return (pages - static_cast<int32_t>(list(layer, 0).size())) * kPageSlots;
  }

  /// Position of the token `back` places from the end (1: the newest), 1 ≤ back ≤ length. Every head holds the tokens
  /// of the last positions. Throws KVQ_E_STATE for an evicted token.
  int32_t position_from_end(int32_t layer, int32_t back) const;

  struct Layer {
    int32_t length = 0;          // tokens appended and not truncated
    int32_t last_position = -1;  // of the newest token
    /// First token that is not beyond the one before it, −1 if positions ascend: only inside a step.
    int32_t first_fall = -1;
    /// The newest position that a layer with a window has freed, -1 without one.
    int32_t forgotten = -1;
  };

  /// Whether positions of a layer are the numbers of its tokens, unless tokens were evicted.
  bool positions_count(int32_t layer) const {
    const Layer& of_layer = layers[static_cast<size_t>(layer)];
    return of_layer.last_position == of_layer.length - 1 && of_layer.first_fall < 0;
  }
  /// Newest slots of a layer that a mask has to cover.
  int32_t slots_to_mask(int32_t layer) const {
    const Layer& of_layer = layers[static_cast<size_t>(layer)];
    return of_layer.first_fall < 0 ? 0 : of_layer.length - of_layer.first_fall;
  }

  /// An open step.
  struct Step {
    explicit Step(Allocator& allocator) : begin(allocator) {}

    int32_t tokens = 0;   // that each layer may receive; 0: there is none
    Vector<Layer> begin;  // [n_layers] as they were
  };
  /// Tokens that a layer has received in the step.
  int32_t step_tokens(int32_t layer) const { return length(layer) - step.begin[static_cast<size_t>(layer)].length; }

  /// Lower bounds of a list of `slots` slots; at most, it has as many slots as its layer has tokens and ends where the
  /// layer does.
  struct ListMinimum {
    int32_t slots;
    int32_t last_position;  // −1: it may be empty
  };
  ListMinimum least_of_list(int32_t layer, int64_t slots) const {
    const auto& [tokens, last, fall, forgotten] = layers[static_cast<size_t>(layer)];
    const bool may_lack = cache.eviction.budget > 0 || cache.layer(layer).window != 0;
    if (!may_lack || slots == tokens) return {tokens, last};
    // A cut among tokens that are gone leaves lists that end before it, and needs positions that count the tokens.
    return {0, last == tokens - 1 ? -1 : last};
  }

  /// Bytes of the object and of its lists of a length fixed by the cache's shape. `mirrored`: the backend keeps
  /// mirrors.
  static uint64_t record_bytes(const Cache& cache, const Storage& storage, bool mirrored);

  Cache& cache;
  const Storage* storage;
  Vector<PageList> lists;  // of all layers and KV heads
  /// [lists, storage->runs_of_list()] run of each list's next page of a format, or null.
  Vector<PageRun*> runs;
  Vector<Layer> layers;
  Vector<Owned<LayerMirror>> mirrors;  // [n_layers], or empty if the backend keeps none
  Vector<Owned<Reserve>> reserves;     // [n_layers], or empty
  Owned<Observations> observations;    // null without eviction
  Owned<Calibration> calibration;      // null unless the sequence finds its scales
  SavedStates states;
  CompressRoom compress_room;
  /// Appends have been recorded: only the backend knows what their replays appended.
  bool recorded = false;
  /// Some of these seal pages with their own tokens, whose FP16 originals are not whole.
  bool seals_at_once = false;
  bool reserved_by_step = false;  // and not by the caller
  Step step;
  std::mutex replayed_mutex;
  Vector<const Page* const*> published_lists;  // [most KV heads], used by publish()
  Vector<int32_t> published_counts;
  Vector<int32_t> replayed_lengths;  // [n_layers], used by follow_replays()
  AppendMemory append_memory;
  AppendMemory seal_memory;  // of sealing what was appended and attended to

  /// Number of the run for a format of sealed pages.
  PageRun*& run(size_t list, const PageFormat* format) {
    return runs[list * storage->runs_of_list() + storage->run_number(layer_of(list), format)];
  }
  std::span<PageRun*> runs_of(size_t list) {
    return std::span(runs).subspan(list * storage->runs_of_list(), storage->runs_of_list());
  }
  std::span<PageRun* const> runs_of(size_t list) const {
    return std::span(runs).subspan(list * storage->runs_of_list(), storage->runs_of_list());
  }

  size_t heads(int32_t layer) const { return static_cast<size_t>(cache.layer(layer).kv_heads); }
  int32_t layer_of(size_t list) const { return cache.layer_of(list); }
  int32_t head_of(size_t list) const { return static_cast<int32_t>(list - cache.layer(layer_of(list)).first_list); }
  size_t list_index(int32_t layer, int32_t head) const {
    return cache.layer(layer).first_list + static_cast<size_t>(head);
  }
};

/// Let the host's lists catch up with appends replayed by a backend. The API's first step with every sequence; a read
/// to its callers, so several threads may call it.
void follow_replays(const Sequence& sequence);

/// Repeat on a layer's lists what a backend did that appended `tokens` tokens.
void repeat_append(Sequence& sequence, int32_t layer, int32_t tokens);

/// Give the backend the state from which it appends by itself.
void publish(Sequence& sequence);
/// The same of one layer.
void publish(Sequence& sequence, int32_t layer);

/// Tokens of a batch that arrive at one sequence.
struct SequenceTokens {
  Sequence* sequence;
  int32_t count;
};

/// Tokens for a layer of some sequences of a cache.
struct AppendRequest {
  std::span<const SequenceTokens> sequences;  // each once
  TokenBatch tokens;                          // of all in their order, without positions
  const int32_t* positions;                   // [tokens.n]; null: those that follow each sequence's newest token
  bool is_batch;                              // arguments are called after a kvq_append_batch
  Allocator& scratch;                         // memory for the duration of the call
};

/// Attention of such a batch; `layers`: Cache::attend_batches().
inline ExpectedCall expected_call(const Cache& cache, std::span<const AttendBatch> layers, const ExpectedBatch& batch) {
  const bool weighs = cache.eviction.budget > 0 && cache.eviction.score == TokenScore::kMass;
  return {.layers = layers,
          .sequences = batch.sequences,
          .queries = batch.queries,
          .pages = batch.pages,
          .weighed = weighs ? std::optional(cache.eviction.group) : std::nullopt};
}

/// Most bytes of a block that such appends and extensions take from AppendRequest::scratch.
uint64_t scratch_bytes(const Cache& cache, const ExpectedBatch& expected);

/// Append to all sequences or to none. While the backend records, that is only recorded.
void append(Cache& cache, int32_t layer, const AppendRequest& request);

/// Append, and attend with the newest tokens' queries to what was stored before and to the new tokens in FP16; pages
/// are sealed afterwards. All of it or nothing.
void extend(Cache& cache, int32_t layer, const AppendRequest& request, const kvq_attend_batch& batch, CallSpace& space);

/// The same for one sequence and dense tensors.
void append(Sequence& sequence, int32_t layer, const void* k, const void* v, kvq_dtype dtype, int32_t n,
            const int32_t* positions);

/// Keep the first `length` tokens of every layer; throws KVQ_E_STATE for a cut inside a sealed page.
void truncate(Sequence& sequence, int32_t length);

/// Most bytes that evicting from a sequence of `tokens` tokens takes, down to the policy's budget; 0 where it needs
/// none kept.
uint64_t compress_bytes(const Cache& cache, const Storage& storage, int32_t tokens);
/// What a sequence with preallocated pages for so many tokens keeps.
uint64_t kept_compress_room(const Cache& cache, int32_t tokens);
/// Keep that much of the cache's limit for a sequence with `tokens` more tokens, in a layer or in all.
void keep_compress_room(Sequence& sequence, int32_t layer, int32_t tokens);
void keep_compress_room(Sequence& sequence, int32_t tokens);

/// Evict tokens by the cache's policy, with `budget` instead of the policy's if it is not 0: all layers or none. The
/// remaining tokens are written to new pages; forks keep theirs.
void compress(Sequence& sequence, int32_t budget);

/// Slots [begin, begin + n) of one head's list.
struct SlotSelection {
  int32_t layer;
  int32_t head;
  int32_t begin;
  int32_t n;
};

/// Targets of decoded slots; null: not wanted.
struct DecodedSlots {
  float* k;            // [n, head_dim]
  float* v;            // [n, head_dim]
  int32_t* positions;  // [n]
};

/// Decode slots [begin, end) of page `index` of a head's list, as they are stored: without undoing scales.
void decode_page(const Sequence& sequence, int32_t layer, int32_t head, size_t index, int32_t begin, int32_t end,
                 const DecodedSlots& out, Allocator& scratch);

/// Decode with the formats' reference decoders.
void decode(const Sequence& sequence, const SlotSelection& selection, const DecodedSlots& out);

/// Bytes and counts of one sequence, shared pages in full.
kvq_usage usage(const Sequence& sequence);
/// The same for everything a cache holds, shared pages once.
kvq_usage usage(const Cache& cache);
/// Bytes of an empty sequence.
uint64_t sequence_bytes(const Cache& cache, const Storage& storage);
/// Predict the usage of a cache with only `sequences` new sequences of `tokens` preallocated tokens each, after a batch
/// in which `queries` queries of each attended, if not 0.
kvq_usage predict_usage(const Cache& cache, int32_t sequences, int32_t tokens, int32_t queries);

}  // namespace kvq
