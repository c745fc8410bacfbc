/* Memory: predict what fits, never exceed a limit, continue after a refused call, and use the engine's own allocator.
 *
 *   cc limits.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o limits
 *   ./limits
 */
#define _POSIX_C_SOURCE 200112L /* posix_memalign */
#include "sample.h"

enum { TOKENS = 800, CHUNK = 16, MOST_SEQUENCES = 64, LIMIT = 2 * 1024 * 1024 };

/* The engine's allocator. The library calls hooks from the caller's threads and from the context's own: with more than
 * one thread, counting would need a lock. */
typedef struct heap {
  uint64_t bytes; /* allocated now */
  uint64_t peak;
} heap;

static void* heap_allocate(void* user, size_t bytes, size_t alignment) {
  heap* h = (heap*)user;
  void* memory = NULL;
  if (posix_memalign(&memory, alignment < sizeof(void*) ? sizeof(void*) : alignment, bytes) != 0) return NULL;
  h->bytes += bytes;
  if (h->bytes > h->peak) h->peak = h->bytes;
  return memory;
}

static void heap_free(void* user, void* memory, size_t bytes, size_t alignment) {
  (void)alignment;
  ((heap*)user)->bytes -= bytes;
  free(memory);
}

static kvq_context* create_context(heap* memory) {
  kvq_context* context = NULL;
  kvq_context_options options;
  kvq_context_options_init(&options, sizeof options);
  options.allocate = heap_allocate;
  options.free = heap_free;
  options.allocator_user = memory;
  options.max_bytes = LIMIT; /* includes caches, sequences, matrices and workspace */
  require(kvq_context_create(&options, &context, &error));
  return context;
}

/* Predict how many sequences of TOKENS tokens fit, without allocating them. */
static int sequences_that_fit(const kvq_context* context, const kvq_cache* cache, uint64_t* predicted) {
  kvq_context_info now;
  kvq_usage empty, usage;
  now.struct_size = sizeof now;
  empty.struct_size = usage.struct_size = sizeof usage;
  require(kvq_context_describe(context, &now, &error));
  require(kvq_cache_usage(cache, NULL, &empty, &error));
  int n = 0;
  while (n < MOST_SEQUENCES) {
    require(kvq_cache_predict_usage(cache, n + 1, TOKENS, CHUNK, &usage, &error));
    if (now.bytes - empty.total_bytes + usage.total_bytes > LIMIT) break;
    *predicted = usage.total_bytes;
    ++n;
  }
  return n;
}

/* Create a sequence with preallocated pages, so that it cannot fail half-way. Returns NULL if it does not fit. */
static kvq_sequence* admit(kvq_cache* cache) {
  kvq_sequence* sequence = NULL;
  if (kvq_sequence_create(cache, &sequence, &error) != KVQ_OK) return NULL;
  if (kvq_sequence_reserve(cache, sequence, TOKENS, &error) == KVQ_OK) return sequence;
  kvq_sequence_destroy(sequence);
  return NULL;
}

/* Run CHUNK tokens of each sequence through all layers as one batch. */
static void batch_step(kvq_cache* cache, kvq_sequence* const* sequences, int n, int begin) {
  int32_t counts[MOST_SEQUENCES];
  float* q = tensor(n * CHUNK, Q_ROW);
  float* k = tensor(n * CHUNK, KV_ROW);
  float* v = tensor(n * CHUNK, KV_ROW);
  float* output = tensor(n * CHUNK, Q_ROW);
  for (int i = 0; i < n; ++i) counts[i] = CHUNK;
  for (int layer = 0; layer < LAYERS; ++layer) {
    for (int i = 0; i < n; ++i) {
      const size_t row = (size_t)i * CHUNK;
      project(i, layer, begin, CHUNK, q + row * Q_ROW, k + row * KV_ROW, v + row * KV_ROW);
    }
    kvq_append_batch append;
    kvq_append_batch_init(&append, sizeof append);
    append.n_sequences = n;
    append.sequences = sequences;
    append.token_counts = counts;
    append.k = k;
    append.v = v;
    require(kvq_append_sequences(cache, layer, &append, &error));

    kvq_attend_batch attend;
    kvq_attend_batch_init(&attend, sizeof attend);
    attend.n_sequences = n;
    attend.sequences = (const kvq_sequence* const*)sequences;
    attend.query_counts = counts;
    attend.q = q;
    attend.output = output;
    require(kvq_attend(cache, layer, &attend, &error));
  }
  free(q);
  free(k);
  free(v);
  free(output);
}

int main(void) {
  heap memory = {0, 0};
  kvq_sequence* sequences[MOST_SEQUENCES];
  uint64_t predicted = 0;
  kvq_error_init(&error, sizeof error);
  kvq_context* context = create_context(&memory);
  /* Without a search for scales, for whose duration predictions would count transient_bytes. */
  kvq_cache* cache = create_cache(context, "{version: 1, keys: gs2, values: gs2, calibrate: none}");
  const int n = sequences_that_fit(context, cache, &predicted);
  printf("%d sequences of %d tokens fit into %d bytes\n", n, TOKENS, LIMIT);

  for (int i = 0; i < n; ++i) {
    sequences[i] = admit(cache);
    if (sequences[i] == NULL) require(error.code);
  }
  for (int begin = 0; begin < TOKENS; begin += CHUNK) batch_step(cache, sequences, n, begin);
  printf("predicted %" PRIu64 " bytes, used %" PRIu64 "\n", predicted, usage_of(cache, NULL).total_bytes);

  /* One more sequence does not fit, nor does a long append to an existing one. */
  kvq_sequence* another = admit(cache);
  printf("another sequence: %s\n", another == NULL ? kvq_status_name(error.code) : "KVQ_OK");

  const uint32_t before = content(cache, sequences[0]);
  float* k = tensor(10 * TOKENS, KV_ROW);
  fill(k, (size_t)10 * TOKENS * KV_ROW, 1);
  const kvq_status status = kvq_append(cache, sequences[0], 0, 10 * TOKENS, k, k, KVQ_F32, NULL, &error);
  printf("%s: %s\n", kvq_status_name(status), error.message);
  printf("content before %08" PRIx32 ", after %08" PRIx32 "\n", before, content(cache, sequences[0]));
  free(k);

  /* Make room (destroy a sequence, evict tokens, or save one to disk) and try again. */
  kvq_sequence_destroy(sequences[0]);
  sequences[0] = admit(cache);
  printf("after one has ended: %s\n", sequences[0] == NULL ? kvq_status_name(error.code) : "KVQ_OK");
  printf("the allocator saw at most %" PRIu64 " bytes", memory.peak);

  for (int i = 0; i < n; ++i) kvq_sequence_destroy(sequences[i]);
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
  printf(", and %" PRIu64 " at the end\n", memory.bytes);
  return 0;
}
