#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace kvq {

inline constexpr uint64_t kChecksumSeed = 0xCBF29CE484222325ULL;

/// FNV-1a over 64-bit words: finds damage, not malice.
inline uint64_t checksum(std::span<const std::byte> bytes, uint64_t hash = kChecksumSeed) {
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = (hash ^ word) * 0x100000001B3ULL;
    hash ^= hash >> 32U;
  }
  for (; i < bytes.size(); ++i) hash = (hash ^ static_cast<uint64_t>(bytes[i])) * 0x100000001B3ULL;
  return hash;
}

}  // namespace kvq
