#include "training/kept_tokens.h"

#include <utility>

namespace kvq {

void KeptTokens::add(int32_t n, const void* keys, const void* values, kvq_dtype dtype, const LayerCentres* scales) {
  ChannelScales of_keys{};
  ChannelScales of_values{};
  if (scales != nullptr) of_keys.factors = scales->key_scales;
  if (scales != nullptr) of_values = {scales->value_offsets, scales->value_scales};
  const StlAllocator<uint16_t> memory(*allocator_);
  Block block{Vector<uint16_t>(memory), Vector<uint16_t>(memory), n};
  if (keys != nullptr) block.keys = copy(keys, dtype, n, "k", of_keys);
  if (values != nullptr) block.values = copy(values, dtype, n, "v", of_values);
  blocks_.push_back(std::move(block));
  tokens_ += n;
}

Vector<float> KeptTokens::gather(Side side) const {
  size_t all = 0;
  for (const Block& block : blocks_) all += block.side(side).size();
  Vector<float> numbers(all, *allocator_);
  float* out = numbers.data();
  for (const Block& block : blocks_) {
    for (const uint16_t half : block.side(side)) *out++ = from_float16(half);
  }
  return numbers;
}

Vector<uint16_t> KeptTokens::copy(const void* numbers, kvq_dtype dtype, int32_t n, const char* argument,
                                  const ChannelScales& scales) const {
  Vector<uint16_t> halves(size(n, width_), *allocator_);
  for_each_finite(numbers, dtype, halves.size(), true, argument, [&](size_t i, float number) {
    if (!scales.offsets.empty()) number -= scales.offsets[i % width_];
    if (!scales.factors.empty()) number *= scales.factors[i % width_];
    halves[i] = to_finite_float16(number);
  });
  return halves;
}

}  // namespace kvq
