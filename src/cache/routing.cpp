#include "cache/routing.h"

#include "core/error.h"

#include <algorithm>

namespace kvq {
namespace {

/// Whether all heads have pages of the same tokens: `pages` repeats `heads` times.
bool is_same_for_all_heads(std::span<const FullPage> pages, size_t heads) {
  if (pages.size() % heads != 0) return false;
  const size_t each = pages.size() / heads;
  for (size_t i = each; i < pages.size(); ++i) {
    const FullPage& first = pages[i % each];
    if (pages[i].head != static_cast<int32_t>(i / each) || pages[i].index != first.index ||
        pages[i].page.positions != first.page.positions) {
      return false;
    }
  }
  return true;
}

/// Format of the last decided page that begins at or before `position`, or null.
const PageFormat* decided_at(const Storage& storage, const Sequence::PageList& list, int32_t position) {
  const auto first = list.begin() + std::min<ptrdiff_t>(storage.sink, std::ssize(list));
  const auto last = std::max(first, list.end() - std::min<ptrdiff_t>(storage.recent, std::ssize(list)));
  const auto after =
      std::upper_bound(first, last, position, [](int32_t at, const Page* page) { return at < page->first_position; });
  return after == first ? nullptr : (*std::prev(after))->format();
}

}  // namespace

void choose_formats(const Sequence& sequence, int32_t layer, std::span<const FullPage> pages,
                    std::span<const Sequence::PageList* const> deciding, std::span<const PageFormat*> formats) {
  Cache& cache = sequence.cache;
  const auto& experts = sequence.storage->layer_at(layer).formats;
  const RouterShape& shape = cache.training.router->shape;
  if (shape.deciding_layer(layer) != layer) {
    for (size_t i = 0; i < pages.size(); ++i) {
      const Sequence::PageList& list = *deciding[static_cast<size_t>(pages[i].head)];
      const PageFormat* decided = decided_at(*sequence.storage, list, pages[i].page.positions.front());
      formats[i] = decided != nullptr ? decided : experts.front();
    }
    return;
  }
  Vector<PageToRoute> asked(cache.allocator);
  for (const FullPage& each : pages) {
    asked.push_back(each.page);
    asked.back().key_factors = sequence.scales(layer).find(ScaleArray::kQueries, each.head, cache.layer(layer).head);
  }
  Vector<int32_t> votes(pages.size() * experts.size(), 0, cache.allocator);
  cache.backend.voting().require().vote(asked, *cache.rotations, *cache.training.resident_router, shape.group_of(layer),
                                        votes);

  const auto heads = static_cast<size_t>(cache.layer(layer).kv_heads);
  const bool together = cache.votes == Votes::kLayer && is_same_for_all_heads(pages, heads);
  const size_t period = together ? pages.size() / heads : pages.size();
  for (size_t i = period * experts.size(); i < votes.size(); ++i) votes[i % (period * experts.size())] += votes[i];
  for (size_t i = 0; i < pages.size(); ++i) {
    const auto of_page = std::span(votes).subspan(i % period * experts.size(), experts.size());
    formats[i] = experts[static_cast<size_t>(elected(of_page))];
  }
}

RoutedPages::RoutedPages(Sequence& sequence, int32_t layer)
    : sequence_(sequence),
      cache_(sequence.cache),
      layer_(layer),
      pages_(cache_.allocator),
      is_put_together_(cache_.allocator),
      staged_(cache_.allocator),
      memory_(cache_.backend, cache_.allocator),
      formats_(cache_.allocator) {}

void RoutedPages::add(int32_t head, int32_t index, const Page* old, int32_t token, std::span<const int32_t> positions) {
  FullPage full{head, index, {old != nullptr ? old->data : nullptr, {}, nullptr}};
  const int32_t kept = old != nullptr ? old->count : 0;
  for (int32_t slot = 0; slot < kept; ++slot) full.page.positions[static_cast<size_t>(slot)] = old->position(slot);
  std::copy(positions.begin(), positions.end(), full.page.positions.begin() + kept);
  if (!positions.empty()) {
    staged_.push_back({.source = full.page.data,
                       .kept = kept,
                       .head = head,
                       .token_begin = token,
                       .token_count = static_cast<int32_t>(positions.size()),
                       .format = cache_.layer(layer_).float16,
                       .index = index,
                       .first_position = full.page.positions.front(),
                       .scales = sequence_.scales(layer_)});  // its target once all are known
  }
  pages_.push_back(full);
  is_put_together_.push_back(!positions.empty());
}

void RoutedPages::choose(const TokenBatch& tokens, int32_t length) {
  const int32_t decider = cache_.training.router->shape.deciding_layer(layer_);
  if (decider != layer_ && sequence_.length(decider) < length) {
    fail(KVQ_E_STATE,
         "layer is %d, whose pages have the formats of layer %d: append to that first, it holds %d tokens where %d are "
         "needed",
         cache_.number(layer_), cache_.number(decider), sequence_.length(decider), length);
  }
  if (pages_.empty()) return;
  if (decider == layer_) {
    stage(tokens);
  } else {
    staged_.clear();  // the pages' positions suffice
  }
  Vector<const Sequence::PageList*> deciding(cache_.allocator);
  for (int32_t head = 0; head < cache_.layer(layer_).kv_heads; ++head)
    deciding.push_back(&sequence_.list(decider, head));
  formats_.resize(pages_.size());
  choose_formats(sequence_, layer_, pages_, deciding, formats_);
}

/// Assemble the pages in FP16, from which sealing encodes.
void RoutedPages::stage(const TokenBatch& tokens) {
  const size_t page_bytes = cache_.layer(layer_).float16->bytes();
  memory_.make(uint64_t{staged_.size()} * page_bytes);
  std::byte* next = memory_.data();
  size_t staged = 0;
  for (size_t i = 0; i < pages_.size(); ++i) {
    if (!is_put_together_[i]) continue;
    PageToRoute& page = pages_[i].page;
    staged_[staged].target = next;
    staged_[staged++].positions = page.positions.data();
    page.data = next;
    next += page_bytes;
  }
  if (!staged_.empty()) cache_.backend.pages().append(tokens, {staged_, 1}, {}, cache_.allocator);
}

RoutedPages::Choice RoutedPages::next() {
  const size_t first = taken_++;
  int32_t alike = 0;
  for (size_t i = first; i < pages_.size() && pages_[i].head == pages_[first].head; ++i) {
    if (formats_[i] == formats_[first]) ++alike;
  }
  return {formats_[first], memory_.empty() || !is_put_together_[first] ? nullptr : pages_[first].page.data, alike};
}

}  // namespace kvq
