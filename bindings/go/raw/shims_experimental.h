/* Made by bindings/generate/generate.py from include/kvq.h; edit that instead. */
#ifndef KVQ_GO_SHIMS_EXPERIMENTAL_H
#define KVQ_GO_SHIMS_EXPERIMENTAL_H

#define KVQ_EXPERIMENTAL
#include "shims.h"

#if UINTPTR_MAX == 0xffffffffffffffffu
_Static_assert(sizeof(kvq_codebook_trainer_options) == 88, "kvq_codebook_trainer_options");
_Static_assert(offsetof(kvq_codebook_trainer_options, struct_size) == 0, "kvq_codebook_trainer_options.struct_size");
_Static_assert(offsetof(kvq_codebook_trainer_options, n_layers) == 4, "kvq_codebook_trainer_options.n_layers");
_Static_assert(offsetof(kvq_codebook_trainer_options, kv_heads) == 8, "kvq_codebook_trainer_options.kv_heads");
_Static_assert(offsetof(kvq_codebook_trainer_options, head_dim) == 12, "kvq_codebook_trainer_options.head_dim");
_Static_assert(offsetof(kvq_codebook_trainer_options, rope) == 16, "kvq_codebook_trainer_options.rope");
_Static_assert(offsetof(kvq_codebook_trainer_options, key_stages) == 20, "kvq_codebook_trainer_options.key_stages");
_Static_assert(offsetof(kvq_codebook_trainer_options, key_codes) == 24, "kvq_codebook_trainer_options.key_codes");
_Static_assert(offsetof(kvq_codebook_trainer_options, key_group) == 28, "kvq_codebook_trainer_options.key_group");
_Static_assert(offsetof(kvq_codebook_trainer_options, key_norms) == 32, "kvq_codebook_trainer_options.key_norms");
_Static_assert(offsetof(kvq_codebook_trainer_options, value_bits) == 36, "kvq_codebook_trainer_options.value_bits");
_Static_assert(offsetof(kvq_codebook_trainer_options, value_scope) == 40, "kvq_codebook_trainer_options.value_scope");
_Static_assert(offsetof(kvq_codebook_trainer_options, key_rounds) == 44, "kvq_codebook_trainer_options.key_rounds");
_Static_assert(offsetof(kvq_codebook_trainer_options, value_rounds) == 48, "kvq_codebook_trainer_options.value_rounds");
_Static_assert(offsetof(kvq_codebook_trainer_options, value_method) == 52, "kvq_codebook_trainer_options.value_method");
_Static_assert(offsetof(kvq_codebook_trainer_options, seed) == 56, "kvq_codebook_trainer_options.seed");
_Static_assert(offsetof(kvq_codebook_trainer_options, model_id) == 64, "kvq_codebook_trainer_options.model_id");
_Static_assert(offsetof(kvq_codebook_trainer_options, max_bytes) == 72, "kvq_codebook_trainer_options.max_bytes");
_Static_assert(offsetof(kvq_codebook_trainer_options, note) == 80, "kvq_codebook_trainer_options.note");

_Static_assert(sizeof(kvq_centres_trainer_options) == 64, "kvq_centres_trainer_options");
_Static_assert(offsetof(kvq_centres_trainer_options, struct_size) == 0, "kvq_centres_trainer_options.struct_size");
_Static_assert(offsetof(kvq_centres_trainer_options, n_layers) == 4, "kvq_centres_trainer_options.n_layers");
_Static_assert(offsetof(kvq_centres_trainer_options, kv_heads) == 8, "kvq_centres_trainer_options.kv_heads");
_Static_assert(offsetof(kvq_centres_trainer_options, head_dim) == 12, "kvq_centres_trainer_options.head_dim");
_Static_assert(offsetof(kvq_centres_trainer_options, rope) == 16, "kvq_centres_trainer_options.rope");
_Static_assert(offsetof(kvq_centres_trainer_options, key_centres) == 20, "kvq_centres_trainer_options.key_centres");
_Static_assert(offsetof(kvq_centres_trainer_options, value_centres) == 24, "kvq_centres_trainer_options.value_centres");
_Static_assert(offsetof(kvq_centres_trainer_options, rounds) == 28, "kvq_centres_trainer_options.rounds");
_Static_assert(offsetof(kvq_centres_trainer_options, seed) == 32, "kvq_centres_trainer_options.seed");
_Static_assert(offsetof(kvq_centres_trainer_options, model_id) == 40, "kvq_centres_trainer_options.model_id");
_Static_assert(offsetof(kvq_centres_trainer_options, max_bytes) == 48, "kvq_centres_trainer_options.max_bytes");
_Static_assert(offsetof(kvq_centres_trainer_options, note) == 56, "kvq_centres_trainer_options.note");

_Static_assert(sizeof(kvq_router_trainer_options) == 64, "kvq_router_trainer_options");
_Static_assert(offsetof(kvq_router_trainer_options, struct_size) == 0, "kvq_router_trainer_options.struct_size");
_Static_assert(offsetof(kvq_router_trainer_options, method) == 4, "kvq_router_trainer_options.method");
_Static_assert(offsetof(kvq_router_trainer_options, sharing) == 8, "kvq_router_trainer_options.sharing");
_Static_assert(offsetof(kvq_router_trainer_options, epochs) == 12, "kvq_router_trainer_options.epochs");
_Static_assert(offsetof(kvq_router_trainer_options, mean_bits) == 16, "kvq_router_trainer_options.mean_bits");
_Static_assert(offsetof(kvq_router_trainer_options, loss_weight) == 24, "kvq_router_trainer_options.loss_weight");
_Static_assert(offsetof(kvq_router_trainer_options, learning_rate) == 32, "kvq_router_trainer_options.learning_rate");
_Static_assert(offsetof(kvq_router_trainer_options, seed) == 40, "kvq_router_trainer_options.seed");
_Static_assert(offsetof(kvq_router_trainer_options, max_bytes) == 48, "kvq_router_trainer_options.max_bytes");
_Static_assert(offsetof(kvq_router_trainer_options, note) == 56, "kvq_router_trainer_options.note");

_Static_assert(sizeof(kvq_plan_problem) == 80, "kvq_plan_problem");
_Static_assert(offsetof(kvq_plan_problem, struct_size) == 0, "kvq_plan_problem.struct_size");
_Static_assert(offsetof(kvq_plan_problem, goal) == 4, "kvq_plan_problem.goal");
_Static_assert(offsetof(kvq_plan_problem, n_choices) == 8, "kvq_plan_problem.n_choices");
_Static_assert(offsetof(kvq_plan_problem, reserved) == 12, "kvq_plan_problem.reserved");
_Static_assert(offsetof(kvq_plan_problem, option_counts) == 16, "kvq_plan_problem.option_counts");
_Static_assert(offsetof(kvq_plan_problem, bytes) == 24, "kvq_plan_problem.bytes");
_Static_assert(offsetof(kvq_plan_problem, seconds) == 32, "kvq_plan_problem.seconds");
_Static_assert(offsetof(kvq_plan_problem, loss) == 40, "kvq_plan_problem.loss");
_Static_assert(offsetof(kvq_plan_problem, max_bytes) == 48, "kvq_plan_problem.max_bytes");
_Static_assert(offsetof(kvq_plan_problem, max_seconds) == 56, "kvq_plan_problem.max_seconds");
_Static_assert(offsetof(kvq_plan_problem, max_loss) == 64, "kvq_plan_problem.max_loss");
_Static_assert(offsetof(kvq_plan_problem, tolerance) == 72, "kvq_plan_problem.tolerance");

_Static_assert(sizeof(kvq_plan_costs) == 40, "kvq_plan_costs");
_Static_assert(offsetof(kvq_plan_costs, struct_size) == 0, "kvq_plan_costs.struct_size");
_Static_assert(offsetof(kvq_plan_costs, reserved) == 4, "kvq_plan_costs.reserved");
_Static_assert(offsetof(kvq_plan_costs, bytes) == 8, "kvq_plan_costs.bytes");
_Static_assert(offsetof(kvq_plan_costs, seconds) == 16, "kvq_plan_costs.seconds");
_Static_assert(offsetof(kvq_plan_costs, loss) == 24, "kvq_plan_costs.loss");
_Static_assert(offsetof(kvq_plan_costs, bound) == 32, "kvq_plan_costs.bound");

_Static_assert(sizeof(kvq_plan_fusion_options) == 48, "kvq_plan_fusion_options");
_Static_assert(offsetof(kvq_plan_fusion_options, struct_size) == 0, "kvq_plan_fusion_options.struct_size");
_Static_assert(offsetof(kvq_plan_fusion_options, n_members) == 4, "kvq_plan_fusion_options.n_members");
_Static_assert(offsetof(kvq_plan_fusion_options, n_schemes) == 8, "kvq_plan_fusion_options.n_schemes");
_Static_assert(offsetof(kvq_plan_fusion_options, n_groups) == 12, "kvq_plan_fusion_options.n_groups");
_Static_assert(offsetof(kvq_plan_fusion_options, groups) == 16, "kvq_plan_fusion_options.groups");
_Static_assert(offsetof(kvq_plan_fusion_options, bytes) == 24, "kvq_plan_fusion_options.bytes");
_Static_assert(offsetof(kvq_plan_fusion_options, loss) == 32, "kvq_plan_fusion_options.loss");
_Static_assert(offsetof(kvq_plan_fusion_options, seconds) == 40, "kvq_plan_fusion_options.seconds");

_Static_assert(sizeof(kvq_plan_fusion_info) == 16, "kvq_plan_fusion_info");
_Static_assert(offsetof(kvq_plan_fusion_info, struct_size) == 0, "kvq_plan_fusion_info.struct_size");
_Static_assert(offsetof(kvq_plan_fusion_info, n_members) == 4, "kvq_plan_fusion_info.n_members");
_Static_assert(offsetof(kvq_plan_fusion_info, n_groupings) == 8, "kvq_plan_fusion_info.n_groupings");
_Static_assert(offsetof(kvq_plan_fusion_info, reserved) == 12, "kvq_plan_fusion_info.reserved");

_Static_assert(sizeof(kvq_plan_grouping_info) == 64, "kvq_plan_grouping_info");
_Static_assert(offsetof(kvq_plan_grouping_info, struct_size) == 0, "kvq_plan_grouping_info.struct_size");
_Static_assert(offsetof(kvq_plan_grouping_info, reserved) == 4, "kvq_plan_grouping_info.reserved");
_Static_assert(offsetof(kvq_plan_grouping_info, bytes) == 8, "kvq_plan_grouping_info.bytes");
_Static_assert(offsetof(kvq_plan_grouping_info, seconds) == 16, "kvq_plan_grouping_info.seconds");
_Static_assert(offsetof(kvq_plan_grouping_info, loss) == 24, "kvq_plan_grouping_info.loss");
_Static_assert(offsetof(kvq_plan_grouping_info, groups) == 32, "kvq_plan_grouping_info.groups");
_Static_assert(offsetof(kvq_plan_grouping_info, schemes) == 48, "kvq_plan_grouping_info.schemes");

_Static_assert(sizeof(kvq_plan_content) == 64, "kvq_plan_content");
_Static_assert(offsetof(kvq_plan_content, struct_size) == 0, "kvq_plan_content.struct_size");
_Static_assert(offsetof(kvq_plan_content, n_matrices) == 4, "kvq_plan_content.n_matrices");
_Static_assert(offsetof(kvq_plan_content, names) == 8, "kvq_plan_content.names");
_Static_assert(offsetof(kvq_plan_content, schemes) == 16, "kvq_plan_content.schemes");
_Static_assert(offsetof(kvq_plan_content, policy) == 24, "kvq_plan_content.policy");
_Static_assert(offsetof(kvq_plan_content, bytes) == 32, "kvq_plan_content.bytes");
_Static_assert(offsetof(kvq_plan_content, seconds) == 40, "kvq_plan_content.seconds");
_Static_assert(offsetof(kvq_plan_content, loss) == 48, "kvq_plan_content.loss");
_Static_assert(offsetof(kvq_plan_content, note) == 56, "kvq_plan_content.note");

_Static_assert(sizeof(kvq_plan_info) == 48, "kvq_plan_info");
_Static_assert(offsetof(kvq_plan_info, struct_size) == 0, "kvq_plan_info.struct_size");
_Static_assert(offsetof(kvq_plan_info, n_matrices) == 4, "kvq_plan_info.n_matrices");
_Static_assert(offsetof(kvq_plan_info, has_policy) == 8, "kvq_plan_info.has_policy");
_Static_assert(offsetof(kvq_plan_info, reserved) == 12, "kvq_plan_info.reserved");
_Static_assert(offsetof(kvq_plan_info, bytes) == 16, "kvq_plan_info.bytes");
_Static_assert(offsetof(kvq_plan_info, seconds) == 24, "kvq_plan_info.seconds");
_Static_assert(offsetof(kvq_plan_info, loss) == 32, "kvq_plan_info.loss");
_Static_assert(offsetof(kvq_plan_info, note) == 40, "kvq_plan_info.note");

_Static_assert(sizeof(kvq_plan_matrix_info) == 24, "kvq_plan_matrix_info");
_Static_assert(offsetof(kvq_plan_matrix_info, struct_size) == 0, "kvq_plan_matrix_info.struct_size");
_Static_assert(offsetof(kvq_plan_matrix_info, reserved) == 4, "kvq_plan_matrix_info.reserved");
_Static_assert(offsetof(kvq_plan_matrix_info, name) == 8, "kvq_plan_matrix_info.name");
_Static_assert(offsetof(kvq_plan_matrix_info, scheme) == 16, "kvq_plan_matrix_info.scheme");

#endif

static inline kvq_status kvq_go_qp_tune(uint8_t* matrices, int32_t n, int32_t batch, kvq_error* error) {
  return qp_tune((const qp_matrix* const*)matrices, n, batch, error);
}

static inline kvq_status kvq_go_qp_tuning_save(uint8_t* context, char* buffer, size_t capacity, size_t* size, kvq_error* error) {
  return qp_tuning_save((kvq_context*)context, buffer, capacity, size, error);
}

static inline kvq_status kvq_go_qp_tuning_load(uint8_t* context, const char* text, size_t length, kvq_error* error) {
  return qp_tuning_load((kvq_context*)context, text, length, error);
}

static inline void kvq_go_kvq_codebook_trainer_options_init(uint8_t* it) {
  kvq_codebook_trainer_options_init((kvq_codebook_trainer_options*)it, sizeof(kvq_codebook_trainer_options));
}

static inline kvq_status kvq_go_kvq_codebook_trainer_create(uint8_t* context, int32_t options_given, int32_t options_n_layers, int32_t options_kv_heads, int32_t options_head_dim, kvq_rope options_rope, int32_t options_key_stages, int32_t options_key_codes, int32_t options_key_group, kvq_scope options_key_norms, int32_t options_value_bits, kvq_scope options_value_scope, int32_t options_key_rounds, int32_t options_value_rounds, kvq_value_method options_value_method, uint64_t options_seed, uint64_t options_model_id, uint64_t options_max_bytes, const char* options_note, uint8_t* result, kvq_error* error) {
  kvq_codebook_trainer_options options = {0};
  options.struct_size = sizeof(kvq_codebook_trainer_options);
  options.n_layers = options_n_layers;
  options.kv_heads = options_kv_heads;
  options.head_dim = options_head_dim;
  options.rope = options_rope;
  options.key_stages = options_key_stages;
  options.key_codes = options_key_codes;
  options.key_group = options_key_group;
  options.key_norms = options_key_norms;
  options.value_bits = options_value_bits;
  options.value_scope = options_value_scope;
  options.key_rounds = options_key_rounds;
  options.value_rounds = options_value_rounds;
  options.value_method = options_value_method;
  options.seed = options_seed;
  options.model_id = options_model_id;
  options.max_bytes = options_max_bytes;
  options.note = options_note;
  return kvq_codebook_trainer_create((kvq_context*)context, options_given ? &options : NULL, (kvq_codebook_trainer**)result, error);
}

static inline kvq_status kvq_go_kvq_codebook_trainer_resume(uint8_t* trainer, uint8_t* codebook, kvq_error* error) {
  return kvq_codebook_trainer_resume((kvq_codebook_trainer*)trainer, (const kvq_codebook*)codebook, error);
}

static inline kvq_status kvq_go_kvq_codebook_trainer_add(uint8_t* trainer, int32_t layer, int32_t n, uint8_t* k, uint8_t* v, kvq_dtype dtype, kvq_error* error) {
  return kvq_codebook_trainer_add((kvq_codebook_trainer*)trainer, layer, n, (const void*)k, (const void*)v, dtype, error);
}

static inline kvq_status kvq_go_kvq_codebook_trainer_run(uint8_t* trainer, int32_t layer, kvq_progress_hook progress, uintptr_t user, kvq_error* error) {
  return kvq_codebook_trainer_run((kvq_codebook_trainer*)trainer, layer, progress, (void*)user, error);
}

static inline kvq_status kvq_go_kvq_codebook_trainer_result(uint8_t* trainer, uint8_t* result, kvq_error* error) {
  return kvq_codebook_trainer_result((const kvq_codebook_trainer*)trainer, (kvq_codebook**)result, error);
}

static inline void kvq_go_kvq_codebook_trainer_destroy(uint8_t* trainer) {
  kvq_codebook_trainer_destroy((kvq_codebook_trainer*)trainer);
}

static inline void kvq_go_kvq_centres_trainer_options_init(uint8_t* it) {
  kvq_centres_trainer_options_init((kvq_centres_trainer_options*)it, sizeof(kvq_centres_trainer_options));
}

static inline kvq_status kvq_go_kvq_centres_trainer_create(uint8_t* context, int32_t options_given, int32_t options_n_layers, int32_t options_kv_heads, int32_t options_head_dim, kvq_rope options_rope, int32_t options_key_centres, int32_t options_value_centres, int32_t options_rounds, uint64_t options_seed, uint64_t options_model_id, uint64_t options_max_bytes, const char* options_note, uint8_t* result, kvq_error* error) {
  kvq_centres_trainer_options options = {0};
  options.struct_size = sizeof(kvq_centres_trainer_options);
  options.n_layers = options_n_layers;
  options.kv_heads = options_kv_heads;
  options.head_dim = options_head_dim;
  options.rope = options_rope;
  options.key_centres = options_key_centres;
  options.value_centres = options_value_centres;
  options.rounds = options_rounds;
  options.seed = options_seed;
  options.model_id = options_model_id;
  options.max_bytes = options_max_bytes;
  options.note = options_note;
  return kvq_centres_trainer_create((kvq_context*)context, options_given ? &options : NULL, (kvq_centres_trainer**)result, error);
}

static inline kvq_status kvq_go_kvq_centres_trainer_add(uint8_t* trainer, int32_t layer, int32_t n, uint8_t* k, uint8_t* v, kvq_dtype dtype, kvq_error* error) {
  return kvq_centres_trainer_add((kvq_centres_trainer*)trainer, layer, n, (const void*)k, (const void*)v, dtype, error);
}

static inline kvq_status kvq_go_kvq_centres_trainer_run(uint8_t* trainer, int32_t layer, kvq_progress_hook progress, uintptr_t user, kvq_error* error) {
  return kvq_centres_trainer_run((kvq_centres_trainer*)trainer, layer, progress, (void*)user, error);
}

static inline kvq_status kvq_go_kvq_centres_trainer_result(uint8_t* trainer, uint8_t* result, kvq_error* error) {
  return kvq_centres_trainer_result((const kvq_centres_trainer*)trainer, (kvq_centres**)result, error);
}

static inline void kvq_go_kvq_centres_trainer_destroy(uint8_t* trainer) {
  kvq_centres_trainer_destroy((kvq_centres_trainer*)trainer);
}

static inline void kvq_go_kvq_router_trainer_options_init(uint8_t* it) {
  kvq_router_trainer_options_init((kvq_router_trainer_options*)it, sizeof(kvq_router_trainer_options));
}

static inline kvq_status kvq_go_kvq_router_trainer_create(uint8_t* context, int32_t cache_given, int32_t cache_n_layers, int32_t cache_q_heads, int32_t cache_kv_heads, int32_t cache_head_dim, kvq_rope cache_rope, int32_t cache_rotary_dim, float cache_rope_base, const float* cache_inv_freq, float cache_scale, int32_t cache_reserved, uint64_t cache_max_bytes, uint64_t cache_model_id, uint8_t* cache_codebook, uint8_t* cache_router, uint8_t* cache_centres, uint8_t* policy, int32_t options_given, kvq_router_method options_method, int32_t options_sharing, int32_t options_epochs, double options_mean_bits, double options_loss_weight, double options_learning_rate, uint64_t options_seed, uint64_t options_max_bytes, const char* options_note, uint8_t* result, kvq_error* error) {
  kvq_cache_options cache = {0};
  cache.struct_size = sizeof(kvq_cache_options);
  cache.n_layers = cache_n_layers;
  cache.q_heads = cache_q_heads;
  cache.kv_heads = cache_kv_heads;
  cache.head_dim = cache_head_dim;
  cache.rope = cache_rope;
  cache.rotary_dim = cache_rotary_dim;
  cache.rope_base = cache_rope_base;
  cache.inv_freq = cache_inv_freq;
  cache.scale = cache_scale;
  cache.reserved = cache_reserved;
  cache.max_bytes = cache_max_bytes;
  cache.model_id = cache_model_id;
  cache.codebook = (const kvq_codebook*)cache_codebook;
  cache.router = (const kvq_router*)cache_router;
  cache.centres = (const kvq_centres*)cache_centres;
  kvq_router_trainer_options options = {0};
  options.struct_size = sizeof(kvq_router_trainer_options);
  options.method = options_method;
  options.sharing = options_sharing;
  options.epochs = options_epochs;
  options.mean_bits = options_mean_bits;
  options.loss_weight = options_loss_weight;
  options.learning_rate = options_learning_rate;
  options.seed = options_seed;
  options.max_bytes = options_max_bytes;
  options.note = options_note;
  return kvq_router_trainer_create((kvq_context*)context, cache_given ? &cache : NULL, (const kvq_policy*)policy, options_given ? &options : NULL, (kvq_router_trainer**)result, error);
}

static inline kvq_status kvq_go_kvq_router_trainer_add(uint8_t* trainer, int32_t layer, int32_t n, uint8_t* q, uint8_t* k, uint8_t* v, kvq_dtype dtype, kvq_error* error) {
  return kvq_router_trainer_add((kvq_router_trainer*)trainer, layer, n, (const void*)q, (const void*)k, (const void*)v, dtype, error);
}

static inline kvq_status kvq_go_kvq_router_trainer_run(uint8_t* trainer, double loss, kvq_progress_hook progress, uintptr_t user, kvq_error* error) {
  return kvq_router_trainer_run((kvq_router_trainer*)trainer, loss, progress, (void*)user, error);
}

static inline kvq_status kvq_go_kvq_router_trainer_result(uint8_t* trainer, uint8_t* result, kvq_error* error) {
  return kvq_router_trainer_result((const kvq_router_trainer*)trainer, (kvq_router**)result, error);
}

static inline void kvq_go_kvq_router_trainer_destroy(uint8_t* trainer) {
  kvq_router_trainer_destroy((kvq_router_trainer*)trainer);
}

static inline void kvq_go_kvq_plan_problem_init(uint8_t* it) {
  kvq_plan_problem_init((kvq_plan_problem*)it, sizeof(kvq_plan_problem));
}

static inline kvq_status kvq_go_kvq_plan_solve(uint8_t* context, int32_t problem_given, kvq_plan_goal problem_goal, int32_t problem_n_choices, int32_t problem_reserved, const int32_t* problem_option_counts, const double* problem_bytes, const double* problem_seconds, const double* problem_loss, double problem_max_bytes, double problem_max_seconds, double problem_max_loss, double problem_tolerance, int32_t* chosen, int32_t n, kvq_plan_costs* costs, kvq_error* error) {
  kvq_plan_problem problem = {0};
  problem.struct_size = sizeof(kvq_plan_problem);
  problem.goal = problem_goal;
  problem.n_choices = problem_n_choices;
  problem.reserved = problem_reserved;
  problem.option_counts = problem_option_counts;
  problem.bytes = problem_bytes;
  problem.seconds = problem_seconds;
  problem.loss = problem_loss;
  problem.max_bytes = problem_max_bytes;
  problem.max_seconds = problem_max_seconds;
  problem.max_loss = problem_max_loss;
  problem.tolerance = problem_tolerance;
  return kvq_plan_solve((kvq_context*)context, problem_given ? &problem : NULL, chosen, n, costs, error);
}

static inline void kvq_go_kvq_plan_fusion_options_init(uint8_t* it) {
  kvq_plan_fusion_options_init((kvq_plan_fusion_options*)it, sizeof(kvq_plan_fusion_options));
}

static inline kvq_status kvq_go_kvq_plan_fusion_create(uint8_t* context, int32_t options_given, int32_t options_n_members, int32_t options_n_schemes, int32_t options_n_groups, const int32_t* options_groups, const double* options_bytes, const double* options_loss, const double* options_seconds, uint8_t* result, kvq_error* error) {
  kvq_plan_fusion_options options = {0};
  options.struct_size = sizeof(kvq_plan_fusion_options);
  options.n_members = options_n_members;
  options.n_schemes = options_n_schemes;
  options.n_groups = options_n_groups;
  options.groups = options_groups;
  options.bytes = options_bytes;
  options.loss = options_loss;
  options.seconds = options_seconds;
  return kvq_plan_fusion_create((kvq_context*)context, options_given ? &options : NULL, (kvq_plan_fusion**)result, error);
}

static inline kvq_status kvq_go_kvq_plan_fusion_describe(uint8_t* fusion, kvq_plan_fusion_info* info, kvq_error* error) {
  return kvq_plan_fusion_describe((const kvq_plan_fusion*)fusion, info, error);
}

static inline kvq_status kvq_go_kvq_plan_fusion_describe_grouping(uint8_t* fusion, int32_t index, kvq_plan_grouping_info* info, kvq_error* error) {
  return kvq_plan_fusion_describe_grouping((const kvq_plan_fusion*)fusion, index, info, error);
}

static inline void kvq_go_kvq_plan_fusion_destroy(uint8_t* fusion) {
  kvq_plan_fusion_destroy((kvq_plan_fusion*)fusion);
}

static inline kvq_status kvq_go_kvq_plan_rates(int32_t n, const double* weights, const double* sensitivities, double least_bits, double total_bits, double* bits, double* loss, kvq_error* error) {
  return kvq_plan_rates(n, weights, sensitivities, least_bits, total_bits, bits, loss, error);
}

static inline void kvq_go_kvq_plan_content_init(uint8_t* it) {
  kvq_plan_content_init((kvq_plan_content*)it, sizeof(kvq_plan_content));
}

static inline kvq_status kvq_go_kvq_plan_create(uint8_t* context, int32_t content_given, int32_t content_n_matrices, uint8_t* content_names, uint8_t* content_schemes, uint8_t* content_policy, double content_bytes, double content_seconds, double content_loss, const char* content_note, uint8_t* result, kvq_error* error) {
  kvq_plan_content content = {0};
  content.struct_size = sizeof(kvq_plan_content);
  content.n_matrices = content_n_matrices;
  content.names = (const char* const*)content_names;
  content.schemes = (const char* const*)content_schemes;
  content.policy = (const kvq_policy*)content_policy;
  content.bytes = content_bytes;
  content.seconds = content_seconds;
  content.loss = content_loss;
  content.note = content_note;
  return kvq_plan_create((kvq_context*)context, content_given ? &content : NULL, (kvq_plan**)result, error);
}

static inline kvq_status kvq_go_kvq_plan_load(uint8_t* context, const char* yaml, size_t length, uint8_t* result, kvq_error* error) {
  return kvq_plan_load((kvq_context*)context, yaml, length, (kvq_plan**)result, error);
}

static inline kvq_status kvq_go_kvq_plan_save(uint8_t* plan, char* buffer, size_t capacity, size_t* size, kvq_error* error) {
  return kvq_plan_save((const kvq_plan*)plan, buffer, capacity, size, error);
}

static inline kvq_status kvq_go_kvq_plan_describe(uint8_t* plan, uint8_t* info, kvq_error* error) {
  return kvq_plan_describe((const kvq_plan*)plan, (kvq_plan_info*)info, error);
}

static inline kvq_status kvq_go_kvq_plan_describe_matrix(uint8_t* plan, int32_t index, uint8_t* info, kvq_error* error) {
  return kvq_plan_describe_matrix((const kvq_plan*)plan, index, (kvq_plan_matrix_info*)info, error);
}

static inline const char* kvq_go_kvq_plan_scheme(uint8_t* plan, const char* name) {
  return kvq_plan_scheme((const kvq_plan*)plan, name);
}

static inline kvq_status kvq_go_kvq_plan_policy(uint8_t* plan, uint8_t* result, kvq_error* error) {
  return kvq_plan_policy((const kvq_plan*)plan, (kvq_policy**)result, error);
}

static inline void kvq_go_kvq_plan_destroy(uint8_t* plan) {
  kvq_plan_destroy((kvq_plan*)plan);
}

#endif
