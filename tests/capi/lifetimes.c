/* Objects may be destroyed in any order: whatever others need is freed with the last of them, and then the hooks are
 * released. */
#include "check.h"
#include "objects.h"
#include "suites.h"
#include "trainer_fixture.h"

#include <stdlib.h>
#include <string.h>

enum { kMostUses = kKinds, kOut = kQHeads * kHeadDim };

/* The sequence's attention after each token that a use appends, and the matrix's outputs; computed with objects of
 * which nothing has been destroyed. */
static float expected_attention[kMostUses][kOut];
static float expected_outputs[kMatrixRows];
static blob expected_codebook;
static blob expected_router;
static blob expected_centres;

static int same_file(const blob* expected, kvq_status (*save)(const void*, void*, size_t, size_t*),
                     const void* handle) {
  size_t size = 0;
  blob found = {NULL, 0};
  int same;
  CHECK(save(handle, NULL, 0, &size) == KVQ_OK);
  found.size = size;
  found.data = (unsigned char*)malloc(size);
  CHECK(save(handle, found.data, size, &size) == KVQ_OK);
  same = same_blobs(expected, &found);
  blob_free(&found);
  return same;
}

static kvq_status save_codebook(const void* handle, void* buffer, size_t capacity, size_t* size) {
  return kvq_codebook_save((const kvq_codebook*)handle, buffer, capacity, size, NULL);
}
static kvq_status save_router(const void* handle, void* buffer, size_t capacity, size_t* size) {
  return kvq_router_save((const kvq_router*)handle, buffer, capacity, size, NULL);
}

static kvq_status save_centres(const void* handle, void* buffer, size_t capacity, size_t* size) {
  return kvq_centres_save((const kvq_centres*)handle, buffer, capacity, size, NULL);
}

static void use_context(kvq_context* context) {
  kvq_context_info info;
  kvq_policy* policy = load_policy(context, "int4");
  info.struct_size = sizeof info;
  ACCEPTED(kvq_context_describe(context, &info, err));
  CHECK(info.bytes > 0);
  kvq_policy_destroy(policy);
}

static void use_policy(const kvq_policy* policy) {
  kvq_policy_info info;
  info.struct_size = sizeof info;
  ACCEPTED(kvq_policy_describe(policy, &info, err));
  CHECK(info.eviction_budget == 40);
}

/* A cache returns its context, from which any object can be created. */
static void use_cache(kvq_cache* cache) {
  kvq_sequence* sequence = new_sequence(cache);
  grow(cache, sequence, 40);
  CHECK(length_of(sequence, 1) == 40);
  CHECK(kvq_sequence_cache(sequence) == cache);
  kvq_sequence_destroy(sequence);
  use_context(kvq_cache_context(cache));
}

/* Append, attend, save and load with the cache that the sequence returns, whether its handle still exists or not. */
static void use_sequence(kvq_sequence* sequence, int n_before) {
  kvq_cache* cache = kvq_sequence_cache(sequence);
  kvq_sequence* loaded = NULL;
  kvq_sequence* child = NULL;
  float out[kOut];
  blob saved;
  blob again;
  CHECK(cache != NULL && kvq_cache_context(cache) != NULL);
  grow(cache, sequence, 1);
  ACCEPTED(attend_last(cache, sequence, out));
  CHECK(memcmp(out, expected_attention[n_before], sizeof out) == 0);
  saved = save_sequence(cache, sequence);
  ACCEPTED(kvq_sequence_load(cache, saved.data, saved.size, &loaded, err));
  ACCEPTED(kvq_sequence_fork(cache, loaded, &child, err));
  kvq_sequence_destroy(loaded);
  again = save_sequence(cache, child);
  CHECK(same_blobs(&saved, &again));
  kvq_sequence_destroy(child);
  blob_free(&again);
  blob_free(&saved);
}

static void multiply(const qp_matrix* matrix, float y[kMatrixRows]) {
  float x[kMatrixColumns];
  fill_tensor(x, kMatrixColumns, 6);
  ACCEPTED(qp_linear(matrix, x, 1, y, KVQ_F32, err));
}

static void use_matrix(const qp_matrix* matrix) {
  float y[kMatrixRows];
  multiply(matrix, y);
  CHECK(memcmp(y, expected_outputs, sizeof y) == 0);
}

static void use_codebook_trainer(kvq_codebook_trainer* trainer) {
  kvq_codebook* codebook = NULL;
  kvq_codebook_info info;
  float x[kTokenScalars];
  fill_tensor(x, kTokenScalars, 7);
  ACCEPTED(kvq_codebook_trainer_add(trainer, 0, 1, x, x, KVQ_F32, err));
  ACCEPTED(kvq_codebook_trainer_result(trainer, &codebook, err));
  info.struct_size = sizeof info;
  ACCEPTED(kvq_codebook_describe(codebook, &info, err));
  CHECK(info.layers_present == 0);
  kvq_codebook_destroy(codebook);
}

static void use_centres_trainer(kvq_centres_trainer* trainer) {
  kvq_centres* centres = NULL;
  kvq_centres_info info;
  float x[kTokenScalars];
  fill_tensor(x, kTokenScalars, 7);
  ACCEPTED(kvq_centres_trainer_add(trainer, 0, 1, x, x, KVQ_F32, err));
  ACCEPTED(kvq_centres_trainer_result(trainer, &centres, err));
  info.struct_size = sizeof info;
  ACCEPTED(kvq_centres_describe(centres, &info, err));
  CHECK(info.layers_present == 0);
  kvq_centres_destroy(centres);
}

/* Check that every existing object works; `n_uses` before. */
static void use(objects* o, int n_uses) {
  if (o->context != NULL) use_context(o->context);
  if (o->policy != NULL) use_policy(o->policy);
  if (o->codebook != NULL) CHECK(same_file(&expected_codebook, save_codebook, o->codebook));
  if (o->router != NULL) CHECK(same_file(&expected_router, save_router, o->router));
  if (o->centres != NULL) CHECK(same_file(&expected_centres, save_centres, o->centres));
  if (o->cache != NULL) use_cache(o->cache);
  if (o->routed != NULL) use_cache(o->routed);
  if (o->sequence != NULL) use_sequence(o->sequence, n_uses);
  if (o->fork != NULL) use_sequence(o->fork, n_uses);
  if (o->matrix != NULL) use_matrix(o->matrix);
  if (o->codebook_trainer != NULL) use_codebook_trainer(o->codebook_trainer);
  if (o->centres_trainer != NULL) use_centres_trainer(o->centres_trainer);
  if (o->router_trainer != NULL) ACCEPTED(add_text(o->router_trainer, 0, (uint32_t)n_uses, 1));
  CHECK(o->n_released == 0);
}

static void set_expectations(void) {
  objects o;
  int i;
  objects_open(&o);
  SAVE(&expected_codebook, kvq_codebook_save, o.codebook);
  SAVE(&expected_router, kvq_router_save, o.router);
  SAVE(&expected_centres, kvq_centres_save, o.centres);
  multiply(o.matrix, expected_outputs);
  for (i = 0; i < kMostUses; ++i) {
    grow(o.cache, o.sequence, 1);
    ACCEPTED(attend_last(o.cache, o.sequence, expected_attention[i]));
  }
  objects_close(&o);
}

/* Destroy in this order, and use the remaining objects after each step. */
static void run_order(const kind* order, int n) {
  objects o;
  int which;
  int i;
  objects_open(&o);
  for (which = 0; which < kKinds; ++which) { /* objects that are not in the order are destroyed first */
    int wanted = 0;
    for (i = 0; i < n; ++i) wanted |= order[i] == (kind)which;
    if (!wanted) object_destroy(&o, (kind)which);
  }
  for (i = 0; i < n; ++i) {
    use(&o, i);
    object_destroy(&o, order[i]);
  }
  objects_check_gone(&o);
}

/* Try every order of a set with the first `n_fixed` fixed. */
static void run_orders(kind* set, int n, int n_fixed) {
  int i;
  if (n_fixed == n) run_order(set, n);
  for (i = n_fixed; i < n; ++i) {
    const kind moved = set[i];
    set[i] = set[n_fixed], set[n_fixed] = moved;
    run_orders(set, n, n_fixed + 1);
    set[n_fixed] = set[i], set[i] = moved;
  }
}

static void all_orders(void) {
  kind conversation[] = {kContext, kPolicy, kCache, kSequence, kFork};
  kind trained[] = {kContext, kCodebook, kCache, kSequence};
  kind routed[] = {kContext, kRouter, kRouted, kRouterTrainer};
  kind apart[] = {kContext, kMatrix, kCodebookTrainer, kCodebook};
  kind centred[] = {kContext, kCentres, kCache, kCentresTrainer};
  run_orders(conversation, 5, 0);
  run_orders(trained, 4, 0);
  run_orders(routed, 4, 0);
  run_orders(apart, 4, 0);
  run_orders(centred, 4, 0);
}

/* All kinds together: each is destroyed first once, the others after it in order or in reverse. */
static void orders_of_everything(void) {
  kind order[kKinds];
  int first;
  int i;
  for (first = 0; first < kKinds; ++first) {
    for (i = 0; i < kKinds; ++i) order[i] = (kind)((first + i) % kKinds);
    run_order(order, kKinds);
    for (i = 0; i < kKinds; ++i) order[i] = (kind)((first + kKinds - i) % kKinds);
    run_order(order, kKinds);
  }
}

/* A single object keeps everything it needs alive. */
static void each_alone(void) {
  int which;
  for (which = 0; which < kKinds; ++which) {
    const kind only = (kind)which;
    run_order(&only, 1);
  }
}

/* A creation that fails at any allocation keeps no object alive and releases none: `released` is called once, when the
 * last handle goes, for every kind whether its parents go before or after it. */
static void failed_creations(void) {
  int parents_first;
  for (parents_first = 0; parents_first < 2; ++parents_first) {
    objects o;
    int which;
    objects_clear(&o);
    ACCEPTED(object_create(&o, kContext));
    for (which = kContext + 1; which < kKinds; ++which) {
      if (which == kCache || which == kRouted) { /* the first one stores a few bytes in the trained object */
        ACCEPTED(object_create(&o, (kind)which));
        object_destroy(&o, (kind)which);
      }
      FAIL_EACH_ALLOCATION(&o.memory, object_create(&o, (kind)which));
      CHECK(o.n_released == 0);
      if (which == kSequence) grow(o.cache, o.sequence, kObjectTokens);
    }
    use(&o, 0);
    for (which = 0; which < kKinds; ++which) {
      CHECK(o.n_released == 0);
      object_destroy(&o, (kind)(parents_first ? which : kKinds - 1 - which));
    }
    objects_check_gone(&o);
  }
}

/* Refused arguments do not count either. */
static void refused_creations(void) {
  kvq_cache_options options = small_cache_options();
  kvq_policy* policy = NULL;
  kvq_codebook* codebook = NULL;
  kvq_router* router = NULL;
  kvq_centres* centres = NULL;
  kvq_cache* cache = NULL;
  kvq_sequence* sequence = NULL;
  qp_matrix* matrix = NULL;
  objects other;
  objects o;
  objects_open(&o);
  objects_open(&other);
  options.codebook = other.codebook;
  REFUSED(KVQ_E_FORMAT, NULL, kvq_policy_load(o.context, "{", 1, &policy, err));
  REFUSED(KVQ_E_ARGUMENT, "policy", kvq_policy_with_eviction(o.context, other.policy, "h2o", 40, &policy, err));
  REFUSED(KVQ_E_FORMAT, NULL, kvq_codebook_load(o.context, "none", 4, &codebook, err));
  REFUSED(KVQ_E_FORMAT, NULL, kvq_router_load(o.context, "none", 4, &router, err));
  REFUSED(KVQ_E_FORMAT, NULL, kvq_centres_load(o.context, "none", 4, &centres, err));
  REFUSED(KVQ_E_ARGUMENT, "options->codebook", kvq_cache_create(o.context, &options, o.policy, &cache, err));
  REFUSED(KVQ_E_ARGUMENT, "parent", kvq_sequence_fork(o.cache, other.sequence, &sequence, err));
  REFUSED(KVQ_E_FORMAT, NULL, kvq_sequence_load(o.cache, "none", 4, &sequence, err));
  REFUSED(KVQ_E_FORMAT, NULL, qp_matrix_load(o.context, "none", 4, "w", &matrix, err));
  objects_close(&other);
  use(&o, 0);
  objects_close(&o);
}

/* A context that could not be created has used its hooks, will not use them again, and does not call `released`. */
static void failed_contexts(void) {
  kvq_status status = KVQ_E_MEMORY;
  long n;
  for (n = 1; status != KVQ_OK && n < 100; ++n) {
    objects o;
    objects_clear(&o);
    o.memory.fail_at = n;
    status = object_create(&o, kContext);
    CHECK(o.n_released == 0);
    if (status == KVQ_OK) object_destroy(&o, kContext);
    CHECK(o.memory.live_blocks == 0 && o.memory.n_violations == 0);
    CHECK(o.n_released == (status == KVQ_OK ? 1 : 0) && o.n_late == 0);
  }
  CHECK(status == KVQ_OK && n > 2);
}

static void parents_of_nothing(void) {
  CHECK(kvq_sequence_cache(NULL) == NULL);
  CHECK(kvq_cache_context(NULL) == NULL);
}

static void parents(void) {
  objects o;
  objects_open(&o);
  CHECK(kvq_sequence_cache(o.sequence) == o.cache);
  CHECK(kvq_sequence_cache(o.fork) == o.cache);
  CHECK(kvq_cache_context(o.cache) == o.context);
  CHECK(kvq_cache_context(o.routed) == o.context);
  objects_close(&o);
}

void test_lifetimes(void) {
  set_expectations();
  parents();
  parents_of_nothing();
  each_alone();
  all_orders();
  orders_of_everything();
  failed_creations();
  refused_creations();
  failed_contexts();
  blob_free(&expected_codebook);
  blob_free(&expected_router);
  blob_free(&expected_centres);
}
