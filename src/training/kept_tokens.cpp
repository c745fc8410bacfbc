#include "training/kept_tokens.h"

#include <utility>

namespace kvq {

void KeptTokens::add(int32_t n, const void* keys, const void* values, kvq_dtype dtype) {
  const StlAllocator<uint16_t> memory(*allocator_);
  Block block{Vector<uint16_t>(memory), Vector<uint16_t>(memory), n};
  if (keys != nullptr) block.keys = copy(keys, dtype, n, "k");
  if (values != nullptr) block.values = copy(values, dtype, n, "v");
  blocks_.push_back(std::move(block));
  tokens_ += n;
}

Vector<float> KeptTokens::gather(Side side) const {
  size_t size = 0;
  for (const Block& block : blocks_) size += block.side(side).size();
  Vector<float> numbers(size, *allocator_);
  float* out = numbers.data();
  for (const Block& block : blocks_) {
    for (const uint16_t half : block.side(side)) *out++ = from_float16(half);
  }
  return numbers;
}

Vector<uint16_t> KeptTokens::copy(const void* numbers, kvq_dtype dtype, int32_t n, const char* argument) const {
  Vector<uint16_t> halves(static_cast<size_t>(n) * width_, *allocator_);
  for_each_finite(numbers, dtype, halves.size(), true, argument,
                  [&](size_t i, float number) { halves[i] = to_float16(number); });
  return halves;
}

}  // namespace kvq
