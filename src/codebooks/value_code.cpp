#include "codebooks/value_code.h"

#include <algorithm>

namespace kvq {

ValueCode value_code(const CodebookShape& shape, const LayerCodebook& codebook, int32_t vector) {
  const auto width = static_cast<size_t>(shape.width());
  const auto bits = static_cast<size_t>(shape.code_bits());
  const auto index = static_cast<size_t>(vector);
  const auto part = [index](const Vector<float>& all, size_t size) {
    return std::span<const float>(all).subspan(index * size, size);
  };
  return {.width = shape.width(),
          .bits = shape.code_bits(),
          .channel_scale = part(codebook.channel_scale, width),
          .codes = part(codebook.value_codes, bits * width),
          .offset = part(codebook.value_offset, width),
          .proposal = part(codebook.proposal, bits * width),
          .proposal_bias = part(codebook.proposal_bias, bits)};
}

void decode_value(const ValueCode& code, const uint32_t* packed, float token_scale, float* out) {
  const auto width = static_cast<size_t>(code.width);
  std::copy(code.offset.begin(), code.offset.end(), out);
  for (size_t n = 0; n < static_cast<size_t>(code.bits); ++n) {
    if (!is_set(packed, n)) continue;
    for (size_t c = 0; c < width; ++c) out[c] += code.codes[n * width + c];
  }
  for (size_t c = 0; c < width; ++c) out[c] *= code.channel_scale[c] * token_scale;
}

}  // namespace kvq
