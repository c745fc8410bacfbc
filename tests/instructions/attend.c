/* Attends CALLS times to TOKENS tokens, one query, 4 heads of 128 on one KV head, for count.sh.
 *
 *   attend ISA FORMAT TOKENS CALLS
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvq.h"

enum { kQueryHeads = 4, kHeadDim = 128 };

static kvq_error error;

static void require(kvq_status status) {
  if (status == KVQ_OK) return;
  fprintf(stderr, "%s: %s\n", kvq_status_name(status), error.message);
  exit(1);
}

static float number(unsigned* state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

int main(int argc, char** argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: attend ISA FORMAT TOKENS CALLS\n");
    return 2;
  }
  const int32_t tokens = (int32_t)atoi(argv[3]);
  const int calls = atoi(argv[4]);
  kvq_error_init(&error, sizeof(error));

  kvq_context_options context_options;
  kvq_context_options_init(&context_options, sizeof(context_options));
  context_options.cpu_isa = argv[1];
  context_options.n_threads = 1;
  kvq_context* context = NULL;
  require(kvq_context_create(&context_options, &context, &error));
  kvq_cache_options options;
  kvq_cache_options_init(&options, sizeof(options));
  options.n_layers = 1;
  options.q_heads = kQueryHeads;
  options.kv_heads = 1;
  options.head_dim = kHeadDim;
  kvq_policy* policy = NULL;
  kvq_cache* cache = NULL;
  kvq_sequence* sequence = NULL;
  require(kvq_policy_load(context, argv[2], strlen(argv[2]), &policy, &error));
  require(kvq_cache_create(context, &options, policy, &cache, &error));
  require(kvq_sequence_create(cache, &sequence, &error));

  unsigned state = 1;
  float q[kQueryHeads * kHeadDim], out[kQueryHeads * kHeadDim], k[kHeadDim], v[kHeadDim];
  for (int32_t token = 0; token < tokens; ++token) {
    for (int i = 0; i < kHeadDim; ++i) {
      k[i] = number(&state);
      v[i] = number(&state);
    }
    require(kvq_append(cache, sequence, 0, 1, k, v, KVQ_F32, NULL, &error));
  }
  for (int i = 0; i < kQueryHeads * kHeadDim; ++i) q[i] = number(&state);
  const kvq_sequence* sequences[1] = {sequence};
  kvq_attend_batch batch;
  kvq_attend_batch_init(&batch, sizeof(batch));
  batch.n_sequences = 1;
  batch.sequences = sequences;
  batch.q = q;
  batch.output = out;
  for (int call = 0; call < calls; ++call) require(kvq_attend(cache, 0, &batch, &error));

  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_policy_destroy(policy);
  kvq_context_destroy(context);
  return 0;
}
