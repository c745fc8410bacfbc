// How the 2^16 states of a trellis are shared by the threads of a block, and a step of a search (trellis_search.h).
//
// A step's minimum over states is bound by instructions. Of a code of one weight a step, a state takes a difference, a
// square, a sum and, but for the first of a group, a comparison. Two things make that fewer:
//
// - States x and −addend − x have the same hash x · (x + addend), so the same level and miss: a thread takes both.
// - Costs alone are computed, not whence they come: costs of every few steps are kept, and the way back computes the
//   few states again that it may pass.
//
// With two bits a step that leaves 1 + 1 + 3/4 instructions a state, a load from shared memory for four states, and
// 1/16 of a store. Levels of one dimension stay in registers as floats. Of two there are too many, so they are bytes
// there.
#pragma once

#include "kernels/quantize/quantize.h"

#include <cfloat>
#include <cstdint>

namespace kvq::cuda {

inline constexpr int32_t kSearchThreads = 1024;
inline constexpr uint32_t kStateMask = weights::kStates - 1;
/// Pairs of states that share a level, of a thread.
inline constexpr int32_t kOwnPairs = weights::kStates / 2 / kSearchThreads;

/// \tparam kRun  successive states that a thread has; their counterparts must begin at a multiple of it.
template <weights::Code kCode, int32_t kRun>
struct Trellis {
  static constexpr weights::Code kOf = kCode;
  static constexpr int32_t kRunStates = kRun;
  static constexpr int32_t kDims = kCode.dims();
  static constexpr int32_t kSteps = kCode.steps();

  static constexpr int32_t first_bit(int32_t step) { return kCode.first_bit(step); }
  /// New bits of the step after one. Widths in quarters of a bit take turns.
  static constexpr int32_t shift(int32_t step) { return first_bit(step % 2 + 1) - first_bit(step % 2); }
  static constexpr int32_t groups(int32_t step) { return weights::kStates >> shift(step); }

  static constexpr int32_t kShift = shift(1);
  static constexpr bool kTakesTurns = shift(0) != shift(1);
  static_assert(shift(0) == kShift || shift(0) + 1 == kShift);

  /// States that differ in their newest bits alone. Several lanes share those of a group if there are many.
  static constexpr int32_t kTops = 1 << kShift;
  static constexpr int32_t kLow = weights::kStates / kTops;
  static constexpr int32_t kLanes = kTops > kOwnPairs ? kTops / kOwnPairs : 1;
  static constexpr int32_t kOwnTops = kTops / kLanes;
  static constexpr int32_t kRuns = kOwnPairs / kOwnTops / kRun;
  static_assert(kRuns * kOwnTops * kRun == kOwnPairs && kRun <= 1 << shift(0));

  /// Steps whose costs are kept: 1, 1 + kKept, … After so many a path is in one of at most 1024 states.
  static constexpr int32_t kKept = 10 / kShift + (kTakesTurns ? 10 / kShift % 2 : 0);
  static_assert(first_bit(kKept) <= 10 && (!kTakesTurns || kKept % 2 == 0));
  static constexpr int32_t kKeptSteps = (kSteps - 3) / kKept + 1;
};

/// What a step aims at; `y` of a second dimension.
struct Target {
  float x;
  float y;
  /// 0, which the compiler does not know. What follows from a number with this added is not computed before all steps:
  /// it would take registers that there are not.
  uint32_t zero;
};

__device__ __forceinline__ float square(float miss) { return miss * miss; }

template <int32_t kDims>
class OwnLevels;

template <>
class OwnLevels<1> {
 public:
  __device__ __forceinline__ void set(int32_t i, const weights::Codebook& codebook, uint32_t state) {
    values_[i] = codebook.unit * static_cast<float>(level_of(codebook, state, 0));
  }
  __device__ __forceinline__ float miss(int32_t i, const Target& target, float /*unit*/) const {
    return square(target.x - values_[i]);
  }

 private:
  float values_[kOwnPairs];
};

template <>
class OwnLevels<2> {
 public:
  __device__ __forceinline__ void set(int32_t i, const weights::Codebook& codebook, uint32_t state) {
    uint32_t bytes = 0;
    for (int32_t dim = 0; dim < 2; ++dim) {
      bytes |= static_cast<uint32_t>(level_of(codebook, state, dim) + weights::kZeroPoint) << (8 * dim);
    }
    words_[i / 2] = i % 2 == 0 ? bytes : words_[i / 2] | bytes << 16U;
  }
  __device__ __forceinline__ float miss(int32_t i, const Target& target, float unit) const {
    const uint32_t word = words_[i / 2] + target.zero;
    const float first = square(target.x - unit * level(word, i % 2 * 2));
    return first + square(target.y - unit * level(word, i % 2 * 2 + 1));
  }

 private:
  /// A byte below the bits of 2^23 is a float.
  static __device__ __forceinline__ float level(uint32_t word, int32_t byte) {
    constexpr float kOffset = 8388608.0F + static_cast<float>(weights::kZeroPoint);
    return __uint_as_float(__byte_perm(word, 0x4B000000U, 0x7540U + static_cast<uint32_t>(byte))) - kOffset;
  }

  uint32_t words_[kOwnPairs / 2];
};

/// The states of a thread: runs, and what shares their levels.
template <typename Trellis>
class OwnStates {
 public:
  __device__ explicit OwnStates(const weights::Codebook& codebook) : unit_(codebook.unit), addend_(codebook.addend) {
#pragma unroll
    for (int32_t i = 0; i < kOwnPairs; ++i) {
      const int32_t run = i / (Trellis::kOwnTops * Trellis::kRunStates);
      const int32_t top = i / Trellis::kRunStates % Trellis::kOwnTops;
      levels_.set(i, codebook, at(first(run), top) + static_cast<uint32_t>(i % Trellis::kRunStates));
    }
  }

  /// costs[g] = min over the states x of group g of next[x >> shift of their step] + their miss. `kStep`: 0 or 1, as
  /// the step that the costs are of is even or odd. `kept`: where the costs go, too, or null.
  template <int32_t kStep>
  __device__ __forceinline__ void step(const Target& target, const float* next, float* costs, float* kept) const {
    constexpr int32_t kOutputs = Trellis::kTops >> Trellis::shift(kStep);
    constexpr uint32_t kGroups = Trellis::groups(kStep);
#pragma unroll
    for (int32_t run = 0; run < Trellis::kRuns; ++run) {
      Costs<kOutputs> own;
      Costs<kOutputs> mirrored;
      visit<kStep>(run, target, next, own, mirrored);
      if (Trellis::kLanes > 1) {
        across_lanes(own);
        across_lanes(mirrored);
        if (threadIdx.x % Trellis::kLanes != 0) continue;
      }
#pragma unroll
      for (int32_t i = 0; i < kOutputs; ++i) {
        store(own.of[i], at(first(run), i) % kGroups, costs, kept);
        store(mirrored.of[i], mirror_at(mirror(run), i) % kGroups, costs, kept);
      }
    }
  }

 private:
  static constexpr int32_t kRun = Trellis::kRunStates;
  static constexpr uint32_t kStride = Trellis::kLanes * Trellis::kLow;

  /// Of groups of neighbours.
  template <int32_t kOutputs>
  struct Costs {
    float of[kOutputs][kRun];
  };

  /// The first state of a run, of the lane's first top. Runs and their counterparts share the states below kLow: the
  /// counterparts end where runs begin.
  __device__ __forceinline__ uint32_t first(int32_t run) const {
    constexpr uint32_t kTogether = kSearchThreads / Trellis::kLanes;
    const uint32_t number = static_cast<uint32_t>(run) * kTogether + threadIdx.x / Trellis::kLanes;
    const uint32_t lane = threadIdx.x % Trellis::kLanes;
    return ((1U - addend_) / 2U + number * kRun) % Trellis::kLow + lane * Trellis::kLow;
  }
  __device__ __forceinline__ uint32_t mirror(int32_t run) const { return 0U - addend_ - first(run) - (kRun - 1U); }
  static __device__ __forceinline__ uint32_t at(uint32_t first, int32_t top) {
    return first + static_cast<uint32_t>(top) * kStride;
  }
  static __device__ __forceinline__ uint32_t mirror_at(uint32_t mirror, int32_t top) {
    return (mirror - static_cast<uint32_t>(top) * kStride) & kStateMask;
  }

  template <int32_t kStep, int32_t kOutputs>
  __device__ __forceinline__ void visit(int32_t run, const Target& target, const float* next, Costs<kOutputs>& own,
                                        Costs<kOutputs>& mirrored) const {
    constexpr int32_t kUp = Trellis::shift(kStep + 1);
    constexpr uint32_t kBetween = kStride >> kUp;  // costs that follow two tops
    const float* follows = next + (first(run) >> kUp);
    const uint32_t mirror_follows = ((mirror(run) & kStateMask) >> kUp) + target.zero;
#pragma unroll
    for (int32_t top = 0; top < Trellis::kOwnTops; ++top) {
      const float after = follows[static_cast<uint32_t>(top) * kBetween];
      const float mirror_after = next[(mirror_follows - static_cast<uint32_t>(top) * kBetween) & (kStateMask >> kUp)];
#pragma unroll
      for (int32_t i = 0; i < kRun; ++i) {
        const float miss = levels_.miss((run * Trellis::kOwnTops + top) * kRun + i, target, unit_);
        take_least(top < kOutputs, miss + after, own.of[top % kOutputs][i]);
        take_least(top < kOutputs, miss + mirror_after, mirrored.of[top % kOutputs][kRun - 1 - i]);
      }
    }
  }
  static __device__ __forceinline__ void take_least(bool is_first, float cost, float& least) {
    least = is_first ? cost : fminf(least, cost);
  }

  template <int32_t kOutputs>
  static __device__ __forceinline__ void across_lanes(Costs<kOutputs>& costs) {
#pragma unroll
    for (int32_t i = 0; i < kRun; ++i) {
#pragma unroll
      for (int32_t distance = 1; distance < Trellis::kLanes; distance *= 2) {
        costs.of[0][i] = fminf(costs.of[0][i], __shfl_xor_sync(0xFFFFFFFFU, costs.of[0][i], distance));
      }
    }
  }

  static __device__ __forceinline__ void store(const float (&from)[kRun], uint32_t group, float* costs, float* kept) {
    store(from, costs + group);
    if (kept != nullptr) store(from, kept + group);
  }
  static __device__ __forceinline__ void store(const float (&from)[kRun], float* to) {
    if constexpr (kRun == 4) {
      *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
    } else if constexpr (kRun == 2) {
      *reinterpret_cast<float2*>(to) = make_float2(from[0], from[1]);
    } else {
      *to = from[0];
    }
  }

  OwnLevels<Trellis::kDims> levels_;
  float unit_;
  uint32_t addend_;
};

}  // namespace kvq::cuda
