// Decodes a lane's codes to FP16: windows of its bit stream index a table in shared memory, directly or through a hash.
// An entry is a pair of weights, two pairs, or one weight, stored first as the lower and then as the upper half of a
// word. Each entry is replicated so that lanes that read different entries hit different banks.
#pragma once

#include "kernels/device/fragments.cuh"
#include "kernels/linear/code_order.h"
#include "kernels/linear/linear.h"

#include <algorithm>

namespace kvq::cuda {

using weights::Family;

/// Weights of a lane in a piece: rows 2g and 2g + 1, pairs of columns 8t + i and 8t + i + 4. With two parts, the pairs'
/// lower halves come first and the upper ones second, each with zeros in between: two products cost less than joining
/// the halves.
template <int32_t kParts>
struct LaneWeights {
  uint32_t of[kParts][2][4];
};

/// Lookup in a segment's table.
struct CodeFinder {
  const std::byte* table;
  uint32_t mask;  // offsets within the table
  uint32_t copy;  // offset of this lane's copy within an entry
  uint32_t addend;
};

/// Bytes of a trellis code's table. A larger one would leave no room for the next kernel's blocks beside this one's.
inline constexpr int32_t kTrellisTableBytes = 1 << 16;

template <Family kFamily, int32_t kQuarters>
struct LaneCode {
  static constexpr weights::Code kCode{kFamily, kQuarters};
  static constexpr int32_t kWords = words_of(kCode);
  static constexpr bool kIsTable = kFamily != Family::kFloat16;
  static constexpr bool kIsTrellis = kCode.is_trellis();
  /// Whether entries are pairs of weights: one step of a two-dimensional code, or two steps.
  static constexpr bool kPairs = kCode.dims() == 2 || (kFamily == Family::kNuq && kQuarters <= 20);
  static constexpr int32_t kParts = kPairs || !kIsTable ? 1 : 2;
  using Weights = LaneWeights<kParts>;
  /// Index bits of an entry without hashing.
  static constexpr int32_t kIndexBits = kPairs ? kQuarters / 2 : kQuarters / 4;
  /// Whether entries are two pairs.
  static constexpr bool kWide = !kIsTrellis && kPairs && kIndexBits <= 4;
  /// First bit of the index within an entry's offset, without hashing.
  static constexpr int32_t kIndexBegin = kPairs ? (kIndexBits > 9 ? 6 : 7) : 8;
  /// Bits of a lane's words per piece.
  static constexpr int32_t kPieceBits = 4 * kQuarters;

  static constexpr int32_t entries(int32_t index_bits) {
    if (kIsTrellis) return 1 << (index_bits + 1);  // one bit more for the sign
    return 1 << (kWide ? 2 * kIndexBits : kIndexBits);
  }
  static constexpr int32_t entry_bytes(int32_t index_bits) {
    return kIsTrellis ? kTrellisTableBytes / entries(index_bits) : 1 << kIndexBegin;
  }
  static constexpr int32_t table_bytes(int32_t index_bits) {
    return kIsTable ? entries(index_bits) * entry_bytes(index_bits) : 0;
  }

  /// Entry i as a word of two FP16 values, or the first word of a wide entry.
  static __device__ __forceinline__ uint32_t entry(const LinearSegment& segment, int32_t i) {
    const auto half = [](int32_t level) { return static_cast<uint32_t>(__half_as_ushort(__int2half_rn(level))); };
    const int8_t* levels = segment.levels;
    if constexpr (kIsTrellis) {
      const int32_t index = i & ((1 << segment.index_bits) - 1);
      const bool negative = i >> segment.index_bits != 0;
      const int32_t first = levels[kCode.dims() * index];
      const uint32_t low = half(negative ? -first : first);
      return kPairs ? low | half(levels[2 * index + 1]) << 16U : low;
    } else if constexpr (kFamily == Family::kVq) {
      return half(levels[2 * i]) | half(levels[2 * i + 1]) << 16U;
    } else if constexpr (kPairs) {
      constexpr int32_t kBits = kQuarters / 4;
      return half(levels[i & ((1 << kBits) - 1)]) | half(levels[i >> kBits]) << 16U;
    } else {
      return half(levels[i]);
    }
  }

  template <int32_t kThreads>
  static __device__ __forceinline__ void fill(const LinearSegment& segment, std::byte* table) {
    if constexpr (kIsTable) {
      const int32_t bytes = entry_bytes(segment.index_bits);
      const int32_t shift = __ffs(bytes) - 1;
      const int32_t all = entries(segment.index_bits) << shift;
#pragma unroll 4
      for (int32_t at = 16 * static_cast<int32_t>(threadIdx.x); at < all; at += 16 * kThreads) {
        const int32_t i = at >> shift;
        uint32_t word = entry(segment, kWide ? i & ((1 << kIndexBits) - 1) : i);
        if (!kPairs && (at & bytes >> 1) != 0) word <<= 16U;
        const uint32_t next = kWide ? entry(segment, i >> kIndexBits) : word;
        *reinterpret_cast<uint4*>(table + at) = make_uint4(word, next, word, next);
      }
    }
  }

  static __device__ __forceinline__ CodeFinder finder(const LinearSegment& segment, const std::byte* table,
                                                      int32_t lane) {
    const int32_t bytes = entry_bytes(segment.index_bits);
    constexpr int32_t kCopyBytes = kWide ? 8 : 4;
    const int32_t copies = (kPairs ? bytes : bytes / 2) / kCopyBytes;
    return {.table = table,
            .mask = static_cast<uint32_t>((entries(segment.index_bits) - 1) * bytes),
            .copy = static_cast<uint32_t>(kCopyBytes * (lane % copies)),
            .addend = kPairs ? 1 : segment.addend};  // always 1 for pairs
  }

  template <typename Entry = uint32_t>
  static __device__ __forceinline__ Entry look_up(const CodeFinder& finder, uint32_t place, int32_t half) {
    return *reinterpret_cast<const Entry*>(finder.table + ((place & finder.mask) | finder.copy) + 128 * half);
  }
  /// Entry of a trellis window; bits above the window do not matter.
  static __device__ __forceinline__ uint32_t hashed(const CodeFinder& finder, uint32_t window, int32_t half) {
    return look_up(finder, window * (window + finder.addend), half);
  }

  /// A lane's words from bit `bit` on.
  static __device__ __forceinline__ uint32_t bits_at(const uint32_t (&words)[kWords], int32_t bit) {
    const int32_t word = bit / 32;
    const auto place = static_cast<uint32_t>(bit % 32);
    if (bit < 0) return words[0] << static_cast<uint32_t>(-bit);
    if (place == 0) return words[word];
    return word + 1 < kWords ? __funnelshift_r(words[word], words[word + 1], place) : words[word] >> place;
  }

  /// Decodes an even piece and the next one.
  static __device__ __forceinline__ void decode(const uint32_t (&words)[kWords], int32_t piece, int32_t lane,
                                                const CodeFinder& finder, Weights (&halves)[2]);
};

/// Lanes that hold the steps after a lane's own.
struct NextLanes {
  int32_t first;   // pairs; for one-dimensional trellises: columns 8t … 8t + 3
  int32_t second;  // one-dimensional trellises: columns 8t + 4 …

  explicit __device__ NextLanes(int32_t lane) {
    const int32_t t = lane % 4;
    const bool last = lane >= 28;
    first = last ? t : lane + 4;
    second = last ? t ^ 1 : lane + 4;
  }
};

/// Fetches the first bits after each run of a trellis, for two pieces at a time: [piece][run].
template <int32_t kRuns>
__device__ __forceinline__ void following(const uint32_t (&first)[2][kRuns], int32_t lane, uint32_t (&next)[2][kRuns]) {
  const NextLanes lanes(lane);
  if constexpr (kRuns == 1) {
    const uint32_t both = __byte_perm(first[0][0], first[1][0], 0x5410);
    const uint32_t got = __shfl_sync(0xFFFFFFFFU, both, lanes.second);
    next[0][0] = got;
    next[1][0] = got >> 16U;
  } else {
    // Row 0 continues row 15 four columns to the left, in the other run.
    const bool swaps = lane < 4;
    const uint32_t a = __byte_perm(first[0][0], first[1][0], 0x5410);
    const uint32_t b = __byte_perm(first[0][1], first[1][1], 0x5410);
    const uint32_t of_first = __shfl_sync(0xFFFFFFFFU, swaps ? b : a, lanes.first);
    const uint32_t of_second = __shfl_sync(0xFFFFFFFFU, swaps ? a : b, lanes.second);
    next[0][0] = of_first;
    next[1][0] = of_first >> 16U;
    next[0][1] = of_second;
    next[1][1] = of_second >> 16U;
  }
}

template <Family kFamily, int32_t kQuarters>
__device__ __forceinline__ void LaneCode<kFamily, kQuarters>::decode(const uint32_t (&words)[kWords], int32_t piece,
                                                                     int32_t lane, const CodeFinder& finder,
                                                                     Weights (&halves)[2]) {
  if constexpr (!kIsTable) {
#pragma unroll
    for (int32_t i = 0; i < 16; ++i) halves[i / 8].of[0][i % 2][i / 2 % 4] = words[8 * piece + i];
  } else if constexpr (!kIsTrellis) {
#pragma unroll
    for (int32_t i = 0; i < 16; i += kWide ? 2 : 1) {
      const int32_t bit = (8 * piece + i) * (kQuarters / 2) - kIndexBegin;
      auto& of = halves[i / 8].of;
      if constexpr (kWide) {
        const auto two = look_up<uint2>(finder, bits_at(words, bit), 0);
        of[0][0][i / 2 % 4] = two.x;
        of[0][1][i / 2 % 4] = two.y;
      } else {
#pragma unroll
        for (int32_t part = 0; part < kParts; ++part) {
          of[part][i % 2][i / 2 % 4] = look_up(finder, bits_at(words, bit + part * kIndexBits), part);
        }
      }
    }
  } else {
    constexpr int32_t kRuns = runs_of_piece(kCode);
    constexpr int32_t kRunBits = run_bits(kCode);
    uint32_t first[2][kRuns];
    uint32_t next[2][kRuns];
#pragma unroll
    for (int32_t i = 0; i < 2 * kRuns; ++i) {
      first[i / kRuns][i % kRuns] = bits_at(words, kPieceBits * piece + kRunBits * i);
    }
    following(first, lane, next);
    if constexpr (kRunBits < 16) {  // windows reach beyond the next run
#pragma unroll
      for (int32_t i = 0; i < 2 * kRuns; ++i) {
        uint32_t& bits = first[i / kRuns][i % kRuns];
        bits = (bits & ((1U << kRunBits) - 1U)) | next[i / kRuns][i % kRuns] << kRunBits;
      }
      following(first, lane, next);
    }
#pragma unroll
    for (int32_t i = 0; i < 2 * kRuns; ++i) {
      const int32_t begin = kPieceBits * piece + kRunBits * i;
      // The end of the run from bit kEnd on, and its continuation.
      constexpr int32_t kEnd = kRunBits > 16 ? kRunBits - 16 : 0;
      uint32_t end = bits_at(words, begin + kEnd);
      if constexpr (kRunBits < 16) {
        end = (end & ((1U << kRunBits) - 1U)) | next[i / kRuns][i % kRuns] << kRunBits;
      } else {
        end = __byte_perm(end, next[i / kRuns][i % kRuns], 0x5410);
      }
#pragma unroll
      for (int32_t step = 0; step < 8; ++step) {
        const int32_t bit = weights::Code{kFamily, kQuarters}.first_bit(step);
        uint32_t window = 0;
        if (bit + 16 <= kRunBits) {
          window = bits_at(words, begin + bit);
        } else {
          window = end >> static_cast<uint32_t>(bit - kEnd);
        }
        halves[i / kRuns].of[i % kRuns][step / 4][step % 4] = hashed(finder, window, i % kRuns);
      }
    }
  }
}

/// Loads the lane's words of a block.
template <typename Code>
__device__ __forceinline__ void load_words(const uint8_t* block, uint32_t (&words)[Code::kWords]) {
  constexpr int32_t kTogether = words_together(Code::kCode);
  block += static_cast<int32_t>(threadIdx.x) % kBlockLanes * (kTogether * 4);
#pragma unroll
  for (int32_t i = 0; i < Code::kWords; i += kTogether) {
    const uint8_t* at = block + i * (kBlockLanes * 4);
    if constexpr (kTogether == 4) {
      const uint4 four = __ldcs(reinterpret_cast<const uint4*>(at));
      words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
    } else if constexpr (kTogether == 2) {
      const uint2 two = __ldcs(reinterpret_cast<const uint2*>(at));
      words[i] = two.x, words[i + 1] = two.y;
    } else {
      words[i] = __ldcs(reinterpret_cast<const uint32_t*>(at));
    }
  }
}

/// Bytes for the tables of a scheme's segments, which are used one after the other in the same memory.
template <Family kFamily, int32_t kQuarters>
int32_t linear_table_bytes(const LinearMatrix& matrix) {
  if constexpr (weights::Scheme{kFamily, kQuarters}.has_halves()) {
    return std::max(LaneCode<kFamily, kQuarters - 1>::table_bytes(matrix.segments[0].index_bits),
                    LaneCode<kFamily, kQuarters + 1>::table_bytes(matrix.segments[1].index_bits));
  } else {
    return LaneCode<kFamily, kQuarters>::table_bytes(matrix.segments[0].index_bits);
  }
}

}  // namespace kvq::cuda
