#pragma once

#include "cache/sequence.h"

#include <span>

namespace kvq {

/// New lists of some heads of a sequence, of slots of the lists it has. Until they are committed nothing has changed.
class DensePages {
 public:
  explicit DensePages(Sequence& sequence);
  ~DensePages();
  DensePages(const DensePages&) = delete;
  DensePages& operator=(const DensePages&) = delete;

  /// `slots`: [kv_heads] lists of slots, rising. A head whose slots all stay keeps its list.
  void add_layer(int32_t layer, std::span<const Vector<int32_t>> slots);
  void commit() noexcept;

 private:
  struct List {
    size_t index;  // of the sequence's lists
    Sequence::PageList pages;
    PageRun* run;
  };

  void add_head(int32_t layer, int32_t head, std::span<const int32_t> slots, std::byte* staging,
                Vector<PageWrite>& writes);

  Sequence& sequence_;
  Cache& cache_;
  Vector<List> lists_;
};

}  // namespace kvq
