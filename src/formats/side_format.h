// How one side of a page is stored. Device code includes this too.
#pragma once

#include "core/limits.h"
#include "formats/packed_plane.h"

#include <cstddef>
#include <cstdint>

namespace kvq {

enum class Side : uint8_t { kKeys, kValues };

/// What the bytes of a side are: a codec at one width. Tables of codecs and of every backend's kernels have an entry
/// for each.
enum class Kind : uint8_t {
  kFloat16,
  kInt8,
  kInt4,
  kInt3,
  kInt2,
  kCommvq,
  kGs4,
  kGs3,
  kGs2,
  kGs1,
  kGt3,
  kGt2,
  kGt1,
  // The same relative to trained centres.
  kGs4Centres,
  kGs3Centres,
  kGs2Centres,
  kGs1Centres,
  kGt3Centres,
  kGt2Centres,
  kGt1Centres
};
inline constexpr size_t kKinds = 20;

constexpr size_t index_of(Kind kind) { return static_cast<size_t>(kind); }

/// The format of one side of a page, as a policy names it. Options that a kind does not take have their defaults.
struct SideFormat {
  Kind kind = Kind::kFloat16;
  bool hadamard = false;   // encoded after an orthonormal Hadamard rotation of the head
  uint8_t group = 32;      // channels that share a scale in a value page
  bool page_mean = false;  // keys are encoded relative to the mean of their page

  constexpr bool operator==(const SideFormat&) const = default;
};

/// Lanes and reduction length of one side; lanes of values are padded so that vector loads of 16 words stay inside.
KVQ_HOST_DEVICE constexpr PackedPlane side_plane(Side side, int32_t field_bits, int32_t head_dim) {
  if (side == Side::kKeys) return {field_bits, head_dim, kPageSlots};
  return {field_bits, kPageSlots, (head_dim + 15) / 16 * 16};
}

}  // namespace kvq
