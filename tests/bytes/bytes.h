/* Bytes that must be the same on every processor, system and instruction set. */
#ifndef KVQ_TESTS_BYTES_BYTES_H
#define KVQ_TESTS_BYTES_BYTES_H

#include "capi/fixture.h"

#include <stddef.h>
#include <stdint.h>

/* Compare the hash of these bytes with the expected one, or with what the first instruction set gave. */
void record(const char* what, const char* of, const void* bytes, size_t size);

/* Numbers of mean 0, about normal, a few of which are much larger than the others, as channels of keys are. Computed by
 * integers and exact in FP32, so that no compiler or library of functions can change them. */
void fill_exactly(float* values, size_t n, size_t channels, uint32_t seed);

/* What was trained on the first instruction set, and is used on all. */
typedef struct trained {
  blob codebook;
  blob centres; /* without scales */
  blob scales;  /* without centres */
} trained;

enum { kBytesHeadDim = 64 };

/* Train, record the files, and keep those of the first call. */
void record_training(kvq_context* context, trained* files);
/* Snapshots of caches in every format, and the policies' texts; attention is compared with float64. */
void record_caches(kvq_context* context, const trained* files);
/* Files and products of matrices in every scheme. `files` has a file per scheme: made by the first call, then used. */
void record_matrices(kvq_context* context, blob* files);

#endif
