// Decodes a side of a page as it is stored, rotated or not. In the operands of tensor cores (device/fragments.cuh) a
// lane has whole neighbourhoods of codes, so they become numbers where they are:
//
//   keys     four channels of each of the lane's four tokens at a time
//   values   eight tokens of a channel at a time
#pragma once

#include "kernels/pages/kinds.cuh"

namespace kvq::cuda {

/// The parts of a side, every `step`-th from `first` on, that a warp decodes.
struct SideShare {
  int32_t first = 0;
  int32_t step = 1;
};

/// The nearest number that is finite in FP16.
__device__ __forceinline__ float saturated(float x) {
  constexpr float kMost = 65504.0F;
  return fminf(fmaxf(x, -kMost), kMost);
}

__device__ __forceinline__ __half2 halves_of(uint32_t pair) { return *reinterpret_cast<const __half2*>(&pair); }
__device__ __forceinline__ uint32_t bits_of(__half2 pair) { return *reinterpret_cast<const uint32_t*>(&pair); }

/// code · factor + offset, finite.
__device__ __forceinline__ __half2 finite_number(__half2 codes, __half2 factor, __half2 offset) {
  const __half2 most = __float2half2_rn(65504.0F);
  return __hmax2(__hmin2(__hfma2(codes, factor, offset), most), __hneg2(most));
}

/// What gains are multiplied by for numbers of exact_codes.
template <typename K>
inline constexpr float kExactUnit = K::kCode.is_trellis() ? 512.0F : 1.0F;

/// A pair of codes from field kField, minus their middle, without rounding: trellis codes, which have signs, divided by
/// kExactUnit.
template <typename K, int32_t kField>
__device__ __forceinline__ __half2 exact_codes(uint32_t pair) {
  float middle = 0.0F;
  if constexpr (K::kCode.has_gains()) middle = K::kMiddle;
  if constexpr (K::kCode.is_trellis()) {
    static_assert(kSubnormalScale == 32768.0F * 512.0F);
    return __hfma2(halves_of(pair), __float2half2_rn(32768.0F), __float2half2_rn(-middle / kExactUnit<K>));
  } else {
    constexpr float kDown = 1.0F / static_cast<float>(1 << (K::kOrder.shift * kField));
    const __half2 from_1024 = halves_of(pair | 0x64006400U);
    // Half a code below 1024 is no number.
    if constexpr (kDown == 1.0F)
      return __hsub2(__hsub2(from_1024, __float2half2_rn(1024.0F)), __float2half2_rn(middle));
    return __hfma2(from_1024, __float2half2_rn(kDown), __float2half2_rn(-1024.0F * kDown - middle));
  }
}

/// Gains that no code takes beyond FP16.
template <typename K>
__device__ __forceinline__ __half2 gain_pair(float first, float second) {
  constexpr float kMost = K::kCode.is_trellis() ? 65504.0F : 65504.0F / 8.0F;
  return __floats2half2_rn(fminf(first, kMost), fminf(second, kMost));
}

/// Means of four neighbouring channels of a page of keys, as (0, 2) and (1, 3).
template <typename G>
__device__ __forceinline__ void load_means(const PageSide<G>& keys, int32_t channel, __half2 (&means)[2]) {
  static_assert(kMeanScale == 1);
  const auto halves = load_shared<uint32_t>(keys.address + static_cast<uint32_t>(keys.layout.keys.numbers));
  const __half2 scale = __half2half2(__ushort_as_half(static_cast<uint16_t>(halves >> 16U)));
  const auto bytes = load_shared<uint32_t>(keys.address + static_cast<uint32_t>(keys.layout.keys.mean + channel));
  const __half2 flip = __float2half2_rn(1024.0F + static_cast<float>(kMeanFlip));
  means[0] = __hmul2(__hsub2(halves_of((bytes & 0x00FF00FFU) | 0x64006400U), flip), scale);
  means[1] = __hmul2(__hsub2(halves_of((bytes >> 8U & 0x00FF00FFU) | 0x64006400U), flip), scale);
}

/// Decodes the fields from kField on of words `i`; numbers are code · factor + offset.
template <typename K, int32_t kField, typename G, typename Codes, typename Store>
__device__ __forceinline__ void decode_key_fields(const PageSide<G>& keys, int32_t i, const Codes& codes,
                                                  const TokenGains& gains, const Store& store) {
  if constexpr (kField < kKeyFields<K>) {
    constexpr bool kGains = K::kCode.has_gains();
    const int32_t channel = 4 * (kKeyFields<K> * (4 * i + keys.lane.t) + kField);
    if (keys.geometry.has_channel(channel)) {
      // Of channels (0, 2) and (1, 3).
      __half2 factors[2];
      __half2 offsets[2] = {};
      if constexpr (!kGains) {
        const SidePlaces bytes = key_bytes_of<K, G>(keys.layout);
        uint32_t scale[2];
        uint32_t minimum[2];
        load_channels<1>(keys.geometry, keys.address + static_cast<uint32_t>(bytes.codes), channel, scale);
        load_channels<1>(keys.geometry, keys.address + static_cast<uint32_t>(bytes.minima()), channel, minimum);
#pragma unroll
        for (int32_t j = 0; j < 2; ++j) {
          factors[j] = halves_of(scale[j]);
          offsets[j] = halves_of(minimum[j]);
        }
      } else if (keys.layout.format.page_mean()) {
        load_means(keys, channel, offsets);
      }
#pragma unroll
      for (int32_t tile = 0; tile < 4; ++tile) {
        if constexpr (kGains) factors[0] = factors[1] = gain_pair<K>(gains.of[tile], gains.of[tile]);
        const uint32_t even =
            bits_of(finite_number(exact_codes<K, kField>(codes.template even<kField>(tile)), factors[0], offsets[0]));
        const uint32_t odd =
            bits_of(finite_number(exact_codes<K, kField>(codes.template odd<kField>(tile)), factors[1], offsets[1]));
        store(tile, channel, uint2{low_halves(even, odd), high_halves(even, odd)});
      }
    }
    decode_key_fields<K, kField + 1>(keys, i, codes, gains, store);
  }
}

/// Calls `store` with each four channels of a token: its tile (see token_of), the first channel, and FP16 numbers.
template <typename G, typename Store>
__device__ __forceinline__ void decode_stored_keys(const PageSide<G>& keys, const Store& store, SideShare share = {}) {
  PageKinds<G>::visit(keys.layout.format.keys(), [&](auto kind) {
    using K = decltype(kind);
    if constexpr (K::kOrder.codes) {
      TokenGains gains{};
      if constexpr (K::kCode.has_gains()) {
        gains = load_key_gains(keys);
        for (float& each : gains.of) each *= kExactUnit<K>;
      }
      const int32_t words = (keys.geometry.head_dim() + 16 * kKeyFields<K> - 1) / (16 * kKeyFields<K>);
#pragma unroll 1
      for (int32_t i = share.first; i < words; i += share.step)
        decode_key_fields<K, 0>(keys, i, K::load_keys(keys, i), gains, store);
    }
  });
}

/// Decodes product kStep of a word of values: four tokens of channel i of the lane's four.
template <typename K, int32_t kStep, typename Codes>
__device__ __forceinline__ void decode_value_step(const Codes& codes, int32_t i, const __half2 (&factors)[4],
                                                  const __half2 (&offsets)[4], uint32_t (&eight)[4]) {
  __half2 even = exact_codes<K, kStep>(codes.template even<kStep>(i));
  __half2 odd = exact_codes<K, kStep>(codes.template odd<kStep>(i));
  if constexpr (K::kCode.has_gains()) {
    even = __hmul2(even, factors[2 * kStep]);
    odd = __hmul2(odd, factors[2 * kStep + 1]);
  } else {
    even = finite_number(even, factors[2 * kStep], offsets[2 * kStep]);
    odd = finite_number(odd, factors[2 * kStep + 1], offsets[2 * kStep + 1]);
  }
  eight[2 * kStep] = low_halves(bits_of(even), bits_of(odd));
  eight[2 * kStep + 1] = high_halves(bits_of(even), bits_of(odd));
}

/// Calls `store` with each eight tokens of a channel: the channel and FP16 numbers of the tokens from 8t on.
template <typename G, typename Store>
__device__ __forceinline__ void decode_stored_values(const PageSide<G>& values, const Store& store,
                                                     SideShare share = {}) {
  PageKinds<G>::visit(values.layout.format.values(), [&](auto kind) {
    using K = decltype(kind);
    if constexpr (K::kOrder.codes) {
      const PageLayout& layout = values.layout;
      const uint32_t planes = values.address + static_cast<uint32_t>(16 * values.lane.t);
      __half2 factors[4];  // of tokens (0, 2), (1, 3), (4, 6), (5, 7)
      __half2 offsets[4];
      if constexpr (K::kCode.has_gains()) {
        TokenGains gains[2];
#pragma unroll
        for (int32_t j = 0; j < 2; ++j) {
          Lane lane = values.lane;
          lane.g = 2 * lane.t + j;
          gains[j] = load_gains(values.address + static_cast<uint32_t>(layout.values.gains),
                                values.address + static_cast<uint32_t>(layout.values.numbers + 2 * kValueLargest),
                                kExactUnit<K>, lane);
        }
#pragma unroll
        for (int32_t j = 0; j < 4; ++j) factors[j] = gain_pair<K>(gains[0].of[j], gains[1].of[j]);
      }
      const auto decode_block = [&](int32_t m, const auto& codes) {
        if constexpr (!K::kCode.has_gains()) {
          const auto group = static_cast<uint32_t>(64 * (m >> layout.group_shift));
          uint32_t scales[4];
          uint32_t minima[4];
          load_eight(planes + static_cast<uint32_t>(value_codes_of<K, G>(layout)) + group, scales);
          load_eight(planes + static_cast<uint32_t>(layout.values.minima()) + group, minima);
#pragma unroll
          for (int32_t j = 0; j < 4; ++j) {
            factors[j] = halves_of(scales[j]);
            offsets[j] = halves_of(minima[j]);
          }
        }
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const int32_t channel = 32 * m + 4 * values.lane.g + i;
          uint32_t eight[4];
          decode_value_step<K, 0>(codes, i, factors, offsets, eight);
          decode_value_step<K, 1>(codes, i, factors, offsets, eight);
          if (values.geometry.has_channel(channel)) store(channel, uint4{eight[0], eight[1], eight[2], eight[3]});
        }
      };
      const int32_t blocks = (values.geometry.head_dim() + 31) / 32;
      if constexpr (K::kCode.has_gains()) {
        const typename K::template ValueCodes<G> page(values);
        if constexpr (G::kWidth <= kMaxHeadDim) {
          // Some kinds keep words in registers, which loops that are not unrolled cannot index.
#pragma unroll
          for (int32_t m = 0; m < G::kChannels; ++m) {
            if (m < blocks) decode_block(m, page.codes(m));
          }
        } else {
#pragma unroll 1
          for (int32_t m = share.first; m < blocks; m += share.step) decode_block(m, page.codes(m));
        }
      } else {
#pragma unroll 1
        for (int32_t m = share.first; m < blocks; m += share.step) decode_block(m, K::load_values(values, m));
      }
    }
  });
}

}  // namespace kvq::cuda
