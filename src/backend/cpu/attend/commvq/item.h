// What the ways to attend to pages with CommVQ's codes share.
#pragma once

#include "backend/cpu/attend/commvq/kernels.h"
#include "backend/cpu/context_codec.h"
#include "backend/cpu/dispatch/kernels.h"
#include "formats/commvq/context.h"

#include <cstddef>
#include <cstdint>

namespace kvq::cpu {

/// Sums of probabilities over tokens by the bits of their codes: what value pages with codes add up to. The last of
/// them is over all tokens.
struct BitSums {
  BitSums() = default;
  explicit BitSums(const CodebookShape& shape) : bits(static_cast<size_t>(padded_dim(shape.code_bits()))) {}
  /// Those of a layer; none if its values have no codes or are decoded one by one.
  static BitSums of(const commvq::Context& context);

  size_t bits = 0;  // padded; 0: no values have codes

  size_t width() const { return bits == 0 ? 0 : bits + 16; }  // of a row
  size_t total() const { return bits; }                       // where the sum over all tokens is
};

/// An item, and how its pages are read.
struct CommvqItem : ContextItem {
  explicit CommvqItem(const ContextItem& item);

  const commvq::Context& context;
  BitSums bit_sums;

  const CodebookShape& shape() const { return context.shape(); }
  const CommvqKernels& commvq() const { return kernels.commvq; }

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
  /// As ContextAttention::add_values, by bits.
  void add_bit_sums(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) const;
};

inline bool has_commvq_keys(const Page& page) { return page.format()->keys.code.is_commvq(); }
inline bool has_commvq_values(const Page& page) { return page.format()->values.code.is_commvq(); }

}  // namespace kvq::cpu
