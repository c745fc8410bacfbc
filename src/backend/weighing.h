// Backend operations of eviction: attention weights per slot, selection of slots, and moves.
#pragma once

#include "backend/attention.h"
#include "backend/eviction.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// Queries of a batch to keep for later.
struct QueriesToKeep {
  const AttendBatch& batch;
  int32_t first;  // first query of the batch to keep
  int32_t count;
  uint16_t* rows;  // [count, q_heads] rows of scaled_row.h, in the backend's memory
};

/// Kept queries to read again.
struct KeptQueries {
  const uint16_t* rows;  // [n] as in QueriesToKeep, of any query and head
  size_t n;
  int32_t head_dim;
  float* numbers;  // [n, head_dim]
};

/// Slots of one layer of a sequence to select from.
struct Selection {
  const Eviction& eviction;
  std::span<const float* const> masses;  // [kv_heads][slots] in the backend's memory
  std::span<const int32_t> counts;       // [kv_heads] slot counts
  int64_t total;                         // slots to keep, summed over heads
};

/// Slots of a page that move to FP16 pages.
struct SlotMove {
  int32_t head;
  int32_t index;   // place of the page in the head's list
  uint32_t slots;  // one bit per slot
  int32_t rank;    // rank of the first, among all moved slots of the head
};

/// All moves of one layer. Target pages are contiguous from `targets`, 32 slots each, keys after RoPE.
struct SlotMoves {
  std::span<const SlotMove> moves;
  const Page* const* const* lists;      // [kv_heads] page lists
  std::span<std::byte* const> targets;  // [kv_heads], FP16 pages whose bytes are zeros; null: nothing moves
  HeadShape head;
};

class Weighing {
 public:
  virtual ~Weighing() = default;

  // Memory of Pages::allocate. Operations run in the order of calls. Functions that cannot throw leave a device's
  // failure to a later call.
  virtual void copy(void* to, const void* from, size_t bytes) noexcept = 0;
  virtual void clear(void* data, size_t bytes) = 0;
  /// to[i] += from[i].
  virtual void add(float* to, const float* from, size_t n) noexcept = 0;
  virtual void keep_queries(const QueriesToKeep& queries) noexcept = 0;
  virtual void read_queries(const KeptQueries& queries) = 0;
  /// Add to masses[kv head][slot] the attention that the slot gets from the queries of the batch's only sequence: the
  /// mean or largest softmax weight over the query heads of the KV head, summed over queries. Writes nothing else.
  /// `workspace`: of the same backend's attention.
  virtual void weigh(const AttendBatch& batch, Pooling group, Workspace& workspace, std::span<float* const> masses) = 0;
  /// Slots that each head keeps, in ascending order.
  virtual void select(Allocator& allocator, const Selection& selection, std::span<Vector<int32_t>> slots) = 0;
  /// to[i] = from[slots[i]].
  virtual void take(float* to, const float* from, std::span<const int32_t> slots) = 0;

  /// move() reads pages of this format; the host reads all others.
  virtual bool moves(const PageFormat& format) const = 0;
  virtual void move(const SlotMoves& moves) = 0;
};

}  // namespace kvq
