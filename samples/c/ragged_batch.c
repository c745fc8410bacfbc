/* Ragged batch, as in a server: the next chunk of one prompt and the next token of two other sequences, in one call per
 * layer, directly from a fused tensor of queries, keys and values.
 *
 *   cc ragged_batch.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o ragged_batch
 *   ./ragged_batch
 */
#include "sample.h"

enum { SEQUENCES = 3, QKV_ROW = Q_ROW + 2 * KV_ROW };

static const int held[SEQUENCES] = {64, 700, 35};     /* tokens so far */
static const int32_t counts[SEQUENCES] = {100, 1, 1}; /* tokens of this step */

/* qkv: `[total tokens, QKV_ROW]`; output: `[total tokens, Q_ROW]` */
static void batch_step(kvq_cache* cache, kvq_sequence* const* sequences, float* qkv, float* output) {
  for (int layer = 0; layer < LAYERS; ++layer) {
    float* row = qkv;
    for (int i = 0; i < SEQUENCES; ++i) { /* stands in for the engine's fused projection */
      project_strided(i, layer, held[i], counts[i], row, QKV_ROW, row + Q_ROW, row + Q_ROW + KV_ROW, QKV_ROW);
      row += (size_t)counts[i] * QKV_ROW;
    }

    kvq_extend_batch batch;
    kvq_extend_batch_init(&batch, sizeof batch);
    batch.n_sequences = SEQUENCES;
    batch.sequences = sequences;
    batch.token_counts = counts;
    batch.q = qkv;
    batch.k = qkv + Q_ROW;
    batch.v = qkv + Q_ROW + KV_ROW;
    batch.q_token_stride = QKV_ROW;
    batch.k_token_stride = QKV_ROW;
    batch.v_token_stride = QKV_ROW;
    batch.output = output;
    require(kvq_extend(cache, layer, &batch, &error));
  }
}

int main(void) {
  kvq_context* context = NULL;
  kvq_sequence* together[SEQUENCES];
  kvq_sequence* alone[SEQUENCES];
  int total = 0;
  kvq_error_init(&error, sizeof error);
  require(kvq_context_create(NULL, &context, &error));
  kvq_cache* cache = create_cache(context, "int4+hadamard");
  float* output = tensor(1000, Q_ROW);
  for (int i = 0; i < SEQUENCES; ++i) {
    require(kvq_sequence_create(cache, &together[i], &error));
    step(cache, together[i], i, 0, held[i], output);
    require(kvq_sequence_fork(cache, together[i], &alone[i], &error));
    total += counts[i];
  }

  float* qkv = tensor(total, QKV_ROW);
  float* batch_output = tensor(total, Q_ROW);
  batch_step(cache, together, qkv, batch_output);

  const float* row = batch_output;
  for (int i = 0; i < SEQUENCES; ++i) {
    const size_t bytes = (size_t)counts[i] * Q_ROW * sizeof *row;
    step(cache, alone[i], i, held[i], counts[i], output);
    printf("sequence of %d tokens and %d more: output %08" PRIx32 " in the batch, %08" PRIx32 " alone\n", held[i],
           (int)counts[i], fingerprint(row, bytes), fingerprint(output, bytes));
    row += (size_t)counts[i] * Q_ROW;
    kvq_sequence_destroy(together[i]);
    kvq_sequence_destroy(alone[i]);
  }
  free(qkv);
  free(batch_output);
  free(output);
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
  return 0;
}
