/* kvq_router_trainer_*: limits on memory, and allocations that fail. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

enum { kTokens = 200, kScalars = kTokens * kTokenScalars, kQScalars = kTokens * kQHeads * kHeadDim };

static const char kExperts[] = "{version: 1, router: {experts: [fp16, int4, int2]}}";

static kvq_router_trainer_options small_options(void) {
  kvq_router_trainer_options options;
  kvq_router_trainer_options_init(&options);
  options.epochs = 2;
  options.mean_bits = 8.0;
  return options;
}

static kvq_status add_text(kvq_router_trainer* trainer, int32_t layer, int32_t n) {
  static float q[kQScalars];
  static float k[kScalars];
  static float v[kScalars];
  fill_tensor(q, kQScalars, 1);
  fill_tensor(k, kScalars, 2);
  fill_tensor(v, kScalars, 3);
  return kvq_router_trainer_add(trainer, layer, n, q, k, v, KVQ_F32, err);
}

static void failing_allocations(void) {
  const kvq_router_trainer_options options = small_options();
  const kvq_cache_options cache = small_cache_options();
  fixture f;
  kvq_policy* policy;
  kvq_router_trainer* trainer = NULL;
  kvq_router* router = NULL;
  fixture_open(&f, NULL, 0, 0);
  policy = load_policy(f.context, kExperts);
  FAIL_EACH_ALLOCATION(&f.memory, kvq_router_trainer_create(f.context, &cache, policy, &options, &trainer, err));
  FAIL_EACH_ALLOCATION(&f.memory, add_text(trainer, 0, 100));
  ACCEPTED(add_text(trainer, 1, 100));
  ACCEPTED(kvq_router_trainer_run(trainer, 0.0, NULL, NULL, err));
  FAIL_EACH_ALLOCATION(&f.memory, kvq_router_trainer_result(trainer, &router, err));
  kvq_router_trainer_destroy(trainer);
  kvq_router_destroy(router);
  kvq_policy_destroy(policy);
  fixture_close(&f);
}

/* Texts beyond the limit are refused, and those before it stay. */
static void limited(void) {
  kvq_router_trainer_options options = small_options();
  fixture f;
  const kvq_cache_options cache = small_cache_options();
  kvq_policy* policy;
  kvq_router_trainer* trainer = NULL;
  kvq_status status = KVQ_OK;
  int n = 0;
  options.max_bytes = 500000;
  fixture_open(&f, NULL, 0, 0);
  policy = load_policy(f.context, kExperts);
  ACCEPTED(kvq_router_trainer_create(f.context, &cache, policy, &options, &trainer, err));
  kvq_policy_destroy(policy);
  for (; status == KVQ_OK && n < 1000; ++n) status = add_text(trainer, 0, kTokens);
  CHECK(status == KVQ_E_LIMIT && n > 3);
  REFUSED(KVQ_E_LIMIT, "trainer", add_text(trainer, 0, kTokens));
  kvq_router_trainer_destroy(trainer);
  fixture_close(&f);
}

void test_router_trainer_memory(void) {
  failing_allocations();
  limited();
}
