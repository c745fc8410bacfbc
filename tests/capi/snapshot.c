/* kvq_sequence_load: round trips, and input that is damaged, truncated, or meant for another cache. */
#include "check.h"
#include "fixture.h"
#include "suites.h"
#include "trainer_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int unused_place;

static const char* const kPolicies[] = {
    "fp16",
    "int8",
    "int3+hadamard",
    "version: 1\nkeys: int4\nvalues: {format: int2, group: 64}\nsink: 1\nrecent: 2\n",
    "version: 1\nkeys: gs2\nvalues: gt1\nsink: 0\n",
    "version: 1\nkeys: gs2+centres\nvalues: gt1+centres\nsink: 0\n",
};

/* Loading gives an independent sequence that saves to the same bytes, attends to the same numbers and grows on alike.
 */
static void round_trip(const char* policy, int32_t n) {
  fixture f;
  kvq_sequence* sequence;
  kvq_sequence* loaded = NULL;
  blob saved;
  blob again;
  fixture_open(&f, policy, 0, 0);
  sequence = new_sequence(f.cache);
  if (n > 0) grow(f.cache, sequence, n);
  saved = save_sequence(f.cache, sequence);
  ACCEPTED(kvq_sequence_load(f.cache, saved.data, saved.size, &loaded, err));
  again = save_sequence(f.cache, loaded);
  CHECK(same_blobs(&saved, &again));
  blob_free(&again);
  blob_free(&saved); /* the sequence does not refer to the buffer */
  if (n > 0) {
    float out[2][kQHeads * kHeadDim];
    ACCEPTED(attend_last(f.cache, sequence, out[0]));
    ACCEPTED(attend_last(f.cache, loaded, out[1]));
    CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0);
  }
  grow(f.cache, sequence, 40);
  grow(f.cache, loaded, 40);
  saved = save_sequence(f.cache, sequence);
  again = save_sequence(f.cache, loaded);
  CHECK(same_blobs(&saved, &again));
  blob_free(&again);
  blob_free(&saved);
  kvq_sequence_destroy(loaded);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

static void arguments(void) {
  fixture f;
  kvq_sequence* sequence;
  kvq_sequence* loaded = (kvq_sequence*)&unused_place;
  blob saved;
  kvq_status status;
  fixture_open(&f, "int4", 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 40);
  saved = save_sequence(f.cache, sequence);
  REFUSED(KVQ_E_ARGUMENT, "cache", kvq_sequence_load(NULL, saved.data, saved.size, &loaded, err));
  CHECK(loaded == NULL);
  loaded = (kvq_sequence*)&unused_place;
  REFUSED(KVQ_E_ARGUMENT, "buffer", kvq_sequence_load(f.cache, NULL, saved.size, &loaded, err));
  CHECK(loaded == NULL);
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_sequence_load(f.cache, saved.data, saved.size, NULL, err));
  loaded = (kvq_sequence*)&unused_place;
  status = kvq_sequence_load(f.cache, saved.data, 0, &loaded, err);
  CHECK(status == KVQ_E_FORMAT || status == KVQ_E_ARGUMENT);
  CHECK(loaded == NULL);
  blob_free(&saved);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* Every shorter size, and a longer one, each in a block of exactly that size so that reading past its end is seen. */
static void every_truncation(const char* policy) {
  fixture f;
  kvq_sequence* sequence;
  blob saved;
  size_t size;
  size_t live;
  fixture_open(&f, policy, 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 70);
  saved = save_sequence(f.cache, sequence);
  live = f.memory.live_bytes;
  for (size = 1; size <= saved.size + 1; ++size) {
    kvq_sequence* loaded = (kvq_sequence*)&unused_place;
    unsigned char* copy;
    kvq_status status;
    if (size == saved.size) continue;
    copy = (unsigned char*)malloc(size);
    memcpy(copy, saved.data, size < saved.size ? size : saved.size);
    if (size > saved.size) copy[saved.size] = 0;
    status = kvq_sequence_load(f.cache, copy, size, &loaded, NULL);
    if (status != KVQ_E_FORMAT) printf("%s: %u of %u bytes\n", policy, (unsigned)size, (unsigned)saved.size);
    CHECK(status == KVQ_E_FORMAT);
    CHECK(loaded == NULL);
    CHECK(f.memory.live_bytes == live);
    free(copy);
  }
  blob_free(&saved);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* Any loaded sequence works like any other. */
static void use(const fixture* f, kvq_sequence* sequence) {
  float out[kQHeads * kHeadDim];
  float v[kHeadDim];
  int32_t layer;
  kvq_sequence* child = NULL;
  for (layer = 0; layer < kLayers; ++layer) {
    const int32_t n = length_of(sequence, layer);
    if (n > 0) CHECK(kvq_sequence_decode(f->cache, sequence, layer, 0, n - 1, 1, NULL, v, NULL, NULL) == KVQ_OK);
  }
  if (length_of(sequence, 0) > 0) CHECK(attend_last(f->cache, sequence, out) == KVQ_OK);
  CHECK(kvq_sequence_fork(f->cache, sequence, &child, NULL) == KVQ_OK);
  (void)append_tokens(f->cache, child, 0, 33); /* no positions may be left */
  kvq_sequence_destroy(child);
}

/* Every byte changed in two ways: refused, or a sequence that works and saves to the changed bytes. */
static void every_byte_changed(const char* policy) {
  const unsigned char changes[] = {0x01, 0xFF};
  fixture f;
  kvq_sequence* sequence;
  blob saved;
  size_t i;
  size_t c;
  size_t live;
  size_t n_refused = 0;
  fixture_open(&f, policy, 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 70);
  saved = save_sequence(f.cache, sequence);
  for (i = 0; i < saved.size; ++i) {
    for (c = 0; c < sizeof changes; ++c) {
      kvq_sequence* loaded = (kvq_sequence*)&unused_place;
      kvq_status status;
      live = f.memory.live_bytes;
      saved.data[i] ^= changes[c];
      status = kvq_sequence_load(f.cache, saved.data, saved.size, &loaded, NULL);
      if (status == KVQ_OK) {
        blob again = save_sequence(f.cache, loaded);
        CHECK(same_blobs(&again, &saved));
        use(&f, loaded);
        blob_free(&again);
        kvq_sequence_destroy(loaded);
      } else {
        CHECK(status == KVQ_E_FORMAT || status == KVQ_E_MISMATCH);
        CHECK(loaded == NULL);
        CHECK(f.memory.live_bytes == live);
        ++n_refused;
      }
      saved.data[i] ^= changes[c];
    }
  }
  CHECK(n_refused > 0);
  blob_free(&saved);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* Every aligned word set to numbers that overflow sums and products. */
static void every_word_replaced(void) {
  const uint32_t words[] = {0u, 0x7FFFFFFFu, 0x80000000u, 0xFFFFFFFFu};
  fixture f;
  kvq_sequence* sequence;
  blob saved;
  size_t i;
  size_t w;
  fixture_open(&f, "int2", 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 40);
  saved = save_sequence(f.cache, sequence);
  for (i = 0; i + 4 <= saved.size; i += 4) {
    for (w = 0; w < sizeof words / sizeof words[0]; ++w) {
      unsigned char old[4];
      kvq_sequence* loaded = NULL;
      kvq_status status;
      memcpy(old, saved.data + i, 4);
      memcpy(saved.data + i, &words[w], 4);
      status = kvq_sequence_load(f.cache, saved.data, saved.size, &loaded, NULL);
      if (status == KVQ_OK) use(&f, loaded);
      CHECK((status == KVQ_OK) == (loaded != NULL));
      kvq_sequence_destroy(loaded);
      memcpy(saved.data + i, old, 4);
    }
  }
  blob_free(&saved);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

static void garbage(void) {
  fixture f;
  unsigned char noise[4096];
  uint32_t seed;
  size_t i;
  fixture_open(&f, "int4", 0, 0);
  for (seed = 0; seed < 50; ++seed) {
    kvq_sequence* loaded = (kvq_sequence*)&unused_place;
    uint32_t x = seed * 2654435761u + 12345u;
    for (i = 0; i < sizeof noise; ++i) {
      x = x * 1664525u + 1013904223u;
      noise[i] = (unsigned char)(seed == 0 ? 0 : seed == 1 ? 0xFF : x >> 24);
    }
    REFUSED(KVQ_E_FORMAT, NULL, kvq_sequence_load(f.cache, noise, seed < 2 ? sizeof noise : 80 * seed, &loaded, err));
    CHECK(loaded == NULL);
  }
  fixture_close(&f);
}

/* A sequence with evicted tokens, for caches that evict, too. */
static void evicted_tokens(void) {
  fixture f;
  fixture other;
  kvq_sequence* sequence;
  kvq_sequence* loaded = NULL;
  blob saved;
  fixture_open(&f, "int4+streaming:50", 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 200);
  ACCEPTED(kvq_compress(f.cache, sequence, NULL, err));
  saved = save_sequence(f.cache, sequence);
  fixture_open(&other, "int4+snapkv:100", 0, 0);
  ACCEPTED(kvq_sequence_load(other.cache, saved.data, saved.size, &loaded, err));
  kvq_sequence_destroy(loaded);
  fixture_close(&other);
  fixture_open(&other, "int4", 0, 0);
  REFUSED(KVQ_E_MISMATCH, "50 of 200", kvq_sequence_load(other.cache, saved.data, saved.size, &loaded, err));
  ALSO_MENTIONS("policy has eviction");
  CHECK(loaded == NULL);
  blob_free(&saved);
  kvq_sequence_destroy(sequence);
  fixture_close(&other);
  fixture_close(&f);
}

/* A snapshot of the small cache, loaded into a cache that differs in one respect. */
static void refuse_in(const blob* saved, const kvq_cache_options* shape, const char* policy_text, kvq_status expected,
                      const char* mention) {
  kvq_cache_options options = *shape;
  kvq_context* context = NULL;
  kvq_cache* cache = NULL;
  kvq_policy* policy;
  kvq_centres* centres;
  kvq_sequence* loaded = (kvq_sequence*)&unused_place;
  ACCEPTED(kvq_context_create(NULL, &context, err));
  policy = load_policy(context, policy_text);
  options.centres = centres = centres_for(context, policy_text);
  ACCEPTED(kvq_cache_create(context, &options, policy, &cache, err));
  if (expected == KVQ_OK) {
    ACCEPTED(kvq_sequence_load(cache, saved->data, saved->size, &loaded, err));
    kvq_sequence_destroy(loaded);
  } else {
    REFUSED(expected, mention, kvq_sequence_load(cache, saved->data, saved->size, &loaded, err));
    CHECK(loaded == NULL);
  }
  kvq_centres_destroy(centres);
  kvq_policy_destroy(policy);
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
}

/* Snapshot of a sequence of that many tokens in the small cache. */
static blob saved_with(const char* policy_text, int32_t tokens) {
  fixture f;
  kvq_sequence* sequence;
  blob saved;
  fixture_open(&f, policy_text, 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, tokens);
  saved = save_sequence(f.cache, sequence);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
  return saved;
}

static void snapshots_of_other_caches(void) {
  kvq_cache_options options = small_cache_options();
  blob saved = saved_with("int4", 70);
  refuse_in(&saved, &options, "int4", KVQ_OK, NULL);
  options.model_id = 8, refuse_in(&saved, &options, "int4", KVQ_E_MISMATCH, "model_id");
  options = small_cache_options();
  options.head_dim = 24, refuse_in(&saved, &options, "int4", KVQ_E_MISMATCH, "head_dim");
  ALSO_MENTIONS("24");
  options = small_cache_options();
  options.n_layers = 3, refuse_in(&saved, &options, "int4", KVQ_E_MISMATCH, "n_layers");
  options = small_cache_options();
  options.kv_heads = 4, refuse_in(&saved, &options, "int4", KVQ_E_MISMATCH, "kv_heads");
  options = small_cache_options();
  options.rope = KVQ_ROPE_INTERLEAVED, refuse_in(&saved, &options, "int4", KVQ_E_MISMATCH, NULL);
  options = small_cache_options();
  options.rope_base = 500000.0f, refuse_in(&saved, &options, "int4", KVQ_E_MISMATCH, NULL);
  options = small_cache_options();
  refuse_in(&saved, &options, "int8", KVQ_E_MISMATCH, NULL);
  refuse_in(&saved, &options, "int4+hadamard", KVQ_E_MISMATCH, NULL);
  refuse_in(&saved, &options, "version: 1\nkeys: int4\nvalues: {format: int4, group: 64}\n", KVQ_E_MISMATCH, NULL);
  refuse_in(&saved, &options, "version: 1\nkeys: int4\nvalues: int2\n", KVQ_E_MISMATCH, NULL);
  blob_free(&saved);

  saved = saved_with("gs2", 100);
  refuse_in(&saved, &options, "gs2", KVQ_OK, NULL);
  refuse_in(&saved, &options, "gs2/gs2+nocentre", KVQ_OK, NULL); /* values never have a mean */
  refuse_in(&saved, &options, "gs2+nocentre", KVQ_E_MISMATCH, NULL);
  refuse_in(&saved, &options, "gs3", KVQ_E_MISMATCH, NULL);
  refuse_in(&saved, &options, "gt2", KVQ_E_MISMATCH, NULL);
  refuse_in(&saved, &options, "gs2/gt2", KVQ_E_MISMATCH, NULL);
  refuse_in(&saved, &options, "int2+hadamard", KVQ_E_MISMATCH, NULL);
  refuse_in(&saved, &options, "gs2+centres", KVQ_E_MISMATCH, "centres");
  blob_free(&saved);

  saved = saved_with("gs2+centres", 100);
  refuse_in(&saved, &options, "gs2+centres", KVQ_OK, NULL);
  refuse_in(&saved, &options, "{version: 1, keys: gs2, values: gs2, centres: trained}", KVQ_OK, NULL);
  refuse_in(&saved, &options, "gs2", KVQ_E_MISMATCH, "centres");
  refuse_in(&saved, &options, "gs2+centres/gs2", KVQ_E_MISMATCH, "layer 0");
  refuse_in(&saved, &options, "gt2+centres", KVQ_E_MISMATCH, "layer 0");
  refuse_in(&saved, &options, "gs3+centres", KVQ_E_MISMATCH, "layer 0");
  options.rope_base = 500000.0f, refuse_in(&saved, &options, "gs2+centres", KVQ_E_MISMATCH, "rope frequencies");
  ALSO_MENTIONS("this cache");
  options = small_cache_options();
  options.rotary_dim = 8, refuse_in(&saved, &options, "gs2+centres", KVQ_E_MISMATCH, "rotary_dim");
  options = small_cache_options();
  blob_free(&saved);
}

void test_snapshot(void) {
  size_t i;
  for (i = 0; i < sizeof kPolicies / sizeof kPolicies[0]; ++i) {
    round_trip(kPolicies[i], 0);
    round_trip(kPolicies[i], 1);
    round_trip(kPolicies[i], 64);
    round_trip(kPolicies[i], 101);
    every_truncation(kPolicies[i]);
    every_byte_changed(kPolicies[i]);
  }
  arguments();
  every_word_replaced();
  garbage();
  snapshots_of_other_caches();
  evicted_tokens();
}
