#include "backend/cpu/append/filled_pages.h"

namespace kvq::cpu {

FilledPages::FilledPages(const TokenBatch& tokens, const PageWrites& writes, const KernelTable& kernels,
                         size_t page_bytes, Allocator& scratch)
    : tokens_(tokens),
      writes_(writes),
      kernels_(kernels),
      codec_(kernels.codec(tokens.context)),
      page_bytes_(page_bytes),
      memory_(scratch),
      staging_(scratch),
      float16_(scratch),
      groups_(scratch) {}

bool FilledPages::needs_context(const PageWrite& write) const { return write.format->needs_training(); }

void FilledPages::begin(std::span<const size_t> slice) {
  const size_t members = writes_.group_size();
  const size_t pages = codec_ != nullptr ? slice.size() * members : 0;
  const auto write_of = [&](size_t i) -> const PageWrite& { return writes_.of_group(slice[i / members], i % members); };
  staging_.clear();
  groups_.clear();
  size_t needed = 0;
  size_t filled = 0;
  for (size_t i = 0; i < pages; ++i) {
    if (!needs_context(write_of(i))) continue;
    ++needed;
    if (write_of(i).token_count > 0) ++filled;
  }
  if (needed == 0) return;
  staging_.assign(pages, nullptr);
  float16_.clear();
  float16_.reserve(needed);  // groups point into it
  groups_.reserve(needed / members);
  memory_.resize(size(filled, page_bytes_));
  std::byte* next = memory_.data();
  for (size_t i = 0; i < pages; ++i) {
    const PageWrite& write = write_of(i);
    if (!needs_context(write)) continue;
    if (i % members == 0) groups_.push_back({&writes_, slice[i / members], float16_.data() + float16_.size()});
    // A page that is only sealed is already in FP16.
    const std::byte* page = write.source;
    if (write.token_count > 0) {
      page = staging_[i] = next;
      next += page_bytes_;
    }
    float16_.push_back(page);
  }
}

uint64_t FilledPages::bytes_of(const ExpectedAppend& expected, const KernelTable& kernels, const Parallel& parallel,
                               size_t page_bytes) {
  const ContextCodec* codec = kernels.codec(expected.layer.context);
  if (codec == nullptr) return 0;
  const uint64_t pages = expected.pages();
  const auto members = static_cast<uint64_t>(expected.heads_together);
  return Allocator::bytes_in_block(AlignedBytes::bytes_of(expected.filled_pages() * page_bytes)) +
         2 * Allocator::bytes_in_block(pages * sizeof(std::byte*)) +
         Allocator::bytes_in_block(pages / members * sizeof(FilledGroup)) +
         codec->encode_bytes(expected.layer, pages / members, members, kernels, parallel);
}

void FilledPages::encode(Parallel& parallel, Allocator& scratch) const {
  if (!groups_.empty()) codec_->encode(tokens_, groups_, kernels_, parallel, scratch);
}

}  // namespace kvq::cpu
