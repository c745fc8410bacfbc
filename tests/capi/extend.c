/* kvq_extend: every argument, and a batch that is refused for one sequence changes none. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <math.h>
#include <string.h>

enum { kSequences = 3, kMostTokens = 120, kQueryScalars = kQHeads * kHeadDim };

static fixture f;
static kvq_sequence* sequences[kSequences]; /* sequences of 40, 5 and 31 tokens */
static saved_state before[kSequences];
static float k[kMostTokens * kTokenScalars];
static float v[kMostTokens * kTokenScalars];
static float q[kMostTokens * kQueryScalars];
static float output[kMostTokens * kQueryScalars];
static float lse[kMostTokens * kQHeads];

static kvq_extend_batch all_sequences(void) {
  kvq_extend_batch batch;
  kvq_extend_batch_init(&batch, sizeof(batch));
  batch.n_sequences = kSequences;
  batch.sequences = sequences;
  batch.k = k;
  batch.v = v;
  batch.q = q;
  batch.output = output;
  return batch;
}

static void refuse(const kvq_extend_batch* batch, int32_t layer, const char* mention) {
  int i;
  REFUSED(KVQ_E_ARGUMENT, mention, kvq_extend(f.cache, layer, batch, err));
  for (i = 0; i < kSequences; ++i) CHECK(state_is(f.cache, sequences[i], &before[i]));
}

static void defaults(void) {
  kvq_extend_batch batch;
  memset(&batch, 0x77, sizeof batch);
  kvq_extend_batch_init(&batch, sizeof(batch));
  CHECK(batch.struct_size == sizeof batch);
  CHECK(batch.n_sequences == 0 && batch.sequences == NULL && batch.token_counts == NULL && batch.positions == NULL);
  CHECK(batch.k == NULL && batch.v == NULL && batch.q == NULL && batch.output == NULL);
  CHECK(batch.dtype == KVQ_F32 && batch.q_dtype == KVQ_F32 && batch.output_dtype == KVQ_F32 && batch.mask == NULL);
  CHECK(batch.sliding_window == 0 && batch.logit_softcap == 0.0F && batch.lse == NULL && batch.sinks == NULL &&
        batch.mask_slots == 0);
  CHECK(batch.k_token_stride == 0 && batch.v_head_stride == 0 && batch.q_token_stride == 0);
  CHECK(batch.output_token_stride == 0 && batch.output_head_stride == 0);
  kvq_extend_batch_init(NULL, 0);
}

static void bad_batches(void) {
  const int32_t counts[kSequences] = {1, 0, 1};
  const int32_t too_many[kSequences] = {INT32_MAX - 100, INT32_MAX - 100, 1};
  const int32_t positions[kSequences] = {40, 4, 31};
  kvq_sequence* others[kSequences];
  kvq_extend_batch batch = all_sequences();
  REFUSED(KVQ_E_ARGUMENT, "cache", kvq_extend(NULL, 0, &batch, err));
  refuse(NULL, 0, "batch");
  refuse(&batch, -1, "layer");
  refuse(&batch, kLayers, "layer");
#define BAD(change, mention) batch = all_sequences(), change, refuse(&batch, 0, mention)
  BAD(batch.struct_size = 0, "struct_size");
  BAD(batch.n_sequences = 0, "n_sequences");
  BAD(batch.sequences = NULL, "sequences");
  BAD(batch.k = NULL, "batch->k");
  BAD(batch.v = NULL, "batch->v");
  BAD(batch.q = NULL, "batch->q");
  BAD(batch.output = NULL, "batch->output");
  BAD(batch.dtype = 3, "dtype");
  BAD(batch.q_dtype = -1, "q_dtype");
  BAD(batch.output_dtype = 3, "output_dtype");
  BAD(batch.sliding_window = -1, "sliding_window");
  BAD(batch.logit_softcap = -1.0F, "logit_softcap");
  BAD(batch.mask_slots = 1, "mask_slots");
  BAD(batch.token_counts = counts, "token_counts[1]");
  BAD(batch.token_counts = too_many, "token_counts");
  BAD(batch.positions = positions, "positions[1]");
  BAD(batch.k_token_stride = -1, "k_token_stride");
  BAD(batch.v_head_stride = -1, "v_head_stride");
  BAD(batch.q_token_stride = -1, "q_token_stride");
  BAD(batch.output_token_stride = 1, "output_token_stride");
  BAD(batch.output = q, "output");
  BAD(batch.lse = output, "lse");
  memcpy(others, sequences, sizeof others);
  batch = all_sequences(), batch.sequences = others;
  others[2] = NULL, refuse(&batch, 0, "sequences[2]");
  others[2] = sequences[0], refuse(&batch, 0, "sequences[2]");
#undef BAD
}

/* A number that FP16 cannot hold, in any sequence's part. */
static void values_that_fp16_cannot_hold(void) {
  const int32_t counts[kSequences] = {30, 20, 70};
  const size_t tokens[] = {0, 29, 30, 49, 50, 119};
  kvq_extend_batch batch = all_sequences();
  size_t i;
  batch.token_counts = counts;
  for (i = 0; i < 2 * sizeof tokens / sizeof tokens[0]; ++i) {
    float* const scalar = (i % 2 == 0 ? k : v) + tokens[i / 2] * kTokenScalars + 7;
    const float good = *scalar;
    *scalar = (float)NAN;
    refuse(&batch, 0, i % 2 == 0 ? "k of token" : "v of token");
    *scalar = good;
  }
}

/* Sinks that attention refuses, after the tokens have been written. */
static void refused_by_attention(void) {
  const int32_t counts[kSequences] = {30, 20, 70};
  const float sinks[kQHeads] = {0.0F, (float)NAN, 0.0F, 0.0F};
  kvq_extend_batch batch = all_sequences();
  batch.sinks = sinks;
  refuse(&batch, 0, "sinks");
  batch.token_counts = counts;
  refuse(&batch, 1, "sinks");
}

static void limits(void) {
  fixture limited;
  kvq_sequence* own[2];
  const int32_t counts[2] = {10, 110};
  saved_state states[2];
  kvq_extend_batch batch = all_sequences();
  fixture_open(&limited, "gs2", 0, 40000);
  own[0] = new_sequence(limited.cache);
  own[1] = new_sequence(limited.cache);
  states[0] = take_state(limited.cache, own[0]);
  states[1] = take_state(limited.cache, own[1]);
  batch.n_sequences = 2;
  batch.sequences = own;
  batch.token_counts = counts;
  REFUSED(KVQ_E_LIMIT, NULL, kvq_extend(limited.cache, 0, &batch, err));
  CHECK(state_is(limited.cache, own[0], &states[0]));
  CHECK(state_is(limited.cache, own[1], &states[1]));
  batch.token_counts = NULL;
  ACCEPTED(kvq_extend(limited.cache, 0, &batch, err));
  CHECK(length_of(own[0], 0) == 1 && length_of(own[1], 0) == 1);
  state_free(&states[0]);
  state_free(&states[1]);
  kvq_sequence_destroy(own[0]);
  kvq_sequence_destroy(own[1]);
  fixture_close(&limited);
}

static void after_refusals(void) {
  const int32_t counts[kSequences] = {30, 20, 70};
  const int32_t lengths[kSequences] = {70, 25, 101};
  kvq_extend_batch batch = all_sequences();
  int i;
  batch.token_counts = counts;
  batch.lse = lse;
  ACCEPTED(kvq_extend(f.cache, 0, &batch, err));
  for (i = 0; i < kSequences; ++i) CHECK(length_of(sequences[i], 0) == lengths[i]);
  for (i = 0; i < kSequences; ++i) CHECK(length_of(sequences[i], 1) == before[i].lengths[1]);
  for (i = 0; i < 120 * kQHeads; ++i) CHECK(isfinite(lse[i]));
}

static void with_policy(const char* policy) {
  const int32_t lengths[kSequences] = {40, 5, 31};
  int i;
  fixture_open(&f, policy, 0, 0);
  for (i = 0; i < kSequences; ++i) {
    sequences[i] = new_sequence(f.cache);
    grow(f.cache, sequences[i], lengths[i]);
    before[i] = take_state(f.cache, sequences[i]);
  }
  bad_batches();
  values_that_fp16_cannot_hold();
  refused_by_attention();
  after_refusals();
  for (i = 0; i < kSequences; ++i) {
    state_free(&before[i]);
    kvq_sequence_destroy(sequences[i]);
  }
  fixture_close(&f);
}

void test_extend(void) {
  fill_tensor(k, kMostTokens * kTokenScalars, 1);
  fill_tensor(v, kMostTokens * kTokenScalars, 2);
  fill_tensor(q, kMostTokens * kQueryScalars, 3);
  defaults();
  with_policy("int4");
  with_policy("version: 1\nkeys: int8+hadamard\nvalues: int2\nrecent: 2\n");
  with_policy("{version: 1, keys: gs2, values: gs2, eviction: {method: h2o, budget: 40}}");
  limits();
}
