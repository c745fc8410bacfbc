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
__device__ __forceinline__ uint32_t pack_saturated(float low, float high) {
  const __half2 most = __float2half2_rn(65504.0F);
  const uint32_t pair = pack(low, high);  // may round to infinities
  const __half2 finite = __hmax2(__hmin2(*reinterpret_cast<const __half2*>(&pair), most), __hneg2(most));
  return *reinterpret_cast<const uint32_t*>(&finite);
}

__device__ __forceinline__ float2 to_floats(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

/// Means of four neighbouring channels of a page of keys.
template <typename G>
__device__ __forceinline__ void load_means(const PageSide<G>& keys, int32_t channel, float (&means)[4]) {
  static_assert(kMeanScale == 1);
  const auto halves = load_shared<uint32_t>(keys.address + static_cast<uint32_t>(keys.layout.keys.numbers));
  const float scale = __half2float(__ushort_as_half(static_cast<uint16_t>(halves >> 16U)));
  const auto bytes = load_shared<uint32_t>(keys.address + static_cast<uint32_t>(keys.layout.keys.mean + channel));
#pragma unroll
  for (int32_t c = 0; c < 4; ++c) {
    means[c] = static_cast<float>(static_cast<int32_t>(bytes >> (8 * c) & 0xFFU) - kMeanFlip) * scale;
  }
}

/// Decodes the fields from kField on of words `i`; numbers are code · factor + offset.
template <typename K, int32_t kField, typename G, typename Codes, typename Store>
__device__ __forceinline__ void decode_key_fields(const PageSide<G>& keys, int32_t i, const Codes& codes,
                                                  const TokenGains& gains, const Store& store) {
  if constexpr (kField < kKeyFields<K>) {
    constexpr bool kGains = K::kCode.has_gains();
    constexpr float kUp = kSubnormalScale / static_cast<float>(1 << (K::kOrder.shift * kField));
    const int32_t channel = 4 * (kKeyFields<K> * (4 * i + keys.lane.t) + kField);
    if (keys.geometry.has_channel(channel)) {
      float factors[4];
      float offsets[4] = {};
      if constexpr (!kGains) {
        const SidePlaces bytes = key_bytes_of<K, G>(keys.layout);
        uint32_t scale[2];
        uint32_t minimum[2];
        load_channels<1>(keys.geometry, keys.address + static_cast<uint32_t>(bytes.codes), channel, scale);
        load_channels<1>(keys.geometry, keys.address + static_cast<uint32_t>(bytes.minima()), channel, minimum);
#pragma unroll
        for (int32_t j = 0; j < 2; ++j) {  // stored as channels (0, 2) and (1, 3)
          const float2 two = to_floats(scale[j]);
          factors[j] = two.x * kUp;
          factors[j + 2] = two.y * kUp;
          const float2 least = to_floats(minimum[j]);
          offsets[j] = least.x;
          offsets[j + 2] = least.y;
        }
      } else if (keys.layout.format.page_mean()) {
        load_means(keys, channel, offsets);
      }
#pragma unroll
      for (int32_t tile = 0; tile < 4; ++tile) {
        const float2 pairs[2] = {to_floats(codes.template even<kField>(tile)),
                                 to_floats(codes.template odd<kField>(tile))};
        const float x[4] = {pairs[0].x, pairs[1].x, pairs[0].y, pairs[1].y};
        float four[4];
#pragma unroll
        for (int32_t c = 0; c < 4; ++c) {
          if constexpr (kGains) {
            four[c] = fmaf(fmaf(x[c], kUp, -K::kMiddle), gains.of[tile], offsets[c]);
          } else {
            four[c] = fmaf(x[c], factors[c], offsets[c]);
          }
        }
        store(tile, channel, uint2{pack_saturated(four[0], four[1]), pack_saturated(four[2], four[3])});
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
      if constexpr (K::kCode.has_gains()) gains = load_key_gains(keys);
      const int32_t words = (keys.geometry.head_dim() + 16 * kKeyFields<K> - 1) / (16 * kKeyFields<K>);
#pragma unroll 1
      for (int32_t i = share.first; i < words; i += share.step)
        decode_key_fields<K, 0>(keys, i, K::load_keys(keys, i), gains, store);
    }
  });
}

/// Decodes product kStep of a word of values: four tokens of each of the lane's channels.
template <int32_t kStep, typename Codes>
__device__ __forceinline__ void decode_value_step(const Codes& codes, int32_t i, const float2 (&factors)[4],
                                                  const float2 (&offsets)[4], uint32_t (&eight)[4]) {
  const float2 pairs[2] = {to_floats(codes.template even<kStep>(i)), to_floats(codes.template odd<kStep>(i))};
  float2 numbers[2];
#pragma unroll
  for (int32_t j = 0; j < 2; ++j) {
    const float2& factor = factors[2 * kStep + j];
    const float2& offset = offsets[2 * kStep + j];
    numbers[j] = {fmaf(pairs[j].x, factor.x, offset.x), fmaf(pairs[j].y, factor.y, offset.y)};
  }
  eight[2 * kStep] = pack_saturated(numbers[0].x, numbers[1].x);
  eight[2 * kStep + 1] = pack_saturated(numbers[0].y, numbers[1].y);
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
      constexpr float kUp[2] = {kSubnormalScale, kSubnormalScale / static_cast<float>(1 << K::kOrder.shift)};
      float2 factors[4];  // of tokens (0, 2), (1, 3), (4, 6), (5, 7)
      float2 offsets[4];
      if constexpr (K::kCode.has_gains()) {
        TokenGains gains[2];
#pragma unroll
        for (int32_t j = 0; j < 2; ++j) {
          Lane lane = values.lane;
          lane.g = 2 * lane.t + j;
          gains[j] =
              load_gains(values.address + static_cast<uint32_t>(layout.values.gains),
                         values.address + static_cast<uint32_t>(layout.values.numbers + 2 * kValueLargest), 1.0F, lane);
        }
#pragma unroll
        for (int32_t j = 0; j < 4; ++j) {
          const float up = kUp[j / 2];
          factors[j] = {gains[0].of[j] * up, gains[1].of[j] * up};
          offsets[j] = {gains[0].of[j] * -K::kMiddle, gains[1].of[j] * -K::kMiddle};
        }
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
            const float2 scale = to_floats(scales[j]);
            factors[j] = {scale.x * kUp[j / 2], scale.y * kUp[j / 2]};
            offsets[j] = to_floats(minima[j]);
          }
        }
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const int32_t channel = 32 * m + 4 * values.lane.g + i;
          uint32_t eight[4];
          decode_value_step<0>(codes, i, factors, offsets, eight);
          decode_value_step<1>(codes, i, factors, offsets, eight);
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
