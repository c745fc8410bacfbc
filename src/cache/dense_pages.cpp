#include "cache/dense_pages.h"

#include "cache/backend_memory.h"
#include "cache/sequence.h"
#include "cache/slot_moves.h"

#include <algorithm>
#include <array>

namespace kvq {
namespace {

size_t pages_for(size_t slots) { return (slots + kPageSlots - 1) / kPageSlots; }

/// Finds rising slots of one list.
class SlotWalk {
 public:
  explicit SlotWalk(const Sequence::PageList& list) : list_(list) {}

  /// Index in the list of the slot's page.
  size_t page_of(int32_t slot) {
    while (slot >= first_slot_ + list_[index_]->count) first_slot_ += list_[index_++]->count;
    return index_;
  }
  /// Index of the slot in its page.
  int32_t within(int32_t slot) const { return slot - first_slot_; }

 private:
  const Sequence::PageList& list_;
  size_t index_ = 0;
  int32_t first_slot_ = 0;  // of that page
};

}  // namespace

DensePages::DensePages(Sequence& sequence) : sequence_(sequence), cache_(sequence.cache), lists_(cache_.allocator) {
  lists_.reserve(sequence.lists.size());
}

DensePages::~DensePages() {
  for (List& list : lists_) {
    for (Page* page : list.pages) cache_.release(page);
    for (PageRun* run : list.runs) cache_.release(run);
  }
}

void DensePages::add_layer(int32_t layer, std::span<const Vector<int32_t>> slots) {
  const size_t page_bytes = cache_.layer(layer).float16->bytes();
  size_t pages = 0;
  for (const auto& of_head : slots) pages += pages_for(of_head.size());
  BackendMemory memory(cache_.backend, cache_.allocator);
  memory.make(uint64_t{pages} * page_bytes);
  Vector<std::byte*> targets(slots.size(), nullptr, cache_.allocator);
  std::byte* staging = memory.data();
  Vector<Filled> filled(cache_.allocator);
  filled.reserve(pages);
  for (int32_t head = 0; head < cache_.layer(layer).kv_heads; ++head) {
    const Vector<int32_t>& of_head = slots[static_cast<size_t>(head)];
    if (static_cast<int32_t>(of_head.size()) == sequence_.slots(layer, head)) continue;
    targets[static_cast<size_t>(head)] = staging;
    assign_slots(layer, head, of_head, staging, filled);
    staging += pages_for(of_head.size()) * page_bytes;
  }
  if (filled.empty()) return;
  cache_.backend.weighing()->clear(memory.data(), memory.bytes());
  fill(layer, slots, targets);
  choose(layer, filled);
  Vector<PageWrite> writes(cache_.allocator);
  writes.reserve(filled.size());  // nothing may fail once pages exist
  for (auto first = filled.begin(); first != filled.end();) {
    const auto is_of_head = [first](const Filled& page) { return page.full.head == first->full.head; };
    const auto last = std::find_if_not(first, filled.end(), is_of_head);
    make(layer, {&*first, static_cast<size_t>(last - first)}, writes);
    first = last;
  }
  cache_.backend.pages().append(cache_.no_tokens(layer), cache_.page_writes(layer, writes), {}, cache_.allocator);
}

/// Assign slots to a head's pages, which will be in FP16 at `staging`.
void DensePages::assign_slots(int32_t layer, int32_t head, std::span<const int32_t> slots, std::byte* staging,
                              Vector<Filled>& pages) {
  const Sequence::PageList& list = sequence_.list(layer, head);
  SlotWalk walk(list);
  const Storage::Layer& of_layer = sequence_.storage->layer_at(layer);
  const auto n = static_cast<int32_t>(pages_for(slots.size()));
  for (int32_t index = 0; index < n; ++index, staging += cache_.layer(layer).float16->bytes()) {
    const auto of_page = slots.first(std::min<size_t>(kPageSlots, slots.size()));
    slots = slots.subspan(of_page.size());
    const bool stays = sequence_.storage->stays_float16(layer, index, n);
    const PageFormat* sealed = of_layer.is_routed() ? nullptr : of_layer.formats.front();
    pages.push_back({{head, index, {staging, {}}},
                     static_cast<int32_t>(of_page.size()),
                     stays ? cache_.layer(layer).float16 : sealed,
                     stays});
    for (size_t i = 0; i < of_page.size(); ++i) {
      const Page* page = list[walk.page_of(of_page[i])];
      pages.back().full.page.positions[i] = page->position(walk.within(of_page[i]));
    }
  }
}

/// Copy the remaining slots to their FP16 pages.
void DensePages::fill(int32_t layer, std::span<const Vector<int32_t>> slots, std::span<std::byte* const> targets) {
  Vector<SlotMove> list(cache_.allocator);
  for (int32_t head = 0; head < cache_.layer(layer).kv_heads; ++head) {
    const auto h = static_cast<size_t>(head);
    if (targets[h] == nullptr) continue;
    SlotWalk walk(sequence_.list(layer, head));
    for (int32_t rank = 0; rank < std::ssize(slots[h]); ++rank) {
      const int32_t slot = slots[h][static_cast<size_t>(rank)];
      const auto index = static_cast<int32_t>(walk.page_of(slot));
      if (list.empty() || list.back().head != head || list.back().index != index) {
        list.push_back({.head = head, .index = index, .slots = 0, .rank = rank});
      }
      list.back().slots |= uint32_t{1} << static_cast<uint32_t>(walk.within(slot));
    }
  }
  move_slots(sequence_, layer, list, targets, cache_.allocator);
}

/// Let the router choose the format of every page without one.
void DensePages::choose(int32_t layer, std::span<Filled> pages) const {
  Vector<FullPage> routed(cache_.allocator);
  Vector<Filled*> choosers(cache_.allocator);
  for (Filled& page : pages) {
    if (page.format != nullptr) continue;
    routed.push_back(page.full);
    choosers.push_back(&page);
  }
  if (routed.empty()) return;
  const int32_t decider = cache_.training.router->shape.deciding_layer(layer);
  Vector<const Sequence::PageList*> deciding(cache_.allocator);
  for (int32_t head = 0; head < cache_.layer(layer).kv_heads; ++head) {  // lists after commit()
    const size_t index = sequence_.list_index(decider, head);
    const auto changed = std::ranges::find(lists_, index, &List::index);
    deciding.push_back(changed != lists_.end() ? &changed->pages : &sequence_.lists[index]);
  }
  Vector<const PageFormat*> formats(routed.size(), nullptr, cache_.allocator);
  choose_formats(sequence_, layer, routed, deciding, formats);
  for (size_t i = 0; i < formats.size(); ++i) choosers[i]->format = formats[i];
}

/// Make the list of a head, filled by `writes` from its FP16 pages.
void DensePages::make(int32_t layer, std::span<const Filled> pages, Vector<PageWrite>& writes) {
  const int32_t head = pages.front().full.head;
  lists_.push_back({sequence_.list_index(layer, head), Sequence::PageList(cache_.allocator),
                    Vector<PageRun*>(sequence_.storage->runs_of_list(), nullptr, cache_.allocator)});
  List& list = lists_.back();
  list.pages.reserve(pages.size() + pages.size() / 4 + 1);
  for (size_t i = 0; i < pages.size(); ++i) {
    const auto& [full, count, format, stays] = pages[i];
    const auto& positions = full.page.positions;
    const bool consecutive = positions[static_cast<size_t>(count) - 1] - positions.front() == count - 1;
    PageRun** run =
        sequence_.is_final(format, layer, !stays) ? &list.runs[sequence_.storage->run_number(layer, format)] : nullptr;
    const auto alike =
        static_cast<int32_t>(std::count_if(pages.begin() + static_cast<ptrdiff_t>(i), pages.end(),
                                           [wanted = format](const Filled& page) { return page.format == wanted; }));
    Page* page =
        cache_.make_page(format, !consecutive, run, Sequence::run_capacity(static_cast<int32_t>(pages.size()), alike));
    list.pages.push_back(page);
    page->first_position = positions.front();
    if (page->positions != nullptr) std::copy(positions.begin(), positions.end(), page->positions);
    cache_.set_count(page, count);
    writes.push_back({.source = full.page.data,
                      .kept = count,
                      .head = head,
                      .target = page->data,
                      .format = format,
                      .index = full.index,
                      .first_position = page->first_position,
                      .positions = page->positions});
  }
}

void DensePages::commit() noexcept {
  for (List& list : lists_) {
    sequence_.lists[list.index].swap(list.pages);
    LayerMirror* mirror = sequence_.mirror(sequence_.layer_of(list.index));
    if (mirror != nullptr) mirror->invalidate(sequence_.head_of(list.index), 0);
    std::swap_ranges(list.runs.begin(), list.runs.end(), sequence_.runs_of(list.index).begin());
  }
}

}  // namespace kvq
