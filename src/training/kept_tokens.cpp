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
<<<<<<< HEAD
  for_each_finite(numbers, dtype, halves.size(), true, argument,
                  [&](size_t i, float number) { halves[i] = to_float16(number); });
=======
  std::array<float, 256> chunk;
  for (size_t begin = 0; begin < halves.size(); begin += chunk.size()) {
    const size_t count = std::min(chunk.size(), halves.size() - begin);
    read_floats(numbers, dtype, begin, count, chunk.data());
    for (size_t i = 0; i < count; ++i) {
      halves[begin + i] = to_float16(chunk[i]);
      if (is_finite_float16(halves[begin + i])) continue;
      fail(KVQ_E_ARGUMENT, "%s[%zu] is %g, must be finite and at most 65504", argument, begin + i,
           static_cast<double>(chunk[i]));
    }
  }
>>>>>>> h-s1
  return halves;
}

}  // namespace kvq
