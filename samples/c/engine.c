/* An engine with block tables: pages in its own memory, continuous batches, shared prefixes, preemption.
 *
 *   cc engine.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o engine
 *   ./engine
 */
#include "sample.h"

enum {
  BLOCK = 32, /* tokens of a block */
  BLOCKS = 24,
  MOST_BLOCKS = 12, /* of a sequence */
  RUNNING = 4,      /* sequences of a batch, each with a tail */
  CHUNK = 48,       /* tokens of a prompt in a batch */
  REQUESTS = 7,
  SYSTEM_TEXT = 0,
  SYSTEM = 96, /* tokens that all prompts begin with */
  NOBODY = -1
};

/* ------------------------------------------------------------------------ what the engine keeps of a conversation */

typedef struct request {
  int text, prompt, answer; /* tokens */
  int length;               /* tokens in blocks, the tail's included */
  int n_blocks, blocks[MOST_BLOCKS];
  int tail;      /* NOBODY: not running */
  void* swapped; /* blocks and tail of a request that gave way */
  int preemptions;
  uint32_t output; /* fingerprint of the newest */
} request;

typedef struct engine {
  kvq_pool* pool;
  kvq_pool_plan* plan;
  unsigned char* blocks[LAYERS]; /* all memory is the engine's */
  unsigned char* tails[LAYERS];
  void* memory[2 * LAYERS];
  size_t block_bytes, tail_bytes;
  int references[BLOCKS];     /* sequences that a block belongs to */
  int shared[SYSTEM / BLOCK]; /* blocks of the system prompt, or NOBODY */
  int tail_is_free[RUNNING];
} engine;

/* Memory of a layer's blocks or tails, freed by its first address. */
static unsigned char* aligned(size_t bytes, void** memory) {
  *memory = allocate(bytes + 64);
  return (unsigned char*)*memory + (64 - (uintptr_t)*memory % 64) % 64; /* kvq_block_layout::alignment */
}

static void engine_open(engine* e, kvq_cache* cache) {
  kvq_block_range ranges[LAYERS];
  void* tails[LAYERS];
  kvq_block_layout layout;
  kvq_pool_options options;
  kvq_pool_limits limits;
  layout.struct_size = sizeof layout;
  for (int layer = 0; layer < LAYERS; ++layer) {
    require(kvq_pool_layout(cache, layer, BLOCK, &layout, &error));
    e->block_bytes = (size_t)layout.block_bytes;
    e->tail_bytes = (size_t)layout.tail_bytes;
    e->blocks[layer] = aligned(BLOCKS * e->block_bytes, &e->memory[2 * layer]);
    tails[layer] = e->tails[layer] = aligned(RUNNING * e->tail_bytes, &e->memory[2 * layer + 1]);
    kvq_block_range_init(&ranges[layer], sizeof ranges[layer]);
    ranges[layer].data = e->blocks[layer];
    ranges[layer].n_blocks = BLOCKS;
  }
  kvq_pool_options_init(&options, sizeof options);
  options.block_tokens = BLOCK;
  options.n_layers = LAYERS;
  options.ranges = ranges;
  options.n_tails = RUNNING;
  options.tails = tails;
  require(kvq_pool_create(cache, &options, &e->pool, &error));
  kvq_pool_limits_init(&limits, sizeof limits);
  limits.max_sequences = RUNNING;
  limits.max_tokens = RUNNING * SYSTEM;
  limits.max_blocks = MOST_BLOCKS;
  require(kvq_pool_plan_create(e->pool, &limits, &e->plan, &error));
  for (int i = 0; i < BLOCKS; ++i) e->references[i] = 0;
  for (int i = 0; i < RUNNING; ++i) e->tail_is_free[i] = 1;
  for (int i = 0; i < SYSTEM / BLOCK; ++i) e->shared[i] = NOBODY;
}

static void engine_close(engine* e) {
  kvq_pool_plan_destroy(e->plan);
  kvq_pool_destroy(e->pool);
  for (int i = 0; i < 2 * LAYERS; ++i) free(e->memory[i]);
}

/* ------------------------------------------------------------------------------------------- blocks and preemption */

static int free_blocks(const engine* e) {
  int n = 0;
  for (int i = 0; i < BLOCKS; ++i) n += e->references[i] == 0;
  return n;
}

static int blocks_of(int tokens) { return (tokens + BLOCK - 1) / BLOCK; }

static void take_block(engine* e, request* r) {
  int block = BLOCKS - 1;
  while (e->references[block] > 0) --block; /* the caller knows that one is free */
  e->references[block] = 1;
  r->blocks[r->n_blocks++] = block;
}

static void leave(engine* e, request* r) {
  while (r->n_blocks > 0) --e->references[r->blocks[--r->n_blocks]];
  if (r->tail != NOBODY) e->tail_is_free[r->tail] = 1;
  r->tail = NOBODY;
}

/* Blocks and a tail are all there is of a sequence, so copies of them are a swap to host memory or to another machine.
 */
static void copy_state(engine* e, request* r, unsigned char* bytes, int out) {
  for (int layer = 0; layer < LAYERS; ++layer) {
    for (int i = 0; i <= r->n_blocks; ++i) {
      const size_t n = i < r->n_blocks ? e->block_bytes : e->tail_bytes;
      unsigned char* place =
          i < r->n_blocks ? e->blocks[layer] + (size_t)r->blocks[i] * n : e->tails[layer] + (size_t)r->tail * n;
      memcpy(out ? bytes : place, out ? place : bytes, n);
      bytes += n;
    }
  }
}

static void preempt(engine* e, request* r) {
  while (r->n_blocks > blocks_of(r->length)) --e->references[r->blocks[--r->n_blocks]]; /* for tokens to come */
  r->swapped = allocate(LAYERS * ((size_t)r->n_blocks * e->block_bytes + e->tail_bytes));
  copy_state(e, r, (unsigned char*)r->swapped, 1);
  leave(e, r);
  ++r->preemptions;
}

/* A tail, and blocks: those of the system prompt if an earlier request has filled them, or the request's own. */
static int admit(engine* e, request* r) {
  const int swapped = r->swapped != NULL;
  const int needed = blocks_of(swapped ? r->length : SYSTEM + CHUNK);
  int tail = 0;
  while (tail < RUNNING && !e->tail_is_free[tail]) ++tail;
  if (tail == RUNNING || free_blocks(e) < needed + 1) return 0;
  r->tail = tail;
  e->tail_is_free[tail] = 0;
  if (swapped) {
    while (r->n_blocks < needed) take_block(e, r);
    copy_state(e, r, (unsigned char*)r->swapped, 0);
    free(r->swapped);
    r->swapped = NULL;
    return 1;
  }
  for (int i = 0; i < SYSTEM / BLOCK && e->shared[i] != NOBODY; ++i) {
    r->blocks[r->n_blocks++] = e->shared[i];
    ++e->references[e->shared[i]];
    r->length += BLOCK; /* these tokens need not be computed again */
  }
  return 1;
}

/* ------------------------------------------------------------------------------------------------------ one batch */

static int next_tokens(const request* r) {
  if (r->length < SYSTEM) return SYSTEM - r->length;
  if (r->length >= r->prompt) return 1;
  return r->prompt - r->length < CHUNK ? r->prompt - r->length : CHUNK;
}

/* Run new tokens of some requests through all layers, whatever their number: prompts and answers side by side. */
static void run(engine* e, request** running, int n) {
  int32_t starts[RUNNING + 1] = {0}, lengths[RUNNING], tails[RUNNING], table[RUNNING * MOST_BLOCKS] = {0};
  kvq_pool_batch batch;
  for (int i = 0; i < n; ++i) {
    request* r = running[i];
    starts[i + 1] = starts[i] + next_tokens(r);
    lengths[i] = r->length + next_tokens(r);
    tails[i] = r->tail;
    for (int j = 0; j < r->n_blocks; ++j) table[i * MOST_BLOCKS + j] = r->blocks[j];
  }
  kvq_pool_batch_init(&batch, sizeof batch);
  batch.n_sequences = n;
  batch.n_tokens = starts[n];
  batch.query_starts = starts;
  batch.lengths = lengths;
  batch.block_table = table;
  batch.tails = tails;
  require(kvq_pool_plan_batch(e->plan, &batch, &error)); /* once for all layers */

  float *q = tensor(starts[n], Q_ROW), *k = tensor(starts[n], KV_ROW), *v = tensor(starts[n], KV_ROW);
  float* output = tensor(starts[n], Q_ROW);
  for (int layer = 0; layer < LAYERS; ++layer) {
    for (int i = 0; i < n; ++i) {
      const request* r = running[i];
      const int text = r->length < SYSTEM ? SYSTEM_TEXT : r->text;
      project(text, layer, r->length, next_tokens(r), q + starts[i] * Q_ROW, k + starts[i] * KV_ROW,
              v + starts[i] * KV_ROW);
    }
    kvq_pool_call call;
    kvq_pool_call_init(&call, sizeof call);
    call.n_tokens = starts[n];
    call.k = k;
    call.v = v;
    call.q = q;
    call.output = output;
    require(kvq_pool_extend(e->plan, layer, &call, &error));
  }
  for (int i = 0; i < n; ++i) {
    running[i]->length = lengths[i];
    running[i]->output = fingerprint(output + (starts[i + 1] - 1) * Q_ROW, Q_ROW * sizeof(float));
  }
  free(q);
  free(k);
  free(v);
  free(output);
}

/* Serve all requests, several at a time. Returns the number of batches. */
static int serve(engine* e, request* requests, int n_requests) {
  int batches = 0;
  for (;; ++batches) {
    request* running[RUNNING];
    int n = 0;
    for (int i = 0; i < n_requests; ++i) {
      request* r = &requests[i];
      if (r->length == r->prompt + r->answer || (r->tail == NOBODY && !admit(e, r))) continue;
      /* Blocks for its new tokens: the youngest requests give way, at last this one. */
      const int needed = blocks_of(r->length + next_tokens(r));
      for (int last = n_requests - 1; last >= i && r->n_blocks < needed; --last) {
        while (free_blocks(e) > 0 && r->n_blocks < needed) take_block(e, r);
        if (r->n_blocks < needed && requests[last].tail != NOBODY) preempt(e, &requests[last]);
      }
      while (r->tail != NOBODY && free_blocks(e) > 0 && r->n_blocks < needed) take_block(e, r);
      if (r->tail == NOBODY) continue;
      running[n++] = r;
    }
    if (n == 0) return batches;
    run(e, running, n);
    for (int i = 0; i < n; ++i) {
      request* r = running[i];
      for (int j = 0; j < SYSTEM / BLOCK && r->length >= SYSTEM; ++j) {
        if (e->shared[j] == NOBODY) ++e->references[e->shared[j] = r->blocks[j]]; /* kept for later requests */
      }
      if (r->length == r->prompt + r->answer) leave(e, r);
    }
  }
}

static void make_requests(request* requests) {
  memset(requests, 0, REQUESTS * sizeof *requests);
  for (int i = 0; i < REQUESTS; ++i) {
    requests[i].text = 1 + i;
    requests[i].prompt = SYSTEM + 20 + 31 * i;
    requests[i].answer = 40;
    requests[i].tail = NOBODY;
  }
}

int main(void) {
  kvq_context* context = NULL;
  request together[REQUESTS], alone[REQUESTS];
  engine e;
  kvq_error_init(&error, sizeof error);
  require(kvq_context_create(NULL, &context, &error));
  kvq_cache* cache = create_cache(context, "gs4");
  make_requests(together);
  make_requests(alone);

  engine_open(&e, cache);
  printf("a block of %d tokens: %zu bytes a layer, FP16 %zu\n", BLOCK, e.block_bytes, e.tail_bytes / 2);
  const int batches = serve(&e, together, REQUESTS);
  int tokens = 0, preemptions = 0;
  for (int i = 0; i < REQUESTS; ++i) {
    tokens += together[i].length;
    preemptions += together[i].preemptions;
  }
  printf("%d requests of %d tokens in %d blocks: %d batches, %d preemptions\n", REQUESTS, tokens, BLOCKS, batches,
         preemptions);
  engine_close(&e);

  /* The same answers as alone, with nothing shared and nobody in the way. */
  int same = 0;
  for (int i = 0; i < REQUESTS; ++i) {
    engine_open(&e, cache);
    serve(&e, &alone[i], 1);
    engine_close(&e);
    same += together[i].output == alone[i].output;
  }
  printf("%d of %d outputs as alone, to the bit\n", same, REQUESTS);

  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
  return 0;
}
