/* Frame of the snippets that readme.sh extracts to attend.inc and linear.inc. Valid as C and as C++,
 * like the snippets. Compares their results with the definitions of attention and of a product in double. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvq.h>

enum { Q_HEADS = 32, KV_HEADS = 8, HEAD_DIM = 128, TOKENS = 100, ROWS = 64, COLUMNS = 256, BATCH = 3 };

/* Sums of four numbers in [-0.5, 0.5), scaled to a variance of one. */
static float normal_number(uint32_t* state) {
  double sum = 0.0;
  for (int i = 0; i < 4; ++i) {
    *state = *state * 1664525u + 1013904223u;
    sum += (double)(*state >> 8) / 16777216.0 - 0.5;
  }
  return (float)(sum * sqrt(3.0));
}

static float of_bf16(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

static void fill_bf16(uint16_t* x, int n, uint32_t* state) {
  for (int i = 0; i < n; ++i) {
    const float value = normal_number(state);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    x[i] = (uint16_t)(bits >> 16);
  }
}

static int failed(const char* what, double difference, double norm, double limit) {
  const double error = sqrt(difference / norm);
  printf("%s: relative error %.3f, limit %.2f\n", what, error, limit);
  return !(error < limit); /* also refuses NaN */
}

/* Rotate channels (j, j + HEAD_DIM / 2) by position · 500000^(-2j / HEAD_DIM). */
static void rotate(const uint16_t* from, int position, double* to) {
  for (int j = 0; j < HEAD_DIM / 2; ++j) {
    const double angle = position * pow(500000.0, -2.0 * j / HEAD_DIM);
    const double a = of_bf16(from[j]), b = of_bf16(from[j + HEAD_DIM / 2]);
    to[j] = a * cos(angle) - b * sin(angle);
    to[j + HEAD_DIM / 2] = a * sin(angle) + b * cos(angle);
  }
}

/* Causal attention of one query head. */
static void attention(const uint16_t* q, const uint16_t* k, const uint16_t* v, int token, int head, double* result) {
  double query[HEAD_DIM], key[HEAD_DIM], sum = 0.0;
  const int kv_head = head / (Q_HEADS / KV_HEADS);
  rotate(q + (token * Q_HEADS + head) * HEAD_DIM, token, query);
  for (int c = 0; c < HEAD_DIM; ++c) result[c] = 0.0;
  for (int t = 0; t <= token; ++t) {
    const int row = (t * KV_HEADS + kv_head) * HEAD_DIM;
    double logit = 0.0;
    rotate(k + row, t, key);
    for (int c = 0; c < HEAD_DIM; ++c) logit += query[c] * key[c];
    const double weight = exp(logit / sqrt((double)HEAD_DIM));
    for (int c = 0; c < HEAD_DIM; ++c) result[c] += weight * of_bf16(v[row + c]);
    sum += weight;
  }
  for (int c = 0; c < HEAD_DIM; ++c) result[c] /= sum;
}

static int check_linear(kvq_context* context) {
  static float w[ROWS * COLUMNS], x[BATCH * COLUMNS], y[BATCH * ROWS];
  const int64_t rows = ROWS, columns = COLUMNS;
  const int32_t batch = BATCH;
  uint32_t state = 2;
  for (int i = 0; i < ROWS * COLUMNS; ++i) w[i] = normal_number(&state);
  for (int i = 0; i < BATCH * COLUMNS; ++i) x[i] = normal_number(&state);
  kvq_error error;
  kvq_error_init(&error, sizeof(error));
#include "linear.inc"
  if (error.code != KVQ_OK) printf("linear layer: %s\n", error.message);
  double difference = 0.0, norm = 0.0;
  for (int i = 0; i < BATCH * ROWS; ++i) {
    double expected = 0.0;
    for (int c = 0; c < COLUMNS; ++c) expected += (double)x[i / ROWS * COLUMNS + c] * w[i % ROWS * COLUMNS + c];
    difference += (y[i] - expected) * (y[i] - expected);
    norm += expected * expected;
  }
  qp_matrix_destroy(matrix);
  return failed("linear layer of 3 bits", difference, norm, 0.2); /* the smallest possible: 2^-3 */
}

int main(void) {
  static uint16_t q[TOKENS * Q_HEADS * HEAD_DIM], k[TOKENS * KV_HEADS * HEAD_DIM], v[TOKENS * KV_HEADS * HEAD_DIM];
  static uint16_t output[TOKENS * Q_HEADS * HEAD_DIM];
  const int32_t layer = 31, n_tokens = TOKENS;
  uint32_t state = 1;
  fill_bf16(q, TOKENS * Q_HEADS * HEAD_DIM, &state);
  fill_bf16(k, TOKENS * KV_HEADS * HEAD_DIM, &state);
  fill_bf16(v, TOKENS * KV_HEADS * HEAD_DIM, &state);
#include "attend.inc"
  if (error.code != KVQ_OK) printf("attention: %s\n", error.message);
  double difference = 0.0, norm = 0.0;
  for (int row = 0; row < TOKENS * Q_HEADS; ++row) {
    double expected[HEAD_DIM];
    attention(q, k, v, row / Q_HEADS, row % Q_HEADS, expected);
    for (int c = 0; c < HEAD_DIM; ++c) {
      const double gap = of_bf16(output[row * HEAD_DIM + c]) - expected[c];
      difference += gap * gap;
      norm += expected[c] * expected[c];
    }
  }
  const int wrong = failed("attention in 4 bits", difference, norm, 0.2) + check_linear(context);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_policy_destroy(policy);
  kvq_context_destroy(context);
  return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
