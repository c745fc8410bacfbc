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
class PositionTurns;

/// What the pages of one layer need beside their bytes, on one backend: made and interpreted by its codec alone.
class LayerContext {
 public:
  explicit LayerContext(const Codec& codec_) : codec(codec_) {}
  virtual ~LayerContext() = default;

  const Codec& codec;
};

/// A code type that a codec has: what policies call it, and how files number it.
struct NamedCode {
  std::string_view name;
  CodeType code;
  uint8_t file_bits;
  int32_t sink = 0;  // first pages that stay FP16 unless a policy says otherwise
};

/// How a codec works, as policies may say under its name: a number in [low, high], or one of some names, which then
/// stands for its place among them.
struct CodecOption {
  std::string_view name;
  int32_t initial;
  int32_t low;
  int32_t high;
  std::span<const std::string_view> choices;  // empty: a number
};

inline constexpr size_t kMaxCodecOptions = 4;
/// Of one codec, in the order of its options.
using OptionValues = std::array<int32_t, kMaxCodecOptions>;

/// A cache that is to store pages so.
struct CacheShape {
  int32_t n_layers;
  int32_t kv_heads;
  int32_t head_dim;
  kvq_rope rope;
  int32_t rotary_dim;  // 0: all channels
  uint64_t model_id;   // 0: unknown
};

/// Pages of the same tokens that are encoded together on one side: one, or those of all heads if the format spans them.
struct SideToEncode {
  Side side;
  const PageFormat& format;
  int32_t first_head;
  std::span<const std::byte* const> float16;  // [heads] the side in FP16, keys after RoPE
  std::span<std::byte* const> out;            // [heads] the side in this format, zeros
  int32_t used;                               // slots
  SlotPositions positions;
  const LayerContext* context;  // of the host; null if the codec makes none
};

constexpr bool spans_no_heads(Side /*side*/, const PageFormat& /*format*/) { return false; }

/// What a page format is, apart from the kernels of a backend: one constant in each folder of formats/.
struct Codec {
  uint8_t number;    // in snapshots, and its place among codecs
  const char* name;  // of its options in policies
  std::span<const NamedCode> codes;
  bool takes_hadamard = false;  // +hadamard after a name
  bool takes_groups = false;    // of channels of values
  bool always_hadamard = false;
  bool takes_centres = false;  // +centres or +nocentre after a name; without them, the mean of each page of keys
  uint8_t trained_number = 0;  // in snapshots, of formats with trained centres
  std::span<const CodecOption> options = {};
  size_t alignment = kDataAlignment;  // of a side
  size_t page_alignment = 1;          // of both together, where copies on a GPU need more than a side has

  size_t (*bytes)(Side, const PageFormat&);
  /// Whether a side holds something of other heads' tokens.
  bool (*spans_heads)(Side, const PageFormat&) = spans_no_heads;
  /// The reference, one number at a time where that is possible: what every backend's encoder must repeat.
  void (*encode)(const SideToEncode&);
  /// To floats as stored: the caller undoes a Hadamard rotation.
  void (*decode)(const EncodedSide&, int32_t begin, int32_t n, float* out);
  bool (*valid)(Side, const PageFormat&, const std::byte* data);

  // For formats that mean nothing without training; null if the codec has none.
  const char* trained_as = nullptr;  // the option of a cache that gives it
  /// Throws, naming options, unless it serves such a cache and has what the format stores so.
  void (*check)(const Trained&, const CacheShape&, const PageFormat&) = nullptr;
  /// What the host needs to encode and attend with it.
  std::shared_ptr<const Resident> (*make_resident)(Allocator&, Parallel&, std::shared_ptr<const Trained>) = nullptr;
  Owned<LayerContext> (*make_context)(Allocator&, const Resident&, int32_t layer, const PageFormat&,
                                      const OptionValues&, const PositionTurns&) = nullptr;

  /// Whether what make_context makes serves all formats of the codec that a layer may have.
  bool one_context = false;

  bool needs_training(const SideFormat& format) const {
    return trained_as != nullptr && (!takes_centres || format.has_trained_centres());
  }
};

inline constexpr size_t kMaxCodecs = 8;
/// All of them, by number.
std::span<const Codec* const> all_codecs();
const Codec& codec_of(CodeType code);
const NamedCode& describe(CodeType code);

/// The values of all codecs' options.
class CodecOptions {
 public:
  CodecOptions();
  OptionValues& of(const Codec& codec) { return values_[codec.number]; }
  const OptionValues& of(const Codec& codec) const { return values_[codec.number]; }

 private:
  std::array<OptionValues, kMaxCodecs> values_{};
};

}  // namespace kvq
