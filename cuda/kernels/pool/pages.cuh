// Addresses of a pool's pages; 0 where the host's arrays name none.
#pragma once

#include "kernels/pages/records.h"
#include "kernels/pool/records.h"

namespace kvq::cuda {

__device__ __forceinline__ PooledSequence pooled_sequence(const PoolPages& pool, int32_t sequence) {
  const auto* words = reinterpret_cast<const int4*>(pool.sequences + sequence);
  const int4 a = __ldg(words);
  const int4 b = __ldg(words + 1);
  return {a.x, a.y, a.z, a.w, b.x, b.y, {}};
}

/// Page `page` of a sequence in its block.
__device__ __forceinline__ uint64_t page_in_block(const PoolPages& pool, int32_t sequence, int32_t head, int32_t page) {
  const int32_t place = page / pool.block_pages;
  int64_t number = __ldg(pool.blocks + static_cast<int64_t>(sequence) * pool.capacity + place);
  if (number < 0) return 0;
  const int64_t of_block = static_cast<int64_t>(head) * pool.block_pages + (page - place * pool.block_pages);
#pragma unroll 1
  for (int32_t i = 0; i < pool.n_ranges; ++i) {
    const PoolRange& range = pool.ranges[i];
    if (number < range.blocks) {
      return range.data + static_cast<uint64_t>(number * range.stride + of_block * pool.page_bytes);
    }
    number -= range.blocks;
  }
  return 0;
}

__device__ __forceinline__ uint64_t page_in_tail(const PoolPages& pool, int32_t tail, int32_t head, int32_t page) {
  if (tail < 0) return 0;
  const int64_t place = static_cast<int64_t>(page % 2) * pool.kv_heads + head;
  return pool.tails + static_cast<uint64_t>(tail * pool.tail_stride + place * pool.float16_bytes);
}

/// Work page `index` of a call.
__device__ __forceinline__ uint64_t work_page(const PoolPages& pool, int32_t index, int32_t head) {
  const int64_t page = static_cast<int64_t>(index) * pool.kv_heads + head;
  return pool.work + static_cast<uint64_t>(page * pool.float16_bytes);
}

/// The record of page `page`, which queries read; zeros if there is none.
__device__ __forceinline__ DevicePage pooled_page(const PoolPages& pool, int32_t sequence, int32_t head, int32_t page) {
  const PooledSequence of = pooled_sequence(pool, sequence);
  const int32_t first_open = pool.extends != 0 ? of.first_new() : of.full_pages();
  uint32_t format = 0;
  uint64_t data = 0;
  if (pool.tails == 0 || page < first_open) {
    format = pool.format;
    data = page_in_block(pool, sequence, head, page);
  } else if (pool.extends != 0 && page < of.first_in_tail()) {
    data = work_page(pool, of.work + page - first_open, head);
  } else {
    data = page_in_tail(pool, of.tail, head, page);
  }
  if (data == 0) return {};
  const int32_t first = page * kSlots;
  return {data, first, DevicePage::state_of(format, min(of.length - first, kSlots), false)};
}

}  // namespace kvq::cuda
