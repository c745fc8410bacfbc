#pragma once

#include "cache/reserve.h"
#include "cache/routing.h"
#include "cache/sequence.h"

namespace kvq {

/// All changes of an append to one sequence, prepared so that the commit cannot fail.
class PreparedAppend {
 public:
  /// Append `n` tokens. Null `positions`: those that follow the newest token.
  /// `scratch` serves memory for more tokens than a page has.
  PreparedAppend(Sequence& sequence, int32_t layer, int32_t n, const int32_t* positions, Allocator& scratch,
                 AppendKind kind = AppendKind::kAppend);
  /// Seal the pages that appending the newest `opened` tokens by AppendKind::kOpen left. `given`: the call that seals
  /// has their tokens.
  PreparedAppend(Sequence& sequence, int32_t layer, int32_t opened, Allocator& scratch, bool given = true);
  PreparedAppend(const PreparedAppend&) = delete;
  PreparedAppend& operator=(const PreparedAppend&) = delete;

  ~PreparedAppend();

  /// Let a router choose the formats of the pages to seal. Call first. `tokens`: those to append.
  void route(const TokenBatch& tokens);

  /// Allocate every page, run and list.
  void prepare();

  std::span<const int32_t> positions() const { return positions_; }
  /// Writes head by head. Token indices count from the first to append.
  std::span<const PageWrite> writes() const { return memory_.writes; }
  /// The layer after the commit.
  AppendedLayer appended() const {
    LayerMirror* mirror = sequence_.mirror(layer_);
    return {mirror, mirror != nullptr ? sequence_.state(layer_, n(), last_position()) : LayerState{}};
  }

  void commit() noexcept;

  /// Take back a commit. What the backend has in its mirror of the layer is not known afterwards.
  void undo() noexcept;

 private:
  PreparedAppend(Sequence& sequence, int32_t layer, AppendKind kind, Allocator& scratch, AppendMemory* kept);

  int32_t n() const { return static_cast<int32_t>(positions_.size()); }
  /// Position of the layer's newest token afterwards.
  int32_t last_position() const { return n() > 0 ? positions_.back() : sequence_.last_position(layer_); }

  /// One page `index` of a list, made or changed: the slots of `old`, if any, then `take` tokens from `token` on.
  struct Step {
    int32_t index;
    const Page* old;
    int32_t token;
    int32_t take;
    int32_t pages;  // of the list when the format is chosen: afterwards, or with the first of tokens to attend to
    int32_t given_token = -1;  // first of the tokens to seal that fill the page

    int32_t kept() const { return old != nullptr ? old->count : 0; }
  };

  /// Calls `use` with every step of one list, in the order of the list.
  template <typename Use>
  void for_each_page(int32_t head, const Use& use);

  bool stays_float16(int32_t index, int32_t pages) const;

  /// Choose a page's format: a sealed one, or FP16.
  RoutedPages::Choice choose(const Step& step);

  /// Run of a list's FP16 pages that are sealed right after attention; the list will have `pages` pages.
  struct BriefRun {
    BriefRun(Cache& cache, int32_t pages_) : of(cache), pages(pages_) {}
    BriefRun(const BriefRun&) = delete;
    BriefRun& operator=(const BriefRun&) = delete;
    ~BriefRun() { of.release(run); }

    Cache& of;
    int32_t pages;
    PageRun* run = nullptr;
  };

  void write_page(int32_t head, const Step& step, BriefRun& brief);

  void reserve_memory(int32_t tokens, int32_t positions);

  void apply(PageChange& change) noexcept;
  void revert(PageChange& change) noexcept;
  void exchange_slots(PageChange& change, Page& page) noexcept;
  /// Exchange the runs and the state of the layer with those before or after.
  void exchange_records() noexcept;

  Sequence& sequence_;
  Cache& cache_;
  int32_t layer_;
  AppendKind kind_;
  int32_t opened_ = 0;  // newest tokens whose pages may be left to seal
  bool given_ = true;
  Reserve* reserve_;  // or null
  std::span<const int32_t> positions_;
  int32_t heads_pages_ = 0;  // longest list afterwards
  AppendMemory own_;
  AppendMemory& memory_;
  RoutedPages routed_;
  bool committed_ = false;
  Sequence::Layer other_state_;  // of the layer: the next one until commit(), then the one before
  /// [kv_heads] longer lists, which replace the old ones on commit, so that a failure changes no capacity; empty when
  /// every list has room.
  Vector<Sequence::PageList> grown_;
};

}  // namespace kvq
