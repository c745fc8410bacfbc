/* Minimal embedding: one attention layer of an engine decodes on a cache compressed to about five bits per scalar.
 *
 *   cc embed.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o embed
 *   ./embed
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "kvq.h"

#define LAYERS 1
#define Q_HEADS 8
#define KV_HEADS 2
#define HEAD_DIM 64
#define TOKENS 1000

/* Stands in for the engine's projections: numbers in [-1, 1). */
static void fill(float* x, int n, unsigned* state) {
  for (int i = 0; i < n; ++i) {
    *state = *state * 1664525u + 1013904223u;
    x[i] = (float)(*state >> 8) / 8388608.0f - 1.0f;
  }
}

/* Hash of the attention outputs' bits, to compare with the same program in another language. */
static uint32_t checksum(uint32_t sum, const float* x, int n) {
  for (int i = 0; i < n; ++i) {
    uint32_t bits;
    memcpy(&bits, &x[i], sizeof bits);
    sum = (sum ^ bits) * 16777619u;
  }
  return sum;
}

int main(void) {
  static const char policy_text[] = "int4+hadamard"; /* or a YAML policy: formats per layer, FP16 pages */
  kvq_error error;
  kvq_error_init(&error, sizeof(error));
  kvq_context* context = NULL;
  kvq_policy* policy = NULL;
  kvq_cache* cache = NULL;
  kvq_sequence* sequence = NULL;

  kvq_cache_options options;
  kvq_cache_options_init(&options, sizeof(options));
  options.n_layers = LAYERS;
  options.q_heads = Q_HEADS;
  options.kv_heads = KV_HEADS;
  options.head_dim = HEAD_DIM;

  kvq_status status = kvq_context_create(NULL, &context, &error);
  if (status == KVQ_OK) status = kvq_policy_load(context, policy_text, strlen(policy_text), &policy, &error);
  if (status == KVQ_OK) status = kvq_cache_create(context, &options, policy, &cache, &error);
  if (status == KVQ_OK) status = kvq_sequence_create(cache, &sequence, &error);

  unsigned state = 1;
  uint32_t sum = 2166136261u;
  float q[Q_HEADS * HEAD_DIM], k[KV_HEADS * HEAD_DIM], v[KV_HEADS * HEAD_DIM], out[Q_HEADS * HEAD_DIM];
  for (int token = 0; status == KVQ_OK && token < TOKENS; ++token) {
    fill(q, Q_HEADS * HEAD_DIM, &state); /* before RoPE: the library rotates queries and keys */
    fill(k, KV_HEADS * HEAD_DIM, &state);
    fill(v, KV_HEADS * HEAD_DIM, &state);
    status = kvq_append(cache, sequence, 0, 1, k, v, KVQ_F32, NULL, &error);

    const kvq_sequence* sequences[1] = {sequence};
    kvq_attend_batch batch; /* one query of one sequence, the default */
    kvq_attend_batch_init(&batch, sizeof(batch));
    batch.n_sequences = 1;
    batch.sequences = sequences;
    batch.q = q;
    batch.output = out;
    if (status == KVQ_OK) status = kvq_attend(cache, 0, &batch, &error);
    if (status == KVQ_OK) sum = checksum(sum, out, Q_HEADS * HEAD_DIM);
  }

  kvq_usage usage;
  usage.struct_size = sizeof usage;
  if (status == KVQ_OK) status = kvq_cache_usage(cache, sequence, &usage, &error);
  if (status == KVQ_OK) {
    printf("%d tokens at %.2f bits per scalar: %llu bytes instead of %llu, checksum %08lx\n", TOKENS,
           usage.bits_per_scalar, (unsigned long long)usage.total_bytes, (unsigned long long)usage.plain_fp16_bytes,
           (unsigned long)sum);
  } else {
    fprintf(stderr, "%s: %s\n", kvq_status_name(status), error.message);
  }
  kvq_sequence_destroy(sequence); /* any order works; NULL does nothing */
  kvq_cache_destroy(cache);
  kvq_policy_destroy(policy);
  kvq_context_destroy(context);
  return status == KVQ_OK ? 0 : 1;
}
