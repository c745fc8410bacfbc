#include "formats/page_format.h"

#include "core/memory.h"
#include "formats/codec.h"
#include "formats/float16/float16.h"
#include "formats/hadamard.h"
#include "formats/integer/integer.h"

namespace kvq {
namespace {

const CodecOperations& codec_of(const SideFormat& format) {
  static constexpr CodecOperations kCodecs[] = {float16::kOperations, integer::kOperations};
  return kCodecs[static_cast<size_t>(format.codec)];
}

size_t round_up(size_t bytes) { return (bytes + kDataAlignment - 1) / kDataAlignment * kDataAlignment; }

}  // namespace

PageFormat::PageFormat(const SideFormat& keys_, const SideFormat& values_, int32_t head_dim_)
    : keys(keys_),
      values(values_),
      head_dim(head_dim_),
      key_bytes_(round_up(side_bytes(Side::kKeys, keys, head_dim))),
      value_bytes_(round_up(side_bytes(Side::kValues, values, head_dim))) {}

size_t side_bytes(Side side, const SideFormat& format, int32_t head_dim) {
  return codec_of(format).bytes(side, format, head_dim);
}

void decode_side(Side side, const SideFormat& format, int32_t head_dim, const std::byte* data, int32_t begin, int32_t n,
                 float* out) {
  codec_of(format).decode(side, format, head_dim, data, begin, n, out);
  if (!format.hadamard) return;
  for (int32_t i = 0; i < n; ++i) hadamard(out + static_cast<size_t>(i) * static_cast<size_t>(head_dim), head_dim);
}

bool side_is_valid(Side side, const SideFormat& format, int32_t head_dim, const std::byte* data) {
  return codec_of(format).valid(side, format, head_dim, data);
}

}  // namespace kvq
