#include "cache/evicted_layer.h"

#include <algorithm>
#include <utility>

namespace kvq {
namespace {

int32_t new_pages(size_t slots) { return static_cast<int32_t>((slots + kPageSlots - 1) / kPageSlots); }

bool is_consecutive(int32_t first, int32_t last, int32_t count) { return last - first == count - 1; }

}  // namespace

EvictedLayer::EvictedLayer(Sequence& sequence, int32_t layer, std::span<const Vector<int32_t>> slots)
    : sequence_(sequence),
      cache_(sequence.cache),
      storage_(*sequence.storage),
      layer_(layer),
      lists_(cache_.allocator) {
  lists_.reserve(slots.size());
  size_t longest = 0;
  for (const Sequence::PageList& list : sequence.lists_of(layer)) longest = std::max(longest, list.size());
  step_ = step_of(cache_, storage_, longest);
  try {
    for (int32_t head = 0; head < cache_.layer(layer_).kv_heads; ++head) {
      const Vector<int32_t>& of_head = slots[static_cast<size_t>(head)];
      if (static_cast<int32_t>(of_head.size()) == sequence.slots(layer, head)) continue;
      lists_.push_back({.head = head, .slots = of_head, .pages = Vector<NewPage>(cache_.allocator)});
      plan(lists_.back());
    }
  } catch (...) {
    drop();
    throw;
  }
}

EvictedLayer::~EvictedLayer() { drop(); }

void EvictedLayer::drop() noexcept {
  for (List& list : lists_) {
    for (NewPage& each : list.pages) {
      cache_.release_positions(std::exchange(each.positions, nullptr));
      if (!each.is_reused && each.page != nullptr) cache_.release(std::exchange(each.page, nullptr));
    }
  }
}

void EvictedLayer::plan(List& list) {
  const Sequence::PageList& old = sequence_.list(layer_, list.head);
  const int32_t pages = new_pages(list.slots.size());
  const PageFormat* sealed = storage_.layer_at(layer_).formats.front();
  list.pages.reserve(static_cast<size_t>(pages));
  auto spare = static_cast<int32_t>(old.size());  // of the pages from here on, none is free to be taken
  const auto is_free = [&](const Page& page, const PageFormat* format, bool alone) {
    return !page.is_shared() && page.format() == format && (!alone || page.run->capacity == 1);
  };
  PageRun* run = nullptr;
  size_t at = 0;
  int32_t first_slot = 0;
  const auto position_of = [&](int32_t slot) {
    while (slot >= first_slot + old[at]->count) first_slot += old[at++]->count;
    return old[at]->position(slot - first_slot);
  };
  try {
    for (int32_t index = 0; index < pages; ++index) {
      const bool newest = index >= pages - storage_.recent;
      const bool stays = storage_.stays_float16(layer_, index, pages);
      const PageFormat* format = stays ? cache_.layer(layer_).float16 : sealed;
      const bool alone = format->is_float16() && !storage_.ends_float16(layer_, index);
      Page* page = nullptr;
      if (is_free(*old[static_cast<size_t>(index)], format, alone)) page = old[static_cast<size_t>(index)];
      while (page == nullptr && newest && spare > pages) {
        Page* last = old[static_cast<size_t>(--spare)];
        if (is_free(*last, format, alone)) page = last;
      }
      const bool reused = page != nullptr;
      if (!reused) {
        PageRun** place = storage_.is_final(format, layer_) ? &run : nullptr;
        page = cache_.make_page(format, false, place, Sequence::run_capacity(0, pages - index));
      }
      list.pages.push_back({page, nullptr, reused});
      const size_t begin = static_cast<size_t>(index) * kPageSlots;
      const size_t end = std::min(begin + kPageSlots, list.slots.size());
      const int32_t first = position_of(list.slots[begin]);
      const int32_t last = position_of(list.slots[end - 1]);
      if (!is_consecutive(first, last, static_cast<int32_t>(end - begin)) && page->positions == nullptr) {
        list.pages.back().positions = cache_.allocate_positions();
      }
    }
  } catch (...) {
    cache_.release(run);
    throw;
  }
  cache_.release(run);
}

void EvictedLayer::commit(BackendMemory& staging, Allocator& scratch) {
  const auto page_bytes = cache_.layer(layer_).float16->bytes();
  const auto step = static_cast<size_t>(step_);
  Weighing& weighing = cache_.backend.weighing().require();
  Vector<Write> writes(scratch);
  Vector<SlotMove> moves(scratch);
  Vector<std::byte*> targets(sequence_.heads(layer_), nullptr, scratch);
  writes.reserve(step * sequence_.heads(layer_));
  moves.reserve(step * sequence_.heads(layer_) * kPageSlots);
  for (;;) {
    writes.clear();
    moves.clear();
    std::ranges::fill(targets, nullptr);
    for (List& list : lists_) {
      const auto h = static_cast<size_t>(list.head);
      targets[h] = staging.data() + h * step * page_bytes;
      read(list, targets[h], moves, writes);
    }
    if (writes.empty()) break;
    weighing.clear(staging.data(), step * sequence_.heads(layer_) * page_bytes);
    move_slots(sequence_, layer_, moves, targets, scratch);
    write(writes, scratch);
  }
  for (List& list : lists_) replace(list);
}

/// Plan the next pages of a list, whose slots move to FP16 pages from `target` on.
void EvictedLayer::read(List& list, std::byte* target, Vector<SlotMove>& moves, Vector<Write>& writes) {
  const Sequence::PageList& old = sequence_.list(layer_, list.head);
  const auto pages = static_cast<int32_t>(list.pages.size());
  int32_t end = std::min(list.written + step_, pages);
  // The newest pages may take the place of any that are left, so they are read together.
  if (end < pages) end = std::max(std::min(end, first_newest(list)), list.written);
  const auto first_move = static_cast<ptrdiff_t>(moves.size());
  int32_t rank = 0;
  for (int32_t index = list.written; index < end; ++index) {
    const size_t begin = static_cast<size_t>(index) * kPageSlots;
    const auto of_page = list.slots.subspan(begin, std::min<size_t>(kPageSlots, list.slots.size() - begin));
    writes.push_back(
        {.list = &list,
         .index = index,
         .count = static_cast<int32_t>(of_page.size()),
         .source = target + static_cast<size_t>(index - list.written) * cache_.layer(layer_).float16->bytes(),
         .positions = {}});
    for (size_t i = 0; i < of_page.size(); ++i, ++rank) {
      while (of_page[i] >= list.first_slot + old[list.page]->count) list.first_slot += old[list.page++]->count;
      const int32_t within = of_page[i] - list.first_slot;
      writes.back().positions[i] = old[list.page]->position(within);
      const auto from = static_cast<int32_t>(list.page);
      if (std::ssize(moves) == first_move || moves.back().index != from) {
        moves.push_back({.head = list.head, .index = from, .slots = 0, .rank = rank});
      }
      moves.back().slots |= uint32_t{1} << static_cast<uint32_t>(within);
    }
  }
  list.written = end;
}

void EvictedLayer::write(std::span<Write> writes, Allocator& scratch) {
  Weighing& weighing = cache_.backend.weighing().require();
  Vector<PageWrite> pages(scratch);
  pages.reserve(writes.size());
  for (const Write& each : writes) {
    NewPage& made = each.list->pages[static_cast<size_t>(each.index)];
    Page& page = *made.page;
    if (made.is_reused) weighing.clear(page.data, page.format()->bytes());
    page.first_position = each.positions.front();
    if (is_consecutive(each.positions.front(), each.positions[static_cast<size_t>(each.count) - 1], each.count)) {
      cache_.release_positions(&page);
    } else {
      if (page.positions == nullptr) page.positions = std::exchange(made.positions, nullptr);
      std::ranges::copy(each.positions, page.positions);
    }
    cache_.set_count(&page, each.count);
    pages.push_back({.source = each.source,
                     .kept = each.count,
                     .head = each.list->head,
                     .target = page.data,
                     .format = page.format(),
                     .index = each.index,
                     .first_position = page.first_position,
                     .positions = page.positions});
  }
  cache_.backend.pages().append(cache_.no_tokens(layer_), cache_.page_writes(layer_, pages), {}, scratch);
}

/// Put the new pages in place of the old ones.
void EvictedLayer::replace(List& list) noexcept {
  Sequence::PageList& pages = sequence_.list(layer_, list.head);
  const auto newest = std::span(list.pages).subspan(static_cast<size_t>(first_newest(list)));
  for (size_t i = 0; i < pages.size(); ++i) {
    const bool stays = (i < list.pages.size() && list.pages[i].page == pages[i]) ||
                       std::ranges::find(newest, pages[i], &NewPage::page) != newest.end();
    if (!stays) cache_.release(pages[i]);
  }
  pages.resize(list.pages.size());
  for (size_t i = 0; i < pages.size(); ++i) {
    pages[i] = std::exchange(list.pages[i].page, nullptr);
    list.pages[i].is_reused = false;
  }
  for (PageRun*& run : sequence_.runs_of(sequence_.list_index(layer_, list.head))) {
    if (run == nullptr) continue;
    int32_t used = 0;
    int32_t own = 0;
    for (const Page* page : pages) {
      if (page->run != run) continue;
      ++own;
      used = std::max(used, static_cast<int32_t>(page - run->pages()) + 1);
    }
    if (own == 0) {
      cache_.release(std::exchange(run, nullptr));
    } else if (run->references.load(std::memory_order_acquire) == own + 1) {
      run->used = used;
    }
  }
  if (LayerMirror* mirror = sequence_.mirror(layer_)) mirror->invalidate(list.head, 0);
}

void EvictedLayer::trim() noexcept {
  for (const List& list : lists_) {
    Sequence::PageList& pages = sequence_.list(layer_, list.head);
    for (const Page* const* at = pages.data(); at < pages.data() + pages.size(); ++at) {
      if (at == pages.data() || at[0]->run != at[-1]->run) trim_run(list.head, *at[0]->run);
    }
    try {
      Sequence::PageList exact(cache_.allocator);
      exact.reserve(pages.size() + pages.size() / 4 + 1);
      if (exact.capacity() >= pages.capacity()) continue;
      exact.assign(pages.begin(), pages.end());
      pages.swap(exact);
    } catch (...) {  // the longer one serves as well
    }
  }
}

/// Move a run's pages to one of their number, if they are few.
void EvictedLayer::trim_run(int32_t head, PageRun& run) noexcept {
  Sequence::PageList& pages = sequence_.list(layer_, head);
  const auto fills = sequence_.runs_of(sequence_.list_index(layer_, head));
  const auto fill = std::ranges::find(fills, &run);
  const auto own =
      static_cast<int32_t>(std::ranges::count_if(pages, [&run](const Page* page) { return page->run == &run; }));
  const bool is_alone = run.references.load(std::memory_order_acquire) == own + (fill != fills.end() ? 1 : 0);
  if (!is_alone || own + own / 4 >= run.capacity) return;
  PageRun* smaller = nullptr;
  Page* first = nullptr;
  try {
    first = cache_.make_page(run.format, false, &smaller, own);
  } catch (...) {
    return;
  }
  Weighing& weighing = cache_.backend.weighing().require();
  const size_t bytes = run.format->bytes();
  if (fill != fills.end()) cache_.release(std::exchange(*fill, nullptr));
  PageRun* const old = &run;
  for (Page*& place : pages) {
    if (place->run != old) continue;
    Page* page =
        first != nullptr ? std::exchange(first, nullptr) : cache_.make_page(smaller->format, false, &smaller, own);
    weighing.copy(page->data, place->data, bytes);
    page->positions = std::exchange(place->positions, nullptr);
    page->first_position = place->first_position;
    cache_.set_count(page, place->count);
    cache_.release(std::exchange(place, page));
  }
  cache_.release(smaller);
}

uint64_t EvictedLayer::scratch_bytes(const Cache& cache, const Storage& storage, size_t longest) {
  const auto heads = static_cast<uint64_t>(cache.most_kv_heads());
  const int32_t at_once = step_of(cache, storage, longest);
  const uint64_t pages = heads * static_cast<uint64_t>(at_once);
  const auto piece = [](uint64_t count, uint64_t bytes) { return Allocator::bytes_in_block(count * bytes); };
  uint64_t of_backend = 0;
  size_t largest = cache.most_float16_bytes();
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    TokenBatch tokens = cache.no_tokens(layer);
    tokens.n = at_once * kPageSlots;
    const auto& formats = storage.layer_at(layer).formats;
    const ExpectedAppend append{tokens, formats, 1, cache.page_writes(layer, {}).heads_together()};
    of_backend = std::max(of_backend, cache.backend.pages().append_bytes(append));
    for (const PageFormat* format : formats) largest = std::max(largest, format->bytes());
  }
  return piece(pages, sizeof(Write)) + piece(pages * kPageSlots, sizeof(SlotMove)) + piece(heads, sizeof(std::byte*)) +
         piece(pages, sizeof(PageWrite)) + std::max(of_backend, move_bytes(cache, largest));
}

uint64_t EvictedLayer::plan_bytes(const Cache& cache, int64_t remaining_slots) {
  const uint64_t pages =
      static_cast<uint64_t>(remaining_slots) / kPageSlots + static_cast<uint64_t>(cache.most_kv_heads());
  return sizeof(EvictedLayer) + static_cast<uint64_t>(cache.most_kv_heads()) * sizeof(List) +
         pages * (sizeof(NewPage) + sizeof(int32_t) * kPageSlots);
}

}  // namespace kvq
