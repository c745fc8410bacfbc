#include "cache/page_copies.h"

#include <algorithm>

namespace kvq {

PageCopies::PageCopies(Cache& cache)
    : cache_(cache), originals_(cache.allocator), pages_(cache.allocator), writes_(cache.allocator) {}

PageCopies::~PageCopies() {
  for (size_t i = taken_; i < pages_.size(); ++i) cache_.release(pages_[i]);
}

void PageCopies::add(const Page& original, int32_t slots) {
  if (pages_.size() == pages_.capacity()) pages_.reserve(2 * pages_.size() + 1);  // nothing may fail once it is made
  originals_.reserve(pages_.capacity());
  Page* copy = cache_.make_page(original.format(), original.positions != nullptr);
  pages_.push_back(copy);
  originals_.push_back(&original);
  copy->first_position = original.first_position;
  if (copy->positions != nullptr) std::copy_n(original.positions, kPageSlots, copy->positions);
  writes_.push_back({.source = original.data, .kept = slots, .target = copy->data, .format = original.format()});
}

void PageCopies::run() {
  if (writes_.empty()) return;
  const TokenBatch none{.kv_heads = cache_.kv_heads, .head_dim = cache_.head_dim, .rope = &cache_.rope};
  cache_.backend.pages().append(none, {writes_, 1}, {}, cache_.allocator);
  writes_.clear();
}

}  // namespace kvq
