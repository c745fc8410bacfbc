#include "formats/page_format.h"

#include "core/hadamard.h"
#include "formats/codec.h"
#include "formats/commvq/commvq.h"
#include "formats/float16/float16.h"
#include "formats/integer/integer.h"

#include <algorithm>

namespace kvq {
namespace {

const CodecOperations& codec_of(const SideFormat& format) {
  static constexpr CodecOperations kCodecs[] = {float16::kOperations, integer::kOperations, commvq::kOperations};
  return kCodecs[static_cast<size_t>(format.codec)];
}

size_t round_up(size_t bytes, size_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

}  // namespace

// Pages lie next to each other, so a page's end is aligned as well.
PageFormat::PageFormat(const SideFormat& keys_, const SideFormat& values_, int32_t head_dim_,
                       const CodebookShape& codebook_)
    : keys(keys_),
      values(values_),
      head_dim(head_dim_),
      codebook(uses_codebook() ? codebook_ : CodebookShape{}),
      spans_heads_(codec_of(keys).spans_heads(Side::kKeys, *this) ||
                   codec_of(values).spans_heads(Side::kValues, *this)) {
  const size_t alignment = std::max(codec_of(keys).alignment, codec_of(values).alignment);
  key_bytes_ = round_up(side_bytes(Side::kKeys, *this), alignment);
  value_bytes_ = round_up(side_bytes(Side::kValues, *this), alignment);
}

size_t side_bytes(Side side, const PageFormat& format) { return codec_of(format.side(side)).bytes(side, format); }

void decode_side(const EncodedSide& encoded, int32_t begin, int32_t n, float* out) {
  const SideFormat& format = encoded.format.side(encoded.side);
  codec_of(format).decode(encoded, begin, n, out);
  if (!format.hadamard) return;
  const int32_t head_dim = encoded.format.head_dim;
  for (int32_t i = 0; i < n; ++i) hadamard(out + static_cast<size_t>(i) * static_cast<size_t>(head_dim), head_dim);
}

bool side_is_valid(Side side, const PageFormat& format, const std::byte* data) {
  return codec_of(format.side(side)).valid(side, format, data);
}

}  // namespace kvq
