/* qp_*: inputs are checked, files survive a round trip, and products are those of the dequantized matrix. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { kOut = 35, kIn = 192, kBatch = 3, kWeights = kOut * kIn };

static int unused_place;

static qp_quantize_options options_for(const char* scheme) {
  qp_quantize_options options;
  qp_quantize_options_init(&options, sizeof(options));
  options.scheme = scheme;
  return options;
}

static qp_matrix* quantized(kvq_context* context, const char* scheme, const float* bias, uint64_t seed) {
  static float w[kWeights];
  qp_quantize_options options = options_for(scheme);
  qp_matrix* matrix = NULL;
  fill_tensor(w, kWeights, 3);
  options.bias = bias;
  options.seed = seed;
  ACCEPTED(qp_quantize(context, &options, w, kOut, kIn, &matrix, err));
  return matrix;
}

/* The file of one matrix. */
static blob file_of(const qp_matrix* matrix, const char* name) {
  blob file = {NULL, 0};
  ACCEPTED(qp_matrix_save(&matrix, &name, 1, NULL, 0, &file.size, err));
  file.data = (unsigned char*)malloc(file.size);
  ACCEPTED(qp_matrix_save(&matrix, &name, 1, file.data, file.size, &file.size, err));
  return file;
}

static void schemes(void) {
  const int32_t n = qp_scheme_count();
  int32_t i;
  int n_named = 0;
  CHECK(n == 39);
  for (i = 0; i < n; ++i) {
    const char* name = qp_scheme_name(i);
    CHECK(name != NULL && qp_scheme_bits(name) >= 1.0 && qp_scheme_bits(name) <= 16.0);
    n_named += strcmp(name, "tcq-2.75") == 0 || strcmp(name, "fp16") == 0;
  }
  CHECK(n_named == 2);
  CHECK(qp_scheme_name(-1) == NULL && qp_scheme_name(n) == NULL);
  CHECK(qp_scheme_bits("tcq-2.75") == 2.75);
  CHECK(qp_scheme_bits("tcq-9") == 0.0 && qp_scheme_bits("") == 0.0 && qp_scheme_bits(NULL) == 0.0);
}

/* Sums in double of the rows that the library says it multiplies by. Inputs are rounded to multiples of a 127th of the
 * largest, about three times their root mean square: an error of 3/127/√12 = 0.007 of |x| in a random direction, which
 * changes a sum by about 0.007 · |x| · |row| / √n. Six times that is allowed. */
static void products(void) {
  static const char* const names[] = {"nuq-3", "vq-2.5", "tcq-2.25", "tcx-2", "fp16"};
  static float bias[kOut];
  static float x[kBatch * kIn];
  static float y[kBatch * kOut];
  static float w[kWeights];
  fixture f;
  size_t s;
  fixture_open(&f, NULL, 0, 0);
  fill_tensor(bias, kOut, 5);
  fill_tensor(x, kBatch * kIn, 6);
  for (s = 0; s < sizeof(names) / sizeof(names[0]); ++s) {
    qp_matrix* matrix = quantized(f.context, names[s], bias, 1);
    int32_t b;
    int32_t r;
    int32_t i;
    ACCEPTED(qp_matrix_dequantize(matrix, 0, kOut, w, err));
    ACCEPTED(qp_linear(matrix, x, kBatch, y, KVQ_F32, err));
    for (b = 0; b < kBatch; ++b) {
      for (r = 0; r < kOut; ++r) {
        double sum = (double)bias[r];
        double row = 0.0;
        double input = 0.0;
        for (i = 0; i < kIn; ++i) {
          const double weight = (double)w[r * kIn + i];
          const double value = (double)x[b * kIn + i];
          sum += weight * value;
          row += weight * weight;
          input += value * value;
        }
        CHECK(fabs(sum - (double)y[b * kOut + r]) <= 0.042 * sqrt(row * input / (double)kIn));
      }
    }
    qp_matrix_destroy(matrix);
  }
  fixture_close(&f);
}

static void shared_products(void) {
  static float x[kBatch * kIn];
  static float together[3][kBatch * kOut];
  static float alone[kBatch * kOut];
  const qp_matrix* matrices[3];
  void* y[3];
  fixture f;
  qp_matrix* other_seed;
  int i;
  fixture_open(&f, NULL, 0, 0);
  fill_tensor(x, kBatch * kIn, 7);
  matrices[0] = quantized(f.context, "fp16", NULL, 1); /* the matrix that does not rotate comes first */
  matrices[1] = quantized(f.context, "nuq-2", NULL, 1);
  matrices[2] = quantized(f.context, "tcq-2.75", NULL, 1);
  for (i = 0; i < 3; ++i) y[i] = together[i];
  ACCEPTED(qp_linear_shared(matrices, 3, x, kBatch, y, KVQ_F32, err));
  for (i = 0; i < 3; ++i) {
    ACCEPTED(qp_linear(matrices[i], x, kBatch, alone, KVQ_F32, err));
    CHECK(memcmp(alone, together[i], sizeof(alone)) == 0);
  }
  for (i = 0; i < kBatch; ++i) { /* and one row at a time */
    ACCEPTED(qp_linear(matrices[2], x + i * kIn, 1, alone, KVQ_F32, err));
    CHECK(memcmp(alone, together[2] + i * kOut, kOut * sizeof(float)) == 0);
  }
  other_seed = quantized(f.context, "nuq-2", NULL, 2);
  qp_matrix_destroy((qp_matrix*)matrices[1]);
  matrices[1] = other_seed;
  REFUSED(KVQ_E_MISMATCH, "matrices[2]", qp_linear_shared(matrices, 3, x, kBatch, y, KVQ_F32, err));
  ALSO_MENTIONS("seed");
  for (i = 0; i < 3; ++i) qp_matrix_destroy((qp_matrix*)matrices[i]);
  fixture_close(&f);
}

/* A CPU has nothing to tune; arguments are checked first. */
static void tuning(void) {
  const qp_matrix* matrices[2];
  char text[4];
  size_t size = 7;
  fixture f;
  fixture_open(&f, NULL, 0, 0);
  matrices[0] = quantized(f.context, "nuq-2", NULL, 1);
  matrices[1] = NULL;
  REFUSED(KVQ_E_ARGUMENT, "matrices", qp_tune(NULL, 1, 1, err));
  REFUSED(KVQ_E_ARGUMENT, "n is 0", qp_tune(matrices, 0, 1, err));
  REFUSED(KVQ_E_ARGUMENT, "matrices[1]", qp_tune(matrices, 2, 1, err));
  REFUSED(KVQ_E_ARGUMENT, "batch is 0", qp_tune(matrices, 1, 0, err));
  REFUSED(KVQ_E_UNSUPPORTED, "CPU", qp_tune(matrices, 1, 1, err));
  REFUSED(KVQ_E_ARGUMENT, "context", qp_tuning_save(NULL, text, 4, &size, err));
  REFUSED(KVQ_E_ARGUMENT, "size", qp_tuning_save(f.context, text, 4, NULL, err));
  REFUSED(KVQ_E_UNSUPPORTED, "CPU", qp_tuning_save(f.context, text, 4, &size, err));
  CHECK(size == 7);
  REFUSED(KVQ_E_ARGUMENT, "context", qp_tuning_load(NULL, "", 0, err));
  REFUSED(KVQ_E_ARGUMENT, "text", qp_tuning_load(f.context, NULL, 0, err));
  REFUSED(KVQ_E_UNSUPPORTED, "CPU", qp_tuning_load(f.context, "", 0, err));
  qp_matrix_destroy((qp_matrix*)matrices[0]);
  fixture_close(&f);
}

static void files(void) {
  static const char* const names[] = {"nuq-5", "vq-1.5", "tcq-4.75", "tcx-4.5", "fp16"};
  static float bias[kOut];
  fixture f;
  size_t s;
  fixture_open(&f, NULL, 0, 0);
  fill_tensor(bias, kOut, 8);
  for (s = 0; s < sizeof(names) / sizeof(names[0]); ++s) {
    qp_matrix* matrix = quantized(f.context, names[s], s % 2 == 0 ? bias : NULL, 1);
    blob file = file_of(matrix, "layer.q");
    blob again;
    qp_matrix* loaded = NULL;
    qp_matrix_info before;
    qp_matrix_info after;
    before.struct_size = sizeof(before);
    after.struct_size = sizeof(after);
    ACCEPTED(qp_matrix_load(f.context, file.data, file.size, "layer.q", &loaded, err));
    again = file_of(loaded, "layer.q");
    CHECK(same_blobs(&file, &again));
    ACCEPTED(qp_matrix_describe(matrix, &before, err));
    ACCEPTED(qp_matrix_describe(loaded, &after, err));
    CHECK(strcmp(before.scheme, names[s]) == 0 && before.scheme == after.scheme);
    CHECK(before.rows == kOut && after.rows == kOut && before.columns == kIn && after.columns == kIn);
    CHECK(before.bytes == after.bytes && before.error == after.error && before.bits == after.bits);
    CHECK(before.has_bias == (s % 2 == 0) && after.has_bias == before.has_bias);
    CHECK(before.bits >= qp_scheme_bits(names[s]));
    qp_matrix_destroy(loaded);
    REFUSED(KVQ_E_ARGUMENT, "layer.k", qp_matrix_load(f.context, file.data, file.size, "layer.k", &loaded, err));
    CHECK(loaded == NULL);
    REFUSED(KVQ_E_FORMAT, NULL, qp_matrix_load(f.context, file.data, file.size - 1, "layer.q", &loaded, err));
    REFUSED(KVQ_E_BUFFER_SIZE, "capacity",
            qp_matrix_save((const qp_matrix* const*)&matrix, &names[0], 1, again.data, 10, &again.size, err));
    blob_free(&again);
    qp_matrix_destroy(matrix);
    ACCEPTED(qp_matrix_load(f.context, file.data, file.size, "layer.q", &loaded, err));
    qp_matrix_destroy(loaded);
    blob_free(&file);
  }
  fixture_close(&f);
}

static void several_in_a_file(void) {
  fixture f;
  const qp_matrix* matrices[2];
  const char* names[2] = {"a", "b"};
  size_t size = 0;
  blob file = {NULL, 0};
  qp_matrix* loaded = NULL;
  qp_matrix_info info;
  info.struct_size = sizeof(info);
  fixture_open(&f, NULL, 0, 0);
  matrices[0] = quantized(f.context, "nuq-2", NULL, 1);
  matrices[1] = quantized(f.context, "vq-3", NULL, 1);
  ACCEPTED(qp_matrix_save(matrices, names, 2, NULL, 0, &size, err));
  file.data = (unsigned char*)malloc(size);
  file.size = size;
  ACCEPTED(qp_matrix_save(matrices, names, 2, file.data, size, &size, err));
  ACCEPTED(qp_matrix_load(f.context, file.data, file.size, "b", &loaded, err));
  ACCEPTED(qp_matrix_describe(loaded, &info, err));
  CHECK(strcmp(info.scheme, "vq-3") == 0);
  names[1] = "";
  REFUSED(KVQ_E_ARGUMENT, "name", qp_matrix_save(matrices, names, 2, NULL, 0, &size, err));
  names[1] = "a";
  REFUSED(KVQ_E_ARGUMENT, "twice", qp_matrix_save(matrices, names, 2, NULL, 0, &size, err));
  blob_free(&file);
  qp_matrix_destroy(loaded);
  qp_matrix_destroy((qp_matrix*)matrices[0]);
  qp_matrix_destroy((qp_matrix*)matrices[1]);
  fixture_close(&f);
}

static void refused_arguments(void) {
  static float w[kWeights];
  static float x[kIn];
  static float y[kOut];
  fixture f;
  qp_quantize_options options;
  qp_matrix* matrix = NULL;
  qp_matrix* made;
  float* numbers = w;
  fixture_open(&f, NULL, 0, 0);
  fill_tensor(w, kWeights, 3);
  fill_tensor(x, kIn, 4);
  options = options_for("nuq-4");
  REFUSED(KVQ_E_ARGUMENT, "context", qp_quantize(NULL, &options, w, kOut, kIn, &matrix, err));
  REFUSED(KVQ_E_ARGUMENT, "options", qp_quantize(f.context, NULL, w, kOut, kIn, &matrix, err));
  REFUSED(KVQ_E_ARGUMENT, "w", qp_quantize(f.context, &options, NULL, kOut, kIn, &matrix, err));
  REFUSED(KVQ_E_ARGUMENT, "result", qp_quantize(f.context, &options, w, kOut, kIn, NULL, err));
  matrix = (qp_matrix*)(void*)&unused_place;
  REFUSED(KVQ_E_ARGUMENT, "rows is 0", qp_quantize(f.context, &options, w, 0, kIn, &matrix, err));
  CHECK(matrix == NULL);
  REFUSED(KVQ_E_ARGUMENT, "columns is 100", qp_quantize(f.context, &options, w, kOut, 100, &matrix, err));
  REFUSED(KVQ_E_ARGUMENT, "columns is 0", qp_quantize(f.context, &options, w, kOut, 0, &matrix, err));
  options.struct_size = 8;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", qp_quantize(f.context, &options, w, kOut, kIn, &matrix, err));
  options = options_for("tcq-7");
  REFUSED(KVQ_E_ARGUMENT, "tcq-7", qp_quantize(f.context, &options, w, kOut, kIn, &matrix, err));
  options = options_for(NULL);
  REFUSED(KVQ_E_ARGUMENT, "scheme", qp_quantize(f.context, &options, w, kOut, kIn, &matrix, err));
  options = options_for("nuq-4");
  options.dtype = 17;
  REFUSED(KVQ_E_ARGUMENT, "dtype is 17", qp_quantize(f.context, &options, w, kOut, kIn, &matrix, err));
  options = options_for("nuq-4");
  options.damping = -0.5;
  REFUSED(KVQ_E_ARGUMENT, "damping is -0.5", qp_quantize(f.context, &options, w, kOut, kIn, &matrix, err));
  options = options_for("nuq-4");
  options.rounding = 2;
  REFUSED(KVQ_E_ARGUMENT, "rounding is 2", qp_quantize(f.context, &options, w, kOut, kIn, &matrix, err));
  options = options_for("nuq-4");
  options.reserved = 3;
  REFUSED(KVQ_E_ARGUMENT, "reserved is 3", qp_quantize(f.context, &options, w, kOut, kIn, &matrix, err));
  options = options_for("nuq-4");
  w[kIn + 1] = NAN;
  REFUSED(KVQ_E_ARGUMENT, "w[1, 1]", qp_quantize(f.context, &options, w, kOut, kIn, &matrix, err));
  w[kIn + 1] = 0.0F;
  numbers[0] = INFINITY;
  options.bias = numbers;
  REFUSED(KVQ_E_ARGUMENT, "finite", qp_quantize(f.context, &options, w, kOut, kIn, &matrix, err));
  fill_tensor(w, kWeights, 3);

  made = quantized(f.context, "nuq-4", NULL, 1);
  REFUSED(KVQ_E_ARGUMENT, "matrix", qp_linear(NULL, x, 1, y, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "x", qp_linear(made, NULL, 1, y, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "y", qp_linear(made, x, 1, NULL, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "batch is 0", qp_linear(made, x, 0, y, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "dtype is 9", qp_linear(made, x, 1, y, 9, err));
  REFUSED(KVQ_E_ARGUMENT, "first_row", qp_matrix_dequantize(made, kOut + 1, 0, w, err));
  REFUSED(KVQ_E_ARGUMENT, "rows is 3", qp_matrix_dequantize(made, kOut - 2, 3, w, err));
  REFUSED(KVQ_E_ARGUMENT, "w", qp_matrix_dequantize(made, 0, 1, NULL, err));
  qp_matrix_destroy(made);
  qp_matrix_destroy(NULL);
  fixture_close(&f);
}

static void half_precision_products(void) {
  static float x[kIn];
  static float y[kOut];
  uint16_t x_half[kIn];
  uint16_t y_half[kOut];
  fixture f;
  qp_matrix* matrix;
  int i;
  fixture_open(&f, NULL, 0, 0);
  matrix = quantized(f.context, "tcq-3", NULL, 1);
  fill_tensor(x, kIn, 9);
  for (i = 0; i < kIn; ++i) { /* numbers that bfloat16 holds exactly */
    uint32_t bits;
    memcpy(&bits, &x[i], sizeof(bits));
    bits &= 0xFFFF0000u;
    memcpy(&x[i], &bits, sizeof(bits));
    x_half[i] = (uint16_t)(bits >> 16);
  }
  ACCEPTED(qp_linear(matrix, x, 1, y, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "y[0]", qp_linear(matrix, x, 1, x, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "overlaps x", qp_linear(matrix, x, 1, x + kIn - 1, KVQ_F32, err));
  ACCEPTED(qp_linear(matrix, x_half, 1, y_half, KVQ_BF16, err));
  for (i = 0; i < kOut; ++i) {
    const uint32_t bits = (uint32_t)y_half[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    CHECK(fabs((double)value - (double)y[i]) <= fabs((double)y[i]) / 256.0);
  }
  x[3] = NAN;
  ACCEPTED(qp_linear(matrix, x, 1, y, KVQ_F32, err));
  for (i = 0; i < kOut; ++i) CHECK(isnan(y[i]));
  qp_matrix_destroy(matrix);
  fixture_close(&f);
}

static void failing_allocations(void) {
  static float w[kWeights];
  static float hessian[kIn * kIn];
  static float x[kIn];
  static float y[kOut];
  fixture f;
  qp_quantize_options options = options_for("vq-2");
  qp_matrix* matrix = NULL;
  const qp_matrix* saved;
  const char* name = "m";
  qp_matrix* loaded = NULL;
  blob file;
  int i;
  size_t size = 0;
  fixture_open(&f, NULL, 0, 0);
  fill_tensor(w, kWeights, 3);
  fill_tensor(x, kIn, 4);
  for (i = 0; i < kIn; ++i) hessian[i * kIn + i] = 1.0F;
  options.hessian = hessian;
  FAIL_EACH_ALLOCATION(&f.memory, qp_quantize(f.context, &options, w, kOut, kIn, &matrix, err));
  file = file_of(matrix, name);
  saved = matrix;
  FAIL_EACH_ALLOCATION(&f.memory, qp_matrix_save(&saved, &name, 1, NULL, 0, &size, err));
  FAIL_EACH_ALLOCATION(&f.memory, qp_matrix_load(f.context, file.data, file.size, name, &loaded, err));
  ACCEPTED(qp_linear(loaded, x, 1, y, KVQ_F32, err));
  { /* nothing is allocated once a call of this size has been made */
    const size_t before = f.memory.n_allocations;
    ACCEPTED(qp_linear(loaded, x, 1, y, KVQ_F32, err));
    CHECK(f.memory.n_allocations == before);
  }
  qp_matrix_destroy(loaded);
  qp_matrix_destroy(matrix);
  blob_free(&file);
  fixture_close(&f);
}

static void cancelled(void) {
  static float w[kWeights];
  fixture f;
  progress_reports reports;
  qp_quantize_options options = options_for("nuq-2");
  qp_matrix* matrix = NULL;
  memset(&reports, 0, sizeof(reports));
  fill_tensor(w, kWeights, 3);
  fixture_open(&f, NULL, 0, 0);
  options.progress = on_progress;
  options.progress_user = &reports;
  reports.stop_at = 1;
  CHECK(qp_quantize(f.context, &options, w, kOut, kIn, &matrix, NULL) == KVQ_E_CANCELLED && matrix == NULL);
  memset(&reports, 0, sizeof(reports));
  ACCEPTED(qp_quantize(f.context, &options, w, kOut, kIn, &matrix, err));
  CHECK(reports.n >= 2 && reports.n_wrong == 0 && reports.last == 1.0);
  qp_matrix_destroy(matrix);
  fixture_close(&f);
}

/* `user` receives the largest share of the work between two reports. */
static int32_t note_largest_step(void* user, double done) {
  double* const at = (double*)user; /* of the last report, largest step */
  if (done - at[0] > at[1]) at[1] = done - at[0];
  at[0] = done;
  return 0;
}

/* Work between two reports does not grow with a row, the Hessian or the matrix. */
static void reports_between(const char* scheme, int32_t rows, int32_t columns, int has_hessian) {
  const size_t n = (size_t)rows * (size_t)columns;
  const size_t squares = (size_t)columns * (size_t)columns;
  float* const w = (float*)malloc(n * sizeof(float));
  float* const hessian = (float*)calloc(squares, sizeof(float));
  double steps[2] = {0.0, 0.0};
  qp_quantize_options options = options_for(scheme);
  qp_matrix* matrix = NULL;
  fixture f;
  size_t i;
  fill_tensor(w, n, 3);
  for (i = 0; i < squares; i += (size_t)columns + 1) hessian[i] = 1.0f + (float)(i % 7);
  fixture_open(&f, NULL, 0, 0);
  if (has_hessian) options.hessian = hessian;
  options.progress = note_largest_step;
  options.progress_user = steps;
  ACCEPTED(qp_quantize(f.context, &options, w, rows, columns, &matrix, err));
  CHECK(steps[0] == 1.0);
  CHECK(steps[1] < 0.25);
  qp_matrix_destroy(matrix);
  fixture_close(&f);
  free(hessian);
  free(w);
}

void test_matrix(void) {
  schemes();
  products();
  shared_products();
  tuning();
  files();
  several_in_a_file();
  refused_arguments();
  half_precision_products();
  failing_allocations();
  cancelled();
  reports_between("tcq-3", 16, 1024, 0);
  reports_between("tcx-2.5", 5, 512, 0);
  reports_between("nuq-4", 16, 1024, 1);
  reports_between("fp16", 1024, 4096, 0);
}
