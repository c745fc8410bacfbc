/* A model with local layers: five of six see a window, as in Gemma 3. They free what no later token sees, so that a
 * long text takes little more than the global layer's pages, and a reserve is all that they ever need.
 *
 *   cc windows.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o windows
 *   ./windows
 */
#include "sample.h"

enum { ALL_LAYERS = 6, GLOBAL = 5, WINDOW = 256, TOKENS = 8192, CHUNK = 512 };

/* `window` of the local layers; 0: they keep everything. */
static kvq_cache* create_local_cache(kvq_context* context, int window) {
  kvq_policy* policy = NULL;
  kvq_cache* cache = NULL;
  kvq_cache_options options;
  kvq_layer_shape global;
  kvq_cache_options_init(&options, sizeof options);
  options.n_layers = ALL_LAYERS;
  options.q_heads = Q_HEADS;
  options.kv_heads = KV_HEADS;
  options.head_dim = HEAD_DIM;
  options.sliding_window = window;
  kvq_layer_shape_init(&global, sizeof global);
  global.first_layer = GLOBAL;
  global.sliding_window = -1; /* none */
  options.shapes = &global;
  options.n_shapes = 1;
  require(kvq_policy_load(context, "int4", 4, &policy, &error));
  require(kvq_cache_create(context, &options, policy, &cache, &error));
  kvq_policy_destroy(policy);
  return cache;
}

/* Run tokens [begin, begin + n) through all layers. `window`: of calls to the local ones; 0: that of the cache. */
static void forward(kvq_cache* cache, kvq_sequence* sequence, int begin, int n, int window, float* output) {
  const int32_t n_tokens = n;
  float* q = tensor(n, Q_ROW);
  float* k = tensor(n, KV_ROW);
  float* v = tensor(n, KV_ROW);
  for (int layer = 0; layer < ALL_LAYERS; ++layer) {
    project(1, layer, begin, n, q, k, v);
    kvq_extend_batch batch;
    kvq_extend_batch_init(&batch, sizeof batch);
    batch.n_sequences = 1;
    batch.sequences = &sequence;
    batch.token_counts = &n_tokens;
    batch.k = k;
    batch.v = v;
    batch.q = q;
    batch.output = output + (size_t)layer * (size_t)n * Q_ROW;
    batch.sliding_window = layer == GLOBAL ? 0 : window;
    require(kvq_extend(cache, layer, &batch, &error));
  }
  free(q);
  free(k);
  free(v);
}

/* Run the text, then one token more. Writes that token's outputs, `[ALL_LAYERS, Q_HEADS, HEAD_DIM]`. */
static uint64_t run(kvq_cache* cache, int window, float* last) {
  kvq_sequence* sequence = NULL;
  float* output = tensor(ALL_LAYERS * CHUNK, Q_ROW);
  require(kvq_sequence_create(cache, &sequence, &error));
  for (int at = 0; at < TOKENS; at += CHUNK) forward(cache, sequence, at, CHUNK, window, output);
  forward(cache, sequence, TOKENS, 1, window, last);
  const uint64_t bytes = usage_of(cache, sequence).total_bytes;
  kvq_sequence_destroy(sequence);
  free(output);
  return bytes;
}

int main(void) {
  kvq_context* context = NULL;
  kvq_error_init(&error, sizeof error);
  require(kvq_context_create(NULL, &context, &error));
  kvq_cache* local = create_local_cache(context, WINDOW);
  kvq_cache* whole = create_local_cache(context, 0);
  float* a = tensor(ALL_LAYERS, Q_ROW);
  float* b = tensor(ALL_LAYERS, Q_ROW);

  /* The same outputs as from layers that keep all tokens and are told the window in each call. */
  const uint64_t bytes = run(local, 0, a);
  const uint64_t all = run(whole, WINDOW, b);
  float largest = 0.0f;
  for (int i = 0; i < ALL_LAYERS * Q_ROW; ++i) {
    const float difference = a[i] > b[i] ? a[i] - b[i] : b[i] - a[i];
    if (difference > largest) largest = difference;
  }
  printf("%d tokens: %" PRIu64 " bytes, %" PRIu64 " if local layers keep all; largest difference %g\n", TOKENS, bytes,
         all, (double)largest);

  /* Room for a window is room for any number of tokens in a local layer. */
  kvq_sequence* sequence = NULL;
  int32_t room[2] = {0, 0};
  require(kvq_sequence_create(local, &sequence, &error));
  require(kvq_sequence_reserve(local, sequence, 4096, &error));
  require(kvq_sequence_room(sequence, 0, &room[0], &error));
  require(kvq_sequence_room(sequence, GLOBAL, &room[1], &error));
  printf("reserved: room for %d tokens in local layers, %d in the global one\n", (int)room[0], (int)room[1]);
  kvq_sequence_destroy(sequence);
  free(a);
  free(b);
  kvq_cache_destroy(local);
  kvq_cache_destroy(whole);
  kvq_context_destroy(context);
  return 0;
}
