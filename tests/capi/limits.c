/* max_bytes of the context and of the cache: calls are refused in time, change nothing, and never exceed the limit by a
 * byte. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <string.h>

static int unused_place;

/* Grow one or many tokens at a time until the limit of the context or of the cache is hit. */
static void append_until_limit(const char* policy, int of_context, int32_t step) {
  const uint64_t limit = 64000;
  fixture f;
  kvq_sequence* sequence;
  saved_state before;
  kvq_status status = KVQ_OK;
  int32_t n = 0;
  fixture_open(&f, policy, of_context ? limit : 0, of_context ? 0 : limit);
  sequence = new_sequence(f.cache);
  while (n < 100000) {
    before = take_state(f.cache, sequence);
    status = append_tokens(f.cache, sequence, 0, step);
    if (status != KVQ_OK) break;
    state_free(&before);
    n += step;
    CHECK(f.memory.live_bytes <= limit + (of_context ? 0 : 16384)); /* the context's own objects are extra */
  }
  CHECK(status == KVQ_E_LIMIT);
  CHECK(n > 0);
  REFUSED(KVQ_E_LIMIT, "64000", append_tokens(f.cache, sequence, 0, step));
  CHECK(state_is(f.cache, sequence, &before));
  CHECK(length_of(sequence, 0) == n);
  /* It still works, and freed memory can be used again. */
  {
    kvq_sequence* other;
    blob snapshot;
    ACCEPTED(kvq_sequence_truncate(f.cache, sequence, 0, err));
    other = new_sequence(f.cache);
    ACCEPTED(append_tokens(f.cache, other, 0, 20));
    snapshot = save_sequence(f.cache, other);
    CHECK(snapshot.size > 0);
    blob_free(&snapshot);
    kvq_sequence_destroy(other);
  }
  state_free(&before);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* Create a sequence and attend in a context with such limits; `failed` receives the status of the failed call. */
static kvq_context_info run_within(uint64_t context_bytes, uint64_t cache_bytes, kvq_usage* usage, kvq_status* failed) {
  kvq_context_options context_options;
  kvq_cache_options options = small_cache_options();
  kvq_context* context = NULL;
  kvq_cache* cache = NULL;
  kvq_sequence* sequence = NULL;
  kvq_context_info info;
  tracker memory;
  float out[kQHeads * kHeadDim];
  memset(&info, 0, sizeof info);
  memset(&memory, 0, sizeof memory);
  memset(usage, 0, sizeof *usage);
  info.struct_size = sizeof info;
  usage->struct_size = sizeof *usage;
  kvq_context_options_init(&context_options, sizeof(context_options));
  context_options.allocate = tracker_allocate;
  context_options.free = tracker_free;
  context_options.allocator_user = &memory;
  context_options.max_bytes = context_bytes;
  options.max_bytes = cache_bytes;
  *failed = kvq_context_create(&context_options, &context, err);
  if (*failed == KVQ_OK) *failed = kvq_cache_create(context, &options, NULL, &cache, err);
  if (*failed == KVQ_OK) *failed = kvq_sequence_create(cache, &sequence, err);
  if (*failed == KVQ_OK) *failed = append_tokens(cache, sequence, 0, 100);
  if (*failed == KVQ_OK) *failed = attend_last(cache, sequence, out);
  if (cache != NULL) CHECK(kvq_cache_usage(cache, NULL, usage, NULL) == KVQ_OK);
  if (context != NULL) CHECK(kvq_context_describe(context, &info, NULL) == KVQ_OK);
  CHECK(context == NULL || info.bytes == memory.live_bytes);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
  CHECK(memory.live_blocks == 0);
  return info;
}

/* Objects count: the peak usage is enough as a limit, and not one byte less. */
static void limits_to_the_byte(void) {
  kvq_usage usage;
  kvq_usage whole;
  kvq_status status;
  const kvq_context_info all = run_within(0, 0, &whole, &status);
  uint64_t limit;
  CHECK(status == KVQ_OK);
  run_within(all.peak_bytes, 0, &usage, &status);
  CHECK(status == KVQ_OK && usage.total_bytes == whole.total_bytes);
  for (limit = all.peak_bytes - 1; limit > 0; limit -= limit / 50 + 1) {
    const kvq_context_info info = run_within(limit, 0, &usage, &status);
    CHECK(status == KVQ_E_LIMIT);
    CHECK(info.peak_bytes <= limit);
  }
  for (limit = whole.total_bytes - 1; limit > 0; limit -= limit / 50 + 1) {
    run_within(0, limit, &usage, &status);
    CHECK(status == KVQ_E_LIMIT);
    CHECK(usage.total_bytes <= limit);
  }
}

/* A call that needs several pages, of which only some fit, allocates none. */
static void append_of_many_pages(void) {
  fixture f;
  fixture unlimited;
  kvq_sequence* sequence;
  kvq_sequence* reference;
  saved_state before;
  blob a;
  blob b;
  fixture_open(&f, "int4", 0, 64000);
  fixture_open(&unlimited, "int4", 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 45);
  before = take_state(f.cache, sequence);
  REFUSED(KVQ_E_LIMIT, NULL, append_tokens(f.cache, sequence, 0, 2000));
  CHECK(state_is(f.cache, sequence, &before));
  grow(f.cache, sequence, 30);
  reference = new_sequence(unlimited.cache);
  grow(unlimited.cache, reference, 75);
  a = save_sequence(f.cache, sequence);
  b = save_sequence(unlimited.cache, reference);
  CHECK(a.size == b.size && memcmp(a.data, b.data, a.size) == 0);
  ACCEPTED(append_tokens(unlimited.cache, reference, 0, 2000)); /* without the limit it succeeds */
  blob_free(&a);
  blob_free(&b);
  state_free(&before);
  kvq_sequence_destroy(reference);
  kvq_sequence_destroy(sequence);
  fixture_close(&unlimited);
  fixture_close(&f);
}

/* Creating and loading under a limit: the handle is NULL and the bytes do not change. */
static void create_and_load_at_the_limit(void) {
  fixture big;
  fixture small;
  kvq_sequence* sequence;
  kvq_sequence* loaded = (kvq_sequence*)&unused_place;
  blob saved;
  size_t live;
  int n_created = 0;
  kvq_sequence* many[4096];
  fixture_open(&big, "int4", 0, 0);
  fixture_open(&small, "int4", 0, 30000);
  sequence = new_sequence(big.cache);
  grow(big.cache, sequence, 1000);
  saved = save_sequence(big.cache, sequence);
  live = small.memory.live_bytes;
  REFUSED(KVQ_E_LIMIT, "30000", kvq_sequence_load(small.cache, saved.data, saved.size, &loaded, err));
  CHECK(loaded == NULL);
  CHECK(small.memory.live_bytes == live);
  while (n_created < 4096 && kvq_sequence_create(small.cache, &many[n_created], err) == KVQ_OK) ++n_created;
  CHECK(n_created > 0 && n_created < 4096);
  if (n_created < 4096) CHECK(many[n_created] == NULL);
  REFUSED(KVQ_E_LIMIT, NULL, kvq_sequence_fork(small.cache, many[0], &loaded, err));
  CHECK(loaded == NULL);
  while (n_created > 0) kvq_sequence_destroy(many[--n_created]);
  CHECK(small.memory.live_bytes == live);
  blob_free(&saved);
  kvq_sequence_destroy(sequence);
  fixture_close(&small);
  fixture_close(&big);
}

/* kvq_attend's workspace counts, too; after a refusal a smaller batch still works. */
static void attend_at_the_limit(void) {
  enum { kQueries = 4000 };
  static float q[kQueries * kQHeads * kHeadDim];
  static float out[kQueries * kQHeads * kHeadDim];
  static int32_t positions[kQueries];
  static const kvq_sequence* sequences[kQueries];
  fixture f;
  kvq_sequence* sequence;
  kvq_attend_batch batch;
  kvq_usage before;
  kvq_usage after;
  kvq_status status;
  float one[kQHeads * kHeadDim];
  int i;
  fixture_open(&f, "int4", 0, 64000);
  sequence = new_sequence(f.cache);
  ACCEPTED(append_tokens(f.cache, sequence, 0, 100));
  ACCEPTED(attend_last(f.cache, sequence, one));
  for (i = 0; i < kQueries; ++i) {
    sequences[i] = sequence;
    positions[i] = i % 100;
  }
  fill_tensor(q, kQueries * kQHeads * kHeadDim, 1);
  kvq_attend_batch_init(&batch, sizeof(batch));
  batch.n_sequences = kQueries;
  batch.sequences = sequences;
  batch.query_positions = positions;
  batch.q = q;
  batch.output = out;
  memset(&before, 0, sizeof before);
  memset(&after, 0, sizeof after);
  before.struct_size = after.struct_size = sizeof before;
  ACCEPTED(kvq_cache_usage(f.cache, NULL, &before, err));
  status = kvq_attend(f.cache, 0, &batch, err);
  ACCEPTED(kvq_cache_usage(f.cache, NULL, &after, err));
  CHECK(status == KVQ_OK || status == KVQ_E_LIMIT); /* it may need little workspace */
  CHECK(after.total_bytes <= 64000);
  if (status == KVQ_E_LIMIT) CHECK(after.total_bytes == before.total_bytes);
  {
    float again[kQHeads * kHeadDim];
    ACCEPTED(attend_last(f.cache, sequence, again));
    CHECK(memcmp(one, again, sizeof one) == 0);
  }
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* A limit of a few bytes: every creating call is refused, none crashes. */
static void tiny_limits(void) {
  uint64_t limit;
  for (limit = 1; limit < 20000; limit += limit / 3 + 1) {
    kvq_context_options context_options;
    kvq_cache_options options = small_cache_options();
    kvq_context* context = (kvq_context*)&unused_place;
    kvq_policy* policy = (kvq_policy*)&unused_place;
    kvq_cache* cache = (kvq_cache*)&unused_place;
    kvq_sequence* sequence = (kvq_sequence*)&unused_place;
    kvq_status status;
    kvq_context_options_init(&context_options, sizeof(context_options));
    context_options.max_bytes = limit;
    status = kvq_context_create(&context_options, &context, err);
    CHECK(status == KVQ_E_LIMIT ? context == NULL : status == KVQ_OK);
    if (status != KVQ_OK) continue;
    status = kvq_policy_load(context, "int4", 4, &policy, err);
    CHECK(status == KVQ_E_LIMIT ? policy == NULL : status == KVQ_OK);
    status = kvq_cache_create(context, &options, policy, &cache, err);
    CHECK(status == KVQ_E_LIMIT ? cache == NULL : status == KVQ_OK);
    if (status == KVQ_OK) {
      status = kvq_sequence_create(cache, &sequence, err);
      CHECK(status == KVQ_E_LIMIT ? sequence == NULL : status == KVQ_OK);
      if (status == KVQ_OK) {
        status = append_tokens(cache, sequence, 0, 1);
        CHECK(status == KVQ_OK || (status == KVQ_E_LIMIT && length_of(sequence, 0) == 0));
        kvq_sequence_destroy(sequence);
      }
      kvq_cache_destroy(cache);
    }
    kvq_policy_destroy(policy);
    kvq_context_destroy(context);
  }
}

/* Sizes are right, though they are more than some systems' addresses count. */
static void predictions_of_enormous_caches(void) {
  const int32_t tokens = 1 << 28;
  const int32_t queries = 1 << 24;
  const uint64_t scalars = (uint64_t)tokens * kLayers * 2 * kTokenScalars;
  fixture f;
  kvq_usage usage;
  memset(&usage, 0, sizeof usage);
  usage.struct_size = sizeof usage;
  fixture_open(&f, "fp16", 0, 0);
  ACCEPTED(kvq_cache_predict_usage(f.cache, 1, tokens, queries, &usage, err));
  CHECK(usage.fp16_bytes == 2 * scalars);
  CHECK(usage.metadata_bytes > usage.fp16_pages * sizeof(void*) && usage.metadata_bytes < usage.fp16_bytes);
  CHECK(usage.workspace_bytes > (uint64_t)queries * kQHeads * kHeadDim * sizeof(float)); /* prepared queries */
  fixture_close(&f);
}

/* Arrays of 2^32 numbers, whose sizes addresses of 32 bits would take for 0, are refused before they are read. Where
 * there could be such arrays nothing can tell that these are shorter. */
static void arrays_beyond_addresses(void) {
  enum { kNumbers = 64, kTokens = 1 << 27, kBatch = 1 << 26 };
  const float one[kNumbers] = {1.0f};
  float out[kNumbers];
  void* const outs[] = {out};
  int32_t many = kBatch;
  fixture f;
  kvq_sequence* sequence;
  const kvq_sequence* read;
  kvq_append_batch appended;
  kvq_attend_batch attended;
  kvq_centres_trainer* trainer = NULL;
  kvq_centres_trainer_options training;
  qp_quantize_options quantizing;
  qp_matrix* matrix = NULL;
  if (sizeof(void*) > sizeof(uint32_t)) return;
  fixture_open(&f, "int4", 0, 0);
  read = sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 1);
  REFUSED(KVQ_E_LIMIT, "134217728 rows", kvq_append(f.cache, sequence, 0, kTokens, one, one, KVQ_F32, NULL, err));

  kvq_append_batch_init(&appended, sizeof appended);
  appended.n_sequences = 1;
  appended.sequences = &sequence;
  appended.token_counts = &many;
  appended.k = appended.v = one;
  REFUSED(KVQ_E_LIMIT, "batch->k has 67108864 rows", kvq_append_sequences(f.cache, 0, &appended, err));
  CHECK(length_of(sequence, 0) == 1);

  kvq_attend_batch_init(&attended, sizeof attended);
  attended.n_sequences = 1;
  attended.sequences = &read;
  attended.query_counts = &many;
  attended.q = one;
  attended.output = out;
  REFUSED(KVQ_E_LIMIT, "batch->q has 67108864 rows", kvq_attend(f.cache, 0, &attended, err));

  kvq_centres_trainer_options_init(&training, sizeof training);
  training.n_layers = 1;
  training.kv_heads = 4096;
  training.head_dim = 256;
  ACCEPTED(kvq_centres_trainer_create(f.context, &training, &trainer, err));
  REFUSED(KVQ_E_LIMIT, "4096 by 1048576", kvq_centres_trainer_add(trainer, 0, 4096, one, one, KVQ_F32, err));
  kvq_centres_trainer_destroy(trainer);

  qp_quantize_options_init(&quantizing, sizeof quantizing);
  REFUSED(KVQ_E_LIMIT, "w has 16777216 rows", qp_quantize(f.context, &quantizing, one, 1 << 24, 1 << 8, &matrix, err));
  ACCEPTED(qp_quantize(f.context, &quantizing, one, 1, kNumbers, &matrix, err));
  REFUSED(KVQ_E_LIMIT, "x has 67108864 rows",
          qp_linear_shared((const qp_matrix* const*)&matrix, 1, one, kBatch, outs, KVQ_F32, err));
  qp_matrix_destroy(matrix);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

void test_limits(void) {
  append_until_limit("fp16", 0, 1);
  append_until_limit("fp16", 1, 7);
  append_until_limit("int4", 0, 32);
  append_until_limit("int2+hadamard", 1, 50);
  append_until_limit("gs1", 1, 50);
  append_until_limit("gs1+centres", 1, 50);
  append_until_limit("gt2+centres/gs1", 0, 32);
  append_until_limit("version: 1\nkeys: int2\nvalues: int2\nrecent: 3\nsink: 2\n", 0, 1);
  limits_to_the_byte();
  append_of_many_pages();
  create_and_load_at_the_limit();
  attend_at_the_limit();
  tiny_limits();
  predictions_of_enormous_caches();
  arrays_beyond_addresses();
}
