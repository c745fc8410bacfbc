/* kvq_sequence_truncate: exact, or refused with the lengths that work. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <string.h>

static void arguments(void) {
  fixture f;
  fixture other;
  kvq_sequence* sequence;
  saved_state before;
  fixture_open(&f, "int4", 0, 0);
  fixture_open(&other, "int4", 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 40);
  before = take_state(f.cache, sequence);
  REFUSED(KVQ_E_ARGUMENT, "cache", kvq_sequence_truncate(NULL, sequence, 0, err));
  REFUSED(KVQ_E_ARGUMENT, "sequence", kvq_sequence_truncate(f.cache, NULL, 0, err));
  REFUSED(KVQ_E_ARGUMENT, "sequence", kvq_sequence_truncate(other.cache, sequence, 0, err));
  REFUSED(KVQ_E_ARGUMENT, "length", kvq_sequence_truncate(f.cache, sequence, -1, err));
  ALSO_MENTIONS("-1");
  REFUSED(KVQ_E_ARGUMENT, "length", kvq_sequence_truncate(f.cache, sequence, 41, err));
  ALSO_MENTIONS("41");
  REFUSED(KVQ_E_ARGUMENT, "length", kvq_sequence_truncate(f.cache, sequence, INT32_MAX, err));
  CHECK(state_is(f.cache, sequence, &before));
  ACCEPTED(kvq_sequence_truncate(f.cache, sequence, 40, err)); /* nothing to drop */
  CHECK(state_is(f.cache, sequence, &before));
  state_free(&before);
  kvq_sequence_destroy(sequence);
  fixture_close(&other);
  fixture_close(&f);
}

/* Every cut of a sequence of 100 tokens: 64 of them sealed, or 96 of them. */
static void every_cut(const char* policy, int32_t fp16_head, int32_t fp16_tail) {
  fixture f;
  kvq_sequence* sequence;
  saved_state before;
  int32_t cut;
  fixture_open(&f, policy, 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 100);
  before = take_state(f.cache, sequence);
  for (cut = 0; cut <= 100; ++cut) {
    kvq_sequence* copy = NULL;
    ACCEPTED(kvq_sequence_fork(f.cache, sequence, &copy, err));
    if (cut % KVQ_PAGE_SLOTS == 0 || cut <= fp16_head || cut >= fp16_tail) {
      ACCEPTED(kvq_sequence_truncate(f.cache, copy, cut, err));
      CHECK(length_of(copy, 0) == cut && length_of(copy, 1) == cut);
      grow(f.cache, copy, 3);
      CHECK(length_of(copy, 1) == cut + 3);
    } else {
      saved_state unchanged = take_state(f.cache, copy);
      const char* const borders[] = {"0", "32", "64", "96"};
      REFUSED(KVQ_E_STATE, borders[cut / KVQ_PAGE_SLOTS], kvq_sequence_truncate(f.cache, copy, cut, err));
      ALSO_MENTIONS(borders[cut / KVQ_PAGE_SLOTS + 1]);
      CHECK(state_is(f.cache, copy, &unchanged));
      state_free(&unchanged);
    }
    kvq_sequence_destroy(copy);
  }
  CHECK(state_is(f.cache, sequence, &before));
  state_free(&before);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* Layers of different length: the shortest one is the limit. */
static void uneven_layers(void) {
  fixture f;
  kvq_sequence* sequence;
  fixture_open(&f, NULL, 0, 0);
  sequence = new_sequence(f.cache);
  ACCEPTED(append_tokens(f.cache, sequence, 0, 50));
  ACCEPTED(append_tokens(f.cache, sequence, 1, 20));
  REFUSED(KVQ_E_ARGUMENT, "length", kvq_sequence_truncate(f.cache, sequence, 21, err));
  CHECK(length_of(sequence, 0) == 50 && length_of(sequence, 1) == 20);
  ACCEPTED(kvq_sequence_truncate(f.cache, sequence, 20, err));
  CHECK(length_of(sequence, 0) == 20 && length_of(sequence, 1) == 20);
  ACCEPTED(kvq_sequence_truncate(f.cache, sequence, 0, err));
  CHECK(length_of(sequence, 0) == 0 && length_of(sequence, 1) == 0);
  ACCEPTED(kvq_sequence_truncate(f.cache, sequence, 0, err));
  grow(f.cache, sequence, 40);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* One layer's cut is in FP16, the other's in a sealed page: neither is cut. */
static void refused_by_one_layer_cuts_none(void) {
  fixture f;
  kvq_sequence* sequence;
  saved_state before;
  fixture_open(&f, "version: 1\nlayers:\n  - {range: [1, 1], keys: int4, values: int4}\n", 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 100);
  before = take_state(f.cache, sequence);
  REFUSED(KVQ_E_STATE, "32", kvq_sequence_truncate(f.cache, sequence, 40, err));
  ALSO_MENTIONS("64");
  CHECK(state_is(f.cache, sequence, &before));
  state_free(&before);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* Positions continue after the last remaining one. */
static void positions_follow_the_cut(void) {
  fixture f;
  kvq_sequence* sequence;
  float kv[kTokenScalars];
  int32_t position = 10;
  fixture_open(&f, NULL, 0, 0);
  sequence = new_sequence(f.cache);
  fill_tensor(kv, kTokenScalars, 1);
  grow(f.cache, sequence, 40);
  ACCEPTED(kvq_sequence_truncate(f.cache, sequence, 10, err));
  ACCEPTED(kvq_append(f.cache, sequence, 0, 1, kv, kv, KVQ_F32, &position, err));
  REFUSED(KVQ_E_ARGUMENT, "positions", kvq_append(f.cache, sequence, 0, 1, kv, kv, KVQ_F32, &position, err));
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* A page that had gaps holds other positions after a cut and an append, consecutive or not. */
static void gaps_are_forgotten(void) {
  fixture f;
  kvq_sequence* sequence;
  float kv[3 * kTokenScalars];
  const int32_t with_gap[3] = {0, 1, 5};
  int32_t layer;
  int32_t stored[5] = {-1, -1, -1, -1, -1};
  int32_t i;
  fixture_open(&f, NULL, 0, 0);
  sequence = new_sequence(f.cache);
  fill_tensor(kv, 3 * kTokenScalars, 1);
  for (layer = 0; layer < kLayers; ++layer) {
    ACCEPTED(kvq_append(f.cache, sequence, layer, 3, kv, kv, KVQ_F32, with_gap, err));
  }
  ACCEPTED(kvq_sequence_truncate(f.cache, sequence, 2, err));
  ACCEPTED(kvq_append(f.cache, sequence, 1, 3, kv, kv, KVQ_F32, NULL, err));
  ACCEPTED(kvq_sequence_decode(f.cache, sequence, 1, 0, 0, 5, NULL, NULL, stored, err));
  for (i = 0; i < 5; ++i) CHECK(stored[i] == i);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* A layer that is cut to its own length does not change, whatever was evicted and whatever its positions are. */
static void own_length_after_eviction(const char* policy, int32_t step) {
  enum { kTokens = 200 };
  static float kv[kTokens * kTokenScalars];
  int32_t positions[kTokens];
  fixture f;
  kvq_sequence* sequence;
  saved_state before;
  int32_t layer;
  int32_t i;
  for (i = 0; i < kTokens; ++i) positions[i] = step * i;
  fill_tensor(kv, sizeof kv / sizeof kv[0], 1);
  fixture_open(&f, policy, 0, 0);
  sequence = new_sequence(f.cache);
  for (layer = 0; layer < kLayers; ++layer) {
    ACCEPTED(kvq_append(f.cache, sequence, layer, kTokens, kv, kv, KVQ_F32, positions, err));
  }
  ACCEPTED(kvq_compress(f.cache, sequence, NULL, err));
  before = take_state(f.cache, sequence);
  ACCEPTED(kvq_sequence_truncate(f.cache, sequence, kTokens, err));
  CHECK(state_is(f.cache, sequence, &before));
  if (step > 1) {
    REFUSED(KVQ_E_STATE, "gaps", kvq_sequence_truncate(f.cache, sequence, kTokens - 1, err));
    CHECK(state_is(f.cache, sequence, &before));
  }
  state_free(&before);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

void test_truncate(void) {
  arguments();
  every_cut("fp16", 100, 0);
  every_cut("int4", 0, 96);
  every_cut("version: 1\nkeys: int2\nvalues: int8\nrecent: 2\n", 0, 64);
  every_cut("version: 1\nkeys: int2\nvalues: int8\nsink: 1\n", 32, 96);
  every_cut("version: 1\nkeys: fp16\nvalues: int4\n", 0, 96);
  every_cut("gt1/gs2+nocentre", 32, 96);
  every_cut("gs2+centres/gt1+centres", 32, 96);
  every_cut("version: 1\nkeys: gt3\nvalues: gs4\ncentres: trained\nsink: 0\nrecent: 2\n", 0, 64);
  uneven_layers();
  refused_by_one_layer_cuts_none();
  positions_follow_the_cut();
  gaps_are_forgotten();
  own_length_after_eviction("int4+streaming:50", 1);
  own_length_after_eviction("int4+streaming:50", 3);
  own_length_after_eviction("gs2/gt2+streaming:50", 3);
  own_length_after_eviction("gs2+centres/gt2+centres+streaming:50", 3);
  own_length_after_eviction("fp16+streaming:50", 3);
}
