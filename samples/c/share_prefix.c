/* Several answers to one prompt: the prompt is cached once, every answer is a fork of it, and a draft that was not
 * accepted is rolled back.
 *
 *   cc share_prefix.c $(pkg-config --cflags --libs kvq) -o share_prefix && ./share_prefix
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvq.h"

#define KV_HEADS 2
#define HEAD_DIM 64
#define PROMPT 1024
#define ANSWERS 4
#define DRAFT 8

static kvq_error error;

/* A real program would clean up and carry on. */
static void require(kvq_status status) {
  if (status == KVQ_OK) return;
  fprintf(stderr, "%s: %s\n", kvq_status_name(status), error.message);
  exit(1);
}

/* In place of the engine's projections. */
static void append(kvq_cache* cache, kvq_sequence* sequence, int n) {
  static float k[PROMPT * KV_HEADS * HEAD_DIM], v[PROMPT * KV_HEADS * HEAD_DIM];
  for (int i = 0; i < n * KV_HEADS * HEAD_DIM; ++i) {
    k[i] = (float)(rand() % 2001 - 1000) / 1000.0f;
    v[i] = (float)(rand() % 2001 - 1000) / 1000.0f;
  }
  require(kvq_append(cache, sequence, 0, n, k, v, KVQ_F32, NULL, &error));
}

int main(void) {
  /* Two newest pages stay FP16, so that at least 32 tokens can be taken back exactly. */
  static const char policy_text[] = "{version: 1, keys: int4+hadamard, values: int4+hadamard, recent: 2}";
  kvq_error_init(&error, sizeof(error));
  kvq_context* context = NULL;
  kvq_policy* policy = NULL;
  kvq_cache* cache = NULL;
  kvq_sequence* prompt = NULL;
  kvq_sequence* answers[ANSWERS];

  kvq_cache_options options;
  kvq_cache_options_init(&options, sizeof(options));
  options.n_layers = 1;
  options.q_heads = KV_HEADS;
  options.kv_heads = KV_HEADS;
  options.head_dim = HEAD_DIM;
  require(kvq_context_create(NULL, &context, &error));
  require(kvq_policy_load(context, policy_text, strlen(policy_text), &policy, &error));
  require(kvq_cache_create(context, &options, policy, &cache, &error));
  require(kvq_sequence_create(cache, &prompt, &error));
  append(cache, prompt, PROMPT);

  for (int i = 0; i < ANSWERS; ++i) {
    require(kvq_sequence_fork(cache, prompt, &answers[i], &error));
    append(cache, answers[i], DRAFT);                                              /* a draft of eight tokens */
    require(kvq_sequence_truncate(cache, answers[i], PROMPT + DRAFT / 2, &error)); /* half of it is accepted */
  }

  kvq_usage one, all;
  one.struct_size = all.struct_size = sizeof one;
  require(kvq_cache_usage(cache, answers[0], &one, &error));
  require(kvq_cache_usage(cache, NULL, &all, &error));
  printf("an answer by itself: %llu bytes; the prompt and %d answers: %llu bytes, %llu pages shared\n",
         (unsigned long long)one.total_bytes, ANSWERS, (unsigned long long)(all.total_bytes - all.workspace_bytes),
         (unsigned long long)all.shared_pages);

  for (int i = 0; i < ANSWERS; ++i) kvq_sequence_destroy(answers[i]);
  kvq_sequence_destroy(prompt);
  kvq_cache_destroy(cache);
  kvq_policy_destroy(policy);
  kvq_context_destroy(context);
  return 0;
}
