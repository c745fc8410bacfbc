/* Speculative decoding: verify several draft tokens in one step, which keeps the accepted ones.
 *
 *   cc speculate.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o speculate
 *   ./speculate
 */
#include "sample.h"

enum { TEXT = 0, WRONG_TEXT = 1, PROMPT = 100, DRAFT = 8, ROUNDS = 8 };

/* Draft tokens of each round that the model accepts. */
static const int right[ROUNDS] = {3, 8, 0, 5, 1, 6, 8, 2};

/* Extend all layers by draft tokens, the first `n_right` of which are correct. */
static void judge(kvq_cache* cache, kvq_sequence* sequence, int n_right, float* output) {
  const int32_t n = DRAFT;
  const int length = length_of(sequence);
  float q[DRAFT * Q_ROW], k[DRAFT * KV_ROW], v[DRAFT * KV_ROW];
  for (int layer = 0; layer < LAYERS; ++layer) {
    project(TEXT, layer, length, n_right, q, k, v);
    project(WRONG_TEXT, layer, length + n_right, DRAFT - n_right, q + n_right * Q_ROW, k + n_right * KV_ROW,
            v + n_right * KV_ROW);
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
}

int main(void) {
  kvq_context* context = NULL;
  kvq_sequence* sequence = NULL;
  kvq_sequence* witness = NULL;
  float output[DRAFT * Q_ROW], expected[Q_ROW];
  kvq_error_init(&error, sizeof error);
  require(kvq_context_create(NULL, &context, &error));
  kvq_cache* cache = create_cache(context, "int4+hadamard");
  float* prompt_output = tensor(PROMPT, Q_ROW);
  require(kvq_sequence_create(cache, &sequence, &error));
  step(cache, sequence, TEXT, 0, PROMPT, prompt_output);
  free(prompt_output);
  require(kvq_sequence_fork(cache, sequence, &witness, &error)); /* gets only the correct tokens, one by one */

  const int32_t n = DRAFT;
  kvq_step_batch draft;
  kvq_step_batch_init(&draft, sizeof draft);
  draft.n_sequences = 1;
  draft.sequences = &sequence;
  for (int round = 0; round < ROUNDS; ++round) {
    draft.token_counts = &n;
    require(kvq_step_begin(cache, &draft, &error)); /* memory for all layers, or nothing has changed */
    judge(cache, sequence, right[round], output);
    const int32_t accepted = right[round]; /* the engine's sampler derives it from `output` */
    draft.token_counts = &accepted;
    require(kvq_step_commit(cache, &draft, &error));
  }

  const int length = length_of(sequence);
  for (int position = PROMPT; position < length; ++position) step(cache, witness, TEXT, position, 1, expected);
  step(cache, sequence, TEXT, length, 1, output);
  step(cache, witness, TEXT, length, 1, expected);
  printf("with drafts: %d tokens, output %08" PRIx32 "\n", (int)length_of(sequence),
         fingerprint(output, sizeof expected));
  printf("without: %d tokens, output %08" PRIx32 "\n", (int)length_of(witness), fingerprint(expected, sizeof expected));

  /* Without a step, a cut inside a sealed page is refused. The message names lengths that work. */
  const kvq_status status = kvq_sequence_truncate(cache, sequence, 40, &error);
  printf("%s: %s\n", kvq_status_name(status), error.message);
  printf("still %d tokens\n", (int)length_of(sequence));

  kvq_sequence_destroy(witness);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
  return 0;
}
