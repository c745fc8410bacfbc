#include "objects.h"

#include "check.h"
#include "trainer_fixture.h"

#include <stdlib.h>
#include <string.h>

static const char kCoded[] = "version: 1\nkeys: commvq\nvalues: commvq\neviction: {method: adasnap, budget: 40}\n";

/* Files of codebooks, centres and routers, created once. */
static blob codebook_file;
static blob centres_file;
static blob router_file;

static void train_codebook(void) {
  static float x[kCodebookScalars];
  const kvq_codebook_trainer_options options = small_codebook_options();
  kvq_context* context = threaded_context(1);
  kvq_codebook_trainer* trainer = new_codebook_trainer(context, &options);
  kvq_codebook* codebook = NULL;
  int32_t layer;
  for (layer = 0; layer < kLayers; ++layer) {
    fill_tensor(x, kCodebookScalars, 30 + (uint32_t)layer);
    ACCEPTED(kvq_codebook_trainer_add(trainer, layer, kCodebookTokens, x, x, KVQ_F32, err));
    ACCEPTED(kvq_codebook_trainer_run(trainer, layer, NULL, NULL, err));
  }
  ACCEPTED(kvq_codebook_trainer_result(trainer, &codebook, err));
  SAVE(&codebook_file, kvq_codebook_save, codebook);
  kvq_codebook_destroy(codebook);
  kvq_codebook_trainer_destroy(trainer);
  kvq_context_destroy(context);
}

static void train_centres(void) {
  kvq_context* context = threaded_context(1);
  kvq_centres* centres = small_centres(context);
  SAVE(&centres_file, kvq_centres_save, centres);
  kvq_centres_destroy(centres);
  kvq_context_destroy(context);
}

static void train_router(void) {
  const kvq_router_trainer_options options = small_router_options();
  kvq_context* context = threaded_context(1);
  kvq_router_trainer* trainer = new_router_trainer(context, &options);
  kvq_router* router = NULL;
  int32_t layer;
  for (layer = 0; layer < kLayers; ++layer) ACCEPTED(add_text(trainer, layer, 1, kTextTokens));
  ACCEPTED(kvq_router_trainer_run(trainer, 2.0, NULL, NULL, err));
  ACCEPTED(kvq_router_trainer_result(trainer, &router, err));
  SAVE(&router_file, kvq_router_save, router);
  kvq_router_destroy(router);
  kvq_router_trainer_destroy(trainer);
  kvq_context_destroy(context);
}

static void* allocate(void* user, size_t bytes, size_t alignment) {
  objects* o = (objects*)user;
  o->n_late += o->n_released;
  return tracker_allocate(&o->memory, bytes, alignment);
}

static void give_back(void* user, void* pointer, size_t bytes, size_t alignment) {
  objects* o = (objects*)user;
  o->n_late += o->n_released;
  tracker_free(&o->memory, pointer, bytes, alignment);
}

static int32_t run_loop(void* user, int32_t n, kvq_parallel_body body, void* argument) {
  int32_t i;
  ((objects*)user)->n_late += ((objects*)user)->n_released;
  for (i = 0; i < n; ++i) body(argument, i);
  return 0;
}

static void log_message(void* user, kvq_log_level level, const char* message) {
  (void)level, (void)message;
  ((objects*)user)->n_late += ((objects*)user)->n_released;
}

static void released(void* user) { ++((objects*)user)->n_released; }

static kvq_status create_context(objects* o) {
  kvq_context_options options;
  kvq_context_options_init(&options, sizeof(options));
  options.allocate = allocate;
  options.free = give_back;
  options.allocator_user = o;
  options.log = log_message;
  options.log_user = o;
  options.parallel_for = run_loop;
  options.parallel_for_user = o;
  options.released = released;
  options.released_user = o;
  return kvq_context_create(&options, &o->context, err);
}

static kvq_status create_cache(objects* o) {
  kvq_cache_options options = small_cache_options();
  options.codebook = o->codebook;
  options.centres = o->centres; /* its policy does not need it */
  return kvq_cache_create(o->context, &options, o->policy, &o->cache, err);
}

static kvq_status create_routed(objects* o) {
  kvq_cache_options options = small_cache_options();
  kvq_policy* policy = NULL;
  kvq_status status = kvq_policy_load(o->context, kExperts, strlen(kExperts), &policy, err);
  if (status != KVQ_OK) return status;
  options.router = o->router;
  status = kvq_cache_create(o->context, &options, policy, &o->routed, err);
  kvq_policy_destroy(policy);
  return status;
}

static kvq_status create_matrix(objects* o) {
  float weights[kMatrixRows * kMatrixColumns];
  qp_quantize_options options;
  qp_quantize_options_init(&options, sizeof(options));
  fill_tensor(weights, kMatrixRows * kMatrixColumns, 5);
  return qp_quantize(o->context, &options, weights, kMatrixRows, kMatrixColumns, &o->matrix, err);
}

static kvq_status create_codebook_trainer(objects* o) {
  const kvq_codebook_trainer_options options = small_codebook_options();
  return kvq_codebook_trainer_create(o->context, &options, &o->codebook_trainer, err);
}

static kvq_status create_centres_trainer(objects* o) {
  const kvq_centres_trainer_options options = small_centres_options();
  return kvq_centres_trainer_create(o->context, &options, &o->centres_trainer, err);
}

static kvq_status create_router_trainer(objects* o) {
  const kvq_router_trainer_options options = small_router_options();
  const kvq_cache_options cache = small_cache_options();
  kvq_policy* policy = NULL;
  kvq_status status = kvq_policy_load(o->context, kExperts, strlen(kExperts), &policy, err);
  if (status != KVQ_OK) return status;
  status = kvq_router_trainer_create(o->context, &cache, policy, &options, &o->router_trainer, err);
  kvq_policy_destroy(policy);
  return status;
}

kvq_status object_create(objects* o, kind which) {
  switch (which) {
    case kContext:
      return create_context(o);
    case kPolicy:
      return kvq_policy_load(o->context, kCoded, strlen(kCoded), &o->policy, err);
    case kCodebook:
      return kvq_codebook_load(o->context, codebook_file.data, codebook_file.size, &o->codebook, err);
    case kRouter:
      return kvq_router_load(o->context, router_file.data, router_file.size, &o->router, err);
    case kCentres:
      return kvq_centres_load(o->context, centres_file.data, centres_file.size, &o->centres, err);
    case kCache:
      return create_cache(o);
    case kRouted:
      return create_routed(o);
    case kSequence:
      return kvq_sequence_create(o->cache, &o->sequence, err);
    case kFork:
      return kvq_sequence_fork(o->cache, o->sequence, &o->fork, err);
    case kMatrix:
      return create_matrix(o);
    case kCodebookTrainer:
      return create_codebook_trainer(o);
    case kCentresTrainer:
      return create_centres_trainer(o);
    case kRouterTrainer:
      return create_router_trainer(o);
    default:
      return KVQ_E_INTERNAL;
  }
}

void object_destroy(objects* o, kind which) {
  switch (which) {
    case kContext:
      kvq_context_destroy(o->context), o->context = NULL;
      break;
    case kPolicy:
      kvq_policy_destroy(o->policy), o->policy = NULL;
      break;
    case kCodebook:
      kvq_codebook_destroy(o->codebook), o->codebook = NULL;
      break;
    case kRouter:
      kvq_router_destroy(o->router), o->router = NULL;
      break;
    case kCentres:
      kvq_centres_destroy(o->centres), o->centres = NULL;
      break;
    case kCache:
      kvq_cache_destroy(o->cache), o->cache = NULL;
      break;
    case kRouted:
      kvq_cache_destroy(o->routed), o->routed = NULL;
      break;
    case kSequence:
      kvq_sequence_destroy(o->sequence), o->sequence = NULL;
      break;
    case kFork:
      kvq_sequence_destroy(o->fork), o->fork = NULL;
      break;
    case kMatrix:
      qp_matrix_destroy(o->matrix), o->matrix = NULL;
      break;
    case kCodebookTrainer:
      kvq_codebook_trainer_destroy(o->codebook_trainer), o->codebook_trainer = NULL;
      break;
    case kCentresTrainer:
      kvq_centres_trainer_destroy(o->centres_trainer), o->centres_trainer = NULL;
      break;
    case kRouterTrainer:
      kvq_router_trainer_destroy(o->router_trainer), o->router_trainer = NULL;
      break;
    default:
      break;
  }
}

void objects_clear(objects* o) {
  if (codebook_file.data == NULL) train_codebook();
  if (centres_file.data == NULL) train_centres();
  if (router_file.data == NULL) train_router();
  memset(o, 0, sizeof *o);
}

void objects_open(objects* o) {
  int which;
  objects_clear(o);
  for (which = 0; which < kKinds; ++which) {
    ACCEPTED(object_create(o, (kind)which));
    if (which == kSequence) grow(o->cache, o->sequence, kObjectTokens);
  }
}

void objects_check_gone(const objects* o) {
  CHECK(o->memory.live_blocks == 0 && o->memory.live_bytes == 0 && o->memory.n_violations == 0);
  CHECK(o->n_released == 1);
  CHECK(o->n_late == 0);
}

void objects_close(objects* o) {
  int which;
  for (which = 0; which < kKinds; ++which) object_destroy(o, (kind)which);
  objects_check_gone(o);
}
