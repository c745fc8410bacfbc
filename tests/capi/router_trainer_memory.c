/* kvq_router_trainer_*: limits on memory, and allocations that fail. */
#include "check.h"
#include "suites.h"
#include "trainer_fixture.h"

static void failing_allocations(void) {
  const kvq_router_trainer_options options = small_router_options();
  const kvq_cache_options cache = small_cache_options();
  fixture f;
  kvq_policy* policy;
  kvq_router_trainer* trainer = NULL;
  kvq_router* router = NULL;
  fixture_open(&f, NULL, 0, 0);
  policy = load_policy(f.context, kExperts);
  FAIL_EACH_ALLOCATION(&f.memory, kvq_router_trainer_create(f.context, &cache, policy, &options, &trainer, err));
  FAIL_EACH_ALLOCATION(&f.memory, add_text(trainer, 0, 0, 100));
  ACCEPTED(add_text(trainer, 1, 0, 100));
  ACCEPTED(kvq_router_trainer_run(trainer, 0.0, NULL, NULL, err));
  FAIL_EACH_ALLOCATION(&f.memory, kvq_router_trainer_result(trainer, &router, err));
  kvq_router_trainer_destroy(trainer);
  kvq_router_destroy(router);
  kvq_policy_destroy(policy);
  fixture_close(&f);
}

/* Texts beyond the limit are refused; earlier ones stay. */
static void limited(void) {
  kvq_router_trainer_options options = small_router_options();
  fixture f;
  kvq_router_trainer* trainer;
  kvq_status status = KVQ_OK;
  int n = 0;
  options.max_bytes = 500000;
  fixture_open(&f, NULL, 0, 0);
  trainer = new_router_trainer(f.context, &options);
  for (; status == KVQ_OK && n < 1000; ++n) status = add_text(trainer, 0, 0, kTextTokens);
  CHECK(status == KVQ_E_LIMIT && n > 3);
  REFUSED(KVQ_E_LIMIT, "trainer", add_text(trainer, 0, 0, kTextTokens));
  kvq_router_trainer_destroy(trainer);
  fixture_close(&f);
}

void test_router_trainer_memory(void) {
  failing_allocations();
  limited();
}
