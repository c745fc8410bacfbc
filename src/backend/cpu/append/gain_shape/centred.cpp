#include "backend/cpu/context_codec.h"

#include "backend/cpu/dispatch/kernels.h"
#include "core/scratch.h"
#include "formats/gain_shape/layout.h"

namespace kvq::cpu {

void encode_centred(const TokenBatch& tokens, std::span<const FilledGroup> groups, const KernelTable& kernels,
                    Parallel& parallel, Allocator& scratch) {
  const PageFormat plain(SideFormat{}, SideFormat{}, tokens.head);
  const size_t room = kernels.centres.room_bytes(tokens.head.largest());
  for_each_block<std::byte>(parallel, scratch, 2 * groups.size(), room, [&](size_t i, std::byte* work) noexcept {
    const Side side = i % 2 == 0 ? Side::kKeys : Side::kValues;
    const PageWrite& write = groups[i / 2].write(0);
    if (!write.format->side(side).has_trained_centres()) return;
    const std::byte* float16 = groups[i / 2].float16[0] + plain.offset(side);
    std::byte* out = write.target + write.format->offset(side);
    kernels.centres.encode({.side = side,
                            .format = *write.format,
                            .first_head = write.head,
                            .float16 = {&float16, 1},
                            .out = {&out, 1},
                            .used = write.count(),
                            .positions = write.slot_positions(),
                            .context = tokens.context},
                           kernels.centres.nearest, work);
  });
}

uint64_t encode_centred_bytes(int32_t head_dim, uint64_t pages, const KernelTable& kernels, const Parallel& parallel) {
  return bytes_of_blocks<std::byte>(parallel, 2 * pages, kernels.centres.room_bytes(head_dim));
}

}  // namespace kvq::cpu
