/* Linear layers in few bits: compute queries, keys and values in one call, append them to the cache, and save the
 * matrices to a file.
 *
 *   cc linear.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -lm -o linear
 *   ./linear
 */
#include "sample.h"

#include <math.h>

enum { HIDDEN = 512, BATCH = 5, N = 3 };

static const int rows[N] = {Q_ROW, KV_ROW, KV_ROW}; /* query, key and value projections */
static const char* const names[N] = {"q_proj", "k_proj", "v_proj"};

/* Runs once, when a model is converted. A Hessian of the layer's inputs would reduce the loss; see docs/weights.md. */
static void quantize(kvq_context* context, float* const* weights, qp_matrix** matrices) {
  qp_quantize_options options;
  qp_quantize_options_init(&options, sizeof options);
  options.scheme = "nuq-4"; /* or "vq-2.5", "tcq-2.75", "tcx-3", …: qp_scheme_name lists them */
  options.seed = 1;         /* matrices that share inputs need the same seed, which gives the same signs */
  for (int i = 0; i < N; ++i) {
    require(qp_quantize(context, &options, weights[i], rows[i], HIDDEN, &matrices[i], &error));
  }
}

/* ‖y − x·Wᵀ‖ / ‖x·Wᵀ‖ in double precision. */
static double difference(const float* y, const float* x, const float* w, int n_rows) {
  double error_squared = 0, squared = 0;
  for (int i = 0; i < BATCH * n_rows; ++i) {
    double product = 0;
    for (int c = 0; c < HIDDEN; ++c) {
      product += (double)x[(size_t)(i / n_rows) * HIDDEN + (size_t)c] * w[(size_t)(i % n_rows) * HIDDEN + (size_t)c];
    }
    error_squared += (y[i] - product) * (y[i] - product);
    squared += product * product;
  }
  return sqrt(error_squared / squared);
}

int main(void) {
  kvq_context* context = NULL;
  kvq_sequence* sequence = NULL;
  qp_matrix* matrices[N];
  float* weights[N];
  float* decoded[N];
  float* alone[N];
  float x[BATCH * HIDDEN], q[BATCH * Q_ROW], k[BATCH * KV_ROW], v[BATCH * KV_ROW];
  kvq_error_init(&error, sizeof error);
  require(kvq_context_create(NULL, &context, &error));
  kvq_cache* cache = create_cache(context, "int4+hadamard");
  require(kvq_sequence_create(cache, &sequence, &error));
  for (int i = 0; i < N; ++i) {
    weights[i] = tensor(rows[i], HIDDEN);
    fill(weights[i], (size_t)rows[i] * HIDDEN, (uint32_t)i);
  }
  quantize(context, weights, matrices);
  fill(x, sizeof x / sizeof *x, 100);

  /* Inputs are rotated and rounded once for all three; kvq_append and kvq_attend take the outputs as they are. */
  void* const outputs[N] = {q, k, v};
  require(qp_linear_shared((const qp_matrix* const*)matrices, N, x, BATCH, outputs, KVQ_F32, &error));
  require(kvq_append(cache, sequence, 0, BATCH, k, v, KVQ_F32, NULL, &error));
  printf("appended %d tokens\n", (int)length_of(sequence));

  for (int i = 0; i < N; ++i) {
    const float* y = (const float*)outputs[i];
    const size_t bytes = (size_t)BATCH * (size_t)rows[i] * sizeof *y;
    alone[i] = tensor(BATCH, rows[i]);
    decoded[i] = tensor(rows[i], HIDDEN);
    require(qp_linear(matrices[i], x, BATCH, alone[i], KVQ_F32, &error));
    require(qp_matrix_dequantize(matrices[i], 0, rows[i], decoded[i], &error));
    printf("%s: output %08" PRIx32 " together, %08" PRIx32 " alone\n", names[i], fingerprint(y, bytes),
           fingerprint(alone[i], bytes));
    printf("%s: %.4f from the product with its weights, %.4f with those before quantizing\n", names[i],
           difference(y, x, decoded[i], rows[i]), difference(y, x, weights[i], rows[i]));
  }

  /* Write all matrices as one safetensors file in memory. */
  size_t size = 0;
  require(qp_matrix_save((const qp_matrix* const*)matrices, names, N, NULL, 0, &size, &error));
  void* file = allocate(size);
  require(qp_matrix_save((const qp_matrix* const*)matrices, names, N, file, size, &size, &error));
  qp_matrix* loaded = NULL;
  require(qp_matrix_load(context, file, size, "v_proj", &loaded, &error));
  require(qp_linear(loaded, x, BATCH, alone[2], KVQ_F32, &error));
  printf("v_proj from the file: output %08" PRIx32 "\n", fingerprint(alone[2], sizeof v));

  qp_matrix_info info;
  uint64_t predicted = 0;
  info.struct_size = sizeof info;
  require(qp_matrix_describe(loaded, &info, &error));
  require(qp_matrix_predict_bytes("nuq-4", KV_ROW, HIDDEN, 0, &predicted, NULL, &error));
  printf("%s: %.2f bits a weight, %" PRIu64 " bytes, predicted %" PRIu64 "\n", info.scheme, info.bits, info.bytes,
         predicted);

  qp_matrix_destroy(loaded);
  free(file);
  for (int i = 0; i < N; ++i) {
    qp_matrix_destroy(matrices[i]);
    free(weights[i]);
    free(decoded[i]);
    free(alone[i]);
  }
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
  return 0;
}
