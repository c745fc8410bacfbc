#include "backend/cpu/gain_shape/encode.h"

#include "formats/gain_shape/centred.h"
#include "formats/gain_shape/layout.h"

namespace kvq::cpu {

void encode_centred(const TokenBatch& tokens, std::span<const FilledGroup> groups, Parallel& parallel) {
  const PageFormat plain(SideFormat{}, SideFormat{}, tokens.head_dim);
  parallel.run(static_cast<int32_t>(2 * groups.size()), [&](int32_t i) noexcept {
    const FilledGroup& group = groups[static_cast<size_t>(i / 2)];
    const Side side = i % 2 == 0 ? Side::kKeys : Side::kValues;
    const PageWrite& write = group.write(0);
    if (!gain_shape::has_trained_centres(write.format->side(side).kind)) return;
    const std::byte* float16 = group.float16[0] + plain.offset(side);
    std::byte* out = write.target + write.format->offset(side);
    centred::encode({.side = side,
                     .format = *write.format,
                     .first_head = write.head,
                     .float16 = {&float16, 1},
                     .out = {&out, 1},
                     .used = write.count(),
                     .positions = write.slot_positions(),
                     .context = tokens.context});
  });
}

}  // namespace kvq::cpu
