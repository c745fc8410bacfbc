#pragma once

#include "core/limits.h"
#include "core/rope.h"
#include "formats/commvq/codebook.h"
#include "formats/packed_plane.h"
#include "kvq.h"

#include <cstddef>
#include <cstdint>

namespace kvq {

enum class Side : uint8_t { kKeys, kValues };

enum class Codec : uint8_t { kFloat16 = 0, kInteger = 1, kCommvq = 2 };

/// The format of one side of a page, as a policy names it.
struct SideFormat {
  Codec codec = Codec::kFloat16;
  uint8_t bits = 16;      // integer codes: 8, 4, 3 or 2; CommVQ: 0, its codebook says
  bool hadamard = false;  // encoded after an orthonormal Hadamard rotation of the head
  uint8_t group = 32;     // channels that share a scale in a value page

  bool operator==(const SideFormat&) const = default;

  bool is_coded() const { return codec == Codec::kCommvq; }
};

/// Everything that a page's bytes depend on: formats of both sides, the head size, and the shape of the codebook if
/// one of them uses it.
class PageFormat {
 public:
  PageFormat(const SideFormat& keys, const SideFormat& values, int32_t head_dim, const CodebookShape& codebook = {});

  bool operator==(const PageFormat&) const = default;

  const SideFormat& side(Side side) const { return side == Side::kKeys ? keys : values; }
  bool is_float16() const { return keys.codec == Codec::kFloat16 && values.codec == Codec::kFloat16; }
  bool uses_codebook() const { return keys.is_coded() || values.is_coded(); }
  /// Whether a page holds something of other heads' tokens: then it belongs together with the pages of all heads that
  /// hold the same tokens.
  bool spans_heads() const { return spans_heads_; }
  size_t key_bytes() const { return key_bytes_; }      // the key side, from offset 0, padded as both sides need it
  size_t value_bytes() const { return value_bytes_; }  // the value side, from offset key_bytes()
  size_t bytes() const { return key_bytes_ + value_bytes_; }
  /// Where a side begins.
  size_t offset(Side side) const { return side == Side::kKeys ? 0 : key_bytes_; }

  // The sizes follow from these, so they are fixed.
  const SideFormat keys;
  const SideFormat values;
  const int32_t head_dim;
  const CodebookShape codebook;  // n_layers 0: none

 private:
  bool spans_heads_;
  size_t key_bytes_;
  size_t value_bytes_;
};

/// Lanes and reduction length of one side; lanes of values are padded so that vector loads of 16 words stay inside.
constexpr PackedPlane side_plane(Side side, int32_t field_bits, int32_t head_dim) {
  if (side == Side::kKeys) return {field_bits, head_dim, kPageSlots};
  return {field_bits, kPageSlots, (head_dim + 15) / 16 * 16};
}

/// One side of a page, to be decoded, and all that its format may need.
struct EncodedSide {
  Side side;
  const PageFormat& format;
  int32_t head;
  /// The same side of the pages of all KV heads that hold the same tokens. Only that of `head` must be there unless
  /// the format spans heads.
  const std::byte* const* sides;
  const LayerCodebook* codebook;  // null without one
  const Rope* rope;
  const int32_t* positions;  // [32]
};

/// Bytes of one side before padding; dispatches on the codec.
size_t side_bytes(Side side, const PageFormat& format);

/// Decode `n` slots from `begin` to `[n, head_dim]` floats, keys rotated to their positions: the reference that every
/// kernel is held to.
void decode_side(const EncodedSide& encoded, int32_t begin, int32_t n, float* out);

/// False if the bytes of one side hold a number that no encoder writes (infinite or NaN).
bool side_is_valid(Side side, const PageFormat& format, const std::byte* data);

}  // namespace kvq
