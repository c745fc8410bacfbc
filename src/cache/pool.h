#pragma once

#include "backend/block_pools.h"
#include "cache/cache.h"

namespace kvq {

/// Throws KVQ_E_UNSUPPORTED unless blocks can hold the pages of a cache.
void require_blocks(const Cache& cache);

/// Bytes of a block, and of a tail: 0 if the layer needs none.
size_t block_bytes(const Cache& cache, int32_t layer, int32_t block_tokens);
size_t tail_bytes(const Cache& cache, int32_t layer);

/// Pages of a cache's layers in blocks of the host's memory.
class PagePool {
 public:
  /// Memory of the layers is added in their order.
  PagePool(Allocator& allocator, Cache& cache, int32_t block_tokens, int32_t n_tails);

  /// `tails`: null if it needs none.
  void add_layer(std::span<const BlockRange> ranges, std::byte* tails, size_t tail_stride);
  /// After the last layer.
  void complete();

  Cache& cache() const { return cache_; }
  const BlockPool& blocks() const { return blocks_; }
  const PooledLayer& layer(int32_t index) const { return layers_[static_cast<size_t>(index)]; }
  int32_t block_tokens() const { return blocks_.block_pages * kPageSlots; }

  /// Copy a block in the order of bytes of formats, from and to host memory.
  void read(int32_t layer, int32_t block, std::span<std::byte> bytes) const;
  /// Throws KVQ_E_FORMAT for bytes that no encoder writes.
  void write(int32_t layer, int32_t block, std::span<const std::byte> bytes) const;

 private:
  template <typename Use>
  void for_each_page(int32_t layer, int32_t block, const Use& use) const;

  Cache& cache_;
  Vector<BlockRange> ranges_;  // of all layers
  Vector<PooledLayer> layers_;
  Vector<TokenBatch> tokens_;
  Vector<AttendBatch> queries_;
  BlockPool blocks_{};
};

}  // namespace kvq
