#include "fixture.h"

#include "check.h"
#include "trainer_fixture.h"

#include <stdlib.h>
#include <string.h>

/* Stored in front of every block. */
typedef struct block_header {
  void* origin;
  size_t bytes;
  size_t alignment;
} block_header;

void* tracker_allocate(void* user, size_t bytes, size_t alignment) {
  tracker* t = (tracker*)user;
  char* origin;
  uintptr_t address;
  block_header header;
  ++t->n_allocations;
  if (bytes == 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) ++t->n_violations;
  if (t->fail_at > 0 && --t->fail_at == 0) return NULL;
  origin = (char*)malloc(bytes + alignment + sizeof header);
  if (origin == NULL) return NULL;
  address = ((uintptr_t)origin + sizeof header + alignment - 1) / alignment * alignment;
  header.origin = origin;
  header.bytes = bytes;
  header.alignment = alignment;
  memcpy((char*)address - sizeof header, &header, sizeof header);
  memset((char*)address, 0xA5, bytes); /* fresh memory is not zero */
  t->live_bytes += bytes;
  ++t->live_blocks;
  return (void*)address;
}

void tracker_free(void* user, void* pointer, size_t bytes, size_t alignment) {
  tracker* t = (tracker*)user;
  block_header header;
  if (pointer == NULL) {
    ++t->n_violations;
    return;
  }
  memcpy(&header, (char*)pointer - sizeof header, sizeof header);
  if (header.bytes != bytes || header.alignment != alignment) ++t->n_violations;
  t->live_bytes -= header.bytes;
  --t->live_blocks;
  memset(pointer, 0x5A, header.bytes);
  free(header.origin);
}

kvq_cache_options small_cache_options(void) {
  kvq_cache_options options;
  kvq_cache_options_init(&options, sizeof(options));
  options.n_layers = kLayers;
  options.q_heads = kQHeads;
  options.kv_heads = kKvHeads;
  options.head_dim = kHeadDim;
  options.model_id = 7;
  return options;
}

kvq_codebook_trainer_options small_trainer_options(void) {
  kvq_codebook_trainer_options options;
  kvq_codebook_trainer_options_init(&options, sizeof(options));
  options.n_layers = kLayers;
  options.kv_heads = kKvHeads;
  options.head_dim = kHeadDim;
  options.key_stages = 2;
  options.key_codes = 8;
  options.key_rounds = 1;
  options.value_bits = 1;
  options.value_rounds = 1;
  options.model_id = 7;
  return options;
}

kvq_policy* load_calibrating_policy(kvq_context* context, const char* text) {
  kvq_policy* policy = NULL;
  ACCEPTED(kvq_policy_load(context, text, strlen(text), &policy, err));
  return policy;
}

kvq_policy* load_policy(kvq_context* context, const char* text) {
  static const char kNone[] = "calibrate: none\n";
  kvq_policy* policy = load_calibrating_policy(context, text);
  kvq_policy_info info = {.struct_size = sizeof info};
  char* written;
  size_t size = 0;
  ACCEPTED(kvq_policy_describe(policy, &info, err));
  if (!info.calibrates || strstr(text, "calibrate:") != NULL) return policy;
  ACCEPTED(kvq_policy_save(policy, NULL, 0, &size, err));
  written = malloc(size + sizeof kNone);
  ACCEPTED(kvq_policy_save(policy, written, size, &size, err));
  memcpy(written + size, kNone, sizeof kNone);
  kvq_policy_destroy(policy);
  policy = load_calibrating_policy(context, written);
  free(written);
  return policy;
}

void fixture_open(fixture* f, const char* policy_text, uint64_t context_bytes, uint64_t cache_bytes) {
  kvq_context_options options;
  kvq_cache_options cache_options = small_cache_options();
  kvq_policy* policy = NULL;
  kvq_centres* centres;
  memset(f, 0, sizeof *f);
  kvq_context_options_init(&options, sizeof(options));
  options.allocate = tracker_allocate;
  options.free = tracker_free;
  options.allocator_user = &f->memory;
  options.max_bytes = context_bytes;
  ACCEPTED(kvq_context_create(&options, &f->context, err));
  if (policy_text != NULL) policy = load_policy(f->context, policy_text);
  cache_options.max_bytes = cache_bytes;
  cache_options.centres = centres = centres_for(f->context, policy_text);
  ACCEPTED(kvq_cache_create(f->context, &cache_options, policy, &f->cache, err));
  kvq_centres_destroy(centres);
  kvq_policy_destroy(policy);
}

void fixture_close(fixture* f) {
  kvq_cache_destroy(f->cache);
  kvq_context_destroy(f->context);
  CHECK(f->memory.live_blocks == 0);
  CHECK(f->memory.live_bytes == 0);
  CHECK(f->memory.n_violations == 0);
}

kvq_sequence* new_sequence(kvq_cache* cache) {
  kvq_sequence* sequence = NULL;
  ACCEPTED(kvq_sequence_create(cache, &sequence, err));
  return sequence;
}

void fill_tensor(float* values, size_t n, uint32_t seed) {
  uint32_t state = seed * 2654435761u + 1u;
  size_t i;
  int draw;
  for (i = 0; i < n; ++i) {
    float sum = 0.0f; /* a sum of uniforms is normal enough */
    for (draw = 0; draw < 4; ++draw) {
      state = state * 1664525u + 1013904223u;
      sum += (float)(state >> 8) / 16777216.0f - 0.5f;
    }
    values[i] = sum * 1.7f;
  }
}

kvq_usage usage_of(const kvq_cache* cache, const kvq_sequence* sequence) {
  kvq_usage usage;
  memset(&usage, 0x77, sizeof usage);
  usage.struct_size = sizeof usage;
  ACCEPTED(kvq_cache_usage(cache, sequence, &usage, err));
  return usage;
}

int32_t length_of(const kvq_sequence* sequence, int32_t layer) {
  int32_t length = -1;
  CHECK(kvq_sequence_length(sequence, layer, &length, NULL) == KVQ_OK);
  return length;
}

kvq_status append_tokens(kvq_cache* cache, kvq_sequence* sequence, int32_t layer, int32_t n) {
  const size_t scalars = (size_t)n * kTokenScalars;
  const int32_t first = length_of(sequence, layer);
  float* k = (float*)malloc(scalars * sizeof *k);
  float* v = (float*)malloc(scalars * sizeof *v);
  kvq_status status;
  int32_t t;
  for (t = 0; t < n; ++t) {
    const uint32_t seed = (uint32_t)((first + t) * 2 * kLayers + 2 * layer);
    fill_tensor(k + (size_t)t * kTokenScalars, kTokenScalars, seed);
    fill_tensor(v + (size_t)t * kTokenScalars, kTokenScalars, seed + 1);
  }
  status = kvq_append(cache, sequence, layer, n, k, v, KVQ_F32, NULL, err);
  free(k);
  free(v);
  return status;
}

void grow(kvq_cache* cache, kvq_sequence* sequence, int32_t n) {
  int32_t layer;
  for (layer = 0; layer < kLayers; ++layer) ACCEPTED(append_tokens(cache, sequence, layer, n));
}

kvq_status attend_last(kvq_cache* cache, const kvq_sequence* sequence, float out[kQHeads * kHeadDim]) {
  float q[kQHeads * kHeadDim];
  kvq_attend_batch batch;
  kvq_attend_batch_init(&batch, sizeof(batch));
  fill_tensor(q, kQHeads * kHeadDim, 99);
  batch.n_sequences = 1;
  batch.sequences = &sequence;
  batch.q = q;
  batch.output = out;
  return kvq_attend(cache, 0, &batch, err);
}

blob save_sequence(kvq_cache* cache, const kvq_sequence* sequence) {
  blob b = {NULL, 0};
  size_t written = 0;
  CHECK(kvq_sequence_save(cache, sequence, NULL, 0, &b.size, NULL) == KVQ_OK);
  b.data = (unsigned char*)malloc(b.size + 1);
  CHECK(kvq_sequence_save(cache, sequence, b.data, b.size, &written, NULL) == KVQ_OK);
  CHECK(written == b.size && written > 0);
  return b;
}

void blob_free(blob* b) {
  free(b->data);
  b->data = NULL;
  b->size = 0;
}

int same_blobs(const blob* a, const blob* b) { return a->size == b->size && memcmp(a->data, b->data, a->size) == 0; }

int32_t on_progress(void* user, double done) {
  progress_reports* r = (progress_reports*)user;
  ++r->n;
  if (!(done >= r->last && done <= 1.0)) ++r->n_wrong;
  r->last = done;
  return r->n == r->stop_at ? 1 : 0;
}

saved_state take_state(kvq_cache* cache, const kvq_sequence* sequence) {
  saved_state s;
  int32_t layer;
  memset(&s, 0, sizeof s);
  for (layer = 0; layer < kLayers; ++layer) s.lengths[layer] = length_of(sequence, layer);
  s.usage.struct_size = sizeof s.usage;
  CHECK(kvq_cache_usage(cache, sequence, &s.usage, NULL) == KVQ_OK);
  s.snapshot = save_sequence(cache, sequence);
  return s;
}

int state_is(kvq_cache* cache, const kvq_sequence* sequence, const saved_state* expected) {
  saved_state now = take_state(cache, sequence);
  const int same = memcmp(now.lengths, expected->lengths, sizeof now.lengths) == 0 &&
                   memcmp(&now.usage, &expected->usage, sizeof now.usage) == 0 &&
                   now.snapshot.size == expected->snapshot.size &&
                   memcmp(now.snapshot.data, expected->snapshot.data, now.snapshot.size) == 0;
  state_free(&now);
  return same;
}

void state_free(saved_state* s) { blob_free(&s->snapshot); }
