/* kvq_sequence_create, _fork, _length, _decode, and which cache a sequence belongs to. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <stdlib.h>
#include <string.h>

static fixture f;
static fixture other; /* the same shape, another cache */
static int unused_place;

static void create(void) {
  kvq_sequence* sequence = (kvq_sequence*)&unused_place;
  REFUSED(KVQ_E_ARGUMENT, "cache", kvq_sequence_create(NULL, &sequence, err));
  CHECK(sequence == NULL);
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_sequence_create(f.cache, NULL, err));
  kvq_sequence_destroy(NULL);
  sequence = new_sequence(f.cache);
  CHECK(length_of(sequence, 0) == 0 && length_of(sequence, kLayers - 1) == 0);
  kvq_sequence_destroy(sequence);
}

static void length(void) {
  kvq_sequence* sequence = new_sequence(f.cache);
  int32_t value = 77;
  ACCEPTED(append_tokens(f.cache, sequence, 1, 5));
  REFUSED(KVQ_E_ARGUMENT, "sequence", kvq_sequence_length(NULL, 0, &value, err));
  REFUSED(KVQ_E_ARGUMENT, "length", kvq_sequence_length(sequence, 0, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_sequence_length(sequence, -1, &value, err));
  ALSO_MENTIONS("-1");
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_sequence_length(sequence, kLayers, &value, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_sequence_length(sequence, INT32_MAX, &value, err));
  CHECK(value == 77);
  ACCEPTED(kvq_sequence_length(sequence, 1, &value, err));
  CHECK(value == 5);
  ACCEPTED(kvq_sequence_length(sequence, 0, &value, err));
  CHECK(value == 0);
  kvq_sequence_destroy(sequence);
}

static void fork_arguments(void) {
  kvq_sequence* parent = new_sequence(f.cache);
  kvq_sequence* child = (kvq_sequence*)&unused_place;
  grow(f.cache, parent, 40);
  REFUSED(KVQ_E_ARGUMENT, "cache", kvq_sequence_fork(NULL, parent, &child, err));
  CHECK(child == NULL);
  child = (kvq_sequence*)&unused_place;
  REFUSED(KVQ_E_ARGUMENT, "parent", kvq_sequence_fork(f.cache, NULL, &child, err));
  CHECK(child == NULL);
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_sequence_fork(f.cache, parent, NULL, err));
  child = (kvq_sequence*)&unused_place;
  REFUSED(KVQ_E_ARGUMENT, "parent", kvq_sequence_fork(other.cache, parent, &child, err));
  CHECK(child == NULL);
  kvq_sequence_destroy(parent);
}

/* Either may be destroyed first; the other keeps its pages. */
static void forks_outlive_each_other(void) {
  int parent_first;
  for (parent_first = 0; parent_first < 2; ++parent_first) {
    kvq_sequence* parent = new_sequence(f.cache);
    kvq_sequence* child = NULL;
    blob before;
    blob after;
    grow(f.cache, parent, 75);
    ACCEPTED(kvq_sequence_fork(f.cache, parent, &child, err));
    before = save_sequence(f.cache, parent);
    grow(f.cache, child, 30);
    after = save_sequence(f.cache, parent);
    CHECK(after.size == before.size && memcmp(after.data, before.data, after.size) == 0);
    blob_free(&after);
    kvq_sequence_destroy(parent_first ? parent : child);
    if (parent_first) {
      CHECK(length_of(child, 0) == 105);
      grow(f.cache, child, 30);
      kvq_sequence_destroy(child);
    } else {
      after = save_sequence(f.cache, parent);
      CHECK(after.size == before.size && memcmp(after.data, before.data, after.size) == 0);
      blob_free(&after);
      grow(f.cache, parent, 30);
      kvq_sequence_destroy(parent);
    }
    blob_free(&before);
  }
}

static void decode_arguments(void) {
  kvq_sequence* sequence = new_sequence(f.cache);
  float k[4 * kHeadDim];
  float v[4 * kHeadDim];
  int32_t positions[4];
  grow(f.cache, sequence, 40);
#define DECODE(cache, seq, layer, head, begin, n) \
  kvq_sequence_decode((cache), (seq), (layer), (head), (begin), (n), k, v, positions, err)
  REFUSED(KVQ_E_ARGUMENT, "cache", DECODE(NULL, sequence, 0, 0, 0, 1));
  REFUSED(KVQ_E_ARGUMENT, "sequence", DECODE(f.cache, NULL, 0, 0, 0, 1));
  REFUSED(KVQ_E_ARGUMENT, "sequence", DECODE(other.cache, sequence, 0, 0, 0, 1));
  REFUSED(KVQ_E_ARGUMENT, "layer", DECODE(f.cache, sequence, -1, 0, 0, 1));
  REFUSED(KVQ_E_ARGUMENT, "layer", DECODE(f.cache, sequence, kLayers, 0, 0, 1));
  REFUSED(KVQ_E_ARGUMENT, "kv_head", DECODE(f.cache, sequence, 0, -1, 0, 1));
  REFUSED(KVQ_E_ARGUMENT, "kv_head", DECODE(f.cache, sequence, 0, kKvHeads, 0, 1));
  REFUSED(KVQ_E_ARGUMENT, "begin", DECODE(f.cache, sequence, 0, 0, -1, 1));
  ALSO_MENTIONS("-1");
  REFUSED(KVQ_E_ARGUMENT, "begin", DECODE(f.cache, sequence, 0, 0, 40, 1));
  REFUSED(KVQ_E_ARGUMENT, "n", DECODE(f.cache, sequence, 0, 0, 0, 0));
  REFUSED(KVQ_E_ARGUMENT, "n", DECODE(f.cache, sequence, 0, 0, 0, -1));
  REFUSED(KVQ_E_ARGUMENT, NULL, DECODE(f.cache, sequence, 0, 0, 37, 4));
  REFUSED(KVQ_E_ARGUMENT, NULL, DECODE(f.cache, sequence, 0, 0, 1, INT32_MAX));
  REFUSED(KVQ_E_ARGUMENT, NULL, DECODE(f.cache, sequence, 0, 0, INT32_MAX, INT32_MAX));
  ACCEPTED(DECODE(f.cache, sequence, 1, 1, 30, 4)); /* across a page boundary */
  CHECK(positions[0] == 30 && positions[3] == 33);
#undef DECODE
  ACCEPTED(kvq_sequence_decode(f.cache, sequence, 0, 0, 0, 4, NULL, NULL, NULL, err));
  kvq_sequence_destroy(sequence);
}

/* Skipping outputs does not change the others. */
static void decode_parts(void) {
  kvq_sequence* sequence = new_sequence(f.cache);
  float k[2][50 * kHeadDim];
  float v[2][50 * kHeadDim];
  int32_t positions[2][50];
  int32_t t;
  grow(f.cache, sequence, 50);
  ACCEPTED(kvq_sequence_decode(f.cache, sequence, 0, 1, 0, 50, k[0], v[0], positions[0], err));
  ACCEPTED(kvq_sequence_decode(f.cache, sequence, 0, 1, 0, 50, k[1], NULL, NULL, err));
  ACCEPTED(kvq_sequence_decode(f.cache, sequence, 0, 1, 0, 50, NULL, v[1], NULL, err));
  ACCEPTED(kvq_sequence_decode(f.cache, sequence, 0, 1, 0, 50, NULL, NULL, positions[1], err));
  CHECK(memcmp(k[0], k[1], sizeof k[0]) == 0);
  CHECK(memcmp(v[0], v[1], sizeof v[0]) == 0);
  CHECK(memcmp(positions[0], positions[1], sizeof positions[0]) == 0);
  for (t = 0; t < 50; ++t) {
    float one[kHeadDim];
    ACCEPTED(kvq_sequence_decode(f.cache, sequence, 0, 1, t, 1, NULL, one, NULL, err));
    CHECK(memcmp(one, v[0] + (size_t)t * kHeadDim, sizeof one) == 0);
    CHECK(positions[0][t] == t);
  }
  kvq_sequence_destroy(sequence);
}

static void save_arguments(void) {
  kvq_sequence* sequence = new_sequence(f.cache);
  unsigned char small[16];
  unsigned char* buffer;
  size_t size = 1;
  size_t needed = 0;
  size_t i;
  grow(f.cache, sequence, 40);
  REFUSED(KVQ_E_ARGUMENT, "cache", kvq_sequence_save(NULL, sequence, NULL, 0, &size, err));
  REFUSED(KVQ_E_ARGUMENT, "sequence", kvq_sequence_save(f.cache, NULL, NULL, 0, &size, err));
  REFUSED(KVQ_E_ARGUMENT, "sequence", kvq_sequence_save(other.cache, sequence, NULL, 0, &size, err));
  REFUSED(KVQ_E_ARGUMENT, "size", kvq_sequence_save(f.cache, sequence, NULL, 0, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "size", kvq_sequence_save(f.cache, sequence, small, sizeof small, NULL, err));
  ACCEPTED(kvq_sequence_save(f.cache, sequence, NULL, 0, &needed, err));
  CHECK(needed > sizeof small);

  memset(small, 0x77, sizeof small);
  REFUSED(KVQ_E_BUFFER_SIZE, "capacity", kvq_sequence_save(f.cache, sequence, small, sizeof small, &size, err));
  ALSO_MENTIONS("16");
  CHECK(size == needed);
  for (i = 0; i < sizeof small; ++i) CHECK(small[i] == 0x77);
  buffer = (unsigned char*)malloc(needed + 8);
  memset(buffer, 0x77, needed + 8);
  size = 0;
  REFUSED(KVQ_E_BUFFER_SIZE, "capacity", kvq_sequence_save(f.cache, sequence, buffer, needed - 1, &size, err));
  CHECK(size == needed);
  for (i = 0; i < needed; ++i) {
    if (buffer[i] != 0x77) break;
  }
  CHECK(i == needed);
  size = 0;
  ACCEPTED(kvq_sequence_save(f.cache, sequence, buffer, needed + 8, &size, err));
  CHECK(size == needed);
  for (i = needed; i < needed + 8; ++i) CHECK(buffer[i] == 0x77);
  free(buffer);
  kvq_sequence_destroy(sequence);
}

void test_sequence(void) {
  fixture_open(&f, "int4", 0, 0);
  fixture_open(&other, "int4", 0, 0);
  create();
  length();
  fork_arguments();
  forks_outlive_each_other();
  decode_arguments();
  decode_parts();
  save_arguments();
  fixture_close(&other);
  fixture_close(&f);
}
