#pragma once

#include "backend/cpu/dispatch/kernels.h"
#include "core/memory.h"

#include <span>

namespace kvq::cpu {

/// Pages of an append slice that are encoded with their layer's context: FP16 pages of a whole group are assembled
/// first, then encoded from there.
class FilledPages {
 public:
  FilledPages(const TokenBatch& tokens, const PageWrites& writes, const KernelTable& kernels, size_t page_bytes,
              Allocator& scratch);

  /// Most bytes in an allocator's block, encode() included.
  static uint64_t bytes_of(const ExpectedAppend& expected, const KernelTable& kernels, const Parallel& parallel,
                           size_t page_bytes);

  /// Makes room for the pages of the next slice: the groups `slice`.
  void begin(std::span<const size_t> slice);
  /// Where page `i` of the slice is assembled; null if it is encoded by itself or is in FP16 already.
  std::byte* staging(size_t i) { return staging_.empty() ? nullptr : staging_[i]; }
  void encode(Parallel& parallel, Allocator& scratch) const;

 private:
  bool needs_context(const PageWrite& write) const;

  const TokenBatch& tokens_;
  const PageWrites& writes_;
  const KernelTable& kernels_;
  const ContextCodec* codec_;  // null: no page needs the context
  size_t page_bytes_;          // size of an FP16 page
  AlignedBytes memory_;
  Vector<std::byte*> staging_;        // [slice, members]; empty if no page needs the context
  Vector<const std::byte*> float16_;  // [groups_, members]
  Vector<FilledGroup> groups_;
};

}  // namespace kvq::cpu
