// Observed attention of a sequence, from which eviction scores its tokens.
#pragma once

#include "cache/backend_memory.h"
#include "cache/cache.h"
#include "core/scaled_row.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <span>

namespace kvq {

/// A number for each slot of each head of a layer, in the backend's memory.
class SlotMasses {
 public:
  SlotMasses(Backend& backend, Allocator& allocator) : counts(allocator), numbers_(backend, allocator) {}
  SlotMasses(SlotMasses&&) noexcept = default;
  SlotMasses& operator=(SlotMasses&&) noexcept = default;
  SlotMasses(const SlotMasses& other) : SlotMasses(other.backend(), other.allocator()) {
    clear(other.counts);
    add(other);
  }
  SlotMasses& operator=(const SlotMasses& other) { return *this = SlotMasses(other); }

  bool empty() const { return numbers_.empty(); }
  /// Make zeros for `slots` of each head, in reserved memory where that is enough.
  void clear(std::span<const int32_t> slots);
  /// Have memory for `slots` slots of each of `heads` heads; reserve() drops the numbers.
  void reserve(size_t heads, int32_t slots);
  void grow(size_t heads, int32_t slots);
  /// Slots of each head that there is memory for.
  int32_t capacity() const { return static_cast<int32_t>(stride_) - 1; }
  /// Add the numbers of `from` to those of the same slots.
  void add(const SlotMasses& from) noexcept;
  /// Take the numbers of `from` at `slots`; an empty list: all. `*this` is empty.
  void keep(const SlotMasses& from, std::span<const Vector<int32_t>> slots);
  float* of(size_t head) const { return reinterpret_cast<float*>(numbers_.data()) + head * stride_; }
  Vector<const float*> heads() const;
  Backend& backend() const { return numbers_.backend(); }
  Allocator& allocator() const { return numbers_.allocator(); }
  uint64_t bytes() const noexcept { return numbers_.bytes() + counts.capacity() * sizeof(int32_t); }
  /// Bytes for heads of `slots` slots.
  static uint64_t bytes_of(uint64_t heads, int32_t slots) {
    return heads * (uint64_t{stride_of(slots)} * sizeof(float) + sizeof(int32_t));
  }

  Vector<int32_t> counts;  // [kv_heads] slots with a number

 private:
  void make(std::span<const int32_t> slots);
  static size_t stride_of(int32_t slots) {
    constexpr size_t kLine = 32;
    return (static_cast<size_t>(slots) + kLine) / kLine * kLine;
  }

  BackendMemory numbers_;  // [kv_heads][stride]
  size_t stride_ = 0;
};

/// The newest queries of one layer.
class QueryWindow {
 public:
  QueryWindow(Backend& backend, Allocator& allocator)
      : held_(backend, allocator),
        grown_(backend, allocator),
        sinks_(backend, allocator),
        replaced_(backend, allocator) {}
  QueryWindow(QueryWindow&&) noexcept = default;
  QueryWindow& operator=(QueryWindow&&) noexcept = default;
  QueryWindow(const QueryWindow& other);
  QueryWindow& operator=(const QueryWindow& other) { return *this = QueryWindow(other); }

  /// Reserve memory for `queries` more queries of a batch, the last `window` of which are kept. Several calls may have
  /// staged some at once.
  void stage(const AttendBatch& batch, size_t queries, int32_t window);
  /// Copy staged queries [first, first + positions.size()) of the batch, oldest first.
  void add(const AttendBatch& batch, size_t first, std::span<const int32_t> positions, int32_t window) noexcept;
  /// Drop as many staged queries.
  void discard(size_t queries) noexcept;
  void clear() noexcept;
  struct Queries {
    Queries(Backend& backend, Allocator& allocator) : rows(backend, allocator), positions(allocator) {}
    uint16_t* numbers() const { return reinterpret_cast<uint16_t*>(rows.data()); }
    size_t capacity() const { return rows.empty() ? 0 : positions.capacity(); }
    void make(size_t queries, size_t width);
    void release() noexcept;

    BackendMemory rows;  // in the backend's memory
    Vector<int32_t> positions;
  };

  /// Memory for a whole window of `cache`.
  static Queries whole(Cache& cache);
  /// Move the queries there; clear() then keeps the memory.
  void move_to(Queries& memory) noexcept;
  bool is_reserved() const { return reserved_; }

  Backend& backend() const { return held_.rows.backend(); }
  Allocator& allocator() const { return held_.rows.allocator(); }

  // A step, which keeps the queries that are replaced inside.
  bool keeps_replaced() const { return !replaced_.rows.empty(); }
  /// `memory`: whole(), or empty if there is some from an earlier step.
  void begin_step(Queries& memory) noexcept;
  void end_step() noexcept { in_step_ = false; }
  /// Queries of the step beyond this position.
  size_t newer_than(int32_t position) const noexcept;
  /// Whether the newest `queries` queries of the step can be taken back.
  bool can_undo(size_t queries) const noexcept;
  void undo(size_t queries) noexcept;

  int32_t size() const { return static_cast<int32_t>(held_.positions.size()); }
  const uint16_t* rows() const { return held_.numbers(); }                // [size, q_heads] rows of scaled_row.h
  std::span<const int32_t> positions() const { return held_.positions; }  // of the rows
  /// The newest queries as a batch.
  float softcap() const { return softcap_; }
  int32_t sliding_window() const { return sliding_window_; }
  const float* sinks() const { return has_sinks_ ? reinterpret_cast<const float*>(sinks_.data()) : nullptr; }
  uint64_t bytes() const noexcept;
  /// Bytes after `queries` queries at once, without sinks.
  static uint64_t bytes_of(const Cache& cache, int32_t queries) {
    const auto kept = static_cast<uint64_t>(std::min(queries, cache.eviction.window));
    return kept *
           (width_of(cache.layer(0).q_heads, cache.layer(0).head.whole_key()) * sizeof(uint16_t) + sizeof(int32_t));
  }

 private:
  static size_t width_of(int32_t q_heads, int32_t head_dim) {
    return static_cast<size_t>(q_heads) * scaled_row_words(head_dim);
  }
  /// Release what only staged queries need, once there are none.
  void settle() noexcept;

  Queries held_;
  Queries grown_;  // replaces the one above when staged queries are added; memory only
  size_t staged_ = 0;
  BackendMemory sinks_;  // [q_heads]; without has_sinks_ only for staged queries
  bool has_sinks_ = false;
  size_t width_ = 0;  // words of a query
  float softcap_ = 0.0F;
  int32_t sliding_window_ = 0;
  size_t oldest_ = 0;  // row that the next one replaces, once the window is full
  bool reserved_ = false;

  struct Before {
    size_t size;
    size_t oldest;
    float softcap;
    int32_t sliding_window;
    bool has_sinks;
  };
  /// Row of the query that was replaced as number `i` in the step.
  size_t replaced_row(size_t i) const noexcept {
    const size_t rows = std::max(held_.capacity(), size_t{1});
    return ((before_.size < rows ? 0 : before_.oldest) + i) % rows;
  }

  Queries replaced_;  // in the step, oldest first
  bool in_step_ = false;
  Before before_{};
  size_t added_ = 0;    // rows of the step
  size_t skipped_ = 0;  // queries that never had a row
};

class Sequence;

/// Queries or attention of every layer of a sequence, whichever the cache's policy scores by. Calls that only read the
/// sequence stage and commit observations at the same time: a mutex guards these, and copies and sizes.
class Observations {
 public:
  Observations(const Cache& cache, Allocator& allocator);
  Observations(const Observations& other) : Observations(other, std::lock_guard(other.mutex_)) {}
  Observations& operator=(const Observations&) = delete;

  /// Attention of every slot of every head of a layer from the observed queries, [kv_heads][slots]. Throws KVQ_E_STATE
  /// if tokens before the always kept window have been appended since.
  SlotMasses masses(const Sequence& sequence, int32_t layer) const;
  /// Record the queries of a batch entry that attended to `sequence`: everything that can fail. They count from
  /// commit() on, which takes the result, unless discard() is called. Holds no lock while the backend weighs: a host's
  /// thread that waits for others may run another call meanwhile.
  SlotMasses stage(const Sequence& sequence, int32_t layer, const AttendBatch& batch, const AttendSequence& entry,
                   CallSpace& space);
  void commit(const Sequence& sequence, int32_t layer, const AttendBatch& batch, const AttendSequence& entry,
              SlotMasses& staged) noexcept;
  void discard(int32_t layer, const AttendSequence& entry, SlotMasses& staged) noexcept;
  /// Memory for observations of more tokens, so that calls of one thread at a time need none.
  struct Room {
    Vector<QueryWindow::Queries> windows;
    Vector<SlotMasses> masses;
    Vector<SlotMasses> spare;
    int32_t slots;
  };
  /// Bytes of a block that prepare() takes.
  static uint64_t scratch_bytes(const Cache& cache) {
    const auto layers = static_cast<size_t>(cache.eviction.budget > 0 ? cache.n_layers : 0);
    return Allocator::bytes_in_block(layers * std::max(sizeof(QueryWindow::Queries), sizeof(SlotMasses)));
  }
  Room prepare(const Sequence& sequence, int32_t tokens, Allocator& scratch) const;
  void take(Room& room) noexcept;
  /// Attention of these slots alone, [n_layers, kv_heads]; an empty list: of all. For keep(), which cannot fail.
  Vector<SlotMasses> kept(std::span<const Vector<int32_t>> slots) const;

  /// Memory for what a step changes.
  struct StepRoom {
    Vector<QueryWindow::Queries> replaced;
    Vector<SlotMasses> before;  // in scratch memory, but for their numbers
  };
  /// `slots`: of each head that there will be memory for.
  StepRoom prepare_step(const Sequence& sequence, int32_t slots, Allocator& scratch) const;
  int32_t reserved_slots() const { return reserved_slots_; }
  void begin_step(StepRoom& room) noexcept;
  /// Throw KVQ_E_UNSUPPORTED unless observations of a layer's tokens after `last_position` can be taken back.
  void check_undo(const Cache& cache, int32_t layer, int32_t last_position) const;
  /// Take back those. `length`: of the layer without them.
  void undo(int32_t layer, int32_t last_position, int32_t length) noexcept;
  /// Take back all of the step.
  void undo_all(int32_t layer) noexcept;
  void end_step() noexcept;

  void keep(Vector<SlotMasses>& kept) noexcept;
  /// Follow a truncation of `sequence`.
  void truncate(const Sequence& sequence) noexcept;
  uint64_t bytes() const noexcept;
  /// Bytes for a sequence of `tokens` tokens, of which `queries` attended at once; 0 without eviction.
  static uint64_t bytes_of(const Cache& cache, int32_t tokens, int32_t queries);

 private:
  static uint64_t bytes_of(size_t layers, size_t windows, size_t masses) {
    return sizeof(Observations) + layers * (2 * sizeof(int32_t) + (masses > 0 ? 1 : 0)) +
           windows * sizeof(QueryWindow) + masses * sizeof(SlotMasses);
  }
  void keep_before(size_t layer);
  SlotMasses take_spare(Cache& cache);
  void return_spare(SlotMasses& masses) noexcept;
  /// Throw KVQ_E_STATE unless a query has seen every scored token.
  void check_seen(const Sequence& sequence, int32_t layer) const;
  Observations(const Observations& other, const std::lock_guard<std::mutex>& /*of the other*/)
      : seen_(other.seen_),
        windows_(other.windows_),
        masses_(other.masses_),
        spare_(masses_.get_allocator()),
        seen_before_(other.seen_.size(), 0, seen_.get_allocator()),
        before_(masses_.get_allocator()),
        has_before_(other.masses_.size(), 0, seen_.get_allocator()) {}

  mutable std::mutex mutex_;
  Vector<int32_t> seen_;         // [n_layers] tokens of the layer at its last observed queries, or 0
  Vector<QueryWindow> windows_;  // [n_layers], or empty
  Vector<SlotMasses> masses_;    // [n_layers] attention of each slot, or empty
  Vector<SlotMasses> spare_;     // one for stage(), if reserved
  Vector<int32_t> seen_before_;  // [n_layers] before the step
  Vector<SlotMasses> before_;    // [n_layers] masses before the step, if any query has attended in it, or empty
  Vector<uint8_t> has_before_;   // [n_layers], or empty
  bool in_step_ = false;
  int32_t reserved_slots_ = 0;
};

}  // namespace kvq
