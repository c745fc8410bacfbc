/* A small cache, deterministic tensors, a counting allocator, and "nothing changed" for the C tests. */
#ifndef KVQ_TESTS_CAPI_FIXTURE_H
#define KVQ_TESTS_CAPI_FIXTURE_H

#include "check.h"
#include "kvq.h"

#include <stdlib.h>

enum { kLayers = 2, kQHeads = 4, kKvHeads = 2, kHeadDim = 16, kTokenScalars = kKvHeads * kHeadDim };

/* Counts allocations, and fails allocation number `fail_at` (1 is the next one). */
typedef struct tracker {
  size_t live_bytes;
  size_t live_blocks;
  size_t n_allocations;
  long fail_at;     /* 0: never */
  int n_violations; /* calls that break the hooks' contract */
} tracker;

void* tracker_allocate(void* user, size_t bytes, size_t alignment);
void tracker_free(void* user, void* pointer, size_t bytes, size_t alignment);

/* One context with a cache of the shape above. */
typedef struct fixture {
  tracker memory;
  kvq_context* context;
  kvq_cache* cache;
} fixture;

/* `policy` is YAML or a short form, also with trained centres; NULL: fp16. Byte limits of 0 mean none. */
void fixture_open(fixture* f, const char* policy, uint64_t context_bytes, uint64_t cache_bytes);
/* Check that everything has been freed. */
void fixture_close(fixture* f);

kvq_cache_options small_cache_options(void);
/* Options of codebooks for such a cache, trained quickly. */
kvq_codebook_trainer_options small_trainer_options(void);
/* Without scales of channels unless the text has `calibrate:`, so that what pages take depends on formats alone. */
kvq_policy* load_policy(kvq_context* context, const char* text);
/* As the library reads it. */
kvq_policy* load_calibrating_policy(kvq_context* context, const char* text);
kvq_sequence* new_sequence(kvq_cache* cache);

/* Fill with roughly normal numbers; the same seed gives the same numbers. */
void fill_tensor(float* values, size_t n, uint32_t seed);

/* Append n tokens that depend only on the layer and the position. */
kvq_status append_tokens(kvq_cache* cache, kvq_sequence* sequence, int32_t layer, int32_t n);
/* The same for every layer, which must succeed. */
void grow(kvq_cache* cache, kvq_sequence* sequence, int32_t n);
int32_t length_of(const kvq_sequence* sequence, int32_t layer);
/* Of one sequence, or with NULL of the whole cache. */
kvq_usage usage_of(const kvq_cache* cache, const kvq_sequence* sequence);

/* Attend with a fixed query of the newest token of layer 0. */
kvq_status attend_last(kvq_cache* cache, const kvq_sequence* sequence, float out[kQHeads * kHeadDim]);

typedef struct blob {
  unsigned char* data;
  size_t size;
} blob;

blob save_sequence(kvq_cache* cache, const kvq_sequence* sequence);
void blob_free(blob* b);
int same_blobs(const blob* a, const blob* b);

/* Save a handle with its kvq_*_save into a blob. */
#define SAVE(file, save, handle)                                          \
  do {                                                                    \
    size_t written_ = 0;                                                  \
    ACCEPTED(save((handle), NULL, 0, &(file)->size, err));                \
    (file)->data = (unsigned char*)malloc((file)->size);                  \
    ACCEPTED(save((handle), (file)->data, (file)->size, &written_, err)); \
    CHECK(written_ == (file)->size);                                      \
  } while (0)

/* Reports that a kvq_progress_hook received. */
typedef struct progress_reports {
  int n;
  int stop_at; /* the report that ends the call; 0: none */
  double last;
  int n_wrong; /* decreasing or beyond 1 */
} progress_reports;

/* `user` is a `progress_reports`. */
int32_t on_progress(void* user, double done);

/* Make a call that fails at its first allocation, at a later one, …, until it succeeds, which it must not before there
 * were `least`; what failed leaves no memory. `step`, of `n_`: to the next one. */
#define FAIL_ALLOCATIONS(memory, step, least, call)                                           \
  do {                                                                                        \
    kvq_status status_ = KVQ_E_MEMORY;                                                        \
    long n_;                                                                                  \
    for (n_ = 1; status_ != KVQ_OK && n_ < 100000; n_ += (step)) {                            \
      const size_t live_ = (memory)->live_bytes;                                              \
      (memory)->fail_at = n_;                                                                 \
      status_ = (call);                                                                       \
      CHECK(status_ == KVQ_OK || (status_ == KVQ_E_MEMORY && (memory)->live_bytes == live_)); \
    }                                                                                         \
    (memory)->fail_at = 0;                                                                    \
    CHECK(status_ == KVQ_OK && n_ > (least));                                                 \
  } while (0)
#define FAIL_EACH_ALLOCATION(memory, call) FAIL_ALLOCATIONS((memory), 1, 2, call)

/* State that a failed call must not change: lengths, usage, and the snapshot byte for byte. */
typedef struct saved_state {
  int32_t lengths[kLayers];
  kvq_usage usage;
  blob snapshot;
} saved_state;

saved_state take_state(kvq_cache* cache, const kvq_sequence* sequence);
int state_is(kvq_cache* cache, const kvq_sequence* sequence, const saved_state* expected);
void state_free(saved_state* s);

#endif
