/* kvq_compress: what is refused, what it reports, and that a failure changes nothing. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <string.h>

enum { kMostAllocations = 100000, kMostQueries = 40 };

static const char kSnap[] = "version: 1\nkeys: int4\nvalues: int4\neviction: {method: adasnap, budget: 40}\n";

/* Attend with the newest n tokens' queries in every layer. */
static kvq_status attend_all(kvq_cache* cache, const kvq_sequence* sequence, int32_t n) {
  static float q[kMostQueries * kQHeads * kHeadDim];
  static float out[kMostQueries * kQHeads * kHeadDim];
  kvq_attend_batch batch;
  int32_t layer;
  fill_tensor(q, sizeof q / sizeof q[0], 99);
  kvq_attend_batch_init(&batch, sizeof(batch));
  batch.n_sequences = 1;
  batch.sequences = &sequence;
  batch.query_counts = &n;
  batch.q = q;
  batch.output = out;
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
  kvq_compress_options_init(NULL, 0);
  fixture_open(&f, kSnap, 0, 0);
  fixture_open(&other, "int4", 0, 0);
  sequence = observed_sequence(f.cache, 100);
  before = take_state(f.cache, sequence);
  REFUSED(KVQ_E_ARGUMENT, "cache", kvq_compress(NULL, sequence, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "sequence", kvq_compress(f.cache, NULL, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "sequence", kvq_compress(other.cache, sequence, NULL, err));
  kvq_compress_options_init(&options, sizeof(options));
  options.struct_size = 7;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_compress(f.cache, sequence, &options, err));
  kvq_compress_options_init(&options, sizeof(options));
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

/* No query has attended yet, or none since the sequence was loaded or compressed. */
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
  kvq_compress_options_init(&options, sizeof(options));
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

/* Tokens that no query has seen cannot be scored; the window is kept anyway. */
static void too_few_observed(const char* policy, int keeps_mass) {
  fixture f;
  kvq_sequence* sequence;
  kvq_sequence* longer = NULL;
  kvq_compress_options options;
  saved_state before;
  fixture_open(&f, policy, 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 3000);
  before = take_state(f.cache, sequence);
  REFUSED(KVQ_E_STATE, "no query of layer 0", kvq_compress(f.cache, sequence, NULL, err));
  CHECK(state_is(f.cache, sequence, &before));
  state_free(&before);
  kvq_sequence_destroy(sequence);

  sequence = observed_sequence(f.cache, 10);
  grow(f.cache, sequence, 3000);
  before = take_state(f.cache, sequence);
  REFUSED(KVQ_E_STATE, "layer 0 has received 3000 tokens", kvq_compress(f.cache, sequence, NULL, err));
  CHECK(state_is(f.cache, sequence, &before));
  state_free(&before);
  ACCEPTED(attend_all(f.cache, sequence, 1));
  ACCEPTED(kvq_compress(f.cache, sequence, NULL, err));
  kvq_sequence_destroy(sequence);

  sequence = observed_sequence(f.cache, 100);
  grow(f.cache, sequence, 32);
  ACCEPTED(kvq_sequence_fork(f.cache, sequence, &longer, err));
  grow(f.cache, longer, 1);
  REFUSED(KVQ_E_STATE, "33 tokens", kvq_compress(f.cache, longer, NULL, err));
  kvq_sequence_destroy(longer);
  ACCEPTED(kvq_compress(f.cache, sequence, NULL, err));
  /* Tokens that were unseen before are still unseen after it. */
  kvq_compress_options_init(&options, sizeof(options));
  options.budget = 35;
  grow(f.cache, sequence, 1);
  REFUSED(KVQ_E_STATE, keeps_mass ? "33 tokens" : "no query", kvq_compress(f.cache, sequence, &options, err));
  kvq_sequence_destroy(sequence);

  /* Observations before a cut do not count for tokens after it. */
  sequence = observed_sequence(f.cache, 200);
  ACCEPTED(kvq_sequence_truncate(f.cache, sequence, 64, err));
  grow(f.cache, sequence, 33);
  REFUSED(KVQ_E_STATE, "33 tokens", kvq_compress(f.cache, sequence, NULL, err));
  ACCEPTED(kvq_sequence_truncate(f.cache, sequence, 0, err));
  grow(f.cache, sequence, 100);
  REFUSED(KVQ_E_STATE, "no query", kvq_compress(f.cache, sequence, NULL, err));
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* Append tokens to every layer whose keys are large from `first` to `end`. */
static void grow_with_hot(kvq_cache* cache, kvq_sequence* sequence, int32_t n, int32_t first, int32_t end) {
  static float k[200 * kTokenScalars];
  static float v[200 * kTokenScalars];
  int32_t i;
  int32_t layer;
  for (i = 0; i < n * kTokenScalars; ++i) k[i] = i / kTokenScalars >= first && i / kTokenScalars < end ? 4.0f : 0.0f;
  for (layer = 0; layer < kLayers; ++layer) {
    ACCEPTED(kvq_append(cache, sequence, layer, n, k, v, KVQ_F32, NULL, err));
  }
}

/* Attend with the newest n tokens' queries, which point to large keys. */
static void attend_to_hot(kvq_cache* cache, const kvq_sequence* sequence, int32_t n) {
  static float q[kMostQueries * kQHeads * kHeadDim];
  static float out[kMostQueries * kQHeads * kHeadDim];
  kvq_attend_batch batch;
  int32_t layer;
  size_t i;
  for (i = 0; i < sizeof q / sizeof q[0]; ++i) q[i] = 4.0f;
  kvq_attend_batch_init(&batch, sizeof(batch));
  batch.n_sequences = 1;
  batch.sequences = &sequence;
  batch.query_counts = &n;
  batch.q = q;
  batch.output = out;
  for (layer = 0; layer < kLayers; ++layer) ACCEPTED(kvq_attend(cache, layer, &batch, err));
}

/* Tokens appended after a cut do not inherit the attention of tokens that were in their slots. */
static void attention_to_what_was_cut(void) {
  fixture f;
  kvq_sequence* sequence;
  int32_t positions[40];
  int32_t i;
  fixture_open(&f, "fp16+h2o:40", 0, 0);
  sequence = new_sequence(f.cache);
  grow_with_hot(f.cache, sequence, 100, 20, 28);
  attend_to_hot(f.cache, sequence, 40);
  ACCEPTED(kvq_sequence_truncate(f.cache, sequence, 10, err));
  grow_with_hot(f.cache, sequence, 90, 50, 58);
  attend_to_hot(f.cache, sequence, 1);
  ACCEPTED(kvq_compress(f.cache, sequence, NULL, err));
  ACCEPTED(kvq_sequence_decode(f.cache, sequence, 0, 0, 0, 40, NULL, NULL, positions, err));
  for (i = 0; i < 8; ++i) CHECK(positions[i] == 60 + i);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* Two sequences, one of them twice; 20 queries each. */
static kvq_status attend_batch_of_three(kvq_cache* cache, const kvq_sequence* a, const kvq_sequence* b) {
  static float q[3 * 20 * kQHeads * kHeadDim];
  static float out[3 * 20 * kQHeads * kHeadDim];
  static const float sinks[kQHeads] = {0.5f, -1.0f, 0.0f, 2.0f};
  const kvq_sequence* sequences[3];
  const int32_t counts[3] = {20, 20, 20};
  kvq_attend_batch batch;
  sequences[0] = sequences[2] = a;
  sequences[1] = b;
  fill_tensor(q, sizeof q / sizeof q[0], 7);
  kvq_attend_batch_init(&batch, sizeof(batch));
  batch.n_sequences = 3;
  batch.sequences = sequences;
  batch.query_counts = counts;
  batch.q = q;
  batch.output = out;
  batch.sinks = sinks;
  return kvq_attend(cache, 0, &batch, err);
}

/* A batch's queries count for all its sequences, or for none if it fails. */
static void failed_attention_does_not_count(const char* policy) {
  fixture f;
  kvq_sequence* prompts[2];
  blob expected[2];
  kvq_status status = KVQ_E_MEMORY;
  long n;
  int i;
  fixture_open(&f, policy, 0, 0);
  for (i = 0; i < 2; ++i) {
    kvq_sequence* fork = NULL;
    prompts[i] = new_sequence(f.cache);
    grow(f.cache, prompts[i], 100 + 20 * i);
    ACCEPTED(attend_all(f.cache, prompts[i], 3));
    ACCEPTED(kvq_sequence_fork(f.cache, prompts[i], &fork, err));
    ACCEPTED(kvq_compress(f.cache, fork, NULL, err));
    expected[i] = save_sequence(f.cache, fork);
    kvq_sequence_destroy(fork);
  }
  for (n = 1; n < kMostAllocations; ++n) {
    kvq_sequence* forks[2] = {NULL, NULL};
    saved_state before[2];
    for (i = 0; i < 2; ++i) {
      ACCEPTED(kvq_sequence_fork(f.cache, prompts[i], &forks[i], err));
      before[i] = take_state(f.cache, forks[i]);
    }
    f.memory.fail_at = n;
    status = attend_batch_of_three(f.cache, forks[0], forks[1]);
    f.memory.fail_at = 0;
    CHECK(status == KVQ_OK || status == KVQ_E_MEMORY);
    for (i = 0; i < 2; ++i) {
      blob after;
      CHECK(status == KVQ_OK || state_is(f.cache, forks[i], &before[i]));
      ACCEPTED(kvq_compress(f.cache, forks[i], NULL, err));
      after = save_sequence(f.cache, forks[i]);
      CHECK(same_blobs(&after, &expected[i]) == (status != KVQ_OK));
      blob_free(&after);
      state_free(&before[i]);
      kvq_sequence_destroy(forks[i]);
    }
    if (status == KVQ_OK) break;
  }
  CHECK(n > 3 && n < kMostAllocations);
  for (i = 0; i < 2; ++i) {
    blob_free(&expected[i]);
    kvq_sequence_destroy(prompts[i]);
  }
  fixture_close(&f);
}

/* A cache filled until its limit refuses a token can still evict, and then takes more tokens. */
static void at_the_limit(const char* policy, int32_t step) {
  const uint64_t limits[] = {700000, 703333, 1500001};
  size_t i;
  for (i = 0; i < sizeof limits / sizeof limits[0]; ++i) {
    fixture f;
    kvq_sequence* sequence;
    kvq_status status = KVQ_OK;
    int round;
    int32_t first = 0;
    fixture_open(&f, policy, 0, limits[i]);
    sequence = new_sequence(f.cache);
    for (round = 0; round < 3; ++round) {
      const int32_t before = length_of(sequence, 0);
      for (status = KVQ_OK; status == KVQ_OK && length_of(sequence, 0) < 60000;) {
        int32_t layer;
        for (layer = 0; layer < kLayers && status == KVQ_OK; ++layer) {
          const int32_t n = length_of(sequence, 0) + (layer == 0 ? step : 0) - length_of(sequence, layer);
          status = append_tokens(f.cache, sequence, layer, n);
        }
        if (status == KVQ_OK) status = attend_all(f.cache, sequence, 1);
      }
      CHECK(status == KVQ_E_LIMIT);
      if (round == 0) first = length_of(sequence, 0);
      CHECK(length_of(sequence, 0) - before > first / 2);
      ACCEPTED(kvq_compress(f.cache, sequence, NULL, err));
      if (status != KVQ_E_LIMIT) break;
    }
    kvq_sequence_destroy(sequence);
    fixture_close(&f);
  }
}

static void pages_made_ahead(void) {
  fixture f;
  kvq_sequence* sequence;
  fixture_open(&f, kSnap, 0, 0);
  sequence = observed_sequence(f.cache, 100);
  ACCEPTED(kvq_sequence_reserve(f.cache, sequence, 10, err));
  REFUSED(KVQ_E_STATE, "preallocated", kvq_compress(f.cache, sequence, NULL, err));
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* Prompts shorter than the window or the budget do not change, with or without queries. */
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
    kvq_compress_options_init(&options, sizeof(options));
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
  kvq_compress_options_init(&options, sizeof(options));
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
  kvq_sequence* fork = NULL;
  saved_state before;
  size_t live;
  long n;
  fixture_open(&f, policy, 0, 0);
  sequence = observed_sequence(f.cache, 150);
  ACCEPTED(kvq_sequence_fork(f.cache, sequence, &fork, err));
  ACCEPTED(kvq_compress(f.cache, fork, NULL, err)); /* makes the work space that later calls use again */
  kvq_sequence_destroy(fork);
  before = take_state(f.cache, sequence);
  live = f.memory.live_bytes;
  for (n = 1; n < kMostAllocations && status != KVQ_OK; ++n) {
    f.memory.fail_at = n;
    status = kvq_compress(f.cache, sequence, NULL, err);
    f.memory.fail_at = 0;
    if (status == KVQ_OK) break;
    CHECK(status == KVQ_E_MEMORY);
    CHECK(f.memory.live_bytes == live);
    CHECK(state_is(f.cache, sequence, &before));
  }
  CHECK(n > 20 && n < kMostAllocations);
  state_free(&before);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* Attention of the newest token with a sliding window. */
static void attend_window(kvq_cache* cache, const kvq_sequence* sequence, int32_t window, float* out) {
  float q[kQHeads * kHeadDim];
  kvq_attend_batch batch;
  fill_tensor(q, sizeof q / sizeof q[0], 99);
  kvq_attend_batch_init(&batch, sizeof(batch));
  batch.n_sequences = 1;
  batch.sequences = &sequence;
  batch.q = q;
  batch.output = out;
  batch.sliding_window = window;
  ACCEPTED(kvq_attend(cache, 0, &batch, err));
}

/* Layers with a sliding window need only its tokens: evicting the others does not change later attention.
 */
static void sliding_windows(void) {
  enum { kWindow = 64 };
  const char* const policy = "{version: 1, eviction: {method: streaming, budget: 64, first: 0}}";
  fixture f;
  kvq_sequence* whole;
  kvq_sequence* evicted = NULL;
  int32_t slots = 0;
  int32_t token;
  fixture_open(&f, policy, 0, 0);
  whole = observed_sequence(f.cache, 300);
  ACCEPTED(kvq_sequence_fork(f.cache, whole, &evicted, err));
  ACCEPTED(attend_all(f.cache, evicted, 1));
  ACCEPTED(kvq_compress(f.cache, evicted, NULL, err));
  ACCEPTED(kvq_sequence_slots(evicted, 0, 0, &slots, err));
  CHECK(slots == kWindow);
  for (token = 0; token < 100; ++token) {
    float expected[kQHeads * kHeadDim];
    float out[kQHeads * kHeadDim];
    size_t i;
    attend_window(f.cache, whole, kWindow, expected);
    attend_window(f.cache, evicted, kWindow, out);
    for (i = 0; i < sizeof out / sizeof out[0]; ++i)
      CHECK(out[i] - expected[i] < 1e-5f && expected[i] - out[i] < 1e-5f);
    grow(f.cache, whole, 1);
    grow(f.cache, evicted, 1);
  }
  kvq_sequence_destroy(evicted);
  kvq_sequence_destroy(whole);
  fixture_close(&f);
}

void test_compress(void) {
  const char* const policies[] = {
      kSnap,
      "fp16+h2o:40",
      "int2+streaming:40",
      "gs2+h2o:40",
      "gt1/gs3+nocentre+adasnap:40",
      "gs2+centres/gt1+centres+snapkv:40",
      "version: 1\nvalues: int4\nsink: 1\neviction: {budget: 40, layers: pyramid, heads: reserved, group: max}\n",
      "int4+adasnap:10%",
      "version: 1\nvalues: int4\neviction: {method: pyramid, budget: 10%}\n",
  };
  size_t i;
  arguments();
  nothing_observed();
  too_few_observed("fp16+h2o:40", 1);
  too_few_observed("int4+h2o:40", 1);
  too_few_observed("int4+snapkv:40", 0);
  attention_to_what_was_cut();
  failed_attention_does_not_count("fp16+h2o:40");
  failed_attention_does_not_count("int4+snapkv:40");
  at_the_limit(kSnap, 1);
  at_the_limit("gs2+snapkv:100", 32);
  at_the_limit("gs2+h2o:64", 8);
  at_the_limit("int4+streaming:64", 3);
  at_the_limit("fp16+adapyramid:64", 16);
  pages_made_ahead();
  short_prompts();
  sliding_windows();
  for (i = 0; i < sizeof policies / sizeof policies[0]; ++i) {
    reports(policies[i]);
    failing_allocations(policies[i]);
  }
}
