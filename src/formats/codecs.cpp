// All codecs, and what depends on which one a side has.
#include "core/hadamard.h"
#include "formats/codec.h"
#include "formats/commvq/commvq.h"
#include "formats/float16/float16.h"
#include "formats/gain_shape/centred.h"
#include "formats/gain_shape/gain_shape.h"
#include "formats/integer/integer.h"

#include <algorithm>

namespace kvq {
namespace {

constexpr std::array<const Codec*, kCodecs> kAll = {&float16::kCodec, &integer::kCodec, &commvq::kCodec,
                                                    &gain_shape::kCodec, &centred::kCodec};
static_assert(kAll[0]->number == 0 && kAll[1]->number == 1 && kAll[2]->number == 2 && kAll[3]->number == 3 &&
              kAll[4]->number == 4);

/// Each kind once.
constexpr bool is_complete() {
  std::array<int, kKinds> found{};
  for (const Codec* codec : kAll) {
    for (const CodecKind& each : codec->kinds) ++found[index_of(each.kind)];
  }
  return std::all_of(found.begin(), found.end(), [](int count) { return count == 1; });
}
static_assert(is_complete());

struct Entry {
  const Codec* codec;
  const CodecKind* kind;
};

constexpr std::array<Entry, kKinds> kByKind = [] {
  std::array<Entry, kKinds> entries{};
  for (const Codec* codec : kAll) {
    for (const CodecKind& each : codec->kinds) entries[index_of(each.kind)] = {codec, &each};
  }
  return entries;
}();

size_t round_up(size_t bytes, size_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

SideFormat completed(SideFormat format) {
  format.hadamard = format.hadamard || codec_of(format.kind).always_hadamard;
  return format;
}

bool training_needed(const SideFormat& keys, const SideFormat& values) {
  return codec_of(keys.kind).needs_training() || codec_of(values.kind).needs_training();
}

}  // namespace

std::span<const Codec* const, kCodecs> all_codecs() { return kAll; }

const Codec& codec_of(Kind kind) { return *kByKind[index_of(kind)].codec; }

const CodecKind& describe(Kind kind) { return *kByKind[index_of(kind)].kind; }

CodecOptions::CodecOptions() {
  for (const Codec* codec : kAll) {
    std::transform(codec->options.begin(), codec->options.end(), of(*codec).begin(),
                   [](const CodecOption& option) { return option.initial; });
  }
}

// Pages lie next to each other, so a page's end is aligned as well.
PageFormat::PageFormat(const SideFormat& keys_, const SideFormat& values_, int32_t head_dim_, const Trained* trained_)
    : keys(completed(keys_)),
      values(completed(values_)),
      head_dim(head_dim_),
      trained(training_needed(keys, values) ? trained_ : nullptr),
      needs_training_(training_needed(keys, values)),
      spans_heads_(codec_of(keys.kind).spans_heads(Side::kKeys, *this) ||
                   codec_of(values.kind).spans_heads(Side::kValues, *this)) {
  const size_t alignment = std::max(codec_of(keys.kind).alignment, codec_of(values.kind).alignment);
  key_bytes_ = round_up(side_bytes(Side::kKeys, *this), alignment);
  value_bytes_ = round_up(side_bytes(Side::kValues, *this), alignment);
  const size_t whole = std::max(codec_of(keys.kind).page_alignment, codec_of(values.kind).page_alignment);
  value_bytes_ = round_up(key_bytes_ + value_bytes_, whole) - key_bytes_;
}

size_t side_bytes(Side side, const PageFormat& format) { return codec_of(format.side(side).kind).bytes(side, format); }

void decode_side(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  const SideFormat& format = encoded.format.side(encoded.side);
  codec_of(format.kind).decode(encoded, begin, n, out);
  if (!format.hadamard) return;
  const int32_t head_dim = encoded.format.head_dim;
  for (int32_t i = 0; i < n; ++i) hadamard(out + static_cast<size_t>(i) * static_cast<size_t>(head_dim), head_dim);
}

bool side_is_valid(Side side, const PageFormat& format, const std::byte* data) {
  return codec_of(format.side(side).kind).valid(side, format, data);
}

}  // namespace kvq
