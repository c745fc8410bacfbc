// Pages in blocks of the host's memory, found by tables of block numbers, as engines with paged caches have them.
#pragma once

#include "backend/attention.h"
#include "backend/pages.h"
#include "core/memory.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// Most ranges of memory that a pool's blocks lie in.
inline constexpr int32_t kMostBlockRanges = 6;

/// Consecutive blocks of a layer in one piece of memory.
struct BlockRange {
  std::byte* data;
  size_t stride;  // bytes from one block to the next
  int32_t blocks;
};

/// Blocks of one layer. A block holds pages of all heads, [kv_heads][block_pages], each of the layer's format.
struct PooledLayer {
  const PageFormat* format;   // of full pages
  const PageFormat* float16;  // of a sequence's open page
  int32_t kv_heads;
  std::span<const BlockRange> ranges;
  // [n_tails][2][kv_heads] FP16 pages of the newest tokens: page p is in half p % 2. Null if the format is FP16, where
  // blocks hold them.
  std::byte* tails;
  size_t tail_stride;  // bytes from one tail to the next
  LayerScales scales;  // of all tokens

  bool has_tails() const { return tails != nullptr; }
  /// Offset of a page in its block.
  size_t page_offset(int32_t head, int32_t page, int32_t block_pages) const {
    return (static_cast<size_t>(head) * static_cast<size_t>(block_pages) + static_cast<size_t>(page)) * format->bytes();
  }
  std::byte* block(int32_t number) const {
    for (const BlockRange& range : ranges) {
      if (number < range.blocks) return range.data + static_cast<size_t>(number) * range.stride;
      number -= range.blocks;
    }
    return nullptr;
  }
  std::byte* tail(int32_t number, int32_t head, int32_t page) const {
    return tails + static_cast<size_t>(number) * tail_stride +
           static_cast<size_t>(page % 2 * kv_heads + head) * float16->bytes();
  }
  size_t tail_bytes() const { return 2 * static_cast<size_t>(kv_heads) * float16->bytes(); }
};

struct BlockPool {
  int32_t block_pages;  // pages of a head in a block
  int32_t n_blocks;
  int32_t n_tails;
  std::span<const PooledLayer> layers;
  std::span<const TokenBatch> tokens;    // [layers] templates of calls, without tokens
  std::span<const AttendBatch> queries;  // templates of calls on every layer of the model, without queries
};

/// Limits of calls for which a plan has room.
struct PoolMaxima {
  int32_t sequences;
  int32_t tokens;   // new ones of all sequences together
  int32_t queries;  // new tokens of one sequence
  int32_t blocks;   // of one sequence
};

/// Sequences of a call. Arrays are in the context's memory; on a GPU they are read in stream order and may change
/// between replays of a graph. The newest tokens of each sequence are new: stored by the call, and its queries.
struct PooledBatch {
  int32_t n_sequences;
  int32_t n_tokens;             // new ones; a GPU has room for so many, and fewer may come
  int32_t max_queries;          // most new tokens of a sequence
  int32_t max_length;           // of the longest sequence
  const int32_t* query_starts;  // [n_sequences + 1] first new token of each sequence, and the end
  const int32_t* lengths;       // [n_sequences] tokens, new ones included
  const int32_t* block_table;   // [n_sequences] rows of block numbers
  int64_t table_stride;         // numbers from one row to the next
  const int32_t* tails;         // [n_sequences] tail of each sequence; null if no layer has tails
};

/// Work on one layer: tokens alone are stored. Queries alone see what is stored. With both, queries see older tokens as
/// they are stored, and new ones as they are given, in FP16.
struct PooledCall {
  int32_t layer;               // of BlockPool::layers
  const TokenBatch* tokens;    // null: none; without positions
  const AttendBatch* queries;  // null: none; without sequences and positions
};

/// What calls need to find their pages, made once for all layers.
class PoolPlan {
 public:
  virtual ~PoolPlan() = default;
  /// A batch within the maxima. Throws KVQ_E_ARGUMENT for numbers in its arrays that are out of range, if the host can
  /// see them.
  virtual void plan(const PooledBatch& batch) = 0;
  /// Work on the batch of the last plan() that succeeded.
  virtual void run(const PooledCall& call) = 0;
};

class BlockPools {
 public:
  virtual ~BlockPools() = default;
  /// Throws KVQ_E_UNSUPPORTED unless the backend finds such a layer's pages by tables.
  virtual void require(const PooledLayer& layer) const = 0;
  /// Allocates all that calls within the limits need. `pool` outlives the plan.
  virtual Owned<PoolPlan> make_plan(Allocator& allocator, const BlockPool& pool, const PoolMaxima& maxima) = 0;
};

}  // namespace kvq
