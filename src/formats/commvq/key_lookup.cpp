#include "formats/commvq/key_lookup.h"

#include "formats/commvq/pair_length.h"

#include <algorithm>
#include <cmath>

namespace kvq {
namespace {

/// Limit of a sum of codes, with room for the rounding of its terms.
constexpr float kLargestSum = 31000.0F;
constexpr float kLargestByte = 127.0F;

}  // namespace

KeyLookup::KeyLookup(Allocator& allocator, const CodebookShape& shape, const LayerCodebook& numbers, int32_t head)
    : stages_(shape.keys.stages),
      tables_(static_cast<size_t>(shape.pairs() * stages_), allocator),
      multipliers_(static_cast<size_t>(shape.pairs() * stages_), allocator),
      factors_(static_cast<size_t>(shape.pairs()), allocator) {
  const auto group = static_cast<size_t>(shape.keys.group);
  const size_t stage_floats = kCodes * group * 2;
  const float* of_group = numbers.key_codes.data() + static_cast<size_t>(head) * shape.key_codes_of_head() * 2;
  for (int32_t pair = 0; pair < shape.pairs(); ++pair) {
    const size_t within = static_cast<size_t>(pair) % group;
    fill(of_group + 2 * within, 2 * group, stage_floats, pair);
    if (within + 1 == group) of_group += static_cast<size_t>(stages_) * stage_floats;
  }
}

void KeyLookup::fill(const float* z, size_t code_stride, size_t stage_stride, int32_t pair) {
  float sum = 0.0F;
  for (int32_t stage = 0; stage < stages_; ++stage) {
    float largest = 0.0F;
    for (size_t code = 0; code < kCodes; ++code) {
      const float* of_code = z + static_cast<size_t>(stage) * stage_stride + code * code_stride;
      largest = std::max(largest, pair_length(of_code[0], of_code[1]));
    }
    sum += 2.0F * largest;
  }
  const float factor = sum > 0.0F ? sum / kLargestSum : 1.0F;
  factors_[static_cast<size_t>(pair)] = factor;
  for (int32_t stage = 0; stage < stages_; ++stage) {
    const float* of_stage = z + static_cast<size_t>(stage) * stage_stride;
    float largest = 0.0F;
    for (size_t code = 0; code < kCodes; ++code) {
      const float* of_code = of_stage + code * code_stride;
      largest = std::max({largest, std::abs(of_code[0]), std::abs(of_code[1])});
    }
    const float multiplier = std::max(1.0F, std::ceil(largest / (factor * kLargestByte)));
    const auto at = static_cast<size_t>(pair * stages_ + stage);
    multipliers_[at] = static_cast<uint32_t>(multiplier) * 0x01010101U;
    for (size_t code = 0; code < kCodes; ++code) {
      const float* of_code = of_stage + code * code_stride;
      tables_[at].real[code] = static_cast<int8_t>(std::lround(of_code[0] / (factor * multiplier)));
      tables_[at].imaginary[code] = static_cast<int8_t>(std::lround(of_code[1] / (factor * multiplier)));
    }
  }
}

}  // namespace kvq
