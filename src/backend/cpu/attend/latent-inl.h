// Values as keys, where these are the first channels of the keys: the bytes of a value side in the layout of a key
// side.
#if defined(KVQ_ATTEND_LATENT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_ATTEND_LATENT_INL_H
#undef KVQ_ATTEND_LATENT_INL_H
#else
#define KVQ_ATTEND_LATENT_INL_H
#endif

#include "backend/cpu/attend/kernels.h"
#include "core/float16.h"

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Channels of two neighbouring vectors of FP16 numbers as the words of a plane of values.
template <class D>
HWY_INLINE void store_pair(D d, hn::Vec<D> first, hn::Vec<D> second, uint16_t* words) {
  const hn::Rebind<hwy::float16_t, D> dh;
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const auto most = hn::Set(d, kMaxFloat16);
  const auto half = [&](hn::Vec<D> numbers) HWY_ATTR {
    const auto fit = hn::Max(hn::Neg(most), hn::Min(numbers, most));
    return hn::PromoteTo(d32, hn::BitCast(d16, hn::DemoteTo(dh, fit)));
  };
  hn::StoreU(hn::Or(half(first), hn::ShiftLeft<16>(half(second))), d32, reinterpret_cast<uint32_t*>(words));
}

/// The channels of four words of a plane of values, as four neighbouring slots of a plane of keys.
HWY_INLINE hn::Vec<hn::Full128<uint32_t>> transposed_bytes(hn::Vec<hn::Full128<uint32_t>> words) {
  const hn::Full128<uint8_t> d8;
  alignas(16) static constexpr uint8_t kOrder[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
  return hn::BitCast(hn::Full128<uint32_t>(), hn::TableLookupBytes(hn::BitCast(d8, words), hn::Load(d8, kOrder)));
}

/// Slots of one field of a block: `groups` words of four channels each.
template <int kBits, int kField>
HWY_INLINE void transpose_fields(const hn::Vec<hn::Full128<uint32_t>>* groups, uint32_t* keys) {
  constexpr int kFields = 8 / kBits;
  if constexpr (kField < kFields) {
    const hn::Full128<uint32_t> d;
    const auto mask = hn::Set(d, ((1U << kBits) - 1U) * 0x01010101U);
    auto gathered = hn::And(hn::ShiftRight<kBits * kField>(groups[0]), mask);
    if constexpr (kFields > 1) {
      const auto add = [&](auto group) HWY_ATTR {
        constexpr int kGroup = decltype(group)::value;
        gathered = hn::Or(gathered,
                          hn::ShiftLeft<kBits * kGroup>(hn::And(hn::ShiftRight<kBits * kField>(groups[kGroup]), mask)));
      };
      add(std::integral_constant<int, 1>());
      if constexpr (kFields > 2) add(std::integral_constant<int, 2>());
      if constexpr (kFields > 2) add(std::integral_constant<int, 3>());
      if constexpr (kFields > 4) add(std::integral_constant<int, 4>());
      if constexpr (kFields > 4) add(std::integral_constant<int, 5>());
      if constexpr (kFields > 4) add(std::integral_constant<int, 6>());
      if constexpr (kFields > 4) add(std::integral_constant<int, 7>());
    }
    hn::StoreU(transposed_bytes(gathered), d, keys + 4 * kField);
    transpose_fields<kBits, kField + 1>(groups, keys);
  }
}

/// A plane of `kBits` bits: element e of a word is at byte e % 4, field e / 4, on both sides.
template <int kBits>
HWY_INLINE void transpose_plane(int32_t head_dim, const std::byte* from, std::byte* to) {
  constexpr int32_t kFields = 8 / kBits;
  const hn::Full128<uint32_t> d;
  const PackedPlane values = side_plane(Side::kValues, kBits, head_dim);
  const PackedPlane keys = side_plane(Side::kKeys, kBits, head_dim);
  const auto* words = reinterpret_cast<const uint32_t*>(from);
  auto* out = reinterpret_cast<uint32_t*>(to);
  for (int32_t key_block = 0; key_block < keys.blocks(); ++key_block) {
    const int32_t channel = 4 * kFields * key_block;
    const int32_t groups = std::min(kFields, (values.lanes - channel) / 4);
    for (int32_t block = 0; block < values.blocks(); ++block) {
      hn::Vec<hn::Full128<uint32_t>> loaded[kFields];
      const uint32_t* at = words + block * values.lanes + channel;
      if (HWY_LIKELY(groups == kFields)) {
        for (int32_t group = 0; group < kFields; ++group) loaded[group] = hn::LoadU(d, at + 4 * group);
      } else {
        for (auto& each : loaded) each = hn::Zero(d);
        for (int32_t group = 0; group < groups; ++group) loaded[group] = hn::LoadU(d, at + 4 * group);
      }
      transpose_fields<kBits, 0>(loaded, out + key_block * kPageSlots + 4 * kFields * block);
    }
  }
}

/// The same for FP16 numbers, two to a word.
HWY_INLINE void transpose_float16(int32_t head_dim, const std::byte* from, std::byte* to) {
  const hn::Full128<uint32_t> d;
  const hn::Full128<uint64_t> d64;
  const hn::Full128<uint8_t> d8;
  // Two channels of the first slot, of the second slot, and the next two channels likewise.
  alignas(16) static constexpr uint8_t kOrder[16] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
  const auto order = hn::Load(d8, kOrder);
  const PackedPlane values = side_plane(Side::kValues, 16, head_dim);
  const auto* words = reinterpret_cast<const uint32_t*>(from);
  auto* out = reinterpret_cast<uint32_t*>(to);
  const auto load = [&](int32_t block, int32_t channel) HWY_ATTR {
    const auto numbers = hn::LoadU(d, words + block * values.lanes + channel);
    return hn::BitCast(d64, hn::TableLookupBytes(hn::BitCast(d8, numbers), order));
  };
  for (int32_t channel = 0; channel < head_dim; channel += 4) {
    uint32_t* at = out + channel / 2 * kPageSlots;
    for (int32_t block = 0; block < kPageSlots / 2; block += 2) {
      const auto first = load(block, channel);
      const auto second = load(block + 1, channel);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, first, second)), d, at + 2 * block);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, first, second)), d, at + kPageSlots + 2 * block);
    }
  }
}

inline void float16_as_keys(const SideShape& shape, const std::byte* values, std::byte* keys, std::byte* /*room*/) {
  transpose_float16(shape.head_dim, values, keys);
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
