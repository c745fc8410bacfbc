// FP16 planes to gain–shape sides. Both sides lie as `[channels][32 slots]`: lanes are slots, each slot sums over its
// channels in order, and nothing is summed across lanes.
#if defined(KVQ_APPEND_GAIN_SHAPE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_APPEND_GAIN_SHAPE_INL_H
#undef KVQ_APPEND_GAIN_SHAPE_INL_H
#else
#define KVQ_APPEND_GAIN_SHAPE_INL_H
#endif

#include "backend/cpu/append/encode-inl.h"
#include "backend/cpu/append/float16-inl.h"
#include "backend/cpu/append/gain_shape/gains-inl.h"
#include "backend/cpu/append/gain_shape/trellis-inl.h"
#include "backend/cpu/append/hadamard-inl.h"
#include "backend/cpu/append/pack-inl.h"
#include "backend/cpu/append/transpose-inl.h"
#include "backend/cpu/vectors.h"
#include "core/float16.h"
#include "core/scratch.h"
#include "formats/float16/layout.h"
#include "formats/gain_shape/encode.h"
#include "formats/gain_shape/gain_shape.h"

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Encodes FP16 values of one side to codes and gains.
class GainShapeEncoder {
  using D = hn::ScalableTag<float>;  // 16 lanes at most
  using V = hn::Vec<D>;
  using Words = hn::RebindToUnsigned<D>;
  using Integers = hn::RebindToSigned<D>;
  static constexpr int32_t kLanes = hn::MaxLanes(D());

 public:
  /// Channels with codes in any plane, including padding.
  static constexpr int32_t padded(int32_t head_dim) { return (head_dim + 31) / 32 * 32; }
  static constexpr size_t scalar_room_bytes(int32_t head_dim) {
    return static_cast<size_t>(padded(head_dim)) * kPageSlots * (sizeof(float) + sizeof(uint8_t));
  }
  static constexpr size_t trellis_room_bytes(int32_t head_dim) {
    return scalar_room_bytes(head_dim) + TrellisRoom::bytes(static_cast<size_t>(padded(head_dim)));
  }

  /// `room`: the code type's room bytes, aligned for vectors.
  GainShapeEncoder(const SideLayout& layout, int32_t used, std::byte* room, std::byte* out)
      : layout_(layout), dim_(layout.head_dim), used_(used), room_(room), out_(out) {
    const auto numbers = static_cast<size_t>(padded(dim_) * kPageSlots);
    x_ = room_.take<float>(numbers);
    codes_ = room_.take<uint8_t>(numbers);
  }

  void encode(const std::byte* float16) {
    encode(float16, [](float* /*x*/) {});
  }

  /// `take_centres`: subtracts centres from `[channels][32 slots]`.
  template <typename TakeCentres>
  void encode(const std::byte* float16, const TakeCentres& take_centres) {
    const auto* numbers = reinterpret_cast<const uint16_t*>(float16);
    if (layout_.side == Side::kKeys) load_keys(numbers);
    if (layout_.side == Side::kValues) load_values(reinterpret_cast<const uint32_t*>(numbers));
    take_centres(x_);
    rotate_columns(x_, dim_);
    if (layout_.has_mean()) {
      HWY_ALIGN_MAX float mean[kMaxHeadDim];
      put_mean(mean);
      find_norms<true>(mean);
    } else {
      find_norms<false>(nullptr);
    }
    if (layout_.code.is_trellis()) {
      put_trellis();
    } else {
      put_scalars();
    }
    put_gains(layout_, norm_, product_, out_);
  }

 private:
  static constexpr int32_t kBlock = gain_shape::kSumBlock;
  static constexpr float kUnitsAtEnd = 0x1.8p23F;  // at this magnitude the last bit is 1

  float* row(int32_t channel) { return x_ + channel * kPageSlots; }
  const float* row(int32_t channel) const { return x_ + channel * kPageSlots; }
  uint8_t* code_row(int32_t channel) { return codes_ + channel * kPageSlots; }

  void load_keys(const uint16_t* plane) {
    const D d;
    for (int32_t channel = 0; channel < dim_; channel += 2) {
      for (int32_t slot = 0; slot < kPageSlots; slot += kLanes, plane += 2 * kLanes) {
        const auto first = from_half(d, plane);
        const auto second = from_half(d, plane + kLanes);
        hn::Store(hn::ConcatEven(d, second, first), d, row(channel) + slot);
        hn::Store(hn::ConcatOdd(d, second, first), d, row(channel + 1) + slot);
      }
    }
  }

  /// A word of the plane holds one channel of two slots.
  void load_values(const uint32_t* plane) {
    const D d;
    const Words dw;
    const hn::Half<Words> half;  // words, since Highway 1.0 has no upper half of FP16 on NEON
    const hn::Rebind<hwy::float16_t, D> dh;
    const int32_t stride = padded_dim(dim_);
    for (int32_t channel = 0; channel < dim_; channel += 4) {
      for (int32_t slot = 0; slot < kPageSlots; slot += 2 * kLanes) {
        hn::Vec<Words> columns[4];
        load_columns(dw, plane + slot / 2 * stride + channel, stride, columns);
        for (int32_t i = 0; i < 4; ++i) {
          const auto lower = hn::BitCast(dh, hn::LowerHalf(half, columns[i]));
          const auto upper = hn::BitCast(dh, hn::UpperHalf(half, columns[i]));
          hn::Store(hn::PromoteTo(d, lower), d, row(channel + i) + slot);
          hn::Store(hn::PromoteTo(d, upper), d, row(channel + i) + slot + kLanes);
        }
      }
    }
  }

  /// Writes the mean of the used slots; `mean`: its decoded value.
  void put_mean(float* mean) {
    const D d;
    std::fill(row(dim_), row(padded(dim_)), 0.0F);
    auto largest = hn::Zero(d);
    for (int32_t channel = 0; channel < dim_; channel += kLanes) {
      const auto each = hn::Div(sum_of_slots(row(channel)), hn::Set(d, static_cast<float>(used_)));
      largest = hn::Max(largest, hn::Abs(each));
      hn::Store(each, d, mean + channel);
    }
    const uint16_t bits = to_float16(hn::GetLane(hn::MaxOfLanes(d, largest)) / gain_shape::kTopMean);
    std::memcpy(out_ + layout_.mean_scale_offset(), &bits, sizeof(bits));
    const float scale = from_float16(bits);
    const auto inverse = hn::Set(d, scale > 0.0F ? 1.0F / scale : 0.0F);
    HWY_ALIGN_MAX int8_t codes[kMaxHeadDim];
    const hn::Rebind<int8_t, D> d8;
    for (int32_t channel = 0; channel < dim_; channel += kLanes) {
      const auto code = nearest_within(hn::Mul(hn::Load(d, mean + channel), inverse), gain_shape::kTopMean);
      hn::Store(hn::DemoteTo(d8, code), d8, codes + channel);
      hn::Store(hn::Mul(hn::ConvertTo(d, code), hn::Set(d, scale)), d, mean + channel);
    }
    std::memcpy(out_ + layout_.mean_offset(), codes, static_cast<size_t>(dim_));
  }

  /// Lanes are channels, slots are summed one after the other.
  V sum_of_slots(const float* rows) const {
    const D d;
    auto sum = hn::Zero(d);
    for (int32_t slot = 0; slot < used_; slot += 4) {
      hn::Vec<Words> columns[4];
      load_columns(Words(), reinterpret_cast<const uint32_t*>(rows) + slot, kPageSlots, columns);
      const int32_t count = std::min(4, used_ - slot);
      for (int32_t i = 0; i < count; ++i) sum = hn::Add(sum, hn::BitCast(d, columns[i]));
    }
    return sum;
  }

  HWY_INLINE static V clamped(V x, float limit) {
    const D d;
#if HWY_TARGET == HWY_AVX3
    constexpr int kSmallerMagnitude = 2;  // with the sign of the first operand
    return V{_mm512_range_ps(x.raw, hn::Set(d, limit).raw, kSmallerMagnitude)};
#else
    return hn::Max(hn::Min(x, hn::Set(d, limit)), hn::Set(d, -limit));
#endif
  }

  /// Rounds to nearest even after clamping to ±limit, which is less than 2^22.
  HWY_INLINE static hn::Vec<Integers> nearest_within(V x, float limit) {
    const D d;
    const Integers di;
    const auto aligned = hn::BitCast(di, hn::Add(clamped(x, limit), hn::Set(d, kUnitsAtEnd)));
    return hn::Sub(aligned, hn::BitCast(di, hn::Set(d, kUnitsAtEnd)));
  }

  /// Norms of the slots, after subtracting the mean if there is one.
  template <bool kMean>
  void find_norms(const float* mean) {
    const D d;
    const auto dim = hn::Set(d, static_cast<float>(dim_));
    for (int32_t slot = 0; slot < kPageSlots; slot += kLanes) {
      auto norm = hn::Zero(d);
      for (int32_t begin = 0; begin < dim_; begin += kBlock) {
        auto block = hn::Zero(d);
        for (int32_t i = begin; i < std::min(begin + kBlock, dim_); ++i) {
          auto x = hn::Load(d, row(i) + slot);
          if constexpr (kMean) {
            x = hn::Sub(x, hn::Set(d, mean[i]));
            hn::Store(x, d, row(i) + slot);
          }
          block = hn::Add(block, hn::Mul(x, x));
        }
        norm = hn::Add(norm, block);
      }
      const auto number = hn::ConvertTo(d, hn::Iota(Integers(), slot));
      norm = hn::IfThenElseZero(hn::Lt(number, hn::Set(d, static_cast<float>(used_))), norm);
      hn::Store(norm, d, norm_ + slot);
      const auto rms = hn::Sqrt(hn::Div(norm, dim));
      hn::Store(hn::IfThenElse(hn::Gt(norm, hn::Zero(d)), rms, hn::Set(d, 1.0F)), d, rms_ + slot);
    }
  }

  void put_scalars() {
    if (layout_.bits() == 1) put_scalars_of<1>();
    if (layout_.bits() == 2) put_scalars_of<2>();
    if (layout_.bits() == 3) put_scalars_of<3>();
    if (layout_.bits() == 4) put_scalars_of<4>();
  }

  template <int kBits>
  void put_scalars_of() {
    for (int32_t slot = 0; slot < kPageSlots; slot += kLanes) put_scalars_of<kBits>(slot, best_inverse<kBits>(slot));
    std::fill(code_row(dim_), code_row(padded(dim_)), uint8_t{0});
    pack<kBits>();
  }

  /// An integer. Clamping before the rounding constant is added gives the reference's result and avoids the range
  /// checks of a conversion to integers.
  template <int kBits>
  HWY_INLINE static V scalar_code(V steps) {
    const D d;
    constexpr float kMiddle = gain_shape::middle(kBits);
    const auto code = hn::Add(clamped(steps, kMiddle), hn::Set(d, kMiddle));
    return hn::Trunc(hn::Add(code, hn::Set(d, 0.5F)));
  }
  template <int kBits>
  HWY_INLINE static V level(V code) {
    return hn::Sub(code, hn::Set(D(), gain_shape::middle(kBits)));
  }

  /// Inverse of the step with the best cosine between code and vector; several candidates also yield its product.
  template <int kBits>
  V best_inverse(int32_t slot) {
    constexpr auto kFactors = gain_shape::step_factors(kBits);
    constexpr size_t kCount = kFactors.size();
    const D d;
    V inverse[kCount];
    V product[kCount];
    V norm[kCount];
    for (size_t f = 0; f < kCount; ++f) {
      const auto step = hn::Mul(hn::Set(d, gain_shape::step_of(kBits) * kFactors[f]), hn::Load(d, rms_ + slot));
      inverse[f] = hn::Div(hn::Set(d, 1.0F), step);
      product[f] = norm[f] = hn::Zero(d);
    }
    if constexpr (kCount == 1) return inverse[0];
    for (int32_t begin = 0; begin < dim_; begin += kBlock) {
      V block[kCount];
      for (size_t f = 0; f < kCount; ++f) block[f] = hn::Zero(d);
      for (int32_t i = begin; i < std::min(begin + kBlock, dim_); ++i) {
        const auto x = hn::Load(d, row(i) + slot);
        for (size_t f = 0; f < kCount; ++f) {
          const auto u = level<kBits>(scalar_code<kBits>(hn::Mul(x, inverse[f])));
          block[f] = hn::Add(block[f], hn::Mul(x, u));
          norm[f] = hn::MulAdd(u, u, norm[f]);  // exact, in any order
        }
      }
      for (size_t f = 0; f < kCount; ++f) product[f] = hn::Add(product[f], block[f]);
    }
    size_t best = 0;
    for (size_t f = 1; f < kCount; ++f) {
      const auto better = hn::Gt(hn::Mul(hn::Mul(product[f], product[f]), norm[best]),
                                 hn::Mul(hn::Mul(product[best], product[best]), norm[f]));
      product[best] = hn::IfThenElse(better, product[f], product[best]);
      norm[best] = hn::IfThenElse(better, norm[f], norm[best]);
      inverse[best] = hn::IfThenElse(better, inverse[f], inverse[best]);
    }
    hn::Store(product[best], d, product_ + slot);
    return inverse[best];
  }

  template <int kBits>
  void put_scalars_of(int32_t slot, V inverse) {
    const D d;
    const hn::Rebind<uint8_t, D> d8;
    const Integers di;
    const auto in_use = hn::RebindMask(di, hn::Gt(hn::Load(d, norm_ + slot), hn::Zero(d)));
    const auto bits = hn::IfThenElseZero(in_use, hn::Set(di, (1 << kBits) - 1));
    constexpr bool kNeedsProduct = gain_shape::step_factors(kBits).size() == 1;
    auto product = hn::Zero(d);
    for (int32_t begin = 0; begin < dim_; begin += kBlock) {
      auto block = hn::Zero(d);
      for (int32_t i = begin; i < std::min(begin + kBlock, dim_); ++i) {
        const auto x = hn::Load(d, row(i) + slot);
        const auto code = scalar_code<kBits>(hn::Mul(x, inverse));
        if constexpr (kNeedsProduct) block = hn::Add(block, hn::Mul(x, level<kBits>(code)));
        const auto aligned = hn::BitCast(di, hn::Add(code, hn::Set(d, kUnitsAtEnd)));
        hn::Store(hn::U8FromU32(hn::BitCast(Words(), hn::And(aligned, bits))), d8, code_row(i) + slot);
      }
      product = hn::Add(product, block);
    }
    if constexpr (kNeedsProduct) hn::Store(product, d, product_ + slot);
  }

  void put_trellis() {
    if (layout_.bits() == 1) put_trellis_of<1>();
    if (layout_.bits() == 2) put_trellis_of<2>();
    if (layout_.bits() == 3) put_trellis_of<3>();
  }

  template <int kBits>
  void put_trellis_of() {
    const gain_shape::Chain chain{layout_.side, kBits == 3 ? layout_.high_plane() : layout_.low_plane()};
    TrellisSearch<kBits> search(chain, dim_, room_);
    find_targets(search);
    HWY_ALIGN_MAX int16_t in_use[kPageSlots];
    for (int32_t slot = 0; slot < kPageSlots; ++slot) in_use[slot] = norm_[slot] > 0.0F ? int16_t{-1} : int16_t{0};
    search.run(in_use, codes_);
    multiply_levels(search);
    pack<kBits>();
  }

  template <class Search>
  void find_targets(Search& search) const {
    const D d;
    const hn::Rebind<int16_t, D> d16;
    for (int32_t slot = 0; slot < kPageSlots; slot += kLanes) {
      const auto factor = hn::Div(hn::Set(d, gain_shape::kLevelUnit), hn::Load(d, rms_ + slot));
      for (int32_t i = 0; i < dim_; ++i) {
        constexpr auto kFarthest = static_cast<float>(gain_shape::kFarthestTarget);
        const auto target = nearest_within(hn::Mul(hn::Load(d, row(i) + slot), factor), kFarthest);
        hn::Store(hn::DemoteTo(d16, target), d16, search.row(i) + slot);
      }
    }
  }

  template <class Search>
  void multiply_levels(Search& search) {
    const D d;
    const hn::Rebind<int16_t, D> d16;
    for (int32_t slot = 0; slot < kPageSlots; slot += kLanes) {
      auto product = hn::Zero(d);
      for (int32_t begin = 0; begin < dim_; begin += kBlock) {
        auto block = hn::Zero(d);
        for (int32_t i = begin; i < std::min(begin + kBlock, dim_); ++i) {
          const auto u = hn::ConvertTo(d, hn::PromoteTo(Integers(), hn::Load(d16, search.row(i) + slot)));
          block = hn::Add(block, hn::Mul(hn::Load(d, row(i) + slot), u));
        }
        product = hn::Add(product, block);
      }
      hn::Store(product, d, product_ + slot);
    }
  }

  template <int kBits>
  void pack() {
    auto* words = reinterpret_cast<uint32_t*>(out_);
    if constexpr (kBits == 3) {
      pack_plane<2, 0>(layout_.low_plane(), words);
      pack_plane<1, 2>(layout_.high_plane(), reinterpret_cast<uint32_t*>(out_ + layout_.high_offset()));
    } else {
      pack_plane<kBits, 0>(layout_.low_plane(), words);
    }
  }
  template <int kFieldBits, int kShift>
  void pack_plane(const PackedPlane& plane, uint32_t* words) const {
    if (layout_.side == Side::kKeys) {
      Packer<kFieldBits, kShift>::pack_keys(codes_, plane, words);
    } else {
      Packer<kFieldBits, kShift>::pack_values(codes_, plane, words);
    }
  }

  const SideLayout layout_;
  const int32_t dim_;
  const int32_t used_;
  MemoryCutter room_;
  std::byte* out_;
  float* x_;                              // [channels][slots]
  uint8_t* codes_;                        // [channels][slots]
  HWY_ALIGN_MAX float norm_[kPageSlots];  // 0: codes and gain of the slot are 0
  HWY_ALIGN_MAX float rms_[kPageSlots];
  HWY_ALIGN_MAX float product_[kPageSlots];
};

inline void encode_gain_shape(Side side, const SideFormat& format, int32_t head_dim, const std::byte* float16,
                              int32_t used, std::byte* out, std::byte* room) {
  GainShapeEncoder(side_layout(side, format, head_dim), used, room, out).encode(float16);
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
