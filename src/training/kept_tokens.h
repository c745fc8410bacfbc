// Keys and values for the training of a layer.
#pragma once

#include "core/memory.h"
#include "formats/side_format.h"
#include "kvq.h"

#include <cstdint>
#include <span>

namespace kvq {

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
  void add(int32_t n, const void* keys, const void* values, kvq_dtype dtype);

  int64_t tokens() const { return tokens_; }
  std::span<const Block> blocks() const { return blocks_; }
  /// Everything of one side, [tokens][width].
  Vector<float> gather(Side side) const;

 private:
  Vector<uint16_t> copy(const void* numbers, kvq_dtype dtype, int32_t n, const char* argument) const;

  Allocator* allocator_;
  size_t width_;
  Vector<Block> blocks_;
  int64_t tokens_ = 0;
};

}  // namespace kvq
