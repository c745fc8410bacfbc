// What eviction asks of a backend: who was attended to, which tokens stay, and to move them.
#pragma once

#include "backend/attention.h"
#include "backend/eviction.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// Queries of a batch that are kept for later.
struct QueriesToKeep {
  const AttendBatch& batch;
  int32_t first;  // of the batch's queries
  int32_t count;
  uint16_t* rows;  // [count, q_heads, head_dim] in FP16, in the backend's memory
};

/// What one layer of a sequence is to keep.
struct Selection {
  const Eviction& eviction;
  std::span<const float* const> masses;  // [kv_heads][slots] in the backend's memory
  std::span<const int32_t> counts;       // [kv_heads] slots
  int64_t total;                         // slots to keep, of all heads together
};

/// Slots of a page that move to FP16 pages.
struct SlotMove {
  int32_t head;
  int32_t index;   // of the page, in the head's list
  uint32_t slots;  // a bit each
  int32_t rank;    // of the first of them, among all of the head
};

/// All such slots of one layer. Their pages follow each other from `targets` on, 32 slots each, keys as after RoPE.
struct SlotMoves {
  std::span<const SlotMove> moves;
  const Page* const* const* lists;      // [kv_heads]
  std::span<std::byte* const> targets;  // [kv_heads], FP16 pages whose bytes are zeros; null: nothing moves
  int32_t head_dim;
};

class Weighing {
 public:
  virtual ~Weighing() = default;

  // Memory of Pages::allocate. Everything happens in the order in which it is asked for. What cannot throw leaves a
  // device's failure to a later call.
  virtual void copy(void* to, const void* from, size_t bytes) noexcept = 0;
  virtual void clear(void* data, size_t bytes) = 0;
  virtual void keep_queries(const QueriesToKeep& queries) noexcept = 0;
  /// Add to masses[kv head][slot] the attention that the slot gets from the queries of the batch's only sequence: a
  /// query's mean or largest softmax weight over the query heads of the KV head. Writes nothing else. `workspace`: of
  /// the same backend's attention.
  virtual void weigh(const AttendBatch& batch, Pooling group, Workspace& workspace, std::span<float* const> masses) = 0;
  /// The slots of each head that stay, in rising order.
  virtual void select(Allocator& allocator, const Selection& selection, std::span<Vector<int32_t>> slots) = 0;
  /// to[i] = from[slots[i]].
  virtual void take(float* to, const float* from, std::span<const int32_t> slots) = 0;

  /// Whether move() reads pages of a format; all others are read by the host.
  virtual bool moves(const PageFormat& format) const = 0;
  virtual void move(const SlotMoves& moves) = 0;
};

}  // namespace kvq
