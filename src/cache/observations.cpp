#include "cache/observations.h"

#include "cache/sequence.h"
#include "core/error.h"
#include "core/tensor.h"

#include <algorithm>
#include <array>

namespace kvq {
namespace {

template <typename T>
void release(Vector<T>& vector) noexcept {
  Vector<T>(vector.get_allocator()).swap(vector);
}

/// Add the attention that slots get from the queries of a batch's only sequence, each query's shares adding up to 1 for
/// each head.
void weigh(Cache& cache, const AttendBatch& batch, Workspace& workspace, std::span<Vector<float>> masses) {
  Vector<float*> targets{StlAllocator<float*>(cache.allocator)};
  for (Vector<float>& mass : masses) targets.push_back(mass.data());
  cache.backend.weighing().require().weigh(batch, cache.eviction.group, workspace, targets);
}

/// The same for queries that were kept.
void weigh_window(const Sequence& sequence, int32_t layer, const QueryWindow& window, std::span<Vector<float>> masses) {
  Cache& cache = sequence.cache;
  Vector<const Page* const*> lists{StlAllocator<const Page* const*>(cache.allocator)};
  Vector<int32_t> counts{StlAllocator<int32_t>(cache.allocator)};
  for (int32_t head = 0; head < cache.kv_heads; ++head) {
    lists.push_back(sequence.list(layer, head).data());
    counts.push_back(static_cast<int32_t>(sequence.list(layer, head).size()));
  }
  const AttendSequence entry{.mirror = nullptr,
                             .pages = lists.data(),
                             .page_counts = counts.data(),
                             .query_begin = 0,
                             .query_count = window.size()};
  AttendBatch batch = cache.attend_batch(layer);
  batch.sequences = {&entry, 1};
  batch.query_positions = window.positions();
  batch.q = window.rows();
  batch.q_dtype = KVQ_F16;
  batch.sinks = window.sinks();
  batch.softcap = window.softcap();
  batch.window = window.sliding_window();
  const AttendSpaces::Lease space(cache.attend_spaces);
  weigh(cache, batch, *space->workspace, masses);
}

}  // namespace

void QueryWindow::stage(const AttendBatch& batch, size_t queries, int32_t window) {
  if (batch.sinks != nullptr) sinks_.reserve(static_cast<size_t>(batch.q_heads));
  staged_ += queries;
  // Not more than is there: after a prompt that is the window, in a conversation that goes on it grows.
  const size_t wanted = std::min(static_cast<size_t>(window), held_.positions.size() + staged_);
  if (wanted <= std::max(held_.positions.capacity(), grown_.positions.capacity())) return;
  grown_.positions.reserve(wanted);
  grown_.rows.reserve(wanted * static_cast<size_t>(batch.q_heads) * static_cast<size_t>(batch.head_dim));
}

void QueryWindow::add(const AttendBatch& batch, size_t first, std::span<const int32_t> positions,
                      int32_t window) noexcept {
  if (grown_.positions.capacity() > held_.positions.capacity()) {
    grown_.positions.assign(held_.positions.begin(), held_.positions.end());
    grown_.rows.assign(held_.rows.begin(), held_.rows.end());
    std::swap(held_, grown_);
    release_grown();
  }
  staged_ -= positions.size();
  softcap_ = batch.softcap;
  sliding_window_ = batch.window;
  const auto heads = static_cast<size_t>(batch.q_heads);
  const auto head_dim = static_cast<size_t>(batch.head_dim);
  const size_t width = heads * head_dim;
  sinks_.assign(batch.sinks, batch.sinks + (batch.sinks != nullptr ? heads : 0));
  const auto kept = static_cast<size_t>(window);
  std::array<float, kMaxHeadDim> numbers;
  for (size_t i = positions.size() > kept ? positions.size() - kept : 0; i < positions.size(); ++i) {
    const bool full = held_.positions.size() == kept;
    const size_t row = full ? oldest_ : held_.positions.size();
    if (full) {
      oldest_ = (oldest_ + 1) % kept;
    } else {
      held_.positions.push_back(0);
      held_.rows.resize(held_.rows.size() + width);
    }
    held_.positions[row] = positions[i];
    for (size_t head = 0; head < heads; ++head) {
      read_floats(batch.q, batch.q_dtype, batch.q_strides.at(first + i, head), batch.head_dim, numbers.data());
      for (size_t c = 0; c < head_dim; ++c) {
        held_.rows[row * width + head * head_dim + c] = to_float16(std::clamp(numbers[c], -kMaxFloat16, kMaxFloat16));
      }
    }
  }
}

void QueryWindow::discard() noexcept {
  release_grown();
  staged_ = 0;
}

void QueryWindow::release_grown() noexcept {
  release(grown_.rows);
  release(grown_.positions);
}

void QueryWindow::clear() noexcept {
  release(held_.rows);
  release(held_.positions);
  release(sinks_);
  oldest_ = 0;
}

uint64_t QueryWindow::bytes() const noexcept {
  return held_.rows.capacity() * sizeof(uint16_t) + held_.positions.capacity() * sizeof(int32_t) +
         sinks_.capacity() * sizeof(float);
}

Observations::Observations(const Cache& cache, Allocator& allocator)
    : seen_(static_cast<size_t>(cache.n_layers), 0, StlAllocator<int32_t>(allocator)),
      windows_(StlAllocator<QueryWindow>(allocator)),
      masses_(StlAllocator<Vector<float>>(allocator)),
      staged_(StlAllocator<Vector<float>>(allocator)) {
  const auto layers = static_cast<size_t>(cache.n_layers);
  if (cache.eviction.score == TokenScore::kWindow) windows_.resize(layers, QueryWindow(allocator));
  if (cache.eviction.score == TokenScore::kMass) {
    masses_.resize(layers * static_cast<size_t>(cache.kv_heads), Vector<float>(StlAllocator<float>(allocator)));
  }
}

void Observations::check_seen(const Sequence& sequence, int32_t layer) const {
  if (windows_.empty() && masses_.empty()) return;  // nothing is judged by queries
  const int32_t seen = seen_[static_cast<size_t>(layer)];
  if (seen == 0) {
    fail(KVQ_E_STATE, "no query of layer %d has attended since the sequence was made, loaded or last compressed",
         layer);
  }
  const int32_t window = sequence.cache.eviction.window;
  const int32_t unseen = sequence.length(layer) - seen;
  if (unseen <= window) return;
  fail(KVQ_E_STATE, "layer %d has got %d tokens since a query last attended, more than the window of %d: attend first",
       layer, unseen, window);
}

Vector<Vector<float>> Observations::masses(const Sequence& sequence, int32_t layer) const {
  check_seen(sequence, layer);
  Cache& cache = sequence.cache;
  Vector<Vector<float>> masses{StlAllocator<Vector<float>>(cache.allocator)};
  for (int32_t head = 0; head < cache.kv_heads; ++head) {
    if (masses_.empty()) {
      masses.emplace_back(StlAllocator<float>(cache.allocator));
    } else {
      masses.push_back(masses_[sequence.list_index(layer, head)]);
    }
    masses.back().resize(static_cast<size_t>(sequence.slots(layer, head)), 0.0F);
  }
  if (!windows_.empty()) weigh_window(sequence, layer, windows_[static_cast<size_t>(layer)], masses);
  return masses;
}

void Observations::stage(const Sequence& sequence, int32_t layer, const AttendBatch& batch, const AttendSequence& entry,
                         Workspace& workspace) {
  Cache& cache = sequence.cache;
  if (!windows_.empty()) {
    windows_[static_cast<size_t>(layer)].stage(batch, static_cast<size_t>(entry.query_count), cache.eviction.window);
  }
  if (masses_.empty()) return;
  if (staged_.empty()) {
    staged_.reserve(static_cast<size_t>(cache.kv_heads));
    for (int32_t head = 0; head < cache.kv_heads; ++head) {
      const Vector<float>& mass = masses_[sequence.list_index(layer, head)];
      staged_.emplace_back(static_cast<size_t>(sequence.slots(layer, head)), 0.0F, mass.get_allocator());
      std::copy(mass.begin(), mass.end(), staged_.back().begin());
    }
  }
  AttendBatch alone = batch;
  alone.sequences = {&entry, 1};
  weigh(cache, alone, workspace, staged_);
}

void Observations::commit(const Sequence& sequence, int32_t layer, const AttendBatch& batch,
                          const AttendSequence& entry) noexcept {
  const Cache& cache = sequence.cache;
  if (!windows_.empty()) {
    const auto first = static_cast<size_t>(entry.query_begin);
    const auto positions = batch.query_positions.subspan(first, static_cast<size_t>(entry.query_count));
    windows_[static_cast<size_t>(layer)].add(batch, first, positions, cache.eviction.window);
  }
  // Of all entries of this sequence: where it comes again, nothing is left.
  for (int32_t head = 0; head < std::ssize(staged_); ++head) {
    masses_[sequence.list_index(layer, head)].swap(staged_[static_cast<size_t>(head)]);
  }
  release(staged_);
  seen_[static_cast<size_t>(layer)] = sequence.length(layer);
}

void Observations::discard(int32_t layer) noexcept {
  if (!windows_.empty()) windows_[static_cast<size_t>(layer)].discard();
  release(staged_);
}

void Observations::keep(std::span<const Vector<int32_t>> slots) noexcept {
  for (QueryWindow& window : windows_) window.clear();
  if (!windows_.empty()) std::fill(seen_.begin(), seen_.end(), 0);
  for (size_t list = 0; list < masses_.size(); ++list) {
    if (slots[list].empty()) continue;
    Vector<float>& mass = masses_[list];
    size_t kept = 0;
    // What no query has seen yet comes last and has no mass.
    for (const int32_t slot : slots[list]) {
      if (static_cast<size_t>(slot) < mass.size()) mass[kept++] = mass[static_cast<size_t>(slot)];
    }
    mass.resize(kept);
  }
}

void Observations::truncate(const Sequence& sequence) noexcept {
  for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    seen_[l] = std::min(seen_[l], sequence.length(layer));
    if (seen_[l] == 0 && !windows_.empty()) windows_[l].clear();
    for (int32_t head = 0; head < sequence.cache.kv_heads && !masses_.empty(); ++head) {
      Vector<float>& mass = masses_[sequence.list_index(layer, head)];
      mass.resize(std::min(mass.size(), static_cast<size_t>(sequence.slots(layer, head))));
    }
  }
}

uint64_t Observations::bytes() const noexcept {
  uint64_t sum = sizeof(Observations) + seen_.capacity() * sizeof(int32_t) + windows_.capacity() * sizeof(QueryWindow) +
                 masses_.capacity() * sizeof(Vector<float>);
  for (const QueryWindow& window : windows_) sum += window.bytes();
  for (const Vector<float>& mass : masses_) sum += mass.capacity() * sizeof(float);
  return sum;
}

}  // namespace kvq
