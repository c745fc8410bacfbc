// Trellis path search with one token per lane: formats/gain_shape/trellis_search.cpp with two states per register.
//
// Costs are doubled, and the lowest bit is set where a path's oldest bit is 1: a minimum then resolves ties towards an
// oldest bit of 0, and its lowest bit is the decision.
#pragma once

#include "formats/gain_shape/trellis_search.h"
#include "kernels/pages/records.h"

#include <utility>

namespace kvq::cuda {

/// Doubled costs of the subsets of levels for every target: pairs of subsets p and p ^ 2, for p = 0, 1, 4 and 5.
inline constexpr int32_t kCostEntries = 2 * gain_shape::kFarthestTarget + 2;
inline constexpr int32_t kNoTargetEntry = kCostEntries - 1;

/// Element of a host constexpr array at a run-time index: device code cannot address the array.
template <const auto& kArray, size_t... kI>
__device__ __forceinline__ int32_t element_of(int32_t index, std::index_sequence<kI...> /*all*/) {
  int32_t result = 0;
  (
      [&] {
        constexpr auto kEach = static_cast<int32_t>(kArray[kI]);
        if (index == static_cast<int32_t>(kI)) result = kEach;
      }(),
      ...);
  return result;
}

__device__ __forceinline__ int32_t level_at(int32_t bits, int32_t index) {
  if (bits == 1) return element_of<gain_shape::kLevels1>(index, std::make_index_sequence<8>());
  if (bits == 2) return element_of<gain_shape::kLevels2>(index, std::make_index_sequence<16>());
  return element_of<gain_shape::kLevels3>(index, std::make_index_sequence<32>());
}

/// Fills the table with all threads of a block; a barrier must follow. `levels`: shared memory for 32 values.
__device__ inline void fill_costs(int32_t bits, int32_t thread, int32_t threads, int32_t* levels, uint4* costs) {
  using namespace gain_shape;
  const int32_t others = 1 << (bits - 1);
  if (thread < kSubsets * others) levels[thread] = level_at(bits, thread);
  __syncthreads();
  for (int32_t i = thread; i < kCostEntries; i += threads) {
    uint32_t of_subset[kSubsets];
    int32_t best = kLargestCost * 64;
#pragma unroll
    for (int32_t subset = 0; subset < kSubsets; ++subset) {
      int32_t least = kLargestCost * 64;
      for (int32_t other = 0; other < others; ++other) {
        least = min(least, distance(i - kFarthestTarget, levels[kSubsets * other + subset]));
      }
      of_subset[subset] = static_cast<uint32_t>(least);
      best = min(best, least);
    }
#pragma unroll
    for (uint32_t& each : of_subset) {
      each =
          i == kNoTargetEntry ? 0U : 2U * min(each - static_cast<uint32_t>(best), static_cast<uint32_t>(kLargestCost));
    }
    const auto pair = [&](int32_t p) { return of_subset[p] | of_subset[p ^ 2] << 16U; };
    costs[i] = make_uint4(pair(0), pair(1), pair(4), pair(5));
  }
}

/// Places of a token's values in its chain.
class ChainPlaces {
 public:
  __device__ ChainPlaces(bool keys, int32_t bits, int32_t head_dim)
      : keys_(keys),
        plane_bits_(bits == 2 ? 2 : 1),
        vectors_(value_lanes(head_dim) / 16),
        reciprocal_(static_cast<uint32_t>((0x100000000ULL + static_cast<uint32_t>(vectors_) - 1) /
                                          static_cast<uint32_t>(vectors_))),
        length_(keys ? (head_dim * plane_bits_ + 31) / 32 * (32 / plane_bits_) : value_lanes(head_dim)) {}

  __device__ int32_t length() const { return length_; }
  /// Equals gain_shape::Chain's, without division.
  __device__ int32_t channel(int32_t step) const {
    if (!keys_) {
      const int32_t lane =
          vectors_ == 1 ? step : static_cast<int32_t>(__umulhi(static_cast<uint32_t>(step), reciprocal_));
      return 16 * (step - lane * vectors_) + lane;
    }
    const int32_t field_shift = plane_bits_ == 2 ? 2 : 3;
    const int32_t within = step & (32 / plane_bits_ - 1);
    return step - within + 4 * (within & ((1 << field_shift) - 1)) + (within >> field_shift);
  }

 private:
  bool keys_;
  int32_t plane_bits_;
  int32_t vectors_;
  uint32_t reciprocal_;
  int32_t length_;
};

/// Costs of all states: states j and j + 32 share a register.
struct StateCosts {
  static constexpr int32_t kPairs = gain_shape::kStates / 2;
  uint32_t of[kPairs];

  __device__ __forceinline__ void fill(uint32_t cost) {
#pragma unroll
    for (uint32_t& each : of) each = 2 * cost * 0x10001U;
  }
  __device__ __forceinline__ void set_zero(uint32_t state) {
#pragma unroll
    for (uint32_t j = 0; j < kPairs; ++j) {
      if (state == j) of[j] &= 0xFFFF0000U;
      if (state == j + kPairs) of[j] &= 0x0000FFFFU;
    }
  }

  /// Advances by one value with these subset costs. Returns the decisions: states j and j + 32 at bits 15 − j % 16 and
  /// 31 − j % 16 of word j / 16.
  __device__ __forceinline__ uint2 step(const uint4& costs) {
    // Subset p, with p ^ 2 in the upper half; below, the same for an oldest bit of 1.
    const uint32_t of_zero[8] = {costs.x, costs.y, swap(costs.x), swap(costs.y),
                                 costs.z, costs.w, swap(costs.z), swap(costs.w)};
    uint32_t of_one[8];
#pragma unroll
    for (int32_t p = 0; p < 8; ++p) of_one[p] = of_zero[p] + 0x10001U;
    uint32_t next[kPairs];
    uint32_t decisions[2] = {0, 0};
#pragma unroll
    for (uint32_t a = 0; a < kPairs / 2; ++a) {
      // Predecessors a and a + 16, and those 32 above them.
      const uint32_t zero = __byte_perm(of[a], of[a + kPairs / 2], 0x5410);
      const uint32_t one = __byte_perm(of[a], of[a + kPairs / 2], 0x7632);
#pragma unroll
      for (uint32_t newest = 0; newest < 2; ++newest) {
        const uint32_t state = 2 * a + newest;
        const auto subset = static_cast<uint32_t>(gain_shape::parities(state));
        const uint32_t through_one = one + of_one[subset ^ 4U];  // neither half of a word overflows
        const uint32_t best = __viaddmin_u16x2(zero, of_zero[subset], through_one);
        const uint32_t decision = best & 0x10001U;
        decisions[state / 16] = decisions[state / 16] * 2 + decision;
        next[state] = best - decision;
      }
    }
#pragma unroll
    for (int32_t j = 0; j < kPairs; ++j) of[j] = next[j];
    return make_uint2(decisions[0], decisions[1]);
  }

  __device__ __forceinline__ void rest() {
    uint32_t least = of[0];
#pragma unroll
    for (int32_t j = 1; j < kPairs; ++j) least = __vminu2(least, of[j]);
    least = min(least & 0xFFFFU, least >> 16U) * 0x10001U;
#pragma unroll
    for (uint32_t& each : of) each -= least;
  }

  /// First of the states with the least cost.
  __device__ __forceinline__ uint32_t best() const {
    uint32_t key = 0xFFFFFFFFU;
#pragma unroll
    for (uint32_t j = 0; j < kPairs; ++j) {
      key = min(key, (of[j] & 0xFFFFU) << 6U | j);
      key = min(key, (of[j] >> 16U) << 6U | (j + kPairs));
    }
    return key & 63U;
  }

 private:
  __device__ __forceinline__ static uint32_t swap(uint32_t pair) { return __byte_perm(pair, pair, 0x1032); }
};
static_assert(gain_shape::parities(32) == 2 && gain_shape::parities(64) == 4, "pairs of states, and of oldest bits");

/// Finds the path of one token, whose chain is a multiple of kRestSteps long. `target(step)` is an index into `costs`;
/// `decisions` has a word per step, `stride` apart; `found(step, window)` receives the register at each value, from
/// last to first.
template <typename Target, typename Found>
__device__ void find_path(int32_t n, const uint4* costs, uint2* decisions, int32_t stride, const Target& target,
                          const Found& found) {
  using namespace gain_shape;
  StateCosts states;
  uint32_t seam = 0;
  const auto window = [&](int32_t i, uint32_t state) {
    const uint2 words = decisions[i * stride];
    const uint32_t word = (state & 16U) != 0 ? words.y : words.x;
    const uint32_t bit = word >> (15U - (state & 15U) + (state >> 5U) * 16U) & 1U;
    return state | bit << kMemory;
  };
  const int32_t half = n / 2;
#pragma unroll 1
  for (int32_t pass = 0; pass < 2; ++pass) {
    const int32_t first = pass == 0 ? half : 0;
    states.fill(pass == 0 ? 0U : static_cast<uint32_t>(kImpossible));
    if (pass == 1) states.set_zero(seam);
#pragma unroll 1
    for (int32_t begin = 0; begin < n; begin += kRestSteps) {
      // Unrolling by two saves moves between the state registers.
#pragma unroll 2
      for (int32_t i = begin; i < begin + kRestSteps; ++i) {
        const int32_t at = first + i < n ? first + i : first + i - n;
        decisions[i * stride] = states.step(costs[target(at)]);
      }
      states.rest();
    }
    if (pass == 1) break;
    seam = states.best();
    for (int32_t i = n; i > n - half; --i) seam = window(i - 1, seam) >> 1U;
  }
  uint32_t state = seam;
  for (int32_t i = n; i > 0; --i) {
    const uint32_t bits = window(i - 1, state);
    found(i - 1, bits);
    state = bits >> 1U;
  }
}

}  // namespace kvq::cuda
