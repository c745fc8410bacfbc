// Pages in blocks of the host's memory: what a plan knows of sequences, and where a layer has its blocks.
#pragma once

#include "backend/block_pools.h"
#include "kernels/pages/records.h"

#include <cstdint>

namespace kvq::cuda {

/// A sequence of a call. All numbers are within the plan's limits, whatever the host's arrays hold.
struct alignas(16) PooledSequence {
  int32_t query_begin;  // first new token
  int32_t query_count;
  int32_t length;  // tokens, new ones included
  int32_t pages;   // that queries read; 0 without queries
  int32_t tail;    // −1: there is none
  int32_t work;    // place of the first new page among work pages, if a tail does not hold it
  int32_t unused[2];

  KVQ_HOST_DEVICE int32_t older() const { return length - query_count; }
  /// Pages with new tokens, if there are any.
  KVQ_HOST_DEVICE int32_t first_new() const { return older() / kSlots; }
  KVQ_HOST_DEVICE int32_t last_new() const { return (length - 1) / kSlots; }
  KVQ_HOST_DEVICE int32_t full_pages() const { return length / kSlots; }
  /// The first page that the tail holds after tokens have been stored, if it is a new one.
  KVQ_HOST_DEVICE int32_t first_in_tail() const { return last_new() - 1; }
};
static_assert(sizeof(PooledSequence) == 32);

struct PoolRange {
  uint64_t data;
  int64_t stride;  // bytes from one block to the next
  int64_t blocks;
};

/// Memory for the FP16 tiles of a prefill kernel; rounds of launches follow each other where they do not fit at once.
struct TileRoom {
  int32_t heads;  // KV heads; 0: pages are read as they are
  int32_t tiles;  // at least those of one list

  constexpr bool operator==(const TileRoom&) const = default;
};

/// Which kernel reads pages: its rows per block and query heads per KV head decide how pages are divided.
struct PoolDivision {
  int32_t group;
  int32_t rows;
  // New tokens of the sequences that it reads.
  int32_t least_queries = 0;
  int32_t most_queries = INT32_MAX;
  TileRoom room{};

  constexpr bool operator==(const PoolDivision&) const = default;
  KVQ_HOST_DEVICE constexpr bool reads(int32_t queries) const {
    return queries >= least_queries && queries <= most_queries;
  }
};

/// One layer's pages. Entries of the plan are the same for all layers.
struct PoolPages {
  const PooledSequence* sequences;
  const int32_t* blocks;       // [sequences][capacity] block numbers; −1: a number outside of the pool
  const int32_t* row_starts;   // [n + 1] blocks of rows before each sequence
  const int32_t* page_starts;  // [n + 1] pages of one head that these read, or its tiles
  int32_t capacity;
  int32_t block_pages;
  uint32_t format;  // FormatCode of full pages
  int32_t page_bytes;
  int32_t float16_bytes;
  int32_t kv_heads;
  int32_t extends;  // queries see new tokens as given: in tails and work pages
  int32_t n_ranges;
  uint64_t tails;  // FP16 pages [tails][2][kv_heads], page p in half p % 2; 0: blocks hold open pages
  int64_t tail_stride;
  uint64_t work;  // FP16 pages [pages][kv_heads]
  // For kernels that read tables of pages: launch_pool_table().
  DevicePage* table;    // [sequences][kv_heads][table_pages]
  int32_t table_pages;  // a row of blocks has so many
  uint64_t zeros;       // a page of zeros, for places without a page
  PoolRange ranges[kMostBlockRanges];
};

}  // namespace kvq::cuda
