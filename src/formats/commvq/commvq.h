#pragma once

#include "formats/codec.h"
#include "formats/commvq/codebook.h"
#include "formats/commvq/key_encoder.h"
#include "formats/commvq/options.h"

namespace kvq::commvq {

inline constexpr int32_t kIndexFields = 2 * kPageSlots;  // per stage of a page: two indices per slot

/// One FP16 number per token: of a head, or of all heads of a layer, whose pages then hold equal shares.
struct TokenNumbers {
  size_t offset;  // offset of the FP16 numbers in a side
  int32_t share;  // slots with numbers in one page

  /// FP16 number of slot `slot` of head `head`.
  uint16_t get(const std::byte* const* sides, int32_t head, int32_t slot) const {
    return *place(sides[share == kPageSlots ? head : slot / share], slot);
  }
  void put(std::byte* const* sides, int32_t head, int32_t slot, uint16_t number) const {
    *const_cast<uint16_t*>(place(sides[share == kPageSlots ? head : slot / share], slot)) = number;
  }

 private:
  const uint16_t* place(const std::byte* side, int32_t slot) const {
    return reinterpret_cast<const uint16_t*>(side + offset) + slot % share;
  }
};

/// Keys: for each group and stage 64 indices, a of the 32 slots, then b; fields of `index_bits` in a little-endian
/// stream of 8 · index_bits bytes. Then the norms.
struct KeyLayout {
  int32_t head_stages;  // groups · stages
  int32_t index_bits;
  TokenNumbers norms;

  size_t stage_bytes() const { return 8 * static_cast<size_t>(index_bits); }
  size_t bytes() const { return norms.offset + 2 * static_cast<size_t>(norms.share); }

  /// Indices of one group and stage.
  void unpack(const std::byte* side, int32_t head_stage, uint8_t (&indices)[kIndexFields]) const;
  void pack(const uint8_t (&indices)[kIndexFields], int32_t head_stage, std::byte* side) const;
};
KeyLayout key_layout(const CodebookShape& shape);

/// Values: a plane of one-bit fields whose lanes are code bits and whose reduction runs over slots; then the token
/// scales. If a code spans heads, the page of each has `lanes` of its bits.
struct ValueLayout {
  int32_t lanes;
  TokenNumbers scales;

  PackedPlane plane() const { return {1, kPageSlots, lanes}; }
  size_t bytes() const { return scales.offset + 2 * static_cast<size_t>(scales.share); }
};
ValueLayout value_layout(const CodebookShape& shape);

/// Decode one head of one token as defined in codebook.h: the reference for faster decoders.
///
/// \param indices  [groups][stages]{a, b}
/// \param key      [head_dim], before RoPE
void decode_key(const CodebookShape& shape, const LayerCodebook& layer, int32_t head, const uint8_t* indices,
                float norm, float* key);

size_t bytes(Side side, const PageFormat& format);
bool spans_heads(Side side, const PageFormat& format);
void encode(const SideToEncode& side);
void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out);
bool valid(Side side, const PageFormat& format, const std::byte* data);
void check(const Trained& codebook, const CacheShape& cache, const PageFormat& format);
std::shared_ptr<const Resident> make_resident(Allocator& allocator, Parallel& parallel,
                                              std::shared_ptr<const Trained> codebook);
Owned<LayerContext> make_context(Allocator& allocator, const Resident& resident, int32_t layer,
                                 const PageFormat& format, const OptionValues& options, const RotationTable& rotations);

inline constexpr NamedCode kCodes[] = {{"commvq", CodeType::commvq(), 0}};   // the codebook determines the bits
inline constexpr std::string_view kPaths[] = {"auto", "tables", "rebuild"};  // AttentionPath
inline constexpr CodecOption kOptions[] = {
    {.name = "beam", .initial = CodingEffort{}.beam, .low = 1, .high = KeyEncoder::kMaxBeam, .choices = {}},
    {.name = "flips", .initial = CodingEffort{}.flips, .low = 0, .high = kFlipsUnlimited, .choices = {}},
    {.name = "attention", .initial = 0, .low = 0, .high = 0, .choices = kPaths}};

inline constexpr Codec kCodec = {.number = 2,
                                 .name = "commvq",
                                 .codes = kCodes,
                                 .options = kOptions,
                                 // Vector loads of planes need no more; cache-line alignment would enlarge a page of 1
                                 // bit by 7 %.
                                 .alignment = 8,
                                 .bytes = bytes,
                                 .spans_heads = spans_heads,
                                 .encode = encode,
                                 .decode = decode,
                                 .valid = valid,
                                 .trained_as = "codebook",
                                 .check = check,
                                 .make_resident = make_resident,
                                 .make_context = make_context};

}  // namespace kvq::commvq
