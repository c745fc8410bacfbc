// Shared by the kernels of all rooms.
#pragma once

#include <cstdint>

namespace kvq::cpu {

/// Rows of this many floats fill whole registers of any width.
constexpr int32_t padded_dim(int32_t head_dim) { return (head_dim + 15) / 16 * 16; }

/// Prefetches into L2. Always inlined: GCC considers a function that only prefetches free of effects and removes calls
/// of it.
[[gnu::always_inline]] inline void prefetch(const void* address) { __builtin_prefetch(address, 0, 2); }

}  // namespace kvq::cpu
