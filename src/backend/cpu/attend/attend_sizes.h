// How a call of attention is cut into work items, and what that takes of the work space.
#pragma once

#include "backend/cpu/attend/attend_item.h"
#include "backend/cpu/context_codec.h"

namespace kvq::cpu {

/// How the queries of one head and the pages of its list become work items: stretches of rows by stretches of pages.
struct HeadCut {
  int32_t rows;
  int32_t item_rows;
  int32_t item_pages;
  int32_t way;        // to pages that need their layer's context
  size_t work_bytes;  // of an item
};

/// Adds up what a call takes, from numbers alone.
class CallSizes {
 public:
  CallSizes(const AttendBatch& batch, const KernelTable& kernels);

  HeadCut cut(int32_t queries, int32_t pages) const;
  /// Heads with that many queries and pages.
  void add(size_t heads, int32_t queries, int32_t pages);
  /// Of all that was added, `queries` tokens together.
  AttendSizes sum(size_t queries, int32_t n_threads) const;

 private:
  const AttendBatch& batch_;
  const KernelTable& kernels_;
  const ContextCodec* codec_;  // null: no page needs its layer's context
  PartialLayout layout_;
  size_t items_ = 0;
  size_t merges_ = 0;
  size_t partials_ = 0;
  size_t work_bytes_ = 0;  // of the item that needs most
};

/// Words of a row of rounded queries.
inline size_t rounded_stride(int32_t head_dim) {
  return static_cast<size_t>(RoundedQueries::stride_of(RoundedQueries::words_of(head_dim)));
}

}  // namespace kvq::cpu
