/* Every allocation of every call fails once: the call returns KVQ_E_MEMORY, changes nothing and leaks nothing. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMostAllocations = 100000 };

static int unused_place;

static void context_create(void) {
  long n;
  for (n = 1; n < kMostAllocations; ++n) {
    tracker memory;
    kvq_context_options options;
    kvq_context* context = (kvq_context*)&unused_place;
    kvq_status status;
    memset(&memory, 0, sizeof memory);
    kvq_context_options_init(&options, sizeof(options));
    options.n_threads = THREADS(3);
    options.allocate = tracker_allocate;
    options.free = tracker_free;
    options.allocator_user = &memory;
    memory.fail_at = n;
    status = kvq_context_create(&options, &context, err);
    if (status == KVQ_OK) {
      kvq_context_destroy(context);
      CHECK(memory.live_blocks == 0 && memory.n_violations == 0);
      return;
    }
    CHECK(status == KVQ_E_MEMORY);
    CHECK(context == NULL);
    CHECK(memory.live_blocks == 0 && memory.n_violations == 0);
  }
  CHECK(n < kMostAllocations);
}

static void policy_and_cache_create(void) {
  const char* text = "version: 1\nkeys: int4+hadamard\nvalues: int2\nlayers:\n  - {range: [1, 1], keys: fp16}\n";
  kvq_cache_options options = small_cache_options();
  float inv_freq[kHeadDim / 2] = {1.0f};
  fixture f;
  kvq_policy* policy = NULL;
  kvq_cache* cache = NULL;
  kvq_status status = KVQ_E_MEMORY;
  size_t live;
  long n;
  options.inv_freq = inv_freq;
  fixture_open(&f, NULL, 0, 0);
  live = f.memory.live_bytes;
  for (n = 1; status != KVQ_OK && n < kMostAllocations; ++n) {
    policy = (kvq_policy*)&unused_place;
    f.memory.fail_at = n;
    status = kvq_policy_load(f.context, text, strlen(text), &policy, err);
    CHECK(status == KVQ_OK || (status == KVQ_E_MEMORY && policy == NULL && f.memory.live_bytes == live));
  }
  f.memory.fail_at = 0;
  live = f.memory.live_bytes;
  status = KVQ_E_MEMORY;
  for (n = 1; status != KVQ_OK && n < kMostAllocations; ++n) {
    cache = (kvq_cache*)&unused_place;
    f.memory.fail_at = n;
    status = kvq_cache_create(f.context, &options, policy, &cache, err);
    CHECK(status == KVQ_OK || (status == KVQ_E_MEMORY && cache == NULL && f.memory.live_bytes == live));
  }
  CHECK(n > 2); /* creating a cache allocates */
  f.memory.fail_at = 0;
  kvq_cache_destroy(cache);
  kvq_policy_destroy(policy);
  fixture_close(&f);
}

/* Calls that change a cache with two sequences, a fork of one of them and a snapshot. */
typedef struct scene {
  fixture f;
  kvq_sequence* plain;  /* 70 tokens */
  kvq_sequence* parent; /* 50 tokens, shared with `child` */
  kvq_sequence* child;
  kvq_sequence* made; /* created by the call under test */
  blob snapshot;
} scene;

static kvq_status create_sequence(scene* s) { return kvq_sequence_create(s->f.cache, &s->made, err); }
static kvq_status fork_sequence(scene* s) { return kvq_sequence_fork(s->f.cache, s->plain, &s->made, err); }
static kvq_status load_sequence(scene* s) {
  return kvq_sequence_load(s->f.cache, s->snapshot.data, s->snapshot.size, &s->made, err);
}
static kvq_status append_one(scene* s) { return append_tokens(s->f.cache, s->plain, 0, 1); }
static kvq_status append_pages(scene* s) { return append_tokens(s->f.cache, s->plain, 0, 300); }
static kvq_status append_long(scene* s) { return append_tokens(s->f.cache, s->plain, 0, 2100); }
static kvq_status append_to_shared(scene* s) { return append_tokens(s->f.cache, s->child, 1, 20); }
static kvq_status truncate_shared(scene* s) { return kvq_sequence_truncate(s->f.cache, s->child, 40, err); }
static kvq_status truncate_to_border(scene* s) { return kvq_sequence_truncate(s->f.cache, s->child, 32, err); }
static kvq_status reserve_pages(scene* s) { return kvq_sequence_reserve(s->f.cache, s->plain, 300, err); }
static kvq_status reserve_for_shared(scene* s) { return kvq_sequence_reserve(s->f.cache, s->child, 300, err); }
static kvq_status append_to_all(scene* s) {
  enum { kTokens = 140 };
  static float kv[kTokens * kTokenScalars];
  const int32_t counts[3] = {70, 3, 67};
  kvq_sequence* sequences[3];
  kvq_append_batch batch;
  fill_tensor(kv, kTokens * kTokenScalars, 4);
  sequences[0] = s->plain;
  sequences[1] = s->parent;
  sequences[2] = s->child;
  kvq_append_batch_init(&batch, sizeof(batch));
  batch.n_sequences = 3;
  batch.sequences = sequences;
  batch.token_counts = counts;
  batch.k = kv;
  batch.v = kv;
  return kvq_append_sequences(s->f.cache, 0, &batch, err);
}
static kvq_status attend_many(scene* s) {
  enum { kQueries = 60 };
  static float q[2 * kQueries * kQHeads * kHeadDim];
  static float out[2 * kQueries * kQHeads * kHeadDim];
  const int32_t counts[2] = {kQueries, 40};
  const kvq_sequence* sequences[2];
  kvq_attend_batch batch;
  sequences[0] = s->plain;
  sequences[1] = s->child;
  kvq_attend_batch_init(&batch, sizeof(batch));
  batch.n_sequences = 2;
  batch.sequences = sequences;
  batch.query_counts = counts;
  batch.q = q;
  batch.output = out;
  return kvq_attend(s->f.cache, 0, &batch, err);
}

static kvq_status extend_all(scene* s, int32_t first, int32_t second) {
  enum { kTokens = 140 };
  static float kv[kTokens * kTokenScalars];
  static float q[kTokens * kQHeads * kHeadDim];
  static float out[kTokens * kQHeads * kHeadDim];
  const int32_t counts[2] = {first, second};
  kvq_sequence* sequences[2];
  kvq_extend_batch batch;
  fill_tensor(kv, kTokens * kTokenScalars, 4);
  fill_tensor(q, kTokens * kQHeads * kHeadDim, 5);
  sequences[0] = s->plain;
  sequences[1] = s->child;
  kvq_extend_batch_init(&batch, sizeof(batch));
  batch.n_sequences = 2;
  batch.sequences = sequences;
  batch.token_counts = counts;
  batch.k = kv;
  batch.v = kv;
  batch.q = q;
  batch.output = out;
  return kvq_extend(s->f.cache, 0, &batch, err);
}
static kvq_status extend_many(scene* s) { return extend_all(s, 70, 67); }
static kvq_status extend_few(scene* s) { return extend_all(s, 30, 3); }

static void scene_open(scene* s, const char* policy) {
  memset(s, 0, sizeof *s);
  fixture_open(&s->f, policy, 0, 0);
  s->plain = new_sequence(s->f.cache);
  s->parent = new_sequence(s->f.cache);
  grow(s->f.cache, s->plain, 70);
  grow(s->f.cache, s->parent, 50);
  ACCEPTED(kvq_sequence_fork(s->f.cache, s->parent, &s->child, err));
  s->snapshot = save_sequence(s->f.cache, s->plain);
}

static void scene_close(scene* s) {
  blob_free(&s->snapshot);
  kvq_sequence_destroy(s->made);
  kvq_sequence_destroy(s->child);
  kvq_sequence_destroy(s->parent);
  kvq_sequence_destroy(s->plain);
  fixture_close(&s->f);
}

/* `makes`: the call returns a sequence. `is_free`: it may need no memory. */
static void fail_each(const char* name, const char* policy, kvq_status (*call)(scene*), int makes, int is_free) {
  scene s;
  saved_state plain;
  saved_state parent;
  saved_state child;
  long n;
  kvq_status status = KVQ_E_MEMORY;
  scene_open(&s, policy);
  plain = take_state(s.f.cache, s.plain);
  parent = take_state(s.f.cache, s.parent);
  child = take_state(s.f.cache, s.child);
  for (n = 1; n < kMostAllocations; ++n) {
    const size_t live = s.f.memory.live_bytes;
    if (makes) s.made = (kvq_sequence*)&unused_place;
    s.f.memory.fail_at = n;
    status = call(&s);
    s.f.memory.fail_at = 0;
    if (status == KVQ_OK) break;
    if (status != KVQ_E_MEMORY) printf("%s, allocation %ld: %s\n", name, n, kvq_status_name(status));
    CHECK(status == KVQ_E_MEMORY);
    if (makes) CHECK(s.made == NULL);
    if (makes) CHECK(s.f.memory.live_bytes == live);
    CHECK(state_is(s.f.cache, s.plain, &plain));
    CHECK(state_is(s.f.cache, s.parent, &parent));
    CHECK(state_is(s.f.cache, s.child, &child));
  }
  CHECK(status == KVQ_OK);
  if (!is_free) {
    if (n == 1) printf("%s made no allocation\n", name);
    CHECK(n > 1);
  }
  /* The final result equals that of a run without failures. */
  {
    scene fresh;
    saved_state a;
    saved_state b;
    scene_open(&fresh, policy);
    CHECK(call(&fresh) == KVQ_OK);
    a = take_state(s.f.cache, makes ? s.made : s.plain);
    b = take_state(fresh.f.cache, makes ? fresh.made : fresh.plain);
    CHECK(a.snapshot.size == b.snapshot.size && memcmp(a.snapshot.data, b.snapshot.data, a.snapshot.size) == 0);
    state_free(&a);
    state_free(&b);
    a = take_state(s.f.cache, s.child);
    b = take_state(fresh.f.cache, fresh.child);
    CHECK(a.snapshot.size == b.snapshot.size && memcmp(a.snapshot.data, b.snapshot.data, a.snapshot.size) == 0);
    state_free(&a);
    state_free(&b);
    scene_close(&fresh);
  }
  state_free(&plain);
  state_free(&parent);
  state_free(&child);
  scene_close(&s);
}

static void changing_calls(const char* policy) {
  fail_each("kvq_sequence_create", policy, create_sequence, 1, 0);
  fail_each("kvq_sequence_fork", policy, fork_sequence, 1, 0);
  fail_each("kvq_sequence_load", policy, load_sequence, 1, 0);
  fail_each("kvq_sequence_reserve", policy, reserve_pages, 0, 0);
  fail_each("kvq_sequence_reserve of a shared page", policy, reserve_for_shared, 0, 0);
  fail_each("kvq_append of one token", policy, append_one, 0, 1);
  fail_each("kvq_append of ten pages", policy, append_pages, 0, 0);
  fail_each("kvq_append to a shared page", policy, append_to_shared, 0, 0);
  fail_each("kvq_append_sequences", policy, append_to_all, 0, 0);
  fail_each("kvq_sequence_truncate to a border", policy, truncate_to_border, 0, 1);
  fail_each("kvq_attend", policy, attend_many, 0, 0);
  fail_each("kvq_extend of many tokens", policy, extend_many, 0, 0);
  fail_each("kvq_extend of few tokens", policy, extend_few, 0, 0);
}

/* Sequences that wait for scales; the one of 70 tokens finds them while it is extended by 70, or given 2100 more. */
static void calls_while_waiting(void) {
  static const char policy[] = "{version: 1, keys: gs2, values: gs2, calibrate: first}";
  fail_each("kvq_sequence_create", policy, create_sequence, 1, 0);
  fail_each("kvq_sequence_fork", policy, fork_sequence, 1, 0);
  fail_each("kvq_sequence_load", policy, load_sequence, 1, 0);
  fail_each("kvq_append of ten pages", policy, append_pages, 0, 0);
  fail_each("kvq_append of more tokens than are waited for", policy, append_long, 0, 0);
  fail_each("kvq_append to a shared page", policy, append_to_shared, 0, 0);
  fail_each("kvq_attend", policy, attend_many, 0, 0);
  fail_each("kvq_extend of many tokens", policy, extend_many, 0, 0);
  fail_each("kvq_extend of few tokens", policy, extend_few, 0, 0);
}

void test_allocation_failures(void) {
  context_create();
  policy_and_cache_create();
  changing_calls("fp16");
  changing_calls("int4");
  changing_calls("gs2/gt2");
  changing_calls("gs2+centres/gt2+centres");
  changing_calls("version: 1\nkeys: int8+hadamard\nvalues: int2\nrecent: 2\n");
  changing_calls("{version: 1, keys: gs2, values: gs2, eviction: {method: h2o, budget: 40}}");
  calls_while_waiting();
  fail_each("kvq_sequence_truncate of a shared page", "fp16", truncate_shared, 0, 1);
}
