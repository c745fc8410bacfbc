/* Made by bindings/generate/generate.py from include/kvq.h; edit that instead. */
/* The binary layout of every public struct on LP64 and every number of the API: neither may ever change. */
#include "check.h"
#include "suites.h"

#include <stddef.h>

#define OFFSET(type, member, expected) CHECK(offsetof(type, member) == (expected))

static void lp64_offsets(void) {
  CHECK(sizeof(kvq_error) == 268);
  OFFSET(kvq_error, struct_size, 0);
  OFFSET(kvq_error, code, 4);
  OFFSET(kvq_error, backend_code, 8);
  OFFSET(kvq_error, message, 12);

  CHECK(sizeof(kvq_context_options) == 152);
  OFFSET(kvq_context_options, struct_size, 0);
  OFFSET(kvq_context_options, device, 4);
  OFFSET(kvq_context_options, n_threads, 8);
  OFFSET(kvq_context_options, reserved, 12);
  OFFSET(kvq_context_options, max_bytes, 16);
  OFFSET(kvq_context_options, cpu_isa, 24);
  OFFSET(kvq_context_options, allocate, 32);
  OFFSET(kvq_context_options, free, 40);
  OFFSET(kvq_context_options, allocator_user, 48);
  OFFSET(kvq_context_options, log, 56);
  OFFSET(kvq_context_options, log_user, 64);
  OFFSET(kvq_context_options, parallel_for, 72);
  OFFSET(kvq_context_options, parallel_for_user, 80);
  OFFSET(kvq_context_options, device_index, 88);
  OFFSET(kvq_context_options, reserved2, 92);
  OFFSET(kvq_context_options, plugin, 96);
  OFFSET(kvq_context_options, stream, 104);
  OFFSET(kvq_context_options, device_allocate, 112);
  OFFSET(kvq_context_options, device_free, 120);
  OFFSET(kvq_context_options, device_allocator_user, 128);
  OFFSET(kvq_context_options, released, 136);
  OFFSET(kvq_context_options, released_user, 144);

  CHECK(sizeof(kvq_context_info) == 56);
  OFFSET(kvq_context_info, struct_size, 0);
  OFFSET(kvq_context_info, device, 4);
  OFFSET(kvq_context_info, n_threads, 8);
  OFFSET(kvq_context_info, reserved, 12);
  OFFSET(kvq_context_info, backend, 16);
  OFFSET(kvq_context_info, isa, 24);
  OFFSET(kvq_context_info, bytes, 32);
  OFFSET(kvq_context_info, peak_bytes, 40);
  OFFSET(kvq_context_info, max_bytes, 48);

  CHECK(sizeof(kvq_device_info) == 152);
  OFFSET(kvq_device_info, struct_size, 0);
  OFFSET(kvq_device_info, n_devices, 4);
  OFFSET(kvq_device_info, name, 8);
  OFFSET(kvq_device_info, compute_capability, 136);
  OFFSET(kvq_device_info, driver_version, 140);
  OFFSET(kvq_device_info, memory_bytes, 144);

  CHECK(sizeof(kvq_policy_info) == 16);
  OFFSET(kvq_policy_info, struct_size, 0);
  OFFSET(kvq_policy_info, eviction_budget, 4);
  OFFSET(kvq_policy_info, eviction_window, 8);
  OFFSET(kvq_policy_info, reserved, 12);

  CHECK(sizeof(kvq_codebook_info) == 120);
  OFFSET(kvq_codebook_info, struct_size, 0);
  OFFSET(kvq_codebook_info, n_layers, 4);
  OFFSET(kvq_codebook_info, layers_present, 8);
  OFFSET(kvq_codebook_info, kv_heads, 12);
  OFFSET(kvq_codebook_info, head_dim, 16);
  OFFSET(kvq_codebook_info, rope, 20);
  OFFSET(kvq_codebook_info, key_stages, 24);
  OFFSET(kvq_codebook_info, key_codes, 28);
  OFFSET(kvq_codebook_info, key_group, 32);
  OFFSET(kvq_codebook_info, key_norms, 36);
  OFFSET(kvq_codebook_info, value_bits, 40);
  OFFSET(kvq_codebook_info, value_scope, 44);
  OFFSET(kvq_codebook_info, key_true_bits, 48);
  OFFSET(kvq_codebook_info, value_true_bits, 56);
  OFFSET(kvq_codebook_info, key_error, 64);
  OFFSET(kvq_codebook_info, value_error, 72);
  OFFSET(kvq_codebook_info, tokens, 80);
  OFFSET(kvq_codebook_info, seed, 88);
  OFFSET(kvq_codebook_info, model_id, 96);
  OFFSET(kvq_codebook_info, bytes, 104);
  OFFSET(kvq_codebook_info, note, 112);

  CHECK(sizeof(kvq_codebook_layer_info) == 544);
  OFFSET(kvq_codebook_layer_info, struct_size, 0);
  OFFSET(kvq_codebook_layer_info, present, 4);
  OFFSET(kvq_codebook_layer_info, tokens, 8);
  OFFSET(kvq_codebook_layer_info, key_error, 16);
  OFFSET(kvq_codebook_layer_info, value_error, 24);
  OFFSET(kvq_codebook_layer_info, key_stage_errors, 32);

  CHECK(sizeof(kvq_centres_info) == 88);
  OFFSET(kvq_centres_info, struct_size, 0);
  OFFSET(kvq_centres_info, n_layers, 4);
  OFFSET(kvq_centres_info, layers_present, 8);
  OFFSET(kvq_centres_info, kv_heads, 12);
  OFFSET(kvq_centres_info, head_dim, 16);
  OFFSET(kvq_centres_info, rope, 20);
  OFFSET(kvq_centres_info, key_centres, 24);
  OFFSET(kvq_centres_info, value_centres, 28);
  OFFSET(kvq_centres_info, key_residual, 32);
  OFFSET(kvq_centres_info, value_residual, 40);
  OFFSET(kvq_centres_info, tokens, 48);
  OFFSET(kvq_centres_info, seed, 56);
  OFFSET(kvq_centres_info, model_id, 64);
  OFFSET(kvq_centres_info, bytes, 72);
  OFFSET(kvq_centres_info, note, 80);

  CHECK(sizeof(kvq_centres_layer_info) == 32);
  OFFSET(kvq_centres_layer_info, struct_size, 0);
  OFFSET(kvq_centres_layer_info, present, 4);
  OFFSET(kvq_centres_layer_info, tokens, 8);
  OFFSET(kvq_centres_layer_info, key_residual, 16);
  OFFSET(kvq_centres_layer_info, value_residual, 24);

  CHECK(sizeof(kvq_router_info) == 120);
  OFFSET(kvq_router_info, struct_size, 0);
  OFFSET(kvq_router_info, n_layers, 4);
  OFFSET(kvq_router_info, kv_heads, 8);
  OFFSET(kvq_router_info, head_dim, 12);
  OFFSET(kvq_router_info, rope, 16);
  OFFSET(kvq_router_info, sharing, 20);
  OFFSET(kvq_router_info, groups, 24);
  OFFSET(kvq_router_info, n_experts, 28);
  OFFSET(kvq_router_info, method, 32);
  OFFSET(kvq_router_info, reserved, 36);
  OFFSET(kvq_router_info, loss_weight, 40);
  OFFSET(kvq_router_info, mean_bits, 48);
  OFFSET(kvq_router_info, tolerance, 56);
  OFFSET(kvq_router_info, accuracy, 64);
  OFFSET(kvq_router_info, tokens, 72);
  OFFSET(kvq_router_info, seed, 80);
  OFFSET(kvq_router_info, model_id, 88);
  OFFSET(kvq_router_info, bytes, 96);
  OFFSET(kvq_router_info, experts, 104);
  OFFSET(kvq_router_info, note, 112);

  CHECK(sizeof(kvq_router_group_info) == 96);
  OFFSET(kvq_router_group_info, struct_size, 0);
  OFFSET(kvq_router_group_info, first_layer, 4);
  OFFSET(kvq_router_group_info, last_layer, 8);
  OFFSET(kvq_router_group_info, reserved, 12);
  OFFSET(kvq_router_group_info, mean_bits, 16);
  OFFSET(kvq_router_group_info, accuracy, 24);
  OFFSET(kvq_router_group_info, shares, 32);

  CHECK(sizeof(kvq_cache_options) == 88);
  OFFSET(kvq_cache_options, struct_size, 0);
  OFFSET(kvq_cache_options, n_layers, 4);
  OFFSET(kvq_cache_options, q_heads, 8);
  OFFSET(kvq_cache_options, kv_heads, 12);
  OFFSET(kvq_cache_options, head_dim, 16);
  OFFSET(kvq_cache_options, rope, 20);
  OFFSET(kvq_cache_options, rotary_dim, 24);
  OFFSET(kvq_cache_options, rope_base, 28);
  OFFSET(kvq_cache_options, inv_freq, 32);
  OFFSET(kvq_cache_options, scale, 40);
  OFFSET(kvq_cache_options, reserved, 44);
  OFFSET(kvq_cache_options, max_bytes, 48);
  OFFSET(kvq_cache_options, model_id, 56);
  OFFSET(kvq_cache_options, codebook, 64);
  OFFSET(kvq_cache_options, router, 72);
  OFFSET(kvq_cache_options, centres, 80);

  CHECK(sizeof(kvq_cache_info) == 64);
  OFFSET(kvq_cache_info, struct_size, 0);
  OFFSET(kvq_cache_info, n_layers, 4);
  OFFSET(kvq_cache_info, q_heads, 8);
  OFFSET(kvq_cache_info, kv_heads, 12);
  OFFSET(kvq_cache_info, head_dim, 16);
  OFFSET(kvq_cache_info, rope, 20);
  OFFSET(kvq_cache_info, rotary_dim, 24);
  OFFSET(kvq_cache_info, scale, 28);
  OFFSET(kvq_cache_info, sink, 32);
  OFFSET(kvq_cache_info, recent, 36);
  OFFSET(kvq_cache_info, eviction_budget, 40);
  OFFSET(kvq_cache_info, eviction_window, 44);
  OFFSET(kvq_cache_info, max_bytes, 48);
  OFFSET(kvq_cache_info, model_id, 56);

  CHECK(sizeof(kvq_layer_info) == 264);
  OFFSET(kvq_layer_info, struct_size, 0);
  OFFSET(kvq_layer_info, n_formats, 4);
  OFFSET(kvq_layer_info, formats, 8);

  CHECK(sizeof(kvq_append_batch) == 88);
  OFFSET(kvq_append_batch, struct_size, 0);
  OFFSET(kvq_append_batch, n_sequences, 4);
  OFFSET(kvq_append_batch, sequences, 8);
  OFFSET(kvq_append_batch, token_counts, 16);
  OFFSET(kvq_append_batch, positions, 24);
  OFFSET(kvq_append_batch, k, 32);
  OFFSET(kvq_append_batch, v, 40);
  OFFSET(kvq_append_batch, dtype, 48);
  OFFSET(kvq_append_batch, reserved, 52);
  OFFSET(kvq_append_batch, k_token_stride, 56);
  OFFSET(kvq_append_batch, k_head_stride, 64);
  OFFSET(kvq_append_batch, v_token_stride, 72);
  OFFSET(kvq_append_batch, v_head_stride, 80);

  CHECK(sizeof(kvq_compress_options) == 24);
  OFFSET(kvq_compress_options, struct_size, 0);
  OFFSET(kvq_compress_options, budget, 4);
  OFFSET(kvq_compress_options, kept, 8);
  OFFSET(kvq_compress_options, bytes_freed, 16);

  CHECK(sizeof(kvq_attend_batch) == 112);
  OFFSET(kvq_attend_batch, struct_size, 0);
  OFFSET(kvq_attend_batch, n_sequences, 4);
  OFFSET(kvq_attend_batch, sequences, 8);
  OFFSET(kvq_attend_batch, query_counts, 16);
  OFFSET(kvq_attend_batch, query_positions, 24);
  OFFSET(kvq_attend_batch, q, 32);
  OFFSET(kvq_attend_batch, q_dtype, 40);
  OFFSET(kvq_attend_batch, output_dtype, 44);
  OFFSET(kvq_attend_batch, output, 48);
  OFFSET(kvq_attend_batch, sliding_window, 56);
  OFFSET(kvq_attend_batch, logit_softcap, 60);
  OFFSET(kvq_attend_batch, q_token_stride, 64);
  OFFSET(kvq_attend_batch, q_head_stride, 72);
  OFFSET(kvq_attend_batch, output_token_stride, 80);
  OFFSET(kvq_attend_batch, output_head_stride, 88);
  OFFSET(kvq_attend_batch, lse, 96);
  OFFSET(kvq_attend_batch, sinks, 104);

  CHECK(sizeof(kvq_usage) == 96);
  OFFSET(kvq_usage, struct_size, 0);
  OFFSET(kvq_usage, reserved, 4);
  OFFSET(kvq_usage, scalars, 8);
  OFFSET(kvq_usage, sealed_bytes, 16);
  OFFSET(kvq_usage, fp16_bytes, 24);
  OFFSET(kvq_usage, metadata_bytes, 32);
  OFFSET(kvq_usage, workspace_bytes, 40);
  OFFSET(kvq_usage, total_bytes, 48);
  OFFSET(kvq_usage, plain_fp16_bytes, 56);
  OFFSET(kvq_usage, sealed_pages, 64);
  OFFSET(kvq_usage, fp16_pages, 72);
  OFFSET(kvq_usage, shared_pages, 80);
  OFFSET(kvq_usage, bits_per_scalar, 88);

  CHECK(sizeof(qp_quantize_options) == 72);
  OFFSET(qp_quantize_options, struct_size, 0);
  OFFSET(qp_quantize_options, dtype, 4);
  OFFSET(qp_quantize_options, scheme, 8);
  OFFSET(qp_quantize_options, seed, 16);
  OFFSET(qp_quantize_options, hessian, 24);
  OFFSET(qp_quantize_options, rounding, 32);
  OFFSET(qp_quantize_options, reserved, 36);
  OFFSET(qp_quantize_options, damping, 40);
  OFFSET(qp_quantize_options, bias, 48);
  OFFSET(qp_quantize_options, progress, 56);
  OFFSET(qp_quantize_options, progress_user, 64);

  CHECK(sizeof(qp_matrix_info) == 64);
  OFFSET(qp_matrix_info, struct_size, 0);
  OFFSET(qp_matrix_info, has_bias, 4);
  OFFSET(qp_matrix_info, rows, 8);
  OFFSET(qp_matrix_info, columns, 16);
  OFFSET(qp_matrix_info, bytes, 24);
  OFFSET(qp_matrix_info, bits, 32);
  OFFSET(qp_matrix_info, error, 40);
  OFFSET(qp_matrix_info, proxy_error, 48);
  OFFSET(qp_matrix_info, scheme, 56);

  CHECK(sizeof(kvq_codebook_trainer_options) == 88);
  OFFSET(kvq_codebook_trainer_options, struct_size, 0);
  OFFSET(kvq_codebook_trainer_options, n_layers, 4);
  OFFSET(kvq_codebook_trainer_options, kv_heads, 8);
  OFFSET(kvq_codebook_trainer_options, head_dim, 12);
  OFFSET(kvq_codebook_trainer_options, rope, 16);
  OFFSET(kvq_codebook_trainer_options, key_stages, 20);
  OFFSET(kvq_codebook_trainer_options, key_codes, 24);
  OFFSET(kvq_codebook_trainer_options, key_group, 28);
  OFFSET(kvq_codebook_trainer_options, key_norms, 32);
  OFFSET(kvq_codebook_trainer_options, value_bits, 36);
  OFFSET(kvq_codebook_trainer_options, value_scope, 40);
  OFFSET(kvq_codebook_trainer_options, key_rounds, 44);
  OFFSET(kvq_codebook_trainer_options, value_rounds, 48);
  OFFSET(kvq_codebook_trainer_options, value_method, 52);
  OFFSET(kvq_codebook_trainer_options, seed, 56);
  OFFSET(kvq_codebook_trainer_options, model_id, 64);
  OFFSET(kvq_codebook_trainer_options, max_bytes, 72);
  OFFSET(kvq_codebook_trainer_options, note, 80);

  CHECK(sizeof(kvq_centres_trainer_options) == 64);
  OFFSET(kvq_centres_trainer_options, struct_size, 0);
  OFFSET(kvq_centres_trainer_options, n_layers, 4);
  OFFSET(kvq_centres_trainer_options, kv_heads, 8);
  OFFSET(kvq_centres_trainer_options, head_dim, 12);
  OFFSET(kvq_centres_trainer_options, rope, 16);
  OFFSET(kvq_centres_trainer_options, key_centres, 20);
  OFFSET(kvq_centres_trainer_options, value_centres, 24);
  OFFSET(kvq_centres_trainer_options, rounds, 28);
  OFFSET(kvq_centres_trainer_options, seed, 32);
  OFFSET(kvq_centres_trainer_options, model_id, 40);
  OFFSET(kvq_centres_trainer_options, max_bytes, 48);
  OFFSET(kvq_centres_trainer_options, note, 56);

  CHECK(sizeof(kvq_router_trainer_options) == 64);
  OFFSET(kvq_router_trainer_options, struct_size, 0);
  OFFSET(kvq_router_trainer_options, method, 4);
  OFFSET(kvq_router_trainer_options, sharing, 8);
  OFFSET(kvq_router_trainer_options, epochs, 12);
  OFFSET(kvq_router_trainer_options, mean_bits, 16);
  OFFSET(kvq_router_trainer_options, loss_weight, 24);
  OFFSET(kvq_router_trainer_options, learning_rate, 32);
  OFFSET(kvq_router_trainer_options, seed, 40);
  OFFSET(kvq_router_trainer_options, max_bytes, 48);
  OFFSET(kvq_router_trainer_options, note, 56);

  CHECK(sizeof(kvq_plan_problem) == 80);
  OFFSET(kvq_plan_problem, struct_size, 0);
  OFFSET(kvq_plan_problem, goal, 4);
  OFFSET(kvq_plan_problem, n_choices, 8);
  OFFSET(kvq_plan_problem, reserved, 12);
  OFFSET(kvq_plan_problem, option_counts, 16);
  OFFSET(kvq_plan_problem, bytes, 24);
  OFFSET(kvq_plan_problem, seconds, 32);
  OFFSET(kvq_plan_problem, loss, 40);
  OFFSET(kvq_plan_problem, max_bytes, 48);
  OFFSET(kvq_plan_problem, max_seconds, 56);
  OFFSET(kvq_plan_problem, max_loss, 64);
  OFFSET(kvq_plan_problem, tolerance, 72);

  CHECK(sizeof(kvq_plan_costs) == 40);
  OFFSET(kvq_plan_costs, struct_size, 0);
  OFFSET(kvq_plan_costs, reserved, 4);
  OFFSET(kvq_plan_costs, bytes, 8);
  OFFSET(kvq_plan_costs, seconds, 16);
  OFFSET(kvq_plan_costs, loss, 24);
  OFFSET(kvq_plan_costs, bound, 32);

  CHECK(sizeof(kvq_plan_fusion_options) == 48);
  OFFSET(kvq_plan_fusion_options, struct_size, 0);
  OFFSET(kvq_plan_fusion_options, n_members, 4);
  OFFSET(kvq_plan_fusion_options, n_schemes, 8);
  OFFSET(kvq_plan_fusion_options, n_groups, 12);
  OFFSET(kvq_plan_fusion_options, groups, 16);
  OFFSET(kvq_plan_fusion_options, bytes, 24);
  OFFSET(kvq_plan_fusion_options, loss, 32);
  OFFSET(kvq_plan_fusion_options, seconds, 40);

  CHECK(sizeof(kvq_plan_fusion_info) == 16);
  OFFSET(kvq_plan_fusion_info, struct_size, 0);
  OFFSET(kvq_plan_fusion_info, n_members, 4);
  OFFSET(kvq_plan_fusion_info, n_groupings, 8);
  OFFSET(kvq_plan_fusion_info, reserved, 12);

  CHECK(sizeof(kvq_plan_grouping_info) == 64);
  OFFSET(kvq_plan_grouping_info, struct_size, 0);
  OFFSET(kvq_plan_grouping_info, reserved, 4);
  OFFSET(kvq_plan_grouping_info, bytes, 8);
  OFFSET(kvq_plan_grouping_info, seconds, 16);
  OFFSET(kvq_plan_grouping_info, loss, 24);
  OFFSET(kvq_plan_grouping_info, groups, 32);
  OFFSET(kvq_plan_grouping_info, schemes, 48);

  CHECK(sizeof(kvq_plan_content) == 64);
  OFFSET(kvq_plan_content, struct_size, 0);
  OFFSET(kvq_plan_content, n_matrices, 4);
  OFFSET(kvq_plan_content, names, 8);
  OFFSET(kvq_plan_content, schemes, 16);
  OFFSET(kvq_plan_content, policy, 24);
  OFFSET(kvq_plan_content, bytes, 32);
  OFFSET(kvq_plan_content, seconds, 40);
  OFFSET(kvq_plan_content, loss, 48);
  OFFSET(kvq_plan_content, note, 56);

  CHECK(sizeof(kvq_plan_info) == 48);
  OFFSET(kvq_plan_info, struct_size, 0);
  OFFSET(kvq_plan_info, n_matrices, 4);
  OFFSET(kvq_plan_info, has_policy, 8);
  OFFSET(kvq_plan_info, reserved, 12);
  OFFSET(kvq_plan_info, bytes, 16);
  OFFSET(kvq_plan_info, seconds, 24);
  OFFSET(kvq_plan_info, loss, 32);
  OFFSET(kvq_plan_info, note, 40);

  CHECK(sizeof(kvq_plan_matrix_info) == 24);
  OFFSET(kvq_plan_matrix_info, struct_size, 0);
  OFFSET(kvq_plan_matrix_info, reserved, 4);
  OFFSET(kvq_plan_matrix_info, name, 8);
  OFFSET(kvq_plan_matrix_info, scheme, 16);
}

static void numbers(void) {
  CHECK(KVQ_OK == 0);
  CHECK(KVQ_E_ARGUMENT == -1);
  CHECK(KVQ_E_MEMORY == -2);
  CHECK(KVQ_E_LIMIT == -3);
  CHECK(KVQ_E_STATE == -4);
  CHECK(KVQ_E_FORMAT == -5);
  CHECK(KVQ_E_MISMATCH == -6);
  CHECK(KVQ_E_UNSUPPORTED == -7);
  CHECK(KVQ_E_BACKEND == -8);
  CHECK(KVQ_E_INTERNAL == -9);
  CHECK(KVQ_E_CANCELLED == -10);
  CHECK(KVQ_E_BUFFER_SIZE == -11);
  CHECK(sizeof(kvq_status) == 4);

  CHECK(KVQ_F32 == 0);
  CHECK(KVQ_F16 == 1);
  CHECK(KVQ_BF16 == 2);
  CHECK(sizeof(kvq_dtype) == 4);

  CHECK(KVQ_DEVICE_CPU == 0);
  CHECK(KVQ_DEVICE_CUDA == 1);
  CHECK(sizeof(kvq_device) == 4);

  CHECK(KVQ_ROPE_NONE == 0);
  CHECK(KVQ_ROPE_HALF == 1);
  CHECK(KVQ_ROPE_INTERLEAVED == 2);
  CHECK(sizeof(kvq_rope) == 4);

  CHECK(KVQ_LOG_ERROR == 0);
  CHECK(KVQ_LOG_WARNING == 1);
  CHECK(KVQ_LOG_INFO == 2);
  CHECK(sizeof(kvq_log_level) == 4);

  CHECK(KVQ_PAGE_SLOTS == 32);

  CHECK(KVQ_SCOPE_LAYER == 0);
  CHECK(KVQ_SCOPE_HEAD == 1);
  CHECK(sizeof(kvq_scope) == 4);

  CHECK(KVQ_MAX_KEY_STAGES == 64);
  CHECK(KVQ_MAX_EXPERTS == 8);
  CHECK(KVQ_MAX_FUSED == 4);
  CHECK(KVQ_FORMATS_SIZE == 256);

  CHECK(KVQ_ROUTER_LABEL == 0);
  CHECK(KVQ_ROUTER_PAPER == 1);
  CHECK(sizeof(kvq_router_method) == 4);

  CHECK(QP_ROUNDING_LDLQ == 0);
  CHECK(QP_ROUNDING_NEAREST == 1);
  CHECK(sizeof(qp_rounding) == 4);

  CHECK(KVQ_VALUES_LEAST_SQUARES == 0);
  CHECK(KVQ_VALUES_NETWORK == 1);
  CHECK(sizeof(kvq_value_method) == 4);

  CHECK(KVQ_PLAN_BYTES == 0);
  CHECK(KVQ_PLAN_SECONDS == 1);
  CHECK(KVQ_PLAN_LOSS == 2);
  CHECK(sizeof(kvq_plan_goal) == 4);
}

void test_layout(void) {
  if (sizeof(void*) == 8) lp64_offsets();
  numbers();
}
