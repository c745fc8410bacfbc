// Shared by all attention paths of CommVQ pages.
#pragma once

#include "backend/cpu/attend/commvq/kernels.h"
#include "backend/cpu/context_codec.h"
#include "backend/cpu/dispatch/kernels.h"
#include "formats/commvq/context.h"

#include <cstddef>
#include <cstdint>

namespace kvq::cpu {

/// Layout of sums of probabilities over tokens, one per code bit, from which values are decoded. The last sum is over
/// all tokens.
struct BitSums {
  BitSums() = default;
  explicit BitSums(const CodebookShape& shape) : bits(static_cast<size_t>(padded_dim(shape.code_bits()))) {}
  /// Sums of a layer; none if its values have no codes.
  static BitSums of(const commvq::Context& context) { return context.values ? BitSums(context.shape()) : BitSums(); }

  size_t bits = 0;  // padded; 0: no values have codes

  size_t width() const { return bits == 0 ? 0 : bits + 16; }  // floats per row
  size_t total() const { return bits; }                       // index of the sum over all tokens
};

/// A work item and access to its pages.
struct CommvqItem : ContextItem {
  explicit CommvqItem(const ContextItem& item);

  const commvq::Context& context;
  BitSums bit_sums;

  const CodebookShape& shape() const { return context.shape(); }
  const CommvqKernels& commvq() const { return kernels.commvq; }

  PageSides sides(ptrdiff_t first, Side side) const { return {lists, first, end, page(first).format()->offset(side)}; }
  /// Read the FP16 numbers of a page's slots: norms for keys, scales for values.
  void read_norms(ptrdiff_t place, uint16_t* norms) const;
  void read_scales(ptrdiff_t place, uint16_t* scales) const;
  /// Slot t of the page has the position of the first one + t.
  bool has_regular_positions(ptrdiff_t place) const {
    return page(place).positions == nullptr || !page(place).has_gaps();
  }
  /// Rotations of a page's slots relative to its first slot, rows as in a Rope table.
  void fill_slot_rotations(ptrdiff_t place, float* rotations) const;
  /// Unpack {a of 32 slots, b} of all stages of one group.
  void unpack_indices(ptrdiff_t place, int32_t group, uint8_t* indices) const;
  /// ContextAttention::add_values() by bit sums.
  void add_bit_sums(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) const;
};

inline bool has_commvq_keys(const Page& page) { return page.format()->keys.code.is_commvq(); }
inline bool has_commvq_values(const Page& page) { return page.format()->values.code.is_commvq(); }

}  // namespace kvq::cpu
