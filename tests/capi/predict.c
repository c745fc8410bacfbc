/* kvq_cache_predict_usage and qp_matrix_predict_bytes predict allocations to the byte. */
#include "check.h"
#include "fixture.h"
#include "objects.h"
#include "suites.h"
#include "trainer_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An unused cache, and another one that holds the data both share. */
typedef struct bench {
  tracker memory;
  kvq_context* context;
  kvq_policy* policy;
  kvq_codebook* codebook;
  kvq_centres* centres;
  kvq_cache* first;
  kvq_cache* cache;
  size_t base; /* bytes before `cache` */
  kvq_cache_options shape;
} bench;

typedef struct shape {
  int32_t n_layers;
  int32_t q_heads;
  int32_t kv_heads;
  int32_t head_dim;
} shape;

typedef struct load {
  int32_t sequences;
  int32_t tokens;
  int32_t queries;
} load;

enum { kMostSequences = 3 };

static kvq_codebook* codebook_for(kvq_context* context, const char* policy) {
  kvq_codebook_trainer_options options = small_codebook_options();
  kvq_codebook_trainer* trainer;
  kvq_codebook* codebook = NULL;
  static float k[kCodebookScalars];
  static float v[kCodebookScalars];
  int32_t layer;
  if (strstr(policy, "commvq") == NULL) return NULL;
  trainer = new_codebook_trainer(context, &options);
  for (layer = 0; layer < kLayers; ++layer) {
    fill_tensor(k, kCodebookScalars, (uint32_t)layer);
    fill_tensor(v, kCodebookScalars, 10 + (uint32_t)layer);
    ACCEPTED(kvq_codebook_trainer_add(trainer, layer, kCodebookTokens, k, v, KVQ_F32, err));
    ACCEPTED(kvq_codebook_trainer_run(trainer, layer, NULL, NULL, err));
  }
  ACCEPTED(kvq_codebook_trainer_result(trainer, &codebook, err));
  kvq_codebook_trainer_destroy(trainer);
  return codebook;
}

static void bench_open(bench* b, const shape* of, const char* policy_text, int32_t n_threads) {
  kvq_context_options options;
  memset(b, 0, sizeof *b);
  kvq_context_options_init(&options, sizeof(options));
  options.allocate = tracker_allocate;
  options.free = tracker_free;
  options.allocator_user = &b->memory;
  options.n_threads = THREADS(n_threads);
  ACCEPTED(kvq_context_create(&options, &b->context, err));
  b->policy = load_policy(b->context, policy_text);
  b->shape = small_cache_options();
  b->shape.n_layers = of->n_layers;
  b->shape.q_heads = of->q_heads;
  b->shape.kv_heads = of->kv_heads;
  b->shape.head_dim = of->head_dim;
  b->shape.codebook = b->codebook = codebook_for(b->context, policy_text);
  b->shape.centres = b->centres = centres_for(b->context, policy_text);
  ACCEPTED(kvq_cache_create(b->context, &b->shape, b->policy, &b->first, err));
  b->base = b->memory.live_bytes;
  ACCEPTED(kvq_cache_create(b->context, &b->shape, b->policy, &b->cache, err));
}

static void bench_close(bench* b) {
  kvq_cache_destroy(b->cache);
  CHECK(b->memory.live_bytes == b->base);
  kvq_cache_destroy(b->first);
  kvq_policy_destroy(b->policy);
  kvq_centres_destroy(b->centres);
  kvq_codebook_destroy(b->codebook);
  kvq_context_destroy(b->context);
  CHECK(b->memory.live_bytes == 0 && b->memory.n_violations == 0);
}

static kvq_usage predicted(const bench* b, const load* of) {
  kvq_usage usage;
  memset(&usage, 0x77, sizeof usage);
  usage.struct_size = sizeof usage;
  ACCEPTED(kvq_cache_predict_usage(b->cache, of->sequences, of->tokens, of->queries, &usage, err));
  return usage;
}

/* Reserve and append `at_once` tokens at a time. */
static void fill_sequence(const bench* b, kvq_sequence* sequence, int32_t tokens, int32_t at_once) {
  const size_t token = (size_t)b->shape.kv_heads * (size_t)b->shape.head_dim;
  float* numbers = (float*)malloc(token * (size_t)at_once * sizeof *numbers);
  int32_t layer;
  int32_t done;
  fill_tensor(numbers, token * (size_t)at_once, 5);
  ACCEPTED(kvq_sequence_reserve(b->cache, sequence, tokens, err));
  for (layer = 0; layer < b->shape.n_layers; ++layer) {
    for (done = 0; done < tokens; done += at_once) {
      const int32_t n = tokens - done < at_once ? tokens - done : at_once;
      ACCEPTED(kvq_append(b->cache, sequence, layer, n, numbers, numbers, KVQ_F32, NULL, err));
    }
  }
  free(numbers);
}

static void attend_all(const bench* b, kvq_sequence** sequences, const load* of) {
  const size_t queries = (size_t)of->sequences * (size_t)of->queries;
  const size_t scalars = queries * (size_t)b->shape.q_heads * (size_t)b->shape.head_dim;
  int32_t* positions = (int32_t*)malloc(queries * sizeof *positions);
  float* q = (float*)malloc(scalars * sizeof *q);
  float* output = (float*)malloc(scalars * sizeof *output);
  int32_t counts[kMostSequences];
  kvq_attend_batch batch;
  int32_t layer;
  size_t i;
  fill_tensor(q, scalars, 9);
  kvq_attend_batch_init(&batch, sizeof(batch));
  for (i = 0; i < (size_t)of->sequences; ++i) counts[i] = of->queries;
  for (i = 0; i < queries; ++i) positions[i] = of->tokens;
  batch.n_sequences = of->sequences;
  batch.sequences = (const kvq_sequence* const*)sequences;
  batch.query_counts = counts;
  if (of->queries > of->tokens) batch.query_positions = positions;
  batch.q = q;
  batch.output = output;
  for (layer = 0; layer < b->shape.n_layers; ++layer) ACCEPTED(kvq_attend(b->cache, layer, &batch, err));
  free(positions);
  free(q);
  free(output);
}

static void check_same(const kvq_usage* expected, const kvq_usage* found, const char* policy, const load* of) {
  const int same = memcmp(expected, found, sizeof *found) == 0;
  CHECK(same);
  if (same) return;
  printf("%s, %d sequences, %d tokens, %d queries: predicted, found\n", policy, of->sequences, of->tokens, of->queries);
  printf("  sealed %llu %llu, fp16 %llu %llu, metadata %llu %llu, workspace %llu %llu\n",
         (unsigned long long)expected->sealed_bytes, (unsigned long long)found->sealed_bytes,
         (unsigned long long)expected->fp16_bytes, (unsigned long long)found->fp16_bytes,
         (unsigned long long)expected->metadata_bytes, (unsigned long long)found->metadata_bytes,
         (unsigned long long)expected->workspace_bytes, (unsigned long long)found->workspace_bytes);
}

/* Tokens that wait in FP16 for scales. */
enum { kCalibrationTokens = 128 };

static int calibrates(const kvq_policy* policy) {
  kvq_policy_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_policy_describe(policy, &info, err));
  return info.calibrates;
}

/* Do everything that the prediction assumes, and compare. */
static void as_predicted(const shape* of, const char* policy, int32_t n_threads, const load* what, int32_t at_once) {
  kvq_sequence* sequences[kMostSequences];
  kvq_usage before;
  kvq_usage held;
  kvq_usage found;
  bench b;
  size_t live;
  int32_t i;
  bench_open(&b, of, policy, n_threads);
  live = b.memory.live_bytes;
  before = predicted(&b, what);
  CHECK(b.memory.live_bytes == live);
  for (i = 0; i < what->sequences; ++i) {
    sequences[i] = new_sequence(b.cache);
    fill_sequence(&b, sequences[i], what->tokens, at_once);
  }
  if (what->queries > 0) attend_all(&b, sequences, what);
  held = before; /* nothing runs now */
  held.total_bytes -= held.transient_bytes;
  held.transient_bytes = 0;
  {
    kvq_cache_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    ACCEPTED(kvq_cache_describe(b.cache, &info, err));
    /* Sequences that find scales wait for them, search, and keep what they had counted of queries. */
    CHECK((before.transient_bytes > 0) ==
          (what->queries > KVQ_PAGE_SLOTS || info.eviction_budget > 0 ||
           (calibrates(b.policy) && (what->tokens >= kCalibrationTokens || (what->tokens > 0 && what->queries > 0)))));
  }
  found = usage_of(b.cache, NULL);
  check_same(&held, &found, policy, what);
  CHECK(held.total_bytes == b.memory.live_bytes - b.base);
  /* Repeating it needs no memory, except for methods that keep the newest queries. */
  if (what->queries > 0 && strstr(policy, "snap") == NULL && strstr(policy, "pyramid") == NULL) {
    attend_all(&b, sequences, what);
    found = usage_of(b.cache, NULL);
    check_same(&held, &found, policy, what);
  }
  found = predicted(&b, what); /* the current contents do not matter */
  check_same(&before, &found, policy, what);
  for (i = 0; i < what->sequences; ++i) kvq_sequence_destroy(sequences[i]);
  bench_close(&b);
}

static const char* const kPolicies[] = {
    "fp16",
    "int8",
    "int4",
    "int2",
    "int4+hadamard",
    "gs2",
    "gt1",
    "gs4/gs2",
    "gs2+nocentre/int3",
    "int2+hadamard/fp16",
    "version: 1\nkeys: int4\nvalues: int4\nsink: 3\n",
    "version: 1\nkeys: gs2\nvalues: gs2\nsink: 0\nrecent: 1\n",
    "version: 1\nkeys: gs2\nvalues: gs2\nsink: 2\nrecent: 3\n",
    "version: 1\nkeys: int2\nvalues: int2\nrecent: 40\n",
    "version: 1\nkeys: gs2\nvalues: gt2\nlayers: [{range: [0, 0], keys: fp16, values: fp16}]\n",
    "version: 1\nkeys: fp16\nvalues: int2+hadamard\nlayers: [{range: [1, 1], keys: gs3, values: int8}]\n",
    "int4+streaming:64",
    "gs2+snapkv:64",
    "int4+hadamard+h2o:64",
    "version: 1\nkeys: int4\nvalues: int4\neviction: {method: h2o, budget: 64, group: max}\n",
    "fp16+adapyramid:128",
    "version: 1\nkeys: gs2\nvalues: gs2\ncalibrate: first\n",
    "version: 1\nkeys: gs2\nvalues: gt1\nsink: 0\nrecent: 3\ncalibrate: first\n",
    "{version: 1, keys: int4, values: gs2, calibrate: first, eviction: {method: streaming, budget: 64}}",
};

static void policies(void) {
  static const shape kShape = {2, 4, 2, 64};
  static const int32_t kTokens[] = {1, 31, 32, 33, 100, 128, 1000};
  static const int32_t kQueries[] = {0, 1, 7, 40};
  size_t policy;
  size_t t;
  size_t q;
  for (policy = 0; policy < sizeof kPolicies / sizeof kPolicies[0]; ++policy) {
    for (t = 0; t < sizeof kTokens / sizeof kTokens[0]; ++t) {
      for (q = 0; q < sizeof kQueries / sizeof kQueries[0]; ++q) {
        const load what = {(t + q) % 2 == 0 ? 1 : 3, kTokens[t], kQueries[q]};
        as_predicted(&kShape, kPolicies[policy], 1 + (int32_t)((policy + t) % 2), &what, KVQ_PAGE_SLOTS);
      }
    }
  }
}

static void shapes(void) {
  static const shape kShapes[] = {{1, 1, 1, 128}, {2, 8, 8, 80}, {3, 16, 2, 128}, {2, 6, 3, 40}};
  static const char* const kSome[] = {"fp16", "int4", "gs2", "gs2+h2o:64"};
  static const load kLoads[] = {{1, 4096, 1}, {3, 300, 40}, {1, 65, 33}, {2, 0, 0}, {1, 0, 2}};
  static const int32_t kAtOnce[] = {29, 8, 1, 1, 1};
  size_t s;
  size_t policy;
  size_t l;
  for (s = 0; s < sizeof kShapes / sizeof kShapes[0]; ++s) {
    for (policy = 0; policy < sizeof kSome / sizeof kSome[0]; ++policy) {
      for (l = 0; l < sizeof kLoads / sizeof kLoads[0]; ++l) {
        as_predicted(&kShapes[s], kSome[policy], 2, &kLoads[l], kAtOnce[l]);
      }
    }
  }
}

/* A prompt in one append. */
static void at_once(void) {
  static const shape kShape = {2, 4, 2, 64};
  static const load kLoads[] = {{1, 100, 100}, {3, 1000, 3}};
  size_t policy;
  for (policy = 0; policy < sizeof kPolicies / sizeof kPolicies[0]; ++policy) {
    /* A sequence that finds its scales would wait for another call. */
    if (strstr(kPolicies[policy], "calibrate: first") != NULL) continue;
    as_predicted(&kShape, kPolicies[policy], 2, &kLoads[policy % 2], 1000);
  }
}

static const char* const kTrained[] = {
    "commvq",
    "int4/commvq",
    "version: 1\nkeys: commvq\nvalues: commvq\ncommvq: {attention: tables}\n",
    "version: 1\nkeys: commvq\nvalues: int8\ncommvq: {attention: rebuild}\nsink: 1\n",
    "version: 1\nkeys: commvq\nvalues: commvq\nlayers: [{range: [1, 1], keys: gs2, values: int4}]\n",
    "gs2+centres/gt1+centres",
    "gs2+centres/gs1",
    "gs3/gs2+centres",
};

/* Formats that need training; each way to attend to them needs its own workspace. */
static void trained(void) {
  static const shape kShape = {kLayers, kQHeads, kKvHeads, kHeadDim};
  static const load kLoads[] = {{1, 70, 1}, {3, 200, 2}, {2, 2500, 5}, {1, 90, 40}};
  size_t policy;
  size_t l;
  for (policy = 0; policy < sizeof kTrained / sizeof kTrained[0]; ++policy) {
    for (l = 0; l < sizeof kLoads / sizeof kLoads[0]; ++l) {
      as_predicted(&kShape, kTrained[policy], 1 + (int32_t)(l % 2), &kLoads[l], KVQ_PAGE_SLOTS);
    }
  }
}

/* One step of an engine on every layer: some tokens of each sequence, then the queries of the newest. */
static void decode_step(const bench* b, kvq_sequence** sequences, int32_t n_sequences, const int32_t* counts, int way,
                        uint32_t seed) {
  enum { kMost = kMostSequences * KVQ_PAGE_SLOTS, kMostRow = 4 * 64 };
  static float k[kMost * kMostRow];
  static float q[kMost * kMostRow];
  static float output[kMost * kMostRow];
  kvq_append_batch append;
  kvq_extend_batch extend;
  kvq_attend_batch attend;
  int32_t layer;
  int32_t i;
  CHECK(b->shape.q_heads * b->shape.head_dim <= kMostRow);
  fill_tensor(k, sizeof k / sizeof *k, 2 * seed + 1);
  fill_tensor(q, sizeof q / sizeof *q, 2 * seed + 2);
  kvq_append_batch_init(&append, sizeof append);
  append.n_sequences = n_sequences;
  append.sequences = sequences;
  append.token_counts = counts;
  append.k = append.v = k;
  kvq_extend_batch_init(&extend, sizeof extend);
  extend.n_sequences = n_sequences;
  extend.sequences = sequences;
  extend.token_counts = counts;
  extend.k = extend.v = k;
  extend.q = q;
  extend.output = output;
  kvq_attend_batch_init(&attend, sizeof attend);
  attend.n_sequences = n_sequences;
  attend.sequences = (const kvq_sequence* const*)sequences;
  attend.q = q;
  attend.output = output;
  for (layer = 0; layer < b->shape.n_layers; ++layer) {
    if (way == 0) {
      for (i = 0; i < n_sequences; ++i) {
        ACCEPTED(kvq_append(b->cache, sequences[i], layer, counts[i], k, k, KVQ_F32, NULL, err));
      }
    } else if (way == 1) {
      ACCEPTED(kvq_append_sequences(b->cache, layer, &append, err));
    } else {
      ACCEPTED(kvq_extend(b->cache, layer, &extend, err));
    }
    if (way < 2) ACCEPTED(kvq_attend(b->cache, layer, &attend, err));
  }
}

/* Once pages are reserved and scales found, decoding never calls the allocator, and a cache that may hold no more than
 * its prediction runs to the last token. */
static void reserved_decoding(const shape* of, const char* policy, int32_t n_sequences, int32_t n_threads) {
  load what = {n_sequences, 300, 0};
  kvq_sequence* sequences[kMostSequences];
  int32_t left[kMostSequences];
  size_t calls;
  kvq_usage before;
  kvq_usage expected;
  bench b;
  int searches;
  int32_t most;
  int32_t i;
  int way;
  bench_open(&b, of, policy, n_threads);
  searches = calibrates(b.policy);
  if (searches) {
    what.tokens = 500;
    what.queries = KVQ_PAGE_SLOTS;
  }
  expected = predicted(&b, &what);
  b.shape.max_bytes = expected.total_bytes;
  kvq_cache_destroy(b.cache);
  ACCEPTED(kvq_cache_create(b.context, &b.shape, b.policy, &b.cache, err));
  for (i = 0; i < n_sequences; ++i) {
    left[i] = what.tokens;
    sequences[i] = new_sequence(b.cache);
    ACCEPTED(kvq_sequence_reserve(b.cache, sequences[i], what.tokens, err));
  }
  before = usage_of(b.cache, NULL);
  calls = b.memory.n_allocations;
  for (way = 0; left[0] > 0; way = (way + 1) % 3) {
    /* One query fits wherever it attends; an extension has as many as it has tokens. */
    int32_t counts[kMostSequences];
    for (i = 0; i < n_sequences; ++i) {
      counts[i] = way == 2 || left[0] <= 64 ? 1 : 1 + (left[0] * 7 + i * 5) % KVQ_PAGE_SLOTS;
    }
    for (i = 0; i < n_sequences; ++i) {
      if (counts[i] > left[i]) counts[i] = left[i];
      if (left[0] == 1) counts[i] = left[i]; /* the last step uses up what the others have left */
      if (counts[i] < 1) break;
      left[i] -= counts[i];
    }
    if (i < n_sequences) break;
    decode_step(&b, sequences, n_sequences, counts, way, (uint32_t)left[0]);
    for (i = 1, most = left[0]; i < n_sequences; ++i) {
      if (left[i] > most) most = left[i];
    }
    /* Pages that waited beyond their places are gone when three more have been sealed. */
    if (searches && what.tokens - most > kCalibrationTokens + 3 * KVQ_PAGE_SLOTS) {
      searches = 0;
      before = usage_of(b.cache, NULL);
      calls = b.memory.n_allocations;
      CHECK(before.total_bytes <= expected.total_bytes - expected.transient_bytes);
    }
  }
  CHECK(!searches);
  if (b.memory.n_allocations != calls) {
    printf("%s, %d sequences: %zu calls of the allocator\n", policy, (int)n_sequences, b.memory.n_allocations - calls);
  }
  CHECK(b.memory.n_allocations == calls);
  CHECK(usage_of(b.cache, NULL).total_bytes == before.total_bytes);
  for (i = 0; i < n_sequences; ++i) kvq_sequence_destroy(sequences[i]);
  bench_close(&b);
}

static void reservations(void) {
  static const shape kShape = {2, 4, 2, 64};
  static const shape kSmall = {kLayers, kQHeads, kKvHeads, kHeadDim};
  size_t i;
  for (i = 0; i < sizeof kPolicies / sizeof kPolicies[0]; ++i) {
    reserved_decoding(&kShape, kPolicies[i], i % 2 == 0 ? 1 : kMostSequences, 1 + (int32_t)(i / 2 % 2));
    reserved_decoding(&kShape, kPolicies[i], i % 2 == 0 ? kMostSequences : 1, 1 + (int32_t)(i / 2 % 2));
  }
  for (i = 0; i < sizeof kTrained / sizeof kTrained[0]; ++i) {
    reserved_decoding(&kSmall, kTrained[i], 1, 1 + (int32_t)(i % 2));
    reserved_decoding(&kSmall, kTrained[i], kMostSequences, 1 + (int32_t)(i % 2));
  }
}

/* Predicting a large model makes only a few small allocations and frees them. */
static void large(void) {
  static const shape kShape = {32, 32, 8, 128};
  static const load kLoad = {16, 131072, 1};
  kvq_usage usage;
  bench b;
  size_t live;
  size_t allocations;
  bench_open(&b, &kShape, "gs2", 1);
  live = b.memory.live_bytes;
  allocations = b.memory.n_allocations;
  usage = predicted(&b, &kLoad);
  CHECK(b.memory.live_bytes == live);
  CHECK(b.memory.n_allocations < allocations + 10);
  CHECK(usage.scalars == (int64_t)16 * 131072 * 32 * 8 * 128 * 2);
  CHECK(usage.bits_per_scalar > 2.0 && usage.bits_per_scalar < 2.6);
  CHECK(usage.sealed_pages == (uint64_t)16 * 32 * 8 * 4094); /* except the sink and the newest page */
  CHECK(usage.fp16_pages == (uint64_t)16 * 32 * 8 * 3);      /* the sink, the open page and the one before it */
  CHECK(usage.fp16_bytes == usage.fp16_pages * 32 * 128 * 2 * 2);
  bench_close(&b);
}

static void refused_usage(void) {
  static const shape kShape = {2, 4, 2, 64};
  kvq_usage usage;
  bench b;
  bench_open(&b, &kShape, "int4", 1);
  memset(&usage, 0, sizeof usage);
  usage.struct_size = sizeof usage;
  REFUSED(KVQ_E_ARGUMENT, "cache", kvq_cache_predict_usage(NULL, 1, 1, 1, &usage, err));
  REFUSED(KVQ_E_ARGUMENT, "usage", kvq_cache_predict_usage(b.cache, 1, 1, 1, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "sequences is 0", kvq_cache_predict_usage(b.cache, 0, 1, 1, &usage, err));
  REFUSED(KVQ_E_ARGUMENT, "sequences is -3", kvq_cache_predict_usage(b.cache, -3, 1, 1, &usage, err));
  REFUSED(KVQ_E_ARGUMENT, "tokens is -1", kvq_cache_predict_usage(b.cache, 1, -1, 1, &usage, err));
  REFUSED(KVQ_E_ARGUMENT, "tokens is 2147483647", kvq_cache_predict_usage(b.cache, 1, INT32_MAX, 1, &usage, err));
  REFUSED(KVQ_E_ARGUMENT, "queries is -7", kvq_cache_predict_usage(b.cache, 1, 1, -7, &usage, err));
  REFUSED(KVQ_E_ARGUMENT, "sequences is 2147483647",
          kvq_cache_predict_usage(b.cache, INT32_MAX, 1000000, 0, &usage, err));
  ALSO_MENTIONS("tokens 1000000");
  REFUSED(KVQ_E_ARGUMENT, "queries 1000000", kvq_cache_predict_usage(b.cache, 65536, 1, 1000000, &usage, err));
  CHECK(usage.scalars == 0 && usage.total_bytes == 0);
  usage.struct_size = 3;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_cache_predict_usage(b.cache, 1, 1, 1, &usage, err));
  bench_close(&b);
}

/* The formats that a router will choose are unknown. */
static void routed(void) {
  objects o;
  kvq_usage usage;
  objects_open(&o);
  memset(&usage, 0, sizeof usage);
  usage.struct_size = sizeof usage;
  REFUSED(KVQ_E_UNSUPPORTED, "router", kvq_cache_predict_usage(o.routed, 1, 100, 0, &usage, err));
  ALSO_MENTIONS("tokens is 100");
  objects_close(&o);
}

/* ---------------------------------------------------------------------------------------------- linear layers */

static uint64_t bytes_of(const qp_matrix* matrix) {
  qp_matrix_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(qp_matrix_describe(matrix, &info, err));
  return info.bytes;
}

static void matrix_as_predicted(kvq_context* context, const tracker* memory, const char* scheme, int64_t rows,
                                int64_t columns, int32_t has_bias) {
  const size_t n = (size_t)(rows * columns);
  float* w = (float*)malloc((n + (size_t)rows) * sizeof *w);
  size_t live = memory->live_bytes;
  const char* const name = "matrix";
  const qp_matrix* saved;
  qp_quantize_options options;
  qp_matrix* matrix = NULL;
  uint64_t bytes = 0;
  uint64_t allocated = 0;
  uint64_t alone = 0;
  size_t size = 0;
  void* file;
  fill_tensor(w, n + (size_t)rows, 3);
  ACCEPTED(qp_matrix_predict_bytes(scheme, rows, columns, has_bias, &bytes, &allocated, err));
  ACCEPTED(qp_matrix_predict_bytes(scheme, rows, columns, has_bias, &alone, NULL, err));
  CHECK(alone == bytes);
  qp_quantize_options_init(&options, sizeof(options));
  options.scheme = scheme;
  options.bias = has_bias != 0 ? w + n : NULL;
  ACCEPTED(qp_quantize(context, &options, w, rows, columns, &matrix, err));
  CHECK(bytes_of(matrix) == bytes);
  CHECK(memory->live_bytes - live == allocated);
  saved = matrix;
  ACCEPTED(qp_matrix_save(&saved, &name, 1, NULL, 0, &size, err));
  file = malloc(size);
  ACCEPTED(qp_matrix_save(&saved, &name, 1, file, size, &size, err));
  qp_matrix_destroy(matrix);
  CHECK(memory->live_bytes == live);
  ACCEPTED(qp_matrix_load(context, file, size, name, &matrix, err));
  CHECK(bytes_of(matrix) == bytes);
  CHECK(memory->live_bytes - live == allocated);
  qp_matrix_destroy(matrix);
  free(file);
  free(w);
}

static void matrices(void) {
  fixture f;
  int32_t i;
  fixture_open(&f, NULL, 0, 0);
  for (i = 0; i < qp_scheme_count(); ++i) {
    const char* const scheme = qp_scheme_name(i);
    const int quick = scheme[0] != 't';
    matrix_as_predicted(f.context, &f.memory, scheme, 1, 64, 1);
    matrix_as_predicted(f.context, &f.memory, scheme, 17, 64, 0);
    matrix_as_predicted(f.context, &f.memory, scheme, 16, quick ? 320 : 128, 1);
    if (quick) matrix_as_predicted(f.context, &f.memory, scheme, 100, 1024, i % 2);
  }
  fixture_close(&f);
}

static void refused_matrices(void) {
  uint64_t bytes = 7;
  uint64_t allocated = 8;
  REFUSED(KVQ_E_ARGUMENT, "scheme is NULL", qp_matrix_predict_bytes(NULL, 16, 64, 0, &bytes, &allocated, err));
  REFUSED(KVQ_E_ARGUMENT, "scheme is \"nuq-7\"", qp_matrix_predict_bytes("nuq-7", 16, 64, 0, &bytes, &allocated, err));
  REFUSED(KVQ_E_ARGUMENT, "rows is 0", qp_matrix_predict_bytes("nuq-4", 0, 64, 0, &bytes, &allocated, err));
  REFUSED(KVQ_E_ARGUMENT, "rows is 16777217",
          qp_matrix_predict_bytes("nuq-4", (1 << 24) + 1, 64, 0, &bytes, &allocated, err));
  REFUSED(KVQ_E_ARGUMENT, "columns is 32", qp_matrix_predict_bytes("nuq-4", 16, 32, 0, &bytes, &allocated, err));
  REFUSED(KVQ_E_ARGUMENT, "columns is 100", qp_matrix_predict_bytes("nuq-4", 16, 100, 0, &bytes, &allocated, err));
  REFUSED(KVQ_E_ARGUMENT, "has_bias is 2", qp_matrix_predict_bytes("nuq-4", 16, 64, 2, &bytes, &allocated, err));
  REFUSED(KVQ_E_ARGUMENT, "has_bias is -1", qp_matrix_predict_bytes("nuq-4", 16, 64, -1, &bytes, &allocated, err));
  REFUSED(KVQ_E_ARGUMENT, "bytes is NULL", qp_matrix_predict_bytes("nuq-4", 16, 64, 0, NULL, &allocated, err));
  CHECK(bytes == 7 && allocated == 8);
  ACCEPTED(qp_matrix_predict_bytes("tcq-2.75", 1 << 24, 1 << 20, 1, &bytes, &allocated, err));
  CHECK(bytes > ((uint64_t)1 << 42) && allocated > bytes && allocated < bytes + ((uint64_t)1 << 20));
}

void test_predict(void) {
  refused_usage();
  routed();
  policies();
  shapes();
  at_once();
  trained();
  reservations();
  large();
  matrices();
  refused_matrices();
}
