#pragma once

#include "backend/backend.h"
#include "backend/cpu/dispatch/kernels.h"
#include "core/memory.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvq::cpu {

/// Sums of probabilities over tokens by the bits of their codes: what value pages with codes add up to. The last of
/// them is over all tokens.
struct BitSums {
  BitSums() = default;
  explicit BitSums(const CodebookShape& shape) : bits(static_cast<size_t>(padded_dim(shape.code_bits()))) {}
  /// Those of a batch; none if its values are decoded one by one.
  static BitSums of(const AttendBatch& batch);

  size_t bits = 0;  // padded; 0: no values have codes

  size_t width() const { return bits == 0 ? 0 : bits + 16; }  // of a row
  size_t total() const { return bits; }                       // where the sum over all tokens is
};

/// Rows of queries of one head, the pages that they may see, and where their values go.
struct CodedItem {
  const AttendBatch& batch;
  const KernelTable& kernels;
  const Page* const* const* lists;  // of all KV heads, `end` pages each
  int32_t head;
  ptrdiff_t end;
  const float* queries;  // [rows, head_dim]
  int32_t rows;
  BitSums bit_sums;
  float* sums;   // [rows, bit_sums.width()]
  float* plain;  // outputs of values that were decoded, [rows, padded_dim(head_dim)]

  const LayerCodes& codes() const { return *batch.codes; }
  const CodebookShape& shape() const;
  const Page& page(ptrdiff_t place) const { return *lists[head][place]; }
  const float* query(int32_t row) const { return queries + static_cast<ptrdiff_t>(row) * batch.head_dim; }

  PageSides sides(ptrdiff_t first, Side side) const { return {lists, first, end, page(first).format()->offset(side)}; }
  /// FP16, of the slots of a page: norms of keys, scales of values.
  void read_norms(ptrdiff_t place, uint16_t* norms) const;
  void read_scales(ptrdiff_t place, uint16_t* scales) const;
  /// Whether slot t of a page has the position of the first one + t.
  bool has_regular_positions(ptrdiff_t place) const {
    return page(place).positions == nullptr || !page(place).has_gaps();
  }
  /// Turns of a page's slots relative to the first one's, rows as in a Rope table.
  void turn_slots(ptrdiff_t place, float* turns) const;
  /// {a of 32 slots, b} of all stages of one group.
  void unpack_indices(ptrdiff_t place, int32_t group, uint8_t* indices) const;
  /// As CodedAttention::add_values, by bits.
  void add_bit_sums(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) const;
};

/// A way to attend to pages with codes.
class CodedAttention {
 public:
  virtual ~CodedAttention() = default;

  /// What is done once for all rows with those of `count` pages from place `first` on, at most kTilePages, that have
  /// codes.
  virtual void prepare(ptrdiff_t first, int32_t count) = 0;

  /// As a KeyKernel, for consecutive pages that were prepared, and up to kBlockRows rows of the item from `row` on.
  virtual void score(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, float* scores) = 0;

  /// As a ValueKernel, into the item's sums or outputs.
  virtual void add_values(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) = 0;
};

/// The way for heads with that many rows of queries; kAuto if the batch has no codes.
AttentionWay choose_way(const AttendBatch& batch, const KernelTable& kernels, int32_t rows);

/// Rows that an item may have.
int32_t item_rows(AttentionWay way);

/// Work space of an item.
size_t coded_work_bytes(const AttendBatch& batch, AttentionWay way);

struct DestroyInPlace {
  void operator()(CodedAttention* attention) const { std::destroy_at(attention); }
};

/// Made in the work space, which has the bytes for that way; null for kAuto. `item` must outlive it.
std::unique_ptr<CodedAttention, DestroyInPlace> make_coded_attention(const CodedItem& item, AttentionWay way,
                                                                     std::byte* work);

/// out[r][head_dim] += what the bit sums of up to four queries of KV head `head` decode to. sums: rows of
/// layout.width(); out: rows of kMaxHeadDim.
void add_decoded(const LayerCodes& codes, const KernelTable& kernels, int32_t head, const BitSums& layout, int32_t rows,
                 const float* sums, float* out);

}  // namespace kvq::cpu
