#pragma once

#include "core/limits.h"
#include "core/rope.h"
#include "formats/head_shape.h"
#include "formats/side_format.h"
#include "kvq.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kvq {

/// Data trained for a model that gives its pages their meaning, like a codebook. Only its codec looks inside. Immutable
/// once shared.
class Trained {
 public:
  Trained() = default;
  virtual ~Trained() = default;
  // A copy may be changed before it is shared.
  Trained(const Trained& /*other*/) noexcept {}
  Trained& operator=(const Trained& /*other*/) noexcept {
    known_checksum_ = 0;
    return *this;
  }

  /// Checksum of everything that decoding depends on: tells whether pages were made with the same data.
  uint32_t checksum() const {
    uint32_t sum = known_checksum_.load(std::memory_order_relaxed);
    if (sum == 0) known_checksum_.store(sum = compute_checksum(), std::memory_order_relaxed);
    return sum;
  }

 private:
  virtual uint32_t compute_checksum() const = 0;
  mutable std::atomic<uint32_t> known_checksum_{0};
};

/// Everything that a page's bytes depend on: formats of both sides, the head's channels, and trained data if one of
/// them needs it.
class PageFormat {
 public:
  /// `trained`: outlives this; ignored unless a side needs it.
  PageFormat(const SideFormat& keys, const SideFormat& values, const HeadShape& head, const Trained* trained = nullptr);

  bool operator==(const PageFormat&) const = default;

  const SideFormat& side(Side side) const { return side == Side::kKeys ? keys : values; }
  bool is_float16() const { return keys.code.is_float16() && values.code.is_float16(); }
  /// A side cannot be decoded without trained data.
  bool needs_training() const { return needs_training_; }
  /// A page depends on other heads' tokens: it belongs together with the pages of all heads that hold the same tokens.
  bool spans_heads() const { return spans_heads_; }
  size_t key_bytes() const { return key_bytes_; }      // size of the key side, at offset 0, padded for both sides
  size_t value_bytes() const { return value_bytes_; }  // size of the value side, at offset key_bytes()
  size_t bytes() const { return key_bytes_ + value_bytes_; }
  size_t bytes(Side side) const { return side == Side::kKeys ? key_bytes_ : value_bytes_; }
  size_t offset(Side side) const { return side == Side::kKeys ? 0 : key_bytes_; }

  // Fixed, because the sizes follow from them.
  const SideFormat keys;
  const SideFormat values;
  const HeadShape head;
  const Trained* const trained;  // null: neither side needs it, or it is not known yet

 private:
  bool needs_training_;
  bool spans_heads_;
  size_t key_bytes_;
  size_t value_bytes_;
};

/// Shape of a cache that would store pages in a format with trained data: all of its layers are alike.
struct CacheShape {
  int32_t n_layers;
  int32_t kv_heads;
  int32_t head_dim;
  kvq_rope rope;
  int32_t rotary_dim;  // 0: all channels
  uint64_t model_id;   // 0: unknown
  uint64_t scales;     // their checksum; 0: none
};

/// The positions of a page's slots.
struct SlotPositions {
  const int32_t* stored;  // [32], or null: consecutive
  int32_t first;

  int32_t operator[](int32_t slot) const { return stored != nullptr ? stored[slot] : first + slot; }
  /// Whether the first `slots` slots are consecutive.
  bool are_consecutive(int32_t slots) const {
    for (int32_t slot = 1; stored != nullptr && slot < slots; ++slot) {
      if (stored[slot] != stored[0] + slot) return false;
    }
    return true;
  }
};

/// One side of a page to decode, with all data that its format may need.
struct EncodedSide {
  Side side;
  const PageFormat& format;
  int32_t layer;
  int32_t head;
  /// The same side of the pages of all KV heads with the same tokens. Only that of `head` is required unless the format
  /// spans heads.
  const std::byte* const* sides;
  const Rope* rope;
  const int32_t* positions;  // [32]
};

/// Bytes of one side before padding.
size_t side_bytes(Side side, const PageFormat& format);

/// Decode `n` slots from `begin` to `[n, channels of the side]` floats, keys rotated to their positions: the reference
/// for every kernel.
void decode_side(const EncodedSide& encoded, int32_t begin, int32_t n, float* out);

/// False if the bytes of one side hold a number that no encoder writes (infinite or NaN).
bool side_is_valid(Side side, const PageFormat& format, const std::byte* data);

}  // namespace kvq
