// What attention has shown of a sequence, for eviction to judge by.
#pragma once

#include "cache/cache.h"

#include <cstdint>
#include <span>

namespace kvq {

/// The newest queries of one layer.
class QueryWindow {
 public:
  explicit QueryWindow(Allocator& allocator)
      : held_(allocator), grown_(allocator), sinks_(StlAllocator<float>(allocator)) {}

  /// Have memory for `queries` more of a batch, the last `window` of which are kept.
  void stage(const AttendBatch& batch, size_t queries, int32_t window);
  /// Take over queries [first, first + positions.size()) of the batch, oldest first, in FP16.
  void add(const AttendBatch& batch, size_t first, std::span<const int32_t> positions, int32_t window) noexcept;
  /// Forget what was staged and not added.
  void discard() noexcept;
  void clear() noexcept;

  int32_t size() const { return static_cast<int32_t>(held_.positions.size()); }
  const uint16_t* rows() const { return held_.rows.data(); }              // [size, q_heads, head_dim], in no order
  std::span<const int32_t> positions() const { return held_.positions; }  // of the rows
  /// As the newest queries attended.
  float softcap() const { return softcap_; }
  int32_t sliding_window() const { return sliding_window_; }
  const float* sinks() const { return sinks_.empty() ? nullptr : sinks_.data(); }
  uint64_t bytes() const noexcept;

 private:
  struct Queries {
    explicit Queries(Allocator& allocator)
        : rows(StlAllocator<uint16_t>(allocator)), positions(StlAllocator<int32_t>(allocator)) {}
    Vector<uint16_t> rows;
    Vector<int32_t> positions;
  };
  void release_grown() noexcept;

  Queries held_;
  Queries grown_;  // takes the place of the one above when staged queries are added; has memory only
  size_t staged_ = 0;
  Vector<float> sinks_;  // [q_heads], or empty
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
  Vector<Vector<float>> masses(const Sequence& sequence, int32_t layer) const;
  /// The queries of an entry of the batch have attended to `sequence`: everything about that that can fail. They count
  /// from commit() on.
  void stage(const Sequence& sequence, int32_t layer, const AttendBatch& batch, const AttendSequence& entry,
             Workspace& workspace);
  void commit(const Sequence& sequence, int32_t layer, const AttendBatch& batch, const AttendSequence& entry) noexcept;
  void discard(int32_t layer) noexcept;
  /// Only these slots are left, [n_layers, kv_heads]; an empty list: all.
  void keep(std::span<const Vector<int32_t>> slots) noexcept;
  /// `sequence` has lost its newest tokens.
  void truncate(const Sequence& sequence) noexcept;
  uint64_t bytes() const noexcept;

 private:
  /// Throw KVQ_E_STATE unless a query has seen every token that is judged.
  void check_seen(const Sequence& sequence, int32_t layer) const;

  Vector<int32_t> seen_;          // [n_layers] tokens of the layer when queries last attended that are known, or 0
  Vector<QueryWindow> windows_;   // [n_layers], or empty
  Vector<Vector<float>> masses_;  // [n_layers, kv_heads] attention that each slot has had, or empty
  Vector<Vector<float>> staged_;  // [kv_heads] of the layer that is attended to, or empty
};

}  // namespace kvq
