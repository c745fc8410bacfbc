/* kvq_codebook_trainer_*: limits on memory, and allocations that fail. */
#include "check.h"
#include "suites.h"
#include "trainer_fixture.h"

/* Tokens beyond the limit are refused; earlier ones stay. */
static void limited(void) {
  kvq_codebook_trainer_options options = small_codebook_options();
  fixture f;
  kvq_codebook_trainer* trainer;
  static float x[kCodebookScalars];
  int n = 0;
  kvq_status status = KVQ_OK;
  fill_tensor(x, kCodebookScalars, 3);
  options.max_bytes = 200000;
  fixture_open(&f, NULL, 0, 0);
  trainer = new_codebook_trainer(f.context, &options);
  for (; status == KVQ_OK && n < 1000; ++n)
    status = kvq_codebook_trainer_add(trainer, 0, kCodebookTokens, x, x, KVQ_F32, err);
  CHECK(status == KVQ_E_LIMIT && n > 5);
  REFUSED(KVQ_E_LIMIT, "trainer", kvq_codebook_trainer_add(trainer, 0, kCodebookTokens, x, x, KVQ_F32, err));
  REFUSED(KVQ_E_LIMIT, "200000", kvq_codebook_trainer_run(trainer, 0, NULL, NULL, err)); /* its workspace is larger */
  kvq_codebook_trainer_destroy(trainer);
  fixture_close(&f);
}

static void failing_allocations(void) {
  kvq_codebook_trainer_options options = small_codebook_options();
  fixture f;
  kvq_codebook_trainer* trainer = NULL;
  kvq_codebook* codebook = NULL;
  kvq_codebook_info info;
  static float x[kCodebookScalars];
  options.key_stages = 1; /* as small as training can be, because it is repeated for each allocation */
  options.key_codes = 2;
  fill_tensor(x, kCodebookScalars, 3);
  fixture_open(&f, NULL, 0, 0);
  FAIL_EACH_ALLOCATION(&f.memory, kvq_codebook_trainer_create(f.context, &options, &trainer, err));
  FAIL_EACH_ALLOCATION(&f.memory, kvq_codebook_trainer_add(trainer, 0, 20, x, x, KVQ_F32, err));
  FAIL_EACH_ALLOCATION(&f.memory, kvq_codebook_trainer_run(trainer, 0, NULL, NULL, err));
  FAIL_EACH_ALLOCATION(&f.memory, kvq_codebook_trainer_result(trainer, &codebook, err));
  kvq_codebook_trainer_destroy(trainer);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_codebook_describe(codebook, &info, err));
  CHECK(info.layers_present == 1);
  kvq_codebook_destroy(codebook);
  fixture_close(&f);
}

/* Training a network takes too long to fail at every allocation: fails at each of the first, then at fewer and fewer.
 * */
static void failing_allocations_of_networks(void) {
  kvq_codebook_trainer_options options = small_codebook_options();
  fixture f;
  kvq_codebook_trainer* trainer;
  static float x[kCodebookScalars];
  options.key_stages = 0;
  options.value_rounds = 1;
  options.value_method = KVQ_VALUES_NETWORK;
  fill_tensor(x, kCodebookScalars, 3);
  fixture_open(&f, NULL, 0, 0);
  trainer = new_codebook_trainer(f.context, &options);
  ACCEPTED(kvq_codebook_trainer_add(trainer, 0, 20, NULL, x, KVQ_F32, err));
  FAIL_ALLOCATIONS(&f.memory, n_ / 8 + 1, 100, kvq_codebook_trainer_run(trainer, 0, NULL, NULL, err));
  kvq_codebook_trainer_destroy(trainer);
  fixture_close(&f);
}

void test_codebook_trainer_memory(void) {
  limited();
  failing_allocations();
  failing_allocations_of_networks();
}
