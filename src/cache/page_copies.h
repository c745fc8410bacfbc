#pragma once

#include "cache/cache.h"

namespace kvq {

/// Copies of shared pages, made before anything else changes.
class PageCopies {
 public:
  explicit PageCopies(Cache& cache);
  PageCopies(const PageCopies&) = delete;
  PageCopies& operator=(const PageCopies&) = delete;
  /// Releases copies that were not taken.
  ~PageCopies();

  /// Add a page to copy, its first `slots` slots; run() copies.
  void add(const Page& original, int32_t slots);
  void run();

  size_t record_bytes() const {
    return (originals_.capacity() + pages_.capacity()) * sizeof(Page*) + writes_.capacity() * sizeof(PageWrite);
  }

  /// Whether take() returns the copy of `page` next.
  bool is_next(const Page& page) const noexcept { return taken_ < pages_.size() && originals_[taken_] == &page; }
  /// Returns the copies in order, each with no slots in use yet.
  Page* take() noexcept { return pages_[taken_++]; }

 private:
  Cache& cache_;
  Vector<const Page*> originals_;
  Vector<Page*> pages_;
  Vector<PageWrite> writes_;
  size_t taken_ = 0;
};

}  // namespace kvq
