#include "trainer_fixture.h"

const char kExperts[] = "{version: 1, router: {experts: [fp16, int4, int2]}}";

kvq_codebook_trainer_options small_codebook_options(void) {
  kvq_codebook_trainer_options options = small_trainer_options();
  options.value_scope = KVQ_SCOPE_HEAD;
  options.value_rounds = 2;
  options.seed = 5;
  options.note = "small";
  return options;
}

kvq_codebook_trainer* new_codebook_trainer(kvq_context* context, const kvq_codebook_trainer_options* options) {
  kvq_codebook_trainer* trainer = NULL;
  ACCEPTED(kvq_codebook_trainer_create(context, options, &trainer, err));
  return trainer;
}

kvq_centres_trainer_options small_centres_options(void) {
  kvq_centres_trainer_options options;
  kvq_centres_trainer_options_init(&options, sizeof(options));
  options.n_layers = kLayers;
  options.kv_heads = kKvHeads;
  options.head_dim = kHeadDim;
  options.key_centres = 3;
  options.value_centres = 2;
  options.model_id = 7;
  options.seed = 5;
  options.note = "small";
  return options;
}

kvq_centres_trainer* new_centres_trainer(kvq_context* context, const kvq_centres_trainer_options* options) {
  kvq_centres_trainer* trainer = NULL;
  ACCEPTED(kvq_centres_trainer_create(context, options, &trainer, err));
  return trainer;
}

void add_centres_tokens(kvq_centres_trainer* trainer, int32_t layer) {
  static float k[kCodebookScalars];
  static float v[kCodebookScalars];
  const int32_t first = 37;
  fill_tensor(k, kCodebookScalars, 10 + (uint32_t)layer);
  fill_tensor(v, kCodebookScalars, 20 + (uint32_t)layer);
  ACCEPTED(kvq_centres_trainer_add(trainer, layer, first, k, v, KVQ_F32, err));
  ACCEPTED(kvq_centres_trainer_add(trainer, layer, kCodebookTokens - first, k + first * kTokenScalars,
                                   v + first * kTokenScalars, KVQ_F32, err));
}

kvq_centres* small_centres(kvq_context* context) {
  const kvq_centres_trainer_options options = small_centres_options();
  kvq_centres_trainer* trainer = new_centres_trainer(context, &options);
  kvq_centres* centres = NULL;
  int32_t layer;
  for (layer = 0; layer < kLayers; ++layer) {
    add_centres_tokens(trainer, layer);
    ACCEPTED(kvq_centres_trainer_run(trainer, layer, NULL, NULL, err));
  }
  ACCEPTED(kvq_centres_trainer_result(trainer, &centres, err));
  kvq_centres_trainer_destroy(trainer);
  return centres;
}

kvq_centres* centres_for(kvq_context* context, const char* policy) {
  static blob file; /* created once */
  kvq_centres* centres = NULL;
  if (policy == NULL || (strstr(policy, "+centres") == NULL && strstr(policy, "trained") == NULL)) return NULL;
  if (file.data == NULL) {
    kvq_context* elsewhere = threaded_context(1);
    centres = small_centres(elsewhere);
    SAVE(&file, kvq_centres_save, centres);
    kvq_centres_destroy(centres);
    kvq_context_destroy(elsewhere);
  }
  ACCEPTED(kvq_centres_load(context, file.data, file.size, &centres, err));
  return centres;
}

kvq_router_trainer_options small_router_options(void) {
  kvq_router_trainer_options options;
  kvq_router_trainer_options_init(&options, sizeof(options));
  options.sharing = 2;
  options.epochs = 2;
  options.mean_bits = 8.0;
  options.seed = 5;
  options.note = "small";
  return options;
}

kvq_router_trainer* new_router_trainer(kvq_context* context, const kvq_router_trainer_options* options) {
  const kvq_cache_options cache = small_cache_options();
  kvq_policy* policy = load_policy(context, kExperts);
  kvq_router_trainer* trainer = NULL;
  ACCEPTED(kvq_router_trainer_create(context, &cache, policy, options, &trainer, err));
  kvq_policy_destroy(policy);
  return trainer;
}

void fill_text(text_tensors* t, uint32_t seed) {
  fill_tensor(t->q, kTextQueryScalars, seed);
  fill_tensor(t->k, kTextScalars, seed + 1);
  fill_tensor(t->v, kTextScalars, seed + 2);
}

kvq_status add_text(kvq_router_trainer* trainer, int32_t layer, uint32_t text, int32_t n) {
  static text_tensors t;
  fill_text(&t, 100 * text + 10 * (uint32_t)layer);
  return kvq_router_trainer_add(trainer, layer, n, t.q, t.k, t.v, KVQ_F32, err);
}

kvq_context* threaded_context(int32_t n_threads) {
  kvq_context_options options;
  kvq_context* context = NULL;
  kvq_context_options_init(&options, sizeof(options));
  options.n_threads = THREADS(n_threads);
  ACCEPTED(kvq_context_create(&options, &context, err));
  return context;
}
