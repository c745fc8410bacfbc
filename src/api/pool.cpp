#include "cache/pool.h"

#include "api/batches.h"
#include "api/boundary.h"
#include "cache/attend.h"
#include "core/sizes.h"

#include <algorithm>
#include <array>

using namespace kvq;
using namespace kvq::api;

struct kvq_pool {
  kvq_pool(kvq_cache& owner, int32_t block_tokens, int32_t n_tails)
      : context(owner.context), cache(owner), pool(context->allocator, owner, block_tokens, n_tails) {}

  Holders holders;
  Kept<kvq_context> context;
  Kept<kvq_cache> cache;
  PagePool pool;
};

namespace kvq::api {

void release(kvq_pool* pool) noexcept {
  if (pool->holders.drop()) destroy(pool);
}

}  // namespace kvq::api

struct kvq_pool_plan {
  kvq_pool_plan(kvq_pool& owner, const PoolMaxima& maxima_)
      : context(owner.context),
        pool(owner),
        maxima(maxima_),
        allocator(context->allocator, 0, "pool plan", sizeof(kvq_pool_plan)),
        plan(owner.cache->backend.block_pools().require().make_plan(allocator, owner.pool.blocks(), maxima_)) {}

  Kept<kvq_context> context;
  Kept<kvq_pool> pool;
  PoolMaxima maxima;
  Allocator allocator;
  Owned<PoolPlan> plan;
  int32_t n_tokens = 0;  // of the batch
};

namespace {

kvq_pool_options default_pool_options() {
  kvq_pool_options options{};
  options.n_ranges = 1;
  return options;
}

void check_block_tokens(int32_t block_tokens, const char* argument) {
  require_range(block_tokens, kPageSlots, INT32_MAX, argument);
  if (block_tokens % kPageSlots == 0) return;
  fail(KVQ_E_ARGUMENT, "%s is %d, must be a multiple of %d", argument, block_tokens, kPageSlots);
}

void check_place(const void* data, int64_t stride, size_t least, const char* what, int32_t layer) {
  if (data == nullptr) fail(KVQ_E_ARGUMENT, "options has no memory for the %s of layer %d", what, layer);
  if (reinterpret_cast<uintptr_t>(data) % kDataAlignment != 0 || stride % int64_t{kDataAlignment} != 0) {
    fail(KVQ_E_ARGUMENT, "options has %s of layer %d at %p with a stride of %lld, must be aligned to %zu bytes", what,
         layer, data, static_cast<long long>(stride), kDataAlignment);
  }
  if (stride >= 0 && static_cast<uint64_t>(stride) >= least) return;
  fail(KVQ_E_ARGUMENT, "options has %s of layer %d with a stride of %lld, must be at least %zu bytes", what, layer,
       static_cast<long long>(stride), least);
}

/// Range i of a layer. The caller's structs may be smaller or larger: they lie as far apart as the first is large.
kvq_block_range range_of(const kvq_pool_options& options, int32_t layer, int32_t i) {
  const size_t bytes = require_struct(options.ranges, sizeof(uint32_t), "options->ranges");
  const size_t index = static_cast<size_t>(layer) * static_cast<size_t>(options.n_ranges) + static_cast<size_t>(i);
  const auto* at = reinterpret_cast<const std::byte*>(options.ranges) + index * bytes;
  return read_struct(reinterpret_cast<const kvq_block_range*>(at), kvq_block_range{}, "options->ranges");
}

void add_layer(PagePool& pool, const kvq_pool_options& options, const LayerShape& shape) {
  std::array<BlockRange, kMostBlockRanges> ranges{};
  const size_t block = block_bytes(pool.cache(), shape.pages_index, options.block_tokens);
  int64_t blocks = 0;
  for (int32_t i = 0; i < options.n_ranges; ++i) {
    const kvq_block_range given = range_of(options, shape.number, i);
    const int64_t stride = given.stride != 0 ? given.stride : static_cast<int64_t>(block);
    check_place(given.data, stride, block, "blocks", shape.number);
    require_range(given.n_blocks, 1, INT32_MAX, "options->ranges->n_blocks");
    const int32_t first = shape.pages_index > 0 ? pool.layer(0).ranges[static_cast<size_t>(i)].blocks : given.n_blocks;
    if (given.n_blocks != first) {
      fail(KVQ_E_ARGUMENT, "options->ranges has %d blocks for layer %d in range %d, and %d for an earlier layer",
           given.n_blocks, shape.number, i, first);
    }
    size(given.n_blocks, stride);  // has an address
    blocks += given.n_blocks;
    ranges[static_cast<size_t>(i)] = {static_cast<std::byte*>(given.data), static_cast<size_t>(stride), given.n_blocks};
  }
  if (blocks > INT32_MAX) {
    fail(KVQ_E_LIMIT, "options->ranges has %lld blocks of a layer, more than %d", static_cast<long long>(blocks),
         INT32_MAX);
  }
  const size_t tail = tail_bytes(pool.cache(), shape.pages_index);
  const int64_t tail_stride = options.tail_stride != 0 ? options.tail_stride : static_cast<int64_t>(tail);
  std::byte* tails = nullptr;
  if (tail > 0) {
    require(options.tails, "options->tails");
    require_range(options.n_tails, 1, INT32_MAX, "options->n_tails");
    tails = static_cast<std::byte*>(options.tails[shape.number]);
    check_place(tails, tail_stride, tail, "tails", shape.number);
    size(options.n_tails, tail_stride);
  }
  pool.add_layer({ranges.data(), static_cast<size_t>(options.n_ranges)}, tails, static_cast<size_t>(tail_stride));
}

PoolMaxima checked_limits(const kvq_pool_limits& limits) {
  require_range(limits.max_sequences, 1, INT32_MAX, "limits->max_sequences");
  require_range(limits.max_tokens, 1, INT32_MAX, "limits->max_tokens");
  require_range(limits.max_queries, 0, limits.max_tokens, "limits->max_queries");
  require_range(limits.max_blocks, 1, INT32_MAX, "limits->max_blocks");
  require_range(limits.reserved, 0, 0, "limits->reserved");
  return {.sequences = limits.max_sequences,
          .tokens = limits.max_tokens,
          .queries = limits.max_queries != 0 ? limits.max_queries : limits.max_tokens,
          .blocks = limits.max_blocks};
}

struct PoolWork {
  bool stores;
  bool attends;
};

void run(kvq_pool_plan* plan, int32_t number, const kvq_pool_call* given, PoolWork work) {
  require(plan, "plan");
  const kvq_pool_call call = read_struct(given, kvq_pool_call{}, "batch");
  const kvq_cache& cache = *plan->pool->cache;
  const int32_t appended = work.stores ? appended_layer(cache, number) : -1;
  const LayerShape& shape = layer_of(cache, number);
  if (plan->n_tokens == 0) fail(KVQ_E_STATE, "plan has no batch: call kvq_pool_plan_batch before");
  require_range(call.n_tokens, plan->n_tokens, plan->n_tokens, "batch->n_tokens");
  TokenBatch tokens;
  if (work.stores) {
    require(call.k, "batch->k");
    require_range(call.dtype, KVQ_F32, KVQ_BF16, "batch->dtype");
    tokens = tokens_of(cache, appended, tokens_in(call), call.n_tokens);
  }
  AttendBatch queries;
  if (work.attends) {
    kvq_attend_batch given_queries = queries_in(call);
    given_queries.n_sequences = 1;  // has all rows, since only the plan knows whose they are
    given_queries.query_counts = &call.n_tokens;
    const kvq_attend_batch batch = checked_batch(shape, given_queries);
    queries = attend_batch(cache, shape, batch);
    queries.window = batch.sliding_window != 0 ? batch.sliding_window : shape.window;
  }
  plan->plan->run({shape.pages_index, work.stores ? &tokens : nullptr, work.attends ? &queries : nullptr});
}

}  // namespace

kvq_status kvq_pool_layout(const kvq_cache* cache, int32_t layer, int32_t block_tokens, kvq_block_layout* layout,
                           kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    const LayerShape& shape = any_layer_of(*cache, layer);
    check_block_tokens(block_tokens, "block_tokens");
    require_struct(layout, sizeof(uint32_t), "layout");
    require_blocks(*cache);
    kvq_block_layout found{};
    found.alignment = static_cast<int32_t>(kDataAlignment);
    if (shape.has_own_pages()) {
      found.block_bytes = static_cast<int64_t>(block_bytes(*cache, shape.pages_index, block_tokens));
      found.tail_bytes = static_cast<int64_t>(tail_bytes(*cache, shape.pages_index));
    }
    write_struct(layout, found, "layout");
  });
}

void kvq_block_range_init(kvq_block_range* range, size_t size) { init_struct(range, size, kvq_block_range{}); }

void kvq_pool_options_init(kvq_pool_options* options, size_t size) {
  init_struct(options, size, default_pool_options());
}

kvq_status kvq_pool_create(kvq_cache* cache, const kvq_pool_options* options, kvq_pool** result, kvq_error* error) {
  return created(result, error, [&] {
    require(cache, "cache");
    const kvq_pool_options chosen = read_struct(options, default_pool_options(), "options");
    require(result, "result");
    check_block_tokens(chosen.block_tokens, "options->block_tokens");
    require_range(chosen.n_ranges, 1, kMostBlockRanges, "options->n_ranges");
    require_range(chosen.n_tails, 0, INT32_MAX, "options->n_tails");
    require_range(chosen.reserved, 0, 0, "options->reserved");
    const auto n_layers = static_cast<int64_t>(cache->model_layers().size());
    require_range(chosen.n_layers, n_layers, n_layers, "options->n_layers");
    require(chosen.ranges, "options->ranges");
    require_blocks(*cache);
    auto pool = make_owned<kvq_pool>(cache->context->allocator, *cache, chosen.block_tokens, chosen.n_tails);
    for (const LayerShape& shape : cache->layers()) add_layer(pool->pool, chosen, shape);
    pool->pool.complete();
    return pool;
  });
}

void kvq_pool_destroy(kvq_pool* pool) {
  if (pool != nullptr) release(pool);
}

kvq_status kvq_pool_read_block(const kvq_pool* pool, int32_t layer, int32_t block, void* buffer, size_t capacity,
                               size_t* size, kvq_error* error) {
  return guarded(error, [&] {
    require(pool, "pool");
    require(size, "size");
    const int32_t index = appended_layer(*pool->cache, layer);
    require_range(block, 0, pool->pool.blocks().n_blocks - 1, "block");
    const size_t bytes = block_bytes(*pool->cache, index, pool->pool.block_tokens());
    hand_over(bytes, buffer, capacity, *size, [&](std::span<std::byte> to) { pool->pool.read(index, block, to); });
  });
}

kvq_status kvq_pool_write_block(kvq_pool* pool, int32_t layer, int32_t block, const void* buffer, size_t size,
                                kvq_error* error) {
  return guarded(error, [&] {
    require(pool, "pool");
    const int32_t index = appended_layer(*pool->cache, layer);
    require_range(block, 0, pool->pool.blocks().n_blocks - 1, "block");
    require(buffer, "buffer");
    const auto bytes = static_cast<int64_t>(block_bytes(*pool->cache, index, pool->pool.block_tokens()));
    require_range(static_cast<int64_t>(size), bytes, bytes, "size");
    pool->pool.write(index, block, {static_cast<const std::byte*>(buffer), size});
  });
}

void kvq_pool_limits_init(kvq_pool_limits* limits, size_t size) { init_struct(limits, size, kvq_pool_limits{}); }

kvq_status kvq_pool_plan_create(kvq_pool* pool, const kvq_pool_limits* limits, kvq_pool_plan** result,
                                kvq_error* error) {
  return created(result, error, [&] {
    require(pool, "pool");
    const PoolMaxima maxima = checked_limits(read_struct(limits, kvq_pool_limits{}, "limits"));
    require(result, "result");
    const int64_t tokens = int64_t{maxima.blocks} * pool->pool.block_tokens();
    if (tokens > INT32_MAX - kPageSlots) {
      fail(KVQ_E_LIMIT, "limits->max_blocks is %d, so that a sequence may have %lld tokens, more than %d",
           maxima.blocks, static_cast<long long>(tokens), INT32_MAX - kPageSlots);
    }
    return make_owned<kvq_pool_plan>(pool->context->allocator, *pool, maxima);
  });
}

void kvq_pool_plan_destroy(kvq_pool_plan* plan) { destroy(plan); }

uint64_t kvq_pool_plan_bytes(const kvq_pool_plan* plan) { return plan != nullptr ? plan->allocator.bytes() : 0; }

void kvq_pool_batch_init(kvq_pool_batch* batch, size_t size) { init_struct(batch, size, kvq_pool_batch{}); }

kvq_status kvq_pool_plan_batch(kvq_pool_plan* plan, const kvq_pool_batch* batch, kvq_error* error) {
  return guarded(error, [&] {
    require(plan, "plan");
    const kvq_pool_batch given = read_struct(batch, kvq_pool_batch{}, "batch");
    const PoolMaxima& maxima = plan->maxima;
    const PagePool& pool = plan->pool->pool;
    require_range(given.n_sequences, 1, maxima.sequences, "batch->n_sequences");
    require_range(given.n_tokens, 1, maxima.tokens, "batch->n_tokens");
    const int32_t most = std::min(maxima.queries, given.n_tokens);
    require_range(given.max_queries, 0, most, "batch->max_queries");
    require_range(given.reserved, 0, 0, "batch->reserved");
    require(given.query_starts, "batch->query_starts");
    require(given.lengths, "batch->lengths");
    require(given.block_table, "batch->block_table");
    const int64_t stride = given.table_stride != 0 ? given.table_stride : maxima.blocks;
    require_range(stride, 1, INT32_MAX, "batch->table_stride");
    // A row has no more numbers than there are to the next one.
    const int32_t longest = static_cast<int32_t>(std::min<int64_t>(maxima.blocks, stride)) * pool.block_tokens();
    require_range(given.max_length, 0, longest, "batch->max_length");
    const bool has_tails = std::ranges::any_of(pool.blocks().layers, &PooledLayer::has_tails);
    if (has_tails) require(given.tails, "batch->tails");
    plan->n_tokens = 0;
    plan->plan->plan({.n_sequences = given.n_sequences,
                      .n_tokens = given.n_tokens,
                      .max_queries = given.max_queries != 0 ? given.max_queries : most,
                      .max_length = given.max_length != 0 ? given.max_length : longest,
                      .query_starts = given.query_starts,
                      .lengths = given.lengths,
                      .block_table = given.block_table,
                      .table_stride = stride,
                      .tails = has_tails ? given.tails : nullptr});
    plan->n_tokens = given.n_tokens;
  });
}

void kvq_pool_call_init(kvq_pool_call* call, size_t size) { init_struct(call, size, kvq_pool_call{}); }

kvq_status kvq_pool_append(kvq_pool_plan* plan, int32_t layer, const kvq_pool_call* batch, kvq_error* error) {
  return guarded(error, [&] { run(plan, layer, batch, {.stores = true, .attends = false}); });
}

kvq_status kvq_pool_attend(kvq_pool_plan* plan, int32_t layer, const kvq_pool_call* batch, kvq_error* error) {
  return guarded(error, [&] { run(plan, layer, batch, {.stores = false, .attends = true}); });
}

kvq_status kvq_pool_extend(kvq_pool_plan* plan, int32_t layer, const kvq_pool_call* batch, kvq_error* error) {
  return guarded(error, [&] { run(plan, layer, batch, {.stores = true, .attends = true}); });
}
