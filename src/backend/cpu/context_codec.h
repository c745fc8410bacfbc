// How the CPU computes with pages that mean nothing without their layer's context: what a codec provides instead of
// kernels for a page at a time.
#pragma once

#include "backend/attention.h"
#include "backend/cpu/attend/kernels.h"
#include "core/memory.h"
#include "core/parallel.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvq::cpu {

struct KernelTable;

/// A group of pages that lie in FP16, to be encoded.
struct FilledGroup {
  const PageWrites* writes;
  size_t group;
  const std::byte* const* float16;  // [members]

  size_t members() const { return writes->group_size(); }
  const PageWrite& write(size_t member) const { return writes->of_group(group, member); }
};

/// How heads with a number of rows are attended to.
struct ContextPlan {
  int32_t way;        // the codec's own
  int32_t item_rows;  // that a work item may have
  size_t work_bytes;  // of an item
};

/// Rows of queries of one head, the pages that they may see, and where their values go.
struct ContextItem {
  const AttendBatch& batch;
  const KernelTable& kernels;
  const Page* const* const* lists;  // of all KV heads, `end` pages each
  int32_t head;
  ptrdiff_t end;
  const float* queries;            // [rows, head_dim]
  const float* rotated_queries;    // the same after a Hadamard rotation; null: no keys are rotated
  const int32_t* rounded_queries;  // those as RoundedQueries; null: no keys are in gain–shape codes
  int32_t rows;
  float* sums;     // [rows, sum_floats()]
  float* plain;    // outputs of values that were decoded, [rows, padded_dim(head_dim)]
  float* rotated;  // the same of rotated values

  const Page& page(ptrdiff_t place) const { return *lists[head][place]; }
  /// The page to prefetch while this one is read.
  const Page& later(ptrdiff_t place) const {
    const bool exists = end - place > kTilePages && page(place + kTilePages).format() == page(place).format();
    return page(exists ? place + kTilePages : place);
  }
  const float* query(int32_t row) const { return queries + static_cast<ptrdiff_t>(row) * batch.head_dim; }
  /// Rows for keys that are rotated in gain–shape codes.
  QueryRows rotated_rows(int32_t row) const {
    const int32_t words = RoundedQueries::words_of(batch.head_dim);
    return {rotated_queries + static_cast<ptrdiff_t>(row) * batch.head_dim,
            {rounded_queries + static_cast<ptrdiff_t>(row) * RoundedQueries::stride_of(words), words}};
  }
};

/// Attention of one work item to the pages that need the context.
class ContextAttention {
 public:
  virtual ~ContextAttention() = default;

  /// What is done once for all rows with those of `count` pages from place `first` on, at most kTilePages, that need
  /// the context.
  virtual void prepare(ptrdiff_t first, int32_t count) = 0;

  /// As a KeyKernel, for consecutive pages that were prepared, and up to kBlockRows rows of the item from `row` on.
  virtual void score(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, float* scores) = 0;

  /// As a ValueKernel, into the item's sums or outputs.
  virtual void add_values(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) = 0;
};

struct DestroyInPlace {
  void operator()(ContextAttention* attention) const { std::destroy_at(attention); }
};
using ContextAttentionPointer = std::unique_ptr<ContextAttention, DestroyInPlace>;

/// One constant a codec.
class ContextCodec {
 public:
  virtual ~ContextCodec() = default;

  virtual const Codec& codec() const = 0;

  /// Add to a context that was just made what only some instruction sets compute with.
  virtual void complete(Allocator& /*allocator*/, const KernelTable& /*kernels*/, LayerContext& /*context*/) const {}

  /// Write the sides that need the context; their bytes are zeros.
  virtual void encode(const TokenBatch& tokens, std::span<const FilledGroup> groups, const KernelTable& kernels,
                      Parallel& parallel, Allocator& scratch) const = 0;

  /// For heads with that many rows of queries.
  virtual ContextPlan plan(const AttendBatch& batch, const KernelTable& kernels, int32_t rows) const = 0;
  /// Floats of a row of sums that are kept beside outputs until the end; a multiple of 16, 0: none.
  virtual size_t sum_floats(const LayerContext& context) const = 0;
  /// Whether values are read from the pages of all heads: items of all heads that read the same pages then follow each
  /// other.
  virtual bool reads_other_heads(const LayerContext& context) const = 0;
  /// Made in `work`, which has the plan's bytes. `item` must outlive it.
  virtual ContextAttentionPointer attend(const ContextItem& item, int32_t way, std::byte* work) const = 0;
  /// out[r][head_dim] += what the sums of up to four queries of KV head `head` come to; out: rows of kMaxHeadDim.
  virtual void add_sums(const LayerContext& context, const KernelTable& kernels, int32_t head, int32_t rows,
                        const float* sums, float* out) const = 0;
};

}  // namespace kvq::cpu
