// Viterbi steps of all trellis states at once, and the decision for each. Lanes are slots; so are the bits of words.
#if defined(KVQ_APPEND_TRELLIS_STEPS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_APPEND_TRELLIS_STEPS_INL_H
#undef KVQ_APPEND_TRELLIS_STEPS_INL_H
#else
#define KVQ_APPEND_TRELLIS_STEPS_INL_H
#endif

#include "core/limits.h"
#include "formats/gain_shape/trellis.h"

#include <hwy/highway.h>

#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Steps that the register file allows to run together over a group of states.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr int kStepsAtOnce = 4;
#else
inline constexpr int kStepsAtOnce = 2;
#endif

/// Packs the bits of two masks into their slots of two words, one after the other.
template <class D>
HWY_INLINE void store_bits(D d, hn::Mask<D> first, hn::Mask<D> second, uint8_t* bits) {
#if HWY_TARGET == HWY_AVX2
  // PEXT would be shorter but takes a hundred cycles on some processors.
  const __m256i packed = _mm256_packs_epi16(hn::VecFromMask(d, first).raw, hn::VecFromMask(d, second).raw);
  const auto both = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_permute4x64_epi64(packed, 0b11011000)));
  const auto low = static_cast<uint16_t>(both);
  const auto high = static_cast<uint16_t>(both >> 16U);
  std::memcpy(bits, &low, sizeof(low));
  std::memcpy(bits + sizeof(uint32_t), &high, sizeof(high));
#elif HWY_TARGET == HWY_EMU128 && defined(__SSE2__)
  // The compiler vectorises the rest by itself.
  const auto first_lanes = hn::VecFromMask(d, first);
  const auto second_lanes = hn::VecFromMask(d, second);
  const __m128i packed = _mm_packs_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first_lanes.raw)),
                                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(second_lanes.raw)));
  const auto both = static_cast<uint32_t>(_mm_movemask_epi8(packed));
  bits[0] = static_cast<uint8_t>(both);
  bits[sizeof(uint32_t)] = static_cast<uint8_t>(both >> 8U);
#else
  hn::StoreMaskBits(d, first, bits);
  hn::StoreMaskBits(d, second, bits + sizeof(uint32_t));
#endif
}

template <int kSteps>
struct Butterflies {
  using D = hn::CappedTag<int16_t, kPageSlots>;
  using V = hn::Vec<D>;
  static constexpr uint32_t kLanes = hn::MaxLanes(D());
  static constexpr uint32_t kRegisters = 1U << kSteps;
  static constexpr uint32_t kGroups = gain_shape::kStates / kRegisters;

  /// Position of a state's decision: the state's bits in the order in which trace-back narrows a path down. The newest
  /// but one comes first, because the oldest is known last; the newest comes last, so that two decisions taken together
  /// are neighbours.
  static constexpr uint32_t place(uint32_t state) {
    uint32_t place = 0;
    for (int32_t bit = 1; bit < gain_shape::kMemory; ++bit) place = place << 1U | (state >> bit & 1U);
    return place << 1U | (state & 1U);
  }

  /// State in a register after `steps` steps. Its bits, from the top: those of the register's number not yet shifted
  /// out, the group, and the bits shifted in, which replace those shifted out.
  static constexpr uint32_t state(uint32_t group, uint32_t number, uint32_t steps) {
    const uint32_t left = kSteps - steps;
    return (number & ((1U << left) - 1U)) << (gain_shape::kMemory - left) | group << steps | number >> left;
  }

  /// Two states that differ in their oldest bit lead to two that differ in their newest. Of the parities only the third
  /// depends on these bits, and on both: two costs serve the four transitions.
  template <bool kDecide, uint32_t kGroup, uint32_t kStep, uint32_t kPair>
  HWY_INLINE static void cross(V (&costs)[kRegisters], const int16_t* subsets, uint8_t* decisions) {
    constexpr uint32_t kHalf = kRegisters >> (kStep + 1);
    constexpr uint32_t kFirst = (kPair & ~(kHalf - 1)) * 2 | (kPair & (kHalf - 1));
    constexpr uint32_t kState = state(kGroup, kFirst, kStep) << 1U;
    constexpr uint32_t kOldest = 1U << gain_shape::kMemory;
    constexpr auto kNear = static_cast<uint32_t>(gain_shape::parities(kState));
    constexpr auto kFar = static_cast<uint32_t>(gain_shape::parities(kState | kOldest));
    static_assert(gain_shape::parities(kState | 1U) == kFar && gain_shape::parities(kState | kOldest | 1U) == kNear);
    const D d;
    const auto near = hn::Load(d, subsets + (kStep * gain_shape::kSubsets + kNear) * kLanes);
    const auto far = hn::Load(d, subsets + (kStep * gain_shape::kSubsets + kFar) * kLanes);
    const auto a = costs[kFirst];
    const auto b = costs[kFirst + kHalf];
    const auto a_near = hn::Add(a, near);
    const auto a_far = hn::Add(a, far);
    const auto b_near = hn::Add(b, near);
    const auto b_far = hn::Add(b, far);
    costs[kFirst] = hn::Min(a_near, b_far);
    costs[kFirst + kHalf] = hn::Min(a_far, b_near);
    if constexpr (kDecide) {
      constexpr size_t kWord = sizeof(uint32_t);
      uint8_t* step = decisions + kStep * gain_shape::kStates * kWord;
      store_bits(d, hn::Lt(b_far, a_near), hn::Lt(b_near, a_far), step + place(kState) * kWord);
    }
  }

  template <bool kDecide, uint32_t kGroup, uint32_t kStep, uint32_t... kPairs>
  HWY_INLINE static void cross_all(V (&costs)[kRegisters], const int16_t* subsets, uint8_t* decisions,
                                   std::integer_sequence<uint32_t, kPairs...> /*pairs*/) {
    (cross<kDecide, kGroup, kStep, kPairs>(costs, subsets, decisions), ...);
  }

  template <uint32_t kGroup, uint32_t... kNumbers>
  HWY_INLINE static void load(const int16_t* from, V (&costs)[kRegisters],
                              std::integer_sequence<uint32_t, kNumbers...> /*numbers*/) {
    ((costs[kNumbers] = hn::Load(D(), from + state(kGroup, kNumbers, 0) * kLanes)), ...);
  }
  template <uint32_t kGroup, uint32_t... kNumbers>
  HWY_INLINE static void store(V (&costs)[kRegisters], int16_t* to,
                               std::integer_sequence<uint32_t, kNumbers...> /*numbers*/) {
    (hn::Store(costs[kNumbers], D(), to + state(kGroup, kNumbers, kSteps) * kLanes), ...);
  }

  template <bool kDecide, uint32_t kGroup, uint32_t... kStepNumbers>
  HWY_INLINE static void walk_group(const int16_t* from, const int16_t* subsets, uint8_t* decisions, int16_t* to,
                                    std::integer_sequence<uint32_t, kStepNumbers...> /*steps*/) {
    constexpr std::make_integer_sequence<uint32_t, kRegisters> kAll;
    constexpr std::make_integer_sequence<uint32_t, kRegisters / 2> kPairs;
    V costs[kRegisters];
    load<kGroup>(from, costs, kAll);
    (cross_all<kDecide, kGroup, kStepNumbers>(costs, subsets, decisions, kPairs), ...);
    store<kGroup>(costs, to, kAll);
  }

  /// Runs kSteps steps: costs `[states][lanes]`, subsets `[steps][subsets][lanes]`, decisions `[steps][states]` words;
  /// `decisions` points to the bits of the first lane.
  template <bool kDecide, uint32_t... kGroupNumbers>
  HWY_INLINE static void walk(const int16_t* from, const int16_t* subsets, uint8_t* decisions, int16_t* to,
                              std::integer_sequence<uint32_t, kGroupNumbers...> /*groups*/) {
    constexpr std::make_integer_sequence<uint32_t, kSteps> kAll;
    (walk_group<kDecide, kGroupNumbers>(from, subsets, decisions, to, kAll), ...);
  }
  template <bool kDecide>
  static void walk(const int16_t* from, const int16_t* subsets, uint8_t* decisions, int16_t* to) {
    walk<kDecide>(from, subsets, decisions, to, std::make_integer_sequence<uint32_t, kGroups>());
  }
};

/// Selects bit by bit.
template <class Words>
HWY_INLINE Words selected(Words bits, Words set, Words clear) {
  return hn::OrAnd(hn::AndNot(bits, clear), bits, set);
}

/// The kCount of a step's 64 words that remain after the newest bits of a state, or a vector of them from `offset`.
template <int kCount>
HWY_INLINE hn::Vec<hn::CappedTag<uint32_t, kCount>> narrowed(const uint32_t* words, const uint32_t* state, int offset) {
  const hn::CappedTag<uint32_t, kCount> d;
  if constexpr (kCount == gain_shape::kStates) {
    return hn::Load(d, words + offset);
  } else {
    constexpr int kBit = gain_shape::kMemory - std::countr_zero(static_cast<unsigned>(kCount));
    const auto bit = hn::Set(d, state[gain_shape::kMemory - 1 - kBit]);
    if constexpr (kCount >= hn::MaxLanes(hn::ScalableTag<uint32_t>())) {
      const auto set = narrowed<2 * kCount>(words, state, offset + kCount);
      return selected(bit, set, narrowed<2 * kCount>(words, state, offset));
    } else {
      const auto both = narrowed<2 * kCount>(words, state, offset);
      return selected(bit, hn::UpperHalf(d, both), hn::LowerHalf(d, both));
    }
  }
}

/// Decisions of all slots at a step after which they are in `state`: one word per state bit, the newest last.
HWY_INLINE uint32_t chosen_word(const uint32_t* words, const uint32_t* state) {
  HWY_ALIGN uint32_t four[4];
  hn::Store(narrowed<4>(words, state, 0), hn::FixedTag<uint32_t, 4>(), four);
  const uint32_t newest = state[gain_shape::kMemory - 1];
  const uint32_t clear = four[0] ^ ((four[0] ^ four[1]) & newest);
  const uint32_t set = four[2] ^ ((four[2] ^ four[3]) & newest);
  return clear ^ ((clear ^ set) & state[0]);
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
