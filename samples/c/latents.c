/* Latent attention (MLA), as in DeepSeek and Kimi: all query heads read one latent a token, whose first channels are
 * the values. It is stored once: 4 bits for these, INT8 for the rotary channels behind them.
 *
 *   cc latents.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -lm -o latents
 *   ./latents
 */
#include <math.h>

#include "sample.h"

enum { LATENT = 512, ROTARY = 64, ROW = LATENT + ROTARY, HEADS = 16, NOPE = 128, PROMPT = 1000 };

static kvq_cache* make_cache(kvq_context* context, const char* formats) {
  kvq_policy* policy = NULL;
  kvq_cache* cache = NULL;
  kvq_cache_options options;
  kvq_cache_options_init(&options, sizeof options);
  options.n_layers = 1;
  options.q_heads = HEADS;
  options.kv_heads = 1;
  options.head_dim = LATENT;
  options.rope = KVQ_ROPE_INTERLEAVED;
  kvq_layer_shape latent;
  kvq_layer_shape_init(&latent, sizeof latent);
  latent.n_layers = options.n_layers;
  latent.key_dim = LATENT + ROTARY;
  latent.value_dim = LATENT;
  latent.values_are_key_prefix = 1;                    /* RoPE turns the channels behind the values */
  latent.scale = 1.0f / sqrtf((float)(NOPE + ROTARY)); /* of the heads that the latent stands for */
  options.shapes = &latent;
  options.n_shapes = 1;
  require(kvq_policy_load(context, formats, strlen(formats), &policy, &error));
  require(kvq_cache_create(context, &options, policy, &cache, &error));
  kvq_policy_destroy(policy);
  return cache;
}

/* Append n tokens and attend with their queries, which are already multiplied by the keys' up-projection; the values'
 * up-projection of the output comes next. */
static void extend(kvq_cache* cache, kvq_sequence* sequence, int n, const float* k, const float* q, float* output) {
  const int32_t count = n;
  kvq_extend_batch batch;
  kvq_extend_batch_init(&batch, sizeof batch);
  batch.n_sequences = 1;
  batch.sequences = &sequence;
  batch.token_counts = &count;
  batch.k = k;           /* n rows of ROW; there is no v */
  batch.q = q;           /* n times HEADS rows of ROW */
  batch.output = output; /* n times HEADS rows of LATENT */
  require(kvq_extend(cache, 0, &batch, &error));
}

/* A prompt and one token more, whose output stays in `output`; returns bytes a token. */
static double run(kvq_context* context, const char* formats, const float* k, const float* q, float* output) {
  kvq_cache* cache = make_cache(context, formats);
  kvq_sequence* sequence = NULL;
  kvq_usage usage;
  require(kvq_sequence_create(cache, &sequence, &error));
  extend(cache, sequence, PROMPT, k, q, output);
  extend(cache, sequence, 1, k + PROMPT * ROW, q + PROMPT * HEADS * ROW, output);
  memset(&usage, 0, sizeof usage);
  usage.struct_size = sizeof usage;
  require(kvq_cache_usage(cache, sequence, &usage, &error));
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  return usage.bits_per_scalar * ROW / 8.0;
}

int main(void) {
  static const char* const all[] = {
      "fp16",
      "{version: 1, keys: int8, values: gs4}", /* rotary channels, common channels */
      "{version: 1, keys: int8, values: gs2}",
  };
  kvq_context* context = NULL;
  kvq_error_init(&error, sizeof error);
  require(kvq_context_create(NULL, &context, &error));
  float* k = tensor(PROMPT + 1, ROW);
  float* q = tensor(PROMPT + 1, HEADS * ROW);
  float* output = tensor(PROMPT, HEADS * LATENT);
  fill(k, (size_t)(PROMPT + 1) * ROW, 1);
  fill(q, (size_t)(PROMPT + 1) * HEADS * ROW, 2);
  for (int i = 0; i < 3; ++i) printf("%s: %.0f bytes a token\n", all[i], run(context, all[i], k, q, output));
  free(k);
  free(q);
  free(output);
  kvq_context_destroy(context);
  return 0;
}
