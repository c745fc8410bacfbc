/* kvq_append: arguments, positions, values that FP16 cannot hold; a refused call appends nothing. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static fixture f;
static kvq_sequence* sequence;
static saved_state before;

/* Refused, and nothing has changed. */
#define UNCHANGED(status, mention, call)         \
  do {                                           \
    REFUSED(status, mention, call);              \
    CHECK(state_is(f.cache, sequence, &before)); \
  } while (0)

static void arguments(void) {
  fixture other;
  float kv[2 * kTokenScalars];
  fill_tensor(kv, 2 * kTokenScalars, 3);
  fixture_open(&other, "int4", 0, 0);
#define APPEND(cache, seq, layer, n, k, v, dtype) kvq_append((cache), (seq), (layer), (n), (k), (v), (dtype), NULL, err)
  UNCHANGED(KVQ_E_ARGUMENT, "cache", APPEND(NULL, sequence, 0, 1, kv, kv, KVQ_F32));
  UNCHANGED(KVQ_E_ARGUMENT, "sequence", APPEND(f.cache, NULL, 0, 1, kv, kv, KVQ_F32));
  UNCHANGED(KVQ_E_ARGUMENT, "sequence", APPEND(other.cache, sequence, 0, 1, kv, kv, KVQ_F32));
  UNCHANGED(KVQ_E_ARGUMENT, "layer", APPEND(f.cache, sequence, -1, 1, kv, kv, KVQ_F32));
  UNCHANGED(KVQ_E_ARGUMENT, "layer", APPEND(f.cache, sequence, kLayers, 1, kv, kv, KVQ_F32));
  UNCHANGED(KVQ_E_ARGUMENT, "n", APPEND(f.cache, sequence, 0, 0, kv, kv, KVQ_F32));
  UNCHANGED(KVQ_E_ARGUMENT, "n", APPEND(f.cache, sequence, 0, -7, kv, kv, KVQ_F32));
  ALSO_MENTIONS("-7");
  UNCHANGED(KVQ_E_ARGUMENT, "n", APPEND(f.cache, sequence, 0, INT32_MIN, kv, kv, KVQ_F32));
  UNCHANGED(KVQ_E_ARGUMENT, "k", APPEND(f.cache, sequence, 0, 1, NULL, kv, KVQ_F32));
  UNCHANGED(KVQ_E_ARGUMENT, "v", APPEND(f.cache, sequence, 0, 1, kv, NULL, KVQ_F32));
  UNCHANGED(KVQ_E_ARGUMENT, "dtype", APPEND(f.cache, sequence, 0, 1, kv, kv, 3));
  ALSO_MENTIONS("3");
  UNCHANGED(KVQ_E_ARGUMENT, "dtype", APPEND(f.cache, sequence, 0, 1, kv, kv, -1));
#undef APPEND
  fixture_close(&other);
}

static void positions(void) {
  float kv[3 * kTokenScalars];
  const int32_t negative[] = {-1, 41, 42};
  const int32_t backwards[] = {50, 49, 60};
  const int32_t repeated[] = {50, 60, 60};
  const int32_t not_beyond[] = {39, 40, 41}; /* the last one stored is 39 */
  const int32_t gaps[] = {40, 1000, 2147483646};
  const int32_t last = INT32_MAX;
  kvq_sequence* copy = NULL;
  fill_tensor(kv, 3 * kTokenScalars, 3);
#define APPEND(n, positions) kvq_append(f.cache, sequence, 0, (n), kv, kv, KVQ_F32, (positions), err)
  UNCHANGED(KVQ_E_ARGUMENT, "positions", APPEND(3, negative));
  ALSO_MENTIONS("-1");
  UNCHANGED(KVQ_E_ARGUMENT, "positions", APPEND(3, backwards));
  ALSO_MENTIONS("49");
  UNCHANGED(KVQ_E_ARGUMENT, "positions", APPEND(3, repeated));
  ALSO_MENTIONS("60");
  UNCHANGED(KVQ_E_ARGUMENT, "positions", APPEND(3, not_beyond));
  ALSO_MENTIONS("39");
#undef APPEND
  ACCEPTED(kvq_sequence_fork(f.cache, sequence, &copy, err));
  ACCEPTED(kvq_append(f.cache, copy, 0, 3, kv, kv, KVQ_F32, gaps, err));
  ACCEPTED(kvq_append(f.cache, copy, 0, 1, kv, kv, KVQ_F32, NULL, err)); /* consecutive: INT32_MAX */
  {
    int32_t stored[44];
    ACCEPTED(kvq_sequence_decode(f.cache, copy, 0, 0, 0, 44, NULL, NULL, stored, err));
    CHECK(stored[39] == 39 && stored[40] == 40 && stored[41] == 1000);
    CHECK(stored[42] == 2147483646 && stored[43] == last);
  }
  REFUSED(KVQ_E_ARGUMENT, NULL, kvq_append(f.cache, copy, 0, 1, kv, kv, KVQ_F32, NULL, err)); /* no position is left */
  REFUSED(KVQ_E_ARGUMENT, "positions", kvq_append(f.cache, copy, 0, 1, kv, kv, KVQ_F32, &last, err));
  CHECK(length_of(copy, 0) == 44);
  kvq_sequence_destroy(copy);
}

/* One bad number anywhere in the tensor, also in a page that follows a full one. */
static void values_that_fp16_cannot_hold(void) {
  enum { kN = 70 };
  const float bad[] = {(float)NAN, (float)INFINITY, -(float)INFINITY, 70000.0f, -1e30f};
  const size_t places[] = {0, kTokenScalars - 1, 33 * kTokenScalars + 5, kN * kTokenScalars - 1};
  float* k = (float*)malloc(kN * kTokenScalars * sizeof *k);
  float* v = (float*)malloc(kN * kTokenScalars * sizeof *v);
  size_t i;
  size_t j;
  fill_tensor(k, kN * kTokenScalars, 1);
  fill_tensor(v, kN * kTokenScalars, 2);
  for (i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    for (j = 0; j < sizeof places / sizeof places[0]; ++j) {
      float* const tensors[2] = {k, v};
      int which;
      for (which = 0; which < 2; ++which) {
        const float good = tensors[which][places[j]];
        tensors[which][places[j]] = bad[i];
        UNCHANGED(KVQ_E_ARGUMENT, which == 0 ? "k" : "v",
                  kvq_append(f.cache, sequence, 0, kN, k, v, KVQ_F32, NULL, err));
        tensors[which][places[j]] = good;
      }
    }
  }
  free(k);
  free(v);
}

static void bad_halves(kvq_dtype dtype, const uint16_t* bad, size_t n) {
  uint16_t k[kTokenScalars] = {0};
  uint16_t v[kTokenScalars] = {0};
  size_t i;
  for (i = 0; i < n; ++i) {
    v[7] = bad[i];
    UNCHANGED(KVQ_E_ARGUMENT, "v", kvq_append(f.cache, sequence, 0, 1, k, v, dtype, NULL, err));
    v[7] = 0;
    k[7] = bad[i];
    UNCHANGED(KVQ_E_ARGUMENT, "k", kvq_append(f.cache, sequence, 0, 1, k, v, dtype, NULL, err));
    k[7] = 0;
  }
}

static void halves_that_are_not_finite(void) {
  const uint16_t bad_f16[] = {0x7C00, 0xFC00, 0x7E00, 0x7C01};          /* inf, -inf, quiet and signalling NaN */
  const uint16_t bad_bf16[] = {0x7F80, 0xFF80, 0x7FC0, 0x4780, 0x7F7F}; /* inf, -inf, NaN, 65536, 3.4e38 */
  bad_halves(KVQ_F16, bad_f16, sizeof bad_f16 / sizeof bad_f16[0]);
  bad_halves(KVQ_BF16, bad_bf16, sizeof bad_bf16 / sizeof bad_bf16[0]);
}

/* The limit holds after rotation: (x, x) rotated by one radian has a component of 1.38 x. */
static void rotation_can_leave_the_range(void) {
  float k[kTokenScalars] = {0.0f};
  float v[kTokenScalars] = {0.0f};
  float k_stored[kHeadDim];
  float v_stored[kHeadDim];
  const int32_t zero = 0;
  const int32_t one = 1;
  kvq_sequence* fresh = new_sequence(f.cache);
  k[0] = 65504.0f;
  k[kHeadDim / 2] = 65504.0f; /* the other half of the pair that rotates by one radian per position */
  REFUSED(KVQ_E_ARGUMENT, "k", kvq_append(f.cache, fresh, 0, 1, k, v, KVQ_F32, &one, err));
  CHECK(length_of(fresh, 0) == 0);
  v[0] = -65504.0f;
  ACCEPTED(kvq_append(f.cache, fresh, 0, 1, k, v, KVQ_F32, &zero, err));
  ACCEPTED(kvq_sequence_decode(f.cache, fresh, 0, 0, 0, 1, k_stored, v_stored, NULL, err));
  CHECK(k_stored[0] == 65504.0f && k_stored[kHeadDim / 2] == 65504.0f && k_stored[1] == 0.0f);
  CHECK(v_stored[0] == -65504.0f);
  kvq_sequence_destroy(fresh);
}

/* One-token tensors with a count of two billion: refused without reading them. */
static void counts_whose_product_overflows(void) {
  fixture limited;
  kvq_sequence* fresh;
  float* kv = (float*)malloc(kTokenScalars * sizeof *kv);
  kvq_status status;
  fill_tensor(kv, kTokenScalars, 1);
  fixture_open(&limited, "int4", 0, (uint64_t)1 << 20);
  fresh = new_sequence(limited.cache);
  REFUSED(KVQ_E_LIMIT, NULL, kvq_append(limited.cache, fresh, 0, INT32_MAX, kv, kv, KVQ_F32, NULL, err));
  REFUSED(KVQ_E_LIMIT, NULL, kvq_append(limited.cache, fresh, 0, 100000000, kv, kv, KVQ_F32, NULL, err));
  grow(limited.cache, fresh, 2);
  /* No position is left for the last two either. */
  status = kvq_append(limited.cache, fresh, 0, INT32_MAX, kv, kv, KVQ_F32, NULL, err);
  CHECK(status == KVQ_E_LIMIT || status == KVQ_E_ARGUMENT);
  CHECK(length_of(fresh, 0) == 2);
  kvq_sequence_destroy(fresh);
  fixture_close(&limited);
  free(kv);
}

void test_append(void) {
  fixture_open(&f, "int4", 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 40);
  before = take_state(f.cache, sequence);
  arguments();
  positions();
  /* The fork above has been destroyed: the sequence shares nothing and has not changed. */
  CHECK(state_is(f.cache, sequence, &before));
  values_that_fp16_cannot_hold();
  halves_that_are_not_finite();
  rotation_can_leave_the_range();
  counts_whose_product_overflows();
  state_free(&before);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}
