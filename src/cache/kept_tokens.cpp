#include "cache/kept_tokens.h"

#include "cache/prepared_append.h"
#include "core/error.h"

#include <utility>

namespace kvq {

void CompactionRoom::add_positions(Cache& cache, size_t n) {
  cache_ = &cache;
  spare_.reserve(spare_.size() + n);
  for (size_t i = 0; i < n; ++i) spare_.push_back(cache.allocate_positions());
}

void CompactionRoom::release() noexcept {
  for (int32_t* positions_of_page : spare_) cache_->release_positions(positions_of_page);
  spare_.clear();
}

LayerCompaction::LayerCompaction(Sequence& sequence, int32_t layer, std::span<const int32_t> kept)
    : sequence_(sequence),
      cache_(sequence.cache),
      reserve_(*sequence.reserve(layer)),
      layer_(layer),
      kept_(kept),
      forgotten_(sequence.forgotten_slots(layer)) {
  while (first_moved_ < kept.size() && kept[first_moved_] == static_cast<int32_t>(first_moved_)) ++first_moved_;
}

void LayerCompaction::check() const {
  for (int32_t head = 0; head < cache_.layer(layer_).kv_heads; ++head) {
    for (int32_t i = first_page(); i < first_page() + pages_read(); ++i) {
      const Page& page = *sequence_.list(layer_, head)[static_cast<size_t>(i)];
      if (page.is_float16() || reserve_.original(head, i) != nullptr) continue;
      fail(KVQ_E_STATE,
           "launches of a CUDA graph have appended more to layer %d than the step's %d tokens, or several at once by "
           "kvq_append, which keeps no originals of the pages that it seals: keep the first tokens",
           cache_.number(layer_), sequence_.step.tokens);
    }
  }
}

bool LayerCompaction::has_gaps_after(int32_t page) const {
  const int32_t first = page * kPageSlots;
  const int32_t end = std::min(first + kPageSlots, slots_after());
  for (int32_t slot = first + 1; slot < end; ++slot) {
    if (position_after(slot) != position_after(first) + slot - first) return true;
  }
  return false;
}

void LayerCompaction::prepare(CompactionRoom& room) const {
  const auto heads = sequence_.heads(layer_);
  room.reserve(kept_.size() - first_moved_, heads * static_cast<size_t>(pages_read()));
  size_t arrays = 0;
  for (int32_t i = first_page(); i < pages_after(); ++i) {
    if (!has_gaps_after(i)) continue;
    const Page& page = *sequence_.list(layer_, 0)[static_cast<size_t>(i)];
    // A page that is sealed again needs them twice, for a moment.
    const bool is_sealed = !page.is_float16() || !sequence_.storage->stays_float16(layer_, i, pages_after());
    arrays += (page.positions == nullptr ? 1 : 0) + (is_sealed ? 1 : 0);
  }
  room.add_positions(cache_, heads * arrays);
}

/// Puts a page's original in its place.
void LayerCompaction::restore(int32_t head, int32_t index) noexcept {
  Page*& at = sequence_.list(layer_, head)[static_cast<size_t>(index)];
  if (at->is_float16()) return;
  Page* original = reserve_.original(head, index);
  reserve_.took(head, index, original->format());
  original->first_position = at->first_position;
  std::swap(original->positions, at->positions);
  cache_.set_count(original, at->count);
  Page* sealed = std::exchange(at, original);
  if (!reserve_.keep(head, index, sealed)) cache_.release(sealed);
}

/// Gives a page the positions of the slots that are moved there.
void LayerCompaction::place(int32_t head, int32_t index, CompactionRoom& room) noexcept {
  Page& page = *sequence_.list(layer_, head)[static_cast<size_t>(index)];
  const int32_t first = std::max(first_target() - index * kPageSlots, 0);  // slot that changes
  const int32_t end = std::min(slots_after() - index * kPageSlots, kPageSlots);
  const auto moved = [&](int32_t slot) {
    return room.positions[static_cast<size_t>(index * kPageSlots + slot - first_target())];
  };
  if (first == 0) page.first_position = moved(0);
  bool has_gaps = false;
  for (int32_t slot = 0; slot < end; ++slot) {
    const int32_t position = slot < first ? page.position(slot) : moved(slot);
    has_gaps = has_gaps || position != page.first_position + slot;
  }
  if (!has_gaps) {
    if (page.positions != nullptr) cache_.release_positions(&page);
    return;
  }
  if (page.positions == nullptr) {
    page.positions = room.take_positions();
    std::fill_n(page.positions, kPageSlots, 0);
    for (int32_t slot = 0; slot < first; ++slot) page.positions[slot] = page.first_position + slot;
  }
  for (int32_t slot = first; slot < end; ++slot) page.positions[slot] = moved(slot);
}

void LayerCompaction::run(CompactionRoom& room) {
  room.positions.clear();
  room.slots.clear();
  room.pages.clear();
  for (size_t i = first_moved_; i < kept_.size(); ++i) {
    room.positions.push_back(position_of_slot(slot_of(i)));
    room.slots.push_back(slot_of(i) - first_page() * kPageSlots);
  }
  const int32_t heads = cache_.layer(layer_).kv_heads;
  for (int32_t head = 0; head < heads; ++head) {
    for (int32_t i = first_page(); i < first_page() + pages_read(); ++i) {
      restore(head, i);
      room.pages.push_back(sequence_.list(layer_, head)[static_cast<size_t>(i)]->data);
    }
  }
  cache_.backend.pages().compact({.format = *cache_.layer(layer_).float16,
                                  .pages = room.pages,
                                  .pages_of_head = pages_read(),
                                  .slots = room.slots,
                                  .first = first_target() - first_page() * kPageSlots});
  for (int32_t head = 0; head < heads; ++head) {
    for (int32_t i = first_page(); i < pages_after(); ++i) place(head, i, room);
    if (LayerMirror* mirror = sequence_.mirror(layer_)) mirror->invalidate(head, first_page());
  }
}

void LayerCompaction::seal(Allocator& scratch) const {
  PreparedAppend sealed(sequence_, layer_, sequence_.length(layer_) - forgotten_ - first_page() * kPageSlots, scratch,
                        false);
  const AppendedLayer after = sealed.appended();
  sealed.prepare();
  const auto writes = sealed.writes();
  if (!writes.empty()) {
    cache_.backend.pages().append(cache_.no_tokens(layer_), cache_.page_writes(layer_, writes), {&after, 1}, scratch);
  }
  sealed.commit();
}

}  // namespace kvq
