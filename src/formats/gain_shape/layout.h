// Bytes of a side in gain–shape codes. Device code includes this too.
#pragma once

#include "formats/side_format.h"

namespace kvq::gain_shape {

/// How the direction of a token's vector is written.
struct Shape {
  int32_t bits;  // a channel; 0: the kind is of another codec
  bool trellis;
};

KVQ_HOST_DEVICE constexpr bool has_trained_centres(Kind kind) {
  return kind >= Kind::kGs4Centres && kind <= Kind::kGt1Centres;
}

/// The kind with the same codes and gains, without trained centres or with them.
KVQ_HOST_DEVICE constexpr Kind without_centres(Kind kind) {
  constexpr int kDistance = static_cast<int>(Kind::kGs4Centres) - static_cast<int>(Kind::kGs4);
  return has_trained_centres(kind) ? static_cast<Kind>(static_cast<int>(kind) - kDistance) : kind;
}
KVQ_HOST_DEVICE constexpr Kind with_centres(Kind kind) {
  constexpr int kDistance = static_cast<int>(Kind::kGs4Centres) - static_cast<int>(Kind::kGs4);
  return has_trained_centres(kind) ? kind : static_cast<Kind>(static_cast<int>(kind) + kDistance);
}

KVQ_HOST_DEVICE constexpr Shape shape_of(Kind kind) {
  switch (without_centres(kind)) {
    case Kind::kGs4:
      return {4, false};
    case Kind::kGs3:
      return {3, false};
    case Kind::kGs2:
      return {2, false};
    case Kind::kGs1:
      return {1, false};
    case Kind::kGt3:
      return {3, true};
    case Kind::kGt2:
      return {2, true};
    case Kind::kGt1:
      return {1, true};
    default:
      return {0, false};
  }
}

/// x̂ = centre + gain · H·u: u the levels of the codes, one gain a token, H the Hadamard rotation.
///
/// Bytes of a side: the code planes; a code of the gain a slot; where keys have the mean of their page as centre, that
/// in INT8, `[head_dim]`; the largest gain in FP16; the mean's scale in FP16; where keys have trained centres, 1 in 16
/// bits if each was turned by the position of its own slot and 0 if by the page's; and where a token's centre is one of
/// several, its number a slot. Codes of three bits are a plane of the two low bits followed by one of the
/// highest.
struct Layout {
  Side side;
  int32_t bits;
  int32_t head_dim;
  bool has_mean;
  bool has_indices;
  bool has_turn = false;  // keys with trained centres

  KVQ_HOST_DEVICE constexpr PackedPlane low_plane() const { return side_plane(side, bits == 3 ? 2 : bits, head_dim); }
  KVQ_HOST_DEVICE constexpr PackedPlane high_plane() const { return side_plane(side, 1, head_dim); }  // 3 bits only
  KVQ_HOST_DEVICE constexpr size_t high_offset() const { return low_plane().bytes(); }
  KVQ_HOST_DEVICE constexpr size_t code_bytes() const {
    return low_plane().bytes() + (bits == 3 ? high_plane().bytes() : 0);
  }

  KVQ_HOST_DEVICE constexpr size_t gain_offset() const { return code_bytes(); }
  KVQ_HOST_DEVICE constexpr size_t mean_offset() const { return gain_offset() + kPageSlots; }
  KVQ_HOST_DEVICE constexpr size_t largest_offset() const {
    return mean_offset() + (has_mean ? static_cast<size_t>(head_dim) : 0);
  }
  KVQ_HOST_DEVICE constexpr size_t mean_scale_offset() const { return largest_offset() + sizeof(uint16_t); }
  KVQ_HOST_DEVICE constexpr size_t turn_offset() const { return mean_scale_offset(); }
  KVQ_HOST_DEVICE constexpr size_t index_offset() const {
    return largest_offset() + (has_mean || has_turn ? 2 : 1) * sizeof(uint16_t);
  }
  KVQ_HOST_DEVICE constexpr size_t bytes() const { return index_offset() + (has_indices ? kPageSlots : 0); }
};

/// Of a side whose tokens have no centre of their own.
KVQ_HOST_DEVICE constexpr Layout layout(Side side, const SideFormat& format, int32_t head_dim) {
  return {side, shape_of(format.kind).bits, head_dim, side == Side::kKeys && format.page_mean, false};
}

/// Of a side relative to that many trained centres.
KVQ_HOST_DEVICE constexpr Layout layout(Side side, const SideFormat& format, int32_t head_dim, int32_t centres) {
  return {side, shape_of(format.kind).bits, head_dim, false, centres > 1, side == Side::kKeys};
}

/// A code of a scalar shape stands for code − middle.
KVQ_HOST_DEVICE constexpr float middle(int32_t bits) { return static_cast<float>((1 << bits) - 1) / 2.0F; }

}  // namespace kvq::gain_shape
