/* kvq_cache_create: sizes, rotary options, limits on them. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static kvq_context* context;
static int unused_place;

static void refuse(const kvq_cache_options* options, const char* mention) {
  kvq_cache* cache = (kvq_cache*)&unused_place;
  REFUSED(KVQ_E_ARGUMENT, mention, kvq_cache_create(context, options, NULL, &cache, err));
  CHECK(cache == NULL);
}

static void accept(const kvq_cache_options* options) {
  kvq_cache* cache = NULL;
  ACCEPTED(kvq_cache_create(context, options, NULL, &cache, err));
  CHECK(cache != NULL);
  kvq_cache_destroy(cache);
}

static void defaults(void) {
  kvq_cache_options options;
  memset(&options, 0x77, sizeof options);
  kvq_cache_options_init(&options, sizeof(options));
  CHECK(options.struct_size == sizeof options);
  CHECK(options.n_layers == 0 && options.q_heads == 0 && options.kv_heads == 0 && options.head_dim == 0);
  CHECK(options.rope == KVQ_ROPE_HALF);
  CHECK(options.rotary_dim == 0);
  CHECK(options.rope_base == 10000.0f);
  CHECK(options.inv_freq == NULL);
  CHECK(options.scale == 0.0f);
  CHECK(options.reserved == 0);
  CHECK(options.sliding_window == 0 && options.attention_chunk == 0 && options.mrope_section == NULL);
  CHECK(options.max_bytes == 0);
  CHECK(options.model_id == 0);
  refuse(&options, NULL); /* the four sizes must be set */
  kvq_cache_options_init(NULL, 0);
  kvq_cache_destroy(NULL);
}

static void bad_pointers_and_sizes_of_structs(void) {
  char size[24];
  kvq_cache_options options = small_cache_options();
  kvq_cache* cache = (kvq_cache*)&unused_place;
  REFUSED(KVQ_E_ARGUMENT, "context", kvq_cache_create(NULL, &options, NULL, &cache, err));
  CHECK(cache == NULL);
  refuse(NULL, "options");
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_cache_create(context, &options, NULL, NULL, err));
  options.struct_size = 0;
  refuse(&options, "struct_size");
  options.struct_size = sizeof options - 8;
  refuse(&options, "struct_size");
  sprintf(size, "%lu", (unsigned long)sizeof options);
  ALSO_MENTIONS(size);
  options.struct_size = UINT32_MAX;
  refuse(&options, "struct_size");
}

/* Set one of the four sizes. */
static kvq_cache_options with_size(size_t offset, int32_t value) {
  kvq_cache_options options = small_cache_options();
  memcpy((char*)&options + offset, &value, sizeof value);
  return options;
}

static void bad_shapes(void) {
  const struct {
    size_t offset;
    const char* name;
    int32_t value;
    const char* text;
  } cases[] = {
      {offsetof(kvq_cache_options, n_layers), "n_layers", 0, "0"},
      {offsetof(kvq_cache_options, n_layers), "n_layers", -5, "-5"},
      {offsetof(kvq_cache_options, n_layers), "n_layers", 65537, "65537"},
      {offsetof(kvq_cache_options, n_layers), "n_layers", INT32_MAX, "2147483647"},
      {offsetof(kvq_cache_options, q_heads), "q_heads", 0, "0"},
      {offsetof(kvq_cache_options, q_heads), "q_heads", -2, "-2"},
      {offsetof(kvq_cache_options, q_heads), "q_heads", 5, "5"},
      {offsetof(kvq_cache_options, q_heads), "q_heads", 1, "1"},
      {offsetof(kvq_cache_options, kv_heads), "kv_heads", 0, "0"},
      {offsetof(kvq_cache_options, kv_heads), "kv_heads", -1, "-1"},
      {offsetof(kvq_cache_options, kv_heads), "kv_heads", 4097, "4097"},
      {offsetof(kvq_cache_options, kv_heads), "kv_heads", INT32_MIN, "-2147483648"},
      {offsetof(kvq_cache_options, head_dim), "head_dim", 0, "0"},
      {offsetof(kvq_cache_options, head_dim), "head_dim", -8, "-8"},
      {offsetof(kvq_cache_options, head_dim), "head_dim", 4, "4"},
      {offsetof(kvq_cache_options, head_dim), "head_dim", 12, "12"},
      {offsetof(kvq_cache_options, head_dim), "head_dim", 520, "520"},
      {offsetof(kvq_cache_options, head_dim), "head_dim", INT32_MAX, "2147483647"},
      {offsetof(kvq_cache_options, reserved), "reserved", 1, NULL},
      {offsetof(kvq_cache_options, mrope_interleaved), "mrope_interleaved", 2, NULL},
      {offsetof(kvq_cache_options, sliding_window), "sliding_window", -1, "-1"},
  };
  size_t i;
  for (i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    const kvq_cache_options options = with_size(cases[i].offset, cases[i].value);
    refuse(&options, cases[i].name);
    if (cases[i].text != NULL) ALSO_MENTIONS(cases[i].text);
  }
}

static void good_shapes(void) {
  kvq_cache_options options;
  int32_t head_dim;
  for (head_dim = 8; head_dim <= 512; head_dim += 8) {
    options = with_size(offsetof(kvq_cache_options, head_dim), head_dim);
    accept(&options);
  }
  options = small_cache_options();
  options.q_heads = options.kv_heads = 1;
  accept(&options);
  options.q_heads = 71; /* as in Falcon 7B */
  accept(&options);
}

static void bad_rotary_options(void) {
  float inv_freq[kHeadDim / 2] = {1.0f, 0.5f};
  kvq_cache_options options = small_cache_options();
  options.rope = 3, refuse(&options, "rope");
  ALSO_MENTIONS("3");
  options.rope = -1, refuse(&options, "rope");
  options = small_cache_options();
  options.rotary_dim = 3, refuse(&options, "rotary_dim");
  options.rotary_dim = -2, refuse(&options, "rotary_dim");
  ALSO_MENTIONS("-2");
  options.rotary_dim = kHeadDim + 2, refuse(&options, "rotary_dim");
  ALSO_MENTIONS("18");
  options.rotary_dim = kHeadDim, accept(&options);
  options.rotary_dim = 2, accept(&options);
  options = small_cache_options();
  options.rope_base = 0.0f, refuse(&options, "rope_base");
  options.rope_base = -1.0f, refuse(&options, "rope_base");
  options.rope_base = (float)NAN, refuse(&options, "rope_base");
  options.rope_base = (float)INFINITY, refuse(&options, "rope_base");
  options.rope_base = 1e-45f, refuse(&options, "rope_base");
  ALSO_MENTIONS("1.4013e-45");
  ALSO_MENTIONS("pair");
  options.rope_base = 1e-38f, accept(&options); /* the fastest of 8 pairs rotates by 1e38^(7/8) */
  options = small_cache_options();
  options.inv_freq = inv_freq, accept(&options);
  inv_freq[3] = (float)NAN, refuse(&options, "inv_freq");
  inv_freq[3] = (float)INFINITY, refuse(&options, "inv_freq");
  options = small_cache_options();
  options.scale = (float)NAN, refuse(&options, "scale");
  options.scale = (float)INFINITY, refuse(&options, "scale");
  options.scale = 0.125f, accept(&options);
}

/* The largest shape in range needs far more than the limit: it is refused, not attempted. */
static void enormous_shapes_meet_the_limit(void) {
  kvq_context_options context_options;
  kvq_cache_options options = small_cache_options();
  kvq_context* limited = NULL;
  kvq_cache* cache = (kvq_cache*)&unused_place;
  kvq_status status;
  kvq_context_options_init(&context_options, sizeof(context_options));
  context_options.max_bytes = (uint64_t)1 << 20;
  ACCEPTED(kvq_context_create(&context_options, &limited, err));
  options.n_layers = 65536;
  options.kv_heads = 4096;
  options.q_heads = 4096 * 1024;
  options.head_dim = 256;
  status = kvq_cache_create(limited, &options, NULL, &cache, err);
  CHECK(status == KVQ_OK || status == KVQ_E_LIMIT || status == KVQ_E_ARGUMENT);
  CHECK((status == KVQ_OK) == (cache != NULL));
  if (status == KVQ_OK) {
    kvq_sequence* sequence = (kvq_sequence*)&unused_place;
    REFUSED(KVQ_E_LIMIT, NULL, kvq_sequence_create(cache, &sequence, err));
    CHECK(sequence == NULL);
    kvq_cache_destroy(cache);
  }
  options = small_cache_options();
  options.q_heads = INT32_MAX - 1; /* a multiple of kv_heads */
  cache = (kvq_cache*)&unused_place;
  status = kvq_cache_create(limited, &options, NULL, &cache, err);
  CHECK(status == KVQ_OK || status == KVQ_E_LIMIT || status == KVQ_E_ARGUMENT);
  kvq_cache_destroy(cache);
  kvq_context_destroy(limited);
}

/* inv_freq is copied: changing the caller's array afterwards changes nothing. */
static void inverse_frequencies_are_copied(void) {
  float inv_freq[kHeadDim / 2];
  kvq_cache_options options = small_cache_options();
  kvq_cache* caches[2] = {NULL, NULL};
  blob snapshots[2];
  int i;
  int j;
  for (i = 0; i < 2; ++i) {
    kvq_sequence* sequence;
    for (j = 0; j < kHeadDim / 2; ++j) inv_freq[j] = 1.0f / (float)(1 + j);
    options.inv_freq = inv_freq;
    ACCEPTED(kvq_cache_create(context, &options, NULL, &caches[i], err));
    if (i == 1) memset(inv_freq, 0, sizeof inv_freq);
    sequence = new_sequence(caches[i]);
    grow(caches[i], sequence, 40);
    snapshots[i] = save_sequence(caches[i], sequence);
    kvq_sequence_destroy(sequence);
  }
  CHECK(snapshots[0].size == snapshots[1].size);
  CHECK(memcmp(snapshots[0].data, snapshots[1].data, snapshots[0].size) == 0);
  for (i = 0; i < 2; ++i) {
    blob_free(&snapshots[i]);
    kvq_cache_destroy(caches[i]);
  }
}

void test_cache(void) {
  ACCEPTED(kvq_context_create(NULL, &context, err));
  defaults();
  bad_pointers_and_sizes_of_structs();
  bad_shapes();
  good_shapes();
  bad_rotary_options();
  enormous_shapes_meet_the_limit();
  inverse_frequencies_are_copied();
  kvq_context_destroy(context);
}
