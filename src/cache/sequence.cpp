#include "cache/sequence.h"

#include <algorithm>

namespace kvq {

Sequence::Sequence(Cache& cache_)
    : cache(cache_),
      lists(static_cast<size_t>(cache.n_layers) * static_cast<size_t>(cache.kv_heads),
            PageList(StlAllocator<Page*>(cache.allocator)), StlAllocator<PageList>(cache.allocator)),
      layers(static_cast<size_t>(cache.n_layers), Layer{}, StlAllocator<Layer>(cache.allocator)) {}

Sequence::Sequence(Cache& cache_, const Sequence& parent)
    : cache(cache_), lists(parent.lists), layers(parent.layers) {
  for (const PageList& pages : lists) {
    for (Page* page : pages) cache.retain(page);
  }
}

Sequence::~Sequence() {
  for (const PageList& pages : lists) {
    for (Page* page : pages) cache.release(page);
  }
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
  usage.bits_per_scalar = usage.scalars == 0 ? 0.0 : 8.0 * static_cast<double>(held) / static_cast<double>(usage.scalars);
}

}  // namespace

kvq_usage usage(const Sequence& sequence) {
  kvq_usage result = {};
  int64_t slots = 0;
  result.metadata_bytes = sizeof(Sequence) + sequence.lists.capacity() * sizeof(Sequence::PageList) +
                          sequence.layers.capacity() * sizeof(Sequence::Layer);
  for (const Sequence::PageList& pages : sequence.lists) {
    result.metadata_bytes += pages.capacity() * sizeof(Page*);
    for (const Page* page : pages) {
      (page->is_float16() ? result.fp16_bytes : result.sealed_bytes) += page->format->bytes();
      (page->is_float16() ? result.fp16_pages : result.sealed_pages) += 1;
      result.shared_pages += page->is_shared() ? 1 : 0;
      result.metadata_bytes += sizeof(Page) + (page->positions != nullptr ? sizeof(int32_t) * kPageSlots : 0);
      slots += page->count;
    }
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
  result.metadata_bytes =
      cache.total_bytes() - result.sealed_bytes - result.fp16_bytes - result.workspace_bytes;
  finish(result, cache.head_dim, cache.account.slots);
  return result;
}

}  // namespace kvq
