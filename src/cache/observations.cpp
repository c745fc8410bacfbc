#include "cache/observations.h"

#include "cache/sequence.h"
#include "core/error.h"
#include "core/tensor.h"

#include <algorithm>
#include <array>

namespace kvq {
namespace {

/// Add the attention that slots get from the queries of a batch's only sequence, each query's shares adding up to 1 for
/// each head.
void weigh(Cache& cache, const AttendBatch& batch, std::span<Vector<float>> masses) {
  Vector<float*> targets{StlAllocator<float*>(cache.allocator)};
  for (Vector<float>& mass : masses) targets.push_back(mass.data());
  cache.backend.weighing().require().weigh(batch, cache.eviction.group, *cache.workspace, targets);
}

/// The same for queries that were kept.
void weigh_window(const Sequence& sequence, int32_t layer, const QueryWindow& window, std::span<Vector<float>> masses) {
  Cache& cache = sequence.cache;
  if (window.size() == 0) {
    fail(KVQ_E_STATE, "no query of layer %d has attended since the sequence was made, loaded or last compressed",
         layer);
  }
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
  weigh(cache, batch, masses);
}

}  // namespace

void QueryWindow::add(const AttendBatch& batch, size_t first, std::span<const int32_t> positions, int32_t window) {
  const auto heads = static_cast<size_t>(batch.q_heads);
  const auto head_dim = static_cast<size_t>(batch.head_dim);
  const size_t width = heads * head_dim;
  const auto kept = static_cast<size_t>(window);
  // Not more than is there: after a prompt that is the window, in a conversation that goes on it grows.
  positions_.reserve(std::min(kept, std::max(positions_.capacity(), positions_.size() + positions.size())));
  rows_.reserve(positions_.capacity() * width);
  if (batch.sinks != nullptr) sinks_.reserve(heads);
  softcap_ = batch.softcap;
  sliding_window_ = batch.window;
  sinks_.assign(batch.sinks, batch.sinks + (batch.sinks != nullptr ? heads : 0));
  std::array<float, kMaxHeadDim> numbers;
  for (size_t i = positions.size() > kept ? positions.size() - kept : 0; i < positions.size(); ++i) {
    const bool full = positions_.size() == kept;
    const size_t row = full ? oldest_ : positions_.size();
    if (full) {
      oldest_ = (oldest_ + 1) % kept;
    } else {
      positions_.push_back(0);
      rows_.resize(rows_.size() + width);
    }
    positions_[row] = positions[i];
    for (size_t head = 0; head < heads; ++head) {
      read_floats(batch.q, batch.q_dtype, batch.q_strides.at(first + i, head), batch.head_dim, numbers.data());
      for (size_t c = 0; c < head_dim; ++c) {
        rows_[row * width + head * head_dim + c] = to_float16(std::clamp(numbers[c], -kMaxFloat16, kMaxFloat16));
      }
    }
  }
}

void QueryWindow::clear() noexcept {
  Vector<uint16_t>(rows_.get_allocator()).swap(rows_);
  Vector<int32_t>(positions_.get_allocator()).swap(positions_);
  Vector<float>(sinks_.get_allocator()).swap(sinks_);
  oldest_ = 0;
}

uint64_t QueryWindow::bytes() const noexcept {
  return rows_.capacity() * sizeof(uint16_t) + positions_.capacity() * sizeof(int32_t) +
         sinks_.capacity() * sizeof(float);
}

Observations::Observations(const Cache& cache, Allocator& allocator)
    : windows_(StlAllocator<QueryWindow>(allocator)), masses_(StlAllocator<Vector<float>>(allocator)) {
  const auto layers = static_cast<size_t>(cache.n_layers);
  if (cache.eviction.score == TokenScore::kWindow) windows_.resize(layers, QueryWindow(allocator));
  if (cache.eviction.score == TokenScore::kMass) {
    masses_.resize(layers * static_cast<size_t>(cache.kv_heads), Vector<float>(StlAllocator<float>(allocator)));
  }
}

Vector<Vector<float>> Observations::masses(const Sequence& sequence, int32_t layer) const {
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

void Observations::add(const Sequence& sequence, int32_t layer, const AttendBatch& batch, const AttendSequence& entry) {
  const Cache& cache = sequence.cache;
  const auto first = static_cast<size_t>(entry.query_begin);
  const auto positions = batch.query_positions.subspan(first, static_cast<size_t>(entry.query_count));
  if (!windows_.empty()) {
    windows_[static_cast<size_t>(layer)].add(batch, first, positions, cache.eviction.window);
  }
  if (masses_.empty()) return;
  const auto heads = static_cast<size_t>(cache.kv_heads);
  const auto of_layer = std::span(masses_).subspan(static_cast<size_t>(layer) * heads, heads);
  for (int32_t head = 0; head < cache.kv_heads; ++head) {
    of_layer[static_cast<size_t>(head)].resize(static_cast<size_t>(sequence.slots(layer, head)), 0.0F);
  }
  AttendBatch alone = batch;
  alone.sequences = {&entry, 1};
  weigh(sequence.cache, alone, of_layer);
}

void Observations::keep(std::span<const Vector<int32_t>> slots) noexcept {
  for (QueryWindow& window : windows_) window.clear();
  for (size_t list = 0; list < masses_.size(); ++list) {
    if (slots[list].empty()) continue;
    Vector<float>& mass = masses_[list];
    for (size_t i = 0; i < slots[list].size(); ++i) {
      const auto slot = static_cast<size_t>(slots[list][i]);
      mass[i] = slot < mass.size() ? mass[slot] : 0.0F;
    }
    mass.resize(slots[list].size());
  }
}

uint64_t Observations::bytes() const noexcept {
  uint64_t sum =
      sizeof(Observations) + windows_.capacity() * sizeof(QueryWindow) + masses_.capacity() * sizeof(Vector<float>);
  for (const QueryWindow& window : windows_) sum += window.bytes();
  for (const Vector<float>& mass : masses_) sum += mass.capacity() * sizeof(float);
  return sum;
}

}  // namespace kvq
