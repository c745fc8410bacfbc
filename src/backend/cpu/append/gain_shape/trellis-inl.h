// Viterbi search of 32 slots at once: lanes are slots, and a bit of a word belongs to one slot.
#if defined(KVQ_APPEND_TRELLIS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_APPEND_TRELLIS_INL_H
#undef KVQ_APPEND_TRELLIS_INL_H
#else
#define KVQ_APPEND_TRELLIS_INL_H
#endif

#include "backend/cpu/append/gain_shape/trellis_steps-inl.h"
#include "core/limits.h"
#include "core/scratch.h"
#include "formats/gain_shape/trellis.h"
#include "formats/gain_shape/trellis_search.h"

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <utility>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Memory of a search.
struct TrellisRoom {
  static constexpr size_t bytes(size_t channels) {
    return channels * (kPageSlots * sizeof(int16_t) + gain_shape::kStates * sizeof(uint32_t));
  }
};

/// Vector version of search_trellis() for all slots of a page.
template <int kBits>
class TrellisSearch {
  using D = hn::CappedTag<int16_t, kPageSlots>;
  using V = hn::Vec<D>;
  static constexpr int32_t kLanes = hn::MaxLanes(D());
  static constexpr int32_t kStates = gain_shape::kStates;
  static constexpr int32_t kSubsets = gain_shape::kSubsets;
  static constexpr int32_t kMemory = gain_shape::kMemory;
  static constexpr int32_t kOthers = 1 << (kBits - 1);
  static constexpr int32_t kBeyond = 2;  // words that may be read beyond a mask's word
  using Steps = Butterflies<kStepsAtOnce>;

 public:
  TrellisSearch(const gain_shape::Chain& chain, int32_t head_dim, MemoryCutter& room)
      : length_(chain.length()), dim_(head_dim) {
    for (int32_t i = 0; i < length_; ++i) channels_[i] = static_cast<uint16_t>(chain.channel(i));
    targets_ = room.take<int16_t>(static_cast<size_t>(length_ * kPageSlots));
    decisions_ = room.take<uint32_t>(static_cast<size_t>(length_ * kStates));
    const D d;
    for (int32_t i = 0; i < kSubsets * kOthers; ++i) {
      hn::Store(hn::Set(d, int16_t{gain_shape::levels(kBits)[i]}), d, levels_ + i * kLanes);
    }
  }

  /// The targets of a channel's slots, later replaced by their levels.
  int16_t* row(int32_t channel) { return targets_ + channel * kPageSlots; }

  /// in_use: all bits or none; codes: `[channels][slots]`, zeros for free slots. Replaces targets by levels.
  void run(const int16_t* in_use, uint8_t* codes) {
    const int32_t half = length_ / 2;
    for (int32_t slot = 0; slot < kPageSlots; slot += kLanes) {
      std::fill(costs_, costs_ + kStates * kLanes, int16_t{0});
      walk<false>(slot, half, 0, length_ - half);
      walk<true>(slot, half, length_ - half, length_);
      find_best(slot, newest(length_));
    }
    trace(length_ - half);
    std::array<uint32_t, kMemory + kBeyond> seam{};
    std::copy_n(newest(length_ - half), kMemory, seam.begin());
    std::copy_n(seam.begin(), kMemory, newest(length_));
    for (int32_t slot = 0; slot < kPageSlots; slot += kLanes) {
      start_at(slot, seam.data());
      walk<true>(slot, 0, 0, length_);
    }
    trace(kMemory);
    std::copy_n(newest(length_), kMemory, path_);
    for (int32_t slot = 0; slot < kPageSlots; slot += kLanes) choose_codes(slot, in_use, codes);
  }

 private:
  /// Highest bits of the six codes up to walk step i, the oldest first.
  uint32_t* newest(int32_t i) { return path_ + i; }

  /// Runs walk steps `begin` to `end` of a walk that begins at chain step `first`. Both are multiples of kStepsAtOnce.
  template <bool kDecide>
  void walk(int32_t slot, int32_t first, int32_t begin, int32_t end) {
    HWY_ALIGN_MAX int16_t subsets[kStepsAtOnce * kSubsets * kLanes];
    HWY_ALIGN_MAX int16_t other_costs[kStates * kLanes];
    int16_t* from = costs_;
    int16_t* to = other_costs;
    for (int32_t i = begin; i < end; i += kStepsAtOnce) {
      const int32_t step = first + i < length_ ? first + i : first + i - length_;
      for (int32_t k = 0; k < kStepsAtOnce; ++k) {
        find_subset_costs(channels_[step + k], slot, subsets + k * kSubsets * kLanes);
      }
      auto* decisions = reinterpret_cast<uint8_t*>(decisions_ + i * kStates) + slot / 8;
      Steps::template walk<kDecide>(from, subsets, decisions, to);
      std::swap(from, to);
      if ((i + kStepsAtOnce) % gain_shape::kRestSteps == 0) rest(from);
    }
    if (from != costs_) std::copy_n(from, kStates * kLanes, costs_);
  }

  static void rest(int16_t* costs) {
    const D d;
    auto least = hn::Load(d, costs);
    for (int32_t state = 1; state < kStates; ++state) least = hn::Min(least, hn::Load(d, costs + state * kLanes));
    for (int32_t state = 0; state < kStates; ++state) {
      int16_t* each = costs + state * kLanes;
      hn::Store(hn::Sub(hn::Load(d, each), least), d, each);
    }
  }

  void find_subset_costs(int32_t channel, int32_t slot, int16_t* subsets) {
    const D d;
    if (channel >= dim_) {
      std::fill(subsets, subsets + kSubsets * kLanes, int16_t{0});
      return;
    }
    const auto target = hn::Load(d, row(channel) + slot);
    V costs[kSubsets];
    for (int32_t subset = 0; subset < kSubsets; ++subset) {
      auto nearest = miss(target, subset);
      for (int32_t other = 1; other < kOthers; ++other) {
        nearest = hn::Min(nearest, miss(target, kSubsets * other + subset));
      }
      costs[subset] = distance(nearest);
    }
    const auto least = hn::Min(hn::Min(hn::Min(costs[0], costs[1]), hn::Min(costs[2], costs[3])),
                               hn::Min(hn::Min(costs[4], costs[5]), hn::Min(costs[6], costs[7])));
    for (int32_t subset = 0; subset < kSubsets; ++subset) {
      const auto cost = hn::Min(hn::Sub(costs[subset], least), hn::Set(d, int16_t{gain_shape::kLargestCost}));
      hn::Store(cost, d, subsets + subset * kLanes);
    }
  }

  HWY_INLINE V miss(V target, int32_t level) const {
    return hn::Abs(hn::Sub(target, hn::Load(D(), levels_ + level * kLanes)));
  }
  HWY_INLINE static V distance(V miss) {
    const auto seen = hn::Min(miss, hn::Set(D(), int16_t{gain_shape::kFarthestDistance}));
    return hn::ShiftRight<gain_shape::kCostShift>(hn::Mul(seen, seen));
  }

  /// Finds the first state of least cost.
  void find_best(int32_t slot, uint32_t* newest) const {
    const D d;
    auto best = hn::Zero(d);
    for (int32_t state = kStates - 1; state >= 0; --state) {
      const auto is_least = hn::Eq(hn::Load(d, costs_ + state * kLanes), hn::Zero(d));
      best = hn::IfThenElse(is_least, hn::Set(d, static_cast<int16_t>(state)), best);
    }
    for (int32_t bit = 0; bit < kMemory; ++bit) {
      const auto has_bit = hn::TestBit(best, hn::Set(d, static_cast<int16_t>(1 << bit)));
      hn::StoreMaskBits(d, has_bit, reinterpret_cast<uint8_t*>(newest + kMemory - 1 - bit) + slot / 8);
    }
  }

  HWY_INLINE static hn::Mask<D> mask_of(const uint32_t* word, int32_t slot) {
    return hn::LoadMaskBits(D(), reinterpret_cast<const uint8_t*>(word) + slot / 8);
  }

  /// Makes all states but the one at the seam too expensive.
  void start_at(int32_t slot, const uint32_t* seam) {
    const D d;
    auto start = hn::Zero(d);
    for (int32_t bit = 0; bit < kMemory; ++bit) {
      const auto value = hn::Set(d, static_cast<int16_t>(1 << bit));
      start = hn::Or(start, hn::IfThenElseZero(mask_of(seam + kMemory - 1 - bit, slot), value));
    }
    for (int32_t state = 0; state < kStates; ++state) {
      const auto is_start = hn::Eq(start, hn::Set(d, static_cast<int16_t>(state)));
      const auto cost = hn::IfThenZeroElse(is_start, hn::Set(d, int16_t{gain_shape::kImpossible}));
      hn::Store(cost, d, costs_ + state * kLanes);
    }
  }

  /// Traces back from the path's end to walk step `begin`.
  void trace(int32_t begin) {
    for (int32_t i = length_ - 1; i >= begin; --i) path_[i] = chosen_word(decisions_ + i * kStates, newest(i + 1));
  }

  /// Chooses codes and levels of all values once their highest bits are known.
  void choose_codes(int32_t slot, const int16_t* in_use, uint8_t* codes) {
    const D d;
    const hn::Rebind<uint8_t, D> d8;
    const auto used = hn::Load(d, in_use + slot);
    for (int32_t i = 0; i < length_; ++i) {
      const int32_t channel = channels_[i];
      const uint32_t* bits = path_ + kMemory + i;  // the value's bits, preceded by those of the values before
      auto code = hn::IfThenElseZero(mask_of(bits, slot), hn::Set(d, int16_t{1 << (kBits - 1)}));
      if (channel < dim_) {
        int16_t* target = row(channel) + slot;
        const auto near = nearest_level(hn::Load(d, target), find_entries(bits, slot));
        hn::Store(near.level, d, target);
        code = hn::Or(code, near.other);
      }
      hn::Store(hn::DemoteTo(d8, hn::And(code, used)), d8, codes + channel * kPageSlots + slot);
    }
  }

  /// Indices into a table of 8 levels for each slot's subset, in bytes.
  HWY_INLINE static V find_entries(const uint32_t* bits, int32_t slot) {
    const D d;
    const uint32_t parities[gain_shape::kParities + kBeyond] = {bits[-1] ^ bits[-4], bits[-2] ^ bits[-4] ^ bits[-5],
                                                                bits[0] ^ bits[-4] ^ bits[-6]};
    auto entries = hn::Set(d, int16_t{0x0100});
    for (int parity = 0; parity < gain_shape::kParities; ++parity) {
      const auto value = hn::Set(d, static_cast<int16_t>(0x0202 << parity));
      entries = hn::Or(entries, hn::IfThenElseZero(mask_of(parities + parity, slot), value));
    }
    return entries;
  }

  struct Level {
    V level;
    V other;  // code bits below the highest
  };
  HWY_INLINE static Level nearest_level(V target, V entries) {
    const D d;
    Level best{level_at<0>(entries), hn::Zero(d)};
    auto least = distance(hn::Abs(hn::Sub(target, best.level)));
    if constexpr (kBits > 1) choose_nearer<1>(target, entries, best, least);
    return best;
  }
  template <int kOther>
  HWY_INLINE static void choose_nearer(V target, V entries, Level& best, V& least) {
    const D d;
    const auto level = level_at<kOther>(entries);
    const auto each = distance(hn::Abs(hn::Sub(target, level)));
    const auto nearer = hn::Lt(each, least);
    best.level = hn::IfThenElse(nearer, level, best.level);
    best.other = hn::IfThenElse(nearer, hn::Set(d, int16_t{kOther}), best.other);
    least = hn::Min(least, each);
    if constexpr (kOther + 1 < kOthers) choose_nearer<kOther + 1>(target, entries, best, least);
  }
  template <int kOther>
  HWY_INLINE static V level_at(V entries) {
    HWY_ALIGN static constexpr std::array<int16_t, kSubsets> kTable = wide_levels(kOther);
    return hn::TableLookupBytes(hn::LoadDup128(D(), kTable.data()), entries);
  }
  static constexpr std::array<int16_t, kSubsets> wide_levels(int32_t other) {
    std::array<int16_t, kSubsets> wide{};
    for (int32_t i = 0; i < kSubsets; ++i) {
      wide[static_cast<size_t>(i)] = int16_t{gain_shape::levels(kBits)[kSubsets * other + i]};
    }
    return wide;
  }

  HWY_ALIGN_MAX int16_t levels_[kSubsets * kOthers * kLanes];
  HWY_ALIGN_MAX int16_t costs_[kStates * kLanes];
  int16_t* targets_;     // [channels][slots]
  uint32_t* decisions_;  // [steps][states]
  const int32_t length_;
  const int32_t dim_;
  uint16_t channels_[gain_shape::kMaxChain];  // channel of each step
  uint32_t path_[gain_shape::kMaxChain + kMemory + kBeyond];
};

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
