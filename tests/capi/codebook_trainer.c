/* kvq_codebook_trainer_*: inputs are checked, layers are independent, training can be stopped and resumed.
 */
#include "check.h"
#include "suites.h"
#include "trainer_fixture.h"

#include <math.h>

static int unused_place;

/* Add a layer's tokens in two calls. */
static void add_tokens(kvq_codebook_trainer* trainer, int32_t layer) {
  static float k[kCodebookScalars];
  static float v[kCodebookScalars];
  const int32_t first = 37;
  fill_tensor(k, kCodebookScalars, 10 + (uint32_t)layer);
  fill_tensor(v, kCodebookScalars, 20 + (uint32_t)layer);
  ACCEPTED(kvq_codebook_trainer_add(trainer, layer, first, k, v, KVQ_F32, err));
  ACCEPTED(kvq_codebook_trainer_add(trainer, layer, kCodebookTokens - first, k + first * kTokenScalars,
                                    v + first * kTokenScalars, KVQ_F32, err));
}

static kvq_codebook* result_of(const kvq_codebook_trainer* trainer) {
  kvq_codebook* codebook = NULL;
  ACCEPTED(kvq_codebook_trainer_result(trainer, &codebook, err));
  return codebook;
}

static int32_t layers_present(const kvq_codebook* codebook) {
  kvq_codebook_info info;
  info.struct_size = sizeof info;
  ACCEPTED(kvq_codebook_describe(codebook, &info, err));
  return info.layers_present;
}

/* The file of a whole training on a context of its own. */
static blob trained_file(int32_t n_threads, const kvq_codebook_trainer_options* options) {
  kvq_context* context = threaded_context(n_threads);
  kvq_codebook_trainer* trainer = new_codebook_trainer(context, options);
  kvq_codebook* codebook;
  blob file;
  int32_t i;
  for (i = 0; i < kLayers; ++i) add_tokens(trainer, i);
  for (i = 0; i < kLayers; ++i) ACCEPTED(kvq_codebook_trainer_run(trainer, i, NULL, NULL, err));
  codebook = result_of(trainer);
  kvq_codebook_trainer_destroy(trainer);
  SAVE(&file, kvq_codebook_save, codebook);
  kvq_codebook_destroy(codebook);
  kvq_context_destroy(context);
  return file;
}

static void refused_options(void) {
  fixture f;
  kvq_codebook_trainer* trainer = (kvq_codebook_trainer*)&unused_place;
  kvq_codebook_trainer_options options = small_codebook_options();
  char long_note[5000];
  fixture_open(&f, NULL, 0, 0);
  REFUSED(KVQ_E_ARGUMENT, "context", kvq_codebook_trainer_create(NULL, &options, &trainer, err));
  CHECK(trainer == NULL);
  REFUSED(KVQ_E_ARGUMENT, "options", kvq_codebook_trainer_create(f.context, NULL, &trainer, err));
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_codebook_trainer_create(f.context, &options, NULL, err));
#define BAD(field, value, mention)                                                                     \
  do {                                                                                                 \
    options = small_codebook_options();                                                                \
    options.field = (value);                                                                           \
    REFUSED(KVQ_E_ARGUMENT, mention, kvq_codebook_trainer_create(f.context, &options, &trainer, err)); \
  } while (0)
  BAD(struct_size, 8, "struct_size");
  BAD(n_layers, 0, "n_layers");
  BAD(n_layers, 65537, "n_layers");
  BAD(kv_heads, 0, "kv_heads");
  BAD(kv_heads, 4097, "kv_heads");
  BAD(head_dim, 0, "head_dim");
  BAD(head_dim, 12, "head_dim");
  BAD(head_dim, 264, "head_dim");
  BAD(rope, KVQ_ROPE_NONE, "rope");
  BAD(rope, 3, "rope");
  BAD(key_stages, -1, "key_stages");
  BAD(key_stages, 65, "key_stages");
  BAD(key_codes, 0, "key_codes");
  BAD(key_codes, 12, "key_codes");
  BAD(key_codes, 512, "key_codes");
  BAD(key_group, -1, "key_group");
  BAD(key_group, 3, "key_group");
  BAD(key_group, 16, "key_group");
  BAD(key_norms, 2, "key_norms");
  BAD(value_bits, -1, "value_bits");
  BAD(value_bits, 3, "value_bits");
  BAD(value_scope, -1, "value_scope");
  BAD(key_rounds, -1, "key_rounds");
  BAD(value_rounds, 1001, "value_rounds");
  BAD(value_method, -1, "value_method");
  BAD(value_method, 2, "value_method");
  BAD(note, "\xff", "note");
  memset(long_note, 'x', sizeof long_note);
  long_note[sizeof long_note - 1] = '\0';
  BAD(note, long_note, "note");
#undef BAD
  options = small_codebook_options();
  options.key_stages = 0;
  options.value_bits = 0;
  REFUSED(KVQ_E_ARGUMENT, "key_stages", kvq_codebook_trainer_create(f.context, &options, &trainer, err));
  kvq_codebook_trainer_destroy(NULL);
  kvq_codebook_trainer_options_init(NULL, 0);
  fixture_close(&f);
}

static void refused_calls(void) {
  fixture f;
  kvq_codebook_trainer_options options = small_codebook_options();
  kvq_codebook_trainer* trainer;
  kvq_codebook* codebook;
  float k[kTokenScalars] = {0};
  float v[kTokenScalars] = {0};
  fixture_open(&f, NULL, 0, 0);
  trainer = new_codebook_trainer(f.context, &options);
  REFUSED(KVQ_E_ARGUMENT, "trainer", kvq_codebook_trainer_add(NULL, 0, 1, k, v, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_codebook_trainer_add(trainer, -1, 1, k, v, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_codebook_trainer_add(trainer, kLayers, 1, k, v, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "n", kvq_codebook_trainer_add(trainer, 0, 0, k, v, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "k", kvq_codebook_trainer_add(trainer, 0, 1, NULL, v, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "v", kvq_codebook_trainer_add(trainer, 0, 1, k, NULL, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "dtype", kvq_codebook_trainer_add(trainer, 0, 1, k, v, 3, err));
  v[3] = 65520.0f; /* rounds to infinity */
  REFUSED(KVQ_E_ARGUMENT, "v", kvq_codebook_trainer_add(trainer, 0, 1, k, v, KVQ_F32, err));
  ALSO_MENTIONS("3");
  v[3] = 0.0f;
  k[5] = (float)NAN;
  REFUSED(KVQ_E_ARGUMENT, "k", kvq_codebook_trainer_add(trainer, 0, 1, k, v, KVQ_F32, err));
  REFUSED(KVQ_E_STATE, "layer", kvq_codebook_trainer_run(trainer, 0, NULL, NULL, err)); /* nothing has been added */
  REFUSED(KVQ_E_ARGUMENT, "trainer", kvq_codebook_trainer_run(NULL, 0, NULL, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_codebook_trainer_run(trainer, kLayers, NULL, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_codebook_trainer_result(trainer, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "codebook", kvq_codebook_trainer_resume(trainer, NULL, err));
  codebook = (kvq_codebook*)&unused_place;
  REFUSED(KVQ_E_ARGUMENT, "trainer", kvq_codebook_trainer_result(NULL, &codebook, err));
  CHECK(codebook == NULL);
  kvq_codebook_trainer_destroy(trainer);
  fixture_close(&f);
}

/* A side without codes needs no tensor. */
static void one_side(void) {
  fixture f;
  int side;
  fixture_open(&f, NULL, 0, 0);
  for (side = 0; side < 2; ++side) {
    kvq_codebook_trainer_options options = small_codebook_options();
    kvq_codebook_trainer* trainer;
    kvq_codebook* codebook;
    static float x[kCodebookScalars];
    kvq_codebook_info info;
    fill_tensor(x, kCodebookScalars, 3);
    if (side == 0) options.value_bits = 0;
    if (side == 1) options.key_stages = 0;
    trainer = new_codebook_trainer(f.context, &options);
    ACCEPTED(kvq_codebook_trainer_add(trainer, 1, kCodebookTokens, side == 0 ? x : NULL, side == 1 ? x : NULL, KVQ_F32,
                                      err));
    ACCEPTED(kvq_codebook_trainer_run(trainer, 1, NULL, NULL, err));
    codebook = result_of(trainer);
    info.struct_size = sizeof info;
    ACCEPTED(kvq_codebook_describe(codebook, &info, err));
    CHECK(info.layers_present == 1 && info.tokens == kCodebookTokens);
    CHECK((info.key_error > 0.0) == (side == 0) && (info.value_error > 0.0) == (side == 1));
    CHECK((info.key_true_bits > 0.0) == (side == 0) && (info.value_true_bits > 0.0) == (side == 1));
    kvq_codebook_destroy(codebook);
    kvq_codebook_trainer_destroy(trainer);
  }
  fixture_close(&f);
}

/* Without codes for values their training options do not matter. */
static void without_values(void) {
  kvq_codebook_trainer_options options = small_codebook_options();
  blob one;
  blob other;
  options.value_bits = 0;
  one = trained_file(1, &options);
  options.value_method = KVQ_VALUES_NETWORK;
  other = trained_file(1, &options);
  CHECK(same_blobs(&one, &other));
  blob_free(&other);
  blob_free(&one);
}

/* Trained codebooks describe themselves, survive a file unchanged, and do not depend on threads. */
static void repeatable(kvq_value_method value_method) {
  kvq_codebook_trainer_options options = small_codebook_options();
  blob one;
  blob three;
  blob other;
  fixture f;
  kvq_codebook* codebook = NULL;
  kvq_codebook_info info;
  blob again;
  options.value_method = value_method;
  one = trained_file(1, &options);
  three = trained_file(3, &options);
  CHECK(same_blobs(&one, &three));
  options.seed = 6;
  other = trained_file(1, &options);
  CHECK(!same_blobs(&one, &other));

  fixture_open(&f, NULL, 0, 0);
  ACCEPTED(kvq_codebook_load(f.context, one.data, one.size, &codebook, err));
  info.struct_size = sizeof info;
  ACCEPTED(kvq_codebook_describe(codebook, &info, err));
  CHECK(info.layers_present == kLayers && info.n_layers == kLayers && info.tokens == kCodebookTokens);
  CHECK(info.kv_heads == kKvHeads && info.head_dim == kHeadDim && info.rope == KVQ_ROPE_HALF);
  CHECK(info.key_stages == 2 && info.key_codes == 8 && info.key_group == kHeadDim / 2);
  CHECK(info.key_norms == KVQ_SCOPE_HEAD && info.value_bits == 1 && info.value_scope == KVQ_SCOPE_HEAD);
  CHECK(info.seed == 5 && info.model_id == 7 && strcmp(info.note, "small") == 0);
  CHECK(info.key_error > 0.0 && info.key_error < 1.0 && info.value_error > 0.0 && info.value_error < 1.0);
  SAVE(&again, kvq_codebook_save, codebook);
  CHECK(same_blobs(&one, &again));
  kvq_codebook_destroy(codebook);
  fixture_close(&f);
  blob_free(&again);
  blob_free(&other);
  blob_free(&three);
  blob_free(&one);
}

/* Wherever training is stopped, the layer keeps its tokens, and another trainer can take over finished layers. */
static void stopped_and_resumed(kvq_value_method value_method) {
  kvq_codebook_trainer_options options = small_codebook_options();
  blob reference;
  fixture f;
  kvq_codebook_trainer* trainer;
  kvq_codebook_trainer* second;
  kvq_codebook* partial;
  kvq_codebook* whole;
  blob file;
  progress_reports r;
  options.value_method = value_method;
  reference = trained_file(1, &options);
  fixture_open(&f, NULL, 0, 0);
  trainer = new_codebook_trainer(f.context, &options);
  partial = result_of(trainer);
  CHECK(layers_present(partial) == 0);
  kvq_codebook_destroy(partial);
  add_tokens(trainer, 1);
  STOP_AT_REPORTS(&f.memory, &r, n_ / 2 + 1, kvq_codebook_trainer_run(trainer, 1, on_progress, &r, err));
  partial = result_of(trainer);
  CHECK(layers_present(partial) == 1);
  REFUSED(KVQ_E_STATE, "finished", kvq_codebook_trainer_run(trainer, 1, NULL, NULL, err));
  kvq_codebook_trainer_destroy(trainer);

  second = new_codebook_trainer(f.context, &options);
  add_tokens(second, 1); /* dropped */
  ACCEPTED(kvq_codebook_trainer_resume(second, partial, err));
  kvq_codebook_destroy(partial);
  {
    float x[kTokenScalars] = {0};
    REFUSED(KVQ_E_STATE, "finished", kvq_codebook_trainer_add(second, 1, 1, x, x, KVQ_F32, err));
  }
  add_tokens(second, 0);
  ACCEPTED(kvq_codebook_trainer_run(second, 0, NULL, NULL, err));
  whole = result_of(second);
  kvq_codebook_trainer_destroy(second);
  SAVE(&file, kvq_codebook_save, whole);
  CHECK(same_blobs(&file, &reference));

#define OTHER(field, value, mention)                                                    \
  do {                                                                                  \
    options = small_codebook_options();                                                 \
    options.value_method = value_method;                                                \
    options.field = (value);                                                            \
    trainer = new_codebook_trainer(f.context, &options);                                \
    REFUSED(KVQ_E_MISMATCH, mention, kvq_codebook_trainer_resume(trainer, whole, err)); \
    kvq_codebook_trainer_destroy(trainer);                                              \
  } while (0)
  OTHER(key_stages, 3, "shape");
  OTHER(value_method, 1 - value_method, "shape");
  OTHER(seed, 6, "seed");
  OTHER(model_id, 8, "model_id");
  OTHER(note, "large", "note");
#undef OTHER
  kvq_codebook_destroy(whole);
  fixture_close(&f);
  blob_free(&file);
  blob_free(&reference);
}

/* A codebook's numbers are in the memory of its context, which may be destroyed before the trainer's. */
static void codebooks_of_other_contexts(void) {
  const kvq_codebook_trainer_options options = small_codebook_options();
  fixture f;
  fixture other;
  kvq_codebook_trainer* trainer;
  kvq_codebook_trainer* elsewhere;
  kvq_codebook* codebook;
  fixture_open(&f, NULL, 0, 0);
  fixture_open(&other, NULL, 0, 0);
  trainer = new_codebook_trainer(f.context, &options);
  elsewhere = new_codebook_trainer(other.context, &options);
  codebook = result_of(elsewhere);
  REFUSED(KVQ_E_ARGUMENT, "codebook belongs to another context", kvq_codebook_trainer_resume(trainer, codebook, err));
  kvq_codebook_destroy(codebook);
  kvq_codebook_trainer_destroy(elsewhere);
  kvq_codebook_trainer_destroy(trainer);
  fixture_close(&other);
  fixture_close(&f);
}

void test_codebook_trainer(void) {
  kvq_value_method value_method;
  refused_options();
  refused_calls();
  one_side();
  for (value_method = KVQ_VALUES_LEAST_SQUARES; value_method <= KVQ_VALUES_NETWORK; ++value_method) {
    repeatable(value_method);
    stopped_and_resumed(value_method);
  }
  without_values();
  codebooks_of_other_contexts();
}
