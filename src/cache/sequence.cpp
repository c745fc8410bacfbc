#include "cache/sequence.h"

#include "cache/observations.h"
#include "cache/page_copies.h"
#include "cache/reserve.h"
#include "core/error.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace kvq {
namespace {

Vector<Owned<LayerMirror>> make_mirrors(Cache& cache) {
  Vector<Owned<LayerMirror>> mirrors{StlAllocator<Owned<LayerMirror>>(cache.allocator)};
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    Owned<LayerMirror> mirror = cache.backend.pages().make_mirror(cache.allocator, cache.kv_heads);
    if (mirror == nullptr) break;
    mirrors.reserve(static_cast<size_t>(cache.n_layers));
    mirrors.push_back(std::move(mirror));
  }
  return mirrors;
}

}  // namespace

Sequence::Sequence(Cache& cache_)
    : cache(cache_),
      lists(static_cast<size_t>(cache.n_layers) * static_cast<size_t>(cache.kv_heads),
            PageList(StlAllocator<Page*>(cache.allocator)), StlAllocator<PageList>(cache.allocator)),
      runs(lists.size() * cache.runs_of_list(), nullptr, StlAllocator<PageRun*>(cache.allocator)),
      layers(static_cast<size_t>(cache.n_layers), Layer{}, StlAllocator<Layer>(cache.allocator)),
      mirrors(make_mirrors(cache)),
      reserves(StlAllocator<Owned<Reserve>>(cache.allocator)),
      observations(cache.eviction.budget > 0
                       ? make_owned<Observations>(cache.allocator, cache, cache.allocator)
                       : Owned<Observations>(nullptr, Deleter<Observations>(cache.allocator, 0, 0))),
      published_lists(mirrors.empty() ? 0 : static_cast<size_t>(cache.kv_heads), nullptr,
                      StlAllocator<const Page* const*>(cache.allocator)),
      published_counts(published_lists.size(), 0, StlAllocator<int32_t>(cache.allocator)),
      append_memory(cache.allocator) {
  append_memory.reserve(cache.kv_heads, cache.runs_of_list(), kPagesOfOneAppend, kPageSlots);
}

Sequence::Sequence(Cache& cache_, const Sequence& parent) : Sequence(cache_) {
  // A device that appends by itself changes pages of the parent any time: those that are to be sealed, and the open
  // one.
  PageCopies copies(cache);
  const auto is_changed = [&](size_t list, size_t index) {
    const PageList& pages = parent.lists[list];
    const Page* page = pages[index];
    if (parent.reserves.empty() || !page->is_float16()) return false;
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
  if (observations != nullptr) *observations = *parent.observations;
}

Sequence::~Sequence() {
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
  if (last_position(layer) == length(layer) - 1) return length(layer) - back;  // they count the tokens
  const PageList& pages = list(layer, 0);
  for (size_t i = pages.size(); i-- > 0; back -= pages[i]->count) {
    if (back <= pages[i]->count) return pages[i]->position(pages[i]->count - back);
  }
  fail(KVQ_E_STATE, "layer %d holds only the newest %d tokens, and their positions have gaps: give query_positions",
       layer, slots(layer, 0));
}

LayerState Sequence::state(int32_t layer, int32_t tokens, int32_t last_position) const {
  const Reserve* pages = reserve(layer);
  const int32_t next = last_position == INT32_MAX ? INT32_MAX : last_position + 1;  // there is none after the last
  return {length(layer) + tokens, next, pages != nullptr ? std::max(pages->room() - tokens, 0) : 0};
}

const int32_t* Sequence::counts(int32_t layer) {
  for (int32_t head = 0; head < cache.kv_heads; ++head) {
    published_counts[static_cast<size_t>(head)] = static_cast<int32_t>(list(layer, head).size());
  }
  return published_counts.data();
}

namespace {

void finish(kvq_usage& usage, int32_t head_dim, int64_t slots) {
  usage.scalars = 2 * static_cast<int64_t>(head_dim) * slots;
  usage.plain_fp16_bytes = 2 * static_cast<uint64_t>(usage.scalars);
  const uint64_t held = usage.sealed_bytes + usage.fp16_bytes + usage.metadata_bytes;
  usage.total_bytes = held + usage.workspace_bytes;
  usage.bits_per_scalar =
      usage.scalars == 0 ? 0.0 : 8.0 * static_cast<double>(held) / static_cast<double>(usage.scalars);
}

}  // namespace

namespace {

void add_run(kvq_usage& usage, const PageRun* run) {
  (run->format->is_float16() ? usage.fp16_bytes : usage.sealed_bytes) += run->data_bytes();
  usage.metadata_bytes += run->record_bytes();
}

}  // namespace

kvq_usage usage(const Sequence& sequence) {
  kvq_usage result = {};
  int64_t slots = 0;
  result.metadata_bytes =
      sizeof(Sequence) + sequence.lists.capacity() * sizeof(Sequence::PageList) +
      sequence.runs.capacity() * sizeof(PageRun*) + sequence.layers.capacity() * sizeof(Sequence::Layer) +
      sequence.mirrors.capacity() * sizeof(Owned<LayerMirror>) + sequence.reserves.capacity() * sizeof(Owned<Reserve>) +
      sequence.published_lists.capacity() * sizeof(const Page* const*) +
      sequence.published_counts.capacity() * sizeof(int32_t) + sequence.append_memory.bytes();
  if (sequence.observations != nullptr) result.metadata_bytes += sequence.observations->bytes();
  for (const Owned<LayerMirror>& mirror : sequence.mirrors) result.metadata_bytes += mirror->bytes();
  for (size_t i = 0; i < sequence.lists.size(); ++i) {
    const Sequence::PageList& pages = sequence.lists[i];
    result.metadata_bytes += pages.capacity() * sizeof(Page*);
    // The last ones counted, by format: pages of a format follow each other. FP16 may come after the sealed formats.
    std::array<const PageRun*, kMaxExperts + 1> long_runs{};
    const auto count_page = [&](const Page* page) {
      (page->is_float16() ? result.fp16_pages : result.sealed_pages) += 1;
      result.shared_pages += page->is_shared() ? 1 : 0;
      result.metadata_bytes += page->positions != nullptr ? sizeof(int32_t) * kPageSlots : 0;
      slots += page->count;
      const PageRun*& long_run = long_runs[sequence.cache.run_number(sequence.layer_of(i), page->format())];
      if (page->run == long_run) return;
      add_run(result, page->run);
      if (page->run->capacity > 1) long_run = page->run;
    };
    for (const Page* page : pages) count_page(page);
    for (const PageRun* current : sequence.runs_of(i)) {
      const auto in_current = [current](const Page* page) { return page->run == current; };
      const bool counted = current == nullptr || std::any_of(pages.begin(), pages.end(), in_current);
      if (!counted) add_run(result, current);
    }
    const Reserve* reserve = sequence.reserve(sequence.layer_of(i));
    if (reserve == nullptr) continue;
    const auto head = static_cast<int32_t>(i % static_cast<size_t>(sequence.cache.kv_heads));
    for (const auto* made : {&reserve->finals(head), &reserve->open(head)}) {
      for (const Page* page : *made) {
        if (page != nullptr) count_page(page);
      }
    }
  }
  for (const Owned<Reserve>& reserve : sequence.reserves) result.metadata_bytes += reserve->record_bytes();
  finish(result, sequence.cache.head_dim, slots);
  return result;
}

kvq_usage usage(const Cache& cache) {
  kvq_usage result = {};
  result.sealed_bytes = cache.account.sealed_bytes;
  result.fp16_bytes = cache.account.float16_bytes;
  result.sealed_pages = cache.account.sealed_pages;
  result.fp16_pages = cache.account.float16_pages;
  result.shared_pages = cache.account.shared_pages;
  result.workspace_bytes = cache.fixed_bytes();
  result.metadata_bytes = cache.total_bytes() - result.sealed_bytes - result.fp16_bytes - result.workspace_bytes;
  finish(result, cache.head_dim, cache.account.slots);
  return result;
}

}  // namespace kvq
