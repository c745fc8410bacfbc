#include "training/commvq/value_network_trainer.h"

#include "core/scratch.h"
#include "core/splitmix.h"
#include "formats/commvq/value_network_layers.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvq {
namespace {

constexpr size_t kBlocksOfBatch = 8;  // 256 vectors
constexpr size_t kUpdateBlock = 8192;

constexpr size_t kQuantileBits = 12;
constexpr size_t kQuantiles = size_t{1} << kQuantileBits;

// Streams of random numbers of one seed.
constexpr uint64_t kTokenStream = 0x746f6b656e73;
constexpr uint64_t kNoiseStream = 0x6e6f697365;

bool decays(NetworkPart part) {
  return part == NetworkPart::kFirst || part == NetworkPart::kSecond || part == NetworkPart::kCodes;
}

}  // namespace

ValueNetwork NetworkDraft::network() const {
  return {.norm_gain = part(NetworkPart::kNormGain),
          .norm_bias = part(NetworkPart::kNormBias),
          .first = part(NetworkPart::kFirst),
          .first_bias = part(NetworkPart::kFirstBias),
          .second = part(NetworkPart::kSecond),
          .second_bias = part(NetworkPart::kSecondBias)};
}

NetworkTrainer::NetworkTrainer(Allocator& allocator, Parallel& parallel, const NetworkTrainingOptions& options,
                               const UnitVectors& targets, NetworkDraft& draft)
    : allocator_(allocator),
      parallel_(parallel),
      options_(options),
      targets_(targets),
      draft_(draft),
      batch_(allocator, parallel, draft.layout, kBlocksOfBatch),
      optimizer_(allocator, draft.parameters.size()),
      gradient_(draft.parameters.size(), allocator),
      gumbel_(kQuantiles, allocator) {
  for (size_t i = 0; i < kQuantiles; ++i) {
    const double probability = (static_cast<double>(i) + 0.5) / static_cast<double>(kQuantiles);
    gumbel_[i] = static_cast<float>(-std::log(-std::log(probability)));
  }
}

void NetworkTrainer::run_round() {
  for (int32_t i = 0; i < NetworkTrainingOptions::kStepsOfRound; ++i) run_step(steps_done_++);
}

void NetworkTrainer::run_step(size_t step) {
  const size_t pairs = draft_.layout.bits / 2;
  const double done = static_cast<double>(step) / (double{NetworkTrainingOptions::kStepsOfRound} * options_.rounds);
  const double temperature =
      options_.first_temperature + done * (options_.last_temperature - options_.first_temperature);
  const auto unit = [&](size_t i) {
    const uint64_t index = uint64_t{step} * batch_.tokens() + i;
    return targets_.row(splitmix64_below(targets_.training(), options_.seed ^ kTokenStream, index));
  };
  const auto noise = [&](size_t i, size_t pair) {
    uint64_t drawn = splitmix64(options_.seed ^ kNoiseStream, (uint64_t{step} * batch_.tokens() + i) * pairs + pair);
    std::array<float, kPairChoices> added;
    for (float& each : added) {
      each = gumbel_[drawn % kQuantiles];
      drawn >>= kQuantileBits;
    }
    return added;
  };
  batch_.compute(std::span<const float>(draft_.parameters), unit, noise, temperature, BitChoice::kHard,
                 std::span<float>(gradient_));

  optimizer_.begin_step();
  const double rate = options_.rate * (1.0 - done);
  for (const NetworkPart part : NetworkLayout::kParts) {
    const size_t begin = draft_.layout.begin(part);
    const size_t end = begin + draft_.layout.size(part);
    const auto update = [&](size_t block, float*) noexcept {
      const size_t first = begin + block * kUpdateBlock;
      const size_t n = std::min(kUpdateBlock, end - first);
      optimizer_.update(first, std::span<float>(draft_.parameters).subspan(first, n),
                        std::span<const float>(gradient_).subspan(first, n), rate,
                        decays(part) ? options_.weight_decay : 0.0);
    };
    for_each_block(parallel_, allocator_, (end - begin + kUpdateBlock - 1) / kUpdateBlock, 0, update);
  }
}

double NetworkTrainer::held_out_error() const { return decode_held_out().error; }

void NetworkTrainer::normalize_code() {
  const double length = decode_held_out().length;
  if (!(length > 0)) return;
  for (float& each : draft_.part(NetworkPart::kCodes)) each = static_cast<float>(each / length);
}

NetworkTrainer::Decoded NetworkTrainer::decode_held_out() const {
  const size_t width = draft_.layout.width;
  const size_t bits = draft_.layout.bits;
  const ValueNetwork network = draft_.network();
  const ValueKernels& kernels = *value_kernels().front();
  const float* codes = draft_.part(NetworkPart::kCodes).data();
  const size_t blocks = (targets_.held_out + kValueBlock - 1) / kValueBlock;
  Vector<Decoded> parts(blocks, allocator_);
  const auto decode = [&](size_t block, float* unit) noexcept {
    float* code = unit + width * kValueBlock;
    float* decoded = code + bits * kValueBlock;
    float* workspace = decoded + width * kValueBlock;
    const size_t first = block * kValueBlock;
    const size_t n = std::min(kValueBlock, targets_.held_out - first);
    std::fill_n(unit, width * kValueBlock, 0.0F);
    for (size_t i = 0; i < n; ++i) {
      const float* target = targets_.row(targets_.training() + first + i);
      for (size_t c = 0; c < width; ++c) unit[c * kValueBlock + i] = target[c];
    }
    propose_bits(network, kernels, unit, workspace, code);
    kernels.multiply({codes, 1, width}, width, bits, code, decoded);
    for (size_t i = 0; i < n; ++i) {
      double norm = 0;
      double product = 0;
      double target = 0;
      for (size_t c = 0; c < width; ++c) {
        const double w = decoded[c * kValueBlock + i];
        const double u = unit[c * kValueBlock + i];
        norm += w * w;
        product += w * u;
        target += u * u;
      }
      const double length = std::sqrt(norm);
      parts[block].length += length;
      parts[block].error += length > 0 ? 1 + target - 2 * product / length : target;
    }
  };
  for_each_block(parallel_, allocator_, blocks, (2 * width + bits) * kValueBlock + network.workspace_floats(), decode);
  Decoded mean;
  for (const Decoded& part : parts) {
    mean.error += part.error / static_cast<double>(targets_.held_out);
    mean.length += part.length / static_cast<double>(targets_.held_out);
  }
  return mean;
}

}  // namespace kvq
