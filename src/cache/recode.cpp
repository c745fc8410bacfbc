#include "cache/recode.h"

#include "cache/reserve.h"
#include "cache/step.h"
#include "core/error.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace kvq {
namespace {

/// The pages of a list that lie in one run.
struct Tally {
  PageRun* run;
  int32_t first;  // places in the list
  int32_t last;
  int32_t pages = 0;
  int32_t matching = 0;  // that want the layer's sealed format and have another one
  int32_t changed = 0;
  bool shared = false;
};

uint32_t first_slots(int32_t count) { return ~uint32_t{0} >> static_cast<uint32_t>(kPageSlots - count); }

}  // namespace

RecodedLayer::RecodedLayer(Sequence& sequence, int32_t layer, const Storage& to, bool waits, Allocator& memory)
    : sequence_(sequence),
      cache_(sequence.cache),
      to_(to),
      layer_(layer),
      waits_(waits),
      runs_(memory),
      first_runs_(memory),
      to_make_(memory),
      made_(memory),
      next_made_(memory) {
  first_runs_.reserve(sequence.heads(layer) + 1);
  to_make_.reserve(sequence.heads(layer));
  for (int32_t head = 0; head < cache_.layer(layer).kv_heads; ++head) plan(head);
  first_runs_.push_back(runs_.size());
  for (const Sequence::PageList& list : sequence.lists_of(layer)) longest_ = std::max(longest_, list.size());
  const auto step = static_cast<size_t>(pages_at_once(cache_, longest_));
  Vector<uint64_t> open(longest_ / step + 1, 0, memory);
  for (const RunChange& each : runs_) {
    for (size_t i = static_cast<size_t>(each.first) / step; i <= static_cast<size_t>(each.last) / step; ++i) {
      open[i] += each.bytes();
    }
  }
  at_once_ = *std::ranges::max_element(open);
}

RecodedLayer::~RecodedLayer() {
  for (Page* page : made_) {
    if (page != nullptr) cache_.release(page);
  }
  for (const RunChange& each : runs_) {
    if (each.block == nullptr || each.is_in_place()) continue;
    cache_.backend.pages().release(cache_.page_allocator, each.block, each.bytes());
  }
}

const PageFormat* RecodedLayer::wanted(int32_t head, int32_t index) const {
  const auto pages = static_cast<int32_t>(sequence_.list(layer_, head).size());
  if (waits_) return cache_.layer(layer_).float16;
  return to_.stays_float16(layer_, index, pages) ? cache_.layer(layer_).float16 : to_.layer_at(layer_).formats.front();
}

bool RecodedLayer::is_changed(int32_t head, int32_t index) const {
  const Page& page = *sequence_.list(layer_, head)[static_cast<size_t>(index)];
  // Where FP16 is wanted, a page that is sealed in the right format is as good as there can be.
  if (page.format() == to_.layer_at(layer_).formats.front() && !page.is_float16()) return false;
  // A page to be sealed later lies in no run with others.
  return page.format() != wanted(head, index) ||
         (page.is_float16() && !to_.ends_float16(layer_, index) && page.run->capacity > 1);
}

void RecodedLayer::plan(int32_t head) {
  const Sequence::PageList& list = sequence_.list(layer_, head);
  const PageFormat* sealed = to_.layer_at(layer_).formats.front();
  Vector<Tally> tallies(runs_.get_allocator());
  for (int32_t index = 0; index < std::ssize(list); ++index) {
    const Page& page = *list[static_cast<size_t>(index)];
    auto found =
        std::find_if(tallies.rbegin(), tallies.rend(), [&](const Tally& each) { return each.run == page.run; });
    if (found == tallies.rend()) {
      tallies.push_back({.run = page.run, .first = index, .last = index});
      found = tallies.rbegin();
    }
    found->last = index;
    found->pages += 1;
    found->shared = found->shared || page.is_shared();
    if (!is_changed(head, index)) continue;
    found->changed += 1;
    if (wanted(head, index) == sealed) found->matching += 1;
  }
  first_runs_.push_back(runs_.size());
  const auto fills = sequence_.runs_of(sequence_.list_index(layer_, head));
  for (const Tally& each : tallies) {
    const int32_t holders = each.pages + static_cast<int32_t>(std::ranges::count(fills, each.run));
    const bool is_own = !each.shared && each.run->references.load(std::memory_order_acquire) == holders;
    if (is_own && each.matching > 0 && sealed->bytes() <= each.run->format->bytes()) {
      runs_.push_back({.run = each.run, .format = sealed, .head = head, .first = each.first, .last = each.last});
      growth_ += static_cast<int64_t>(runs_.back().bytes()) - static_cast<int64_t>(each.run->data_bytes());
    } else if (each.changed == each.pages) {
      growth_ -= static_cast<int64_t>(each.run->data_bytes() + each.run->record_bytes());
    }
  }
  runs_.shrink_to_fit();
  int32_t in_runs = 0;
  to_make_.push_back(0);
  for_each_change(head, 0, static_cast<int32_t>(list.size()), [&](const Write& write) {
    const Page& page = *list[static_cast<size_t>(write.index)];
    ++changed_;
    largest_ = std::max(largest_, page.format()->bytes());
    if (write.change != nullptr) return;
    to_make_.back() += 1;
    const PageFormat* format = wanted(head, write.index);
    const size_t positions = page.positions != nullptr ? sizeof(int32_t) * kPageSlots : 0;
    made_bytes_ += format->bytes() + sizeof(Page) + positions;
    growth_ -= static_cast<int64_t>(positions);
    const bool is_final = to_.is_final(format, layer_);
    if (!is_final || in_runs % kMaxRunPages == 0) made_bytes_ += sizeof(PageRun);
    if (is_final) ++in_runs;
  });
}

RecodedLayer::RunChange* RecodedLayer::find(int32_t head, const Page* page) {
  const auto h = static_cast<size_t>(head);
  const size_t end = h + 1 < first_runs_.size() ? first_runs_[h + 1] : runs_.size();
  const auto of_head = std::span(runs_).subspan(first_runs_[h], end - first_runs_[h]);
  const auto found = std::ranges::find(of_head, page->run, &RunChange::run);
  return found != of_head.end() ? &*found : nullptr;
}

template <typename Use>
void RecodedLayer::for_each_change(int32_t head, int32_t begin, int32_t end, const Use& use) {
  const Sequence::PageList& list = sequence_.list(layer_, head);
  for (int32_t index = begin; index < std::min(end, static_cast<int32_t>(list.size())); ++index) {
    RunChange* change = find(head, list[static_cast<size_t>(index)]);
    if (change != nullptr && wanted(head, index) == change->format) {
      use(Write{head, index, change});
    } else if (change != nullptr || is_changed(head, index)) {
      use(Write{head, index, nullptr});
    }
  }
}

void RecodedLayer::prepare() {
  size_t total = 0;
  for (const int32_t each : to_make_) total += static_cast<size_t>(each);
  made_.reserve(total);
  next_made_.reserve(to_make_.size());
  for (int32_t head = 0; head < cache_.layer(layer_).kv_heads; ++head) {
    next_made_.push_back(made_.size());
    make_pages(head);
  }
}

void RecodedLayer::make_pages(int32_t head) {
  const Sequence::PageList& list = sequence_.list(layer_, head);
  int32_t in_runs = 0;
  const auto pages = static_cast<int32_t>(list.size());
  for_each_change(head, 0, pages, [&](const Write& write) {
    if (write.change == nullptr && to_.is_final(wanted(head, write.index), layer_)) ++in_runs;
  });
  PageRun* run = nullptr;
  try {
    for_each_change(head, 0, pages, [&](const Write& write) {
      if (write.change != nullptr) return;
      const Page& old = *list[static_cast<size_t>(write.index)];
      const PageFormat* format = wanted(head, write.index);
      const bool final = to_.is_final(format, layer_);
      Page* page = cache_.make_page(format, old.positions != nullptr, final ? &run : nullptr,
                                    Sequence::run_capacity(0, in_runs));
      if (final) --in_runs;
      made_.push_back(page);
      page->first_position = old.first_position;
      if (page->positions != nullptr) std::copy_n(old.positions, kPageSlots, page->positions);
    });
  } catch (...) {
    cache_.release(run);
    throw;
  }
  cache_.release(run);
}

/// Find a place for the run's new pages.
void RecodedLayer::begin(RunChange& change) {
  if (change.block != nullptr) return;
  try {
    change.block = cache_.backend.pages().allocate(cache_.page_allocator, change.bytes());
  } catch (...) {
    change.block = change.run->data;
  }
}

/// All of a run's pages have been written: they take their new format and place.
void RecodedLayer::finish(RunChange& change) noexcept {
  PageRun& run = *change.run;
  const size_t before = run.data_bytes();
  std::byte* old_data = run.data;
  const bool was_float16 = run.format->is_float16();
  const auto account = [this](bool float16) -> std::atomic<uint64_t>& {
    return float16 ? cache_.account.float16_bytes : cache_.account.sealed_bytes;
  };
  account(was_float16) -= before;
  run.slack = change.is_in_place() ? static_cast<uint32_t>(before - change.bytes()) : 0;
  run.format = change.format;
  run.data = change.block;
  account(run.format->is_float16()) += run.data_bytes();
  for (int32_t place = 0; place < run.used; ++place) {
    run.pages()[place].data = run.data + static_cast<size_t>(place) * run.format->bytes();
  }
  const auto& list = sequence_.list(layer_, change.head);
  const auto own = static_cast<uint64_t>(std::count_if(list.begin() + change.first, list.begin() + change.last + 1,
                                                       [&run](const Page* page) { return page->run == &run; }));
  if (was_float16 != run.format->is_float16()) {
    (was_float16 ? cache_.account.float16_pages : cache_.account.sealed_pages) -= own;
    (was_float16 ? cache_.account.sealed_pages : cache_.account.float16_pages) += own;
  }
  if (run.data != old_data) cache_.backend.pages().release(cache_.page_allocator, old_data, before);
  change.block = nullptr;
}

void RecodedLayer::commit(BackendMemory& staging, Allocator& scratch) {
  if (changed_ == 0) return;
  const int32_t step = pages_at_once(cache_, longest_);
  Vector<Write> writes(scratch);
  writes.reserve(static_cast<size_t>(step) * sequence_.heads(layer_));
  for (int32_t first = 0; first < static_cast<int32_t>(longest_); first += step) {
    writes.clear();
    for (int32_t head = 0; head < cache_.layer(layer_).kv_heads; ++head) {
      for_each_change(head, first, first + step, [&](const Write& each) {
        if (each.change != nullptr) begin(*each.change);
        writes.push_back(each);
      });
    }
    if (writes.empty()) continue;
    write(writes, staging, scratch);
    for (const Write& each : writes) {
      if (each.change != nullptr) continue;
      Page*& place = sequence_.list(layer_, each.head)[static_cast<size_t>(each.index)];
      Page* page = std::exchange(made_[next_made_[static_cast<size_t>(each.head)]++], nullptr);
      cache_.set_count(page, place->count);
      cache_.release(std::exchange(place, page));
    }
    for (RunChange& each : runs_) {
      if (each.block != nullptr && each.last < first + step) finish(each);
    }
  }
}

void RecodedLayer::write(std::span<const Write> writes, BackendMemory& staging, Allocator& scratch) {
  const auto heads = sequence_.heads(layer_);
  const size_t of_head = static_cast<size_t>(pages_at_once(cache_, longest_)) * cache_.layer(layer_).float16->bytes();
  // In place, a page may be written where another one is still read.
  const bool any_in_place = std::ranges::any_of(
      writes, [](const Write& each) { return each.change != nullptr && each.change->is_in_place(); });
  Vector<std::byte*> targets(heads, nullptr, scratch);
  Vector<size_t> made(next_made_.begin(), next_made_.end(), scratch);
  Vector<SlotMove> moves(scratch);
  Vector<PageWrite> pages(scratch);
  moves.reserve(writes.size());
  pages.reserve(writes.size());
  for (const Write& each : writes) {
    const auto h = static_cast<size_t>(each.head);
    const Page& old = *sequence_.list(layer_, each.head)[static_cast<size_t>(each.index)];
    const std::byte* source = old.data;
    if (any_in_place || !old.is_float16()) {
      targets[h] = staging.data() + h * of_head;
      const bool follows = !moves.empty() && moves.back().head == each.head;
      const int32_t rank = follows ? moves.back().rank + kPageSlots : 0;
      moves.push_back({.head = each.head, .index = each.index, .slots = first_slots(old.count), .rank = rank});
      source = targets[h] + static_cast<size_t>(rank / kPageSlots) * cache_.layer(layer_).float16->bytes();
    }
    const Page* page = each.change == nullptr ? made_[made[h]++] : nullptr;
    const PageFormat* format = page != nullptr ? page->format() : each.change->format;
    std::byte* target =
        page != nullptr ? page->data
                        : each.change->block + static_cast<size_t>(&old - each.change->run->pages()) * format->bytes();
    pages.push_back({.source = source,
                     .kept = old.count,
                     .head = each.head,
                     .target = target,
                     .format = format,
                     .index = each.index,
                     .first_position = old.first_position,
                     .positions = page != nullptr ? page->positions : old.positions});
  }
  Weighing& weighing = cache_.backend.weighing().require();
  if (!moves.empty()) {
    weighing.clear(staging.data(), of_head * heads);
    move_slots(sequence_, layer_, moves, targets, scratch);
  }
  for (size_t i = 0; i < writes.size(); ++i) {
    if (writes[i].change == nullptr || !writes[i].change->is_in_place()) continue;
    weighing.clear(pages[i].target, pages[i].format->bytes());
  }
  cache_.backend.pages().append(cache_.no_tokens(layer_), cache_.page_writes(layer_, pages), {}, scratch);
}

uint64_t RecodedLayer::scratch_bytes(const Cache& cache, const Storage& to, size_t longest, size_t largest_page) {
  const auto heads = static_cast<uint64_t>(cache.most_kv_heads());
  const int32_t step = pages_at_once(cache, longest);
  const uint64_t writes = heads * static_cast<uint64_t>(step);
  const auto piece = [](uint64_t count, uint64_t bytes) { return Allocator::bytes_in_block(count * bytes); };
  uint64_t of_backend = 0;
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    TokenBatch tokens = cache.no_tokens(layer);
    tokens.n = step * kPageSlots;
    const ExpectedAppend append{tokens, to.layer_at(layer).formats, 1, cache.page_writes(layer, {}).heads_together()};
    of_backend = std::max(of_backend, cache.backend.pages().append_bytes(append));
  }
  return piece(writes, sizeof(Write)) + piece(writes, sizeof(SlotMove)) + piece(writes, sizeof(PageWrite)) +
         piece(heads, sizeof(std::byte*)) + piece(heads, sizeof(size_t)) +
         std::max(of_backend, move_bytes(cache, largest_page));
}

namespace {

/// Everything that recoding a sequence does, layer by layer.
class Recoding {
 public:
  /// `waits(layer)`: the layer waits for scales, also afterwards.
  template <typename Waits>
  Recoding(Sequence& sequence, const Storage& to, const Waits& waits)
      : sequence_(sequence),
        cache_(sequence.cache),
        to_(to),
        memory_(cache_.allocator, 0, "cache"),
        layers_(memory_),
        runs_(cache_.allocator),
        staging_(cache_.backend, cache_.allocator) {
    layers_.reserve(static_cast<size_t>(cache_.n_layers));
    for (int32_t layer = 0; layer < cache_.n_layers; ++layer) {
      layers_.push_back(make_owned<RecodedLayer>(memory_, sequence, layer, to, waits(layer), memory_));
      const RecodedLayer& made = *layers_.back();
      needs_.layers += made.changed_pages() > 0 ? 1 : 0;
      needs_.pages += made.changed_pages();
      needs_.bytes += made.bytes_to_make();
      needs_.growth += made.growth() + static_cast<int64_t>(made.bytes_to_make());
      at_once_ = std::max(at_once_, made.bytes_at_once());
      largest_ = std::max(largest_, made.largest_page());
      longest_ = std::max(longest_, made.longest());
    }
    const uint64_t lists = uint64_t{sequence.lists.size()} * to.runs_of_list() * sizeof(PageRun*);
    needs_.bytes += memory_.peak_bytes() + at_once_ + lists + staging_bytes() + scratch_bytes() +
                    static_cast<uint64_t>(needs_.pages) * sizeof(Page*) +
                    static_cast<uint64_t>(cache_.most_kv_heads()) * 2 * sizeof(size_t);
  }

  const RecodeNeeds& needs() const { return needs_; }

  void run() {
    for (const Owned<RecodedLayer>& layer : layers_) layer->prepare();
    runs_.assign(size(sequence_.lists.size(), to_.runs_of_list()), nullptr);
    Allocator scratch(cache_.allocator, 0, "cache");
    if (needs_.pages > 0) {
      staging_.make(staging_bytes());
      scratch.keep_block(scratch_bytes());
    }
    cache_.page_allocator.reserve(at_once_);  // from here on, only a host that has no memory stands in the way
    cache_.page_allocator.unreserve(at_once_);
    for (const Owned<RecodedLayer>& layer : layers_) layer->commit(staging_, scratch);
    take_runs();
    sequence_.storage = &to_;
    end_waiting_with_sealed_pages(sequence_);
    for (int32_t layer = 0; layer < cache_.n_layers; ++layer) {
      LayerMirror* mirror = sequence_.mirror(layer);
      for (int32_t head = 0; mirror != nullptr && head < cache_.layer(layer).kv_heads; ++head)
        mirror->invalidate(head, 0);
    }
    if (longest_ > 0) publish(sequence_);  // what is empty has not been published, which takes memory
  }

 private:
  uint64_t staging_bytes() const { return needs_.pages > 0 ? RecodedLayer::staging_bytes(cache_, longest_) : 0; }
  uint64_t scratch_bytes() const {
    return needs_.pages > 0 ? RecodedLayer::scratch_bytes(cache_, to_, longest_, largest_) : 0;
  }

  /// Lists go on to fill the runs that have a format of the new storage.
  void take_runs() noexcept {
    for (size_t list = 0; list < sequence_.lists.size(); ++list) {
      for (PageRun* run : sequence_.runs_of(list)) {
        if (run == nullptr) continue;
        const size_t number = to_.run_number(sequence_.layer_of(list), run->format);
        PageRun** place = number < to_.runs_of_list() ? &runs_[list * to_.runs_of_list() + number] : nullptr;
        if (place != nullptr && *place == nullptr) {
          *place = run;
        } else {
          cache_.release(run);
        }
      }
    }
    sequence_.runs.swap(runs_);
    runs_.clear();
  }

  Sequence& sequence_;
  Cache& cache_;
  const Storage& to_;
  Allocator memory_;
  Vector<Owned<RecodedLayer>> layers_;
  Vector<PageRun*> runs_;
  BackendMemory staging_;
  RecodeNeeds needs_{};
  uint64_t at_once_ = 0;
  size_t largest_ = 0;
  size_t longest_ = 0;
};

}  // namespace

void check_recode(const Sequence& sequence) {
  if (sequence.cache.backend.recording())
    fail(KVQ_E_STATE, "the sequence cannot be recoded while a CUDA graph is captured");
  require_no_step(sequence);
  if (!sequence.reserves.empty() && !sequence.reserved_by_step)
    fail(KVQ_E_STATE, "the sequence has preallocated pages: free them with kvq_sequence_reserve and 0 tokens first");
  static_cast<void>(sequence.cache.backend.weighing().require());
}

void recode_layer(Sequence& sequence, int32_t layer) {
  Cache& cache = sequence.cache;
  RecodedLayer recoded(sequence, layer, *sequence.storage, false, cache.allocator);
  if (recoded.changed_pages() == 0) return;
  static_cast<void>(cache.backend.weighing().require());
  recoded.prepare();
  BackendMemory staging(cache.backend, cache.allocator);
  staging.make(RecodedLayer::staging_bytes(cache, recoded.longest()));
  Allocator scratch(cache.allocator, 0, "cache");
  scratch.keep_block(RecodedLayer::scratch_bytes(cache, *sequence.storage, recoded.longest(), recoded.largest_page()));
  recoded.commit(staging, scratch);
}

uint64_t recode_layer_bytes(const Cache& cache, const Storage& to, size_t longest, size_t largest_page, int64_t pages) {
  // Plans have a record for each run, with room to grow, and count open runs for each step.
  return RecodedLayer::staging_bytes(cache, longest) + RecodedLayer::scratch_bytes(cache, to, longest, largest_page) +
         static_cast<uint64_t>(pages) * RecodedLayer::kPlanBytesOfPage +
         static_cast<uint64_t>(cache.most_kv_heads() + 1) * 4 * sizeof(size_t);
}

RecodeNeeds recode_needs(Sequence& sequence, const Storage& to) {
  Vector<int32_t> tokens(sequence.cache.allocator);  // by which layers find scales
  tokens.reserve(static_cast<size_t>(sequence.cache.n_layers));
  for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
    tokens.push_back(calibration_tokens(sequence, layer));
  }
  RecodeNeeds needs = Recoding(sequence, to, [&](int32_t layer) {
                        return to.calibrates && sequence.waits(layer) && tokens[static_cast<size_t>(layer)] == 0;
                      }).needs();
  if (sequence.calibration == nullptr) {
    needs.growth += static_cast<int64_t>(Calibration::bytes_of(sequence.cache, to, 0, 0));
    needs.bytes += Calibration::bytes_of(sequence.cache, to, 0, 0);
  }
  for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
    if (tokens[static_cast<size_t>(layer)] == 0) continue;
    needs.growth -= static_cast<int64_t>(sequence.calibration->layer(layer).queries.bytes());
    if (tokens[static_cast<size_t>(layer)] < 0) continue;
    size_t pages = 0;
    for (const Sequence::PageList& list : sequence.lists_of(layer)) pages = std::max(pages, list.size());
    needs.bytes += Calibrator::bytes_of(sequence.cache.layer(layer), static_cast<int64_t>(pages));
    needs.growth += static_cast<int64_t>(FoundScales::bytes_of(sequence.cache.layer(layer)));
  }
  return needs;
}

void recode(Sequence& sequence, const Storage& to) {
  check_recode(sequence);
  if (sequence.reserved_by_step) release_reserve(sequence);
  Cache& cache = sequence.cache;
  // Of a sequence that has looked for none yet; also if it is emptied later.
  Owned<Calibration> calibration = make_calibration(cache, to);
  if (sequence.calibration != nullptr) calibration.reset();
  Calibrators calibrators(cache.allocator);
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) calibrators.add(sequence, layer);
  Recoding(sequence, to, [&](int32_t layer) { return to.calibrates && sequence.waits(layer); }).run();
  calibrators.keep();
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    if (sequence.has_backlog(layer)) sequence.calibration->layer(layer).backlog = false;
  }
  if (calibration == nullptr) return;
  sequence.calibration = std::move(calibration);
  end_waiting_with_sealed_pages(sequence);
}

}  // namespace kvq
