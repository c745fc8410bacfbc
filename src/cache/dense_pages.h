#pragma once

#include "cache/routing.h"
#include "cache/sequence.h"

#include <span>

namespace kvq {

/// New lists of some heads of a sequence, made of slots of its lists. Nothing changes before commit().
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
    Vector<PageRun*> runs;  // [runs_of_list()]
  };
  /// A page in FP16.
  struct Filled {
    FullPage full;
    int32_t count;             // slots in use
    const PageFormat* format;  // null: the router chooses
    bool stays = false;        // in FP16 for now
  };

  void assign_slots(int32_t layer, int32_t head, std::span<const int32_t> slots, std::byte* staging,
                    Vector<Filled>& pages);
  void fill(int32_t layer, std::span<const Vector<int32_t>> slots, std::span<std::byte* const> targets);
  void choose(int32_t layer, std::span<Filled> pages) const;
  void make(int32_t layer, std::span<const Filled> pages, Vector<PageWrite>& writes);

  Sequence& sequence_;
  Cache& cache_;
  Vector<List> lists_;
};

}  // namespace kvq
