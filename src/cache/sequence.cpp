#include "cache/sequence.h"

#include <algorithm>

namespace kvq {
namespace {

Vector<Owned<LayerMirror>> make_mirrors(Cache& cache) {
  Vector<Owned<LayerMirror>> mirrors{StlAllocator<Owned<LayerMirror>>(cache.allocator)};
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    Owned<LayerMirror> mirror = cache.backend.make_mirror(cache.allocator, cache.kv_heads);
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
      runs(lists.size(), nullptr, StlAllocator<PageRun*>(cache.allocator)),
      layers(static_cast<size_t>(cache.n_layers), Layer{}, StlAllocator<Layer>(cache.allocator)),
      mirrors(make_mirrors(cache)) {}

Sequence::Sequence(Cache& cache_, const Sequence& parent)
    : cache(cache_),
      lists(parent.lists),
      runs(lists.size(), nullptr, StlAllocator<PageRun*>(cache.allocator)),
      layers(parent.layers),
      mirrors(make_mirrors(cache)) {
  for (const PageList& pages : lists) {
    for (Page* page : pages) cache.retain(page);
  }
}

Sequence::~Sequence() {
  for (const PageList& pages : lists) {
    for (Page* page : pages) cache.release(page);
  }
  for (PageRun* run : runs) cache.release(run);
}

int32_t Sequence::position_from_end(int32_t layer, int32_t back) const {
  const PageList& pages = list(layer, 0);
  for (size_t i = pages.size(); i-- > 0; back -= pages[i]->count) {
    if (back <= pages[i]->count) return pages[i]->position(pages[i]->count - back);
  }
  return 0;
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
  result.metadata_bytes = sizeof(Sequence) + sequence.lists.capacity() * sizeof(Sequence::PageList) +
                          sequence.runs.capacity() * sizeof(PageRun*) +
                          sequence.layers.capacity() * sizeof(Sequence::Layer) +
                          sequence.mirrors.capacity() * sizeof(Owned<LayerMirror>);
  for (const Owned<LayerMirror>& mirror : sequence.mirrors) result.metadata_bytes += mirror->bytes();
  for (size_t i = 0; i < sequence.lists.size(); ++i) {
    const Sequence::PageList& pages = sequence.lists[i];
    result.metadata_bytes += pages.capacity() * sizeof(Page*);
    const PageRun* counted = nullptr;  // the pages of a run are neighbours in the list
    bool current_counted = sequence.runs[i] == nullptr;
    for (const Page* page : pages) {
      if (page->run != counted) add_run(result, counted = page->run);
      current_counted = current_counted || counted == sequence.runs[i];
      (page->is_float16() ? result.fp16_pages : result.sealed_pages) += 1;
      result.shared_pages += page->is_shared() ? 1 : 0;
      result.metadata_bytes += page->positions != nullptr ? sizeof(int32_t) * kPageSlots : 0;
      slots += page->count;
    }
    if (!current_counted) add_run(result, sequence.runs[i]);
  }
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
