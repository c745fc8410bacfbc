// Observed attention of a sequence, from which eviction scores its tokens.
#pragma once

#include "cache/backend_memory.h"
#include "cache/cache.h"

#include <algorithm>
#include <cstdint>
#include <span>

namespace kvq {

/// A number for each slot of each head of a layer, in the backend's memory.
class SlotMasses {
 public:
  SlotMasses(Backend& backend, Allocator& allocator) : counts(allocator), numbers_(backend, allocator) {}
  SlotMasses(SlotMasses&&) noexcept = default;
  SlotMasses& operator=(SlotMasses&&) noexcept = default;
  SlotMasses(const SlotMasses& other) : SlotMasses(other.numbers_.backend(), other.numbers_.allocator()) {
    extend(other, other.counts);
  }
  SlotMasses& operator=(const SlotMasses& other) { return *this = SlotMasses(other); }

  bool empty() const { return numbers_.empty(); }
  /// Take the numbers of `from`, then zeros up to `slots` of each head. `*this` is empty.
  void extend(const SlotMasses& from, std::span<const int32_t> slots);
  /// Take the numbers of `from` at `slots`; an empty list: all. `*this` is empty.
  void keep(const SlotMasses& from, std::span<const Vector<int32_t>> slots);
  float* of(size_t head) const { return reinterpret_cast<float*>(numbers_.data()) + head * stride_; }
  Vector<const float*> heads() const;
  void release() noexcept;
  uint64_t bytes() const noexcept { return numbers_.bytes() + counts.capacity() * sizeof(int32_t); }
  /// Bytes for heads of `slots` slots.
  static uint64_t bytes_of(size_t heads, int32_t slots) {
    return heads * (stride_of(slots) * sizeof(float) + sizeof(int32_t));
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
      : held_(backend, allocator), grown_(backend, allocator), sinks_(backend, allocator) {}
  QueryWindow(QueryWindow&&) noexcept = default;
  QueryWindow& operator=(QueryWindow&&) noexcept = default;
  QueryWindow(const QueryWindow& other);
  QueryWindow& operator=(const QueryWindow& other) { return *this = QueryWindow(other); }

  /// Reserve memory for `queries` more queries of a batch, the last `window` of which are kept.
  void stage(const AttendBatch& batch, size_t queries, int32_t window);
  /// Copy queries [first, first + positions.size()) of the batch, oldest first, in FP16.
  void add(const AttendBatch& batch, size_t first, std::span<const int32_t> positions, int32_t window) noexcept;
  /// Drop staged queries that were not added.
  void discard() noexcept;
  void clear() noexcept;

  int32_t size() const { return static_cast<int32_t>(held_.positions.size()); }
  const uint16_t* rows() const { return held_.numbers(); }                // [size, q_heads, head_dim], unordered
  std::span<const int32_t> positions() const { return held_.positions; }  // of the rows
  /// The newest queries as a batch.
  float softcap() const { return softcap_; }
  int32_t sliding_window() const { return sliding_window_; }
  const float* sinks() const { return has_sinks_ ? reinterpret_cast<const float*>(sinks_.data()) : nullptr; }
  uint64_t bytes() const noexcept;
  /// Bytes after `queries` queries at once, without sinks.
  static uint64_t bytes_of(const Cache& cache, int32_t queries) {
    const auto kept = static_cast<uint64_t>(std::min(queries, cache.eviction.window));
    return kept * (width_of(cache.q_heads, cache.head_dim) * sizeof(uint16_t) + sizeof(int32_t));
  }

 private:
  static size_t width_of(int32_t q_heads, int32_t head_dim) {
    return static_cast<size_t>(q_heads) * static_cast<size_t>(head_dim);
  }

  struct Queries {
    Queries(Backend& backend, Allocator& allocator) : rows(backend, allocator), positions(allocator) {}
    uint16_t* numbers() const { return reinterpret_cast<uint16_t*>(rows.data()); }
    size_t capacity() const { return rows.empty() ? 0 : positions.capacity(); }
    void release() noexcept;

    BackendMemory rows;  // in the backend's memory
    Vector<int32_t> positions;
  };

  Queries held_;
  Queries grown_;  // replaces the one above when staged queries are added; memory only
  size_t staged_ = 0;
  BackendMemory sinks_;  // [q_heads]
  bool has_sinks_ = false;
  size_t width_ = 0;  // numbers of a row
  float softcap_ = 0.0F;
  int32_t sliding_window_ = 0;
  size_t oldest_ = 0;  // row that the next one replaces, once the window is full
};

class Sequence;

/// Queries or attention of every layer of a sequence, whichever the cache's policy scores by.
class Observations {
 public:
  Observations(const Cache& cache, Allocator& allocator);

  /// Attention of every slot of every head of a layer from the observed queries, [kv_heads][slots]. Throws KVQ_E_STATE
  /// if tokens before the always kept window have been appended since.
  SlotMasses masses(const Sequence& sequence, int32_t layer) const;
  /// Record the queries of a batch entry that attended to `sequence`: everything that can fail. They count from
  /// commit() on.
  void stage(const Sequence& sequence, int32_t layer, const AttendBatch& batch, const AttendSequence& entry,
             Workspace& workspace);
  void commit(const Sequence& sequence, int32_t layer, const AttendBatch& batch, const AttendSequence& entry) noexcept;
  void discard(int32_t layer) noexcept;
  /// Prepare to keep only these slots, [n_layers, kv_heads]; an empty list: all. Takes effect in keep().
  void stage_kept(std::span<const Vector<int32_t>> slots);
  void keep() noexcept;
  /// Follow a truncation of `sequence`.
  void truncate(const Sequence& sequence) noexcept;
  uint64_t bytes() const noexcept;
  /// Bytes for a sequence of `tokens` tokens, of which `queries` attended at once; 0 without eviction.
  static uint64_t bytes_of(const Cache& cache, int32_t tokens, int32_t queries);

 private:
  static uint64_t bytes_of(size_t layers, size_t windows, size_t masses) {
    return sizeof(Observations) + layers * sizeof(int32_t) + windows * sizeof(QueryWindow) +
           masses * sizeof(SlotMasses);
  }
  /// Throw KVQ_E_STATE unless a query has seen every scored token.
  void check_seen(const Sequence& sequence, int32_t layer) const;

  Vector<int32_t> seen_;         // [n_layers] tokens of the layer at its last observed queries, or 0
  Vector<QueryWindow> windows_;  // [n_layers], or empty
  Vector<SlotMasses> masses_;    // [n_layers] attention of each slot, or empty
  SlotMasses staged_;            // of the attended layer, or empty
  Vector<SlotMasses> kept_;      // [n_layers] replacement of masses_, or empty
};

}  // namespace kvq
