/* Run a prompt in chunks, decode token by token, and check once against plain attention, as an engine should.
 *
 *   cc prompt_and_decode.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -lm -o run
 *   ./run
 */
#include "sample.h"

#include <math.h>

enum { TEXT = 1, PROMPT = 700, TOKENS = 720 };

/* Run the prompt in chunks, then token by token. Writes the attention output of the last token in the last layer. */
static void generate(kvq_cache* cache, kvq_sequence* sequence, int chunk, float* output) {
  float* chunk_output = tensor(chunk, Q_ROW);
  for (int begin = 0; begin < PROMPT; begin += chunk) {
    const int n = PROMPT - begin < chunk ? PROMPT - begin : chunk;
    step(cache, sequence, TEXT, begin, n, chunk_output);
  }
  for (int position = PROMPT; position < TOKENS; ++position) step(cache, sequence, TEXT, position, 1, output);
  free(chunk_output);
}

/* RoPE as in Hugging Face's Llama: channels (j, j + HEAD_DIM / 2) form a pair. */
static void rotate(const float* x, int position, double* rotated) {
  for (int j = 0; j < HEAD_DIM / 2; ++j) {
    const double angle = position * pow(500000.0, -2.0 * j / HEAD_DIM);
    rotated[j] = x[j] * cos(angle) - x[j + HEAD_DIM / 2] * sin(angle);
    rotated[j + HEAD_DIM / 2] = x[j] * sin(angle) + x[j + HEAD_DIM / 2] * cos(angle);
  }
}

/* Compute softmax(q·kᵀ / √d) v of the last token in the last layer in double precision, without the library. */
static void attend_plainly(double* output) {
  float q[Q_ROW], k[KV_ROW], v[KV_ROW];
  double rotated_q[Q_ROW], rotated_k[KV_ROW], sums[Q_HEADS] = {0};
  memset(output, 0, Q_ROW * sizeof *output);
  project(TEXT, LAYERS - 1, TOKENS - 1, 1, q, k, v);
  for (int head = 0; head < Q_HEADS; ++head) rotate(q + head * HEAD_DIM, TOKENS - 1, rotated_q + head * HEAD_DIM);
  for (int token = 0; token < TOKENS; ++token) {
    float unused[Q_ROW];
    project(TEXT, LAYERS - 1, token, 1, unused, k, v);
    for (int head = 0; head < KV_HEADS; ++head) rotate(k + head * HEAD_DIM, token, rotated_k + head * HEAD_DIM);
    for (int head = 0; head < Q_HEADS; ++head) {
      const int kv = head / (Q_HEADS / KV_HEADS) * HEAD_DIM; /* first channel of its KV head */
      double logit = 0;
      for (int c = 0; c < HEAD_DIM; ++c) logit += rotated_q[head * HEAD_DIM + c] * rotated_k[kv + c];
      const double weight = exp(logit / sqrt(HEAD_DIM));
      sums[head] += weight;
      for (int c = 0; c < HEAD_DIM; ++c) output[head * HEAD_DIM + c] += weight * v[kv + c];
    }
  }
  for (int i = 0; i < Q_ROW; ++i) output[i] /= sums[i / HEAD_DIM];
}

/* ‖output − plain‖ / ‖plain‖ */
static double difference(const float* output, const double* plain) {
  double error_squared = 0, squared = 0;
  for (int i = 0; i < Q_ROW; ++i) {
    error_squared += (output[i] - plain[i]) * (output[i] - plain[i]);
    squared += plain[i] * plain[i];
  }
  return sqrt(error_squared / squared);
}

/* FP16 leaves only rounding: a larger difference means that shapes, RoPE or scale do not match the engine's. */
static void check_in_fp16(kvq_context* context) {
  kvq_cache* cache = create_cache(context, "fp16");
  kvq_sequence* sequence = NULL;
  float output[Q_ROW];
  double plain[Q_ROW];
  require(kvq_sequence_create(cache, &sequence, &error));
  generate(cache, sequence, PROMPT, output);
  attend_plainly(plain);
  printf("fp16: difference from plain attention %.5f\n", difference(output, plain));
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
}

int main(void) {
  static const char* const policies[] = {"int4+hadamard", "gs2", "gs2/gs1"};
  static const int chunks[] = {256, 100};
  kvq_context* context = NULL;
  kvq_error_init(&error, sizeof error);
  require(kvq_context_create(NULL, &context, &error)); /* defaults: one thread, this CPU's best instruction set */
  check_in_fp16(context);
  for (size_t i = 0; i < sizeof policies / sizeof policies[0]; ++i) {
    kvq_cache* cache = create_cache(context, policies[i]);
    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; ++c) {
      kvq_sequence* sequence = NULL;
      float output[Q_ROW];
      require(kvq_sequence_create(cache, &sequence, &error));
      generate(cache, sequence, chunks[c], output);
      printf("%s: %.2f bits per scalar, prompt in chunks of %d, output %08" PRIx32 "\n", policies[i],
             usage_of(cache, sequence).bits_per_scalar, chunks[c], fingerprint(output, sizeof output));
      kvq_sequence_destroy(sequence);
    }
    kvq_cache_destroy(cache);
  }
  kvq_context_destroy(context);
  return 0;
}
