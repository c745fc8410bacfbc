// Table of codecs, and functions that dispatch on a side's codec.
#include "core/head_rotation.h"
#include "formats/codec.h"
#include "formats/commvq/commvq.h"
#include "formats/float16/float16.h"
#include "formats/gain_shape/gain_shape.h"
#include "formats/integer/integer.h"

#include <algorithm>
#include <array>

namespace kvq {
namespace {

constexpr auto kAll = std::to_array<const Codec*>({
    &float16::kCodec,
    &integer::kCodec,
    &commvq::kCodec,
    &gain_shape::kCodec,
});

/// Snapshots tell codecs apart by their numbers.
constexpr bool numbers_differ() {
  std::array<int32_t, kMaxCodecs> uses{};
  for (const Codec* codec : kAll) {
    ++uses.at(codec->number);
    if (codec->trained_number != 0) ++uses.at(codec->trained_number);
  }
  return std::all_of(uses.begin(), uses.end(), [](int32_t n) { return n <= 1; });
}
static_assert(numbers_differ());

struct Entry {
  const Codec* codec = nullptr;
  const NamedCode* code = nullptr;
};

constexpr auto kByCode = [] {
  std::array<Entry, size_t{1} << CodeType::kPackedBits> entries{};
  for (const Codec* codec : kAll) {
    for (const NamedCode& each : codec->codes) entries[each.code.packed()] = {codec, &each};
  }
  return entries;
}();

size_t round_up(size_t bytes, size_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

SideFormat completed(SideFormat format) {
  if (codec_of(format.code).always_hadamard) format.rotation = Rotation::kHadamard;
  return format;
}

bool training_needed(const SideFormat& keys, const SideFormat& values) {
  return codec_of(keys.code).needs_training(keys) || codec_of(values.code).needs_training(values);
}

}  // namespace

std::span<const Codec* const> all_codecs() { return kAll; }

const Codec& codec_of(CodeType code) { return *kByCode[code.packed()].codec; }

const NamedCode& describe(CodeType code) { return *kByCode[code.packed()].code; }

CodecOptions::CodecOptions() {
  for (const Codec* codec : kAll) {
    std::transform(codec->options.begin(), codec->options.end(), of(*codec).begin(),
                   [](const CodecOption& option) { return option.initial; });
  }
}

// Pages are contiguous, so a page's end is aligned as well.
PageFormat::PageFormat(const SideFormat& keys_, const SideFormat& values_, const HeadShape& head_,
                       const Trained* trained_)
    : keys(completed(keys_)),
      values(completed(values_)),
      head(head_),
      trained(training_needed(keys, values) ? trained_ : nullptr),
      needs_training_(training_needed(keys, values)),
      spans_heads_(codec_of(keys.code).spans_heads(Side::kKeys, *this) ||
                   codec_of(values.code).spans_heads(Side::kValues, *this)) {
  const size_t alignment = std::max(codec_of(keys.code).alignment, codec_of(values.code).alignment);
  key_bytes_ = round_up(side_bytes(Side::kKeys, *this), alignment);
  value_bytes_ = round_up(side_bytes(Side::kValues, *this), alignment);
  const size_t whole = std::max(codec_of(keys.code).page_alignment, codec_of(values.code).page_alignment);
  value_bytes_ = round_up(key_bytes_ + value_bytes_, whole) - key_bytes_;
}

size_t side_bytes(Side side, const PageFormat& format) { return codec_of(format.side(side).code).bytes(side, format); }

void decode_side(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  const SideFormat& format = encoded.format.side(encoded.side);
  codec_of(format.code).decode(encoded, begin, n, out);
  if (!format.is_rotated()) return;
  const int32_t head_dim = encoded.format.head.of(encoded.side);
  for (int32_t i = 0; i < n; ++i) rotate_head(out + static_cast<size_t>(i) * static_cast<size_t>(head_dim), head_dim);
}

bool side_is_valid(Side side, const PageFormat& format, const std::byte* data) {
  return codec_of(format.side(side).code).valid(side, format, data);
}

}  // namespace kvq
