#pragma once

#include "cache/sequence.h"

#include <algorithm>
#include <span>

namespace kvq {

/// Copy slots of a layer's pages to FP16 pages that are zeros, keys after RoPE: on the device where that reads all of
/// their formats, else through the host. Needs at most move_bytes() of a block of `scratch`.
///
/// \param moves    head by head, slots of a head in rising order
/// \param targets  [kv_heads] as in SlotMoves
void move_slots(const Sequence& sequence, int32_t layer, std::span<const SlotMove> moves,
                std::span<std::byte* const> targets, Allocator& scratch);
uint64_t move_bytes(const Cache& cache, size_t largest_page);

/// FP16 pages of each head to stage at once, where lists of up to `longest` pages are written anew: enough to share
/// among threads, and few beside the lists.
inline int32_t pages_at_once(const Cache& cache, size_t longest) {
  return std::max(std::min(64 / cache.most_kv_heads(), static_cast<int32_t>(longest / 32)), 1);
}

}  // namespace kvq
