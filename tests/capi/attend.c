/* kvq_attend: every argument, and corner cases whose results need no arithmetic. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <math.h>
#include <string.h>

enum { kQueryScalars = kQHeads * kHeadDim, kRows = 50 };

static fixture f;
static kvq_sequence* sequence; /* 40 tokens */
static kvq_sequence* empty;
static float q[kRows * kQueryScalars];
static float out[kRows * kQueryScalars];

static kvq_attend_batch one_query(const kvq_sequence* const* sequences) {
  kvq_attend_batch batch;
  kvq_attend_batch_init(&batch, sizeof(batch));
  batch.n_sequences = 1;
  batch.sequences = sequences;
  batch.q = q;
  batch.output = out;
  return batch;
}

static void defaults(void) {
  kvq_attend_batch batch;
  memset(&batch, 0x77, sizeof batch);
  kvq_attend_batch_init(&batch, sizeof(batch));
  CHECK(batch.struct_size == sizeof batch);
  CHECK(batch.sequences == NULL && batch.query_counts == NULL && batch.query_positions == NULL);
  CHECK(batch.q == NULL && batch.output == NULL);
  CHECK(batch.q_dtype == KVQ_F32 && batch.output_dtype == KVQ_F32);
  CHECK(batch.sliding_window == 0 && batch.logit_softcap == 0.0f);
  CHECK(batch.q_token_stride == 0 && batch.q_head_stride == 0);
  CHECK(batch.output_token_stride == 0 && batch.output_head_stride == 0);
  CHECK(batch.lse == NULL && batch.sinks == NULL);
  kvq_attend_batch_init(NULL, 0);
}

/* Refused, and the output is untouched. */
static void refuse(const kvq_attend_batch* batch, int32_t layer, const char* mention) {
  size_t i;
  for (i = 0; i < kRows * kQueryScalars; ++i) out[i] = 77.0f;
  REFUSED(KVQ_E_ARGUMENT, mention, kvq_attend(f.cache, layer, batch, err));
  for (i = 0; i < kRows * kQueryScalars; ++i) {
    if (out[i] != 77.0f) break;
  }
  CHECK(i == kRows * kQueryScalars);
}

static void bad_batches(void) {
  const kvq_sequence* sequences[2];
  const kvq_sequence* nothing = NULL;
  kvq_attend_batch batch;
  sequences[0] = sequence;
  sequences[1] = sequence;
  batch = one_query(sequences);
  REFUSED(KVQ_E_ARGUMENT, "cache", kvq_attend(NULL, 0, &batch, err));
  refuse(NULL, 0, "batch");
  refuse(&batch, -1, "layer");
  refuse(&batch, kLayers, "layer");
  ALSO_MENTIONS("2");
  batch.struct_size = 0, refuse(&batch, 0, "struct_size");
  batch.struct_size = sizeof batch - 1, refuse(&batch, 0, "struct_size");
  batch.struct_size = UINT32_MAX, refuse(&batch, 0, "struct_size");
  batch = one_query(sequences);
  batch.n_sequences = 0, refuse(&batch, 0, "n_sequences");
  batch.n_sequences = -4, refuse(&batch, 0, "n_sequences");
  ALSO_MENTIONS("-4");
  batch = one_query(NULL), refuse(&batch, 0, "sequences");
  batch = one_query(&nothing), refuse(&batch, 0, "sequences");
  sequences[1] = NULL;
  batch = one_query(sequences), batch.n_sequences = 2, refuse(&batch, 0, "sequences");
  batch = one_query(sequences), batch.q = NULL, refuse(&batch, 0, "q");
  batch = one_query(sequences), batch.output = NULL, refuse(&batch, 0, "output");
  batch = one_query(sequences), batch.q_dtype = 3, refuse(&batch, 0, "q_dtype");
  batch = one_query(sequences), batch.q_dtype = -1, refuse(&batch, 0, "q_dtype");
  batch = one_query(sequences), batch.output_dtype = 99, refuse(&batch, 0, "output_dtype");
  ALSO_MENTIONS("99");
  batch = one_query(sequences), batch.sliding_window = -1, refuse(&batch, 0, "sliding_window");
  batch = one_query(sequences), batch.logit_softcap = -30.0f, refuse(&batch, 0, "logit_softcap");
  batch = one_query(sequences), batch.logit_softcap = (float)NAN, refuse(&batch, 0, "logit_softcap");
  batch = one_query(sequences), batch.logit_softcap = (float)INFINITY, refuse(&batch, 0, "logit_softcap");
  batch = one_query(sequences), batch.output = q;
  REFUSED(KVQ_E_ARGUMENT, "output", kvq_attend(f.cache, 0, &batch, err)); /* overlaps q */
  batch.output = q + 1;
  REFUSED(KVQ_E_ARGUMENT, "output", kvq_attend(f.cache, 0, &batch, err));
}

static void bad_strides(void) {
  const int32_t counts[1] = {3};
  const kvq_sequence* sequences[1];
  kvq_attend_batch batch;
  sequences[0] = sequence;
#define STRIDES(member, stride, mention) \
  batch = one_query(sequences), batch.query_counts = counts, batch.member = (stride), refuse(&batch, 0, mention)
  STRIDES(q_token_stride, -1, "q_token_stride");
  ALSO_MENTIONS("-1");
  STRIDES(q_head_stride, -kHeadDim, "q_head_stride");
  STRIDES(output_token_stride, INT64_MIN, "output_token_stride");
  STRIDES(output_head_stride, -3, "output_head_stride");
  /* Offsets of the last row, in bytes. */
  STRIDES(q_token_stride, INT64_MAX, "q_token_stride");
  STRIDES(q_token_stride, INT64_MAX / 8, "q_token_stride");
  STRIDES(q_head_stride, INT64_MAX / 8, "q_head_stride");
  STRIDES(output_token_stride, INT64_MAX / 8, "output_token_stride");
  STRIDES(output_head_stride, INT64_MAX / 8, "output_head_stride");
  /* Overlapping rows: of one query's heads, of neighbouring queries, and of both. */
  STRIDES(output_head_stride, kHeadDim - 1, "output_head_stride");
  STRIDES(output_token_stride, kQueryScalars - 1, "output_token_stride");
  STRIDES(output_token_stride, kHeadDim, "output_token_stride");
  STRIDES(output_head_stride, kHeadDim + 1, "output_head_stride");
#undef STRIDES
  batch = one_query(sequences), batch.query_counts = counts;
  batch.output_token_stride = kHeadDim;
  batch.output_head_stride = 3 * kHeadDim - 1;
  refuse(&batch, 0, "output_head_stride");
  /* q reaches further than a dense one would. */
  batch = one_query(sequences), batch.query_counts = counts;
  batch.q_token_stride = 2 * kQueryScalars;
  batch.output = q + 4 * kQueryScalars;
  REFUSED(KVQ_E_ARGUMENT, "output", kvq_attend(f.cache, 0, &batch, err));
  batch.output = q + 5 * kQueryScalars;
  ACCEPTED(kvq_attend(f.cache, 0, &batch, err));
}

/* [heads, queries, head_dim], odd strides, and strides of a single query, which are ignored. */
static void good_strides(void) {
  const int32_t counts[1] = {3};
  const kvq_sequence* sequences[1];
  float dense[3 * kQueryScalars];
  kvq_attend_batch batch;
  int32_t query;
  int32_t head;
  int32_t c;
  int same = 1;
  size_t i;
  sequences[0] = sequence;
  batch = one_query(sequences), batch.query_counts = counts;
  ACCEPTED(kvq_attend(f.cache, 0, &batch, err));
  memcpy(dense, out, sizeof dense);
  batch.output_token_stride = kHeadDim + 3;
  batch.output_head_stride = 3 * (kHeadDim + 3) + 5;
  for (i = 0; i < kRows * kQueryScalars; ++i) out[i] = 77.0f;
  ACCEPTED(kvq_attend(f.cache, 0, &batch, err));
  for (query = 0; query < 3; ++query) {
    for (head = 0; head < kQHeads; ++head) {
      float* row = out + query * batch.output_token_stride + head * batch.output_head_stride;
      if (memcmp(row, dense + (query * kQHeads + head) * kHeadDim, kHeadDim * sizeof *out) != 0) same = 0;
      for (c = 0; c < kHeadDim; ++c) row[c] = 77.0f;
    }
  }
  CHECK(same);
  for (i = 0; i < kRows * kQueryScalars; ++i) {
    if (out[i] != 77.0f) break;
  }
  CHECK(i == kRows * kQueryScalars); /* memory between rows is untouched */
  batch = one_query(sequences);
  batch.q_token_stride = batch.output_token_stride = 1;
  ACCEPTED(kvq_attend(f.cache, 0, &batch, err));
}

static void sums_and_sinks(void) {
  const kvq_sequence* sequences[1];
  float lse[kQHeads];
  float sinks[kQHeads] = {0.0f, 1.0f, 2.0f, 3.0f};
  kvq_attend_batch batch;
  int32_t head;
  sequences[0] = empty;
  batch = one_query(sequences);
  batch.query_positions = &(const int32_t){7};
  batch.lse = lse;
  ACCEPTED(kvq_attend(f.cache, 0, &batch, err));
  for (head = 0; head < kQHeads; ++head) CHECK(lse[head] == -(float)INFINITY);
  batch.sinks = sinks;
  ACCEPTED(kvq_attend(f.cache, 0, &batch, err));
  for (head = 0; head < kQHeads; ++head) CHECK(fabs(lse[head] - sinks[head]) < 1e-6);
  for (head = 0; head < kQHeads * kHeadDim; ++head) CHECK(out[head] == 0.0f);
  sinks[2] = (float)NAN, refuse(&batch, 0, "sinks[2]");
  sinks[2] = (float)INFINITY, refuse(&batch, 0, "sinks[2]");
  sinks[2] = -(float)INFINITY;
  ACCEPTED(kvq_attend(f.cache, 0, &batch, err));
  CHECK(lse[2] == -(float)INFINITY);
  batch.lse = sinks, refuse(&batch, 0, "lse");
  batch.lse = q, refuse(&batch, 0, "lse");
  batch.lse = out, refuse(&batch, 0, "lse");
  batch.lse = lse;
  batch.sinks = out, refuse(&batch, 0, "sinks");
}

static void bad_counts_and_positions(void) {
  const kvq_sequence* sequences[2];
  int32_t counts[2] = {1, 1};
  int32_t positions[2] = {0, 0};
  kvq_attend_batch batch;
  sequences[0] = sequence;
  sequences[1] = sequence;
  batch = one_query(sequences);
  batch.n_sequences = 2;
  batch.query_counts = counts;
  counts[1] = 0, refuse(&batch, 0, "query_counts");
  counts[1] = -9, refuse(&batch, 0, "query_counts");
  ALSO_MENTIONS("-9");
  counts[1] = 41, refuse(&batch, 0, "query_counts"); /* more queries than tokens */
  ALSO_MENTIONS("41");
  counts[0] = counts[1] = INT32_MAX, refuse(&batch, 0, NULL); /* no tensor is that large either */
  counts[0] = counts[1] = 1;
  batch.query_positions = positions;
  positions[1] = -1, refuse(&batch, 0, "query_positions");
  ALSO_MENTIONS("-1");
  positions[1] = INT32_MIN, refuse(&batch, 0, "query_positions");
  batch = one_query(sequences);
  sequences[0] = empty, refuse(&batch, 0, NULL); /* an empty sequence has no last token */
}

static void sequence_of_another_cache(void) {
  fixture other;
  kvq_sequence* foreign;
  const kvq_sequence* sequences[2];
  kvq_attend_batch batch;
  fixture_open(&other, "int4", 0, 0);
  foreign = new_sequence(other.cache);
  grow(other.cache, foreign, 10);
  sequences[0] = sequence;
  sequences[1] = foreign;
  batch = one_query(sequences);
  batch.n_sequences = 2;
  refuse(&batch, 0, "sequences");
  kvq_sequence_destroy(foreign);
  fixture_close(&other);
}

/* A query before the first token, or whose window is empty, gives zeros; the others in the batch are not affected. */
static void queries_that_see_nothing(void) {
  const kvq_sequence* sequences[3];
  const int32_t positions[3] = {5, 1000, 0};
  kvq_attend_batch batch;
  size_t i;
  int zeros = 1;
  int others = 0;
  sequences[0] = empty;
  sequences[1] = sequence; /* positions 0 to 39, the window begins at 991 */
  sequences[2] = sequence;
  batch = one_query(sequences);
  batch.n_sequences = 3;
  batch.query_positions = positions;
  batch.sliding_window = 10;
  for (i = 0; i < 3 * kQueryScalars; ++i) out[i] = 77.0f;
  ACCEPTED(kvq_attend(f.cache, 0, &batch, err));
  for (i = 0; i < 2 * kQueryScalars; ++i) {
    if (out[i] != 0.0f) zeros = 0;
  }
  for (; i < 3 * kQueryScalars; ++i) {
    if (out[i] != 0.0f && out[i] != 77.0f) others = 1;
  }
  CHECK(zeros);
  CHECK(others);
}

/* A query that sees one token returns its value, whatever the query is. */
static void one_visible_token(void) {
  const kvq_sequence* sequences[1];
  const int32_t position = 17;
  kvq_attend_batch batch;
  float v[kHeadDim];
  int32_t head;
  int32_t c;
  sequences[0] = sequence;
  batch = one_query(sequences);
  batch.query_positions = &position;
  batch.sliding_window = 1;
  ACCEPTED(kvq_attend(f.cache, 0, &batch, err));
  for (head = 0; head < kQHeads; ++head) {
    ACCEPTED(kvq_sequence_decode(f.cache, sequence, 0, head / (kQHeads / kKvHeads), 17, 1, NULL, v, NULL, err));
    for (c = 0; c < kHeadDim; ++c) CHECK(fabs(out[head * kHeadDim + c] - v[c]) < 2e-2);
  }
}

/* More tokens of the same sequence in one batch, and the same sequence twice, are separate queries. */
/* Cross-attention: without RoPE, queries at the last position there is see all tokens, in any order. */
static void queries_behind_all_tokens(void) {
  enum { kQueries = 3 };
  static float expected[kQueryScalars];
  kvq_cache_options options = small_cache_options();
  const int32_t count = kQueries;
  const int32_t positions[kQueries] = {INT32_MAX, INT32_MAX, INT32_MAX};
  kvq_cache* encoder = NULL;
  kvq_sequence* tokens = NULL;
  kvq_attend_batch batch;
  int i;
  options.rope = KVQ_ROPE_NONE;
  ACCEPTED(kvq_cache_create(f.context, &options, NULL, &encoder, err));
  tokens = new_sequence(encoder);
  ACCEPTED(append_tokens(encoder, tokens, 0, 70));
  batch = one_query((const kvq_sequence* const*)&tokens);
  batch.query_counts = &count;
  batch.query_positions = positions;
  for (i = kQueries - 1; i >= 0; --i) memcpy(q + i * kQueryScalars, q, sizeof expected);
  ACCEPTED(kvq_attend(encoder, 0, &batch, err));
  for (i = 1; i < kQueries; ++i) CHECK(memcmp(out, out + i * kQueryScalars, sizeof expected) == 0);
  memcpy(expected, out, sizeof expected);
  batch.query_counts = NULL;
  batch.query_positions = NULL; /* the newest token's, which sees as much */
  ACCEPTED(kvq_attend(encoder, 0, &batch, err));
  CHECK(memcmp(out, expected, sizeof expected) == 0);
  kvq_sequence_destroy(tokens);
  kvq_cache_destroy(encoder);
}

static void repeated_sequences(void) {
  const kvq_sequence* sequences[2];
  const int32_t counts[2] = {2, 1};
  kvq_attend_batch batch;
  float together[3 * kQueryScalars];
  sequences[0] = sequence;
  sequences[1] = sequence;
  memcpy(q + 2 * kQueryScalars, q + kQueryScalars, kQueryScalars * sizeof *q);
  batch = one_query(sequences);
  batch.n_sequences = 2;
  batch.query_counts = counts;
  ACCEPTED(kvq_attend(f.cache, 0, &batch, err));
  memcpy(together, out, sizeof together);
  CHECK(memcmp(together, together + kQueryScalars, kQueryScalars * sizeof *out) != 0);
  batch.n_sequences = 1;
  batch.q = q + 2 * kQueryScalars;
  batch.query_counts = NULL;
  ACCEPTED(kvq_attend(f.cache, 0, &batch, err));
  CHECK(memcmp(together + 2 * kQueryScalars, out, kQueryScalars * sizeof *out) == 0);
}

void test_attend(void) {
  fixture_open(&f, "int4", 0, 0);
  sequence = new_sequence(f.cache);
  empty = new_sequence(f.cache);
  grow(f.cache, sequence, 40);
  fill_tensor(q, 3 * kQueryScalars, 5);
  defaults();
  bad_batches();
  bad_strides();
  good_strides();
  sums_and_sinks();
  bad_counts_and_positions();
  sequence_of_another_cache();
  queries_that_see_nothing();
  one_visible_token();
  queries_behind_all_tokens();
  repeated_sequences();
  kvq_sequence_destroy(empty);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}
