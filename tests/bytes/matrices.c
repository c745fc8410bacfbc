#include "bytes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { kRows = 19, kColumns = 320, kMostInputs = 17 };

static float weights[kRows * kColumns];
static float bias[kRows];
static float x[kMostInputs * kColumns];

static blob saved(const qp_matrix* matrix) {
  static const char* const kName[] = {"m"};
  blob file;
  ACCEPTED(qp_matrix_save(&matrix, kName, 1, NULL, 0, &file.size, err));
  file.data = malloc(file.size);
  ACCEPTED(qp_matrix_save(&matrix, kName, 1, file.data, file.size, &file.size, err));
  return file;
}

static qp_matrix* quantized(kvq_context* context, const char* scheme, const float* hessian) {
  qp_quantize_options options;
  qp_matrix* matrix = NULL;
  qp_quantize_options_init(&options, sizeof options);
  options.scheme = scheme;
  options.bias = bias;
  options.hessian = hessian;
  ACCEPTED(qp_quantize(context, &options, weights, kRows, kColumns, &matrix, err));
  return matrix;
}

/* FMA rounds sums of products with weights in FP16 otherwise. */
static void check_near(const qp_matrix* matrix, const float* y, int batch) {
  static float w[kRows * kColumns];
  int b, r, c;
  ACCEPTED(qp_matrix_dequantize(matrix, 0, kRows, w, err));
  for (b = 0; b < batch; ++b) {
    for (r = 0; r < kRows; ++r) {
      double sum = (double)bias[r];
      double size = fabs(sum);
      for (c = 0; c < kColumns; ++c) {
        const double product = (double)w[r * kColumns + c] * (double)x[b * kColumns + c];
        sum += product;
        size += fabs(product);
      }
      CHECK(fabs((double)y[b * kRows + r] - sum) <= 1e-6 * size);
    }
  }
}

static void record_products(const qp_matrix* matrix, const char* scheme) {
  static const int kBatches[] = {1, 3, kMostInputs}; /* which take different kernels */
  static float y[kMostInputs * kRows];
  size_t i;
  for (i = 0; i < sizeof kBatches / sizeof kBatches[0]; ++i) {
    const int batch = kBatches[i];
    char what[40];
    ACCEPTED(qp_linear(matrix, x, batch, y, KVQ_F32, err));
    if (strcmp(scheme, "fp16") == 0) {
      check_near(matrix, y, batch);
      continue;
    }
    snprintf(what, sizeof what, "products of %d rows", batch);
    record(what, scheme, y, (size_t)batch * kRows * sizeof y[0]);
  }
}

/* The mean of x x^T over many rows, which keep their large channels. */
static void fill_hessian(float* hessian) {
  int a, b, row;
  for (a = 0; a < kColumns; ++a) {
    for (b = 0; b < kColumns; ++b) {
      double sum = a == b ? 4.0 : 0.0;
      for (row = 0; row < kMostInputs; ++row) sum += (double)x[row * kColumns + a] * (double)x[row * kColumns + b];
      hessian[a * kColumns + b] = (float)(sum / kMostInputs);
    }
  }
}

static void record_with_hessian(kvq_context* context) {
  static const char* const kSchemes[] = {"nuq-3", "vq-2.5"};
  static float hessian[kColumns * kColumns];
  size_t i;
  fill_hessian(hessian);
  for (i = 0; i < sizeof kSchemes / sizeof kSchemes[0]; ++i) {
    qp_matrix* matrix = quantized(context, kSchemes[i], hessian);
    blob file = saved(matrix);
    record("matrix with a Hessian", kSchemes[i], file.data, file.size);
    blob_free(&file);
    qp_matrix_destroy(matrix);
  }
}

void record_matrices(kvq_context* context, blob* files) {
  int32_t i;
  fill_exactly(weights, kRows * kColumns, kColumns, 70);
  fill_exactly(bias, kRows, kRows, 71);
  fill_exactly(x, kMostInputs * kColumns, kColumns, 72);
  for (i = 0; i < qp_scheme_count(); ++i) {
    const char* scheme = qp_scheme_name(i);
    qp_matrix* matrix = NULL;
    blob file;
    if (files[i].data == NULL) { /* takes longest, and does not know of instruction sets */
      matrix = quantized(context, scheme, NULL);
      files[i] = saved(matrix);
      qp_matrix_destroy(matrix);
    }
    ACCEPTED(qp_matrix_load(context, files[i].data, files[i].size, "m", &matrix, err));
    file = saved(matrix);
    record("matrix", scheme, file.data, file.size);
    record_products(matrix, scheme);
    blob_free(&file);
    qp_matrix_destroy(matrix);
  }
  record_with_hessian(context);
}
