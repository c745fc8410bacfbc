#include "weights/trellis_search.h"

#include <algorithm>
#include <limits>

namespace kvq::weights {
namespace {

constexpr float kNever = 1.0e30F;  // cost of a forbidden path; sums of a few stay finite
constexpr size_t kPadding = 64;    // kernels read whole vectors where they need a part

constexpr int32_t shift_of(const Code& code, int32_t step) { return code.first_bit(step + 1) - code.first_bit(step); }
constexpr size_t groups_of(const Code& code, int32_t step) {
  return size_t{1} << static_cast<size_t>(kStateBits - shift_of(code, step));
}

/// Successive steps of a tile, whose last step is followed by its first.
class Pass {
 public:
  Pass(const Code& code, const StateLevels& levels, const TrellisKernels& kernels, std::span<const float> targets,
       std::span<float> work)
      : code_(code), levels_(levels), kernels_(kernels), targets_(targets), costs_(work) {}

  /// Search steps first, first + 1, … first + count − 1, backwards. `end`: the state after them, or −1 for any.
  void run(int32_t first, int32_t count, int32_t end) {
    first_ = first;
    count_ = count;
    end_ = end;
    size_t begin = 0;
    for (int32_t i = 0; i < count; ++i) {
      begins_[static_cast<size_t>(i)] = begin;
      begin += groups_of(code_, step(i));
    }
    const size_t groups = groups_of(code_, step(count - 1));
    float* last = costs(count - 1);
    std::fill_n(last, groups, end < 0 ? 0.0F : kNever);
    if (end >= 0) last[static_cast<size_t>(end) & (groups - 1)] = 0.0F;
    for (int32_t i = count - 2; i >= 0; --i) {
      const std::array<float, 2> target = target_of(i + 1);
      kernels_.step(levels_, target.data(), costs(i + 1), shift(i + 1), shift(i), costs(i));
    }
  }

  /// The first state of the cheapest path.
  int32_t best_start() const {
    constexpr int32_t kNewest = 8;  // bits: states that share the others are compared first
    std::array<float, (kStates >> kNewest)> groups;
    const std::array<float, 2> target = target_of(0);
    kernels_.step(levels_, target.data(), costs(0), shift(0), kNewest, groups.data());
    const auto group = static_cast<int32_t>(std::min_element(groups.begin(), groups.end()) - groups.begin());
    return best_of(0, group, kNewest);
  }

  /// Cost of the path from a state of step i on.
  float cost_of(int32_t i, int32_t state) const {
    if (i == count_) return end_ < 0 || state == end_ ? 0.0F : kNever;
    const std::array<float, 2> target = target_of(i);
    const auto at = static_cast<size_t>(state);
    float cost = 0.0F;
    for (size_t d = 0; d < static_cast<size_t>(code_.dims()); ++d) {
      const float miss = target[d] - levels_.levels[d][at];
      cost += miss * miss;
    }
    return cost + costs(i)[at >> static_cast<size_t>(shift(i))];
  }

  /// Next state on the cheapest path.
  int32_t next(int32_t i, int32_t state) const { return best_of(i + 1, state >> shift(i), shift(i)); }

 private:
  /// Best state of step i among those that differ from `group` only in their newest bits.
  int32_t best_of(int32_t i, int32_t group, int32_t newest) const {
    int32_t best = group;
    float best_cost = std::numeric_limits<float>::max();
    for (int32_t each = group; each < kStates; each += 1 << (kStateBits - newest)) {
      const float cost = cost_of(i, each);
      if (cost < best_cost) {
        best_cost = cost;
        best = each;
      }
    }
    return best;
  }

  int32_t step(int32_t i) const { return (first_ + i) % code_.steps(); }
  int32_t shift(int32_t i) const { return shift_of(code_, step(i)); }
  float* costs(int32_t i) const { return costs_.data() + begins_[static_cast<size_t>(i)]; }
  std::array<float, 2> target_of(int32_t i) const {
    const auto at = static_cast<size_t>(step(i));
    const auto steps = static_cast<size_t>(code_.steps());
    return {targets_[at], code_.dims() == 2 ? targets_[steps + at] : 0.0F};
  }

  const Code code_;
  const StateLevels& levels_;
  const TrellisKernels& kernels_;
  std::span<const float> targets_;
  std::span<float> costs_;                     // [count][groups of the step]
  std::array<size_t, kTileWeights> begins_{};  // of each step in costs_
  int32_t first_ = 0;
  int32_t count_ = 0;
  int32_t end_ = -1;
};

void write_bits(std::span<uint8_t> stream, int32_t first, int32_t count, int32_t value) {
  for (int32_t bit = 0; bit < count; ++bit) {
    const auto at = static_cast<size_t>(first + bit);
    if ((value >> bit & 1) != 0) stream[at / 8] |= static_cast<uint8_t>(1U << (at % 8));
  }
}

}  // namespace

StateLevels::StateLevels(Allocator& allocator, const Codebook& codebook)
    : levels{Vector<float>(allocator), Vector<float>(allocator)} {
  for (int32_t dim = 0; dim < codebook.code.dims(); ++dim) {
    Vector<float>& each = levels[static_cast<size_t>(dim)];
    each.reserve(kStates);
    for (uint32_t state = 0; state < kStates; ++state) {
      each.push_back(codebook.unit * static_cast<float>(level_of(codebook, state, dim)));
    }
  }
}

size_t search_floats(const Code& code) {
  size_t floats = kPadding;
  for (int32_t i = 0; i < code.steps(); ++i) floats += groups_of(code, i);
  return floats;
}

float search_trellis(const Code& code, const StateLevels& levels, const TrellisKernels& kernels,
                     std::span<const float> targets, std::span<float> work, std::span<uint8_t> stream) noexcept {
  const int32_t steps = code.steps();
  const int32_t half = steps / 2;
  Pass pass(code, levels, kernels, targets, work);
  pass.run(half, steps, -1);
  int32_t seam = pass.best_start();
  for (int32_t i = 0; i < half; ++i) seam = pass.next(i, seam);

  pass.run(0, steps, seam);
  std::fill(stream.begin(), stream.end(), uint8_t{0});
  int32_t state = seam;
  for (int32_t i = 0; i < steps; ++i) {
    write_bits(stream, code.first_bit(i), shift_of(code, i), state);
    state = pass.next(i, state);
  }
  return pass.cost_of(0, seam);
}

}  // namespace kvq::weights
