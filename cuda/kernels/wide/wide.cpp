// Sizes of heads in shared memory, and the kernel for them.
#include "kernels/wide/wide.h"

#include <algorithm>

namespace kvq::cuda {
namespace {

constexpr int32_t whole_planes(int32_t channels) { return (channels + 63) / 64 * 64; }

/// The largest pages of gain–shape codes.
constexpr FormatCode kLargestGains{FormatCode::both(CodeType::gain_scalar(4)).bits | 1U << FormatCode::kPageMeanBit};

}  // namespace

WideWidths least_widths(const HeadShape& head) {
  const int32_t values = whole_planes(head.values);
  return {.key_width = whole_planes(head.keys), .common_width = head.is_latent ? values : 0, .value_width = values};
}

int32_t largest_page(const HeadShape& head) {
  return std::max({page_places(FormatCode{}, head).bytes,
                   page_places(FormatCode::both(CodeType::integer(8)), head).bytes,
                   page_places(kLargestGains, head).bytes});
}

int32_t largest_copy(const HeadShape& head) {
  if (head.is_latent) return largest_page(head);
  const PagePlaces float16 = page_places(FormatCode{}, head);
  const PagePlaces integers = page_places(FormatCode::both(CodeType::integer(8)), head);
  return std::max({float16.keys.bytes, float16.values.bytes, integers.keys.bytes, integers.values.bytes,
                   page_places(kLargestGains, head).bytes});
}

WideKernel choose_wide(const HeadShape& head, const WideWork& work, int32_t compute_capability, int32_t shared_limit) {
  // Two blocks that do not decode pages are faster than one that does.
  constexpr int32_t kFewRows = 32;
  // With fewer, blocks of many rows mostly wait for their queries, and there are too few of them.
  constexpr int64_t kLeastPages = 24;
  const int64_t blocks = (int64_t{work.rows} + kManyRows - 1) / kManyRows;
  const bool many = work.most_rows > kFewRows && blocks * work.longest >= kLeastPages * work.multiprocessors;
  WideKernel kernel{};
  if (many && compute_capability == 90) {
    if (work.tiles) kernel = hopper_tiled_wide(head, shared_limit);
    if (kernel.launch == nullptr) kernel = hopper_wide(head, shared_limit);
  }
  if (many && kernel.launch == nullptr) kernel = large_wide(head, shared_limit);
  if (kernel.launch == nullptr && work.most_rows > 8) kernel = sliced_wide_16(head, shared_limit);
  return kernel.launch != nullptr ? kernel : sliced_wide_8(head, shared_limit);
}

}  // namespace kvq::cuda
