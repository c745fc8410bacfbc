/* Caches that store pages with codebooks: which codebooks they take, what appending refuses, who owns what. */
#include "check.h"
#include "fixture.h"
#include "suites.h"
#include "trainer_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { kMostAllocations = 100000, kTrained = 64, kMostScalars = kTrained * 4 * 32 };

static const char kBothSides[] = "commvq";
static const char kKeysOnly[] = "version: 1\nkeys: commvq\nvalues: int4\n";
static const char kValuesOnly[] = "version: 1\nkeys: int8\nvalues: commvq\n";

static int unused_place;

/* Codebook with codes for the first `n_layers` layers. */
static kvq_codebook* train(kvq_context* context, const kvq_codebook_trainer_options* options, int32_t n_layers) {
  static float x[kMostScalars];
  kvq_codebook_trainer* trainer = NULL;
  kvq_codebook* codebook = NULL;
  int32_t layer;
  ACCEPTED(kvq_codebook_trainer_create(context, options, &trainer, err));
  for (layer = 0; layer < n_layers; ++layer) {
    fill_tensor(x, kMostScalars, 30 + (uint32_t)layer);
    ACCEPTED(kvq_codebook_trainer_add(trainer, layer, kTrained, options->key_stages != 0 ? x : NULL,
                                      options->value_bits != 0 ? x : NULL, KVQ_F32, err));
    ACCEPTED(kvq_codebook_trainer_run(trainer, layer, NULL, NULL, err));
  }
  ACCEPTED(kvq_codebook_trainer_result(trainer, &codebook, err));
  kvq_codebook_trainer_destroy(trainer);
  return codebook;
}

static kvq_status create(kvq_context* context, const kvq_cache_options* options, const char* text, kvq_cache** out,
                         kvq_error* error) {
  kvq_policy* policy = NULL;
  kvq_status status = kvq_policy_load(context, text, strlen(text), &policy, error);
  CHECK(status == KVQ_OK);
  status = kvq_cache_create(context, options, policy, out, error);
  kvq_policy_destroy(policy);
  return status;
}

/* Codebook with codes of the layers' own scopes. */
static kvq_cache* coded_cache(kvq_context* context, const kvq_codebook* codebook) {
  kvq_cache_options options = small_cache_options();
  kvq_cache* cache = NULL;
  options.codebook = codebook;
  ACCEPTED(create(context, &options, kBothSides, &cache, err));
  return cache;
}

static void refused_codebooks(void) {
  fixture f;
  kvq_codebook_trainer_options trained;
  kvq_cache_options options = small_cache_options();
  kvq_codebook* codebook;
  kvq_cache* cache = (kvq_cache*)&unused_place;
  fixture_open(&f, NULL, 0, 0);
  REFUSED(KVQ_E_ARGUMENT, "options->codebook", create(f.context, &options, kBothSides, &cache, err));
  CHECK(cache == NULL);
  REFUSED(KVQ_E_ARGUMENT, "NULL", create(f.context, &options, kKeysOnly, &cache, err));
  REFUSED(KVQ_E_ARGUMENT, "NULL", create(f.context, &options, kValuesOnly, &cache, err));

#define OTHER(field, value, status, policy, mention, also)                      \
  do {                                                                          \
    trained = small_trainer_options();                                          \
    trained.field = (value);                                                    \
    codebook = train(f.context, &trained, trained.n_layers);                    \
    options = small_cache_options();                                            \
    options.codebook = codebook;                                                \
    REFUSED(status, mention, create(f.context, &options, policy, &cache, err)); \
    ALSO_MENTIONS(also);                                                        \
    ALSO_MENTIONS("codebook");                                                  \
    kvq_codebook_destroy(codebook);                                             \
  } while (0)
  OTHER(n_layers, 3, KVQ_E_MISMATCH, kBothSides, "n_layers", "3");
  OTHER(kv_heads, 4, KVQ_E_MISMATCH, kBothSides, "kv_heads", "4");
  OTHER(head_dim, 32, KVQ_E_MISMATCH, kBothSides, "head_dim", "32");
  OTHER(rope, KVQ_ROPE_INTERLEAVED, KVQ_E_MISMATCH, kBothSides, "rope", "2");
  OTHER(model_id, 8, KVQ_E_MISMATCH, kBothSides, "model_id", "8");
  OTHER(value_bits, 0, KVQ_E_ARGUMENT, kBothSides, "values", "commvq");
  OTHER(value_bits, 0, KVQ_E_ARGUMENT, kValuesOnly, "values", "commvq");
  OTHER(key_stages, 0, KVQ_E_ARGUMENT, kBothSides, "keys", "commvq");
  OTHER(key_stages, 0, KVQ_E_ARGUMENT, kKeysOnly, "keys", "commvq");
#undef OTHER

  /* A cache cannot use both, whichever is given. */
  {
    kvq_centres* centres = centres_for(f.context, "gs2+centres");
    int given;
    trained = small_trainer_options();
    codebook = train(f.context, &trained, trained.n_layers);
    for (given = 0; given < 4; ++given) {
      options = small_cache_options();
      options.codebook = given % 2 != 0 ? codebook : NULL;
      options.centres = given / 2 != 0 ? centres : NULL;
      REFUSED(KVQ_E_UNSUPPORTED, "options->codebook", create(f.context, &options, "commvq/gs2+centres", &cache, err));
      ALSO_MENTIONS("options->centres");
      CHECK(cache == NULL);
    }
    kvq_codebook_destroy(codebook);
    kvq_centres_destroy(centres);
    options = small_cache_options();
  }

  trained = small_trainer_options();
  codebook = train(f.context, &trained, 1);
  options.codebook = codebook;
  REFUSED(KVQ_E_ARGUMENT, "1 of 2", create(f.context, &options, kBothSides, &cache, err));
  ALSO_MENTIONS("options->codebook");
  kvq_codebook_destroy(codebook);

  /* Codes that all heads share cannot be evicted per head. */
  trained = small_trainer_options();
  codebook = train(f.context, &trained, kLayers);
  options.codebook = codebook;
  REFUSED(KVQ_E_ARGUMENT, "scope head", create(f.context, &options, "commvq+adasnap:64", &cache, err));
  ALSO_MENTIONS("together");
  ACCEPTED(create(f.context, &options,
                  "version: 1\nkeys: commvq\nvalues: commvq\neviction: {budget: 64, heads: together}\n", &cache, err));
  kvq_cache_destroy(cache);
  cache = NULL;
  kvq_codebook_destroy(codebook);

  /* Eight groups of eight stages with 64 indices of two bits, and 32 norms: FP16 keys take 32 · 16 · 2 bytes. */
  trained = small_trainer_options();
  trained.key_group = 1;
  trained.key_stages = 8;
  trained.key_codes = 4;
  trained.key_norms = KVQ_SCOPE_HEAD;
  codebook = train(f.context, &trained, kLayers);
  options.codebook = codebook;
  REFUSED(KVQ_E_ARGUMENT, "1088", create(f.context, &options, kBothSides, &cache, err));
  ALSO_MENTIONS("1024");
  ALSO_MENTIONS("keys");
  ALSO_MENTIONS("options->codebook");
  ACCEPTED(create(f.context, &options, kValuesOnly, &cache, err)); /* its key codes are not used */
  kvq_cache_destroy(cache);
  kvq_codebook_destroy(codebook);
  fixture_close(&f);
}

/* Codes are of keys before RoPE, with all channels in pairs. */
static void refused_rotations(void) {
  fixture f;
  kvq_codebook_trainer_options trained = small_trainer_options();
  kvq_cache_options options = small_cache_options();
  kvq_codebook* codebook;
  kvq_cache* cache = NULL;
  fixture_open(&f, NULL, 0, 0);
  codebook = train(f.context, &trained, kLayers);
  options.codebook = codebook;
  options.rotary_dim = 8;
  REFUSED(KVQ_E_ARGUMENT, "rotary_dim", create(f.context, &options, kBothSides, &cache, err));
  ALSO_MENTIONS("8");
  ALSO_MENTIONS("16");
  ACCEPTED(create(f.context, &options, kValuesOnly, &cache, err)); /* values are not rotated */
  kvq_cache_destroy(cache);
  options.rotary_dim = kHeadDim;
  ACCEPTED(create(f.context, &options, kBothSides, &cache, err));
  kvq_cache_destroy(cache);
  options.rotary_dim = 0;
  options.rope = KVQ_ROPE_NONE;
  REFUSED(KVQ_E_MISMATCH, "rope", create(f.context, &options, kBothSides, &cache, err));
  kvq_codebook_destroy(codebook);
  fixture_close(&f);
}

/* Anywhere in a prompt, also in pages that will be sealed. */
static void refused_tokens(void) {
  enum { kN = 100 };
  const float bad[] = {(float)NAN, (float)INFINITY, -(float)INFINITY, 70000.0f};
  const size_t places[] = {0, kTokenScalars - 1, 33 * kTokenScalars + 21, kN * kTokenScalars - 1};
  static float k[kN * kTokenScalars];
  static float v[kN * kTokenScalars];
  kvq_codebook_trainer_options trained = small_trainer_options();
  fixture f;
  kvq_codebook* codebook;
  kvq_cache* cache;
  kvq_sequence* sequence;
  saved_state before;
  size_t i;
  size_t j;
  int side;
  fixture_open(&f, NULL, 0, 0);
  codebook = train(f.context, &trained, kLayers);
  cache = coded_cache(f.context, codebook);
  sequence = new_sequence(cache);
  grow(cache, sequence, 45);
  before = take_state(cache, sequence);
  fill_tensor(k, kN * kTokenScalars, 1);
  fill_tensor(v, kN * kTokenScalars, 2);
  for (i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    for (j = 0; j < sizeof places / sizeof places[0]; ++j) {
      for (side = 0; side < 2; ++side) {
        float* tensor = side == 0 ? k : v;
        const float good = tensor[places[j]];
        tensor[places[j]] = bad[i];
        REFUSED(KVQ_E_ARGUMENT, side == 0 ? "k" : "v", kvq_append(cache, sequence, 0, kN, k, v, KVQ_F32, NULL, err));
        if (j == 2) {
          ALSO_MENTIONS("token 33");
          ALSO_MENTIONS("head 1");
          ALSO_MENTIONS("channel 5");
        }
        CHECK(state_is(cache, sequence, &before));
        tensor[places[j]] = good;
      }
    }
  }
  ACCEPTED(kvq_append(cache, sequence, 0, kN, k, v, KVQ_F32, NULL, err));
  state_free(&before);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_codebook_destroy(codebook);
  fixture_close(&f);
}

/* A codebook's context may be destroyed before caches of another context. */
static void another_context(void) {
  kvq_codebook_trainer_options trained = small_trainer_options();
  kvq_cache_options options = small_cache_options();
  fixture f;
  fixture other;
  kvq_codebook* codebook;
  kvq_cache* cache = (kvq_cache*)&unused_place;
  fixture_open(&f, NULL, 0, 0);
  fixture_open(&other, NULL, 0, 0);
  codebook = train(f.context, &trained, kLayers);
  options.codebook = codebook;
  REFUSED(KVQ_E_ARGUMENT, "options->codebook", create(other.context, &options, kBothSides, &cache, err));
  ALSO_MENTIONS("context");
  CHECK(cache == NULL);
  kvq_codebook_destroy(codebook);
  fixture_close(&other);
  fixture_close(&f);
}

/* Caches keep what they need of a codebook after its handle is destroyed, and read each other's snapshots. */
static void shared(void) {
  kvq_codebook_trainer_options trained = small_trainer_options();
  fixture f;
  kvq_codebook* codebook;
  kvq_cache* caches[3];
  kvq_sequence* sequences[2];
  kvq_sequence* loaded = NULL;
  blob snapshots[2];
  float out[3][kQHeads * kHeadDim];
  int i;
  fixture_open(&f, NULL, 0, 0);
  codebook = train(f.context, &trained, kLayers);
  for (i = 0; i < 3; ++i) caches[i] = coded_cache(f.context, codebook);
  kvq_codebook_destroy(codebook);
  kvq_cache_destroy(caches[2]);
  for (i = 0; i < 2; ++i) {
    sequences[i] = new_sequence(caches[i]);
    grow(caches[i], sequences[i], 100);
    snapshots[i] = save_sequence(caches[i], sequences[i]);
    ACCEPTED(attend_last(caches[i], sequences[i], out[i]));
  }
  CHECK(snapshots[0].size == snapshots[1].size);
  CHECK(memcmp(snapshots[0].data, snapshots[1].data, snapshots[0].size) == 0);
  kvq_sequence_destroy(sequences[0]);
  kvq_cache_destroy(caches[0]);
  ACCEPTED(kvq_sequence_load(caches[1], snapshots[0].data, snapshots[0].size, &loaded, err));
  ACCEPTED(attend_last(caches[1], loaded, out[2]));
  CHECK(memcmp(out[0], out[1], sizeof out[0]) == 0);
  CHECK(memcmp(out[0], out[2], sizeof out[0]) == 0);
  kvq_sequence_destroy(loaded);
  kvq_sequence_destroy(sequences[1]);
  kvq_cache_destroy(caches[1]);
  for (i = 0; i < 2; ++i) blob_free(&snapshots[i]);
  fixture_close(&f);
}

static void failing_allocations(void) {
  kvq_codebook_trainer_options trained = small_trainer_options();
  kvq_cache_options options = small_cache_options();
  fixture f;
  kvq_codebook* codebook;
  kvq_policy* policy;
  kvq_cache* caches[2] = {NULL, NULL};
  kvq_cache* cache;
  kvq_sequence* sequence;
  saved_state before;
  kvq_status status;
  float out[kQHeads * kHeadDim];
  size_t live;
  long n;
  int round;
  fixture_open(&f, NULL, 0, 0);
  codebook = train(f.context, &trained, kLayers);
  policy = load_policy(f.context, kBothSides);
  options.codebook = codebook;
  for (round = 0; round < 2; ++round) { /* the first cache allocates the data that a codebook's caches share */
    status = KVQ_E_MEMORY;
    for (n = 1; status != KVQ_OK && n < kMostAllocations; ++n) {
      live = f.memory.live_bytes;
      f.memory.fail_at = n;
      status = kvq_cache_create(f.context, &options, policy, &caches[round], err);
      CHECK(status == KVQ_OK || (status == KVQ_E_MEMORY && caches[round] == NULL));
      CHECK(status == KVQ_OK || round == 0 || f.memory.live_bytes == live);
    }
    CHECK(status == KVQ_OK && n > (round == 0 ? 10 : 3));
    f.memory.fail_at = 0;
  }
  cache = caches[0];
  kvq_cache_destroy(caches[1]);
  sequence = new_sequence(cache);
  grow(cache, sequence, 20);
  before = take_state(cache, sequence);
  status = KVQ_E_MEMORY;
  for (n = 1; status != KVQ_OK && n < kMostAllocations; ++n) {
    f.memory.fail_at = n;
    status = append_tokens(cache, sequence, 0, 100);
    f.memory.fail_at = 0;
    CHECK(status == KVQ_OK || (status == KVQ_E_MEMORY && state_is(cache, sequence, &before)));
  }
  CHECK(status == KVQ_OK && n > 3);
  status = KVQ_E_MEMORY;
  for (n = 1; status != KVQ_OK && n < kMostAllocations; ++n) {
    f.memory.fail_at = n;
    status = attend_last(cache, sequence, out);
    f.memory.fail_at = 0;
    CHECK(status == KVQ_OK || status == KVQ_E_MEMORY);
  }
  CHECK(status == KVQ_OK && n > 3);
  state_free(&before);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_policy_destroy(policy);
  kvq_codebook_destroy(codebook);
  fixture_close(&f);
}

void test_commvq(void) {
  refused_codebooks();
  refused_rotations();
  refused_tokens();
  another_context();
  shared();
  failing_allocations();
}
