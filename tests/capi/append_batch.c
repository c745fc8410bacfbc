/* kvq_append_sequences: every argument, and a batch that is refused for one sequence appends to none. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <math.h>
#include <string.h>

enum { kSequences = 3, kMostTokens = 120 };

static fixture f;
static kvq_sequence* sequences[kSequences]; /* sequences of 40, 5 and 31 tokens */
static saved_state before[kSequences];
static float k[kMostTokens * kTokenScalars];
static float v[kMostTokens * kTokenScalars];

static kvq_append_batch all_sequences(void) {
  kvq_append_batch batch;
  kvq_append_batch_init(&batch, sizeof(batch));
  batch.n_sequences = kSequences;
  batch.sequences = sequences;
  batch.k = k;
  batch.v = v;
  return batch;
}

static void check_unchanged(void) {
  int i;
  for (i = 0; i < kSequences; ++i) CHECK(state_is(f.cache, sequences[i], &before[i]));
}

static void refuse(const kvq_append_batch* batch, int32_t layer, const char* mention) {
  REFUSED(KVQ_E_ARGUMENT, mention, kvq_append_sequences(f.cache, layer, batch, err));
  check_unchanged();
}

static void defaults(void) {
  kvq_append_batch batch;
  memset(&batch, 0x77, sizeof batch);
  kvq_append_batch_init(&batch, sizeof(batch));
  CHECK(batch.struct_size == sizeof batch);
  CHECK(batch.n_sequences == 0 && batch.sequences == NULL && batch.token_counts == NULL && batch.positions == NULL);
  CHECK(batch.k == NULL && batch.v == NULL && batch.dtype == KVQ_F32 && batch.reserved == 0);
  CHECK(batch.k_token_stride == 0 && batch.k_head_stride == 0 && batch.v_token_stride == 0 && batch.v_head_stride == 0);
  kvq_append_batch_init(NULL, 0);
}

static void bad_batches(void) {
  const int32_t counts[kSequences] = {1, 0, 1};
  const int32_t negative[kSequences] = {1, 1, -8};
  const int32_t too_many[kSequences] = {INT32_MAX - 100, INT32_MAX - 100, 1};
  kvq_sequence* others[kSequences];
  fixture other;
  kvq_append_batch batch = all_sequences();
  REFUSED(KVQ_E_ARGUMENT, "cache", kvq_append_sequences(NULL, 0, &batch, err));
  refuse(NULL, 0, "batch");
  refuse(&batch, -1, "layer");
  refuse(&batch, kLayers, "layer");
#define BAD(change, mention) batch = all_sequences(), change, refuse(&batch, 0, mention)
  BAD(batch.struct_size = 0, "struct_size");
  BAD(batch.struct_size = sizeof batch - 8, "struct_size");
  BAD(batch.n_sequences = 0, "n_sequences");
  BAD(batch.n_sequences = -2, "n_sequences");
  BAD(batch.sequences = NULL, "sequences");
  BAD(batch.k = NULL, "batch->k");
  BAD(batch.v = NULL, "batch->v");
  BAD(batch.dtype = 3, "dtype");
  BAD(batch.dtype = -1, "dtype");
  BAD(batch.reserved = 1, "reserved");
  BAD(batch.token_counts = counts, "token_counts[1]");
  BAD(batch.token_counts = negative, "token_counts[2]");
  ALSO_MENTIONS("-8");
  BAD(batch.token_counts = too_many, "token_counts");
  BAD(batch.k_token_stride = -1, "k_token_stride");
  BAD(batch.k_head_stride = -1, "k_head_stride");
  BAD(batch.v_token_stride = -1, "v_token_stride");
  BAD(batch.v_head_stride = INT64_MIN, "v_head_stride");
  BAD(batch.k_token_stride = INT64_MAX / 8, "k_token_stride");
  BAD(batch.v_head_stride = INT64_MAX / 4, "v_head_stride");

  memcpy(others, sequences, sizeof others);
  batch = all_sequences(), batch.sequences = others;
  others[2] = NULL, refuse(&batch, 0, "sequences[2]");
  others[2] = sequences[0], refuse(&batch, 0, "sequences[2]");
  ALSO_MENTIONS("sequences[0]");
  fixture_open(&other, "int4", 0, 0);
  others[2] = new_sequence(other.cache);
  refuse(&batch, 0, "sequences[2]");
  kvq_sequence_destroy(others[2]);
  fixture_close(&other);
#undef BAD
}

/* Bad positions of the second and of the last sequence; appending to the first would succeed each time. */
static void bad_positions(void) {
  const int32_t counts[kSequences] = {2, 3, 1};
  const int32_t cases[][6] = {{40, 41, 5, 7, 7, 31}, {40, 41, 5, 7, 6, 31}, {40, 41, 4, 7, 8, 31},
                              {40, 41, 5, 7, 8, 30}, {40, 41, 5, 7, 8, -1}, {39, 41, 5, 7, 8, 31}};
  const char* mentions[] = {"positions[4]", "positions[4]", "positions[2]",
                            "positions[5]", "positions[5]", "positions[0]"};
  kvq_append_batch batch = all_sequences();
  size_t i;
  batch.token_counts = counts;
  for (i = 0; i < sizeof cases / sizeof cases[0]; ++i) batch.positions = cases[i], refuse(&batch, 0, mentions[i]);
}

/* A number that FP16 cannot hold, in any sequence's part, also after pages have been sealed or allocated. */
static void values_that_fp16_cannot_hold(void) {
  const int32_t counts[kSequences] = {30, 20, 70};
  const size_t tokens[] = {0, 29, 30, 49, 50, 119};
  kvq_append_batch batch = all_sequences();
  size_t i;
  batch.token_counts = counts;
  for (i = 0; i < 2 * sizeof tokens / sizeof tokens[0]; ++i) {
    float* const scalar = (i % 2 == 0 ? k : v) + tokens[i / 2] * kTokenScalars + 7;
    const float good = *scalar;
    char mention[32] = "k of token ";
    char digits[4] = {(char)('0' + tokens[i / 2] / 100), (char)('0' + tokens[i / 2] / 10 % 10),
                      (char)('0' + tokens[i / 2] % 10), 0};
    const char* number = digits;
    mention[0] = i % 2 == 0 ? 'k' : 'v';
    while (number[0] == '0' && number[1] != 0) ++number;
    strcat(mention, number);
    *scalar = (float)NAN;
    refuse(&batch, 0, mention);
    *scalar = good;
  }
}

static void limits(void) {
  fixture limited;
  kvq_sequence* own[2];
  const int32_t counts[2] = {10, 100};
  saved_state states[2];
  kvq_append_batch batch = all_sequences();
  fixture_open(&limited, "fp16", 0, 24000);
  own[0] = new_sequence(limited.cache);
  own[1] = new_sequence(limited.cache);
  states[0] = take_state(limited.cache, own[0]);
  states[1] = take_state(limited.cache, own[1]);
  batch.n_sequences = 2;
  batch.sequences = own;
  batch.token_counts = counts;
  REFUSED(KVQ_E_LIMIT, NULL, kvq_append_sequences(limited.cache, 0, &batch, err));
  CHECK(state_is(limited.cache, own[0], &states[0]));
  CHECK(state_is(limited.cache, own[1], &states[1]));
  batch.token_counts = NULL;
  ACCEPTED(kvq_append_sequences(limited.cache, 0, &batch, err));
  CHECK(length_of(own[0], 0) == 1 && length_of(own[1], 0) == 1);
  state_free(&states[0]);
  state_free(&states[1]);
  kvq_sequence_destroy(own[0]);
  kvq_sequence_destroy(own[1]);
  fixture_close(&limited);
}

static void lengths_after(void) {
  const int32_t counts[kSequences] = {30, 20, 70};
  const int32_t lengths[kSequences] = {70, 25, 101};
  kvq_append_batch batch = all_sequences();
  int i;
  batch.token_counts = counts;
  ACCEPTED(kvq_append_sequences(f.cache, 0, &batch, err));
  for (i = 0; i < kSequences; ++i) CHECK(length_of(sequences[i], 0) == lengths[i]);
  for (i = 0; i < kSequences; ++i) CHECK(length_of(sequences[i], 1) == before[i].lengths[1]);
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
  bad_positions();
  values_that_fp16_cannot_hold();
  lengths_after();
  for (i = 0; i < kSequences; ++i) {
    state_free(&before[i]);
    kvq_sequence_destroy(sequences[i]);
  }
  fixture_close(&f);
}

void test_append_batch(void) {
  fill_tensor(k, kMostTokens * kTokenScalars, 1);
  fill_tensor(v, kMostTokens * kTokenScalars, 2);
  defaults();
  with_policy("int4");
  with_policy("version: 1\nkeys: int8+hadamard\nvalues: int2\nrecent: 2\n");
  limits();
}
