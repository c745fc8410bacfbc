// Format of one side of a page. Also compiled as device code.
#pragma once

#include "core/limits.h"
#include "formats/packed_plane.h"

#include <cstddef>
#include <cstdint>

namespace kvq {

enum class Side : uint8_t { kKeys, kValues };

/// Mapping of numbers to codes. The order has no meaning.
enum class Coding : uint8_t {
  kFloat16,
  kInteger,      // code · scale + minimum
  kCommvq,       // codes of a trained codebook
  kGainScalar,   // gain · direction, one code per channel
  kGainTrellis,  // gain · direction, a path through a trellis
};

/// A coding at a width: the unit that kernels are compiled for.
struct CodeType {
  Coding coding = Coding::kFloat16;
  uint8_t bits = 16;  // per code; 0: the codebook decides

  KVQ_HOST_DEVICE static constexpr CodeType float16() { return {}; }
  KVQ_HOST_DEVICE static constexpr CodeType integer(int32_t bits) { return of(Coding::kInteger, bits); }
  KVQ_HOST_DEVICE static constexpr CodeType commvq() { return of(Coding::kCommvq, 0); }
  KVQ_HOST_DEVICE static constexpr CodeType gain_scalar(int32_t bits) { return of(Coding::kGainScalar, bits); }
  KVQ_HOST_DEVICE static constexpr CodeType gain_trellis(int32_t bits) { return of(Coding::kGainTrellis, bits); }

  KVQ_HOST_DEVICE constexpr bool is_float16() const { return coding == Coding::kFloat16; }
  KVQ_HOST_DEVICE constexpr bool is_integer() const { return coding == Coding::kInteger; }
  KVQ_HOST_DEVICE constexpr bool is_commvq() const { return coding == Coding::kCommvq; }
  KVQ_HOST_DEVICE constexpr bool is_trellis() const { return coding == Coding::kGainTrellis; }
  KVQ_HOST_DEVICE constexpr bool has_gains() const {
    return coding == Coding::kGainScalar || coding == Coding::kGainTrellis;
  }

  /// An index below 2^kPackedBits, 0 for FP16, for tables and for pages on a GPU.
  static constexpr uint32_t kPackedBits = 7;
  KVQ_HOST_DEVICE constexpr uint32_t packed() const {
    return static_cast<uint32_t>(coding) | (bits & 15U) << kCodingBits;
  }
  KVQ_HOST_DEVICE static constexpr CodeType unpacked(uint32_t packed) {
    const uint32_t bits = packed >> kCodingBits;
    return {static_cast<Coding>(packed & ((1U << kCodingBits) - 1U)), static_cast<uint8_t>(bits == 0 ? 16 : bits)};
  }

  KVQ_HOST_DEVICE friend constexpr bool operator==(CodeType a, CodeType b) { return a.packed() == b.packed(); }

 private:
  static constexpr uint32_t kCodingBits = 3;
  KVQ_HOST_DEVICE static constexpr CodeType of(Coding coding, int32_t bits) {
    return {coding, static_cast<uint8_t>(bits)};
  }
};
static_assert(CodeType::float16().packed() == 0);

enum class Rotation : uint8_t {
  kNone,
  kHadamard,  // orthonormal, per head
};

/// Origin of a vector in gain–shape codes.
enum class Centre : uint8_t {
  kNone,
  kPageMean,  // for keys; values have no centre
  kTrained,   // nearest trained centre of the head
};

/// Format of one side of a page, as a policy names it. Options that a coding does not take have their defaults.
struct SideFormat {
  CodeType code = CodeType::float16();
  Rotation rotation = Rotation::kNone;
  Centre centre = Centre::kNone;
  uint8_t group = 32;  // channels that share a scale in a value page

  constexpr bool operator==(const SideFormat&) const = default;

  constexpr bool is_rotated() const { return rotation != Rotation::kNone; }
  constexpr bool has_trained_centres() const { return centre == Centre::kTrained; }
};

/// Plane with the lanes and reduction length of one side; lanes of values are padded so that vector loads of 16 words
/// stay inside.
KVQ_HOST_DEVICE constexpr PackedPlane side_plane(Side side, int32_t field_bits, int32_t head_dim) {
  if (side == Side::kKeys) return {field_bits, head_dim, kPageSlots};
  return {field_bits, kPageSlots, (head_dim + 15) / 16 * 16};
}

}  // namespace kvq
