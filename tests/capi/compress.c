/* kvq_compress: what is refused, what it reports, and that a failure changes nothing. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <string.h>

enum { kMostAllocations = 100000, kMostQueries = 40 };

static const char kSnap[] = "version: 1\nkeys: int4\nvalues: int4\neviction: {method: adasnap, budget: 40}\n";

/* The newest n tokens' queries, in every layer. */
static kvq_status attend_all(kvq_cache* cache, const kvq_sequence* sequence, int32_t n) {
  static float q[kMostQueries * kQHeads * kHeadDim];
  static float out[kMostQueries * kQHeads * kHeadDim];
  kvq_attend_batch batch;
  int32_t layer;
  fill_tensor(q, sizeof q / sizeof q[0], 99);
  kvq_attend_batch_init(&batch);
  batch.n_sequences = 1;
  batch.sequences = &sequence;
  batch.query_counts = &n;
  batch.q = q;
  batch.out = out;
  for (layer = 0; layer < kLayers; ++layer) {
    const kvq_status status = kvq_attend(cache, layer, &batch, err);
    if (status != KVQ_OK) return status;
  }
  return KVQ_OK;
}

static kvq_sequence* observed_sequence(kvq_cache* cache, int32_t n) {
  kvq_sequence* sequence = new_sequence(cache);
  grow(cache, sequence, n);
  ACCEPTED(attend_all(cache, sequence, n < kMostQueries ? n : kMostQueries));
  return sequence;
}

static void arguments(void) {
  fixture f;
  fixture other;
  kvq_compress_options options;
  kvq_sequence* sequence;
  kvq_sequence* empty;
  saved_state before;
  kvq_compress_options_init(NULL);
  fixture_open(&f, kSnap, 0, 0);
  fixture_open(&other, "int4", 0, 0);
  sequence = observed_sequence(f.cache, 100);
  before = take_state(f.cache, sequence);
  REFUSED(KVQ_E_ARGUMENT, "cache", kvq_compress(NULL, sequence, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "sequence", kvq_compress(f.cache, NULL, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "sequence", kvq_compress(other.cache, sequence, NULL, err));
  kvq_compress_options_init(&options);
  options.struct_size = 7;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_compress(f.cache, sequence, &options, err));
  kvq_compress_options_init(&options);
  options.budget = -1;
  REFUSED(KVQ_E_ARGUMENT, "options->budget", kvq_compress(f.cache, sequence, &options, err));
  ALSO_MENTIONS("-1");
  options.budget = 31;
  REFUSED(KVQ_E_ARGUMENT, "options->budget", kvq_compress(f.cache, sequence, &options, err));
  ALSO_MENTIONS("window of 32");
  CHECK(state_is(f.cache, sequence, &before));
  state_free(&before);
  kvq_sequence_destroy(sequence);

  empty = new_sequence(f.cache);
  REFUSED(KVQ_E_STATE, "layer 0", kvq_compress(f.cache, empty, NULL, err));
  ALSO_MENTIONS("empty");
  kvq_sequence_destroy(empty);

  sequence = new_sequence(other.cache);
  grow(other.cache, sequence, 50);
  REFUSED(KVQ_E_STATE, "eviction", kvq_compress(other.cache, sequence, NULL, err));
  kvq_sequence_destroy(sequence);
  fixture_close(&other);
  fixture_close(&f);
}

/* Nobody has asked anything yet, or not since the sequence was loaded or compressed. */
static void nothing_observed(void) {
  fixture f;
  kvq_sequence* sequence;
  kvq_sequence* loaded = NULL;
  kvq_compress_options options;
  saved_state before;
  blob snapshot;
  fixture_open(&f, kSnap, 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 100);
  before = take_state(f.cache, sequence);
  REFUSED(KVQ_E_STATE, "no query of layer 0", kvq_compress(f.cache, sequence, NULL, err));
  CHECK(state_is(f.cache, sequence, &before));
  state_free(&before);

  ACCEPTED(attend_all(f.cache, sequence, 5));
  ACCEPTED(kvq_compress(f.cache, sequence, NULL, err));
  kvq_compress_options_init(&options);
  options.budget = 33;
  REFUSED(KVQ_E_STATE, "no query", kvq_compress(f.cache, sequence, &options, err));
  snapshot = save_sequence(f.cache, sequence);
  ACCEPTED(kvq_sequence_load(f.cache, snapshot.data, snapshot.size, &loaded, err));
  REFUSED(KVQ_E_STATE, "no query", kvq_compress(f.cache, loaded, &options, err));
  ACCEPTED(attend_all(f.cache, loaded, 1));
  ACCEPTED(kvq_compress(f.cache, loaded, &options, err));
  blob_free(&snapshot);
  kvq_sequence_destroy(loaded);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

static void pages_made_ahead(void) {
  fixture f;
  kvq_sequence* sequence;
  fixture_open(&f, kSnap, 0, 0);
  sequence = observed_sequence(f.cache, 100);
  ACCEPTED(kvq_sequence_reserve(f.cache, sequence, 10, err));
  REFUSED(KVQ_E_STATE, "made ahead", kvq_compress(f.cache, sequence, NULL, err));
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* Prompts shorter than the window or the budget stay as they are, asked or not. */
static void short_prompts(void) {
  const int32_t lengths[] = {1, 31, 32, 33, 40};
  fixture f;
  size_t i;
  fixture_open(&f, kSnap, 0, 0);
  for (i = 0; i < sizeof lengths / sizeof lengths[0]; ++i) {
    kvq_sequence* sequence = new_sequence(f.cache);
    int32_t kept[kLayers * kKvHeads];
    uint64_t freed = 1;
    kvq_compress_options options;
    saved_state before;
    size_t list;
    grow(f.cache, sequence, lengths[i]);
    before = take_state(f.cache, sequence);
    kvq_compress_options_init(&options);
    options.kept = kept;
    options.bytes_freed = &freed;
    ACCEPTED(kvq_compress(f.cache, sequence, &options, err));
    CHECK(state_is(f.cache, sequence, &before));
    CHECK(freed == 0);
    for (list = 0; list < sizeof kept / sizeof kept[0]; ++list) CHECK(kept[list] == lengths[i]);
    options.budget = 1000;
    ACCEPTED(kvq_compress(f.cache, sequence, &options, err));
    CHECK(state_is(f.cache, sequence, &before));
    state_free(&before);
    kvq_sequence_destroy(sequence);
  }
  fixture_close(&f);
}

static void reports(const char* policy) {
  fixture f;
  kvq_sequence* sequence;
  int32_t kept[kLayers * kKvHeads];
  uint64_t freed = 0;
  kvq_compress_options options;
  kvq_context_info info;
  size_t live;
  int32_t sum = 0;
  size_t list;
  fixture_open(&f, policy, 0, 0);
  sequence = observed_sequence(f.cache, 400);
  live = f.memory.live_bytes;
  kvq_compress_options_init(&options);
  options.kept = kept;
  options.bytes_freed = &freed;
  ACCEPTED(kvq_compress(f.cache, sequence, &options, err));
  for (list = 0; list < sizeof kept / sizeof kept[0]; ++list) sum += kept[list];
  CHECK(sum == kLayers * kKvHeads * 40);
  CHECK(length_of(sequence, 0) == 400 && length_of(sequence, 1) == 400);
  CHECK(freed > 0 && f.memory.live_bytes < live);
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_context_describe(f.context, &info, err));
  CHECK(info.bytes == f.memory.live_bytes);
  grow(f.cache, sequence, 70);
  ACCEPTED(attend_all(f.cache, sequence, 2));
  ACCEPTED(kvq_compress(f.cache, sequence, &options, err));
  CHECK(length_of(sequence, 0) == 470);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

static void failing_allocations(const char* policy) {
  kvq_status status = KVQ_E_MEMORY;
  fixture f;
  kvq_sequence* sequence;
  saved_state before;
  long n;
  fixture_open(&f, policy, 0, 0);
  sequence = observed_sequence(f.cache, 150);
  before = take_state(f.cache, sequence);
  for (n = 1; n < kMostAllocations && status != KVQ_OK; ++n) {
    f.memory.fail_at = n;
    status = kvq_compress(f.cache, sequence, NULL, err);
    f.memory.fail_at = 0;
    if (status == KVQ_OK) break;
    CHECK(status == KVQ_E_MEMORY);
    CHECK(state_is(f.cache, sequence, &before));
  }
  CHECK(n > 20 && n < kMostAllocations);
  state_free(&before);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

void test_compress(void) {
  const char* const policies[] = {
      kSnap,
      "fp16+h2o:40",
      "int2+streaming:40",
      "version: 1\nvalues: int4\nsink: 1\neviction: {budget: 40, layers: pyramid, heads: reserved, group: max}\n",
  };
  size_t i;
  arguments();
  nothing_observed();
  pages_made_ahead();
  short_prompts();
  for (i = 0; i < sizeof policies / sizeof policies[0]; ++i) {
    reports(policies[i]);
    failing_allocations(policies[i]);
  }
}
