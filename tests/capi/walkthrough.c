/* The API as an engine uses it, from the first call to the last: a prompt, decoding, a fork, a rollback, a snapshot. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Stands in for a model: one layer and one token. */
typedef struct token {
  float q[kQHeads * kHeadDim];
  float k[kTokenScalars];
  float v[kTokenScalars];
} token;

static token compute_token(int32_t layer, uint32_t seed) {
  token t;
  const uint32_t base = seed * 3 * kLayers + 3 * (uint32_t)layer;
  fill_tensor(t.q, kQHeads * kHeadDim, base);
  fill_tensor(t.k, kTokenScalars, base + 1);
  fill_tensor(t.v, kTokenScalars, base + 2);
  return t;
}

/* One decoding step: every layer appends its key and value, then attends with its query. */
static void decode_step(kvq_cache* cache, kvq_sequence* sequence, uint32_t seed, float out[kQHeads * kHeadDim]) {
  int32_t layer;
  for (layer = 0; layer < kLayers; ++layer) {
    const token t = compute_token(layer, seed);
    const kvq_sequence* sequences[1];
    kvq_attend_batch batch;
    ACCEPTED(kvq_append(cache, sequence, layer, 1, t.k, t.v, KVQ_F32, NULL, err));
    sequences[0] = sequence;
    kvq_attend_batch_init(&batch, sizeof(batch));
    batch.n_sequences = 1;
    batch.sequences = sequences;
    batch.q = t.q;
    batch.output = out;
    ACCEPTED(kvq_attend(cache, layer, &batch, err));
  }
}

static kvq_cache* open_cache(kvq_context* context) {
  static const char text[] =
      "version: 1\n"
      "keys: int4+hadamard\n"
      "values: int4\n"
      "recent: 2\n"
      "layers:\n"
      "  - {range: [0, 0], keys: int8, values: int8}\n";
  kvq_cache_options options;
  kvq_policy* policy = NULL;
  kvq_cache* cache = NULL;
  ACCEPTED(kvq_policy_load(context, text, sizeof text - 1, &policy, err));
  kvq_cache_options_init(&options, sizeof(options));
  options.n_layers = kLayers;
  options.q_heads = kQHeads;
  options.kv_heads = kKvHeads;
  options.head_dim = kHeadDim;
  options.rope_base = 500000.0f;
  options.model_id = 2024;
  ACCEPTED(kvq_cache_create(context, &options, policy, &cache, err));
  kvq_policy_destroy(policy);
  return cache;
}

static void all_finite(const float* values, size_t n) {
  size_t i;
  for (i = 0; i < n; ++i) {
    if (!isfinite(values[i])) break;
  }
  CHECK(i == n);
}

/* A rejected draft is rolled back; decoding again gives the same as without it, as long as the draft completed no
 * page: completing a page seals the oldest of three FP16 pages for good. */
static void speculate(kvq_cache* cache, kvq_sequence* sequence) {
  kvq_sequence* witness = NULL;
  float expected[kQHeads * kHeadDim];
  float out[kQHeads * kHeadDim];
  const int32_t n = length_of(sequence, 0);
  uint32_t guess;
  ACCEPTED(kvq_sequence_fork(cache, sequence, &witness, err));
  for (guess = 0; guess < 8; ++guess) decode_step(cache, sequence, 1000 + guess, out);
  ACCEPTED(kvq_sequence_truncate(cache, sequence, n, err));
  decode_step(cache, sequence, 500, out);
  decode_step(cache, witness, 500, expected);
  CHECK(memcmp(out, expected, sizeof out) == 0);
  kvq_sequence_destroy(witness);
}

static void store_and_restore(kvq_cache* cache, kvq_sequence* sequence) {
  kvq_sequence* restored = NULL;
  float expected[kQHeads * kHeadDim];
  float out[kQHeads * kHeadDim];
  size_t size = 0;
  void* buffer;
  ACCEPTED(kvq_sequence_save(cache, sequence, NULL, 0, &size, err));
  buffer = malloc(size);
  ACCEPTED(kvq_sequence_save(cache, sequence, buffer, size, &size, err));
  ACCEPTED(kvq_sequence_load(cache, buffer, size, &restored, err));
  free(buffer);
  decode_step(cache, sequence, 600, expected);
  decode_step(cache, restored, 600, out);
  CHECK(memcmp(out, expected, sizeof out) == 0);
  kvq_sequence_destroy(restored);
}

void test_walkthrough(void) {
  kvq_context_options options;
  kvq_context* context = NULL;
  kvq_cache* cache;
  kvq_sequence* sequence = NULL;
  kvq_usage usage;
  float out[kQHeads * kHeadDim];
  uint32_t step;
  kvq_context_options_init(&options, sizeof(options));
  options.n_threads = THREADS(2);
  ACCEPTED(kvq_context_create(&options, &context, err));
  cache = open_cache(context);
  ACCEPTED(kvq_sequence_create(cache, &sequence, err));
  grow(cache, sequence, 390); /* the prompt */
  for (step = 0; step < 10; ++step) {
    decode_step(cache, sequence, step, out);
    all_finite(out, kQHeads * kHeadDim);
  }
  CHECK(length_of(sequence, 0) == 400);
  speculate(cache, sequence);
  store_and_restore(cache, sequence);

  memset(&usage, 0, sizeof usage);
  usage.struct_size = sizeof usage;
  ACCEPTED(kvq_cache_usage(cache, sequence, &usage, err));
  CHECK(usage.scalars == (int64_t)2 * kHeadDim * kKvHeads * kLayers * 402);
  CHECK(usage.bits_per_scalar > 4.0);
  CHECK(usage.total_bytes < usage.plain_fp16_bytes); /* smaller than FP16 even at this head size */
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
}
