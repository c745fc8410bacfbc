/* Small trainings of codebooks, centres and routers, and cancelled calls, for the C tests. */
#ifndef KVQ_TESTS_CAPI_TRAINER_FIXTURE_H
#define KVQ_TESTS_CAPI_TRAINER_FIXTURE_H

#include "fixture.h"

#include <string.h>

enum { kCodebookTokens = 160, kCodebookScalars = kCodebookTokens * kTokenScalars };
enum {
  kTextTokens = 200,
  kTextScalars = kTextTokens * kTokenScalars,
  kTextQueryScalars = kTextTokens * kQHeads * kHeadDim
};

/* Options with a code per head. */
kvq_codebook_trainer_options small_codebook_options(void);
kvq_codebook_trainer* new_codebook_trainer(kvq_context* context, const kvq_codebook_trainer_options* options);

/* Options with three centres for keys and two for values. */
kvq_centres_trainer_options small_centres_options(void);
kvq_centres_trainer* new_centres_trainer(kvq_context* context, const kvq_centres_trainer_options* options);
/* Add kCodebookTokens tokens to a layer in two calls. */
void add_centres_tokens(kvq_centres_trainer* trainer, int32_t layer);
/* Codebook trained for all layers. */
kvq_centres* small_centres(kvq_context* context);
/* Centres for a policy that needs them; NULL for others. */
kvq_centres* centres_for(kvq_context* context, const char* policy);

/* The formats that routers choose among. */
extern const char kExperts[];

kvq_router_trainer_options small_router_options(void);
kvq_router_trainer* new_router_trainer(kvq_context* context, const kvq_router_trainer_options* options);

/* One layer's part of a text. */
typedef struct text_tensors {
  float q[kTextQueryScalars];
  float k[kTextScalars];
  float v[kTextScalars];
} text_tensors;

void fill_text(text_tensors* t, uint32_t seed);
/* The first n tokens of a layer's part of text number `text`. */
kvq_status add_text(kvq_router_trainer* trainer, int32_t layer, uint32_t text, int32_t n);

kvq_context* threaded_context(int32_t n_threads);

/* Make a call that is stopped at its first report of progress, at a later one, …, until it succeeds; what was stopped
 * leaves no memory. `reports`: a progress_reports that the call's hook gets. `step`, of `n_`: to the next one. */
#define STOP_AT_REPORTS(memory, reports, step, call)           \
  do {                                                         \
    int n_;                                                    \
    for (n_ = 1; n_ < 1000; n_ += (step)) {                    \
      const size_t live_ = (memory)->live_bytes;               \
      kvq_status status_;                                      \
      memset((reports), 0, sizeof *(reports));                 \
      (reports)->stop_at = n_;                                 \
      status_ = (call);                                        \
      CHECK((reports)->n_wrong == 0);                          \
      if (status_ == KVQ_OK) break;                            \
      CHECK(status_ == KVQ_E_CANCELLED && (reports)->n == n_); \
      CHECK((memory)->live_bytes == live_);                    \
    }                                                          \
    CHECK(n_ > 2 && (reports)->n < n_);                        \
  } while (0)

#endif
