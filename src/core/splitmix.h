#pragma once

#include <cstddef>
#include <cstdint>

namespace kvq {

/// Number `index` of the splitmix64 generator of a seed: the same random numbers everywhere and in any order.
constexpr uint64_t splitmix64(uint64_t seed, uint64_t index) {
  uint64_t x = seed + 0x9E3779B97F4A7C15ULL * (index + 1);
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31U);
}

/// The same as an index below n.
constexpr size_t splitmix64_below(size_t n, uint64_t seed, uint64_t index) {
  return static_cast<size_t>(splitmix64(seed, index) % n);
}

}  // namespace kvq
