// Pages of trellis codes. A token's key chain runs along the bits of a lane's words; its value chain runs across words
// of channels 16 apart, so that 16 or 32 tokens are decoded at once.
#pragma once

#include "kernels/pages/gain_shape.cuh"
#include "kernels/pages/trellis_codes.cuh"

namespace kvq::cuda {

/// Predecessor of key row `row` in the chain, which wraps around the `rows` of a plane.
__device__ __forceinline__ int32_t row_before(int32_t row, int32_t rows) { return row == 0 ? rows - 1 : row - 1; }

/// Loads the lane's words at `row` and the preceding ones from the plane of the highest code bits of keys.
template <typename Codes, typename G>
__device__ __forceinline__ void load_trellis_keys(const PageSide<G>& side, int32_t first, int32_t row, int32_t rows,
                                                  uint32_t (&words)[4], uint32_t (&last)[4]) {
  if constexpr (!G::kExact) row = min(row, rows - 1);
  const int32_t at = first + row;
  const int32_t before = first + row_before(row, rows);
  load_key_words(side, at, key_swizzle(at), words);
  load_key_words(side, before, key_swizzle(before), last);
}

/// Parities of four tokens from the chain words of four channels; the words hold the highest code bits of a side.
template <typename Codes>
struct TrellisWords {
  uint32_t before[7][4];  // words `d` steps earlier in the chain

  __device__ __forceinline__ Parities parities(int32_t i, uint32_t shift) const {
    uint32_t of_one[7];
#pragma unroll
    for (int32_t d = 0; d < 7; ++d) of_one[d] = before[d][i];
    Parities parities = parities_of(of_one, Codes::flip(of_one[0]));
#pragma unroll
    for (uint32_t& each : parities.z) each >>= shift;
    return parities;
  }
};

/// Words of a plane of values, a row of a side, in chain order: lane g takes every second vector of 16 channels, and
/// four channels in it.
template <typename G>
class ChainWords {
 public:
  __device__ __forceinline__ ChainWords(const PageSide<G>& side, int32_t row, int32_t swizzle)
      : side_(side), row_(row), swizzle_(swizzle), vectors_(value_lanes(side.geometry.head_dim()) / 16) {
    if constexpr (kKept) {
#pragma unroll
      for (int32_t j = 0; j < kVectors; ++j) to_array(load_row(j), of_vector_[j]);
#pragma unroll
      for (int32_t j = 0; j < 6; ++j) load_before(j - 6, before_first_[j]);
    }
  }

  /// Words of the lane's channels of block m, `d` steps earlier in the chain.
  __device__ __forceinline__ void get(int32_t m, int32_t d, uint32_t (&to)[4]) const {
    const int32_t j = 2 * m - d;
    if constexpr (kKept) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) to[i] = j >= 0 ? of_vector_[j][i] : before_first_[j + 6][i];
    } else {
      if (d == 0) {
        to_array(load_row(j), to);
      } else {
        load_before(j, to);
      }
    }
  }

 private:
  static constexpr bool kKept = G::kExact;
  static constexpr int32_t kVectors = G::kWidth / 16;

  /// Loads four channels of vector j + g / 4, which must exist.
  __device__ __forceinline__ uint4 load_row(int32_t j) const {
    const int32_t column = (4 * j + side_.lane.g) ^ swizzle();
    return load_shared<uint4>(side_.address + static_cast<uint32_t>((row_ * row_chunks() + column) * 16));
  }

  /// Like load_row for a possibly negative j: the chain then continues at the end of the previous channels.
  __device__ __forceinline__ void load_before(int32_t j, uint32_t (&to)[4]) const {
    int32_t vector = j + (side_.lane.g >> 2);
    int32_t channel = 4 * (side_.lane.g & 3);
    const int32_t vectors = G::kExact ? kVectors : vectors_;
    constexpr int32_t kMostTurns = G::kExact ? (5 + kVectors) / kVectors : 6;
#pragma unroll
    for (int32_t i = 0; i < kMostTurns; ++i) {
      if (vector < 0) {
        vector += vectors;
        --channel;
      }
    }
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t of_vector = (channel + i) & 15;
      const int32_t chunk = row_ * row_chunks() + ((4 * vector + (of_vector >> 2)) ^ swizzle());
      to[i] = load_shared<uint32_t>(side_.address + static_cast<uint32_t>(chunk * 16 + (of_vector & 3) * 4));
    }
  }

  __device__ __forceinline__ int32_t row_chunks() const { return value_lanes(side_.geometry.head_dim()) / 4; }
  __device__ __forceinline__ int32_t swizzle() const {
    return G::kExact || swizzles_values(side_.geometry.head_dim()) ? swizzle_ : 0;
  }

  const PageSide<G>& side_;
  int32_t row_;
  int32_t swizzle_;
  int32_t vectors_;
  uint32_t of_vector_[kKept ? kVectors : 1][4];
  uint32_t before_first_[kKept ? 6 : 1][4];
};

template <CodeType kTrellis, typename Codes>
struct TrellisPage : GainPage<TrellisPage<kTrellis, Codes>> {
  static constexpr CodeType kCode = kTrellis;
  static constexpr KeyOrder kOrder = {.fields = 4, .shift = 0, .codes = true};
  static constexpr float kMiddle = static_cast<float>(Codes::kZero);
  static constexpr float kValueUnit = kTrellisWeight;

  template <typename G>
  __device__ __forceinline__ static Codes load_keys(const PageSide<G>& side, int32_t i) {
    const int32_t head_dim = side.geometry.head_dim();
    const int32_t t = side.lane.t;
    const int32_t low_rows = (head_dim + 15) / 16;
    Codes codes;
    uint32_t words[4];
    uint32_t last[4];
    uint32_t low[4];
    if constexpr (Codes::kBits == 2) {
      load_trellis_keys<Codes>(side, 0, 4 * i + t, low_rows, words, last);
    } else {
      load_trellis_keys<Codes>(side, kHasLow ? low_rows : 0, 2 * i + (t >> 1), (head_dim + 31) / 32, words, last);
      if constexpr (kHasLow) {
        const int32_t row = G::kExact ? 4 * i + t : min(4 * i + t, low_rows - 1);
        load_key_words(side, row, key_swizzle(row), low);
      }
    }
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      Parities parities = parities_along<Codes::kBits>(words[j], last[j], Codes::flip(words[j]));
      if constexpr (Codes::kBits == 1) {
#pragma unroll
        for (uint32_t& each : parities.z) each >>= 4 * (t & 1);
      }
      codes.set(j, parities, kHasLow ? low[j] : words[j]);
    }
    return codes;
  }

  template <typename G>
  class ValueCodes {
   public:
    __device__ __forceinline__ explicit ValueCodes(const PageSide<G>& side)
        : side_(side), chains_(side, chain_row(side.lane.t), 2 * chain_row(side.lane.t)) {}

    __device__ __forceinline__ Codes codes(int32_t m) const {
      const int32_t t = side_.lane.t;
      TrellisWords<Codes> words;
#pragma unroll
      for (int32_t d = 0; d < 7; ++d) {
        if (d != 3) chains_.get(m, d, words.before[d]);
      }
      uint32_t low[4];
      if constexpr (kHasLow) to_array(load_value_words(side_, t >> 1, 2 * (t >> 1), m), low);
      Codes codes;
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const uint32_t of_code = kHasLow ? low[i] : words.before[0][i];
        codes.set(i, words.parities(i, static_cast<uint32_t>(Codes::kBits == 2 ? 4 * (t & 1) : 2 * t)),
                  of_code >> (4 * (t & 1)));
      }
      return codes;
    }

   private:
    __device__ __forceinline__ static int32_t chain_row(int32_t t) {
      return Codes::kBits == 2 ? t >> 1 : (kHasLow ? 2 : 0);
    }

    const PageSide<G>& side_;
    ChainWords<G> chains_;
  };

 private:
  static constexpr bool kHasLow = kTrellis == CodeType::gain_trellis(3);
};

template <>
struct PageTypeOf<CodeType::gain_trellis(3)> {
  using Type = TrellisPage<CodeType::gain_trellis(3), TrellisCodes3>;
};
template <>
struct PageTypeOf<CodeType::gain_trellis(2)> {
  using Type = TrellisPage<CodeType::gain_trellis(2), TrellisCodes2>;
};
template <>
struct PageTypeOf<CodeType::gain_trellis(1)> {
  using Type = TrellisPage<CodeType::gain_trellis(1), TrellisCodes1>;
};

}  // namespace kvq::cuda
