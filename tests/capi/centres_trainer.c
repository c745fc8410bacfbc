/* kvq_centres_trainer_*: inputs are checked, layers are independent, training can be stopped, memory is bounded.
 */
#include "check.h"
#include "suites.h"
#include "trainer_fixture.h"

#include <math.h>

static int unused_place;

static kvq_centres* result_of(const kvq_centres_trainer* trainer) {
  kvq_centres* centres = NULL;
  ACCEPTED(kvq_centres_trainer_result(trainer, &centres, err));
  return centres;
}

static kvq_centres_info info_of(const kvq_centres* centres) {
  kvq_centres_info info;
  info.struct_size = sizeof info;
  ACCEPTED(kvq_centres_describe(centres, &info, err));
  return info;
}

/* The file of a whole training on a context of its own. */
static blob trained_file(int32_t n_threads, const kvq_centres_trainer_options* options) {
  kvq_context* context = threaded_context(n_threads);
  kvq_centres_trainer* trainer = new_centres_trainer(context, options);
  kvq_centres* centres;
  blob file;
  int32_t i;
  for (i = kLayers - 1; i >= 0; --i) add_centres_tokens(trainer, i);
  for (i = kLayers - 1; i >= 0; --i) ACCEPTED(kvq_centres_trainer_run(trainer, i, NULL, NULL, err));
  centres = result_of(trainer);
  kvq_centres_trainer_destroy(trainer);
  SAVE(&file, kvq_centres_save, centres);
  kvq_centres_destroy(centres);
  kvq_context_destroy(context);
  return file;
}

static void refused_options(void) {
  fixture f;
  kvq_centres_trainer* trainer = (kvq_centres_trainer*)&unused_place;
  kvq_centres_trainer_options options = small_centres_options();
  char long_note[5000];
  fixture_open(&f, NULL, 0, 0);
  REFUSED(KVQ_E_ARGUMENT, "context", kvq_centres_trainer_create(NULL, &options, &trainer, err));
  CHECK(trainer == NULL);
  REFUSED(KVQ_E_ARGUMENT, "options", kvq_centres_trainer_create(f.context, NULL, &trainer, err));
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_centres_trainer_create(f.context, &options, NULL, err));
#define BAD(field, value, mention)                                                                    \
  do {                                                                                                \
    options = small_centres_options();                                                                \
    options.field = (value);                                                                          \
    REFUSED(KVQ_E_ARGUMENT, mention, kvq_centres_trainer_create(f.context, &options, &trainer, err)); \
  } while (0)
  BAD(struct_size, 3, "struct_size");
  BAD(n_layers, 0, "n_layers");
  BAD(n_layers, 65537, "n_layers");
  BAD(kv_heads, 0, "kv_heads");
  BAD(kv_heads, 4097, "kv_heads");
  BAD(head_dim, 0, "head_dim");
  BAD(head_dim, 12, "head_dim");
  BAD(head_dim, 264, "head_dim");
  BAD(rope, -1, "rope");
  BAD(rope, 3, "rope");
  BAD(key_centres, -1, "key_centres");
  BAD(key_centres, 257, "key_centres");
  BAD(value_centres, -1, "value_centres");
  BAD(value_centres, 257, "value_centres");
  BAD(rounds, -1, "rounds");
  BAD(rounds, 1001, "rounds");
  BAD(note, "\xff", "note");
  memset(long_note, 'x', sizeof long_note);
  long_note[sizeof long_note - 1] = '\0';
  BAD(note, long_note, "note");
#undef BAD
  options = small_centres_options();
  options.key_centres = 0;
  options.value_centres = 0;
  REFUSED(KVQ_E_ARGUMENT, "key_centres", kvq_centres_trainer_create(f.context, &options, &trainer, err));
  kvq_centres_trainer_destroy(NULL);
  kvq_centres_trainer_options_init(NULL, 0);
  fixture_close(&f);
}

static void refused_calls(void) {
  fixture f;
  kvq_centres_trainer_options options = small_centres_options();
  kvq_centres_trainer* trainer;
  kvq_centres* centres;
  float k[kTokenScalars] = {0};
  float v[kTokenScalars] = {0};
  fixture_open(&f, NULL, 0, 0);
  trainer = new_centres_trainer(f.context, &options);
  REFUSED(KVQ_E_ARGUMENT, "trainer", kvq_centres_trainer_add(NULL, 0, 1, k, v, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_centres_trainer_add(trainer, -1, 1, k, v, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_centres_trainer_add(trainer, kLayers, 1, k, v, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "n", kvq_centres_trainer_add(trainer, 0, 0, k, v, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "k", kvq_centres_trainer_add(trainer, 0, 1, NULL, v, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "v", kvq_centres_trainer_add(trainer, 0, 1, k, NULL, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "dtype", kvq_centres_trainer_add(trainer, 0, 1, k, v, 3, err));
  v[3] = 65520.0f; /* rounds to infinity */
  REFUSED(KVQ_E_ARGUMENT, "v", kvq_centres_trainer_add(trainer, 0, 1, k, v, KVQ_F32, err));
  ALSO_MENTIONS("3");
  v[3] = 0.0f;
  k[5] = (float)NAN;
  REFUSED(KVQ_E_ARGUMENT, "k", kvq_centres_trainer_add(trainer, 0, 1, k, v, KVQ_F32, err));
  k[5] = 0.0f;
  REFUSED(KVQ_E_STATE, "layer", kvq_centres_trainer_run(trainer, 0, NULL, NULL, err)); /* nothing has been added */
  ACCEPTED(kvq_centres_trainer_add(trainer, 0, 1, k, v, KVQ_F32, err));
  ACCEPTED(kvq_centres_trainer_add(trainer, 0, 1, k, v, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "layer 0 has 2 tokens, too few for 3 centres",
          kvq_centres_trainer_run(trainer, 0, NULL, NULL, err));
  ACCEPTED(kvq_centres_trainer_add(trainer, 0, 1, k, v, KVQ_F32, err));
  ACCEPTED(kvq_centres_trainer_run(trainer, 0, NULL, NULL, err));
  REFUSED(KVQ_E_STATE, "finished", kvq_centres_trainer_run(trainer, 0, NULL, NULL, err));
  REFUSED(KVQ_E_STATE, "finished", kvq_centres_trainer_add(trainer, 0, 1, k, v, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "trainer", kvq_centres_trainer_run(NULL, 0, NULL, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_centres_trainer_run(trainer, kLayers, NULL, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_centres_trainer_result(trainer, NULL, err));
  centres = (kvq_centres*)&unused_place;
  REFUSED(KVQ_E_ARGUMENT, "trainer", kvq_centres_trainer_result(NULL, &centres, err));
  CHECK(centres == NULL);
  kvq_centres_trainer_destroy(trainer);
  fixture_close(&f);
}

/* A side without centres needs no tensor. */
static void one_side(void) {
  fixture f;
  int side;
  fixture_open(&f, NULL, 0, 0);
  for (side = 0; side < 2; ++side) {
    kvq_centres_trainer_options options = small_centres_options();
    kvq_centres_trainer* trainer;
    kvq_centres* centres;
    static float x[kCodebookScalars];
    kvq_centres_info info;
    fill_tensor(x, kCodebookScalars, 3);
    if (side == 0) options.value_centres = 0;
    if (side == 1) options.key_centres = 0;
    trainer = new_centres_trainer(f.context, &options);
    ACCEPTED(
        kvq_centres_trainer_add(trainer, 1, kCodebookTokens, side == 0 ? x : NULL, side == 1 ? x : NULL, KVQ_F32, err));
    ACCEPTED(kvq_centres_trainer_run(trainer, 1, NULL, NULL, err));
    centres = result_of(trainer);
    info = info_of(centres);
    CHECK(info.layers_present == 1 && info.tokens == kCodebookTokens);
    CHECK((info.key_residual > 0.0) == (side == 0) && (info.value_residual > 0.0) == (side == 1));
    CHECK(info.bytes == 4 * kKvHeads * kHeadDim * (side == 0 ? 3 : 2));
    kvq_centres_destroy(centres);
    kvq_centres_trainer_destroy(trainer);
  }
  fixture_close(&f);
}

/* Trained centres describe themselves, survive a file unchanged, and do not depend on threads. */
static void repeatable(void) {
  kvq_centres_trainer_options options = small_centres_options();
  blob one = trained_file(1, &options);
  blob three = trained_file(3, &options);
  blob other;
  blob again;
  fixture f;
  kvq_centres* centres = NULL;
  kvq_centres_info info;
  CHECK(same_blobs(&one, &three));
  options.seed = 6;
  other = trained_file(1, &options);
  CHECK(!same_blobs(&one, &other));
  fixture_open(&f, NULL, 0, 0);
  ACCEPTED(kvq_centres_load(f.context, one.data, one.size, &centres, err));
  info = info_of(centres);
  CHECK(info.layers_present == kLayers && info.n_layers == kLayers && info.tokens == kCodebookTokens);
  CHECK(info.kv_heads == kKvHeads && info.head_dim == kHeadDim && info.rope == KVQ_ROPE_HALF);
  CHECK(info.key_centres == 3 && info.value_centres == 2);
  CHECK(info.seed == 5 && info.model_id == 7 && strcmp(info.note, "small") == 0);
  CHECK(info.key_residual > 0.0 && info.key_residual < 1.0 && info.value_residual > 0.0 && info.value_residual < 1.0);
  SAVE(&again, kvq_centres_save, centres);
  CHECK(same_blobs(&one, &again));
  kvq_centres_destroy(centres);
  fixture_close(&f);
  blob_free(&again);
  blob_free(&other);
  blob_free(&three);
  blob_free(&one);
}

/* Wherever training is stopped, the layer keeps its tokens. */
static void stopped(void) {
  kvq_centres_trainer_options options = small_centres_options();
  blob reference = trained_file(1, &options);
  fixture f;
  kvq_centres_trainer* trainer;
  kvq_centres* centres;
  blob file;
  progress_reports r;
  fixture_open(&f, NULL, 0, 0);
  trainer = new_centres_trainer(f.context, &options);
  add_centres_tokens(trainer, 1);
  STOP_AT_REPORTS(&f.memory, &r, 1, kvq_centres_trainer_run(trainer, 1, on_progress, &r, err));
  add_centres_tokens(trainer, 0);
  ACCEPTED(kvq_centres_trainer_run(trainer, 0, NULL, NULL, err));
  centres = result_of(trainer);
  kvq_centres_trainer_destroy(trainer);
  SAVE(&file, kvq_centres_save, centres);
  CHECK(same_blobs(&file, &reference));
  kvq_centres_destroy(centres);
  fixture_close(&f);
  blob_free(&file);
  blob_free(&reference);
}

/* Tokens beyond the limit are refused; earlier ones stay. */
static void limited(void) {
  kvq_centres_trainer_options options = small_centres_options();
  fixture f;
  kvq_centres_trainer* trainer;
  static float x[kCodebookScalars];
  int n = 0;
  kvq_status status = KVQ_OK;
  fill_tensor(x, kCodebookScalars, 3);
  options.max_bytes = 200000;
  fixture_open(&f, NULL, 0, 0);
  trainer = new_centres_trainer(f.context, &options);
  for (; status == KVQ_OK && n < 1000; ++n)
    status = kvq_centres_trainer_add(trainer, 0, kCodebookTokens, x, x, KVQ_F32, err);
  CHECK(status == KVQ_E_LIMIT && n > 5);
  REFUSED(KVQ_E_LIMIT, "trainer", kvq_centres_trainer_add(trainer, 0, kCodebookTokens, x, x, KVQ_F32, err));
  REFUSED(KVQ_E_LIMIT, "200000", kvq_centres_trainer_run(trainer, 0, NULL, NULL, err)); /* its workspace is larger */
  kvq_centres_trainer_destroy(trainer);
  fixture_close(&f);
}

static void failing_allocations(void) {
  kvq_centres_trainer_options options = small_centres_options();
  fixture f;
  kvq_centres_trainer* trainer = NULL;
  kvq_centres* centres = NULL;
  static float x[kCodebookScalars];
  fill_tensor(x, kCodebookScalars, 3);
  fixture_open(&f, NULL, 0, 0);
  FAIL_EACH_ALLOCATION(&f.memory, kvq_centres_trainer_create(f.context, &options, &trainer, err));
  FAIL_EACH_ALLOCATION(&f.memory, kvq_centres_trainer_add(trainer, 0, 20, x, x, KVQ_F32, err));
  FAIL_EACH_ALLOCATION(&f.memory, kvq_centres_trainer_run(trainer, 0, NULL, NULL, err));
  FAIL_EACH_ALLOCATION(&f.memory, kvq_centres_trainer_result(trainer, &centres, err));
  kvq_centres_trainer_destroy(trainer);
  CHECK(info_of(centres).layers_present == 1);
  kvq_centres_destroy(centres);
  fixture_close(&f);
}

void test_centres_trainer(void) {
  refused_options();
  refused_calls();
  one_side();
  repeatable();
  stopped();
  limited();
  failing_allocations();
}
