#include "cache/invariants.h"

#include "cache/reserve.h"
#include "core/error.h"

#include <algorithm>
#include <array>
#include <climits>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

namespace kvq {
namespace {

/// Object under check, as messages name it.
struct Place {
  int32_t layer;
  int32_t head;
  int64_t page;
  const char* kind = "page";  // of a page

  void equal(const char* what, int64_t found, int64_t expected) const {
    if (found != expected) broken(what, found, "must be", expected);
  }
  void at_least(const char* what, int64_t found, int64_t least) const {
    if (found < least) broken(what, found, "must be at least", least);
  }
  void at_most(const char* what, int64_t found, int64_t most) const {
    if (found > most) broken(what, found, "must be at most", most);
  }
  void between(const char* what, int64_t found, int64_t least, int64_t most) const {
    at_least(what, found, least);
    at_most(what, found, most);
  }

  [[noreturn]] void broken(const char* what, int64_t found, const char* relation, int64_t other) const {
    fail(KVQ_E_INTERNAL, "layer %d, head %d, %s %lld: %s is %lld, %s %lld", layer, head, kind,
         static_cast<long long>(page), what, static_cast<long long>(found), relation, static_cast<long long>(other));
  }
};

/// Number of a whole sequence or cache, and its upper bound.
struct Limit {
  template <typename Number, typename Most>
  Limit(const char* name, const Number& now, const Most& limit)
      : what(name), number(static_cast<int64_t>(now)), most(static_cast<int64_t>(limit)) {}

  const char* what;
  int64_t number;
  int64_t most;
};

/// `read` returns an array of limits.
template <typename Read>
void check_limits(const char* owner, std::chrono::milliseconds patience, const Read& read) {
  const auto end = std::chrono::steady_clock::now() + patience;
  for (;;) {
    const auto limits = read();
    const auto broken = std::ranges::find_if(limits, [](const Limit& each) { return each.number > each.most; });
    if (broken == limits.end()) return;
    if (std::chrono::steady_clock::now() >= end) {
      fail(KVQ_E_INTERNAL, "%s: %s is %lld, must be at most %lld", owner, broken->what,
           static_cast<long long>(broken->number), static_cast<long long>(broken->most));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// The length of one of a sequence's vectors.
void check_size(const char* what, size_t found, size_t expected) {
  if (found != expected) fail(KVQ_E_INTERNAL, "sequence: number of %s is %zu, must be %zu", what, found, expected);
}

int64_t address(const void* pointer) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer)); }

bool is_one_of(const PageFormat* format, const Storage::Layer& layer) {
  return std::find(layer.formats.begin(), layer.formats.end(), format) != layer.formats.end();
}

/// Page in FP16 that the policy would have sealed, or sealed that it would have left in FP16.
std::optional<Place> find_missealed(const Sequence& sequence) {
  const Cache& cache = sequence.cache;
  for (size_t index = 0; index < sequence.lists.size(); ++index) {
    const Sequence::PageList& list = sequence.lists[index];
    const int32_t layer = sequence.layer_of(index);
    if (sequence.waits(layer) || sequence.has_backlog(layer)) continue;
    const bool seals_as_float16 = is_one_of(cache.layer(layer).float16, sequence.storage->layer_at(layer));
    for (int64_t page = 0; page < std::ssize(list); ++page) {
      const bool may_be_float16 =
          page < sequence.storage->sink || page >= std::ssize(list) - sequence.storage->recent || seals_as_float16;
      const bool is_float16 = list[static_cast<size_t>(page)]->is_float16();
      if (is_float16 ? !may_be_float16 : page < sequence.storage->sink)
        return Place{layer, sequence.head_of(index), page};
    }
  }
  return std::nullopt;
}

/// Page held by a sequence, or run filled by one of its lists, then without a page.
struct Held {
  PageRun* run;
  const Page* page;
  size_t list;
  Place place;
};

class SequenceCheck {
 public:
  explicit SequenceCheck(const Sequence& sequence) : sequence_(sequence), cache_(sequence.cache) {}

  void run(std::chrono::milliseconds patience) {
    check_sizes();
    for (int32_t layer = 0; layer < cache_.n_layers; ++layer) {
      for (int32_t head = 0; head < cache_.layer(layer).kv_heads; ++head) check_list(layer, head);
      if (sequence_.storage->layer_at(layer).spans_heads()) check_heads_agree(layer);
      const Reserve* reserve = sequence_.reserve(layer);
      for (int32_t head = 0; reserve != nullptr && head < cache_.layer(layer).kv_heads; ++head) {
        check_waiting(layer, head, *reserve);
        check_room(layer, head, *reserve);
      }
    }
    check_holders();
    check_account(patience);
  }

 private:
  const Storage::Layer& layer_of(const Place& place) const { return sequence_.storage->layer_at(place.layer); }

  void check_sizes() const {
    const auto layers = static_cast<size_t>(cache_.n_layers);
    const auto heads = static_cast<size_t>(cache_.most_kv_heads());
    const size_t mirrors = sequence_.mirrors.empty() ? 0 : layers;
    const AppendMemory& memory = sequence_.append_memory;
    check_size("layers", sequence_.layers.size(), layers);
    check_size("lists", sequence_.lists.size(), cache_.n_lists());
    check_size("runs that lists fill", sequence_.runs.size(), cache_.n_lists() * sequence_.storage->runs_of_list());
    check_size("mirrors", sequence_.mirrors.size(), mirrors);
    check_size("published lists", sequence_.published_lists.size(), mirrors == 0 ? 0 : heads);
    check_size("published counts", sequence_.published_counts.size(), mirrors == 0 ? 0 : heads);
    check_size("reserves", sequence_.reserves.size(), sequence_.reserves.empty() ? 0 : layers);
    check_size("observations", sequence_.observations != nullptr ? 1 : 0, cache_.eviction.budget > 0 ? 1 : 0);
    check_size("things left of an append",
               memory.writes.size() + memory.changes.size() + memory.runs.size() + memory.positions.size(), 0);
  }

  void check_list(int32_t layer, int32_t head) {
    const Sequence::PageList& list = sequence_.list(layer, head);
    const size_t index = sequence_.list_index(layer, head);
    int64_t previous = -1;
    int64_t slots = 0;
    Place place{layer, head, 0};
    for (const Page* page : list) {
      check_record(place, page);
      place.at_least("references", page->references, 1);
      const bool may_be_open = page == list.back() && page->is_float16();
      place.between("slots", page->count, may_be_open ? 1 : kPageSlots, kPageSlots);
      const bool lies_alone = page->is_float16() && !sequence_.ends_float16(layer, static_cast<int32_t>(place.page)) &&
                              !is_one_of(cache_.layer(place.layer).float16, layer_of(place));
      if (lies_alone) place.equal("pages in the run of an FP16 page to be sealed", page->run->capacity, 1);
      if (sequence_.waits(layer)) place.equal("pages in FP16 while the layer waits for scales", page->is_float16(), 1);
      check_positions(place, *page, slots, previous);
      previous = page->last_position();
      slots += page->count;
      held_.push_back({page->run, page, index, place});
      ++place.page;
    }
    for (PageRun* run : sequence_.runs_of(index)) {
      if (run != nullptr) held_.push_back({run, nullptr, index, {layer, head, std::ssize(list), "run before page"}});
    }
    --place.page;
    check_length(place, slots, previous);
  }

  /// Place of a page.
  void check_record(const Place& place, const Page* page) const {
    place.at_least("address", address(page), 1);
    const PageRun* run = page->run;
    place.at_least("address of the run", address(run), 1);
    const bool is_known =
        is_one_of(page->format(), layer_of(place)) || page->format() == cache_.layer(place.layer).float16;
    place.equal("number of the layer's formats that it has", is_known ? 1 : 0, 1);
    const int64_t offset = address(page) - address(run + 1);
    constexpr auto kRecord = static_cast<int64_t>(sizeof(Page));
    place.between("offset in the run's records", offset, 0, (run->capacity - 1) * kRecord);
    place.equal("offset beyond a record", offset % kRecord, 0);
    place.equal("offset in the run's data", address(page->data) - address(run->data),
                offset / kRecord * static_cast<int64_t>(page->format()->bytes()));
  }

  /// `slots`: of the pages before, which end at position `previous`.
  void check_positions(const Place& place, const Page& page, int64_t slots, int64_t previous) const {
    const auto& [length, last_position, first_fall, forgotten] = sequence_.layers[static_cast<size_t>(place.layer)];
    const int64_t ascending =
        first_fall < 0 ? INT_MAX : first_fall - sequence_.forgotten_slots(place.layer);  // slots of the list
    const int64_t before_step = sequence_.step.begin[static_cast<size_t>(place.layer)].last_position;
    const auto least = [&](int64_t slot, int64_t before) { return (slot < ascending ? before : before_step) + 1; };
    place.at_least("first position", page.first_position, least(slots, previous));
    if (page.positions == nullptr) {
      place.at_most("last position", int64_t{page.first_position} + page.count - 1, INT32_MAX);
      return;
    }
    place.equal("position of the first slot", page.positions[0], page.first_position);
    for (int32_t slot = 1; slot < page.count; ++slot) {
      place.at_least("position of a slot", page.positions[slot], least(slots + slot, page.positions[slot - 1]));
    }
  }

  /// Compare `slots` that end at position `last` with the layer's record; `place`: the list's last page.
  void check_length(const Place& place, int64_t slots, int64_t last) const {
    const auto [length, last_position, first_fall, forgotten] = sequence_.layers[static_cast<size_t>(place.layer)];
    place.at_least("length of the layer", length, 0);
    if (first_fall < 0) {
      place.at_least("last position of the layer", last_position, int64_t{length} - 1);
    } else {
      const int64_t begin = sequence_.step.begin[static_cast<size_t>(place.layer)].length;
      place.at_least("tokens of the step", sequence_.step.tokens, 1);
      place.between("first token that is not beyond the one before", first_fall, begin + 1, int64_t{length} - 1);
    }
    if (length == 0) place.equal("last position of the empty layer", last_position, -1);
    place.between("newest position that was freed", forgotten, -1, last_position);
    const auto [least_slots, least_last] = sequence_.least_of_list(place.layer, slots);
    const auto within = [&place](const char* what, int64_t found, int64_t least, int64_t most) {
      least == most ? place.equal(what, found, most) : place.between(what, found, least, most);
    };
    within("slots up to here", slots, least_slots, length);
    within("last position", last, least_last, last_position);
  }

  /// Pages that span heads must be at the same place of the other heads' lists.
  void check_heads_agree(int32_t layer) const {
    const Sequence::PageList& first = sequence_.list(layer, 0);
    for (int32_t head = 1; head < cache_.layer(layer).kv_heads; ++head) {
      const Sequence::PageList& list = sequence_.list(layer, head);
      Place place{layer, head, std::ssize(list) - 1, "spanning page"};
      place.equal("number of pages", std::ssize(list), std::ssize(first));
      for (size_t i = 0; i < list.size(); ++i) {
        place.page = static_cast<int64_t>(i);
        place.equal("bytes", static_cast<int64_t>(list[i]->format()->bytes()),
                    static_cast<int64_t>(first[i]->format()->bytes()));
        place.equal("slots", list[i]->count, first[i]->count);
        for (int32_t slot = 0; slot < list[i]->count; ++slot) {
          place.equal("position", list[i]->position(slot), first[i]->position(slot));
        }
      }
    }
  }

  const PageFormat* final_format(int32_t layer, int64_t index) const {
    const bool float16 = sequence_.ends_float16(layer, static_cast<int32_t>(index));
    return float16 ? cache_.layer(layer).float16 : sequence_.storage->layer_at(layer).formats.front();
  }
  /// Whether a list has its page of a place in its final format.
  bool has_final(int32_t layer, int32_t head, int64_t index) const {
    const Sequence::PageList& list = sequence_.list(layer, head);
    return index < std::ssize(list) && list[static_cast<size_t>(index)]->format() == final_format(layer, index);
  }

  /// Preallocated pages that the list has not taken.
  void check_waiting(int32_t layer, int32_t head, const Reserve& reserve) {
    const auto check = [&](const Place& place, const Page* page, const PageFormat* format) {
      check_record(place, page);
      place.equal("references", page->references, 1);
      place.equal("slots", page->count, 0);
      place.equal("address of positions", address(page->positions), 0);
      place.equal("bytes", static_cast<int64_t>(page->format()->bytes()), static_cast<int64_t>(format->bytes()));
      held_.push_back({page->run, page, sequence_.list_index(layer, head), place});
    };
    Place place{layer, head, 0, "reserved page"};
    for (const Page* page : reserve.finals(head)) {
      if (page != nullptr) {
        check(place, page, final_format(layer, place.page));
        place.equal("pages for its place", has_final(layer, head, place.page) ? 2 : 1, 1);
      }
      ++place.page;
    }
    place = {layer, head, 0, "page of the ring"};
    for (const Page* page : reserve.open(head)) {
      if (page != nullptr) check(place, page, cache_.layer(layer).float16);
      ++place.page;
    }
  }

  /// Within its reserve, the list finds every page that it opens in the ring, and needs no more memory itself.
  void check_room(int32_t layer, int32_t head, const Reserve& reserve) const {
    const Sequence::PageList& list = sequence_.list(layer, head);
    const Vector<Page*>& open = reserve.open(head);
    // A list that frees pages needs no more than it was planned to have.
    const int64_t pages = std::min<int64_t>(Sequence::pages_after(list, reserve.room()), reserve.longest());
    // All pages of a list that waits for scales are open, and keep what they have taken of the ring.
    const bool waits = sequence_.waits(layer);
    const int64_t newest = waits ? 0 : std::max<int64_t>(std::ssize(list) - sequence_.storage->recent, 0);
    const auto ends_float16 = [&](int64_t index) { return sequence_.ends_float16(layer, static_cast<int32_t>(index)); };
    Place place{layer, head, pages - 1, "page within the room"};
    place.at_least("pages that the list has memory for", static_cast<int64_t>(list.capacity()), pages);
    const int64_t ring = std::ssize(open);
    for (place.page = std::ssize(list); place.page < pages; ++place.page) {
      if (ends_float16(place.page)) continue;
      bool is_made = open[static_cast<size_t>(place.page % ring)] != nullptr;
      // The list may have it open; it returns before it is needed.
      for (int64_t i = place.page - ring; i >= newest && !is_made; i -= ring) {
        is_made = i < std::ssize(list) && list[static_cast<size_t>(i)]->is_float16() && !ends_float16(i);
      }
      place.equal("pages of the ring", is_made ? 1 : 0, 1);
    }
  }

  /// Count the holders of pages and runs.
  void check_holders() {
    std::ranges::sort(held_, {}, [](const Held& each) {
      return std::make_tuple(address(each.run), address(each.page), each.list, each.place.page);
    });
    for (auto first = held_.begin(); first != held_.end();) {
      const auto last = std::find_if(first, held_.end(), [&](const Held& each) { return each.run != first->run; });
      check_run({&*first, static_cast<size_t>(last - first)});
      first = last;
    }
  }

  void check_run(std::span<const Held> holders) {
    const Held& first = holders.front();
    PageRun& run = *first.run;
    for (size_t i = 1; i < holders.size(); ++i) {
      const Held& each = holders[i];
      each.place.equal("times that the sequence holds it", each.page == holders[i - 1].page ? 2 : 1, 1);
      each.place.equal("list that holds the run", static_cast<int64_t>(each.list), static_cast<int64_t>(first.list));
    }
    first.place.at_least("references of the run", run.references, std::ssize(holders));
    first.place.between("capacity of the run", run.capacity, 1, kMaxRunPages);
    (run.format->is_float16() ? float16_bytes_ : sealed_bytes_) += static_cast<int64_t>(run.data_bytes());
    // Only the list that fills a run may read its fill level.
    if (first.page != nullptr) return;
    const auto runs = sequence_.runs_of(first.list);
    const auto number = static_cast<size_t>(std::find(runs.begin(), runs.end(), &run) - runs.begin());
    first.place.equal("format of the run",
                      static_cast<int64_t>(sequence_.storage->run_number(first.place.layer, run.format)),
                      static_cast<int64_t>(number));
    const Held& last = holders.back();
    const int64_t in_use = last.page == nullptr ? 1 : last.page - run.pages() + 1;
    last.place.between("pages of the run in use", run.used, in_use, run.capacity);
    last.place.at_most("references of the run", run.references, int64_t{run.used} + 1);
  }

  /// A sequence's usage is part of its cache's usage.
  void check_account(std::chrono::milliseconds patience) const {
    int64_t scalars = 0;
    int64_t float16_pages = 0;
    int64_t sealed_pages = 0;
    for (const Held& each : held_) {
      if (each.page == nullptr) continue;
      scalars += int64_t{each.page->count} * each.page->format()->head.sum();
      (each.page->is_float16() ? float16_pages : sealed_pages) += 1;
    }
    check_limits("sequence", patience, [&] {
      const Cache::Account& account = cache_.account;
      const auto is_shared = [](const Held& each) { return each.page != nullptr && each.page->is_shared(); };
      const auto shared = std::ranges::count_if(held_, is_shared);
      return std::array{Limit("number of scalars", scalars, account.scalars),
                        Limit("number of FP16 pages", float16_pages, account.float16_pages),
                        Limit("number of sealed pages", sealed_pages, account.sealed_pages),
                        Limit("bytes of FP16 pages", float16_bytes_, account.float16_bytes),
                        Limit("bytes of sealed pages", sealed_bytes_, account.sealed_bytes),
                        Limit("number of shared pages", shared, account.shared_pages)};
    });
  }

  const Sequence& sequence_;
  const Cache& cache_;
  std::vector<Held> held_;
  int64_t float16_bytes_ = 0;
  int64_t sealed_bytes_ = 0;
};

}  // namespace

Sealing sealing_of(const Sequence& sequence) {
  return find_missealed(sequence).has_value() ? Sealing::kAny : Sealing::kByPolicy;
}

void check_invariants(const Sequence& sequence, Sealing sealing, std::chrono::milliseconds patience) {
  SequenceCheck(sequence).run(patience);
  const std::optional<Place> place = sealing == Sealing::kByPolicy ? find_missealed(sequence) : std::nullopt;
  if (place.has_value()) {
    const bool is_float16 = sequence.list(place->layer, place->head)[static_cast<size_t>(place->page)]->is_float16();
    place->equal("times that it is sealed", is_float16 ? 0 : 1, is_float16 ? 1 : 0);
  }
  check_invariants(sequence.cache, patience);
}

void check_invariants(const Cache& cache, std::chrono::milliseconds patience) {
  size_t smallest = SIZE_MAX;
  cache.for_each_format([&smallest](const PageFormat& format) { smallest = std::min(smallest, format.bytes()); });
  size_t smallest16 = SIZE_MAX;
  uint64_t most = 0;
  for (const LayerShape& layer : cache.layers()) {
    smallest16 = std::min(smallest16, layer.float16->bytes());
    most = std::max(most, static_cast<uint64_t>(layer.head.sum()));
  }
  check_limits("cache", patience, [&] {
    const Cache::Account& account = cache.account;
    const uint64_t float16_pages = account.float16_pages;
    const uint64_t sealed_pages = account.sealed_pages;
    const uint64_t pages = float16_pages + sealed_pages;
    const uint64_t bytes = account.float16_bytes + account.sealed_bytes;
    const uint64_t allocated = cache.page_allocator.bytes();
    return std::array{
        Limit("bytes of pages", bytes, allocated),
        Limit("bytes allocated for pages", allocated, bytes),
        Limit("bytes for pages and work space", allocated + cache.work_allocator.bytes(), cache.allocator.bytes()),
        Limit("bytes of FP16 pages in use", float16_pages * smallest16, account.float16_bytes),
        Limit("bytes of sealed pages in use", sealed_pages * smallest, account.sealed_bytes),
        Limit("number of shared pages", account.shared_pages, pages),
        Limit("number of scalars", account.scalars, pages * kPageSlots * most),
        Limit("number of scalars too many given back", -account.scalars, 0)};
  });
}

}  // namespace kvq
