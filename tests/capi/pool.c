/* Pools: what they refuse, that calls allocate nothing, and what a failed call leaves. */
#include "check.h"
#include "fixture.h"
#include "objects.h"
#include "suites.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { kBlocks = 12, kTails = 3, kBlockTokens = 64, kMostBlocks = 4, kMostSequences = 3, kMostTokens = 150 };

static const char kFormats[] = "{version: 1, keys: int4, values: gs2, sink: 0}";

/* An engine's memory, and a plan. */
typedef struct engine {
  fixture f;
  kvq_pool* pool;
  kvq_pool_plan* plan;
  kvq_block_layout layout;
  kvq_block_range ranges[kLayers];
  void* tails[kLayers];
  void* memory[2 * kLayers];
  int32_t starts[kMostSequences + 1];
  int32_t lengths[kMostSequences];
  int32_t table[kMostSequences * kMostBlocks];
  int32_t tail_numbers[kMostSequences];
  kvq_pool_batch batch;
} engine;

static void* aligned(void** memory, size_t bytes) {
  *memory = calloc(1, bytes + 64);
  return (unsigned char*)*memory + (64 - (uintptr_t)*memory % 64) % 64;
}

static kvq_pool_options pool_options(engine* e) {
  kvq_pool_options options;
  kvq_pool_options_init(&options, sizeof options);
  options.block_tokens = kBlockTokens;
  options.n_layers = kLayers;
  options.ranges = e->ranges;
  options.n_tails = kTails;
  options.tails = e->tails;
  return options;
}

static kvq_pool_limits pool_limits(void) {
  kvq_pool_limits limits;
  kvq_pool_limits_init(&limits, sizeof limits);
  limits.max_sequences = kMostSequences;
  limits.max_tokens = kMostTokens;
  limits.max_blocks = kMostBlocks;
  return limits;
}

/* A batch of the sequences i with lengths[i] tokens, of which counts[i] are new; block b of sequence i is i + 3 b. */
static void set_batch(engine* e, int32_t n, const int32_t* lengths, const int32_t* counts) {
  int32_t i;
  int32_t b;
  kvq_pool_batch_init(&e->batch, sizeof e->batch);
  for (i = 0; i < n; ++i) {
    e->starts[i + 1] = e->starts[i] + counts[i];
    e->lengths[i] = lengths[i];
    e->tail_numbers[i] = kTails - 1 - i;
    for (b = 0; b < kMostBlocks; ++b) e->table[i * kMostBlocks + b] = i + 3 * b;
  }
  e->batch.n_sequences = n;
  e->batch.n_tokens = e->starts[n];
  e->batch.query_starts = e->starts;
  e->batch.lengths = e->lengths;
  e->batch.block_table = e->table;
  e->batch.tails = e->tail_numbers;
}

static void engine_open(engine* e) {
  kvq_pool_options options;
  kvq_pool_limits limits = pool_limits();
  int32_t layer;
  memset(e, 0, sizeof *e);
  fixture_open(&e->f, kFormats, 0, 0);
  e->layout.struct_size = sizeof e->layout;
  for (layer = 0; layer < kLayers; ++layer) {
    ACCEPTED(kvq_pool_layout(e->f.cache, layer, kBlockTokens, &e->layout, err));
    kvq_block_range_init(&e->ranges[layer], sizeof e->ranges[layer]);
    e->ranges[layer].n_blocks = kBlocks;
    e->ranges[layer].data = aligned(&e->memory[2 * layer], kBlocks * (size_t)e->layout.block_bytes);
    e->tails[layer] = aligned(&e->memory[2 * layer + 1], kTails * (size_t)e->layout.tail_bytes);
  }
  options = pool_options(e);
  ACCEPTED(kvq_pool_create(e->f.cache, &options, &e->pool, err));
  ACCEPTED(kvq_pool_plan_create(e->pool, &limits, &e->plan, err));
}

static void engine_close(engine* e) {
  int i;
  kvq_pool_plan_destroy(e->plan);
  kvq_pool_destroy(e->pool);
  fixture_close(&e->f);
  for (i = 0; i < 2 * kLayers; ++i) free(e->memory[i]);
}

/* New tokens that depend on `seed` alone. */
static kvq_pool_call tokens(int32_t n, uint32_t seed, float* output) {
  static float k[kMostTokens * kTokenScalars];
  static float v[kMostTokens * kTokenScalars];
  static float q[kMostTokens * kQHeads * kHeadDim];
  kvq_pool_call call;
  fill_tensor(k, sizeof k / sizeof *k, 3 * seed);
  fill_tensor(v, sizeof v / sizeof *v, 3 * seed + 1);
  fill_tensor(q, sizeof q / sizeof *q, 3 * seed + 2);
  kvq_pool_call_init(&call, sizeof call);
  call.n_tokens = n;
  call.k = k;
  call.v = v;
  call.q = q;
  call.output = output;
  return call;
}

static void layouts_are_told(void) {
  fixture f;
  kvq_block_layout layout;
  layout.struct_size = sizeof layout;
  fixture_open(&f, kFormats, 0, 0);
  REFUSED(KVQ_E_ARGUMENT, "cache is NULL", kvq_pool_layout(NULL, 0, 32, &layout, err));
  REFUSED(KVQ_E_ARGUMENT, "layer is 2", kvq_pool_layout(f.cache, 2, 32, &layout, err));
  REFUSED(KVQ_E_ARGUMENT, "block_tokens is 48, must be a multiple of 32",
          kvq_pool_layout(f.cache, 0, 48, &layout, err));
  REFUSED(KVQ_E_ARGUMENT, "block_tokens is 0", kvq_pool_layout(f.cache, 0, 0, &layout, err));
  REFUSED(KVQ_E_ARGUMENT, "layout is NULL", kvq_pool_layout(f.cache, 0, 32, NULL, err));
  ACCEPTED(kvq_pool_layout(f.cache, 1, 64, &layout, err));
  CHECK(layout.alignment == 64 && layout.block_bytes % 64 == 0);
  /* Less than half of FP16, in which a tail has as many tokens. */
  CHECK(layout.tail_bytes == 2 * 2 * 32 * 2 * kTokenScalars);
  CHECK(layout.block_bytes > 0 && 2 * layout.block_bytes < layout.tail_bytes);
  fixture_close(&f);
  fixture_open(&f, NULL, 0, 0);
  ACCEPTED(kvq_pool_layout(f.cache, 0, 96, &layout, err));
  CHECK(layout.block_bytes == 3 * 2 * 32 * 2 * kTokenScalars && layout.tail_bytes == 0);
  fixture_close(&f);
  fixture_open(&f, "int4+streaming:64", 0, 0);
  REFUSED(KVQ_E_UNSUPPORTED, "evicts", kvq_pool_layout(f.cache, 0, 32, &layout, err));
  fixture_close(&f);
}

static void memory_is_checked(void) {
  engine e;
  kvq_pool_options options;
  kvq_pool* pool = NULL;
  engine_open(&e);
  options = pool_options(&e);
  options.n_layers = 3;
  REFUSED(KVQ_E_ARGUMENT, "options->n_layers is 3", kvq_pool_create(e.f.cache, &options, &pool, err));
  options = pool_options(&e);
  options.block_tokens = 33;
  REFUSED(KVQ_E_ARGUMENT, "options->block_tokens is 33", kvq_pool_create(e.f.cache, &options, &pool, err));
  options = pool_options(&e);
  options.n_ranges = 7;
  REFUSED(KVQ_E_ARGUMENT, "options->n_ranges is 7", kvq_pool_create(e.f.cache, &options, &pool, err));
  options = pool_options(&e);
  options.tails = NULL;
  REFUSED(KVQ_E_ARGUMENT, "options->tails is NULL", kvq_pool_create(e.f.cache, &options, &pool, err));
  options = pool_options(&e);
  options.n_tails = 0;
  REFUSED(KVQ_E_ARGUMENT, "options->n_tails is 0", kvq_pool_create(e.f.cache, &options, &pool, err));
  options = pool_options(&e);
  options.tail_stride = 64;
  REFUSED(KVQ_E_ARGUMENT, "with a stride of 64, must be at least", kvq_pool_create(e.f.cache, &options, &pool, err));
  options = pool_options(&e);
  e.ranges[1].stride = e.layout.block_bytes + 8;
  REFUSED(KVQ_E_ARGUMENT, "must be aligned to 64 bytes", kvq_pool_create(e.f.cache, &options, &pool, err));
  e.ranges[1].stride = 0;
  e.ranges[1].n_blocks = kBlocks - 1;
  REFUSED(KVQ_E_ARGUMENT, "has 11 blocks for layer 1 in range 0, and 12",
          kvq_pool_create(e.f.cache, &options, &pool, err));
  e.ranges[1].n_blocks = kBlocks;
  e.ranges[1].data = NULL;
  REFUSED(KVQ_E_ARGUMENT, "no memory for the blocks of layer 1", kvq_pool_create(e.f.cache, &options, &pool, err));
  CHECK(pool == NULL);
  engine_close(&e);
}

static void batches_are_checked(void) {
  static const int32_t kLengths[] = {70, 64, 5};
  static const int32_t kCounts[] = {70, 64, 5};
  engine e;
  kvq_pool_limits limits = pool_limits();
  kvq_pool_plan* plan = NULL;
  float output[kMostTokens * kQHeads * kHeadDim];
  kvq_pool_call call = tokens(139, 1, output);
  engine_open(&e);
  limits.max_queries = kMostTokens + 1;
  REFUSED(KVQ_E_ARGUMENT, "limits->max_queries is 151", kvq_pool_plan_create(e.pool, &limits, &plan, err));
  limits.max_queries = 0;
  limits.max_blocks = INT32_MAX;
  REFUSED(KVQ_E_LIMIT, "limits->max_blocks is 2147483647", kvq_pool_plan_create(e.pool, &limits, &plan, err));
  CHECK(plan == NULL);
  REFUSED(KVQ_E_STATE, "plan has no batch", kvq_pool_extend(e.plan, 0, &call, err));
  set_batch(&e, 3, kLengths, kCounts);
  e.batch.n_sequences = 4;
  REFUSED(KVQ_E_ARGUMENT, "batch->n_sequences is 4", kvq_pool_plan_batch(e.plan, &e.batch, err));
  set_batch(&e, 3, kLengths, kCounts);
  e.batch.tails = NULL;
  REFUSED(KVQ_E_ARGUMENT, "batch->tails is NULL", kvq_pool_plan_batch(e.plan, &e.batch, err));
  set_batch(&e, 3, kLengths, kCounts);
  e.batch.n_tokens = 138;
  REFUSED(KVQ_E_ARGUMENT, "batch->query_starts[3] is 139", kvq_pool_plan_batch(e.plan, &e.batch, err));
  set_batch(&e, 3, kLengths, kCounts);
  e.starts[1] = 140;
  REFUSED(KVQ_E_ARGUMENT, "batch->query_starts[1] is 140", kvq_pool_plan_batch(e.plan, &e.batch, err));
  e.starts[1] = 70;
  e.lengths[1] = 63;
  REFUSED(KVQ_E_ARGUMENT, "batch->lengths[1] is 63", kvq_pool_plan_batch(e.plan, &e.batch, err));
  e.lengths[1] = kMostBlocks * kBlockTokens + 1;
  REFUSED(KVQ_E_ARGUMENT, "batch->lengths[1] is 257", kvq_pool_plan_batch(e.plan, &e.batch, err));
  e.lengths[1] = 64;
  /* Rows of one number hold one block each. */
  e.batch.table_stride = 1;
  REFUSED(KVQ_E_ARGUMENT, "batch->lengths[0] is 70, must be in [70, 64]", kvq_pool_plan_batch(e.plan, &e.batch, err));
  e.batch.max_length = 65;
  REFUSED(KVQ_E_ARGUMENT, "batch->max_length is 65", kvq_pool_plan_batch(e.plan, &e.batch, err));
  e.batch.table_stride = 0;
  e.batch.max_length = 0;
  e.table[1] = kBlocks;
  REFUSED(KVQ_E_ARGUMENT, "batch->block_table has block 12 for tokens 64 and on of sequence 0",
          kvq_pool_plan_batch(e.plan, &e.batch, err));
  e.table[1] = 1;
  REFUSED(KVQ_E_ARGUMENT, "new tokens of two sequences to block 1", kvq_pool_plan_batch(e.plan, &e.batch, err));
  e.table[1] = 3;
  e.tail_numbers[2] = -1;
  REFUSED(KVQ_E_ARGUMENT, "batch->tails[2] is -1", kvq_pool_plan_batch(e.plan, &e.batch, err));
  e.tail_numbers[2] = e.tail_numbers[0];
  REFUSED(KVQ_E_ARGUMENT, "new tokens of two sequences to tail 2", kvq_pool_plan_batch(e.plan, &e.batch, err));
  e.tail_numbers[2] = 0;
  /* A refused batch is none. */
  REFUSED(KVQ_E_STATE, "plan has no batch", kvq_pool_extend(e.plan, 0, &call, err));
  ACCEPTED(kvq_pool_plan_batch(e.plan, &e.batch, err));
  call.n_tokens = 138;
  REFUSED(KVQ_E_ARGUMENT, "batch->n_tokens is 138", kvq_pool_extend(e.plan, 0, &call, err));
  call.n_tokens = 139;
  REFUSED(KVQ_E_ARGUMENT, "layer is 2", kvq_pool_extend(e.plan, 2, &call, err));
  call.v = NULL;
  REFUSED(KVQ_E_ARGUMENT, "batch->v is NULL", kvq_pool_append(e.plan, 0, &call, err));
  call.q = NULL;
  REFUSED(KVQ_E_ARGUMENT, "batch->q is NULL", kvq_pool_attend(e.plan, 0, &call, err));
  call = tokens(139, 1, output);
  call.output = (float*)(uintptr_t)call.q;
  REFUSED(KVQ_E_ARGUMENT, "batch->output", kvq_pool_attend(e.plan, 0, &call, err));
  engine_close(&e);
}

static void blocks_are_checked(void) {
  static const int32_t kTokens[] = {64};
  engine e;
  float output[kMostTokens * kQHeads * kHeadDim];
  kvq_pool_call call = tokens(64, 5, output);
  unsigned char bytes[8192];
  size_t size = 0;
  engine_open(&e);
  set_batch(&e, 1, kTokens, kTokens);
  ACCEPTED(kvq_pool_plan_batch(e.plan, &e.batch, err));
  ACCEPTED(kvq_pool_append(e.plan, 0, &call, err));
  REFUSED(KVQ_E_ARGUMENT, "block is 12", kvq_pool_read_block(e.pool, 0, 12, bytes, sizeof bytes, &size, err));
  REFUSED(KVQ_E_BUFFER_SIZE, "capacity is 5", kvq_pool_read_block(e.pool, 0, 0, bytes, 5, &size, err));
  ACCEPTED(kvq_pool_read_block(e.pool, 0, 0, bytes, sizeof bytes, &size, err));
  CHECK((int64_t)size == e.layout.block_bytes);
  CHECK(memcmp(bytes, e.ranges[0].data, size) == 0);
  REFUSED(KVQ_E_ARGUMENT, "size is", kvq_pool_write_block(e.pool, 0, 7, bytes, size - 1, err));
  ACCEPTED(kvq_pool_write_block(e.pool, 0, 7, bytes, size, err));
  CHECK(memcmp((unsigned char*)e.ranges[0].data + 7 * size, bytes, size) == 0);
  /* No encoder writes infinite scales; the block stays as it was. */
  memset(bytes, 0x7C, size);
  REFUSED(KVQ_E_FORMAT, "no encoder writes", kvq_pool_write_block(e.pool, 0, 7, bytes, size, err));
  CHECK(memcmp((unsigned char*)e.ranges[0].data + 7 * size, e.ranges[0].data, size) == 0);
  engine_close(&e);
}

static void calls_allocate_nothing(void) {
  static const int32_t kFull[] = {200, 256, 130};
  static const int32_t kCounts[] = {50, 50, 50};
  engine e;
  float output[kMostTokens * kQHeads * kHeadDim];
  kvq_pool_call call;
  size_t allocations;
  int32_t round;
  int32_t layer;
  engine_open(&e);
  /* The longest batch, then any. */
  set_batch(&e, 3, kFull, kCounts);
  ACCEPTED(kvq_pool_plan_batch(e.plan, &e.batch, err));
  CHECK(kvq_pool_plan_bytes(e.plan) > 0 && kvq_pool_plan_bytes(NULL) == 0);
  allocations = e.f.memory.n_allocations;
  for (round = 0; round < 40; ++round) {
    const int32_t lengths[] = {round * 4 + 4, round + 1, round * 3 + 40};
    const int32_t counts[] = {round % 3 == 0 ? 4 : 1, 1, round % 5 * 9 + 1};
    set_batch(&e, 3, lengths, counts);
    call = tokens(e.batch.n_tokens, (uint32_t)round, output);
    ACCEPTED(kvq_pool_plan_batch(e.plan, &e.batch, err));
    for (layer = 0; layer < kLayers; ++layer) ACCEPTED(kvq_pool_extend(e.plan, layer, &call, err));
  }
  /* One sequence has nearly all tokens. */
  {
    const int32_t lengths[] = {250, 1, 1};
    const int32_t counts[] = {148, 1, 1};
    set_batch(&e, 3, lengths, counts);
    call = tokens(e.batch.n_tokens, 77, output);
    ACCEPTED(kvq_pool_plan_batch(e.plan, &e.batch, err));
    for (layer = 0; layer < kLayers; ++layer) ACCEPTED(kvq_pool_extend(e.plan, layer, &call, err));
  }
  CHECK(e.f.memory.n_allocations == allocations);
  engine_close(&e);
}

static kvq_status create_pool(engine* e, kvq_pool** pool) {
  const kvq_pool_options options = pool_options(e);
  return kvq_pool_create(e->f.cache, &options, pool, NULL);
}

static void allocations_fail_cleanly(void) {
  static const int32_t kFull[] = {200, 256, 130};
  static const int32_t kCounts[] = {50, 50, 50};
  engine e;
  kvq_pool* pool = NULL;
  kvq_pool_plan* plan = NULL;
  kvq_pool_limits limits = pool_limits();
  engine_open(&e);
  FAIL_EACH_ALLOCATION(&e.f.memory, create_pool(&e, &pool));
  FAIL_EACH_ALLOCATION(&e.f.memory, kvq_pool_plan_create(pool, &limits, &plan, NULL));
  set_batch(&e, 3, kFull, kCounts);
  FAIL_EACH_ALLOCATION(&e.f.memory, kvq_pool_plan_batch(plan, &e.batch, NULL));
  kvq_pool_plan_destroy(plan);
  kvq_pool_destroy(pool);
  engine_close(&e);
}

/* A number beyond FP16 stores nothing: the same tokens afterwards give what they would have given. */
static void refused_tokens_leave_tails(void) {
  static const int32_t kFirst[] = {20, 31};
  static const int32_t kLengths[] = {60, 32};
  static const int32_t kCounts[] = {40, 1};
  engine e[2];
  float outputs[2][kMostTokens * kQHeads * kHeadDim];
  float bad[kMostTokens * kTokenScalars];
  int i;
  for (i = 0; i < 2; ++i) {
    kvq_pool_call call = tokens(51, 9, outputs[i]);
    engine_open(&e[i]);
    set_batch(&e[i], 2, kFirst, kFirst);
    ACCEPTED(kvq_pool_plan_batch(e[i].plan, &e[i].batch, err));
    ACCEPTED(kvq_pool_extend(e[i].plan, 0, &call, err));
    set_batch(&e[i], 2, kLengths, kCounts);
    ACCEPTED(kvq_pool_plan_batch(e[i].plan, &e[i].batch, err));
    call = tokens(41, 10, outputs[i]);
    if (i == 1) {
      memcpy(bad, call.v, sizeof bad);
      bad[40 * kTokenScalars + 3] = 1e6F;
      call.v = bad;
      REFUSED(KVQ_E_ARGUMENT, "v of token 40", kvq_pool_extend(e[i].plan, 0, &call, err));
      REFUSED(KVQ_E_ARGUMENT, "v of token 40", kvq_pool_append(e[i].plan, 0, &call, err));
      call = tokens(41, 10, outputs[i]);
    }
    ACCEPTED(kvq_pool_extend(e[i].plan, 0, &call, err));
  }
  CHECK(memcmp(outputs[0], outputs[1], 41 * kQHeads * kHeadDim * sizeof(float)) == 0);
  for (i = 0; i < 2; ++i) engine_close(&e[i]);
}

/* Handles go in any order. */
static void objects_keep_what_they_need(void) {
  static const int32_t kTokens[] = {40};
  engine e;
  float output[kMostTokens * kQHeads * kHeadDim];
  kvq_pool_call call = tokens(40, 3, output);
  engine_open(&e);
  kvq_cache_destroy(e.f.cache);
  e.f.cache = NULL;
  kvq_pool_destroy(e.pool);
  e.pool = NULL;
  set_batch(&e, 1, kTokens, kTokens);
  ACCEPTED(kvq_pool_plan_batch(e.plan, &e.batch, err));
  ACCEPTED(kvq_pool_extend(e.plan, 1, &call, err));
  engine_close(&e);
}

void test_pool(void) {
  layouts_are_told();
  memory_is_checked();
  batches_are_checked();
  blocks_are_checked();
  calls_allocate_nothing();
  allocations_fail_cleanly();
  refused_tokens_leave_tails();
  objects_keep_what_they_need();
}
