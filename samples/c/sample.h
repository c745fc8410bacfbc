/* Shared by the samples: a model without weights, and the handling of failed calls. */
#ifndef SAMPLE_H
#define SAMPLE_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvq.h"

enum {
  LAYERS = 2,
  Q_HEADS = 8,
  KV_HEADS = 2, /* four query heads share a KV head */
  HEAD_DIM = 64,
  Q_ROW = Q_HEADS * HEAD_DIM, /* scalars of a token's queries in a layer, and of their attention output */
  KV_ROW = KV_HEADS * HEAD_DIM
};

static kvq_error error; /* main calls kvq_error_init */

/* A real program would clean up and continue: after a failure every object is as it was before the call. */
static inline void require(kvq_status status) {
  if (status == KVQ_OK) return;
  fprintf(stderr, "%s: %s\n", kvq_status_name(status), error.message);
  exit(1);
}

static inline void* allocate(size_t bytes) {
  void* memory = malloc(bytes);
  if (memory != NULL) return memory;
  fprintf(stderr, "no memory for %zu bytes\n", bytes);
  exit(1);
}

static inline float* tensor(int rows, int row) { return (float*)allocate((size_t)rows * (size_t)row * sizeof(float)); }

/* Hash of bytes, to compare two results by eye. */
static inline uint32_t fingerprint(const void* bytes, size_t n) {
  uint32_t sum = 2166136261u;
  for (size_t i = 0; i < n; ++i) sum = (sum ^ ((const unsigned char*)bytes)[i]) * 16777619u;
  return sum;
}

/* Fill with numbers in [-1, 1). */
static inline void fill(float* x, size_t n, uint32_t seed) {
  uint32_t state = (seed + 1u) * 2654435761u;
  for (size_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
  }
}

/* Stands in for the engine's projections: queries, keys and values of the tokens [begin, begin + n) of a text, before
 * RoPE. They depend only on text, layer and position, not on the number of tokens at once. Rows may be strided, as in a
 * fused tensor of queries, keys and values; the stride of dense rows is Q_ROW or KV_ROW. */
static inline void project_strided(int text, int layer, int begin, int n, float* q, int q_stride, float* k, float* v,
                                   int kv_stride) {
  for (int i = 0; i < n; ++i) {
    const uint32_t seed = 3u * ((uint32_t)(text * LAYERS + layer) * 65536u + (uint32_t)(begin + i));
    fill(q + (size_t)i * (size_t)q_stride, Q_ROW, seed);
    fill(k + (size_t)i * (size_t)kv_stride, KV_ROW, seed + 1u);
    fill(v + (size_t)i * (size_t)kv_stride, KV_ROW, seed + 2u);
  }
}

static inline void project(int text, int layer, int begin, int n, float* q, float* k, float* v) {
  project_strided(text, layer, begin, n, q, Q_ROW, k, v, KV_ROW);
}

/* Only the four sizes lack a default. `policy_text` is YAML or the name of a format. */
static inline kvq_cache* create_cache(kvq_context* context, const char* policy_text) {
  kvq_policy* policy = NULL;
  kvq_cache* cache = NULL;
  kvq_cache_options options;
  kvq_cache_options_init(&options, sizeof options);
  options.n_layers = LAYERS;
  options.q_heads = Q_HEADS;
  options.kv_heads = KV_HEADS;
  options.head_dim = HEAD_DIM;
  options.rope = KVQ_ROPE_HALF; /* the default: the library rotates queries and keys; KVQ_ROPE_NONE: the engine does */
  options.rope_base = 500000.0f;
  require(kvq_policy_load(context, policy_text, strlen(policy_text), &policy, &error));
  require(kvq_cache_create(context, &options, policy, &cache, &error));
  kvq_policy_destroy(policy); /* the cache keeps what it needs */
  return cache;
}

/* Run n tokens of a text through all layers: a chunk of a prompt, or with n = 1 a decoding step. Writes the last
 * layer's attention output, `[n, Q_HEADS, HEAD_DIM]`. */
static inline void step(kvq_cache* cache, kvq_sequence* sequence, int text, int begin, int n, float* output) {
  const int32_t n_tokens = n;
  kvq_sequence* sequences[1] = {sequence};
  float* q = tensor(n, Q_ROW);
  float* k = tensor(n, KV_ROW);
  float* v = tensor(n, KV_ROW);
  for (int layer = 0; layer < LAYERS; ++layer) {
    project(text, layer, begin, n, q, k, v);
    kvq_extend_batch batch;
    kvq_extend_batch_init(&batch, sizeof batch);
    batch.n_sequences = 1;
    batch.sequences = sequences;
    batch.token_counts = &n_tokens;
    batch.k = k;
    batch.v = v;
    batch.q = q; /* one query per token, which attends to itself and all before it */
    batch.output = output;
    require(kvq_extend(cache, layer, &batch, &error));
    /* … the engine's output projection and feed-forward network */
  }
  free(q);
  free(k);
  free(v);
}

static inline int32_t length_of(const kvq_sequence* sequence) {
  int32_t length = 0;
  require(kvq_sequence_length(sequence, 0, &length, &error));
  return length;
}

static inline kvq_usage usage_of(const kvq_cache* cache, const kvq_sequence* sequence) {
  kvq_usage usage;
  usage.struct_size = sizeof usage;
  require(kvq_cache_usage(cache, sequence, &usage, &error));
  return usage;
}

/* Save a sequence to memory, which the caller frees. */
static inline void* save(kvq_cache* cache, const kvq_sequence* sequence, size_t* size) {
  require(kvq_sequence_save(cache, sequence, NULL, 0, size, &error));
  void* bytes = allocate(*size);
  require(kvq_sequence_save(cache, sequence, bytes, *size, size, &error));
  return bytes;
}

/* Hash of everything that a sequence holds. */
static inline uint32_t content(kvq_cache* cache, const kvq_sequence* sequence) {
  size_t size = 0;
  void* bytes = save(cache, sequence, &size);
  const uint32_t sum = fingerprint(bytes, size);
  free(bytes);
  return sum;
}

#endif
