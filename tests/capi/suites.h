/* The suites that main.c runs, one per file. */
#ifndef KVQ_TESTS_CAPI_SUITES_H
#define KVQ_TESTS_CAPI_SUITES_H

void test_layout(void);
void test_errors(void);
void test_sizes(void);
void test_lifetimes(void);
void test_context(void);
void test_device(void);
void test_policy(void);
void test_policy_save(void);
void test_plan(void);
void test_codebook(void);
void test_codebook_trainer(void);
void test_codebook_trainer_memory(void);
void test_centres(void);
void test_centres_trainer(void);
void test_scales(void);
void test_router_trainer(void);
void test_router_trainer_memory(void);
void test_matrix(void);
void test_mrope(void);
void test_commvq(void);
void test_cache(void);
void test_sequence(void);
void test_truncate(void);
void test_compress(void);
void test_reserve(void);
void test_append(void);
void test_append_batch(void);
void test_extend(void);
void test_step(void);
void test_recode(void);
void test_attend(void);
void test_usage(void);
void test_predict(void);
void test_snapshot(void);
void test_states(void);
void test_windows(void);
void test_file_type(void);
void test_limits(void);
void test_allocation_failures(void);
void test_hooks(void);
void test_fork(void);
void test_walkthrough(void);

#endif
