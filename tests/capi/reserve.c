/* kvq_sequence_reserve and kvq_sequence_room: arguments, limits, nothing changed by a refusal. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

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
  REFUSED(KVQ_E_ARGUMENT, "out", kvq_sequence_room(sequence, 0, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_sequence_room(sequence, kLayers, &room, err));
  CHECK(room == 5);
  CHECK(state_is(f.cache, sequence, &before));
  ACCEPTED(kvq_sequence_reserve(f.cache, sequence, 0, err)); /* there is nothing to give back */
  CHECK(state_is(f.cache, sequence, &before));
  state_free(&before);
  kvq_sequence_destroy(sequence);
  fixture_close(&other);
  fixture_close(&f);
}

/* Too little memory for what is asked, before and after a smaller reserve that stays. */
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

void test_reserve(void) {
  arguments();
  limits();
  uneven_layers();
}
