/* A model whose layers differ: five local ones to a global one with larger heads, fewer KV heads and another RoPE base.
 *
 *   cc layer_shapes.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o layer_shapes
 *   ./layer_shapes
 */
#include "sample.h"

enum { GLOBALS = 2, ALL_LAYERS = 6 * GLOBALS, GLOBAL_DIM = 128, TOKENS = 1000 };

/* As the engine would, from the sizes that the cache tells. */
static void extend_layer(kvq_cache* cache, kvq_sequence* sequence, int layer) {
  kvq_layer_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  require(kvq_cache_describe_layer(cache, layer, &info, &error));
  float* q = tensor(TOKENS, info.q_heads * info.key_dim);
  float* k = tensor(TOKENS, info.kv_heads * info.key_dim);
  float* v = tensor(TOKENS, info.kv_heads * info.value_dim);
  float* output = tensor(TOKENS, info.q_heads * info.value_dim);
  fill(q, (size_t)TOKENS * (size_t)(info.q_heads * info.key_dim), 3u * (uint32_t)layer);
  fill(k, (size_t)TOKENS * (size_t)(info.kv_heads * info.key_dim), 3u * (uint32_t)layer + 1u);
  fill(v, (size_t)TOKENS * (size_t)(info.kv_heads * info.value_dim), 3u * (uint32_t)layer + 2u);

  const int32_t n_tokens = TOKENS;
  kvq_extend_batch batch;
  kvq_extend_batch_init(&batch, sizeof batch);
  batch.n_sequences = 1;
  batch.sequences = &sequence;
  batch.token_counts = &n_tokens;
  batch.k = k;
  batch.v = v;
  batch.q = q;
  batch.output = output;
  require(kvq_extend(cache, layer, &batch, &error));
  if (layer < 4 || layer == 5) {
    printf("layer %d: %d query heads on %d KV heads of %d\n", layer, (int)info.q_heads, (int)info.kv_heads,
           (int)info.key_dim);
  }
  free(q);
  free(k);
  free(v);
  free(output);
}

int main(void) {
  kvq_context* context = NULL;
  kvq_policy* policy = NULL;
  kvq_cache* cache = NULL;
  kvq_sequence* sequence = NULL;
  kvq_cache_options options;
  kvq_usage usage;
  kvq_error_init(&error, sizeof error);
  require(kvq_context_create(NULL, &context, &error));
  kvq_cache_options_init(&options, sizeof options);
  options.n_layers = ALL_LAYERS;
  options.q_heads = Q_HEADS;
  options.kv_heads = KV_HEADS;
  options.head_dim = HEAD_DIM;
  kvq_layer_shape global[GLOBALS];
  for (int i = 0; i < GLOBALS; ++i) {
    kvq_layer_shape_init(&global[i], sizeof global[i]);
    global[i].first_layer = 6 * i + 5;
    global[i].kv_heads = 1;
    global[i].key_dim = GLOBAL_DIM;
    global[i].value_dim = GLOBAL_DIM;
    global[i].rope_base = 1e6f;
  }
  options.shapes = global;
  options.n_shapes = GLOBALS;
  require(kvq_policy_load(context, "gs4", 3, &policy, &error));
  require(kvq_cache_create(context, &options, policy, &cache, &error));
  kvq_policy_destroy(policy);
  require(kvq_sequence_create(cache, &sequence, &error));
  for (int layer = 0; layer < ALL_LAYERS; ++layer) extend_layer(cache, sequence, layer);

  memset(&usage, 0, sizeof usage);
  usage.struct_size = sizeof usage;
  require(kvq_cache_usage(cache, sequence, &usage, &error));
  printf("%d layers of %d tokens: %.1f bits a scalar\n", ALL_LAYERS, TOKENS, usage.bits_per_scalar);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
  return 0;
}
