// Cheapest path of a tile, identical to the host's (trellis_search.h): the same sums in the same order, and the same
// state among equals.
#pragma once

#include "kernels/device/warp.cuh"
#include "kernels/quantize/trellis_states.cuh"

#include <cfloat>
#include <cstdint>

namespace kvq::cuda {

inline constexpr float kNever = 1.0e30F;  // the host's constant
inline constexpr int32_t kMostTreeStates = 1024;
/// Maximum states that one thread compares.
inline constexpr int32_t kMostOwnChoices = 32;

/// Shared memory beside the costs of groups.
struct SearchState {
  float targets[weights::kTileWeights];  // [dims][steps]
  uint16_t path[weights::kTileWeights];
  Placed of_warps[kSearchThreads / kWarpLanes];
  uint32_t zero;
};

/// States that a path may pass between two kept steps, level by level: the states of a step are indexed by their newest
/// bits, and start at the index that equals their count.
struct PathTree {
  float costs[2 * kMostTreeStates];
  uint16_t choices[kMostTreeStates];  // newest bits of the best next state
};

/// Returns the block's minimum to every thread.
__device__ inline Placed first_of_block(Placed mine, Placed* of_warps) {
  mine = first_of_lanes(mine);
  if (threadIdx.x % kWarpLanes == 0) of_warps[threadIdx.x / kWarpLanes] = mine;
  __syncthreads();
  mine = first_of_lanes(of_warps[threadIdx.x % kWarpLanes]);
  __syncthreads();
  return mine;
}

template <typename Trellis>
class TrellisSearch {
 public:
  /// \param costs  of groups after even and after odd steps, or a PathTree.  \param kept  [kKeptSteps][groups(1)]
  __device__ TrellisSearch(const weights::Codebook& codebook, const OwnStates<Trellis>& states, SearchState& shared,
                           float* costs, float* kept)
      : codebook_(codebook),
        states_(states),
        shared_(shared),
        even_(costs),
        odd_(costs + Trellis::groups(0)),
        tree_(*reinterpret_cast<PathTree*>(costs)),
        kept_(kept) {}

  /// Finds the path for shared.targets.
  __device__ void run() {
    constexpr int32_t kHalf = Trellis::kSteps / 2;
    pass(kHalf, -1, kHalf);
    const uint32_t seam = trace(kHalf, best_start());
    pass(0, static_cast<int32_t>(seam), Trellis::kSteps);
    trace(Trellis::kSteps - 1, seam);
  }

 private:
  static constexpr int32_t kSteps = Trellis::kSteps;

  /// Computes costs from the last step of a rotation by `first` back to its first step; keeps those that traces up to
  /// step `traced` need.
  __device__ void pass(int32_t first, int32_t end, int32_t traced) {
    first_ = first;
    end_ = end;
    for (auto group = static_cast<int32_t>(threadIdx.x); group < Trellis::groups(1); group += kSearchThreads) {
      odd_[group] = last_cost(static_cast<uint32_t>(group));
    }
    __syncthreads();
    for (int32_t i = kSteps - 2;; i -= 2) {
      states_.template step<0>(target(i + 1), odd_, even_, kept(i, traced));
      __syncthreads();
      if (i == 0) break;
      states_.template step<1>(target(i), even_, odd_, kept(i - 1, traced));
      __syncthreads();
    }
  }

  /// Destination of the kept costs of groups after step i of the pass, or null.
  __device__ float* kept(int32_t i, int32_t traced) const {
    const bool is_kept = i % Trellis::kKept == 1 % Trellis::kKept && i > 0 && i < traced + Trellis::kKept;
    return is_kept ? kept_ + static_cast<int64_t>(i - 1) / Trellis::kKept * Trellis::groups(1) : nullptr;
  }
  /// Cost after the last step: only the group of the required final state is free.
  __device__ float last_cost(uint32_t group) const {
    const uint32_t wanted = static_cast<uint32_t>(end_) % static_cast<uint32_t>(Trellis::groups(1));
    return end_ < 0 || group == wanted ? 0.0F : kNever;
  }

  __device__ Target target(int32_t i) const {
    const int32_t step = (first_ + i) % kSteps;
    return {shared_.targets[step], Trellis::kDims == 2 ? shared_.targets[kSteps + step] : 0.0F, shared_.zero};
  }
  __device__ float miss(uint32_t state, const Target& target) const {
    const float miss = square(target.x - codebook_.unit * static_cast<float>(level_of(codebook_, state, 0)));
    if (Trellis::kDims == 1) return miss;
    return miss + square(target.y - codebook_.unit * static_cast<float>(level_of(codebook_, state, 1)));
  }

  /// First state of the cheapest path; the host breaks ties by the lowest state with its bytes swapped.
  __device__ uint32_t best_start() {
    Placed best{FLT_MAX, 0};
    const Target wanted = target(0);
    for (uint32_t state = threadIdx.x; state < weights::kStates; state += kSearchThreads) {
      const Placed each{miss(state, wanted) + even_[state >> Trellis::shift(0)],
                        static_cast<int32_t>((state & 255U) << 8U | state >> 8U)};
      if (comes_before(each, best)) best = each;
    }
    const auto place = static_cast<uint32_t>(first_of_block(best, shared_.of_warps).place);
    return (place & 255U) << 8U | place >> 8U;
  }

  /// Follows the cheapest path from a state of the pass's first step, and returns its state `until` steps later.
  __device__ uint32_t trace(int32_t until, uint32_t state) {
    if (threadIdx.x == 0) shared_.path[0] = static_cast<uint16_t>(state);
    for (int32_t from = 0; from < until;) {
      const int32_t to = from == 0 ? 1 : min(from + Trellis::kKept, kSteps - 1);
      if constexpr (Trellis::kTops > kMostOwnChoices) {
        state = best_next(to, state);
        if (threadIdx.x == 0) shared_.path[to] = static_cast<uint16_t>(state);
      } else {
        grow_tree(from, to, state);
        state = walk_tree(from, to, until, state);
      }
      from = to;
    }
    __syncthreads();
    return state;
  }

  /// Successor number `number` of a state after `bits` new bits.
  static __device__ uint32_t later(uint32_t state, int32_t bits, uint32_t number) {
    return state >> bits | number << (weights::kStateBits - bits);
  }
  static __device__ int32_t bits_between(int32_t from, int32_t to) {
    return Trellis::first_bit(to) - Trellis::first_bit(from);
  }
  /// Cost of the cheapest path from a state of a kept step, or of the last step.
  __device__ float kept_cost(int32_t i, uint32_t state) const {
    const uint32_t group = state >> Trellis::shift(1);
    const float after = i == kSteps - 1
                            ? last_cost(group)
                            : kept_[static_cast<int64_t>(i - 1) / Trellis::kKept * Trellis::groups(1) + group];
    return miss(state, target(i)) + after;
  }

  /// For codes with many successors per state: compares those of one step in parallel.
  __device__ uint32_t best_next(int32_t to, uint32_t state) {
    Placed best{FLT_MAX, 0};
    const uint32_t number = threadIdx.x;
    if (number < Trellis::kTops) {
      best = {kept_cost(to, later(state, Trellis::kShift, number)), static_cast<int32_t>(number)};
    }
    return later(state, Trellis::kShift, static_cast<uint32_t>(first_of_block(best, shared_.of_warps).place));
  }

  __device__ void grow_tree(int32_t from, int32_t to, uint32_t state) {
    const uint32_t number = threadIdx.x;
    const int32_t all = bits_between(from, to);
    if (number < 1U << all) tree_.costs[(1U << all) + number] = kept_cost(to, later(state, all, number));
    __syncthreads();
    for (int32_t i = to - 1; i >= from; --i) {
      const int32_t bits = bits_between(from, i);
      if (number < 1U << bits) {
        const float least = choose(i, bits, number);
        if (i > from) tree_.costs[(1U << bits) + number] = miss(later(state, bits, number), target(i)) + least;
      }
      __syncthreads();
    }
  }
  /// Stores the best successor of state `number` of step i, and returns its cost.
  __device__ float choose(int32_t i, int32_t bits, uint32_t number) {
    const int32_t next = Trellis::shift(i);
    const float* following = tree_.costs + (1U << (bits + next)) + number;
    float least = FLT_MAX;
    uint32_t choice = 0;
    for (uint32_t newest = 0; newest < 1U << next; ++newest) {
      const float cost = following[newest << bits];
      if (cost < least) choice = newest;
      least = fminf(least, cost);
    }
    tree_.choices[(1U << bits) + number] = static_cast<uint16_t>(choice);
    return least;
  }
  __device__ uint32_t walk_tree(int32_t from, int32_t to, int32_t until, uint32_t state) {
    uint32_t number = 0;
    const int32_t last = min(to, until);
    for (int32_t i = from; i < last; ++i) {
      const int32_t bits = bits_between(from, i);
      number |= static_cast<uint32_t>(tree_.choices[(1U << bits) + number]) << bits;
      if (threadIdx.x == 0) {
        shared_.path[i + 1] = static_cast<uint16_t>(later(state, bits_between(from, i + 1), number));
      }
    }
    return later(state, bits_between(from, last), number);
  }

  const weights::Codebook& codebook_;
  const OwnStates<Trellis>& states_;
  SearchState& shared_;
  float* even_;
  float* odd_;
  PathTree& tree_;
  float* kept_;
  int32_t first_ = 0;
  int32_t end_ = -1;
};

}  // namespace kvq::cuda
