#include "formats/commvq/key_decoder.h"

#include <complex>

namespace kvq {

void decode_key(const CodebookShape& shape, const LayerCodebook& layer, int32_t head, const uint8_t* indices,
                float norm, float* key) {
  using Complex = std::complex<double>;
  const int32_t stages = shape.keys.stages;
  const int32_t codes = shape.keys.codes;
  const int32_t group = shape.keys.group;
  const auto* z = reinterpret_cast<const std::complex<float>*>(layer.key_codes.data()) +
                  static_cast<size_t>(head) * shape.key_codes_of_head();
  const bool half = shape.pairing == KVQ_ROPE_HALF;
  for (int32_t pair = 0; pair < shape.pairs(); ++pair) {
    const int32_t first_stage = pair / group * stages;
    const auto code = [&](int32_t stage, int32_t index) {
      const int32_t row = (first_stage + stage) * codes + index;
      return Complex(z[static_cast<size_t>(row) * static_cast<size_t>(group) + static_cast<size_t>(pair % group)]);
    };
    Complex sum;
    for (int32_t stage = 0; stage < stages; ++stage) {
      const uint8_t* index = indices + 2 * (first_stage + stage);
      sum += code(stage, index[0]) + Complex(0.0, 1.0) * code(stage, index[1]);
    }
    key[half ? pair : 2 * pair] = static_cast<float>(double{norm} * sum.real());
    key[half ? pair + shape.pairs() : 2 * pair + 1] = static_cast<float>(double{norm} * sum.imag());
  }
}

}  // namespace kvq
