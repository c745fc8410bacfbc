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
  if (original.is_float16()) {
    writes_.push_back({.source = original.data, .kept = slots, .target = copy->data, .format = original.format()});
  } else {
    AlignedBytes bytes(cache_.allocator);
    bytes.resize(original.format()->bytes());
    cache_.backend.pages().read(*original.format(), original.data, bytes.data());
    cache_.backend.pages().write(*original.format(), bytes.data(), copy->data);
  }
}

void PageCopies::run() {
  if (writes_.empty()) return;
  // Pages of layers that are alike together.
  for (auto first = writes_.begin(); first != writes_.end();) {
    const HeadShape head = first->format->head;
    const auto last =
        std::find_if(first, writes_.end(), [&](const PageWrite& each) { return each.format->head != head; });
    const TokenBatch none{.kv_heads = cache_.most_kv_heads(), .head = head, .rope = cache_.layer(0).rope};
    cache_.backend.pages().append(none, {{&*first, static_cast<size_t>(last - first)}, 1}, {}, cache_.allocator);
    first = last;
  }
  writes_.clear();
}

}  // namespace kvq
