#pragma once

#include "cache/sequence.h"

namespace kvq {

/// Slots [begin, begin + n) of one head's list.
struct SlotSelection {
  int32_t layer;
  int32_t head;
  int32_t begin;
  int32_t n;
};

/// Targets of decoded slots; null: not wanted.
struct DecodedSlots {
  float* k;            // [n, head_dim]
  float* v;            // [n, head_dim]
  int32_t* positions;  // [n]
};

/// Decode slots [begin, end) of page `index` of a head's list.
void decode_page(const Sequence& sequence, int32_t layer, int32_t head, size_t index, int32_t begin, int32_t end,
                 const DecodedSlots& out);

/// Decode with the formats' reference decoders.
void decode(const Sequence& sequence, const SlotSelection& selection, const DecodedSlots& out);

}  // namespace kvq
