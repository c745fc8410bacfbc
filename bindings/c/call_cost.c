/* Measures the cost of a call: one line, `append NS attend NS`, medians in nanoseconds per call. Other languages have
 * the same program, which shows the overhead of their binding.
 *
 *   cc -O2 call_cost.c $(pkg-config --cflags --libs kvq) -o call_cost && ./call_cost
 */
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kvq.h"

enum { kHeadDim = 8, kCalls = 32, kWarmUp = 200, kBlocks = 2000 };

static kvq_error error;

static void require(kvq_status status) {
  if (status == KVQ_OK) return;
  fprintf(stderr, "%s: %s\n", kvq_status_name(status), error.message);
  exit(1);
}

static double nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double median(double* blocks) {
  qsort(blocks, kBlocks, sizeof(double), compare);
  return (blocks[kBlocks / 2 - 1] + blocks[kBlocks / 2]) / 2.0;
}

int main(void) {
  static double append[kBlocks], attend[kBlocks];
  float k[kHeadDim], v[kHeadDim], q[kHeadDim], out[kHeadDim];
  for (int i = 0; i < kHeadDim; ++i) k[i] = v[i] = q[i] = (float)(i + 1) / kHeadDim;
  kvq_error_init(&error, sizeof(error));
  kvq_context* context = NULL;
  kvq_policy* policy = NULL;
  kvq_cache* cache = NULL;
  kvq_sequence* sequence = NULL;
  kvq_cache_options options;
  kvq_cache_options_init(&options, sizeof(options));
  options.n_layers = 1;
  options.q_heads = 1;
  options.kv_heads = 1;
  options.head_dim = kHeadDim;
  require(kvq_context_create(NULL, &context, &error));
  require(kvq_policy_load(context, "fp16", 4, &policy, &error));
  require(kvq_cache_create(context, &options, policy, &cache, &error));
  require(kvq_sequence_create(cache, &sequence, &error));

  for (int block = -kWarmUp; block < kBlocks; ++block) {
    require(kvq_sequence_truncate(cache, sequence, 0, &error));
    const double begin = nanoseconds();
    for (int i = 0; i < kCalls; ++i) require(kvq_append(cache, sequence, 0, 1, k, v, KVQ_F32, NULL, &error));
    if (block >= 0) append[block] = (nanoseconds() - begin) / kCalls;
  }

  const kvq_sequence* sequences[1] = {sequence};
  kvq_attend_batch batch;
  kvq_attend_batch_init(&batch, sizeof(batch));
  batch.n_sequences = 1;
  batch.sequences = sequences;
  batch.q = q;
  batch.output = out;
  for (int block = -kWarmUp; block < kBlocks; ++block) {
    const double begin = nanoseconds();
    for (int i = 0; i < kCalls; ++i) require(kvq_attend(cache, 0, &batch, &error));
    if (block >= 0) attend[block] = (nanoseconds() - begin) / kCalls;
  }
  printf("append %.0f attend %.0f\n", median(append), median(attend));

  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_policy_destroy(policy);
  kvq_context_destroy(context);
  return 0;
}
