/* One object of every kind, made from each other, and hooks that notice when they are used too late. */
#ifndef KVQ_TESTS_CAPI_OBJECTS_H
#define KVQ_TESTS_CAPI_OBJECTS_H

#include "fixture.h"

/* In an order in which they can be made. */
typedef enum kind {
  kContext,
  kPolicy,
  kCodebook,
  kRouter,
  kCentres,
  kCache,    /* of the policy, which stores pages with the codebook and evicts */
  kRouted,   /* a cache whose formats the router chooses */
  kSequence, /* of the first cache, with kObjectTokens tokens in each layer */
  kFork,     /* of the sequence */
  kMatrix,   /* of kMatrixRows by kMatrixColumns */
  kCodebookTrainer,
  kCentresTrainer,
  kRouterTrainer,
  kKinds
} kind;

enum { kObjectTokens = 70, kMatrixRows = 4, kMatrixColumns = 64 };

typedef struct objects {
  tracker memory;
  int n_released; /* calls of the hook that tells that no hook is used any more */
  int n_late;     /* calls of hooks after that */
  kvq_context* context;
  kvq_policy* policy;
  kvq_codebook* codebook;
  kvq_router* router;
  kvq_centres* centres;
  kvq_cache* cache;
  kvq_cache* routed;
  kvq_sequence* sequence;
  kvq_sequence* fork;
  qp_matrix* matrix;
  kvq_codebook_trainer* codebook_trainer;
  kvq_centres_trainer* centres_trainer;
  kvq_router_trainer* router_trainer;
} objects;

/* Nothing is made yet. */
void objects_clear(objects* o);
/* Make one of a kind out of those before it, without tokens. */
kvq_status object_create(objects* o, kind which);
/* Everything, and tokens in the sequence. */
void objects_open(objects* o);
/* Destroys the handle and forgets it. */
void object_destroy(objects* o, kind which);
/* Checks that with the last object everything went back and the end was told, once and last. */
void objects_check_gone(const objects* o);
/* Those left in the order of kinds, and the check. */
void objects_close(objects* o);

#endif
