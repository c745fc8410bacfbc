#pragma once

#include "cache/sequence.h"
#include "core/checksum.h"
#include "core/hadamard.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

namespace kvq::io {

static_assert(std::endian::native == std::endian::little, "snapshots are written as they lie in memory");

inline constexpr uint64_t kSnapshotMagic = 0x31504E5351564BULL;  // "KVQSNP1"
inline constexpr uint32_t kSnapshotVersion = 1;
inline constexpr uint32_t kSeveralSequences = 2;  // version of a snapshot of several sequences
// Flags of the version.
inline constexpr uint32_t kScaled = 0x100;     // all pages hold numbers scaled as the cache does
inline constexpr uint32_t kOwnScales = 0x200;  // sequences have scales of their own
inline constexpr uint32_t kShapes = 0x400;     // layers are not alike
inline constexpr uint32_t kStates = 0x800;     // sequences have states of layers
inline constexpr uint32_t kVersionFlags = kScaled | kOwnScales | kShapes | kStates;

/// A snapshot is this header, with kScaled a uint64 checksum of the scales, with kShapes one
/// ShapeRecord a layer, in version 2 an int64 number of sequences,
/// then the sequences, and the checksum of all that at the end. A sequence is one LayerRecord a layer, with
/// kOwnScales one ScalesRecord a layer, each followed by float32 scales of keys, scales and offsets of values
/// [kv_heads][channels] if it has them, then for every layer and KV head an int64 page count and its pages (PageRecord,
/// positions `[32]` int32 if it has them, data; the record alone, without formats, if an earlier sequence has the
/// page), and with kStates an int64 number of states and these (StateRecord and bytes; the record alone if an earlier
/// sequence has the state).
struct SnapshotHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t checksum_bytes;
  uint64_t total_bytes;
  uint64_t model_id;
  int32_t n_layers;  // with pages of their own: records below are of these alone
  int32_t kv_heads;  // from here on those of the first layer
  int32_t head_dim;  // channels of keys
  int32_t rope_pairing;
  int32_t rotary_dim;
  uint32_t trained_checksum;  // of what some pages were made with, a codebook or centres; 0: no page was
  uint64_t rope_checksum;     // of inv_freq
};
static_assert(sizeof(SnapshotHeader) == 64);

struct ShapeRecord {
  int32_t kv_heads;
  int32_t key_dim;
  int32_t value_dim;
  int32_t rope_pairing;
  int32_t rotary_begin;
  int32_t rotary_dim;
  int32_t values_are_key_prefix;
  int32_t window;  // beyond which pages have been freed, as of newest_hidden()
  uint64_t rope_checksum;
};
static_assert(sizeof(ShapeRecord) == 40);

struct LayerRecord {
  int32_t length;
  int32_t last_position;
};

/// Scales that a sequence found by its first tokens.
struct ScalesRecord {
  uint32_t has_scales;
  int32_t tokens;  // that gave them
};

/// Bits of SideRecord::flags.
inline constexpr uint8_t kRotated = 1;      // by a Hadamard matrix, of a head size that is a power of two
inline constexpr uint8_t kPageMean = 2;     // relative to the mean of the page's keys
inline constexpr uint8_t kMixedBlocks = 4;  // rotated, of another head size (core/head_rotation.h)

/// What the host keeps of a layer after some tokens.
struct StateRecord {
  int32_t layer;  // of the model
  int32_t tokens;
  uint64_t bytes;
  uint32_t shared;  // 1 + the number of an earlier sequence that has the state too; 0: none
  uint32_t reserved;
};
static_assert(sizeof(StateRecord) == 24);

struct SideRecord {
  uint8_t codec;
  uint8_t bits;
  uint8_t flags;
  uint8_t group;
};

struct PageRecord {
  SideRecord keys;
  SideRecord values;
  int32_t count;
  int32_t first_position;
  uint32_t has_positions;
  uint32_t shared;  // 1 + the number of an earlier sequence that has the page at the same place; 0: none
};
static_assert(sizeof(PageRecord) == 24);

inline SideRecord side_record(Side side, const SideFormat& format, int32_t channels) {
  const Codec& codec = codec_of(format.code);
  const bool mean = side == Side::kKeys && format.centre == Centre::kPageMean;
  const uint8_t rotation = hadamard_block(channels) == channels ? kRotated : kMixedBlocks;
  return {format.has_trained_centres() ? codec.trained_number : codec.number, describe(format.code).file_bits,
          static_cast<uint8_t>((format.is_rotated() ? rotation : 0) | (mean ? kPageMean : 0)), format.group};
}

inline SideRecord side_record(Side side, const PageFormat& format) {
  return side_record(side, format.side(side), format.head.of(side));
}

/// Zero the bytes of a page that hold no number: padding of its sides, and slots from `count` on, which may contain
/// truncated tokens. A snapshot has zeros there.
void clear_unused(const PageFormat& format, int32_t count, std::byte* data);

inline ShapeRecord shape_record(const LayerShape& layer) {
  return {.kv_heads = layer.kv_heads,
          .key_dim = layer.head.whole_key(),
          .value_dim = layer.head.values,
          .rope_pairing = layer.rope->pairing,
          .rotary_begin = layer.rope->begin + layer.head.before_keys(),
          .rotary_dim = layer.rope->rotary_dim,
          .values_are_key_prefix = layer.head.is_latent ? 1 : 0,
          .window = layer.window,
          .rope_checksum = checksum(std::as_bytes(std::span<const float>(layer.rope->inv_freq)))};
}

/// Whether layers are alike but for their windows.
inline bool are_alike(ShapeRecord a, const ShapeRecord& b) {
  a.window = b.window;
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

/// Whether the header does not say all of the layers, whatever their windows.
inline bool needs_shapes(const Cache& cache) {
  const ShapeRecord first = shape_record(cache.layer(0));
  return first.value_dim != first.key_dim || first.rotary_begin != 0 ||
         std::ranges::any_of(cache.layers(),
                             [&first](const LayerShape& layer) { return !are_alike(shape_record(layer), first); });
}
/// Whether a snapshot of the cache has a ShapeRecord for every layer.
inline bool has_shapes(const Cache& cache) {
  return needs_shapes(cache) || std::ranges::any_of(cache.layers(), &LayerShape::window);
}

/// `version` and trained data are left to the caller.
inline SnapshotHeader snapshot_header(const Cache& cache) {
  const ShapeRecord first = shape_record(cache.layer(0));
  return {.magic = kSnapshotMagic,
          .version = kSnapshotVersion,
          .checksum_bytes = sizeof(uint64_t),
          .total_bytes = 0,
          .model_id = cache.model_id,
          .n_layers = cache.n_layers,
          .kv_heads = first.kv_heads,
          .head_dim = first.key_dim,
          .rope_pairing = first.rope_pairing,
          .rotary_dim = first.rotary_dim,
          .trained_checksum = 0,
          .rope_checksum = first.rope_checksum};
}

inline uint32_t trained_checksum(const Cache& cache) {
  return cache.training.pages != nullptr ? cache.training.pages->checksum() : 0;
}

}  // namespace kvq::io
