#include "formats/commvq/value_code.h"

#include <algorithm>

namespace kvq {

ValueCode value_code(const CodebookShape& shape, const LayerCodebook& codebook, int32_t vector) {
  const auto width = static_cast<size_t>(shape.width());
  const auto bits = static_cast<size_t>(shape.code_bits());
  const auto hidden = static_cast<size_t>(shape.values.hidden);
  const auto index = static_cast<size_t>(vector);
  const auto part = [index](const Vector<float>& all, size_t size) {
    return std::span<const float>(all).subspan(index * size, size);
  };
  const bool linear = shape.values.proposal == ValueProposal::kLinear;
  return {.width = shape.width(),
          .bits = shape.code_bits(),
          .channel_scale = part(codebook.channel_scale, width),
          .codes = part(codebook.value_codes, bits * width),
          .offset = part(codebook.value_offset, width),
          .proposal = part(codebook.proposal, linear ? bits * width : 0),
          .proposal_bias = part(codebook.proposal_bias, linear ? bits : 0),
          .network = linear ? ValueNetwork{}
                            : ValueNetwork{.norm_gain = part(codebook.network_norm_gain, width),
                                           .norm_bias = part(codebook.network_norm_bias, width),
                                           .first = part(codebook.network_first, hidden * width),
                                           .first_bias = part(codebook.network_first_bias, hidden),
                                           .second = part(codebook.network_second, 2 * bits * hidden),
                                           .second_bias = part(codebook.network_second_bias, 2 * bits)}};
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
