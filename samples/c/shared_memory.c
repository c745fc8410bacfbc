/* A prompt's pages in shared memory: one process computes them, others read them, and copy nothing.
 *
 *   cc shared_memory.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o shared
 *   ./shared
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sample.h"

enum { BLOCK = 32, PROMPT = 640, SHARED = PROMPT / BLOCK, OWN = 4, READERS = 2, ANSWER = 40, PROMPT_TEXT = 0 };

/* A process's pool: the prompt's blocks, and some of its own for what follows. */
typedef struct engine {
  kvq_context* context;
  kvq_cache* cache;
  kvq_pool* pool;
  kvq_pool_plan* plan;
  void* own[LAYERS];
  void* tails[LAYERS];
} engine;

static kvq_block_layout layout_of(kvq_cache* cache) {
  kvq_block_layout layout;
  layout.struct_size = sizeof layout;
  require(kvq_pool_layout(cache, 0, BLOCK, &layout, &error));
  return layout;
}

/* Pages of memory, which are aligned for blocks. */
static void* map(size_t bytes, int flags) {
  void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) return memory;
  perror("mmap");
  exit(1);
}

static void engine_open(engine* e, unsigned char* shared) {
  kvq_block_range ranges[LAYERS * 2];
  kvq_pool_options options;
  kvq_pool_limits limits;
  e->context = NULL;
  require(kvq_context_create(NULL, &e->context, &error));
  e->cache = create_cache(e->context, "gs4");
  const kvq_block_layout layout = layout_of(e->cache);
  const size_t block = (size_t)layout.block_bytes;
  for (int layer = 0; layer < LAYERS; ++layer) {
    e->own[layer] = map(OWN * block, MAP_PRIVATE);
    e->tails[layer] = map((size_t)layout.tail_bytes, MAP_PRIVATE);
    for (int i = 0; i < 2; ++i) kvq_block_range_init(&ranges[2 * layer + i], sizeof ranges[0]);
    ranges[2 * layer].data = shared + (size_t)layer * SHARED * block; /* blocks 0, 1, … */
    ranges[2 * layer].n_blocks = SHARED;
    ranges[2 * layer + 1].data = e->own[layer]; /* those after them */
    ranges[2 * layer + 1].n_blocks = OWN;
  }
  kvq_pool_options_init(&options, sizeof options);
  options.block_tokens = BLOCK;
  options.n_layers = LAYERS;
  options.n_ranges = 2;
  options.ranges = ranges;
  options.n_tails = 1;
  options.tails = e->tails;
  require(kvq_pool_create(e->cache, &options, &e->pool, &error));
  kvq_pool_limits_init(&limits, sizeof limits);
  limits.max_sequences = 1;
  limits.max_tokens = PROMPT;
  limits.max_blocks = SHARED + OWN;
  require(kvq_pool_plan_create(e->pool, &limits, &e->plan, &error));
}

static void engine_close(engine* e, size_t block) {
  kvq_pool_plan_destroy(e->plan);
  kvq_pool_destroy(e->pool);
  for (int layer = 0; layer < LAYERS; ++layer) munmap(e->own[layer], OWN * block);
  for (int layer = 0; layer < LAYERS; ++layer) munmap(e->tails[layer], (size_t)layout_of(e->cache).tail_bytes);
  kvq_cache_destroy(e->cache);
  kvq_context_destroy(e->context);
}

/* Run n tokens of a text, the first one at position `begin`. */
static void extend(engine* e, int text, int begin, int n, float* output) {
  const int32_t starts[2] = {0, n}, length = begin + n, tail = 0;
  int32_t table[SHARED + OWN];
  kvq_pool_batch batch;
  for (int i = 0; i < SHARED + OWN; ++i) table[i] = i;
  kvq_pool_batch_init(&batch, sizeof batch);
  batch.n_sequences = 1;
  batch.n_tokens = n;
  batch.query_starts = starts;
  batch.lengths = &length;
  batch.block_table = table;
  batch.tails = &tail;
  require(kvq_pool_plan_batch(e->plan, &batch, &error));
  float *q = tensor(n, Q_ROW), *k = tensor(n, KV_ROW), *v = tensor(n, KV_ROW);
  for (int layer = 0; layer < LAYERS; ++layer) {
    kvq_pool_call call;
    project(text, layer, begin, n, q, k, v);
    kvq_pool_call_init(&call, sizeof call);
    call.n_tokens = n;
    call.k = k;
    call.v = v;
    call.q = q;
    call.output = output;
    require(kvq_pool_extend(e->plan, layer, &call, &error));
  }
  free(q);
  free(k);
  free(v);
}

/* An answer after the prompt, token by token. */
static uint32_t answer(engine* e, int text) {
  float output[Q_ROW];
  for (int i = 0; i < ANSWER; ++i) extend(e, text, PROMPT + i, 1, output);
  return fingerprint(output, sizeof output);
}

int main(void) {
  engine e;
  kvq_error_init(&error, sizeof error);

  /* The size is known before there is a pool. */
  kvq_context* context = NULL;
  require(kvq_context_create(NULL, &context, &error));
  kvq_cache* cache = create_cache(context, "gs4");
  const size_t block = (size_t)layout_of(cache).block_bytes;
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
  const size_t bytes = LAYERS * SHARED * block;
  unsigned char* shared = (unsigned char*)map(bytes, MAP_SHARED);

  if (fork() == 0) { /* the process that computes the prompt */
    float* output = tensor(PROMPT, Q_ROW);
    engine_open(&e, shared);
    extend(&e, PROMPT_TEXT, 0, PROMPT, output);
    printf("a prompt of %d tokens: %zu bytes in shared memory, FP16 %d\n", PROMPT, bytes,
           PROMPT * LAYERS * 2 * KV_ROW * 2);
    printf("answer 1 of its process: output %08" PRIx32 "\n", answer(&e, 1));
    free(output);
    engine_close(&e, block);
    return 0;
  }
  wait(NULL);
  const uint32_t before = fingerprint(shared, bytes);
  for (int reader = 1; reader <= READERS; ++reader) {
    fflush(stdout);
    if (fork() == 0) {
      mprotect(shared, bytes, PROT_READ); /* a write would end the process */
      engine_open(&e, shared);
      printf("answer %d of a reader: output %08" PRIx32 "\n", reader, answer(&e, reader));
      engine_close(&e, block);
      return 0;
    }
    wait(NULL);
  }
  printf("the prompt's blocks are %s\n", fingerprint(shared, bytes) == before ? "as they were" : "different");
  munmap(shared, bytes);
  return 0;
}
