/* Appends tokens and attends; the expected values follow from softmax alone. */
#include <kvq.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { kQueryHeads = 4, kKvHeads = 2, kHeadDim = 64, kTokens = KVQ_PAGE_SLOTS + 1 };

static int failed(const char* call, const kvq_error* error) {
  fprintf(stderr, "%s: %s: %s\n", call, kvq_status_name(error->code), error->message);
  return 1;
}

static int check(const char* what, const float* out, const float* expected_per_kv_head) {
  for (int i = 0; i < kQueryHeads * kHeadDim; ++i) {
    const float expected = expected_per_kv_head[i / kHeadDim / (kQueryHeads / kKvHeads)];
    if (!(fabsf(out[i] - expected) <= 1e-3f)) {
      fprintf(stderr, "%s: out[%d] is %g, expected %g\n", what, i, (double)out[i], (double)expected);
      return 1;
    }
  }
  return 0;
}

int main(void) {
  static const char kPolicy[] = "version: 1\nkeys: int8\nvalues: {format: int4, group: 32}\n";
  float k[kKvHeads * kHeadDim], v[kKvHeads * kHeadDim], q[kQueryHeads * kHeadDim], out[kQueryHeads * kHeadDim];
  float expected[kKvHeads];
  kvq_error error;
  kvq_context* context = NULL;
  kvq_policy* policy = NULL;
  kvq_cache* cache = NULL;
  kvq_sequence* sequence = NULL;
  kvq_cache_options options;
  kvq_attend_batch batch;
  const kvq_sequence* sequences[1];

  if (kvq_api_version() != KVQ_API_VERSION) {
    fprintf(stderr, "the library implements API version %d, not %d\n", (int)kvq_api_version(), KVQ_API_VERSION);
    return 1;
  }
  kvq_error_init(&error, sizeof(error));
  if (kvq_context_create(NULL, &context, &error) != KVQ_OK) return failed("kvq_context_create", &error);
  if (kvq_policy_load(context, kPolicy, strlen(kPolicy), &policy, &error) != KVQ_OK) {
    return failed("kvq_policy_load", &error);
  }
  kvq_cache_options_init(&options, sizeof(options));
  options.n_layers = 1;
  options.q_heads = kQueryHeads;
  options.kv_heads = kKvHeads;
  options.head_dim = kHeadDim;
  if (kvq_cache_create(context, &options, policy, &cache, &error) != KVQ_OK) return failed("kvq_cache_create", &error);
  kvq_policy_destroy(policy);
  if (kvq_sequence_create(cache, &sequence, &error) != KVQ_OK) return failed("kvq_sequence_create", &error);
  sequences[0] = sequence;
  kvq_attend_batch_init(&batch, sizeof(batch));
  batch.n_sequences = 1;
  batch.sequences = sequences;
  batch.q = q;
  batch.output = out;

  for (int i = 0; i < kKvHeads * kHeadDim; ++i) k[i] = (float)(i % 7) - 3.0f;
  for (int i = 0; i < kQueryHeads * kHeadDim; ++i) q[i] = (float)(i % 5) - 2.0f;

  /* A single token gets all the weight: the output is its value. */
  for (int i = 0; i < kKvHeads * kHeadDim; ++i) v[i] = i < kHeadDim ? 1.5f : -4.0f;
  if (kvq_append(cache, sequence, 0, 1, k, v, KVQ_F32, NULL, &error) != KVQ_OK) return failed("kvq_append", &error);
  if (kvq_attend(cache, 0, &batch, &error) != KVQ_OK) return failed("kvq_attend", &error);
  expected[0] = 1.5f;
  expected[1] = -4.0f;
  if (check("one token", out, expected)) return 1;

  /* Zero queries weigh all tokens equally, the sealed page's and the open page's. */
  for (int i = 0; i < kQueryHeads * kHeadDim; ++i) q[i] = 0.0f;
  for (int t = 1; t < kTokens; ++t) {
    if (t == kTokens - 1) {
      for (int i = 0; i < kKvHeads * kHeadDim; ++i) v[i] = 18.0f;
    }
    if (kvq_append(cache, sequence, 0, 1, k, v, KVQ_F32, NULL, &error) != KVQ_OK) return failed("kvq_append", &error);
  }
  if (kvq_attend(cache, 0, &batch, &error) != KVQ_OK) return failed("kvq_attend", &error);
  expected[0] = 1.5f + (18.0f - 1.5f) / (float)kTokens;
  expected[1] = -4.0f + (18.0f + 4.0f) / (float)kTokens;
  if (check("a sealed and an open page", out, expected)) return 1;

  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
  printf("kvq %s\n", kvq_version_string());
  return 0;
}
