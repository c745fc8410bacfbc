/* M-RoPE, as in Qwen2-VL: tokens of an image share a temporal position and have one of their row and one of their
 * column. The cache rotates by these; what sees what still goes by the order of tokens.
 *
 *   cc mrope.c $(pkg-config --cflags --libs kvq) -lm -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o mrope
 *   ./mrope
 */
#include <math.h>

#include "sample.h"

enum { BEFORE = 40, ROWS = 8, COLUMNS = 12, IMAGE = ROWS * COLUMNS, PROMPT = BEFORE + IMAGE + 20, ANSWER = 30 };

static const int32_t kSection[3] = {8, 12, 12}; /* pairs of a head: temporal, height, width */

/* Text has one position in all three streams. Behind the image it goes on after the largest. */
static void place(int token, int32_t positions[3]) {
  const int of_image = token - BEFORE;
  if (of_image >= 0 && of_image < IMAGE) {
    positions[0] = BEFORE;
    positions[1] = BEFORE + of_image / COLUMNS;
    positions[2] = BEFORE + of_image % COLUMNS;
    return;
  }
  const int largest = COLUMNS > ROWS ? COLUMNS : ROWS;
  positions[0] = positions[1] = positions[2] = of_image < 0 ? token : token - IMAGE + largest;
}

static kvq_cache* create_mrope_cache(kvq_context* context, int rotates) {
  kvq_policy* policy = NULL;
  kvq_cache* cache = NULL;
  kvq_cache_options options;
  kvq_cache_options_init(&options, sizeof options);
  options.n_layers = LAYERS;
  options.q_heads = Q_HEADS;
  options.kv_heads = KV_HEADS;
  options.head_dim = HEAD_DIM;
  options.rope = rotates ? KVQ_ROPE_HALF : KVQ_ROPE_NONE;
  if (rotates) options.mrope_section = kSection;
  require(kvq_policy_load(context, "int8", 4, &policy, &error));
  require(kvq_cache_create(context, &options, policy, &cache, &error));
  kvq_policy_destroy(policy);
  return cache;
}

/* The same by the engine, as a check. */
static void rotate(float* x, int heads, const int32_t positions[3]) {
  for (int head = 0; head < heads; ++head, x += HEAD_DIM) {
    for (int pair = 0; pair < HEAD_DIM / 2; ++pair) {
      const int stream = pair < kSection[0] ? 0 : pair < kSection[0] + kSection[1] ? 1 : 2;
      const double angle = positions[stream] * pow(10000.0, -2.0 * pair / HEAD_DIM);
      const double a = x[pair], b = x[pair + HEAD_DIM / 2];
      x[pair] = (float)(a * cos(angle) - b * sin(angle));
      x[pair + HEAD_DIM / 2] = (float)(b * cos(angle) + a * sin(angle));
    }
  }
}

/* Run tokens [begin, begin + n) through all layers. Writes the outputs of the last layer. */
static void forward(kvq_cache* cache, kvq_sequence* sequence, int begin, int n, int rotates, float* output) {
  const int32_t n_tokens = n;
  float* q = tensor(n, Q_ROW);
  float* k = tensor(n, KV_ROW);
  float* v = tensor(n, KV_ROW);
  int32_t* positions = (int32_t*)allocate((size_t)n * 3 * sizeof(int32_t));
  for (int i = 0; i < n; ++i) place(begin + i, positions + 3 * i);
  for (int layer = 0; layer < LAYERS; ++layer) {
    project(0, layer, begin, n, q, k, v);
    for (int i = 0; i < n && !rotates; ++i) {
      rotate(q + (size_t)i * Q_ROW, Q_HEADS, positions + 3 * i);
      rotate(k + (size_t)i * KV_ROW, KV_HEADS, positions + 3 * i);
    }
    kvq_extend_batch batch;
    kvq_extend_batch_init(&batch, sizeof batch);
    batch.n_sequences = 1;
    batch.sequences = &sequence;
    batch.token_counts = &n_tokens;
    batch.k = k;
    batch.v = v;
    batch.q = q;
    batch.output = output;
    if (rotates) batch.rope_positions = positions; /* [n, 3] */
    require(kvq_extend(cache, layer, &batch, &error));
  }
  free(q);
  free(k);
  free(v);
  free(positions);
}

int main(void) {
  kvq_context* context = NULL;
  kvq_sequence* sequences[2] = {NULL, NULL};
  kvq_error_init(&error, sizeof error);
  require(kvq_context_create(NULL, &context, &error));
  kvq_cache* caches[2] = {create_mrope_cache(context, 0), create_mrope_cache(context, 1)};
  float* outputs[2] = {tensor(PROMPT, Q_ROW), tensor(PROMPT, Q_ROW)};
  double largest = 0.0;
  for (int i = 0; i < 2; ++i) require(kvq_sequence_create(caches[i], &sequences[i], &error));
  for (int at = 0; at < PROMPT + ANSWER; at += at == 0 ? PROMPT : 1) {
    const int n = at == 0 ? PROMPT : 1;
    for (int i = 0; i < 2; ++i) forward(caches[i], sequences[i], at, n, i, outputs[i]);
    for (int j = 0; j < n * Q_ROW; ++j) largest = fmax(largest, fabs((double)outputs[0][j] - (double)outputs[1][j]));
  }
  int32_t last[3];
  place(PROMPT + ANSWER - 1, last);
  printf("%d tokens with an image of %d x %d, the last at position %d\n", PROMPT + ANSWER, ROWS, COLUMNS, (int)last[0]);
  printf("largest difference from rotating by hand %g\n", largest);
  for (int i = 0; i < 2; ++i) {
    kvq_sequence_destroy(sequences[i]);
    kvq_cache_destroy(caches[i]);
    free(outputs[i]);
  }
  kvq_context_destroy(context);
  return 0;
}
