#include "cache/observations.h"

#include "cache/sequence.h"
#include "core/error.h"
#include "core/tensor.h"

#include <algorithm>
#include <array>

namespace kvq {
namespace {

Weighing& weighing_of(Backend& backend) { return backend.weighing().require(); }

/// Add the attention of a batch's only sequence to its slots; the shares of a query sum to 1 for each head.
void weigh(Cache& cache, const AttendBatch& batch, CallSpace& space, const SlotMasses& masses) {
  Vector<float*> targets(space.scratch);
  targets.reserve(masses.counts.size());
  for (size_t head = 0; head < masses.counts.size(); ++head) targets.push_back(masses.of(head));
  weighing_of(cache.backend).weigh(batch, cache.eviction.group, *space.workspace, targets);
}

/// The same for kept queries.
void weigh_window(const Sequence& sequence, int32_t layer, const QueryWindow& window, const SlotMasses& masses) {
  Cache& cache = sequence.cache;
  Vector<const Page* const*> lists(cache.allocator);
  Vector<int32_t> counts(cache.allocator);
  for (int32_t head = 0; head < cache.layer(layer).kv_heads; ++head) {
    lists.push_back(sequence.list(layer, head).data());
    counts.push_back(static_cast<int32_t>(sequence.list(layer, head).size()));
  }
  const AttendSequence entry{.mirror = sequence.mirror(layer),
                             .pages = lists.data(),
                             .page_counts = counts.data(),
                             .query_begin = 0,
                             .query_count = window.size(),
                             .scales = sequence.scales(layer)};
  const size_t rows = size(window.positions().size(), cache.layer(layer).q_heads);
  const int32_t dim = cache.layer(layer).head.whole_key();
  BackendMemory numbers(cache.backend, cache.allocator);
  numbers.make(uint64_t{rows} * static_cast<uint64_t>(dim) * sizeof(float));
  auto* q = reinterpret_cast<float*>(numbers.data());
  weighing_of(cache.backend).read_queries({window.rows(), rows, dim, q});
  AttendBatch batch = cache.attend_batch(cache.layer(layer));
  batch.sequences = {&entry, 1};
  batch.query_positions = window.positions();
  batch.q = q;
  batch.q_dtype = KVQ_F32;
  batch.sinks = window.sinks();
  batch.softcap = window.softcap();
  batch.window = window.sliding_window();
  const CallSpaces::Lease space(cache.call_spaces);
  weigh(cache, batch, *space, masses);
}

Vector<int32_t> slots_of(const Sequence& sequence, int32_t layer, Allocator& scratch) {
  Vector<int32_t> slots(scratch);
  slots.reserve(sequence.heads(layer));
  for (int32_t head = 0; head < sequence.cache.layer(layer).kv_heads; ++head)
    slots.push_back(sequence.slots(layer, head));
  return slots;
}

}  // namespace

void SlotMasses::make(std::span<const int32_t> slots) {
  counts.assign(slots.begin(), slots.end());
  stride_ = 0;
  for (const int32_t count : slots) stride_ = std::max(stride_, stride_of(count));
  numbers_.make(uint64_t{slots.size()} * stride_ * sizeof(float));
}

void SlotMasses::reserve(size_t heads, int32_t slots) {
  if (counts.capacity() >= heads && stride_ >= stride_of(slots)) return;
  counts.clear();
  counts.reserve(heads);
  numbers_.make(uint64_t{heads} * stride_of(slots) * sizeof(float));
  stride_ = stride_of(slots);
}

void SlotMasses::clear(std::span<const int32_t> slots) {
  const int32_t most = slots.empty() ? 0 : std::ranges::max(slots);
  if (!empty() && counts.capacity() >= slots.size() && capacity() >= most) {
    counts.assign(slots.begin(), slots.end());
  } else {
    make(slots);
  }
  if (!empty()) weighing_of(numbers_.backend()).clear(numbers_.data(), numbers_.bytes());
}

void SlotMasses::grow(size_t heads, int32_t slots) {
  SlotMasses larger(backend(), allocator());
  larger.reserve(heads, std::max(slots, capacity()));
  if (larger.stride_ <= stride_) return;
  larger.clear(counts);
  larger.add(*this);
  *this = std::move(larger);
}

void SlotMasses::add(const SlotMasses& from) noexcept {
  for (size_t head = 0; head < from.counts.size(); ++head) {
    const int32_t n = std::min(from.counts[head], counts[head]);
    numbers_.backend().weighing()->add(of(head), from.of(head), static_cast<size_t>(n));
  }
}

void SlotMasses::keep(const SlotMasses& from, std::span<const Vector<int32_t>> slots) {
  if (from.empty()) return;
  make(from.counts);
  Weighing& weighing = weighing_of(numbers_.backend());
  for (size_t head = 0; head < counts.size(); ++head) {
    if (slots[head].empty()) {
      if (counts[head] > 0) weighing.copy(of(head), from.of(head), static_cast<size_t>(counts[head]) * sizeof(float));
      continue;
    }
    // Slots that no query has seen come last and have no mass.
    const auto seen = std::lower_bound(slots[head].begin(), slots[head].end(), counts[head]) - slots[head].begin();
    weighing.take(of(head), from.of(head), {slots[head].data(), static_cast<size_t>(seen)});
    counts[head] = static_cast<int32_t>(seen);
  }
}

Vector<const float*> SlotMasses::heads() const {
  Vector<const float*> heads(counts.size(), nullptr, numbers_.allocator());
  for (size_t head = 0; head < heads.size(); ++head) heads[head] = of(head);
  return heads;
}

void QueryWindow::Queries::make(size_t queries, size_t width) {
  positions.reserve(queries);
  rows.make(uint64_t{positions.capacity()} * width * sizeof(uint16_t));
}

void QueryWindow::Queries::release() noexcept {
  rows.release();
  Vector<int32_t>(positions.get_allocator()).swap(positions);
}

QueryWindow::QueryWindow(const QueryWindow& other)
    : QueryWindow(other.held_.rows.backend(), other.held_.rows.allocator()) {
  Weighing& weighing = weighing_of(held_.rows.backend());
  if (!other.held_.rows.empty()) {
    held_.positions.reserve(other.held_.positions.capacity());
    held_.positions.assign(other.held_.positions.begin(), other.held_.positions.end());
    held_.rows.make(other.held_.rows.bytes());
    weighing.copy(held_.rows.data(), other.held_.rows.data(), held_.rows.bytes());
  }
  if (other.has_sinks_) {
    sinks_.make(other.sinks_.bytes());
    weighing.copy(sinks_.data(), other.sinks_.data(), sinks_.bytes());
  }
  has_sinks_ = other.has_sinks_;
  width_ = other.width_;
  softcap_ = other.softcap_;
  sliding_window_ = other.sliding_window_;
  oldest_ = other.oldest_;
}

void QueryWindow::stage(const AttendBatch& batch, size_t queries, int32_t window) {
  const size_t width = width_of(batch.q_heads, batch.head.whole_key());
  // At most the queries there are: the window after a prompt, more as a conversation continues.
  const size_t wanted = std::min(static_cast<size_t>(window), held_.positions.size() + staged_ + queries);
  Queries larger(held_.rows.backend(), held_.rows.allocator());
  if (wanted > std::max(held_.capacity(), grown_.capacity())) {
    larger.make(wanted, width);
  }
  if (batch.sinks != nullptr && sinks_.empty()) sinks_.make(static_cast<size_t>(batch.q_heads) * sizeof(float));
  if (!larger.rows.empty()) std::swap(grown_, larger);
  width_ = width;
  staged_ += queries;
}

void QueryWindow::add(const AttendBatch& batch, size_t first, std::span<const int32_t> positions,
                      int32_t window) noexcept {
  Weighing& weighing = *held_.rows.backend().weighing();
  if (grown_.capacity() > held_.capacity()) {
    grown_.positions.assign(held_.positions.begin(), held_.positions.end());
    weighing.copy(grown_.rows.data(), held_.rows.data(), held_.positions.size() * width_ * sizeof(uint16_t));
    std::swap(held_, grown_);
    grown_.release();
  }
  staged_ -= positions.size();
  softcap_ = batch.softcap;
  sliding_window_ = batch.window;
  has_sinks_ = batch.sinks != nullptr;
  if (has_sinks_) weighing.copy(sinks_.data(), batch.sinks, sinks_.bytes());
  const auto kept = static_cast<size_t>(window);
  const size_t end = positions.size();
  skipped_ += end > kept ? end - kept : 0;
  // Contiguous rows are copied together.
  for (size_t i = end > kept ? end - kept : 0; i < end;) {
    const bool full = held_.positions.size() == kept;
    const size_t row = full ? oldest_ : held_.positions.size();
    const size_t n = std::min(end - i, kept - row);
    if (in_step_ && full) {
      const size_t saved = replaced_.positions.size();
      const size_t more = std::min(n, kept - saved);
      weighing.copy(replaced_.numbers() + saved * width_, held_.numbers() + row * width_,
                    more * width_ * sizeof(uint16_t));
      const auto first_replaced = held_.positions.begin() + static_cast<ptrdiff_t>(row);
      replaced_.positions.insert(replaced_.positions.end(), first_replaced,
                                 first_replaced + static_cast<ptrdiff_t>(more));
    }
    added_ += n;
    if (!full) held_.positions.resize(row + n);
    if (full) oldest_ = (oldest_ + n) % kept;
    std::copy_n(positions.begin() + static_cast<ptrdiff_t>(i), n,
                held_.positions.begin() + static_cast<ptrdiff_t>(row));
    weighing.keep_queries({.batch = batch,
                           .first = static_cast<int32_t>(first + i),
                           .count = static_cast<int32_t>(n),
                           .rows = held_.numbers() + row * width_});
    i += n;
  }
  settle();
}

void QueryWindow::discard(size_t queries) noexcept {
  staged_ -= queries;
  settle();
}

void QueryWindow::settle() noexcept {
  if (staged_ > 0) return;
  grown_.release();
  if (!has_sinks_) sinks_.release();
}

QueryWindow::Queries QueryWindow::whole(Cache& cache) {
  Queries memory(cache.backend, cache.allocator);
  memory.make(static_cast<size_t>(cache.eviction.window),
              width_of(cache.layer(0).q_heads, cache.layer(0).head.whole_key()));
  return memory;
}

void QueryWindow::move_to(Queries& memory) noexcept {
  reserved_ = true;
  memory.positions.assign(held_.positions.begin(), held_.positions.end());
  if (!held_.rows.empty()) {
    held_.rows.backend().weighing()->copy(memory.rows.data(), held_.rows.data(),
                                          held_.positions.size() * width_ * sizeof(uint16_t));
  }
  std::swap(held_, memory);
}

void QueryWindow::begin_step(Queries& memory) noexcept {
  if (!memory.rows.empty()) std::swap(replaced_, memory);
  replaced_.positions.clear();
  before_ = {held_.positions.size(), oldest_, softcap_, sliding_window_, has_sinks_};
  added_ = skipped_ = 0;
  in_step_ = true;
}

size_t QueryWindow::newer_than(int32_t position) const noexcept {
  const size_t size = held_.positions.size();
  size_t n = 0;
  for (; n < std::min(added_, size); ++n) {
    const size_t row = size == held_.capacity() ? (oldest_ + size - 1 - n) % size : size - 1 - n;
    if (held_.positions[row] <= position) break;
  }
  return n;
}

bool QueryWindow::can_undo(size_t queries) const noexcept {
  return queries == 0 || (skipped_ == 0 && added_ <= held_.capacity());
}

/// Those that replaced others go first, newest first; then those that filled the window.
void QueryWindow::undo(size_t queries) noexcept {
  Weighing& weighing = *held_.rows.backend().weighing();
  const bool all = queries >= added_;
  size_t saved = replaced_.positions.size();
  const size_t back = all ? saved : std::min(queries, saved);
  for (size_t i = 0; i < back; ++i) {
    const size_t row = replaced_row(--saved);
    weighing.copy(held_.numbers() + row * width_, replaced_.numbers() + saved * width_, width_ * sizeof(uint16_t));
    held_.positions[row] = replaced_.positions[saved];
  }
  replaced_.positions.resize(saved);
  if (!all) {
    if (back > 0) oldest_ = replaced_row(saved);
    held_.positions.resize(held_.positions.size() - (queries - back));
    if (held_.positions.size() < held_.capacity()) oldest_ = 0;
    added_ -= queries;
    return;
  }
  held_.positions.resize(before_.size);
  oldest_ = before_.oldest;
  softcap_ = before_.softcap;
  sliding_window_ = before_.sliding_window;
  has_sinks_ = before_.has_sinks;
  added_ = skipped_ = 0;
}

void QueryWindow::clear() noexcept {
  if (reserved_) {
    held_.positions.clear();
  } else {
    held_.release();
  }
  sinks_.release();
  has_sinks_ = false;
  oldest_ = 0;
}

uint64_t QueryWindow::bytes() const noexcept {
  return held_.rows.bytes() + replaced_.rows.bytes() + sinks_.bytes() +
         (held_.positions.capacity() + replaced_.positions.capacity()) * sizeof(int32_t);
}

Observations::Observations(const Cache& cache, Allocator& allocator)
    : seen_(static_cast<size_t>(cache.n_layers), 0, allocator),
      windows_(allocator),
      masses_(allocator),
      spare_(allocator),
      seen_before_(seen_.size(), 0, allocator),
      before_(allocator),
      has_before_(cache.eviction.score == TokenScore::kMass ? seen_.size() : 0, 0, allocator) {
  const auto layers = static_cast<size_t>(cache.n_layers);
  if (cache.eviction.score == TokenScore::kWindow) windows_.resize(layers, QueryWindow(cache.backend, allocator));
  if (cache.eviction.score == TokenScore::kMass) masses_.resize(layers, SlotMasses(cache.backend, allocator));
}

void Observations::check_seen(const Sequence& sequence, int32_t layer) const {
  if (windows_.empty() && masses_.empty()) return;  // eviction does not use queries
  const int32_t seen = seen_[static_cast<size_t>(layer)];
  if (seen == 0) {
    fail(KVQ_E_STATE, "no query of layer %d has attended since the sequence was created, loaded or last compressed",
         sequence.cache.number(layer));
  }
  const int32_t window = sequence.cache.eviction.window;
  const int32_t unseen = sequence.length(layer) - seen;
  if (unseen <= window) return;
  fail(KVQ_E_STATE,
       "layer %d has received %d tokens since a query last attended, more than the window of %d: attend first",
       sequence.cache.number(layer), unseen, window);
}

SlotMasses Observations::masses(const Sequence& sequence, int32_t layer) const {
  check_seen(sequence, layer);
  const Vector<int32_t> slots = slots_of(sequence, layer, sequence.cache.allocator);
  Cache& cache = sequence.cache;
  SlotMasses masses(cache.backend, cache.allocator);
  masses.clear(slots);
  if (!masses_.empty()) masses.add(masses_[static_cast<size_t>(layer)]);
  if (!windows_.empty()) weigh_window(sequence, layer, windows_[static_cast<size_t>(layer)], masses);
  return masses;
}

SlotMasses Observations::stage(const Sequence& sequence, int32_t layer, const AttendBatch& batch,
                               const AttendSequence& entry, CallSpace& space) {
  Cache& cache = sequence.cache;
  SlotMasses masses = take_spare(cache);
  if (!masses_.empty()) {
    try {
      keep_before(static_cast<size_t>(layer));
      masses.clear(slots_of(sequence, layer, space.scratch));
      AttendBatch alone = batch;
      alone.sequences = {&entry, 1};
      weigh(cache, alone, space, masses);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      return_spare(masses);
      throw;
    }
  }
  if (!windows_.empty()) {
    const std::lock_guard lock(mutex_);
    windows_[static_cast<size_t>(layer)].stage(batch, static_cast<size_t>(entry.query_count), cache.eviction.window);
  }
  return masses;
}

void Observations::commit(const Sequence& sequence, int32_t layer, const AttendBatch& batch,
                          const AttendSequence& entry, SlotMasses& staged) noexcept {
  const std::lock_guard lock(mutex_);
  const auto l = static_cast<size_t>(layer);
  if (!windows_.empty()) {
    const auto first = static_cast<size_t>(entry.query_begin);
    const auto positions = batch.query_positions.subspan(first, static_cast<size_t>(entry.query_count));
    windows_[l].add(batch, first, positions, sequence.cache.eviction.window);
  }
  if (!masses_.empty()) {
    staged.add(masses_[l]);
    std::swap(masses_[l], staged);
    return_spare(staged);
  }
  seen_[l] = sequence.length(layer);
}

void Observations::discard(int32_t layer, const AttendSequence& entry, SlotMasses& staged) noexcept {
  const std::lock_guard lock(mutex_);
  return_spare(staged);
  if (!windows_.empty()) windows_[static_cast<size_t>(layer)].discard(static_cast<size_t>(entry.query_count));
}

/// What a step may have to restore.
void Observations::keep_before(size_t layer) {
  const std::lock_guard lock(mutex_);
  if (!in_step_ || has_before_[layer] != 0) return;
  before_[layer].clear(masses_[layer].counts);
  before_[layer].add(masses_[layer]);
  has_before_[layer] = 1;
}

Observations::StepRoom Observations::prepare_step(const Sequence& sequence, int32_t slots, Allocator& scratch) const {
  Cache& cache = sequence.cache;
  const std::lock_guard lock(mutex_);
  StepRoom room{Vector<QueryWindow::Queries>(scratch), Vector<SlotMasses>(cache.allocator)};
  if (!windows_.empty() && !windows_.front().keeps_replaced()) {
    room.replaced.reserve(windows_.size());
    for (size_t layer = 0; layer < windows_.size(); ++layer) room.replaced.push_back(QueryWindow::whole(cache));
  }
  const bool is_enough = masses_.empty() || (!before_.empty() && before_.front().capacity() >= slots);
  if (is_enough) return room;
  room.before.reserve(masses_.size());
  for (size_t layer = 0; layer < masses_.size(); ++layer) {
    room.before.emplace_back(cache.backend, cache.allocator)
        .reserve(sequence.heads(static_cast<int32_t>(layer)), slots);
  }
  return room;
}

void Observations::begin_step(StepRoom& room) noexcept {
  const std::lock_guard lock(mutex_);
  for (size_t layer = 0; layer < windows_.size(); ++layer) {
    QueryWindow::Queries none(windows_[layer].backend(), windows_[layer].allocator());
    windows_[layer].begin_step(room.replaced.empty() ? none : room.replaced[layer]);
  }
  if (!room.before.empty()) before_.swap(room.before);
  std::fill(has_before_.begin(), has_before_.end(), 0);
  std::copy(seen_.begin(), seen_.end(), seen_before_.begin());
  in_step_ = true;
}

void Observations::check_undo(const Cache& cache, int32_t layer, int32_t last_position) const {
  const auto l = static_cast<size_t>(layer);
  if (!masses_.empty() && has_before_[l] != 0) {
    fail(KVQ_E_UNSUPPORTED,
         "the policy evicts by h2o, which adds up the attention of a step: keep all of its tokens, or abort it");
  }
  if (windows_.empty() || windows_[l].can_undo(windows_[l].newer_than(last_position))) return;
  fail(KVQ_E_UNSUPPORTED,
       "the policy evicts by its newest queries, and layer %d has attended with more than its window holds: keep all "
       "tokens of the step, or abort it",
       cache.number(layer));
}

void Observations::undo(int32_t layer, int32_t last_position, int32_t length) noexcept {
  const std::lock_guard lock(mutex_);
  const auto l = static_cast<size_t>(layer);
  if (!windows_.empty()) windows_[l].undo(windows_[l].newer_than(last_position));
  seen_[l] = std::min(seen_[l], length);
}

void Observations::undo_all(int32_t layer) noexcept {
  const std::lock_guard lock(mutex_);
  const auto l = static_cast<size_t>(layer);
  if (!windows_.empty()) windows_[l].undo(SIZE_MAX);
  if (!masses_.empty() && has_before_[l] != 0) std::swap(masses_[l], before_[l]);
  if (!masses_.empty()) has_before_[l] = 0;
  seen_[l] = seen_before_[l];
}

void Observations::end_step() noexcept {
  const std::lock_guard lock(mutex_);
  for (QueryWindow& window : windows_) window.end_step();
  in_step_ = false;
}

SlotMasses Observations::take_spare(Cache& cache) {
  const std::lock_guard lock(mutex_);
  if (spare_.empty()) return {cache.backend, cache.allocator};
  SlotMasses spare = std::move(spare_.back());
  spare_.pop_back();
  return spare;
}

void Observations::return_spare(SlotMasses& masses) noexcept {
  const bool is_spare = reserved_slots_ > 0 && spare_.empty() && masses.capacity() >= reserved_slots_;
  if (is_spare) spare_.push_back(std::move(masses));  // its place was kept
}

Observations::Room Observations::prepare(const Sequence& sequence, int32_t tokens, Allocator& scratch) const {
  Cache& cache = sequence.cache;
  const std::lock_guard lock(mutex_);
  Room room{Vector<QueryWindow::Queries>(scratch), Vector<SlotMasses>(scratch), Vector<SlotMasses>(cache.allocator), 0};
  if (!windows_.empty() && !windows_.front().is_reserved()) {
    room.windows.reserve(windows_.size());
    for (size_t layer = 0; layer < windows_.size(); ++layer) room.windows.push_back(QueryWindow::whole(cache));
  }
  if (masses_.empty()) return room;
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    for (int32_t head = 0; head < cache.layer(layer).kv_heads; ++head)
      room.slots = std::max(room.slots, sequence.slots(layer, head));
  }
  room.slots = std::max(room.slots + tokens, reserved_slots_);
  if (room.slots == reserved_slots_) return room;
  room.masses.reserve(masses_.size());
  for (const SlotMasses& masses : masses_) {
    room.masses.emplace_back(cache.backend, cache.allocator).reserve(sequence.heads(0), room.slots);
    room.masses.back().clear(masses.counts);
    room.masses.back().add(masses);
  }
  room.spare.reserve(1);
  room.spare.emplace_back(cache.backend, cache.allocator).reserve(sequence.heads(0), room.slots);
  return room;
}

void Observations::take(Room& room) noexcept {
  const std::lock_guard lock(mutex_);
  for (size_t layer = 0; layer < room.windows.size(); ++layer) windows_[layer].move_to(room.windows[layer]);
  if (room.masses.empty()) return;
  std::swap_ranges(masses_.begin(), masses_.end(), room.masses.begin());
  spare_.swap(room.spare);
  reserved_slots_ = room.slots;
}

Vector<SlotMasses> Observations::kept(std::span<const Vector<int32_t>> slots) const {
  Vector<SlotMasses> kept(masses_.get_allocator());
  kept.reserve(masses_.size());
  const size_t heads = masses_.empty() ? 0 : slots.size() / masses_.size();
  for (size_t layer = 0; layer < masses_.size(); ++layer) {
    kept.emplace_back(masses_[layer].backend(), masses_[layer].allocator());
    kept.back().keep(masses_[layer], slots.subspan(layer * heads, heads));
    if (reserved_slots_ > 0) kept.back().grow(heads, reserved_slots_);
  }
  return kept;
}

void Observations::keep(Vector<SlotMasses>& kept) noexcept {
  for (QueryWindow& window : windows_) window.clear();
  if (!windows_.empty()) std::fill(seen_.begin(), seen_.end(), 0);
  masses_.swap(kept);
}

void Observations::truncate(const Sequence& sequence) noexcept {
  for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    seen_[l] = std::min(seen_[l], sequence.length(layer));
    if (seen_[l] == 0 && !windows_.empty()) windows_[l].clear();
    if (masses_.empty()) continue;
    Vector<int32_t>& counts = masses_[l].counts;
    for (size_t head = 0; head < counts.size(); ++head) {
      counts[head] = std::min(counts[head], sequence.slots(layer, static_cast<int32_t>(head)));
    }
  }
}

uint64_t Observations::bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  uint64_t sum = bytes_of(seen_.capacity(), windows_.capacity(), masses_.capacity() + spare_.capacity());
  for (const QueryWindow& window : windows_) sum += window.bytes();
  for (const SlotMasses& masses : masses_) sum += masses.bytes();
  for (const SlotMasses& masses : spare_) sum += masses.bytes();
  for (const SlotMasses& masses : before_) sum += masses.bytes();
  sum += before_.capacity() * sizeof(SlotMasses);
  return sum;
}

uint64_t Observations::bytes_of(const Cache& cache, int32_t tokens, int32_t queries) {
  if (cache.eviction.budget == 0) return 0;
  const auto layers = static_cast<size_t>(cache.n_layers);
  const auto heads = static_cast<size_t>(cache.layer(0).kv_heads);
  switch (cache.eviction.score) {
    case TokenScore::kWindow:
      return bytes_of(layers, layers, 0) +
             layers * QueryWindow::bytes_of(cache, tokens > 0 ? cache.eviction.window : queries);
    case TokenScore::kMass:
      if (tokens == 0) {
        return bytes_of(layers, 0, layers) + (queries == 0 ? 0 : layers * SlotMasses::bytes_of(heads, tokens));
      }
      return bytes_of(layers, 0, layers + 1) + (layers + 1) * SlotMasses::bytes_of(heads, tokens);
    case TokenScore::kStreaming:
      break;
  }
  return bytes_of(layers, 0, 0);
}

}  // namespace kvq
