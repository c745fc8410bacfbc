// CPU computation on pages that need their layer's context: a codec provides this instead of kernels for single pages.
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

/// A group of FP16 pages to encode.
struct FilledGroup {
  const PageWrites* writes;
  size_t group;
  const std::byte* const* float16;  // [members]

  size_t members() const { return writes->group_size(); }
  const PageWrite& write(size_t member) const { return writes->of_group(group, member); }
};

/// Attention path for heads with a given number of rows.
struct ContextPath {
  int32_t path;       // numbered by the codec
  int32_t item_rows;  // limit per work item
  size_t work_bytes;  // per item
};

/// Rows of queries of one head, the pages they may see, and the destinations of their values.
struct ContextItem {
  const AttendBatch& batch;
  const KernelTable& kernels;
  const Page* const* const* lists;  // all KV heads' lists, `end` pages each
  int32_t head;
  ptrdiff_t end;
  const float* queries;            // [rows, channels of keys]
  const float* rotated_queries;    // `queries` after a Hadamard rotation; null: no keys are rotated
  const int32_t* rounded_queries;  // `rotated_queries` as RoundedQueries; null: no keys are in gain–shape codes
  int32_t rows;
  float* sums;     // [rows, sum_floats()]
  float* plain;    // outputs of decoded values, [rows, padded_dim(channels of values)]
  float* rotated;  // outputs of rotated values

  const Page& page(ptrdiff_t place) const { return *lists[head][place]; }
  /// Page to prefetch while this one is read.
  const Page& later(ptrdiff_t place) const {
    const bool exists = end - place > kTilePages && page(place + kTilePages).format() == page(place).format();
    return page(exists ? place + kTilePages : place);
  }
  const float* query(int32_t row) const { return queries + static_cast<ptrdiff_t>(row) * batch.head.keys; }
  /// Rows for Hadamard-rotated keys in gain–shape codes.
  QueryRows rotated_rows(int32_t row) const {
    const int32_t words = RoundedQueries::words_of(batch.head.keys);
    return {rotated_queries + static_cast<ptrdiff_t>(row) * batch.head.keys,
            {rounded_queries + static_cast<ptrdiff_t>(row) * RoundedQueries::stride_of(words), words}};
  }
};

/// Attention of one work item to the pages that need the context.
class ContextAttention {
 public:
  virtual ~ContextAttention() = default;

  /// Work done once for all rows: decode `count` ≤ kTilePages pages from place `first` that need the context.
  virtual void prepare(ptrdiff_t first, int32_t count) = 0;

  /// KeyKernel for consecutive prepared pages, and up to kBlockRows rows of the item from `row`.
  virtual void score(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, float* scores) = 0;

  /// ValueKernel that adds to the item's sums or outputs.
  virtual void add_values(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) = 0;
};

struct DestroyInPlace {
  void operator()(ContextAttention* attention) const { std::destroy_at(attention); }
};
using ContextAttentionPointer = std::unique_ptr<ContextAttention, DestroyInPlace>;

/// One constant per codec.
class ContextCodec {
 public:
  virtual ~ContextCodec() = default;

  virtual const Codec& codec() const = 0;

  /// Extend a new context by data that only some instruction sets use.
  virtual void complete(Allocator& /*allocator*/, const KernelTable& /*kernels*/, LayerContext& /*context*/) const {}

  /// Write the sides that need the context; their bytes are zeros.
  virtual void encode(const TokenBatch& tokens, std::span<const FilledGroup> groups, const KernelTable& kernels,
                      Parallel& parallel, Allocator& scratch) const = 0;

  /// Most bytes of `scratch` that this takes in an allocator's block.
  virtual uint64_t encode_bytes(const TokenBatch& tokens, uint64_t groups, uint64_t members, const KernelTable& kernels,
                                const Parallel& parallel) const = 0;

  /// Path for heads with `rows` rows of queries.
  virtual ContextPath choose_path(const AttendBatch& batch, const KernelTable& kernels, int32_t rows) const = 0;
  /// Floats of a row of sums kept beside outputs until the end; a multiple of 16, 0: none.
  virtual size_t sum_floats(const LayerContext& context) const = 0;
  /// Values are read from the pages of all heads: items of all heads over the same pages then follow each other.
  virtual bool reads_other_heads(const LayerContext& context) const = 0;
  /// Constructed in `work`, of work_bytes. `item` must outlive it.
  virtual ContextAttentionPointer attend(const ContextItem& item, int32_t path, std::byte* work) const = 0;
  /// out[r] += the decoded sums of up to four queries of KV head `head`; out: rows of kMaxHeadDim.
  virtual void add_sums(const LayerContext& context, const KernelTable& kernels, int32_t head, int32_t rows,
                        const float* sums, float* out) const = 0;
};

/// Gain–shape pages around trained centres.
const ContextCodec& centred_codec();

/// CommVQ on the CPU.
const ContextCodec& commvq_codec();

/// Implementation of ContextCodec::encode(): a side of a page at a time, on any number of threads.
void encode_centred(const TokenBatch& tokens, std::span<const FilledGroup> groups, const KernelTable& kernels,
                    Parallel& parallel, Allocator& scratch);

uint64_t encode_centred_bytes(int32_t head_dim, uint64_t pages, const KernelTable& kernels, const Parallel& parallel);

/// Implementation of ContextCodec::encode(): a page or a layer at a time, on any number of threads.
void encode_commvq(const TokenBatch& tokens, std::span<const FilledGroup> groups, Parallel& parallel,
                   Allocator& scratch);
uint64_t encode_commvq_bytes(const TokenBatch& tokens, uint64_t groups, uint64_t members, const Parallel& parallel);

}  // namespace kvq::cpu
