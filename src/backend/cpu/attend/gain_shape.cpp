// The reference as a kernel.
#include "backend/cpu/attend/gain_shape.h"

#include "formats/gain_shape/gain_shape.h"

namespace kvq::cpu {

void encode_gain_shape(Side side, const SideFormat& format, int32_t head_dim, const std::byte* float16, int32_t used,
                       std::byte* out) {
  const PageFormat page(format, format, head_dim);
  gain_shape::encode({.side = side,
                      .format = page,
                      .first_head = 0,
                      .float16 = {&float16, 1},
                      .out = {&out, 1},
                      .used = used,
                      .positions = {nullptr, 0},
                      .context = nullptr});
}

}  // namespace kvq::cpu
