/* kvq_router_trainer_*: inputs are checked, training can be stopped and repeated; kvq_router_*: its result. */
#include "check.h"
#include "suites.h"
#include "trainer_fixture.h"

#include <math.h>

static int unused_place;

/* Add two texts to every layer. */
static void add_texts(kvq_router_trainer* trainer) {
  int32_t layer;
  for (layer = 0; layer < kLayers; ++layer) {
    ACCEPTED(add_text(trainer, layer, 0, kTextTokens));
    ACCEPTED(add_text(trainer, layer, 1, kTextTokens - 37));
  }
}

static kvq_router* result_of(const kvq_router_trainer* trainer) {
  kvq_router* router = NULL;
  ACCEPTED(kvq_router_trainer_result(trainer, &router, err));
  return router;
}

/* The file of a whole training on a context of its own. */
static blob trained_file(int32_t n_threads, const kvq_router_trainer_options* options) {
  kvq_context* context = threaded_context(n_threads);
  kvq_router_trainer* trainer = new_router_trainer(context, options);
  kvq_router* router;
  blob file;
  add_texts(trainer);
  ACCEPTED(kvq_router_trainer_run(trainer, 2.0, NULL, NULL, err));
  router = result_of(trainer);
  kvq_router_trainer_destroy(trainer);
  SAVE(&file, kvq_router_save, router);
  kvq_router_destroy(router);
  kvq_context_destroy(context);
  return file;
}

static void refused_options(void) {
  fixture f;
  kvq_router_trainer* trainer = (kvq_router_trainer*)&unused_place;
  kvq_router_trainer_options options = small_router_options();
  kvq_cache_options cache = small_cache_options();
  kvq_policy* policy;
  kvq_policy* plain;
  kvq_policy* other;
  char long_note[5000];
  fixture_open(&f, NULL, 0, 0);
  policy = load_policy(f.context, kExperts);
  plain = load_policy(f.context, "int4");
#define CREATE(context, cache, policy, options, out) \
  kvq_router_trainer_create((context), (cache), (policy), (options), (out), err)
  REFUSED(KVQ_E_ARGUMENT, "context", CREATE(NULL, &cache, policy, &options, &trainer));
  CHECK(trainer == NULL);
  REFUSED(KVQ_E_ARGUMENT, "cache", CREATE(f.context, NULL, policy, &options, &trainer));
  REFUSED(KVQ_E_ARGUMENT, "policy", CREATE(f.context, &cache, NULL, &options, &trainer));
  REFUSED(KVQ_E_ARGUMENT, "options", CREATE(f.context, &cache, policy, NULL, &trainer));
  REFUSED(KVQ_E_ARGUMENT, "result", CREATE(f.context, &cache, policy, &options, NULL));
  REFUSED(KVQ_E_ARGUMENT, "experts", CREATE(f.context, &cache, plain, &options, &trainer));
  other = load_policy(f.context, "{version: 1, router: {experts: [int4, int8]}}");
  REFUSED(KVQ_E_ARGUMENT, "int8", CREATE(f.context, &cache, other, &options, &trainer));
  ALSO_MENTIONS("int4");
  kvq_policy_destroy(other);
  other = load_policy(f.context, "{version: 1, router: {experts: [int4, commvq]}}");
  REFUSED(KVQ_E_ARGUMENT, "codebook", CREATE(f.context, &cache, other, &options, &trainer));
  ALSO_MENTIONS("commvq");
  kvq_policy_destroy(other);
#define BAD(field, value, mention)                                                           \
  do {                                                                                       \
    options = small_router_options();                                                        \
    options.field = (value);                                                                 \
    REFUSED(KVQ_E_ARGUMENT, mention, CREATE(f.context, &cache, policy, &options, &trainer)); \
  } while (0)
  BAD(struct_size, 8, "struct_size");
  BAD(method, -1, "method");
  BAD(method, 2, "method");
  BAD(sharing, 0, "sharing");
  BAD(sharing, 65537, "sharing");
  BAD(epochs, -1, "epochs");
  BAD(epochs, 10001, "epochs");
  BAD(mean_bits, 0.0, "mean_bits is 0");
  ALSO_MENTIONS("16");
  ALSO_MENTIONS("int2");
  BAD(mean_bits, 16.5, "mean_bits");
  BAD(mean_bits, (double)NAN, "mean_bits");
  BAD(loss_weight, -0.1, "loss_weight");
  BAD(loss_weight, 1.1, "loss_weight");
  BAD(loss_weight, (double)NAN, "loss_weight");
  BAD(learning_rate, 0.0, "learning_rate");
  BAD(learning_rate, 1.5, "learning_rate");
  BAD(learning_rate, (double)NAN, "learning_rate");
  BAD(note, "\xff", "note");
  memset(long_note, 'x', sizeof long_note);
  long_note[sizeof long_note - 1] = '\0';
  BAD(note, long_note, "note");
#undef BAD
  options = small_router_options();
  cache.struct_size = 4;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", CREATE(f.context, &cache, policy, &options, &trainer));
  cache = small_cache_options();
  cache.head_dim = 12;
  REFUSED(KVQ_E_ARGUMENT, "head_dim", CREATE(f.context, &cache, policy, &options, &trainer));
  ALSO_MENTIONS("cache");
#undef CREATE
  kvq_router_trainer_destroy(NULL);
  kvq_router_trainer_options_init(NULL, 0);
  kvq_policy_destroy(plain);
  kvq_policy_destroy(policy);
  fixture_close(&f);
}

static void refused_calls(void) {
  static text_tensors t;
  fixture f;
  kvq_router_trainer_options options = small_router_options();
  kvq_router_trainer* trainer;
  kvq_router* router = (kvq_router*)&unused_place;
  size_t live;
  fixture_open(&f, NULL, 0, 0);
  trainer = new_router_trainer(f.context, &options);
  fill_text(&t, 1);
#define ADD(trainer, layer, n, q, k, v, dtype) \
  kvq_router_trainer_add((trainer), (layer), (n), (q), (k), (v), (dtype), err)
  live = f.memory.live_bytes;
  REFUSED(KVQ_E_ARGUMENT, "trainer", ADD(NULL, 0, kTextTokens, t.q, t.k, t.v, KVQ_F32));
  REFUSED(KVQ_E_ARGUMENT, "layer", ADD(trainer, -1, kTextTokens, t.q, t.k, t.v, KVQ_F32));
  REFUSED(KVQ_E_ARGUMENT, "layer", ADD(trainer, kLayers, kTextTokens, t.q, t.k, t.v, KVQ_F32));
  REFUSED(KVQ_E_ARGUMENT, "n", ADD(trainer, 0, 0, t.q, t.k, t.v, KVQ_F32));
  REFUSED(KVQ_E_ARGUMENT, "q", ADD(trainer, 0, kTextTokens, NULL, t.k, t.v, KVQ_F32));
  REFUSED(KVQ_E_ARGUMENT, "k", ADD(trainer, 0, kTextTokens, t.q, NULL, t.v, KVQ_F32));
  REFUSED(KVQ_E_ARGUMENT, "v", ADD(trainer, 0, kTextTokens, t.q, t.k, NULL, KVQ_F32));
  REFUSED(KVQ_E_ARGUMENT, "dtype", ADD(trainer, 0, kTextTokens, t.q, t.k, t.v, 3));
  t.q[7] = (float)NAN;
  REFUSED(KVQ_E_ARGUMENT, "q[7]", ADD(trainer, 0, kTextTokens, t.q, t.k, t.v, KVQ_F32));
  t.q[7] = 0.0f;
  t.k[5] = (float)NAN;
  REFUSED(KVQ_E_ARGUMENT, "k[5]", ADD(trainer, 0, kTextTokens, t.q, t.k, t.v, KVQ_F32));
  REFUSED(KVQ_E_ARGUMENT, "k[5]", ADD(trainer, 1, 1, t.q, t.k, t.v, KVQ_F32));
  t.k[5] = 0.0f;
  t.v[3] = 65520.0f; /* rounds to infinity */
  REFUSED(KVQ_E_ARGUMENT, "v[3]", ADD(trainer, 0, kTextTokens, t.q, t.k, t.v, KVQ_F32));
  t.v[3] = 0.0f;
  CHECK(f.memory.live_bytes == live);
  REFUSED(KVQ_E_STATE, "no text", kvq_router_trainer_run(trainer, 2.0, NULL, NULL, err));
  ACCEPTED(ADD(trainer, 0, kTextTokens, t.q, t.k, t.v, KVQ_F32));
  REFUSED(KVQ_E_STATE, "layer 1", kvq_router_trainer_run(trainer, 2.0, NULL, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "n is 199", ADD(trainer, 1, kTextTokens - 1, t.q, t.k, t.v, KVQ_F32));
  ALSO_MENTIONS("200");
#undef ADD
  REFUSED(KVQ_E_ARGUMENT, "trainer", kvq_router_trainer_run(NULL, 2.0, NULL, NULL, err));
  REFUSED(KVQ_E_STATE, "trainer", kvq_router_trainer_result(trainer, &router, err));
  CHECK(router == NULL);
  REFUSED(KVQ_E_ARGUMENT, "trainer", kvq_router_trainer_result(NULL, &router, err));
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_router_trainer_result(trainer, NULL, err));
  kvq_router_trainer_destroy(trainer);

  /* Texts that are too short teach nothing. */
  trainer = new_router_trainer(f.context, &options);
  ACCEPTED(add_text(trainer, 0, 0, 84));
  ACCEPTED(add_text(trainer, 1, 0, 84));
  REFUSED(KVQ_E_STATE, "no text", kvq_router_trainer_run(trainer, 2.0, NULL, NULL, err));
  kvq_router_trainer_destroy(trainer);

  /* The paper's method needs keys and the model's loss. */
  options.method = KVQ_ROUTER_PAPER;
  options.mean_bits = 0.0;
  trainer = new_router_trainer(f.context, &options);
  ACCEPTED(kvq_router_trainer_add(trainer, 0, kTextTokens, NULL, t.k, NULL, KVQ_F32, err));
  ACCEPTED(kvq_router_trainer_add(trainer, 1, kTextTokens, NULL, t.k, NULL, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "loss", kvq_router_trainer_run(trainer, 0.0, NULL, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "loss", kvq_router_trainer_run(trainer, (double)NAN, NULL, NULL, err));
  ACCEPTED(kvq_router_trainer_run(trainer, 2.0, NULL, NULL, err));
  kvq_router_trainer_destroy(trainer);
  fixture_close(&f);
}

static void described(void) {
  kvq_router_trainer_options options = small_router_options();
  const blob file = trained_file(1, &options);
  fixture f;
  kvq_router* router = (kvq_router*)&unused_place;
  kvq_router_info info;
  kvq_router_group_info group;
  blob again;
  size_t size = 0;
  fixture_open(&f, NULL, 0, 0);
  REFUSED(KVQ_E_ARGUMENT, "context", kvq_router_load(NULL, file.data, file.size, &router, err));
  CHECK(router == NULL);
  REFUSED(KVQ_E_ARGUMENT, "buffer", kvq_router_load(f.context, NULL, file.size, &router, err));
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_router_load(f.context, file.data, file.size, NULL, err));
  REFUSED(KVQ_E_FORMAT, "bytes", kvq_router_load(f.context, file.data, file.size - 1, &router, err));
  REFUSED(KVQ_E_FORMAT, NULL, kvq_router_load(f.context, file.data, 0, &router, err));
  ACCEPTED(kvq_router_load(f.context, file.data, file.size, &router, err));
  SAVE(&again, kvq_router_save, router);
  CHECK(same_blobs(&file, &again));
  memset(again.data, 0x77, again.size);
  REFUSED(KVQ_E_BUFFER_SIZE, "capacity", kvq_router_save(router, again.data, again.size - 1, &size, err));
  CHECK(size == again.size && again.data[0] == 0x77 && again.data[again.size - 1] == 0x77);
  REFUSED(KVQ_E_ARGUMENT, "router", kvq_router_save(NULL, again.data, again.size, &size, err));
  REFUSED(KVQ_E_ARGUMENT, "size", kvq_router_save(router, again.data, again.size, NULL, err));

  memset(&info, 0x77, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_router_describe(router, &info, err));
  CHECK(info.n_layers == kLayers && info.kv_heads == kKvHeads && info.head_dim == kHeadDim);
  CHECK(info.rope == KVQ_ROPE_HALF && info.sharing == 2 && info.groups == 1 && info.n_experts == 3);
  CHECK(info.method == KVQ_ROUTER_LABEL && info.reserved == 0 && info.loss_weight == 0.0);
  CHECK(info.tokens == 2 * kTextTokens - 37 && info.seed == 5 && info.model_id == 7);
  CHECK(info.bytes == 2 * (2 * 3 * kHeadDim + 3 * 3));
  CHECK(info.tolerance > 0.0 && info.accuracy >= 0.0 && info.accuracy <= 1.0);
  CHECK(strcmp(info.experts, "fp16, int4, int2") == 0 && strcmp(info.note, "small") == 0);
  memset(&group, 0x77, sizeof group);
  group.struct_size = sizeof group;
  ACCEPTED(kvq_router_describe_group(router, 0, &group, err));
  CHECK(group.first_layer == 0 && group.last_layer == 1 && group.reserved == 0);
  CHECK(group.mean_bits == info.mean_bits && group.accuracy == info.accuracy);
  CHECK(fabs(group.shares[0] + group.shares[1] + group.shares[2] - 1.0) < 1e-9 && group.shares[3] == 0.0);

  REFUSED(KVQ_E_ARGUMENT, "router", kvq_router_describe(NULL, &info, err));
  REFUSED(KVQ_E_ARGUMENT, "info", kvq_router_describe(router, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "router", kvq_router_describe_group(NULL, 0, &group, err));
  REFUSED(KVQ_E_ARGUMENT, "group", kvq_router_describe_group(router, 1, &group, err));
  REFUSED(KVQ_E_ARGUMENT, "group", kvq_router_describe_group(router, -1, &group, err));
  REFUSED(KVQ_E_ARGUMENT, "info", kvq_router_describe_group(router, 0, NULL, err));
  info.struct_size = 3;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_router_describe(router, &info, err));
  group.struct_size = 3;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_router_describe_group(router, 0, &group, err));
  kvq_router_destroy(router);
  kvq_router_destroy(NULL);
  fixture_close(&f);
  blob_free(&again);
  free(file.data);
}

/* The same texts give the same routers, on any number of threads; another seed others. */
static void repeatable(kvq_router_method method) {
  kvq_router_trainer_options options = small_router_options();
  blob one;
  blob three;
  blob other;
  options.method = method;
  options.loss_weight = 0.9;
  one = trained_file(1, &options);
  three = trained_file(3, &options);
  CHECK(same_blobs(&one, &three));
  options.seed = 6;
  other = trained_file(1, &options);
  CHECK(!same_blobs(&one, &other));
  blob_free(&other);
  blob_free(&three);
  blob_free(&one);
}

/* Wherever training is stopped or runs out of memory, the texts are kept. */
static void stopped(void) {
  const kvq_router_trainer_options options = small_router_options();
  blob expected = trained_file(1, &options);
  fixture f;
  kvq_router_trainer* trainer;
  kvq_router* router;
  blob file;
  progress_reports r;
  kvq_status status = KVQ_E_MEMORY;
  long n;
  fixture_open(&f, NULL, 0, 0);
  trainer = new_router_trainer(f.context, &options);
  add_texts(trainer);
  for (n = 1; status != KVQ_OK && n < 30; ++n) {
    const size_t live = f.memory.live_bytes;
    f.memory.fail_at = n;
    status = kvq_router_trainer_run(trainer, 0.0, NULL, NULL, err);
    CHECK(status == KVQ_E_MEMORY && f.memory.live_bytes == live);
  }
  f.memory.fail_at = 0;
  STOP_AT_REPORTS(&f.memory, &r, 1, kvq_router_trainer_run(trainer, 0.0, on_progress, &r, err));
  router = result_of(trainer);
  SAVE(&file, kvq_router_save, router);
  CHECK(same_blobs(&file, &expected));
  REFUSED(KVQ_E_STATE, "finished", kvq_router_trainer_run(trainer, 0.0, NULL, NULL, err));
  REFUSED(KVQ_E_STATE, "finished", add_text(trainer, 0, 2, kTextTokens));
  kvq_router_trainer_destroy(trainer);
  kvq_router_destroy(router);
  fixture_close(&f);
  blob_free(&file);
  blob_free(&expected);
}

/* A trainer keeps nothing of its policy, whose context may be destroyed first. */
static void policies_of_other_contexts(void) {
  const kvq_router_trainer_options options = small_router_options();
  const kvq_cache_options cache = small_cache_options();
  fixture f;
  fixture other;
  kvq_policy* policy;
  kvq_router_trainer* trainer = NULL;
  kvq_router* router;
  fixture_open(&f, NULL, 0, 0);
  fixture_open(&other, NULL, 0, 0);
  policy = load_policy(other.context, kExperts);
  ACCEPTED(kvq_router_trainer_create(f.context, &cache, policy, &options, &trainer, err));
  kvq_policy_destroy(policy);
  fixture_close(&other);
  add_texts(trainer);
  ACCEPTED(kvq_router_trainer_run(trainer, 2.0, NULL, NULL, err));
  router = result_of(trainer);
  kvq_router_trainer_destroy(trainer);
  kvq_router_destroy(router);
  fixture_close(&f);
}

/* A network that has become NaN is an error; the texts are kept. */
static void diverging(void) {
  kvq_router_trainer_options options = small_router_options();
  fixture f;
  kvq_router_trainer* trainer;
  kvq_router* router = (kvq_router*)&unused_place;
  options.method = KVQ_ROUTER_PAPER;
  fixture_open(&f, NULL, 0, 0);
  trainer = new_router_trainer(f.context, &options);
  add_texts(trainer);
  REFUSED(KVQ_E_STATE, "diverged", kvq_router_trainer_run(trainer, 1e300, NULL, NULL, err));
  ALSO_MENTIONS("1e+300");
  REFUSED(KVQ_E_STATE, "run", kvq_router_trainer_result(trainer, &router, err));
  CHECK(router == NULL);
  ACCEPTED(kvq_router_trainer_run(trainer, 2.0, NULL, NULL, err));
  kvq_router_trainer_destroy(trainer);
  fixture_close(&f);
}

void test_router_trainer(void) {
  refused_options();
  refused_calls();
  described();
  repeatable(KVQ_ROUTER_LABEL);
  repeatable(KVQ_ROUTER_PAPER);
  stopped();
  diverging();
  policies_of_other_contexts();
}
