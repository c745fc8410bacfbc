/* kvq_cache_usage: arguments, and the sums that must hold to the byte, seen from the allocator's side. */
#include "check.h"
#include "fixture.h"
#include "suites.h"
#include "trainer_fixture.h"

#include <math.h>
#include <string.h>

static void arguments(void) {
  fixture f;
  fixture other;
  kvq_sequence* foreign;
  kvq_usage usage;
  fixture_open(&f, "int4", 0, 0);
  fixture_open(&other, "int4", 0, 0);
  foreign = new_sequence(other.cache);
  memset(&usage, 0, sizeof usage);
  usage.struct_size = sizeof usage;
  REFUSED(KVQ_E_ARGUMENT, "cache", kvq_cache_usage(NULL, NULL, &usage, err));
  REFUSED(KVQ_E_ARGUMENT, "usage", kvq_cache_usage(f.cache, NULL, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "sequence", kvq_cache_usage(f.cache, foreign, &usage, err));
  usage.struct_size = 0;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_cache_usage(f.cache, NULL, &usage, err));
  usage.struct_size = 3;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_cache_usage(f.cache, NULL, &usage, err));
  usage.struct_size = UINT32_MAX;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_cache_usage(f.cache, NULL, &usage, err));
  kvq_sequence_destroy(foreign);
  fixture_close(&other);
  fixture_close(&f);
}

/* What holds for every usage, whatever was done before. */
static void consistent(const kvq_usage* u) {
  const double stored = (double)(u->sealed_bytes + u->fp16_bytes + u->metadata_bytes);
  CHECK(u->struct_size == sizeof *u);
  CHECK(u->total_bytes == u->sealed_bytes + u->fp16_bytes + u->metadata_bytes + u->workspace_bytes);
  CHECK(u->plain_fp16_bytes == 2 * (uint64_t)u->scalars);
  if (u->scalars == 0) {
    CHECK(u->bits_per_scalar == 0.0);
  } else {
    CHECK(fabs(u->bits_per_scalar - 8.0 * stored / (double)u->scalars) < 1e-9);
  }
  CHECK(u->shared_pages <= u->sealed_pages + u->fp16_pages);
}

/* The caller's allocator sees exactly the bytes that usage reports, from the cache's creation to its end. */
static void usage_is_what_was_allocated(const char* policy_text) {
  tracker memory;
  kvq_context_options context_options;
  kvq_cache_options options = small_cache_options();
  kvq_context* context = NULL;
  kvq_policy* policy;
  kvq_cache* cache = NULL;
  kvq_cache* first = NULL; /* data that all caches share belongs to none of them */
  kvq_centres* centres;
  kvq_sequence* sequences[3] = {NULL, NULL, NULL};
  kvq_usage whole;
  size_t base;
  int step;
  memset(&memory, 0, sizeof memory);
  kvq_context_options_init(&context_options, sizeof(context_options));
  context_options.allocate = tracker_allocate;
  context_options.free = tracker_free;
  context_options.allocator_user = &memory;
  ACCEPTED(kvq_context_create(&context_options, &context, err));
  policy = load_policy(context, policy_text);
  options.centres = centres = centres_for(context, policy_text);
  ACCEPTED(kvq_cache_create(context, &options, policy, &first, err));
  base = memory.live_bytes;
  ACCEPTED(kvq_cache_create(context, &options, policy, &cache, err));
  for (step = 0; step < 12; ++step) {
    float out[kQHeads * kHeadDim];
    if (step == 1) sequences[0] = new_sequence(cache);
    if (step == 2) sequences[1] = new_sequence(cache);
    if (step >= 3 && step < 6) grow(cache, sequences[step % 2], 17 * step);
    if (step == 6) ACCEPTED(attend_last(cache, sequences[1], out));
    if (step == 7) ACCEPTED(kvq_sequence_fork(cache, sequences[0], &sequences[2], err));
    if (step == 8) grow(cache, sequences[2], 50);
    if (step == 9) ACCEPTED(kvq_sequence_truncate(cache, sequences[2], 64, err));
    if (step == 10) kvq_sequence_destroy(sequences[0]);
    if (step == 11) ACCEPTED(attend_last(cache, sequences[2], out));
    whole = usage_of(cache, NULL);
    consistent(&whole);
    CHECK(whole.total_bytes == memory.live_bytes - base);
  }
  kvq_sequence_destroy(sequences[1]);
  kvq_sequence_destroy(sequences[2]);
  whole = usage_of(cache, NULL);
  CHECK(whole.total_bytes == memory.live_bytes - base);
  CHECK(whole.scalars == 0 && whole.sealed_pages == 0 && whole.fp16_pages == 0);
  CHECK(whole.sealed_bytes == 0 && whole.fp16_bytes == 0);
  kvq_cache_destroy(cache);
  CHECK(memory.live_bytes == base);
  kvq_cache_destroy(first);
  kvq_centres_destroy(centres);
  kvq_policy_destroy(policy);
  kvq_context_destroy(context);
  CHECK(memory.live_bytes == 0 && memory.live_blocks == 0 && memory.n_violations == 0);
}

/* A sequence's usage equals the growth of the cache's total. */
static void one_sequence(const char* policy_text) {
  fixture f;
  kvq_sequence* first;
  kvq_sequence* second;
  kvq_usage before;
  kvq_usage after;
  kvq_usage own;
  int32_t n;
  fixture_open(&f, policy_text, 0, 0);
  first = new_sequence(f.cache);
  grow(f.cache, first, 50);
  before = usage_of(f.cache, NULL);
  second = new_sequence(f.cache);
  for (n = 0; n < 10; ++n) {
    own = usage_of(f.cache, second);
    after = usage_of(f.cache, NULL);
    consistent(&own);
    consistent(&after);
    CHECK(own.workspace_bytes == 0);
    CHECK(own.total_bytes == after.total_bytes - before.total_bytes);
    CHECK(own.scalars == after.scalars - before.scalars);
    CHECK(own.scalars == (int64_t)2 * kHeadDim * kKvHeads * kLayers * 13 * n);
    CHECK(own.shared_pages == 0);
    grow(f.cache, second, 13);
  }
  kvq_sequence_destroy(second);
  after = usage_of(f.cache, NULL);
  CHECK(after.total_bytes == before.total_bytes);
  kvq_sequence_destroy(first);
  fixture_close(&f);
}

/* Pages a fork shares are counted once for the cache, in full for each sequence. */
static void shared_pages(void) {
  fixture f;
  kvq_sequence* parent;
  kvq_sequence* child = NULL;
  kvq_usage alone;
  kvq_usage whole;
  kvq_usage own;
  const uint64_t heads = (uint64_t)kLayers * kKvHeads;
  fixture_open(&f, "int4", 0, 0);
  parent = new_sequence(f.cache);
  grow(f.cache, parent, 100); /* three sealed pages and an open one per head */
  alone = usage_of(f.cache, NULL);
  CHECK(alone.sealed_pages == 3 * heads && alone.fp16_pages == heads && alone.shared_pages == 0);
  ACCEPTED(kvq_sequence_fork(f.cache, parent, &child, err));
  whole = usage_of(f.cache, NULL);
  CHECK(whole.scalars == alone.scalars); /* counted once */
  CHECK(whole.sealed_pages == 3 * heads && whole.fp16_pages == heads && whole.shared_pages == 4 * heads);
  CHECK(whole.sealed_bytes == alone.sealed_bytes && whole.fp16_bytes == alone.fp16_bytes);
  own = usage_of(f.cache, child);
  CHECK(own.scalars == alone.scalars);
  CHECK(own.sealed_pages == 3 * heads && own.shared_pages == 4 * heads);
  CHECK(own.sealed_bytes == alone.sealed_bytes && own.fp16_bytes == alone.fp16_bytes);
  grow(f.cache, child, 1); /* its open page is copied */
  whole = usage_of(f.cache, NULL);
  CHECK(whole.sealed_pages == 3 * heads && whole.fp16_pages == 2 * heads && whole.shared_pages == 3 * heads);
  kvq_sequence_destroy(parent);
  whole = usage_of(f.cache, NULL);
  CHECK(whole.sealed_pages == 3 * heads && whole.fp16_pages == heads && whole.shared_pages == 0);
  kvq_sequence_destroy(child);
  fixture_close(&f);
}

/* The context reports the same bytes that its hooks saw, and the largest number so far. */
static void context_bytes(void) {
  fixture f;
  kvq_sequence* sequence;
  kvq_context_info info;
  uint64_t full;
  fixture_open(&f, "int8", 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 100);
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_context_describe(f.context, &info, err));
  CHECK(info.bytes == f.memory.live_bytes);
  CHECK(info.peak_bytes >= info.bytes);
  full = info.bytes;
  kvq_sequence_destroy(sequence);
  ACCEPTED(kvq_context_describe(f.context, &info, err));
  CHECK(info.bytes == f.memory.live_bytes && info.bytes < full);
  CHECK(info.peak_bytes >= full);
  fixture_close(&f);
}

void test_usage(void) {
  arguments();
  usage_is_what_was_allocated("fp16");
  usage_is_what_was_allocated("int4");
  usage_is_what_was_allocated("gs2/gt1");
  usage_is_what_was_allocated("gs2+centres/gt1+centres");
  usage_is_what_was_allocated("version: 1\nkeys: int2+hadamard\nvalues: int8\nsink: 1\nrecent: 2\n");
  one_sequence("fp16");
  one_sequence("int3+hadamard");
  shared_pages();
  context_bytes();
}
