#include "cache/cache.h"

#include <algorithm>
#include <cmath>

namespace kvq {
namespace {

void set_rope(const kvq_cache_options& options, Rope& rope) {
  rope.pairing = options.rope;
  if (options.rope == KVQ_ROPE_NONE) return;
  rope.rotary_dim = options.rotary_dim != 0 ? options.rotary_dim : options.head_dim;
  rope.inv_freq.resize(static_cast<size_t>(rope.pairs()));
  for (int32_t pair = 0; pair < rope.pairs(); ++pair) {
    const double exponent = -2.0 * pair / rope.rotary_dim;
    rope.inv_freq[static_cast<size_t>(pair)] =
        options.inv_freq != nullptr ? options.inv_freq[pair]
                                    : static_cast<float>(std::pow(static_cast<double>(options.rope_base), exponent));
  }
}

}  // namespace

Cache::Cache(Allocator& context, Backend& backend_, const kvq_cache_options& options, const Policy* policy)
    : n_layers(options.n_layers),
      q_heads(options.q_heads),
      kv_heads(options.kv_heads),
      head_dim(options.head_dim),
      scale(options.scale != 0.0F ? options.scale : 1.0F / std::sqrt(static_cast<float>(options.head_dim))),
      model_id(options.model_id),
      sink(policy != nullptr ? policy->sink : 0),
      recent(policy != nullptr ? policy->recent : 1),
      backend(backend_),
      allocator(context, options.max_bytes, "cache"),
      page_allocator(allocator, 0, "cache"),
      work_allocator(allocator, 0, "cache"),
      rope(allocator),
      float16{SideFormat{}, SideFormat{}, options.head_dim},
      formats(StlAllocator<PageFormat>(allocator)),
      layers(StlAllocator<Layer>(allocator)),
      workspace(backend.make_workspace(work_allocator)),
      attend_sequences(StlAllocator<AttendSequence>(work_allocator)),
      attend_lists(StlAllocator<const Page* const*>(work_allocator)),
      attend_counts(StlAllocator<int32_t>(work_allocator)),
      attend_positions(StlAllocator<int32_t>(work_allocator)) {
  set_rope(options, rope);
  const Policy plain(allocator);
  const Policy& chosen = policy != nullptr ? *policy : plain;
  const size_t choices = chosen.overrides.size() + 1;
  formats.reserve(std::min(static_cast<size_t>(n_layers), choices * choices));
  layers.reserve(static_cast<size_t>(n_layers));
  for (int32_t layer = 0; layer < n_layers; ++layer) {
    const PageFormat* sealed = intern(chosen.sealed_format(layer, head_dim));
    layers.push_back({sealed, sealed->keys.hadamard, sealed->values.hadamard});
  }
  table_bytes_ = allocator.bytes() - work_allocator.bytes();
}

const PageFormat* Cache::intern(const PageFormat& format) {
  if (format == float16) return &float16;
  const auto found = std::find(formats.begin(), formats.end(), format);
  if (found != formats.end()) return &*found;
  formats.push_back(format);
  return &formats.back();
}

Page* Cache::make_page(const PageFormat* format, bool with_positions) {
  auto page = make_owned<Page>(allocator);
  page->format = format;
  constexpr size_t kPositionBytes = sizeof(int32_t) * kPageSlots;
  if (with_positions) page->positions = static_cast<int32_t*>(allocator.allocate(kPositionBytes, alignof(int32_t)));
  try {
    page->data = backend.allocate(page_allocator, format->bytes());
  } catch (...) {
    allocator.release(page->positions, kPositionBytes, alignof(int32_t));
    throw;
  }
  (page->is_float16() ? account.float16_bytes : account.sealed_bytes) += format->bytes();
  (page->is_float16() ? account.float16_pages : account.sealed_pages) += 1;
  return page.release();
}

void Cache::retain(Page* page) noexcept {
  if (page->references.fetch_add(1, std::memory_order_relaxed) == 1) account.shared_pages += 1;
}

void Cache::release(Page* page) noexcept {
  const int32_t before = page->references.fetch_sub(1, std::memory_order_acq_rel);
  if (before == 2) account.shared_pages -= 1;
  if (before != 1) return;
  const size_t bytes = page->format->bytes();
  (page->is_float16() ? account.float16_bytes : account.sealed_bytes) -= bytes;
  (page->is_float16() ? account.float16_pages : account.sealed_pages) -= 1;
  account.slots -= page->count;
  backend.release(page_allocator, page->data, bytes);
  allocator.release(page->positions, sizeof(int32_t) * kPageSlots, alignof(int32_t));
  Deleter<Page>(allocator, sizeof(Page), alignof(Page))(page);
}

void Cache::set_count(Page* page, int32_t count) noexcept {
  account.slots += count - page->count;
  page->count = count;
}

}  // namespace kvq
