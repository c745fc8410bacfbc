#pragma once

#include "backend/cpu/dispatch/kernels.h"
#include "core/aligned_bytes.h"

#include <span>

namespace kvq::cpu {

/// The pages of a slice of an append that are encoded with their layer's context: first all of a group are put together
/// in FP16, then they are encoded from there.
class FilledPages {
 public:
  FilledPages(const TokenBatch& tokens, const PageWrites& writes, const KernelTable& kernels, size_t page_bytes,
              Allocator& scratch);

  /// Make room for the pages of the next slice: the groups `slice`.
  void begin(std::span<const size_t> slice);
  /// Where page `i` of the slice is put together; null if it is not, because it is encoded by itself or lies in FP16
  /// already.
  std::byte* staging(size_t i) { return staging_.empty() ? nullptr : staging_[i]; }
  void encode(Parallel& parallel, Allocator& scratch) const;

 private:
  bool needs_context(const PageWrite& write) const;

  const TokenBatch& tokens_;
  const PageWrites& writes_;
  const KernelTable& kernels_;
  const ContextCodec* codec_;  // null: no page needs the context
  size_t page_bytes_;          // in FP16
  AlignedBytes memory_;
  Vector<std::byte*> staging_;        // [slice, members]; empty if no page needs the context
  Vector<const std::byte*> float16_;  // [groups_, members]
  Vector<FilledGroup> groups_;
};

}  // namespace kvq::cpu
