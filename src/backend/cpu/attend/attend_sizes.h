// Division of an attention call into work items, and the work space it takes.
#pragma once

#include "backend/cpu/attend/attend_item.h"
#include "backend/cpu/context_codec.h"

#include <algorithm>

namespace kvq::cpu {

/// Division of one head's queries and list into work items: ranges of rows by ranges of pages.
struct HeadCut {
  int32_t rows;
  int32_t item_rows;
  int32_t item_pages;
  int32_t path;       // for pages that need their layer's context
  size_t work_bytes;  // per item
};

/// Words of a row of rounded queries.
inline size_t rounded_stride(int32_t head_dim) {
  return static_cast<size_t>(RoundedQueries::stride_of(RoundedQueries::words_of(head_dim)));
}

/// Channels of queries that meet one side of pages, and the places of their first rows in the work space.
struct QueryPart {
  int32_t channel;  // the first one, in queries as they are given
  int32_t dim;      // 0: queries do not meet the side
  bool is_rotated;  // Hadamard-rotated rows are needed, too
  bool is_rounded;
  uint64_t plain;
  uint64_t rotated;
  uint64_t rounded;
};

/// Prepared queries of a call: those of the key side, and of the value side if values are the first channels of the
/// keys.
struct QueryRoom {
  QueryRoom(const AttendBatch& batch, uint64_t queries)
      : rows(queries * static_cast<uint64_t>(batch.q_heads) + kBlockRows),
        keys(part(batch.head.before_keys(), batch.head.keys, batch.any_hadamard_keys, batch.any_gain_shape_keys)),
        latent(part(0, batch.head.before_keys(), batch.any_hadamard_values, batch.any_gain_shape_values)) {}

  uint64_t rows;
  uint64_t plain = 0;
  uint64_t rotated = 0;
  uint64_t rounded = 0;
  QueryPart keys;
  QueryPart latent;

 private:
  QueryPart part(int32_t channel, int32_t dim, bool is_rotated, bool is_rounded) {
    const QueryPart made{channel, dim, is_rotated, is_rounded, plain, rotated, rounded};
    const uint64_t floats = rows * static_cast<uint64_t>(dim);
    plain += floats;
    if (is_rotated) rotated += floats;
    if (is_rounded) rounded += rows * rounded_stride(dim);
    return made;
  }
};

/// Adds up the sizes of a call without making it.
class CallSizes {
 public:
  CallSizes(const AttendBatch& batch, const KernelTable& kernels)
      : batch_(batch),
        kernels_(kernels),
        codec_(kernels.codec(batch.context)),
        layout_(batch, kernels),
        group_(batch.q_heads / batch.kv_heads) {}

  /// Null: no page needs its layer's context.
  const ContextCodec* codec() const { return codec_; }
  const PartialLayout& layout() const { return layout_; }
  /// Query heads per KV head.
  int32_t group() const { return group_; }

  HeadCut cut(int32_t queries, int32_t pages) const {
    const int32_t rows = queries * group_;
    const ContextPath chosen = codec_ != nullptr ? codec_->choose_path(batch_, kernels_, rows)
                                                 : ContextPath{0, kItemRows, latent_work_bytes(batch_.head)};
    // Many rows are enough parallel work without splitting pages, and their partials would be large.
    const int32_t item_pages = rows <= kItemRows ? kSplitPages : std::max(pages, 1);
    return {.rows = rows,
            .item_rows = chosen.item_rows,
            .item_pages = item_pages,
            .path = chosen.path,
            .work_bytes = chosen.work_bytes};
  }
  /// Adds `heads` heads with `queries` queries and `pages` pages each.
  void add(uint64_t heads, int32_t queries, int32_t pages) {
    const HeadCut head = cut(queries, pages);
    work_bytes_ = std::max<uint64_t>(work_bytes_, head.work_bytes);
    if (head.rows > head.item_rows || pages > head.item_pages) return add_cut(heads, head, pages);
    merges_ += heads;
    items_ += heads;
    partials_ += heads * layout_.item_floats(head.rows);
  }
  /// Sizes of everything added, `queries` tokens in total.
  AttendSizes sum(uint64_t queries, int32_t n_threads) const {
    const QueryRoom room(batch_, queries);
    AttendSizes sizes;
    sizes.rope_table = queries * batch_.rope->table_stride();
    sizes.queries = room.plain;
    sizes.rotated_queries = room.rotated;
    sizes.rounded_queries = room.rounded;
    if (batch_.head.is_latent) sizes.biases = room.rows;
    sizes.partials = partials_;
    sizes.items = items_;
    sizes.merges = merges_;
    sizes.pieces = work_bytes_ > 0 ? std::min<uint64_t>(items_, items_at_once(n_threads)) : 0;
    sizes.piece_bytes = work_bytes_;
    return sizes;
  }

 private:
  void add_cut(uint64_t heads, const HeadCut& head, int32_t pages);
  static size_t items_at_once(int32_t n_threads);

  const AttendBatch& batch_;
  const KernelTable& kernels_;
  const ContextCodec* codec_;
  PartialLayout layout_;
  int32_t group_;
  uint64_t items_ = 0;
  uint64_t merges_ = 0;
  uint64_t partials_ = 0;
  uint64_t work_bytes_ = 0;  // largest item
};

}  // namespace kvq::cpu
