#include "cache/prepared_append.h"

#include <algorithm>
#include <utility>

namespace kvq {
namespace {

/// Whether an append changes no more pages than sequences keep memory for. `may_find_scales`: it may yet get a backlog.
bool fits_kept_memory(const Sequence& sequence, int32_t layer, int32_t tokens, bool may_find_scales) {
  return tokens <= kPageSlots && !sequence.has_backlog(layer) && !(may_find_scales && sequence.waits(layer));
}

/// Sequence::Layer::first_fall with tokens at these positions.
int32_t first_fall(const Sequence::Layer& before, std::span<const int32_t> positions) {
  if (before.first_fall >= 0) return before.first_fall;
  int32_t last = before.last_position;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] <= last) return before.length + static_cast<int32_t>(i);
    last = positions[i];
  }
  return -1;
}

}  // namespace

PreparedAppend::PreparedAppend(Sequence& sequence, int32_t layer, int32_t n, const int32_t* positions,
                               Allocator& scratch, AppendKind kind)
    : PreparedAppend(sequence, layer, kind, scratch,
                     fits_kept_memory(sequence, layer, n, false) ? &sequence.append_memory : nullptr) {
  if (&memory_ == &own_) reserve_memory(n, positions == nullptr ? n : 0);
  if (positions == nullptr) {
    memory_.positions.resize(static_cast<size_t>(n));
    // Not iota, which increments once more than it stores: that may overflow.
    for (int32_t i = 0; i < n; ++i) {
      memory_.positions[static_cast<size_t>(i)] = sequence.last_position(layer) + 1 + i;
    }
    positions = memory_.positions.data();
  }
  positions_ = {positions, static_cast<size_t>(n)};
  const Sequence::Layer& before = sequence.layers[static_cast<size_t>(layer)];
  other_state_ = {before.length + n, positions[n - 1], first_fall(before, positions_), before.forgotten};
}

PreparedAppend::PreparedAppend(Sequence& sequence, int32_t layer, int32_t opened, Allocator& scratch, bool given)
    : PreparedAppend(sequence, layer, AppendKind::kSeal, scratch,
                     fits_kept_memory(sequence, layer, opened, true) ? &sequence.seal_memory : nullptr) {
  if (&memory_ == &own_) reserve_memory(opened, 0);
  opened_ = opened;
  given_ = given;
  other_state_ = sequence.layers[static_cast<size_t>(layer)];
}

PreparedAppend::PreparedAppend(Sequence& sequence, int32_t layer, AppendKind kind, Allocator& scratch,
                               AppendMemory* kept)
    : sequence_(sequence),
      cache_(sequence.cache),
      layer_(layer),
      kind_(kind),
      reserve_(sequence.reserve(layer)),
      own_(scratch),
      memory_(kept != nullptr ? *kept : own_),
      routed_(sequence, layer),
      grown_(cache_.allocator) {}

void PreparedAppend::reserve_memory(int32_t tokens, int32_t positions) {
  memory_.reserve(cache_.layer(layer_).kv_heads, sequence_.storage->runs_of_list(),
                  tokens / kPageSlots + kPagesOfOneAppend, positions);
}

PreparedAppend::~PreparedAppend() {
  for (const PageChange& change : memory_.changes) {
    const bool keeps = committed_ && reserve_ != nullptr && change.page != nullptr &&
                       (change.is_sealed ? reserve_->keep_original(change.head, change.index, change.page)
                                         : reserve_->keep(change.head, change.index, change.page));
    const bool waits = !committed_ && change.from_reserve;  // still in its place
    if (change.page != nullptr && !keeps && !waits) cache_.release(change.page);
    cache_.release_positions(change.added_positions);
  }
  for (StagedRun& run : memory_.runs) {
    cache_.release(run.staged);
    if (!committed_ && run.original != nullptr) run.original->used = run.original_used;
  }
  memory_.clear();
}

namespace {

bool are_consecutive(std::span<const int32_t> positions, int32_t first) {
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] - first != static_cast<int32_t>(i)) return false;
  }
  return true;
}

/// Pages of a list without its newest `tokens` slots.
int32_t pages_without(const Sequence::PageList& list, int32_t tokens) {
  size_t pages = list.size();
  while (tokens > 0 && pages > 0 && list[pages - 1]->count <= tokens) tokens -= list[--pages]->count;
  return static_cast<int32_t>(pages);
}

}  // namespace

template <typename Use>
void PreparedAppend::for_each_page(int32_t head, const Use& use) {
  const Sequence::PageList& list = sequence_.list(layer_, head);
  const auto existing = static_cast<int32_t>(list.size());
  // With the first of few tokens, the page that leaves the newest ones is sealed before attention: otherwise, chunks of
  // 32 would see it in FP16 and single tokens would not. For more tokens the time of another launch counts more.
  const int32_t arrived = kind_ != AppendKind::kOpen ? n() : n() <= kPageSlots ? 1 : 0;
  const int32_t pages = Sequence::pages_after(list, arrived);
  int32_t index = Sequence::open_slots(list) > 0 ? existing - 1 : existing;
  // Pages before the newest `recent` are sealed already, but for those that were left.
  const bool backlog = sequence_.has_backlog(layer_);
  const int32_t unsealed =
      std::max(sequence_.storage->sink, backlog ? 0 : pages_without(list, opened_) - sequence_.storage->recent);
  int32_t given = opened_;  // tokens of the call from a page on
  for (size_t i = static_cast<size_t>(unsealed); i < list.size(); ++i) given -= list[i]->count;
  for (int32_t full = unsealed; full < index; ++full) {
    const Page* page = list[static_cast<size_t>(full)];
    if (page->is_float16() && !stays_float16(full, pages)) {
      // What waited for scales was rounded before it was scaled.
      const bool is_given = given_ && given >= 0 && page->count == kPageSlots && !backlog;
      use(Step{
          .index = full, .old = page, .token = 0, .take = 0, .pages = pages, .given_token = is_given ? given : -1});
    }
    given += page->count;
  }
  for (int32_t token = 0; token < n(); ++index) {
    const Page* old = index < existing ? list[static_cast<size_t>(index)] : nullptr;
    const int32_t take = std::min(n() - token, kPageSlots - (old != nullptr ? old->count : 0));
    use(Step{.index = index, .old = old, .token = token, .take = take, .pages = pages});
    token += take;
  }
}

void PreparedAppend::route(const TokenBatch& tokens) {
  if (!sequence_.storage->layer_at(layer_).is_routed()) return;
  for (int32_t head = 0; head < cache_.layer(layer_).kv_heads; ++head) {
    for_each_page(head, [this, head](const Step& step) {
      if (stays_float16(step.index, step.pages)) return;
      routed_.add(head, step.index, step.old, step.token,
                  positions_.subspan(static_cast<size_t>(step.token), static_cast<size_t>(step.take)));
    });
  }
  routed_.choose(tokens, sequence_.length(layer_) + n());
}

void PreparedAppend::prepare() {
  for (int32_t head = 0; head < cache_.layer(layer_).kv_heads; ++head) {
    for (PageRun* run : sequence_.runs_of(sequence_.list_index(layer_, head))) {
      if (run != nullptr) run->references.fetch_add(1, std::memory_order_relaxed);
      memory_.runs.push_back({run, run, run != nullptr ? run->used : 0});
    }
    const int32_t pages = Sequence::pages_after(sequence_.list(layer_, head), n());
    heads_pages_ = std::max(heads_pages_, pages);
    BriefRun brief(cache_, pages);
    for_each_page(head, [&](const Step& step) { write_page(head, step, brief); });
  }
  const auto lists = sequence_.lists_of(layer_);
  const auto lacks_room = [this](const Sequence::PageList& list) {
    return list.capacity() < static_cast<size_t>(heads_pages_);
  };
  if (std::ranges::none_of(lists, lacks_room)) return;
  grown_.reserve(lists.size());
  for (const Sequence::PageList& list : lists) {
    Sequence::PageList& copy = grown_.emplace_back(cache_.allocator);
    // A quarter more than needed amortises growth and keeps the slack of long lists small.
    copy.reserve(static_cast<size_t>(heads_pages_) + static_cast<size_t>(heads_pages_) / 4);
    copy.assign(list.begin(), list.end());
  }
}

void PreparedAppend::commit() noexcept {
  std::swap_ranges(grown_.begin(), grown_.end(), sequence_.lists_of(layer_).begin());
  for (PageChange& change : memory_.changes) apply(change);
  exchange_records();
  committed_ = true;
}

void PreparedAppend::undo() noexcept {
  for (auto change = memory_.changes.rbegin(); change != memory_.changes.rend(); ++change) revert(*change);
  std::swap_ranges(grown_.begin(), grown_.end(), sequence_.lists_of(layer_).begin());
  exchange_records();
  committed_ = false;
}

void PreparedAppend::exchange_records() noexcept {
  const size_t first_run = sequence_.list_index(layer_, 0) * sequence_.storage->runs_of_list();
  for (size_t i = 0; i < memory_.runs.size(); ++i) std::swap(sequence_.runs[first_run + i], memory_.runs[i].staged);
  std::swap(sequence_.layers[static_cast<size_t>(layer_)], other_state_);
}

bool PreparedAppend::stays_float16(int32_t index, int32_t pages) const {
  return sequence_.waits(layer_) || sequence_.storage->stays_float16(layer_, index, pages);
}

RoutedPages::Choice PreparedAppend::choose(const Step& step) {
  const Storage::Layer& layer = sequence_.storage->layer_at(layer_);
  const bool stays = stays_float16(step.index, step.pages);
  if (!stays && layer.is_routed()) return routed_.next();
  // Sealed pages of this append fill a run exactly; the newest `recent` stay FP16.
  return {stays ? cache_.layer(layer_).float16 : layer.formats.front(), nullptr,
          step.pages - sequence_.storage->recent - step.index};
}

void PreparedAppend::write_page(int32_t head, const Step& step, BriefRun& brief) {
  const auto [index, old, token, take, pages, given_token] = step;
  const auto [format, staged, alike] = choose(step);
  const int32_t kept = step.kept();
  const int32_t count = kept + take;
  const int32_t first = kept > 0 ? old->first_position : positions_[static_cast<size_t>(token)];
  const auto added = positions_.subspan(static_cast<size_t>(token), static_cast<size_t>(take));
  const bool consecutive = (kept == 0 || !old->has_gaps()) && are_consecutive(added, first + kept);
  memory_.changes.push_back({.head = head, .index = index, .count = count, .is_sealed = take == 0});
  PageChange& change = memory_.changes.back();
  const bool in_place = old != nullptr && format->is_float16() && !old->is_shared();
  int32_t* stored = nullptr;
  // The ring of open pages has places for the newest ones of those that are open at once.
  const bool has_place = !format->is_float16() || sequence_.ends_float16(layer_, index) ||
                         (reserve_ != nullptr && index >= brief.pages - reserve_->ring());
  Page* reserved = !in_place && has_place && reserve_ != nullptr ? reserve_->find(head, index, format) : nullptr;
  if (reserved != nullptr) {
    change.page = reserved;
    change.from_reserve = true;
    reserved->first_position = first;
    if (!consecutive) stored = change.added_positions = cache_.allocate_positions();
  } else if (!in_place) {
    PageRun** run = nullptr;
    int32_t capacity = Sequence::run_capacity(pages, alike, Sequence::most_run_pages(cache_.layer(layer_)));
    if (sequence_.is_final(format, layer_, !stays_float16(index, pages))) {
      const size_t first_run = static_cast<size_t>(head) * sequence_.storage->runs_of_list();
      run = &memory_.runs[first_run + sequence_.storage->run_number(layer_, format)].staged;
    } else if (const int32_t more = brief.pages - sequence_.storage->recent - index;
               kind_ == AppendKind::kOpen && more > 0 && !sequence_.ends_float16(layer_, index) &&
               !sequence_.waits(layer_)) {  // pages that wait for scales may outlive this call
      run = &brief.run;
      capacity = std::min(more, kMaxRunPages);
    }
    change.page = cache_.make_page(format, !consecutive, run, capacity);
    change.page->first_position = first;
    stored = change.page->positions;
  } else if (!consecutive && old->positions == nullptr) {
    stored = change.added_positions = cache_.allocate_positions();
  } else if (old->positions != nullptr) {
    // Slots beyond the page's count are unused.
    std::copy_n(positions_.begin() + token, take, old->positions + kept);
  }
  change.adds_positions = change.added_positions != nullptr;
  if (stored != nullptr) {
    std::fill(stored, stored + kPageSlots, 0);
    for (int32_t i = 0; !consecutive && i < kept; ++i) stored[i] = old->position(i);
    if (!consecutive) std::copy_n(positions_.begin() + token, take, stored + kept);
  }
  const int32_t* positions = stored != nullptr || !in_place ? stored : old->positions;
  // A routed page is in FP16 already, its tokens included.
  const bool is_staged = staged != nullptr && !in_place;
  const std::byte* source = old != nullptr ? old->data : nullptr;
  memory_.writes.push_back({.source = is_staged ? staged : source,
                            .kept = is_staged ? count : kept,
                            .head = head,
                            .token_begin = is_staged ? 0 : token,
                            .token_count = is_staged ? 0 : take,
                            .target = in_place ? old->data : change.page->data,
                            .format = format,
                            .index = index,
                            .first_position = first,
                            .positions = positions,
                            .given_token = given_token,
                            .scales = sequence_.scales(layer_)});
}

void PreparedAppend::apply(PageChange& change) noexcept {
  Sequence::PageList& list = sequence_.list(layer_, change.head);
  const auto index = static_cast<size_t>(change.index);
  Page* page = change.page != nullptr ? change.page : list[index];
  exchange_slots(change, *page);
  if (change.page == nullptr) return;
  if (change.from_reserve) reserve_->took(change.head, change.index, page->format());
  change.extends = index == list.size();
  if (change.extends) {
    list.push_back(std::exchange(change.page, nullptr));
  } else {
    std::swap(list[index], change.page);
  }
}

void PreparedAppend::revert(PageChange& change) noexcept {
  Sequence::PageList& list = sequence_.list(layer_, change.head);
  Page*& place = list[static_cast<size_t>(change.index)];
  exchange_slots(change, *place);
  if (change.extends) {
    change.page = place;
    list.pop_back();
  } else if (change.page != nullptr) {
    std::swap(place, change.page);
  }
  if (change.from_reserve) reserve_->keep(change.head, change.index, change.page);
}

/// Exchange the number of a page's slots, and its positions if there are others.
void PreparedAppend::exchange_slots(PageChange& change, Page& page) noexcept {
  if (change.adds_positions) std::swap(page.positions, change.added_positions);
  const int32_t other = page.count;
  cache_.set_count(&page, std::exchange(change.count, other));
}

}  // namespace kvq
