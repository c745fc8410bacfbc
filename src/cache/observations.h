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
      : rows_(StlAllocator<uint16_t>(allocator)),
        positions_(StlAllocator<int32_t>(allocator)),
        sinks_(StlAllocator<float>(allocator)) {}

  /// Take over queries [first, first + positions.size()) of a batch, oldest first; the last `window` ever added are
  /// kept, in FP16.
  void add(const AttendBatch& batch, size_t first, std::span<const int32_t> positions, int32_t window);
  void clear() noexcept;

  int32_t size() const { return static_cast<int32_t>(positions_.size()); }
  const uint16_t* rows() const { return rows_.data(); }              // [size, q_heads, head_dim], in no order
  std::span<const int32_t> positions() const { return positions_; }  // of the rows
  /// As the newest queries attended.
  float softcap() const { return softcap_; }
  int32_t sliding_window() const { return sliding_window_; }
  const float* sinks() const { return sinks_.empty() ? nullptr : sinks_.data(); }
  uint64_t bytes() const noexcept;

 private:
  Vector<uint16_t> rows_;
  Vector<int32_t> positions_;
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

  /// Attention that every slot of every head of a layer has had from the queries in view, [kv_heads][slots].
  Vector<Vector<float>> masses(const Sequence& sequence, int32_t layer) const;
  /// The queries of an entry of the batch have attended to `sequence`.
  void add(const Sequence& sequence, int32_t layer, const AttendBatch& batch, const AttendSequence& entry);
  /// Only these slots are left, [n_layers, kv_heads]; an empty list: all.
  void keep(std::span<const Vector<int32_t>> slots) noexcept;
  uint64_t bytes() const noexcept;

 private:
  Vector<QueryWindow> windows_;   // [n_layers], or empty
  Vector<Vector<float>> masses_;  // [n_layers, kv_heads] attention that each slot has had, or empty
};

}  // namespace kvq
