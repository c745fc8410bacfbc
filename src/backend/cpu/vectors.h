// What kernels of all rooms share.
#pragma once

#include <cstdint>

namespace kvq::cpu {

/// Rows of this many floats take whole registers of any width.
constexpr int32_t padded_dim(int32_t head_dim) { return (head_dim + 15) / 16 * 16; }

/// Into the second-level cache. Always inlined: GCC takes a call of a function that only prefetches for one without
/// effect and removes it.
[[gnu::always_inline]] inline void prefetch(const void* address) { __builtin_prefetch(address, 0, 2); }

}  // namespace kvq::cpu
