// Keys and values for the training of a layer.
#pragma once

#include "core/error.h"
#include "core/float16.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "formats/gain_shape/model_centres.h"
#include "formats/side_format.h"
#include "kvq.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

namespace kvq {

/// Call use(i, number) for every number of a tensor. Throws KVQ_E_ARGUMENT unless it is finite, in FP16 if it will be
/// stored.
template <typename Use>
void for_each_finite(const void* tensor, kvq_dtype dtype, size_t count, bool stored, const char* argument,
                     const Use& use) {
  std::array<float, 256> chunk;
  for (size_t begin = 0; begin < count; begin += chunk.size()) {
    const size_t n = std::min(chunk.size(), count - begin);
    read_floats(tensor, dtype, begin, n, chunk.data());
    for (size_t i = 0; i < n; ++i) {
      if (!(stored ? is_finite_float16(to_float16(chunk[i])) : std::isfinite(chunk[i]))) {
        fail(KVQ_E_ARGUMENT, "%s[%zu] is %g, must be finite%s", argument, begin + i, static_cast<double>(chunk[i]),
             stored ? " and at most 65504" : "");
      }
      use(begin + i, chunk[i]);
    }
  }
}

class KeptTokens {
 public:
  /// Tokens of one call of add, in FP16 as in caches.
  struct Block {
    const Vector<uint16_t>& side(Side side) const { return side == Side::kKeys ? keys : values; }

    Vector<uint16_t> keys;  // [tokens][width]; empty if this side is not kept
    Vector<uint16_t> values;
    int32_t tokens = 0;
  };

  KeptTokens(Allocator& allocator, size_t width) : allocator_(&allocator), width_(width), blocks_(allocator) {}

  /// Keep a copy of n tokens; null: that side is not kept. Throws KVQ_E_ARGUMENT for numbers beyond FP16.
  /// `scales`: what the copy is scaled by, or null.
  void add(int32_t n, const void* keys, const void* values, kvq_dtype dtype, const LayerCentres* scales = nullptr);

  int64_t tokens() const { return tokens_; }
  std::span<const Block> blocks() const { return blocks_; }
  /// Everything of one side, [tokens][width].
  Vector<float> gather(Side side) const;

 private:
  /// Numbers of channels; empty: those that change nothing.
  struct ChannelScales {
    std::span<const float> offsets;
    std::span<const float> factors;
  };
  Vector<uint16_t> copy(const void* numbers, kvq_dtype dtype, int32_t n, const char* argument,
                        const ChannelScales& scales) const;

  Allocator* allocator_;
  size_t width_;
  Vector<Block> blocks_;
  int64_t tokens_ = 0;
};

}  // namespace kvq
