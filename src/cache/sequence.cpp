#include "cache/sequence.h"

#include "cache/observations.h"
#include "cache/page_copies.h"
#include "cache/reserve.h"
#include "core/error.h"

#include <numeric>

namespace kvq {
namespace {

Vector<Owned<LayerMirror>> make_mirrors(Cache& cache) {
  Vector<Owned<LayerMirror>> mirrors(cache.allocator);
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    Owned<LayerMirror> mirror = cache.backend.pages().make_mirror(cache.allocator, cache.layer(layer).kv_heads);
    if (mirror == nullptr) break;
    mirrors.reserve(static_cast<size_t>(cache.n_layers));
    mirrors.push_back(std::move(mirror));
  }
  return mirrors;
}

}  // namespace

Sequence::Sequence(Cache& cache_, const Storage& storage_)
    : cache(cache_),
      storage(&storage_),
      lists(cache.n_lists(), PageList(cache.allocator), cache.allocator),
      runs(size(lists.size(), storage->runs_of_list()), nullptr, cache.allocator),
      layers(static_cast<size_t>(cache.n_layers), Layer{}, cache.allocator),
      mirrors(make_mirrors(cache)),
      reserves(cache.allocator),
      observations(cache.eviction.budget > 0
                       ? make_owned<Observations>(cache.allocator, cache, cache.allocator)
                       : Owned<Observations>(nullptr, Deleter<Observations>(cache.allocator, 0, 0))),
      calibration(make_calibration(cache, *storage)),
      states(cache.state_allocator, cache.allocator),
      compress_room(cache.allocator),
      step(cache.allocator),
      published_lists(mirrors.empty() ? 0 : static_cast<size_t>(cache.most_kv_heads()), nullptr, cache.allocator),
      published_counts(published_lists.size(), 0, cache.allocator),
      replayed_lengths(mirrors.size(), 0, cache.allocator),
      append_memory(cache.allocator),
      seal_memory(cache.allocator) {
  step.begin.assign(layers.size(), Layer{});
  append_memory.reserve(cache.most_kv_heads(), storage->runs_of_list(), kPagesOfOneAppend, kPageSlots);
  seal_memory.reserve(cache.most_kv_heads(), storage->runs_of_list(), kPagesOfOneAppend, 0);
}

uint64_t Sequence::record_bytes(const Cache& cache, const Storage& storage, bool mirrored) {
  const auto layers = static_cast<uint64_t>(cache.n_layers);
  const auto heads = static_cast<uint64_t>(cache.most_kv_heads());
  const uint64_t of_mirrors =
      layers * (sizeof(Owned<LayerMirror>) + sizeof(int32_t)) + heads * (sizeof(const Page* const*) + sizeof(int32_t));
  return sizeof(Sequence) + uint64_t{cache.n_lists()} * (sizeof(PageList) + storage.runs_of_list() * sizeof(PageRun*)) +
         2 * layers * sizeof(Layer) + (mirrored ? of_mirrors : 0);
}

Sequence::Sequence(Cache& cache_, const Sequence& parent) : Sequence(cache_, *parent.storage) {
  // A device that appends by itself may change the parent's open page, and those to be sealed, any time.
  PageCopies copies(cache);
  const auto is_changed = [&](size_t list, size_t index) {
    const PageList& pages = parent.lists[list];
    const Page* page = pages[index];
    if (parent.reserves.empty()) return false;
    if (parent.device_reuses(layer_of(list), static_cast<int32_t>(index))) return true;
    if (!page->is_float16()) return false;
    const bool open = index + 1 == pages.size() && page->count < kPageSlots;
    return open || !ends_float16(layer_of(list), static_cast<int32_t>(index));
  };
  for (size_t i = 0; i < lists.size(); ++i) {
    lists[i].reserve(parent.lists[i].size());
    for (size_t index = 0; index < parent.lists[i].size(); ++index) {
      if (is_changed(i, index)) copies.add(*parent.lists[i][index], parent.lists[i][index]->count);
    }
  }
  copies.run();
  for (size_t i = 0; i < lists.size(); ++i) {
    for (size_t index = 0; index < parent.lists[i].size(); ++index) {
      Page* page = parent.lists[i][index];
      if (is_changed(i, index)) {
        lists[i].push_back(copies.take());
        cache.set_count(lists[i].back(), page->count);
      } else {
        lists[i].push_back(page);
        cache.retain(page);
      }
    }
  }
  layers = parent.layers;
  states = parent.states;
  if (parent.calibration != nullptr) {
    calibration = make_owned<Calibration>(cache.allocator, cache, *parent.calibration);
  }
  keep_compress_room(*this, 0);
  if (observations != nullptr) observations = make_owned<Observations>(cache.allocator, *parent.observations);
}

Sequence::~Sequence() {
  if (!reserves.empty()) cache.reserved_sequences.fetch_sub(1);
  for (const PageList& pages : lists) {
    for (Page* page : pages) cache.release(page);
  }
  for (PageRun* run : runs) cache.release(run);
}

int32_t Sequence::slots(int32_t layer, int32_t head) const {
  const PageList& pages = list(layer, head);
  return std::accumulate(pages.begin(), pages.end(), 0,
                         [](int32_t sum, const Page* page) { return sum + page->count; });
}

int32_t Sequence::position_from_end(int32_t layer, int32_t back) const {
  if (positions_count(layer)) return length(layer) - back;
  const PageList& pages = list(layer, 0);
  for (size_t i = pages.size(); i-- > 0; back -= pages[i]->count) {
    if (back <= pages[i]->count) return pages[i]->position(pages[i]->count - back);
  }
  fail(KVQ_E_STATE, "layer %d holds only the newest %d tokens, and their positions have gaps: give query_positions",
       cache.number(layer), slots(layer, 0));
}

LayerState Sequence::state(int32_t layer, int32_t tokens, int32_t last_position) const {
  const Reserve* pages = reserve(layer);
  const int32_t next = last_position == INT32_MAX ? INT32_MAX : last_position + 1;  // there is none after the last
  return {length(layer) + tokens, next, pages != nullptr ? std::max(pages->room() - tokens, 0) : 0};
}

const int32_t* Sequence::counts(int32_t layer) {
  for (int32_t head = 0; head < cache.layer(layer).kv_heads; ++head) {
    published_counts[static_cast<size_t>(head)] = static_cast<int32_t>(list(layer, head).size());
  }
  return published_counts.data();
}

// Replayed graphs append on the device: how the host's lists catch up, and the state they start from.

void follow_replays(const Sequence& sequence) {
  if (!sequence.recorded || sequence.cache.backend.recording()) return;
  // The device's lists are the sequence's state: nothing visible to a caller changes.
  auto& behind = const_cast<Sequence&>(sequence);
  const std::lock_guard lock(behind.replayed_mutex);
  Cache& cache = behind.cache;
  Vector<int32_t>& lengths = behind.replayed_lengths;
  cache.backend.pages().read_lengths(behind.mirrors, lengths);
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    const int32_t replayed = lengths[static_cast<size_t>(layer)] - behind.length(layer);
    if (replayed <= 0) continue;
    repeat_append(behind, layer, replayed);
    behind.mirror(layer)->agreed(behind.counts(layer));
  }
}

void publish(Sequence& sequence, int32_t layer) {
  LayerMirror* mirror = sequence.mirror(layer);
  if (mirror == nullptr) return;
  const Reserve* reserve = sequence.reserve(layer);
  for (int32_t head = 0; head < sequence.cache.layer(layer).kv_heads; ++head) {
    sequence.published_lists[static_cast<size_t>(head)] = sequence.list(layer, head).data();
  }
  const ReservedPages pages = reserve != nullptr ? reserve->view() : ReservedPages{};
  mirror->publish(sequence.published_lists.data(), sequence.counts(layer),
                  sequence.state(layer, 0, sequence.last_position(layer)), reserve != nullptr ? &pages : nullptr);
}

void publish(Sequence& sequence) {
  for (int32_t layer = 0; layer < sequence.cache.n_layers; ++layer) publish(sequence, layer);
}

}  // namespace kvq
