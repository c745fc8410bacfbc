// Initial network of the training.
#include "core/splitmix.h"
#include "formats/commvq/value_network_layers.h"
#include "training/commvq/value_network_trainer.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvq {
namespace {

constexpr double kFourLevelStep = 0.9957;  // of the best four equidistant levels of a normal distribution
constexpr double kLeastDeviation = 1e-3;   // of the largest deviation: smaller components are noise
constexpr double kNoDeviation = 1e-4;      // of a channel of a unit vector: rounding error of equal targets

// Hidden unit q sees component q, in deviations, as kGain · component + kShift, where GELU rises steadily.
constexpr double kGain = 0.8;
constexpr double kShift = 1.2;
constexpr double kSharpness = 6.0;  // outputs are −kSharpness / 2 · distance² of a level, and an output of all choices
constexpr double kConstantOutput = 6.0;

constexpr uint64_t kWeightStream = 0x77656967687473;

/// Principal components of the targets, with signs along them, the start of least squares.
struct Components {
  Components(Allocator& allocator, ValueSample& targets, size_t width)
      : signs(allocator, width, width), deviations(width, allocator) {
    ValueAlternation(allocator, {}, targets, signs).start_from_signs();
    for (size_t q = 0; q < width; ++q) {
      double sum = 0;
      for (size_t c = 0; c < width; ++c) sum += double{signs.codes[q * width + c]} * signs.codes[q * width + c];
      deviations[q] = std::sqrt(sum) / kSignStep;
    }
    const double largest = *std::max_element(deviations.begin(), deviations.end());
    least = std::max(kLeastDeviation * largest, kNoDeviation / std::sqrt(static_cast<double>(width)));
  }

  const float* direction(size_t q) const { return signs.proposal.data() + q * signs.width(); }
  double center(size_t q) const { return -signs.proposal_bias[q]; }

  ValueDraft signs;
  Vector<double> deviations;
  double least;  // of deviations to divide by
};

/// Components that the bits of a code stand for.
struct Levels {
  explicit Levels(const NetworkLayout& layout) : bits(layout.bits), bits_of_component(layout.bits / layout.width) {}

  bool is_constant(size_t bit) const { return bit + 1 == bits; }
  size_t component(size_t bit) const { return bit / bits_of_component; }
  /// In deviations; the bit that shares its component with the constant is alone.
  double step(size_t bit) const {
    if (bits_of_component == 1 || bit + 2 == bits) return kSignStep;
    return bit % 2 == 0 ? kFourLevelStep : 2 * kFourLevelStep;
  }

  size_t bits;
  size_t bits_of_component;
};

void fill_codes(const Components& components, const Levels& levels, std::span<float> codes) {
  const size_t width = components.signs.width();
  float* constant = codes.data() + (levels.bits - 1) * width;
  std::copy(components.signs.offset.begin(), components.signs.offset.end(), constant);
  for (size_t i = 0; i < width * width; ++i) constant[i % width] += components.signs.codes[i] / 2;  // now the mean
  for (size_t bit = 0; !levels.is_constant(bit); ++bit) {
    const size_t q = levels.component(bit);
    const double length = levels.step(bit) * components.deviations[q];
    for (size_t c = 0; c < width; ++c) {
      codes[bit * width + c] = static_cast<float>(length * components.direction(q)[c]);
      constant[c] -= codes[bit * width + c] / 2;
    }
  }
}

void fill_first_layer(const Components& components, uint64_t seed, NetworkDraft& draft) {
  const size_t width = draft.layout.width;
  const std::span<float> first = draft.part(NetworkPart::kFirst);
  const std::span<float> bias = draft.part(NetworkPart::kFirstBias);
  const double length = std::sqrt(static_cast<double>(width));  // to which a unit vector is standardized
  for (size_t q = 0; q < std::min(width, draft.layout.hidden); ++q) {
    const double gain = kGain / std::max(components.deviations[q], components.least);
    for (size_t c = 0; c < width; ++c) {
      first[q * width + c] = static_cast<float>(gain / length * components.direction(q)[c]);
    }
    bias[q] = static_cast<float>(kShift - gain * components.center(q));
  }
  for (size_t i = width * width; i < first.size(); ++i) {  // further units take random directions
    const double uniform = static_cast<double>(splitmix64(seed ^ kWeightStream, i) >> 11U) * 0x1p-53;
    first[i] = static_cast<float>((uniform - 0.5) * std::sqrt(12.0) / length);
  }
}

void fill_second_layer(const Levels& levels, NetworkDraft& draft) {
  const size_t hidden = draft.layout.hidden;
  const network::Gelu middle(kShift);
  const double slope = middle.slope * kGain;
  const std::span<float> second = draft.part(NetworkPart::kSecond);
  const std::span<float> bias = draft.part(NetworkPart::kSecondBias);
  for (size_t output = 0; output < draft.layout.outputs(); ++output) {
    const size_t pair = output / kPairChoices;
    const size_t first_component = levels.component(2 * pair);
    std::array<double, 2> level{};  // of the pair's components
    double at_zero = 0;
    for (size_t bit = 2 * pair; bit < 2 * pair + 2; ++bit) {
      const auto set = static_cast<double>(output >> (bit % 2) & 1U);
      if (levels.is_constant(bit)) {
        at_zero += kConstantOutput * set;
      } else {
        level[levels.component(bit) - first_component] += levels.step(bit) * (set - 0.5);
      }
    }
    for (size_t i = 0; i < level.size() && first_component + i < hidden; ++i) {
      if (level[i] == 0) continue;
      second[output * hidden + first_component + i] = static_cast<float>(kSharpness * level[i] / slope);
      at_zero -= kSharpness * level[i] * (middle.value / slope + level[i] / 2);
    }
    bias[output] = static_cast<float>(at_zero);
  }
}

}  // namespace

void start_from_components(Allocator& allocator, ValueSample& targets, uint64_t seed, NetworkDraft& draft) {
  const Components components(allocator, targets, draft.layout.width);
  const Levels levels(draft.layout);
  const std::span<float> gain = draft.part(NetworkPart::kNormGain);
  std::fill(gain.begin(), gain.end(), 1.0F);
  fill_first_layer(components, seed, draft);
  fill_second_layer(levels, draft);
  const std::span<float> codes = draft.part(NetworkPart::kCodes);
  fill_codes(components, levels, codes);
  // Decode to vectors of length √width, so that optimizer steps are as small for codes as for weights.
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(draft.layout.width)));
  for (float& each : codes) each *= scale;
}

}  // namespace kvq
