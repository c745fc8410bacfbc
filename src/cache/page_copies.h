#pragma once

#include "cache/cache.h"

namespace kvq {

/// Copies of FP16 pages that may not be changed because they are shared, made before anything else changes.
class PageCopies {
 public:
  explicit PageCopies(Cache& cache);
  PageCopies(const PageCopies&) = delete;
  PageCopies& operator=(const PageCopies&) = delete;
  /// Releases copies that nobody took.
  ~PageCopies();

  /// Copy the first `slots` slots; after run().
  void add(const Page& original, int32_t slots);
  void run();

  size_t record_bytes() const {
    return (originals_.capacity() + pages_.capacity()) * sizeof(Page*) + writes_.capacity() * sizeof(PageWrite);
  }

  /// Whether the copy that take() returns next is of `page`.
  bool is_next(const Page& page) const noexcept { return taken_ < pages_.size() && originals_[taken_] == &page; }
  /// The copies in the order they were added in, each with no slots in use yet.
  Page* take() noexcept { return pages_[taken_++]; }

 private:
  Cache& cache_;
  Vector<const Page*> originals_;
  Vector<Page*> pages_;
  Vector<PageWrite> writes_;
  size_t taken_ = 0;
};

}  // namespace kvq
