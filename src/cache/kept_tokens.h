// What a step keeps of its tokens where these are not the first ones: compaction of a layer's pages.
#pragma once

#include "cache/reserve.h"

#include <span>

namespace kvq {

/// Memory of compactions, made before anything changes.
class CompactionRoom {
 public:
  explicit CompactionRoom(Allocator& scratch) : positions(scratch), slots(scratch), pages(scratch), spare_(scratch) {}
  CompactionRoom(const CompactionRoom&) = delete;
  CompactionRoom& operator=(const CompactionRoom&) = delete;
  ~CompactionRoom() { release(); }

  /// Have memory for a layer with so many of each, which is reused from layer to layer.
  void reserve(size_t moved, size_t all_pages) {
    positions.reserve(moved);
    slots.reserve(moved);
    pages.reserve(all_pages);
  }
  /// What that takes of a block for `tokens` tokens.
  static uint64_t bytes_of(uint64_t heads, uint64_t tokens) {
    return 2 * Allocator::bytes_in_block(tokens * sizeof(int32_t)) +
           Allocator::bytes_in_block(heads * (tokens / kPageSlots + 2) * sizeof(std::byte*));
  }
  /// Have `n` more arrays of positions.
  void add_positions(Cache& cache, size_t n);
  int32_t* take_positions() noexcept {
    int32_t* taken = spare_.back();
    spare_.pop_back();
    return taken;
  }
  /// Free what is left of them.
  void release() noexcept;

  Vector<int32_t> positions;  // of moved tokens
  Vector<int32_t> slots;      // of moved tokens, from the first page that changes on
  Vector<std::byte*> pages;   // [kv_heads, pages that are read]

 private:
  Cache* cache_ = nullptr;
  Vector<int32_t*> spare_;
};

/// Moves the tokens that a step keeps of a layer to the front of those that it received, in FP16. Before, between and
/// after, every function takes the lists as the step left them, as a rollback to as many tokens does.
class LayerCompaction {
 public:
  /// `kept`: numbers of tokens of the step, ascending.
  LayerCompaction(Sequence& sequence, int32_t layer, std::span<const int32_t> kept);

  /// Whether the kept tokens are the first ones.
  bool is_idle() const { return first_moved_ == kept_.size(); }
  /// Throws unless the FP16 originals of the pages are there.
  void check() const;
  /// Makes memory.
  void prepare(CompactionRoom& room) const;
  /// Takes originals of pages and moves slots. Then a rollback drops what is behind them.
  void run(CompactionRoom& room);
  /// Seals the pages that are left in FP16, after the rollback.
  void seal(Allocator& scratch) const;

 private:
  // Slots are those of the lists.
  int32_t begin() const { return sequence_.step.begin[static_cast<size_t>(layer_)].length - forgotten_; }
  int32_t slot_of(size_t token) const { return begin() + kept_[token]; }
  int32_t first_target() const { return begin() + static_cast<int32_t>(first_moved_); }
  int32_t first_page() const { return first_target() / kPageSlots; }
  int32_t slots_after() const { return begin() + static_cast<int32_t>(kept_.size()); }
  int32_t pages_after() const { return (slots_after() + kPageSlots - 1) / kPageSlots; }
  int32_t pages_read() const { return slot_of(kept_.size() - 1) / kPageSlots + 1 - first_page(); }
  int32_t position_of_slot(int32_t slot) const {
    return sequence_.list(layer_, 0)[static_cast<size_t>(slot / kPageSlots)]->position(slot % kPageSlots);
  }
  /// Position of a slot afterwards, from the first page that changes on.
  int32_t position_after(int32_t slot) const {
    return slot < first_target() ? position_of_slot(slot)
                                 : position_of_slot(slot_of(static_cast<size_t>(slot - begin())));
  }
  bool has_gaps_after(int32_t page) const;
  void restore(int32_t head, int32_t index) noexcept;
  void place(int32_t head, int32_t index, CompactionRoom& room) noexcept;

  Sequence& sequence_;
  Cache& cache_;
  Reserve& reserve_;
  int32_t layer_;
  std::span<const int32_t> kept_;
  int32_t forgotten_;       // slots that have left the lists
  size_t first_moved_ = 0;  // first kept token that another one is kept in the place of
};

}  // namespace kvq
