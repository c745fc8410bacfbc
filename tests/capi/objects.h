/* One object of every kind, created from each other, and hooks that notice late use. */
#ifndef KVQ_TESTS_CAPI_OBJECTS_H
#define KVQ_TESTS_CAPI_OBJECTS_H

#include "fixture.h"

/* In an order in which they can be created. */
typedef enum kind {
  kContext,
  kPolicy,
  kCodebook,
  kRouter,
  kCentres,
  kCache,    /* with the policy, which stores pages with the codebook and evicts */
  kRouted,   /* a cache whose formats the router chooses */
  kSequence, /* in the first cache, with kObjectTokens tokens in each layer */
  kFork,     /* fork of the sequence */
  kMatrix,   /* [kMatrixRows, kMatrixColumns] */
  kCodebookTrainer,
  kCentresTrainer,
  kRouterTrainer,
  kKinds
} kind;

enum { kObjectTokens = 70, kMatrixRows = 4, kMatrixColumns = 64 };

typedef struct objects {
  tracker memory;
  int n_released; /* calls of `released` */
  int n_late;     /* calls of hooks after it */
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

/* Start without objects. */
void objects_clear(objects* o);
/* Create one object from those before it, without tokens. */
kvq_status object_create(objects* o, kind which);
/* Create all objects, and append tokens to the sequence. */
void objects_open(objects* o);
/* Destroy the handle and set it to NULL. */
void object_destroy(objects* o, kind which);
/* Check that the last object freed everything and called `released`, once and last. */
void objects_check_gone(const objects* o);
/* Destroy the remaining objects in order, and check. */
void objects_close(objects* o);

#endif
