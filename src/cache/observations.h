// What attention has shown of a sequence, for eviction to judge by.
#pragma once

#include "cache/backend_memory.h"
#include "cache/cache.h"

#include <algorithm>
#include <cstdint>
#include <span>

namespace kvq {

/// A number for each slot of each head of a layer, where the backend computes.
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
  /// Those of `from`, then zeros up to `slots` of each head. `*this` is empty.
  void extend(const SlotMasses& from, std::span<const int32_t> slots);
  /// Those of `from` that stay; an empty list: all. `*this` is empty.
  void keep(const SlotMasses& from, std::span<const Vector<int32_t>> slots);
  float* of(size_t head) const { return reinterpret_cast<float*>(numbers_.data()) + head * stride_; }
  Vector<const float*> heads() const;
  void release() noexcept;
  uint64_t bytes() const noexcept { return numbers_.bytes() + counts.capacity() * sizeof(int32_t); }
  /// Of those of heads with so many slots each.
  static uint64_t bytes_of(size_t heads, int32_t slots) {
    return heads * (stride_of(slots) * sizeof(float) + sizeof(int32_t));
  }

  Vector<int32_t> counts;  // [kv_heads] slots that have a number

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

  /// Have memory for `queries` more of a batch, the last `window` of which are kept.
  void stage(const AttendBatch& batch, size_t queries, int32_t window);
  /// Take over queries [first, first + positions.size()) of the batch, oldest first, in FP16.
  void add(const AttendBatch& batch, size_t first, std::span<const int32_t> positions, int32_t window) noexcept;
  /// Forget what was staged and not added.
  void discard() noexcept;
  void clear() noexcept;

  int32_t size() const { return static_cast<int32_t>(held_.positions.size()); }
  const uint16_t* rows() const { return held_.numbers(); }                // [size, q_heads, head_dim], in no order
  std::span<const int32_t> positions() const { return held_.positions; }  // of the rows
  /// As the newest queries attended.
  float softcap() const { return softcap_; }
  int32_t sliding_window() const { return sliding_window_; }
  const float* sinks() const { return has_sinks_ ? reinterpret_cast<const float*>(sinks_.data()) : nullptr; }
  uint64_t bytes() const noexcept;
  /// Of one that has got so many queries at once, without sinks.
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

    BackendMemory rows;  // where the backend computes
    Vector<int32_t> positions;
  };

  Queries held_;
  Queries grown_;  // takes the place of the one above when staged queries are added; has memory only
  size_t staged_ = 0;
  BackendMemory sinks_;  // [q_heads]
  bool has_sinks_ = false;
  size_t width_ = 0;  // numbers of a row
  float softcap_ = 0.0F;
  int32_t sliding_window_ = 0;
  size_t oldest_ = 0;  // row that the next one replaces, once there are `window`
};

class Sequence;

/// Of every layer of a sequence: queries or attention, as the cache's policy wants to judge by.
class Observations {
 public:
  Observations(const Cache& cache, Allocator& allocator);

  /// Attention that every slot of every head of a layer has had from the queries in view, [kv_heads][slots]; throws
  /// KVQ_E_STATE if tokens before the window that is always kept have come since.
  SlotMasses masses(const Sequence& sequence, int32_t layer) const;
  /// The queries of an entry of the batch have attended to `sequence`: everything about that that can fail. They count
  /// from commit() on.
  void stage(const Sequence& sequence, int32_t layer, const AttendBatch& batch, const AttendSequence& entry,
             Workspace& workspace);
  void commit(const Sequence& sequence, int32_t layer, const AttendBatch& batch, const AttendSequence& entry) noexcept;
  void discard(int32_t layer) noexcept;
  /// Only these slots will be left, [n_layers, kv_heads]; an empty list: all. From keep() on.
  void stage_kept(std::span<const Vector<int32_t>> slots);
  void keep() noexcept;
  /// `sequence` has lost its newest tokens.
  void truncate(const Sequence& sequence) noexcept;
  uint64_t bytes() const noexcept;
  /// Of those of a sequence with so many tokens, of which `queries` have attended at once; 0 without eviction.
  static uint64_t bytes_of(const Cache& cache, int32_t tokens, int32_t queries);

 private:
  static uint64_t bytes_of(size_t layers, size_t windows, size_t masses) {
    return sizeof(Observations) + layers * sizeof(int32_t) + windows * sizeof(QueryWindow) +
           masses * sizeof(SlotMasses);
  }
  /// Throw KVQ_E_STATE unless a query has seen every token that is judged.
  void check_seen(const Sequence& sequence, int32_t layer) const;

  Vector<int32_t> seen_;         // [n_layers] tokens of the layer when queries last attended that are known, or 0
  Vector<QueryWindow> windows_;  // [n_layers], or empty
  Vector<SlotMasses> masses_;    // [n_layers] attention that each slot has had, or empty
  SlotMasses staged_;            // of the layer that is attended to, or empty
  Vector<SlotMasses> kept_;      // [n_layers] what takes the place of masses_, or empty
};

}  // namespace kvq
