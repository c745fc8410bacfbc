#include "cache/pool.h"

#include "core/error.h"
#include "core/sizes.h"
#include "formats/format_name.h"

namespace kvq {
namespace {

const PageFormat& format_of(const Cache& cache, int32_t layer) {
  return *cache.storage->layer_at(layer).formats.front();
}

/// Bytes that nobody has checked may be in a block, so any index has to name a centre.
void require_all_indices(const Cache& cache, int32_t layer, const PageFormat& format, Side side) {
  if (!format.side(side).has_trained_centres()) return;
  const int32_t centres = static_cast<const ModelCentres&>(*format.trained).shape.centres(side);
  if (centres == 1 || centres == 256) return;
  fail(KVQ_E_UNSUPPORTED,
       "the cache stores %s of layer %d around %d centres: in blocks, where any byte may be an index, there are 1 or "
       "256",
       side == Side::kKeys ? "keys" : "values", cache.number(layer), centres);
}

}  // namespace

void require_blocks(const Cache& cache) {
  if (cache.eviction.budget > 0) {
    fail(KVQ_E_UNSUPPORTED, "the cache's policy evicts tokens, which are the engine's in a pool");
  }
  if (cache.has_streams) {
    fail(KVQ_E_UNSUPPORTED, "the cache has mrope_section, which pools do not know: rotate keys and queries before");
  }
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    if (cache.storage->layer_at(layer).is_routed()) {
      fail(KVQ_E_UNSUPPORTED, "the cache's policy has a router: its pages differ in size, and blocks do not");
    }
    const PageFormat& format = format_of(cache, layer);
    if (format.keys.code.is_commvq() || format.values.code.is_commvq()) {
      fail(KVQ_E_UNSUPPORTED, "the cache stores layer %d as %s, which blocks cannot hold yet", cache.number(layer),
           format_pair_name({format.keys, format.values}).c_str());
    }
    for (const Side side : {Side::kKeys, Side::kValues}) require_all_indices(cache, layer, format, side);
  }
}

size_t block_bytes(const Cache& cache, int32_t layer, int32_t block_tokens) {
  const size_t bytes = size(cache.layer(layer).kv_heads, block_tokens / kPageSlots, format_of(cache, layer).bytes());
  return (bytes + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
}

size_t tail_bytes(const Cache& cache, int32_t layer) {
  if (format_of(cache, layer).is_float16()) return 0;
  return size(2, cache.layer(layer).kv_heads, cache.layer(layer).float16->bytes());
}

PagePool::PagePool(Allocator& allocator, Cache& cache, int32_t block_tokens, int32_t n_tails)
    : cache_(cache),
      ranges_(allocator),
      layers_(allocator),
      tokens_(allocator),
      queries_(cache.attend_batches(allocator)) {
  blocks_.block_pages = block_tokens / kPageSlots;
  blocks_.n_tails = n_tails;
  const auto n = static_cast<size_t>(cache.n_layers);
  ranges_.reserve(n * kMostBlockRanges);  // layers point into it
  layers_.reserve(n);
  tokens_.reserve(n);
}

void PagePool::add_layer(std::span<const BlockRange> ranges, std::byte* tails, size_t tail_stride) {
  const auto index = static_cast<int32_t>(layers_.size());
  const size_t first = ranges_.size();
  ranges_.insert(ranges_.end(), ranges.begin(), ranges.end());
  layers_.push_back({.format = &format_of(cache_, index),
                     .float16 = cache_.layer(index).float16,
                     .kv_heads = cache_.layer(index).kv_heads,
                     .ranges = {ranges_.data() + first, ranges.size()},
                     .tails = tails,
                     .tail_stride = tail_stride,
                     .scales = cache_.scales(index)});
  tokens_.push_back(cache_.no_tokens(index));
}

void PagePool::complete() {
  for (const BlockRange& range : layers_.front().ranges) blocks_.n_blocks += range.blocks;
  blocks_.layers = layers_;
  blocks_.tokens = tokens_;
  blocks_.queries = queries_;
  const Facet<BlockPools> pools = cache_.backend.block_pools();
  for (const PooledLayer& layer : layers_) pools.require().require(layer);
}

template <typename Use>
void PagePool::for_each_page(int32_t index, int32_t block, const Use& use) const {
  const PooledLayer& layer = this->layer(index);
  for (int32_t head = 0; head < layer.kv_heads; ++head) {
    for (int32_t page = 0; page < blocks_.block_pages; ++page) {
      const size_t at = layer.page_offset(head, page, blocks_.block_pages);
      use(*layer.format, layer.block(block) + at, at);
    }
  }
}

void PagePool::read(int32_t layer, int32_t block, std::span<std::byte> bytes) const {
  for_each_page(layer, block, [&](const PageFormat& format, const std::byte* page, size_t at) {
    cache_.backend.pages().read(format, page, bytes.data() + at);
  });
}

void PagePool::write(int32_t layer, int32_t block, std::span<const std::byte> bytes) const {
  for_each_page(layer, block, [&](const PageFormat& format, const std::byte* /*page*/, size_t at) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      if (side_is_valid(side, format, bytes.data() + at + format.offset(side))) continue;
      fail(KVQ_E_FORMAT, "buffer has a number that no encoder writes, among the %s at byte %zu",
           side == Side::kKeys ? "keys" : "values", at + format.offset(side));
    }
  });
  for_each_page(layer, block, [&](const PageFormat& format, std::byte* page, size_t at) {
    cache_.backend.pages().write(format, bytes.data() + at, page);
  });
}

}  // namespace kvq
