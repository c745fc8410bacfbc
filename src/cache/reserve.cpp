#include "cache/reserve.h"

#include "cache/forget.h"
#include "cache/observations.h"
#include "cache/step.h"
#include "core/error.h"

#include <algorithm>
#include <climits>
#include <utility>

namespace kvq {
namespace {

/// Most pages that a list has until it has received `tokens` more tokens in appends and steps of up to `step`.
int32_t pages_until(const Sequence& sequence, int32_t layer, int32_t head, int32_t tokens, int32_t step) {
  const Sequence::PageList& list = sequence.list(layer, head);
  const int32_t most = most_pages(sequence.cache.layer(layer), *sequence.storage, step);
  // A list that has more yet frees pages with its next append.
  return std::min(Sequence::pages_after(list, tokens), std::max(most, Sequence::pages_after(list, step)));
}

int32_t longest_until(const Sequence& sequence, int32_t layer, int32_t tokens, int32_t step) {
  int32_t pages = 1;
  for (int32_t head = 0; head < sequence.cache.layer(layer).kv_heads; ++head) {
    pages = std::max(pages, pages_until(sequence, layer, head, tokens, step));
  }
  return pages;
}

}  // namespace

int32_t longest_after(const Sequence& sequence, int32_t tokens, int32_t step) {
  int32_t pages = 1;
  for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
    pages = std::max(pages, longest_until(sequence, layer, tokens, step));
  }
  return pages;
}

ReservePlaces::ReservePlaces(const Storage& storage, int32_t layer, bool forgets, int32_t pages, int32_t ring_)
    : ring(ring_) {
  const bool float16 = storage.layer_at(layer).stays_float16();
  // These tokens never seal the newest pages.
  finals = float16 ? pages : std::max({pages - storage.recent, std::min(storage.sink, pages), 0});
  sinks = float16 ? finals : std::min(storage.sink, finals);
  open = float16 ? 0 : forgets ? ring : std::max(pages - std::max(pages - ring, storage.sink), 0);
}

Reserve::Reserve(Sequence& sequence, int32_t layer, int32_t tokens, int32_t opened, Reserve* old, Allocator& scratch)
    : sequence_(sequence),
      cache_(sequence.cache),
      layer_(layer),
      opened_(opened),
      ring_(ReservePlaces::ring_of(*sequence.storage, longest_until(sequence, layer, tokens, step_tokens()), opened)),
      longest_(longest_until(sequence, layer, tokens, step_tokens())),
      pages_(cache_.allocator),
      finals_(cache_.allocator),
      open_(cache_.allocator),
      final_lists_(cache_.allocator),
      final_counts_(cache_.allocator),
      open_lists_(cache_.allocator),
      originals_(cache_.allocator),
      borrowed_(cache_.allocator),
      copies_(cache_),
      shared_(cache_.allocator) {
  const auto heads = static_cast<size_t>(kv_heads());
  pages_.reserve(heads);
  finals_.reserve(heads);
  open_.reserve(heads);
  for (int32_t head = 0; head < kv_heads(); ++head) {
    const int32_t pages = pages_until(sequence, layer, head, tokens, step_tokens());
    const ReservePlaces places(*sequence_.storage, layer, forgets(), pages, ring_);
    pages_.push_back(pages);
    finals_.emplace_back(static_cast<size_t>(places.finals), nullptr, cache_.allocator);
    open_.emplace_back(static_cast<size_t>(ring_), nullptr, cache_.allocator);
  }
  originals_.reserve(size(heads, ring_));
  originals_.assign(size(heads, ring_), -1);
  final_lists_.reserve(heads);
  final_counts_.reserve(heads);
  open_lists_.reserve(heads);
  for (size_t head = 0; head < heads; ++head) {
    final_lists_.push_back(finals_[head].data());
    final_counts_.push_back(static_cast<int32_t>(finals_[head].size()));
    open_lists_.push_back(open_[head].data());
  }
  try {
    for (int32_t head = 0; head < kv_heads(); ++head) fill(head, pages_[static_cast<size_t>(head)], old, scratch);
    copies_.run();
  } catch (...) {
    give_back();
    throw;
  }
}

Reserve::~Reserve() { give_back(); }

void Reserve::give_back() noexcept {
  for (const Borrowed& page : borrowed_) *page.theirs = std::exchange(*page.ours, nullptr);
  borrowed_.clear();
  for (auto* places : {&finals_, &open_}) {
    for (Vector<Page*>& of_head : *places) {
      for (Page*& page : of_head) {
        if (page != nullptr) cache_.release(std::exchange(page, nullptr));
      }
    }
  }
}

void Reserve::borrow(Page** from, Page** to) {
  borrowed_.push_back({from, to});
  *to = std::exchange(*from, nullptr);
}

/// Make or borrow the missing pages of one list.
void Reserve::fill(int32_t head, int32_t pages, Reserve* old, Allocator& scratch) {
  const Sequence::PageList& list = sequence_.list(layer_, head);
  const auto existing = static_cast<int32_t>(list.size());
  Vector<Page*>& finals = finals_[static_cast<size_t>(head)];
  Vector<Page*>& open = open_[static_cast<size_t>(head)];
  const ReservePlaces places(*sequence_.storage, layer_, forgets(), pages, ring_);

  PageRun* run = nullptr;
  try {
    for (int32_t i = 0; i < static_cast<int32_t>(finals.size()); ++i) {
      const PageFormat* format = final_format(i);
      if (i < existing && list[static_cast<size_t>(i)]->format() == format) continue;
      Page** theirs = old != nullptr ? old->place(head, i, format) : nullptr;
      if (theirs != nullptr && *theirs != nullptr) {
        borrow(theirs, &finals[static_cast<size_t>(i)]);
        cache_.release(std::exchange(run, nullptr));  // pages of a run are consecutive
        continue;
      }
      finals[static_cast<size_t>(i)] = cache_.make_page(format, false, &run, places.run_pages(i));
    }
  } catch (...) {
    cache_.release(run);
    throw;
  }
  cache_.release(run);

  // A list's open pages return to the ring when sealed.
  Vector<bool> taken(static_cast<size_t>(ring_), false, scratch);
  const int32_t first_open = std::max(existing - sequence_.storage->recent, 0);
  for (int32_t i = forgets() ? 0 : first_open; i < existing; ++i) {
    const Page* page = list[static_cast<size_t>(i)];
    const bool may_be_open = i >= first_open && page->is_float16();
    if (may_be_open && !ends_float16(i)) taken[static_cast<size_t>(i % ring_)] = true;
    const bool is_changed = may_be_open && (!ends_float16(i) || (i == existing - 1 && page->count < kPageSlots));
    if (!(is_changed || sequence_.device_reuses(layer_, i)) || !page->is_shared()) continue;
    copies_.add(*page, page->count);
    shared_.push_back({head, i});
  }
  // All other places, also of pages that the list has: after a truncation they may be opened again.
  size_t next = 0;
  const bool all = forgets() && places.open > 0;
  const int32_t first = all ? 0 : std::max(pages - ring_, sequence_.storage->sink);
  for (int32_t i = first; i < (all ? ring_ : pages); ++i) {
    const auto slot = static_cast<size_t>(i % ring_);
    if ((!all && ends_float16(i)) || taken[slot]) continue;
    taken[slot] = true;
    const auto old_ring = old != nullptr ? static_cast<size_t>(old->ring_) : 0;
    while (next < old_ring && old->open_[static_cast<size_t>(head)][next] == nullptr) ++next;
    if (next < old_ring) {
      borrow(&old->open_[static_cast<size_t>(head)][next], &open[slot]);
    } else {
      open[slot] = cache_.make_page(cache_.layer(layer_).float16, false);
    }
  }
}

void Reserve::commit() noexcept {
  for (const Shared& shared : shared_) {
    Page*& page = sequence_.list(layer_, shared.head)[static_cast<size_t>(shared.index)];
    Page* copy = copies_.take();
    cache_.set_count(copy, page->count);
    cache_.release(page);
    page = copy;
    if (LayerMirror* mirror = sequence_.mirror(layer_)) mirror->invalidate(shared.head, shared.index);
  }
  shared_.clear();
  borrowed_.clear();
}

Page** Reserve::place(int32_t head, int32_t index, const PageFormat* format) {
  if (format == final_format(index)) {
    Vector<Page*>& finals = finals_[static_cast<size_t>(head)];
    return static_cast<size_t>(index) < finals.size() ? &finals[static_cast<size_t>(index)] : nullptr;
  }
  const bool is_beyond = ring_ <= sequence_.storage->recent && index >= ring_;
  if (!format->is_float16() || is_beyond) return nullptr;
  return &open_[static_cast<size_t>(head)][static_cast<size_t>(index % ring_)];
}

Page* Reserve::find(int32_t head, int32_t index, const PageFormat* format) {
  Page** found = place(head, index, format);
  return found != nullptr ? *found : nullptr;
}

void Reserve::took(int32_t head, int32_t index, const PageFormat* format) noexcept {
  Page** taken = place(head, index, format);
  *taken = nullptr;
  if (is_open(head, taken)) original_at(head, index) = -1;
}

bool Reserve::keep(int32_t head, int32_t index, Page* page) noexcept {
  Page** free = place(head, index, page->format());
  if (free == nullptr || *free != nullptr || page->is_shared()) return false;
  // Pages that a long call made together would keep the memory of all of them.
  if (is_open(head, free) && (page->run->capacity > 1 || is_place_of_newer(head, index))) return false;
  cache_.set_count(page, 0);
  cache_.release_positions(page);
  *free = page;
  if (is_open(head, free)) original_at(head, index) = -1;
  return true;
}

bool Reserve::is_place_of_newer(int32_t head, int32_t index) const {
  const Sequence::PageList& list = sequence_.list(layer_, head);
  const auto pages = static_cast<int32_t>(list.size());
  for (int32_t i = std::max(index + 1, pages - sequence_.storage->recent); i < pages; ++i) {
    const bool is_open = list[static_cast<size_t>(i)]->is_float16() && !ends_float16(i);
    if (is_open && i % ring_ == index % ring_) return true;
  }
  return false;
}

bool Reserve::keep_original(int32_t head, int32_t index, Page* page) noexcept {
  if (!keep(head, index, page)) return false;
  if (!ends_float16(index)) original_at(head, index) = index;
  return true;
}

Page* Reserve::original(int32_t head, int32_t index) {
  return original_at(head, index) == index ? find(head, index, cache_.layer(layer_).float16) : nullptr;
}

void Reserve::drop(int32_t head, int32_t first, std::span<Page* const> pages) noexcept {
  const auto n = static_cast<int32_t>(pages.size());
  Vector<Page*>& finals = finals_[static_cast<size_t>(head)];
  const auto move_up = [](auto begin, auto end, int32_t by) {
    if (begin != end) std::rotate(begin, begin + by % (end - begin), end);
  };
  const auto places = static_cast<int32_t>(finals.size());
  const int32_t moved = std::clamp(places - first, 0, n);
  if (moved > 0) move_up(finals.begin() + first, finals.end(), moved);
  const Sequence::PageList& list = sequence_.list(layer_, head);
  // Of a page that the list has there now, or that waits there.
  const auto is_taken = [&](int32_t at) {
    const auto index = static_cast<size_t>(at) + pages.size();
    const bool is_held = index < list.size() && list[index]->format() == final_format(at);
    return is_held || finals[static_cast<size_t>(at)] != nullptr;
  };
  int32_t place = places - moved;
  for (Page* page : pages) {
    while (place < places && is_taken(place)) ++place;
    if (place == places || page->is_shared() || page->format() != final_format(place)) {
      cache_.release(page);
      continue;
    }
    cache_.set_count(page, 0);
    cache_.release_positions(page);
    finals[static_cast<size_t>(place++)] = page;
  }
  Vector<Page*>& open = open_[static_cast<size_t>(head)];
  move_up(open.begin(), open.end(), n);
  const auto originals = originals_.begin() + static_cast<ptrdiff_t>(head) * ring_;
  move_up(originals, originals + ring_, n);
  std::for_each(originals, originals + ring_, [first, n](int32_t& index) {
    if (index >= 0) index = index < first + n ? -1 : index - n;
  });
}

void Reserve::forget() noexcept {
  std::fill(originals_.begin(), originals_.end(), -1);
  assured_ = 0;
}

bool Reserve::holds(int32_t tokens) {
  const int32_t opened = (tokens + kPageSlots - 1) / kPageSlots;
  if (ring_ < ReservePlaces::ring_of(*sequence_.storage, longest_, opened)) return false;
  if (tokens > step_tokens()) {
    for (int32_t head = 0; head < kv_heads(); ++head) {
      if (is_endless(head) && room_of(head) < tokens) return false;
    }
  }
  const int64_t wanted = int64_t{sequence_.length(layer_)} + tokens;
  if (wanted > assured_) assured_ = int64_t{sequence_.length(layer_)} + room();
  return wanted <= assured_;
}

int32_t Reserve::limit(int32_t head) const {
  const Sequence::PageList& list = sequence_.list(layer_, head);
  const Vector<Page*>& finals = finals_[static_cast<size_t>(head)];
  const auto existing = static_cast<int32_t>(list.size());
  const auto ready = static_cast<int32_t>(finals.size());
  for (int32_t i = std::max(existing - sequence_.storage->recent, 0); i < ready; ++i) {
    const bool has_page = i < existing && list[static_cast<size_t>(i)]->format() == final_format(i);
    if (has_page || finals[static_cast<size_t>(i)] != nullptr) continue;
    return ends_float16(i) ? i : std::min(i + sequence_.storage->recent, pages_[static_cast<size_t>(head)]);
  }
  return pages_[static_cast<size_t>(head)];
}

int64_t Reserve::room_of(int32_t head) const {
  const Sequence::PageList& list = sequence_.list(layer_, head);
  const int64_t pages = limit(head) - static_cast<int64_t>(list.size());
  return pages < 0 ? 0 : pages * kPageSlots + Sequence::open_slots(list);
}

bool Reserve::is_endless(int32_t head) const {
  const int32_t most = most_pages(cache_.layer(layer_), *sequence_.storage, step_tokens());
  return limit(head) >= std::max(most, Sequence::pages_after(sequence_.list(layer_, head), step_tokens()));
}

int32_t Reserve::room_without_freeing() const {
  int64_t room = INT32_MAX;
  for (int32_t head = 0; head < kv_heads(); ++head) room = std::min(room, room_of(head));
  return static_cast<int32_t>(room);
}

int32_t Reserve::room() const {
  // As many tokens as a layer can hold.
  int64_t room = INT32_MAX - kPageSlots - std::max(sequence_.length(layer_), sequence_.last_position(layer_));
  for (int32_t head = 0; head < kv_heads(); ++head) {
    if (!is_endless(head)) room = std::min(room, room_of(head));
  }
  return static_cast<int32_t>(std::max<int64_t>(room, 0));
}

ReservedPages Reserve::view() const {
  return {.finals = final_lists_.data(),
          .final_counts = final_counts_.data(),
          .open = open_lists_.data(),
          .ring = ring_,
          .sink = sequence_.storage->sink,
          .recent = sequence_.storage->recent,
          .sealed = sealed(),
          .window = cache_.layer(layer_).window,
          .step = step_tokens()};
}

uint64_t Reserve::record_bytes() const {
  uint64_t finals = 0;
  for (const Vector<Page*>& of_head : finals_) finals += of_head.capacity();
  return record_bytes(kv_heads(), finals, ring_) + borrowed_.capacity() * sizeof(Borrowed) +
         shared_.capacity() * sizeof(Shared) + copies_.record_bytes();
}

uint64_t Reserve::record_bytes(int32_t kv_heads, uint64_t finals, int32_t ring) {
  constexpr size_t kOfHead = sizeof(decltype(pages_)::value_type) + sizeof(decltype(finals_)::value_type) +
                             sizeof(decltype(open_)::value_type) + sizeof(decltype(final_lists_)::value_type) +
                             sizeof(decltype(final_counts_)::value_type) + sizeof(decltype(open_lists_)::value_type);
  constexpr size_t kOfOpen = sizeof(Page*) + sizeof(decltype(originals_)::value_type);
  return sizeof(Reserve) + finals * sizeof(Page*) +
         static_cast<uint64_t>(kv_heads) * (kOfHead + static_cast<uint64_t>(ring) * kOfOpen);
}

void make_call_room(Cache& cache, CallSpace& space, const ExpectedBatch& batch) {
  if (space.holds(batch)) return;
  space.reserve(static_cast<size_t>(batch.sequences), static_cast<size_t>(batch.all_queries()), cache.most_kv_heads());
  const Vector<AttendBatch> layers = cache.attend_batches(cache.allocator.parent());
  cache.backend.attention().reserve(expected_call(cache, layers, batch), *space.workspace);
  const uint64_t wanted = scratch_bytes(cache, batch);
  if (wanted > space.scratch_bytes) {
    // Both at once may be more than is free. Without a block, calls allocate what they need.
    const uint64_t before = std::exchange(space.scratch_bytes, 0);
    space.scratch.drop_block();
    try {
      space.scratch.keep_block(wanted);
      space.scratch_bytes = wanted;
    } catch (...) {
      try {
        space.scratch.keep_block(before);
        space.scratch_bytes = before;
      } catch (...) {
      }
      throw;
    }
  }
  space.made_room(batch);
}

void make_call_rooms_again(Cache& cache) {
  cache.call_spaces.for_each_free([&cache](CallSpace& space) {
    for (const ExpectedBatch& batch : space.forget_rooms()) {
      if (batch.sequences > 0) make_call_room(cache, space, batch);
    }
  });
}

PreparedReserve::PreparedReserve(Sequence& sequence, int32_t tokens, int32_t opened, Allocator& scratch)
    : sequence_(sequence), made_(sequence.cache.allocator), lists_(scratch) {
  Cache& cache = sequence.cache;
  keep_compress_room(sequence, tokens);
  if (sequence.observations != nullptr) {
    observed_ = sequence.observations->prepare(sequence, tokens, scratch);
  }
  made_.reserve(static_cast<size_t>(cache.n_layers));
  lists_.reserve(sequence.lists.size());
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    made_.push_back(
        make_owned<Reserve>(cache.allocator, sequence, layer, tokens, opened, sequence.reserve(layer), scratch));
    const auto pages = static_cast<size_t>(made_.back()->longest());
    for (int32_t head = 0; head < cache.layer(layer).kv_heads; ++head) {
      lists_.emplace_back(cache.allocator);
      lists_.back().reserve(std::max(pages, sequence.list(layer, head).size()));
    }
    if (LayerMirror* mirror = sequence.mirror(layer)) {
      mirror->make_room(static_cast<int32_t>(pages), made_.back()->view().ring);
    }
  }
}

void PreparedReserve::commit() {
  if (observed_) sequence_.observations->take(*observed_);
  for (Owned<Reserve>& each : made_) each->commit();
  for (size_t i = 0; i < lists_.size(); ++i) {
    lists_[i].assign(sequence_.lists[i].begin(), sequence_.lists[i].end());
    lists_[i].swap(sequence_.lists[i]);
  }
  made_.swap(sequence_.reserves);
  publish(sequence_);
}

void check_reserve(const Sequence& sequence, int32_t tokens, const char* argument) {
  const Cache& cache = sequence.cache;
  if (cache.backend.recording())
    fail(KVQ_E_STATE, "pages cannot be allocated while a CUDA graph is captured: call kvq_sequence_reserve before");
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    if (tokens <= INT32_MAX - kPageSlots - std::max(sequence.length(layer), sequence.last_position(layer))) continue;
    fail(KVQ_E_ARGUMENT, "%s is %d: layer %d holds %d and can hold at most %d", argument, tokens, cache.number(layer),
         sequence.length(layer), INT32_MAX);
  }
  if (tokens != 0 && sequence.storage->layer_at(0).is_routed()) {
    fail(KVQ_E_UNSUPPORTED, "%s is %d: pages whose formats a router chooses cannot be preallocated", argument, tokens);
  }
}

void release_reserve(Sequence& sequence) {
  if (!sequence.reserves.empty()) sequence.cache.reserved_sequences.fetch_sub(1);
  sequence.reserves.clear();
  sequence.reserved_by_step = false;
  publish(sequence);
}

void reserve(Sequence& sequence, int32_t tokens) {
  Cache& cache = sequence.cache;
  require_no_step(sequence);
  check_reserve(sequence, tokens, "tokens");
  if (tokens == 0) release_reserve(sequence);
  const CallSpaces::Lease space(cache.call_spaces);
  try {
    find_own_scales(sequence, space->scratch);
  } catch (const Error& error) {
    // Pages are released to get memory: without any for a search, the next append makes it.
    const bool lacks_memory = error.status() == KVQ_E_MEMORY || error.status() == KVQ_E_LIMIT;
    if (tokens > 0 || !lacks_memory) throw;
  }
  if (tokens == 0) return;
  CountedReserve counted(sequence);
  make_call_room(cache, *space, ExpectedBatch::of_pages(counted.now(), longest_after(sequence, tokens)));
  PreparedReserve prepared(sequence, tokens, 1, space->scratch);
  counted.keep();
  prepared.commit();
  sequence.reserved_by_step = false;
}

}  // namespace kvq
