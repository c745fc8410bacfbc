/* kvq_sequence_reserve and kvq_sequence_room: arguments, limits; a refusal changes nothing. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <stdio.h>

static int32_t room_of(const kvq_sequence* sequence, int32_t layer) {
  int32_t room = -1;
  ACCEPTED(kvq_sequence_room(sequence, layer, &room, err));
  return room;
}

static void arguments(void) {
  fixture f;
  fixture other;
  kvq_sequence* sequence;
  saved_state before;
  int32_t room = 5;
  fixture_open(&f, "int4", 0, 0);
  fixture_open(&other, "int4", 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 40);
  before = take_state(f.cache, sequence);
  REFUSED(KVQ_E_ARGUMENT, "cache", kvq_sequence_reserve(NULL, sequence, 1, err));
  REFUSED(KVQ_E_ARGUMENT, "sequence", kvq_sequence_reserve(f.cache, NULL, 1, err));
  REFUSED(KVQ_E_ARGUMENT, "sequence", kvq_sequence_reserve(other.cache, sequence, 1, err));
  REFUSED(KVQ_E_ARGUMENT, "tokens", kvq_sequence_reserve(f.cache, sequence, -1, err));
  ALSO_MENTIONS("-1");
  REFUSED(KVQ_E_ARGUMENT, "tokens", kvq_sequence_reserve(f.cache, sequence, INT32_MAX, err));
  ALSO_MENTIONS("40");
  REFUSED(KVQ_E_ARGUMENT, "sequence", kvq_sequence_room(NULL, 0, &room, err));
  REFUSED(KVQ_E_ARGUMENT, "room", kvq_sequence_room(sequence, 0, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_sequence_room(sequence, kLayers, &room, err));
  CHECK(room == 5);
  CHECK(state_is(f.cache, sequence, &before));
  ACCEPTED(kvq_sequence_reserve(f.cache, sequence, 0, err)); /* there is nothing to free */
  CHECK(state_is(f.cache, sequence, &before));
  state_free(&before);
  kvq_sequence_destroy(sequence);
  fixture_close(&other);
  fixture_close(&f);
}

/* Too little memory for the request, before and after a smaller reserve that stays. */
static void limits(void) {
  fixture f;
  kvq_sequence* sequence;
  int32_t reserved;
  fixture_open(&f, "int8", 1 << 20, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 40);
  for (reserved = 0; reserved <= 200; reserved += 200) {
    saved_state before;
    ACCEPTED(kvq_sequence_reserve(f.cache, sequence, reserved, err));
    before = take_state(f.cache, sequence);
    REFUSED(KVQ_E_LIMIT, "max_bytes", kvq_sequence_reserve(f.cache, sequence, 100000, err));
    CHECK(state_is(f.cache, sequence, &before));
    CHECK(room_of(sequence, 0) >= reserved);
    state_free(&before);
  }
  grow(f.cache, sequence, 200);
  CHECK(length_of(sequence, 1) == 240);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* Layers of different length get the same room. */
static void uneven_layers(void) {
  fixture f;
  kvq_sequence* sequence;
  fixture_open(&f, "int2", 0, 0);
  sequence = new_sequence(f.cache);
  ACCEPTED(append_tokens(f.cache, sequence, 0, 50));
  ACCEPTED(append_tokens(f.cache, sequence, 1, 130));
  ACCEPTED(kvq_sequence_reserve(f.cache, sequence, 64, err));
  CHECK(room_of(sequence, 0) >= 64 && room_of(sequence, 1) >= 64);
  ACCEPTED(append_tokens(f.cache, sequence, 0, 144));
  CHECK(room_of(sequence, 0) == 0 && room_of(sequence, 1) >= 64);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* Fewer preallocated pages than stay FP16, and more tokens than they hold: the bytes equal those of a sequence without
 * them. */
static void fewer_pages_than_stay_fp16(int32_t recent) {
  const int32_t reserved[] = {1, 10, 33, 70};
  const int32_t appended[] = {1, 33, 62, 100, 250};
  char policy[80];
  fixture f;
  size_t i;
  size_t j;
  snprintf(policy, sizeof policy, "version: 1\nkeys: int4\nvalues: int4\nrecent: %d\n", (int)recent);
  fixture_open(&f, policy, 0, 0);
  for (i = 0; i < sizeof reserved / sizeof reserved[0]; ++i) {
    for (j = 0; j < sizeof appended / sizeof appended[0]; ++j) {
      kvq_sequence* sequence = new_sequence(f.cache);
      kvq_sequence* plain = new_sequence(f.cache);
      int round;
      ACCEPTED(kvq_sequence_reserve(f.cache, sequence, reserved[i], err));
      for (round = 0; round < 3; ++round) {
        blob a;
        blob b;
        grow(f.cache, sequence, appended[j]);
        grow(f.cache, plain, appended[j]);
        a = save_sequence(f.cache, sequence);
        b = save_sequence(f.cache, plain);
        CHECK(same_blobs(&a, &b));
        blob_free(&a);
        blob_free(&b);
        ACCEPTED(kvq_sequence_truncate(f.cache, sequence, length_of(sequence, 0) / 64 * 32, err));
        ACCEPTED(kvq_sequence_truncate(f.cache, plain, length_of(plain, 0) / 64 * 32, err));
      }
      kvq_sequence_destroy(sequence);
      kvq_sequence_destroy(plain);
    }
  }
  fixture_close(&f);
}

/* After any truncation, appending allocates nothing while there is room. */
static void room_after_a_cut(const char* policy, int32_t tokens, int32_t reserved) {
  fixture f;
  int32_t cut;
  fixture_open(&f, policy, 0, 0);
  for (cut = 0; cut <= tokens; cut += KVQ_PAGE_SLOTS) {
    kvq_sequence* sequence = new_sequence(f.cache);
    size_t live_bytes;
    grow(f.cache, sequence, tokens);
    ACCEPTED(kvq_sequence_reserve(f.cache, sequence, reserved, err));
    ACCEPTED(kvq_sequence_truncate(f.cache, sequence, cut, err));
    CHECK(room_of(sequence, 0) >= tokens - cut + reserved && room_of(sequence, 1) == room_of(sequence, 0));
    live_bytes = f.memory.live_bytes;
    while (room_of(sequence, 1) > 0) {
      const int32_t room = room_of(sequence, 1);
      grow(f.cache, sequence, room < KVQ_PAGE_SLOTS ? room : KVQ_PAGE_SLOTS);
    }
    CHECK(f.memory.live_bytes == live_bytes);
    kvq_sequence_destroy(sequence);
  }
  fixture_close(&f);
}

void test_reserve(void) {
  arguments();
  limits();
  uneven_layers();
  fewer_pages_than_stay_fp16(1);
  fewer_pages_than_stay_fp16(2);
  fewer_pages_than_stay_fp16(5);
  room_after_a_cut("int4", 100, 1);
  room_after_a_cut("fp16", 100, 1);
  room_after_a_cut("version: 1\nkeys: int2\nvalues: int8\nrecent: 3\nsink: 1\n", 100, 1);
  room_after_a_cut("gs2", 100, 1);
  room_after_a_cut("gs2+centres/gt1+centres", 100, 1);
  room_after_a_cut("version: 1\nkeys: gt2\nvalues: gs1\nsink: 0\n", 100, 1);
  room_after_a_cut("version: 1\nkeys: int4\nvalues: int4\nrecent: 2\n", 300, 40);
}
