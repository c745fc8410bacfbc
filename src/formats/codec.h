#pragma once

#include "core/memory.h"
#include "core/parallel.h"
#include "core/resident.h"
#include "formats/page_format.h"

#include <array>
#include <memory>
#include <span>
#include <string_view>

namespace kvq {

struct Codec;
class RotationTable;

/// Data beside the bytes of one layer's pages, on one backend: made and interpreted by its codec alone.
class LayerContext {
 public:
  explicit LayerContext(const Codec& codec_) : codec(codec_) {}
  virtual ~LayerContext() = default;

  const Codec& codec;
};

/// A code type of a codec, with its name in policies and its number in files.
struct NamedCode {
  std::string_view name;
  CodeType code;
  uint8_t file_bits;
  int32_t sink = 0;  // first pages that stay FP16 by default
};

/// An option under the codec's name in a policy: a number in [low, high], or one of some names, whose value is its
/// index.
struct CodecOption {
  std::string_view name;
  int32_t initial;
  int32_t low;
  int32_t high;
  std::span<const std::string_view> choices;  // empty: a number
};

inline constexpr size_t kMaxCodecOptions = 4;
/// One codec's values, in the order of its options.
using OptionValues = std::array<int32_t, kMaxCodecOptions>;

/// Pages of the same tokens encoded together on one side: a single page, or those of all heads if the format spans
/// them.
struct SideToEncode {
  Side side;
  const PageFormat& format;
  int32_t first_head;
  std::span<const std::byte* const> float16;  // [heads] FP16 sides, keys after RoPE
  std::span<std::byte* const> out;            // [heads] sides in the target format, initially zeros
  int32_t used;                               // slots in use
  SlotPositions positions;
  const LayerContext* context;  // on the host; null if the codec makes none
};

constexpr bool spans_no_heads(Side /*side*/, const PageFormat& /*format*/) { return false; }

/// Definition of a page format, apart from the kernels of a backend: one constant in each folder of formats/.
struct Codec {
  uint8_t number;    // in snapshots, and the index among codecs
  const char* name;  // heading of its options in policies
  std::span<const NamedCode> codes;
  bool takes_hadamard = false;  // accepts +hadamard after a name
  bool takes_groups = false;    // values have groups of channels
  bool always_hadamard = false;
  bool takes_centres = false;  // accepts +centres or +nocentre; without them, each page of keys has its mean
  uint8_t trained_number = 0;  // in snapshots, for formats with trained centres
  std::span<const CodecOption> options = {};
  size_t alignment = kDataAlignment;  // side alignment
  size_t page_alignment = 1;          // whole-page alignment, where copies on a GPU need more

  size_t (*bytes)(Side, const PageFormat&);
  /// A side depends on other heads' tokens.
  bool (*spans_heads)(Side, const PageFormat&) = spans_no_heads;
  /// Reference encoder, one number at a time where possible: every backend's encoder must repeat its result.
  void (*encode)(const SideToEncode&);
  /// Decodes to floats as stored: the caller undoes a Hadamard rotation.
  void (*decode)(const EncodedSide&, int32_t begin, int32_t n, float* out);
  bool (*valid)(Side, const PageFormat&, const std::byte* data);

  // For formats that require training; null if the codec has none.
  const char* trained_as = nullptr;  // cache option that supplies it
  /// Throws, naming options, unless the trained data fits the cache and covers the format.
  void (*check)(const Trained&, const CacheShape&, const PageFormat&) = nullptr;
  /// Makes the host data for encoding and attending.
  std::shared_ptr<const Resident> (*make_resident)(Allocator&, Parallel&, std::shared_ptr<const Trained>) = nullptr;
  Owned<LayerContext> (*make_context)(Allocator&, const Resident&, int32_t layer, const PageFormat&,
                                      const OptionValues&, const RotationTable&) = nullptr;

  /// One make_context result serves all of the codec's formats in a layer.
  bool one_context = false;

  bool needs_training(const SideFormat& format) const {
    return trained_as != nullptr && (!takes_centres || format.has_trained_centres());
  }
};

inline constexpr size_t kMaxCodecs = 8;
/// All codecs, by number.
std::span<const Codec* const> all_codecs();
const Codec& codec_of(CodeType code);
const NamedCode& describe(CodeType code);

/// Option values of all codecs.
class CodecOptions {
 public:
  CodecOptions();
  OptionValues& of(const Codec& codec) { return values_[codec.number]; }
  const OptionValues& of(const Codec& codec) const { return values_[codec.number]; }

 private:
  std::array<OptionValues, kMaxCodecs> values_{};
};

}  // namespace kvq
