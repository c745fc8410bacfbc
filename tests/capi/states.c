/* States of recurrent layers: kept, forked, truncated, saved and loaded with a sequence's pages. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <string.h>

/* Layers 0 and 2 of four have pages. */
static kvq_cache* hybrid_cache(kvq_context* context) {
  static kvq_layer_shape shapes[2];
  kvq_cache_options options = small_cache_options();
  kvq_cache* cache = NULL;
  int i;
  options.n_layers = 4;
  for (i = 0; i < 2; ++i) {
    kvq_layer_shape_init(&shapes[i], sizeof shapes[i]);
    shapes[i].first_layer = 1 + 2 * i;
    shapes[i].recurrent = 1;
  }
  options.shapes = shapes;
  options.n_shapes = 2;
  ACCEPTED(kvq_cache_create(context, &options, NULL, &cache, err));
  return cache;
}

static void put(kvq_cache* cache, kvq_sequence* sequence, int32_t layer, int32_t tokens, int fill, size_t size) {
  unsigned char data[300];
  memset(data, fill, sizeof data);
  ACCEPTED(kvq_sequence_put_state(cache, sequence, layer, tokens, data, size, err));
}

/* Whether a sequence has this state. */
static int has(const kvq_sequence* sequence, int32_t layer, int32_t tokens, int fill, size_t size) {
  unsigned char data[300];
  unsigned char expected[300];
  size_t found = 0;
  memset(expected, fill, sizeof expected);
  return kvq_sequence_get_state(sequence, layer, tokens, data, sizeof data, &found, NULL) == KVQ_OK && found == size &&
         memcmp(data, expected, size) == 0;
}

static int32_t found_state(const kvq_sequence* sequence, int32_t layer, int32_t most) {
  int32_t tokens = -1;
  ACCEPTED(kvq_sequence_find_state(sequence, layer, most, &tokens, err));
  return tokens;
}

static int32_t found_states(const kvq_sequence* sequence, int32_t most) {
  int32_t tokens = -1;
  ACCEPTED(kvq_sequence_find_states(sequence, most, &tokens, err));
  return tokens;
}

static void grow_hybrid(kvq_cache* cache, kvq_sequence* sequence, int32_t n) {
  ACCEPTED(append_tokens(cache, sequence, 0, n));
  ACCEPTED(append_tokens(cache, sequence, 2, n));
}

static void recurrent_layers_have_no_tokens(void) {
  fixture f;
  kvq_cache* cache;
  kvq_sequence* sequence;
  kvq_layer_info info;
  float k[kTokenScalars];
  float out[kQHeads * kHeadDim];
  int32_t n = 0;
  fixture_open(&f, NULL, 0, 0);
  cache = hybrid_cache(f.context);
  sequence = new_sequence(cache);
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_cache_describe_layer(cache, 1, &info, err));
  CHECK(info.recurrent == 1 && info.n_formats == 0 && info.kv_heads == 0 && info.key_dim == 0);
  CHECK(info.pages_of_layer == 1 && info.formats[0] == 0);
  ACCEPTED(kvq_cache_describe_layer(cache, 2, &info, err));
  CHECK(info.recurrent == 0 && info.n_formats == 1 && info.kv_heads == kKvHeads);
  ACCEPTED(kvq_sequence_describe_layer(sequence, 3, &info, err));
  CHECK(info.recurrent == 1);
  fill_tensor(k, kTokenScalars, 1);
  REFUSED(KVQ_E_ARGUMENT, "recurrent", kvq_append(cache, sequence, 1, 1, k, k, KVQ_F32, NULL, err));
  ALSO_MENTIONS("layer is 1");
  REFUSED(KVQ_E_ARGUMENT, "recurrent", kvq_sequence_length(sequence, 3, &n, err));
  REFUSED(KVQ_E_ARGUMENT, "recurrent", kvq_sequence_slots(sequence, 3, 0, &n, err));
  {
    kvq_attend_batch batch;
    const kvq_sequence* one = sequence;
    kvq_attend_batch_init(&batch, sizeof batch);
    batch.n_sequences = 1;
    batch.sequences = &one;
    batch.q = out;
    batch.output = out;
    REFUSED(KVQ_E_ARGUMENT, "recurrent", kvq_attend(cache, 1, &batch, err));
  }
  grow_hybrid(cache, sequence, 40);
  CHECK(length_of(sequence, 2) == 40);
  {
    /* As much memory as a cache of two layers. */
    fixture plain;
    kvq_sequence* other;
    fixture_open(&plain, NULL, 0, 0);
    other = new_sequence(plain.cache);
    grow(plain.cache, other, 40);
    CHECK(usage_of(plain.cache, other).total_bytes == usage_of(cache, sequence).total_bytes);
    kvq_sequence_destroy(other);
    fixture_close(&plain);
  }
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  fixture_close(&f);
}

static void unusable_shapes_are_refused(void) {
  fixture f;
  kvq_layer_shape shapes[2];
  kvq_cache_options options = small_cache_options();
  kvq_cache* cache = NULL;
  fixture_open(&f, NULL, 0, 0);
  kvq_layer_shape_init(&shapes[0], sizeof shapes[0]);
  kvq_layer_shape_init(&shapes[1], sizeof shapes[1]);
  options.shapes = shapes;
  options.n_shapes = 1;
  shapes[0].recurrent = 2;
  REFUSED(KVQ_E_ARGUMENT, "shapes[0].recurrent is 2", kvq_cache_create(f.context, &options, NULL, &cache, err));
  shapes[0].recurrent = 1;
  shapes[0].key_dim = 64;
  REFUSED(KVQ_E_ARGUMENT, "shapes[0].key_dim", kvq_cache_create(f.context, &options, NULL, &cache, err));
  shapes[0].key_dim = 0;
  shapes[0].n_layers = kLayers;
  REFUSED(KVQ_E_ARGUMENT, "all 2 layers", kvq_cache_create(f.context, &options, NULL, &cache, err));
  shapes[0].n_layers = 1;
  shapes[1].first_layer = 1;
  shapes[1].pages_of_layer = 0;
  options.n_shapes = 2;
  REFUSED(KVQ_E_ARGUMENT, "recurrent", kvq_cache_create(f.context, &options, NULL, &cache, err));
  ALSO_MENTIONS("shapes[1].pages_of_layer is 0");
  CHECK(cache == NULL);
  fixture_close(&f);
}

static void states_are_kept_and_found(void) {
  fixture f;
  kvq_cache* cache;
  kvq_sequence* sequence;
  unsigned char byte = 0;
  int32_t tokens = -7;
  size_t size = 7;
  fixture_open(&f, NULL, 0, 0);
  cache = hybrid_cache(f.context);
  sequence = new_sequence(cache);
  CHECK(found_state(sequence, 1, INT32_MAX) == 0 && found_states(sequence, INT32_MAX) == 0);
  put(cache, sequence, 3, 32, 'c', 5);
  put(cache, sequence, 1, 64, 'b', 300);
  put(cache, sequence, 1, 32, 'a', 1);
  put(cache, sequence, 3, 96, 'd', 7);
  put(cache, sequence, 0, 32, 'e', 2); /* a layer with pages may have states, too */
  CHECK(has(sequence, 1, 32, 'a', 1) && has(sequence, 1, 64, 'b', 300) && has(sequence, 3, 32, 'c', 5));
  CHECK(has(sequence, 3, 96, 'd', 7) && has(sequence, 0, 32, 'e', 2));
  put(cache, sequence, 1, 64, 'B', 9);
  CHECK(has(sequence, 1, 64, 'B', 9));
  CHECK(found_state(sequence, 1, INT32_MAX) == 64 && found_state(sequence, 1, 63) == 32 &&
        found_state(sequence, 1, 31) == 0);
  CHECK(found_state(sequence, 3, 95) == 32 && found_state(sequence, 2, INT32_MAX) == 0 &&
        found_state(sequence, 0, 32) == 32);
  CHECK(found_states(sequence, INT32_MAX) == 32 && found_states(sequence, 31) == 0);
  REFUSED(KVQ_E_ARGUMENT, "tokens is 63", kvq_sequence_get_state(sequence, 1, 63, NULL, 0, &size, err));
  ALSO_MENTIONS("after 32");
  ACCEPTED(kvq_sequence_get_state(sequence, 1, 64, NULL, 0, &size, err));
  CHECK(size == 9);
  REFUSED(KVQ_E_BUFFER_SIZE, "capacity", kvq_sequence_get_state(sequence, 1, 64, &byte, 1, &size, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_sequence_put_state(cache, sequence, 4, 1, &byte, 1, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_sequence_find_state(sequence, -1, 1, &tokens, err));
  REFUSED(KVQ_E_ARGUMENT, "tokens", kvq_sequence_put_state(cache, sequence, 1, 0, &byte, 1, err));
  REFUSED(KVQ_E_ARGUMENT, "data", kvq_sequence_put_state(cache, sequence, 1, 1, NULL, 1, err));
  REFUSED(KVQ_E_ARGUMENT, "size", kvq_sequence_put_state(cache, sequence, 1, 1, &byte, 0, err));
  REFUSED(KVQ_E_ARGUMENT, "most", kvq_sequence_find_states(sequence, -1, &tokens, err));
  REFUSED(KVQ_E_ARGUMENT, "end", kvq_sequence_drop_states(cache, sequence, 5, 4, err));
  CHECK(tokens == -7);
  ACCEPTED(kvq_sequence_drop_states(cache, sequence, 33, 96, err));
  CHECK(found_state(sequence, 1, INT32_MAX) == 32 && found_state(sequence, 3, INT32_MAX) == 96);
  ACCEPTED(kvq_sequence_drop_states(cache, sequence, 0, INT32_MAX, err));
  CHECK(usage_of(cache, sequence).state_bytes == 0);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  fixture_close(&f);
}

static void forks_and_cuts_go_with_states(void) {
  fixture f;
  kvq_cache* cache;
  kvq_sequence* sequence;
  kvq_sequence* fork = NULL;
  uint64_t bytes;
  fixture_open(&f, NULL, 0, 0);
  cache = hybrid_cache(f.context);
  sequence = new_sequence(cache);
  grow_hybrid(cache, sequence, 100);
  put(cache, sequence, 1, 32, 'a', 100);
  put(cache, sequence, 3, 32, 'b', 100);
  put(cache, sequence, 1, 64, 'c', 100);
  put(cache, sequence, 3, 96, 'd', 100);
  bytes = usage_of(cache, NULL).state_bytes;
  CHECK(bytes >= 400 && bytes == usage_of(cache, sequence).state_bytes);
  ACCEPTED(kvq_sequence_fork(cache, sequence, &fork, err));
  CHECK(usage_of(cache, NULL).state_bytes == bytes && usage_of(cache, fork).state_bytes == bytes);
  /* Refused cuts change nothing. */
  REFUSED(KVQ_E_STATE, "length is 64", kvq_sequence_truncate(cache, sequence, 64, err));
  ALSO_MENTIONS("layer 3");
  ALSO_MENTIONS("is 32");
  CHECK(length_of(sequence, 0) == 100 && has(sequence, 3, 96, 'd', 100));
  ACCEPTED(kvq_sequence_truncate(cache, sequence, 100, err)); /* nothing is dropped */
  CHECK(has(sequence, 3, 96, 'd', 100));
  CHECK(found_states(sequence, 99) == 32);
  ACCEPTED(kvq_sequence_truncate(cache, sequence, 32, err));
  CHECK(length_of(sequence, 2) == 32 && has(sequence, 1, 32, 'a', 100) && has(sequence, 3, 32, 'b', 100));
  CHECK(found_state(sequence, 1, INT32_MAX) == 32 && found_state(sequence, 3, INT32_MAX) == 32);
  CHECK(has(fork, 1, 64, 'c', 100) && has(fork, 3, 96, 'd', 100));
  ACCEPTED(kvq_sequence_truncate(cache, sequence, 0, err));
  CHECK(found_states(sequence, INT32_MAX) == 0 && usage_of(cache, sequence).state_bytes == 0);
  CHECK(usage_of(cache, NULL).state_bytes == bytes);
  kvq_sequence_destroy(sequence);
  kvq_sequence_destroy(fork);
  CHECK(usage_of(cache, NULL).state_bytes == 0);
  kvq_cache_destroy(cache);
  fixture_close(&f);
}

static void steps_drop_states_of_dropped_tokens(void) {
  fixture f;
  kvq_cache* cache;
  kvq_sequence* sequence;
  kvq_step_batch batch;
  int32_t counts = 8;
  fixture_open(&f, NULL, 0, 0);
  cache = hybrid_cache(f.context);
  sequence = new_sequence(cache);
  grow_hybrid(cache, sequence, 40);
  put(cache, sequence, 1, 40, 'a', 10);
  kvq_step_batch_init(&batch, sizeof batch);
  batch.n_sequences = 1;
  batch.sequences = &sequence;
  batch.token_counts = &counts;
  ACCEPTED(kvq_step_begin(cache, &batch, err));
  grow_hybrid(cache, sequence, 8);
  put(cache, sequence, 1, 43, 'b', 10);
  put(cache, sequence, 1, 48, 'c', 10);
  counts = 3;
  ACCEPTED(kvq_step_commit(cache, &batch, err));
  CHECK(length_of(sequence, 0) == 43 && has(sequence, 1, 40, 'a', 10) && has(sequence, 1, 43, 'b', 10));
  CHECK(found_state(sequence, 1, INT32_MAX) == 43);
  counts = 8;
  ACCEPTED(kvq_step_begin(cache, &batch, err));
  grow_hybrid(cache, sequence, 8);
  put(cache, sequence, 1, 51, 'd', 10);
  ACCEPTED(kvq_step_abort(cache, &batch, err));
  CHECK(length_of(sequence, 0) == 43 && found_state(sequence, 1, INT32_MAX) == 43);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  fixture_close(&f);
}

static void snapshots_have_states(void) {
  fixture f;
  kvq_cache* cache;
  kvq_sequence* both[2];
  kvq_sequence* loaded[2] = {NULL, NULL};
  kvq_sequence* one = NULL;
  kvq_snapshot_info info;
  blob first;
  blob again;
  blob all = {NULL, 0};
  size_t bare;
  size_t i;
  fixture_open(&f, NULL, 0, 0);
  cache = hybrid_cache(f.context);
  both[0] = new_sequence(cache);
  grow_hybrid(cache, both[0], 70);
  first = save_sequence(cache, both[0]);
  bare = first.size;
  blob_free(&first);
  put(cache, both[0], 1, 64, 'a', 200);
  put(cache, both[0], 3, 64, 'b', 100);
  first = save_sequence(cache, both[0]);
  CHECK(first.size == bare + 8 + 2 * 24 + 300);
  ACCEPTED(kvq_sequence_load(cache, first.data, first.size, &one, err));
  CHECK(has(one, 1, 64, 'a', 200) && has(one, 3, 64, 'b', 100) && length_of(one, 2) == 70);
  CHECK(usage_of(cache, one).state_bytes == usage_of(cache, both[0]).state_bytes);
  again = save_sequence(cache, one);
  CHECK(same_blobs(&first, &again));
  kvq_sequence_destroy(one);
  /* Every cut is noticed, and every byte counts. */
  for (i = 0; i < first.size; i += 7) {
    one = NULL;
    CHECK(kvq_sequence_load(cache, first.data, i, &one, NULL) != KVQ_OK && one == NULL);
    first.data[i] ^= 0x40;
    CHECK(kvq_sequence_load(cache, first.data, first.size, &one, NULL) != KVQ_OK && one == NULL);
    first.data[i] ^= 0x40;
  }
  /* What a fork shares is written once, and shared again. */
  ACCEPTED(kvq_sequence_fork(cache, both[0], &both[1], err));
  put(cache, both[1], 1, 70, 'c', 50);
  ACCEPTED(kvq_cache_save(cache, (const kvq_sequence* const*)both, 2, NULL, 0, &all.size, err));
  all.data = (unsigned char*)malloc(all.size);
  ACCEPTED(kvq_cache_save(cache, (const kvq_sequence* const*)both, 2, all.data, all.size, &all.size, err));
  CHECK(all.size < 2 * first.size);
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_snapshot_describe(cache, all.data, all.size, NULL, &info, err));
  CHECK(info.n_sequences == 2 && info.tokens == 70);
  kvq_sequence_destroy(both[0]);
  kvq_sequence_destroy(both[1]);
  {
    const uint64_t before = usage_of(cache, NULL).total_bytes;
    ACCEPTED(kvq_cache_load(cache, all.data, all.size, loaded, 2, NULL, err));
    CHECK(has(loaded[0], 1, 64, 'a', 200) && has(loaded[1], 3, 64, 'b', 100) && has(loaded[1], 1, 70, 'c', 50));
    CHECK(found_state(loaded[0], 1, INT32_MAX) == 64);
    CHECK(usage_of(cache, NULL).state_bytes <
          usage_of(cache, loaded[0]).state_bytes + usage_of(cache, loaded[1]).state_bytes);
    CHECK(usage_of(cache, NULL).total_bytes - before <= info.bytes);
  }
  kvq_sequence_destroy(loaded[0]);
  kvq_sequence_destroy(loaded[1]);
  blob_free(&first);
  blob_free(&again);
  blob_free(&all);
  kvq_cache_destroy(cache);
  fixture_close(&f);
}

static void failed_allocations_keep_states(void) {
  fixture f;
  kvq_cache* cache;
  kvq_sequence* sequence;
  unsigned char data[64];
  memset(data, 'x', sizeof data);
  fixture_open(&f, NULL, 0, 0);
  cache = hybrid_cache(f.context);
  sequence = new_sequence(cache);
  put(cache, sequence, 1, 32, 'a', 10);
  FAIL_ALLOCATIONS(&f.memory, 1, 1, kvq_sequence_put_state(cache, sequence, 3, 32, data, sizeof data, NULL));
  CHECK(has(sequence, 1, 32, 'a', 10) && has(sequence, 3, 32, 'x', sizeof data));
  FAIL_ALLOCATIONS(&f.memory, 1, 1, kvq_sequence_put_state(cache, sequence, 1, 32, data, sizeof data, NULL));
  CHECK(has(sequence, 1, 32, 'x', sizeof data));
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  fixture_close(&f);
}

void test_states(void) {
  recurrent_layers_have_no_tokens();
  unusable_shapes_are_refused();
  states_are_kept_and_found();
  forks_and_cuts_go_with_states();
  steps_drop_states_of_dropped_tokens();
  snapshots_have_states();
  failed_allocations_keep_states();
}
