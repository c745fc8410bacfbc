/* Position streams of M-RoPE: what caches and calls refuse, and that reserve and steps cover the rotation. */
#include "check.h"
#include "fixture.h"
#include "objects.h"
#include "suites.h"

static const int32_t kSection[] = {2, 3, 3};

static void sections_are_checked(void) {
  static const int32_t kNegative[] = {9, -1, 0};
  static const int32_t kFew[] = {2, 3, 2};
  fixture f;
  kvq_cache_options options = small_cache_options();
  kvq_layer_shape shape;
  kvq_cache* cache = NULL;
  fixture_open(&f, NULL, 0, 0);
  options.mrope_interleaved = 1;
  REFUSED(KVQ_E_ARGUMENT, "options->mrope_section is NULL", kvq_cache_create(f.context, &options, NULL, &cache, err));
  options.mrope_section = kNegative;
  REFUSED(KVQ_E_ARGUMENT, "options->mrope_section[1] is -1", kvq_cache_create(f.context, &options, NULL, &cache, err));
  options.mrope_section = kFew;
  REFUSED(KVQ_E_ARGUMENT, "adds up to 7 pairs, but RoPE turns 8 of layer 0",
          kvq_cache_create(f.context, &options, NULL, &cache, err));
  options.mrope_section = kSection;
  options.rope = KVQ_ROPE_NONE;
  REFUSED(KVQ_E_ARGUMENT, "no layer has RoPE", kvq_cache_create(f.context, &options, NULL, &cache, err));
  options.rope = KVQ_ROPE_HALF;
  kvq_layer_shape_init(&shape, sizeof shape);
  shape.first_layer = 1;
  shape.rotary_dim = 8;
  options.shapes = &shape;
  options.n_shapes = 1;
  REFUSED(KVQ_E_ARGUMENT, "RoPE turns 4 of layer 1", kvq_cache_create(f.context, &options, NULL, &cache, err));
  shape.rotary_dim = 0;
  shape.rope = KVQ_ROPE_NONE;
  ACCEPTED(kvq_cache_create(f.context, &options, NULL, &cache, err));
  kvq_cache_destroy(cache);
  fixture_close(&f);
}

/* What is trained for keys before RoPE cannot know three positions. */
static void trained_keys_are_refused(void) {
  objects o;
  kvq_cache_options options = small_cache_options();
  kvq_cache* cache = NULL;
  objects_open(&o);
  options.mrope_section = kSection;
  options.codebook = o.codebook;
  REFUSED(KVQ_E_UNSUPPORTED, "options->codebook is for keys before RoPE",
          kvq_cache_create(o.context, &options, NULL, &cache, err));
  options.codebook = NULL;
  options.router = o.router;
  REFUSED(KVQ_E_UNSUPPORTED, "options->router is for keys before RoPE",
          kvq_cache_create(o.context, &options, NULL, &cache, err));
  objects_close(&o);
}

static kvq_extend_batch tokens(kvq_sequence* const* sequence, const int32_t* n, float* output) {
  static float k[64 * kTokenScalars];
  static float q[64 * kQHeads * kHeadDim];
  kvq_extend_batch batch;
  fill_tensor(k, sizeof k / sizeof *k, 1);
  fill_tensor(q, sizeof q / sizeof *q, 2);
  kvq_extend_batch_init(&batch, sizeof batch);
  batch.n_sequences = 1;
  batch.sequences = sequence;
  batch.token_counts = n;
  batch.k = k;
  batch.v = k;
  batch.q = q;
  batch.output = output;
  return batch;
}

static void calls_are_checked(void) {
  static const int32_t kPositions[] = {1, 2, 3};
  fixture f;
  kvq_sequence* sequence;
  kvq_extend_batch batch;
  kvq_append_batch appended;
  kvq_attend_batch attended;
  const kvq_sequence* read;
  saved_state before;
  const int32_t one = 1;
  float out[kQHeads * kHeadDim];
  fixture_open(&f, NULL, 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 3);
  before = take_state(f.cache, sequence);
  batch = tokens(&sequence, &one, out);
  batch.rope_positions = kPositions;
  REFUSED(KVQ_E_ARGUMENT, "batch->rope_positions is given", kvq_extend(f.cache, 0, &batch, err));
  kvq_append_batch_init(&appended, sizeof appended);
  appended.n_sequences = 1;
  appended.sequences = &sequence;
  appended.k = batch.k;
  appended.v = batch.v;
  appended.rope_positions = kPositions;
  REFUSED(KVQ_E_ARGUMENT, "batch->rope_positions is given", kvq_append_sequences(f.cache, 0, &appended, err));
  read = sequence;
  kvq_attend_batch_init(&attended, sizeof attended);
  attended.n_sequences = 1;
  attended.sequences = &read;
  attended.q = batch.q;
  attended.output = out;
  attended.rope_positions = kPositions;
  REFUSED(KVQ_E_ARGUMENT, "batch->rope_positions is given", kvq_attend(f.cache, 0, &attended, err));
  CHECK(state_is(f.cache, sequence, &before));
  state_free(&before);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* After reserve, tokens with positions of streams need no memory; nor do those of a step, of any element type. */
static void calls_allocate_nothing(void) {
  static int32_t positions[64 * 3];
  static float out[64 * kQHeads * kHeadDim];
  static const uint16_t zeros[64 * kQHeads * kHeadDim];
  fixture f;
  kvq_cache_options options = small_cache_options();
  kvq_policy* policy;
  kvq_cache* cache = NULL;
  kvq_sequence* sequence;
  kvq_extend_batch batch;
  kvq_step_batch step;
  size_t allocations;
  int32_t n = 1;
  int32_t i;
  for (i = 0; i < 64 * 3; ++i) positions[i] = i % 7;
  fixture_open(&f, NULL, 0, 0);
  policy = load_policy(f.context, "int4");
  options.mrope_section = kSection;
  ACCEPTED(kvq_cache_create(f.context, &options, policy, &cache, err));
  kvq_policy_destroy(policy);
  sequence = new_sequence(cache);
  ACCEPTED(kvq_sequence_reserve(cache, sequence, 200, err));
  batch = tokens(&sequence, &n, out);
  batch.rope_positions = positions;
  allocations = f.memory.n_allocations;
  for (i = 0; i < 2 * 100; ++i) ACCEPTED(kvq_extend(cache, i % 2, &batch, err));
  CHECK(f.memory.n_allocations == allocations);
  n = 50;
  kvq_step_batch_init(&step, sizeof step);
  step.n_sequences = 1;
  step.sequences = &sequence;
  step.token_counts = &n;
  ACCEPTED(kvq_step_begin(cache, &step, err));
  batch.dtype = batch.q_dtype = KVQ_F16;
  batch.k = batch.v = batch.q = zeros;
  allocations = f.memory.n_allocations;
  for (i = 0; i < 2; ++i) ACCEPTED(kvq_extend(cache, i, &batch, err));
  CHECK(f.memory.n_allocations == allocations);
  ACCEPTED(kvq_step_commit(cache, &step, err));
  CHECK(length_of(sequence, 1) == 150);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  fixture_close(&f);
}

void test_mrope(void) {
  sections_are_checked();
  trained_keys_are_refused();
  calls_are_checked();
  calls_allocate_nothing();
}
