/* A model whose last layers have no keys and values of their own: they attend to those of an earlier layer, and take no
 * memory.
 *
 *   cc shared_pages.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o shared_pages
 *   ./shared_pages
 */
#include "sample.h"

enum { ALL_LAYERS = 6, OWN_LAYERS = 4, TOKENS = 1000 };

static void attend_to(kvq_cache* cache, const kvq_sequence* sequence, int layer, int32_t n, const float* q,
                      float* output) {
  kvq_attend_batch batch;
  kvq_attend_batch_init(&batch, sizeof batch);
  batch.n_sequences = 1;
  batch.sequences = &sequence;
  batch.query_counts = &n;
  batch.q = q;
  batch.output = output;
  require(kvq_attend(cache, layer, &batch, &error));
}

static void extend(kvq_cache* cache, kvq_sequence* sequence, int layer, int32_t n, const float* k, const float* v,
                   const float* q, float* output) {
  kvq_extend_batch batch;
  kvq_extend_batch_init(&batch, sizeof batch);
  batch.n_sequences = 1;
  batch.sequences = &sequence;
  batch.token_counts = &n;
  batch.k = k;
  batch.v = v;
  batch.q = q;
  batch.output = output;
  require(kvq_extend(cache, layer, &batch, &error));
}

/* A forward pass of `n` tokens; returns the bytes that the sequence then takes. */
static uint64_t run(kvq_cache* cache, kvq_sequence* sequence, int32_t n) {
  float* q = tensor(n, Q_ROW);
  float* k = tensor(n, KV_ROW);
  float* v = tensor(n, KV_ROW);
  float* output = tensor(n, Q_ROW);
  for (int layer = 0; layer < ALL_LAYERS; ++layer) {
    fill(q, (size_t)n * Q_ROW, 3u * (uint32_t)layer);
    fill(k, (size_t)n * KV_ROW, 3u * (uint32_t)layer + 1u);
    fill(v, (size_t)n * KV_ROW, 3u * (uint32_t)layer + 2u);
    kvq_layer_info info;
    info.struct_size = sizeof info;
    require(kvq_cache_describe_layer(cache, layer, &info, &error));
    if (info.pages_of_layer == layer) {
      extend(cache, sequence, layer, n, k, v, q, output);
    } else {
      attend_to(cache, sequence, layer, n, q, output); /* the other layer has the tokens already */
    }
  }
  free(q);
  free(k);
  free(v);
  free(output);
  kvq_usage usage;
  usage.struct_size = sizeof usage;
  require(kvq_cache_usage(cache, sequence, &usage, &error));
  return usage.total_bytes;
}

int main(void) {
  kvq_context* context = NULL;
  kvq_policy* policy = NULL;
  kvq_cache_options options;
  uint64_t bytes[2];
  kvq_error_init(&error, sizeof error);
  require(kvq_context_create(NULL, &context, &error));
  require(kvq_policy_load(context, "gs4", 3, &policy, &error));
  kvq_cache_options_init(&options, sizeof options);
  options.n_layers = ALL_LAYERS;
  options.q_heads = Q_HEADS;
  options.kv_heads = KV_HEADS;
  options.head_dim = HEAD_DIM;

  kvq_layer_shape last;
  kvq_layer_shape_init(&last, sizeof last);
  last.first_layer = OWN_LAYERS;
  last.n_layers = ALL_LAYERS - OWN_LAYERS;
  last.pages_of_layer = OWN_LAYERS - 1;
  options.shapes = &last;
  for (int shares = 0; shares < 2; ++shares) {
    kvq_cache* cache = NULL;
    kvq_sequence* sequence = NULL;
    options.n_shapes = shares;
    require(kvq_cache_create(context, &options, policy, &cache, &error));
    require(kvq_sequence_create(cache, &sequence, &error));
    bytes[shares] = run(cache, sequence, TOKENS);
    kvq_sequence_destroy(sequence);
    kvq_cache_destroy(cache);
  }
  printf("%d layers of %d tokens: %" PRIu64 " bytes, %" PRIu64 " if the last %d read the pages of layer %d\n",
         ALL_LAYERS, TOKENS, bytes[0], bytes[1], ALL_LAYERS - OWN_LAYERS, OWN_LAYERS - 1);
  kvq_policy_destroy(policy);
  kvq_context_destroy(context);
  return 0;
}
