// Distribution of a trellis' 2^16 states over the threads of a block, and a step of the search (trellis_search.h).
//
// The minimum over states in a step is bound by instruction issue. With one weight per step, a state takes a
// difference, a square, a sum and, except for the first of a group, a comparison. Two measures reduce this:
//
// - States x and −addend − x have the same hash x · (x + addend), hence the same level and error: one thread takes
// both.
// - Only costs are computed, without back pointers: costs of every few steps are kept, and the trace recomputes the
//   few states that it may pass.
//
// With two bits per step, 1 + 1 + 3/4 instructions per state remain, with a shared-memory load per four states and 1/16
// of a store. One-dimensional levels stay in registers as floats; two-dimensional ones are too many and stay as bytes.
#pragma once

#include "kernels/quantize/quantize.h"

#include <cfloat>
#include <cstdint>

namespace kvq::cuda {

inline constexpr int32_t kSearchThreads = 1024;
inline constexpr uint32_t kStateMask = weights::kStates - 1;
/// Pairs of states with a common level per thread.
inline constexpr int32_t kOwnPairs = weights::kStates / 2 / kSearchThreads;

/// \tparam kRun  consecutive states of a thread; their mirror images must begin at a multiple of it.
template <weights::Code kCode, int32_t kRun>
struct Trellis {
  static constexpr weights::Code kOf = kCode;
  static constexpr int32_t kRunStates = kRun;
  static constexpr int32_t kDims = kCode.dims();
  static constexpr int32_t kSteps = kCode.steps();

  static constexpr int32_t first_bit(int32_t step) { return kCode.first_bit(step); }
  /// New bits of the step after `step`. Quarter-bit widths alternate between steps.
  static constexpr int32_t shift(int32_t step) { return first_bit(step % 2 + 1) - first_bit(step % 2); }
  static constexpr int32_t groups(int32_t step) { return weights::kStates >> shift(step); }

  static constexpr int32_t kShift = shift(1);
  static constexpr bool kTakesTurns = shift(0) != shift(1);
  static_assert(shift(0) == kShift || shift(0) + 1 == kShift);

  /// States that differ only in their newest bits; several lanes share the states of a group if there are many.
  static constexpr int32_t kTops = 1 << kShift;
  static constexpr int32_t kLow = weights::kStates / kTops;
  static constexpr int32_t kLanes = kTops > kOwnPairs ? kTops / kOwnPairs : 1;
  static constexpr int32_t kOwnTops = kTops / kLanes;
  static constexpr int32_t kRuns = kOwnPairs / kOwnTops / kRun;
  static_assert(kRuns * kOwnTops * kRun == kOwnPairs && kRun <= 1 << shift(0));

  /// Costs are kept at steps 1, 1 + kKept, …; between these, a path is in one of at most 1024 states.
  static constexpr int32_t kKept = 10 / kShift + (kTakesTurns ? 10 / kShift % 2 : 0);
  static_assert(first_bit(kKept) <= 10 && (!kTakesTurns || kKept % 2 == 0));
  static constexpr int32_t kKeptSteps = (kSteps - 3) / kKept + 1;
};

/// Target values of a step; `y` is the second dimension.
struct Target {
  float x;
  float y;
  /// A zero unknown to the compiler. Adding it keeps dependent computations inside the step: hoisted, they would exceed
  /// the registers.
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
  /// A byte inserted below the bits of 2^23 becomes a float.
  static __device__ __forceinline__ float level(uint32_t word, int32_t byte) {
    constexpr float kOffset = 8388608.0F + static_cast<float>(weights::kZeroPoint);
    return __uint_as_float(__byte_perm(word, 0x4B000000U, 0x7540U + static_cast<uint32_t>(byte))) - kOffset;
  }

  uint32_t words_[kOwnPairs / 2];
};

/// States of a thread: runs and their mirror images, which have the same levels.
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

  /// costs[g] = min over the states x of group g of next[x >> shift of their step] + their error. `kStep`: parity of
  /// the step whose costs are computed. `kept`: second destination of the costs, or null.
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

  /// Costs of groups of neighbouring states.
  template <int32_t kOutputs>
  struct Costs {
    float of[kOutputs][kRun];
  };

  /// First state of a run for the lane's first top. Runs and their mirror images divide the states below kLow: the
  /// mirror images end where the runs begin.
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
    constexpr uint32_t kBetween = kStride >> kUp;  // distance of the costs after two successive tops
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
