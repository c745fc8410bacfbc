// Made by bindings/generate/generate.py from include/kvq.h; edit that instead.
//! Where the fields of every struct are: as the library was compiled with.
#![cfg(target_pointer_width = "64")]

use kvq_sys::*;
use std::mem::MaybeUninit;
use std::ptr::addr_of;

macro_rules! offset {
    ($type:ty, $field:ident) => {{
        let it = MaybeUninit::<$type>::uninit();
        // SAFETY: addr_of reads nothing.
        unsafe { addr_of!((*it.as_ptr()).$field) as usize - it.as_ptr() as usize }
    }};
}

#[test]
fn offsets_of_kvq_error() {
    assert_eq!(offset!(kvq_error, struct_size), 0);
    assert_eq!(offset!(kvq_error, code), 4);
    assert_eq!(offset!(kvq_error, backend_code), 8);
    assert_eq!(offset!(kvq_error, message), 12);
}

#[test]
fn offsets_of_kvq_context_options() {
    assert_eq!(offset!(kvq_context_options, struct_size), 0);
    assert_eq!(offset!(kvq_context_options, device), 4);
    assert_eq!(offset!(kvq_context_options, n_threads), 8);
    assert_eq!(offset!(kvq_context_options, reserved), 12);
    assert_eq!(offset!(kvq_context_options, max_bytes), 16);
    assert_eq!(offset!(kvq_context_options, cpu_isa), 24);
    assert_eq!(offset!(kvq_context_options, allocate), 32);
    assert_eq!(offset!(kvq_context_options, free), 40);
    assert_eq!(offset!(kvq_context_options, allocator_user), 48);
    assert_eq!(offset!(kvq_context_options, log), 56);
    assert_eq!(offset!(kvq_context_options, log_user), 64);
    assert_eq!(offset!(kvq_context_options, parallel_for), 72);
    assert_eq!(offset!(kvq_context_options, parallel_for_user), 80);
    assert_eq!(offset!(kvq_context_options, device_index), 88);
    assert_eq!(offset!(kvq_context_options, reserved2), 92);
    assert_eq!(offset!(kvq_context_options, plugin), 96);
    assert_eq!(offset!(kvq_context_options, stream), 104);
    assert_eq!(offset!(kvq_context_options, device_allocate), 112);
    assert_eq!(offset!(kvq_context_options, device_free), 120);
    assert_eq!(offset!(kvq_context_options, device_allocator_user), 128);
    assert_eq!(offset!(kvq_context_options, released), 136);
    assert_eq!(offset!(kvq_context_options, released_user), 144);
}

#[test]
fn offsets_of_kvq_context_info() {
    assert_eq!(offset!(kvq_context_info, struct_size), 0);
    assert_eq!(offset!(kvq_context_info, device), 4);
    assert_eq!(offset!(kvq_context_info, n_threads), 8);
    assert_eq!(offset!(kvq_context_info, reserved), 12);
    assert_eq!(offset!(kvq_context_info, backend), 16);
    assert_eq!(offset!(kvq_context_info, isa), 24);
    assert_eq!(offset!(kvq_context_info, bytes), 32);
    assert_eq!(offset!(kvq_context_info, peak_bytes), 40);
    assert_eq!(offset!(kvq_context_info, max_bytes), 48);
}

#[test]
fn offsets_of_kvq_device_info() {
    assert_eq!(offset!(kvq_device_info, struct_size), 0);
    assert_eq!(offset!(kvq_device_info, n_devices), 4);
    assert_eq!(offset!(kvq_device_info, name), 8);
    assert_eq!(offset!(kvq_device_info, compute_capability), 136);
    assert_eq!(offset!(kvq_device_info, driver_version), 140);
    assert_eq!(offset!(kvq_device_info, memory_bytes), 144);
}

#[test]
fn offsets_of_kvq_policy_info() {
    assert_eq!(offset!(kvq_policy_info, struct_size), 0);
    assert_eq!(offset!(kvq_policy_info, eviction_budget), 4);
    assert_eq!(offset!(kvq_policy_info, eviction_window), 8);
    assert_eq!(offset!(kvq_policy_info, reserved), 12);
}

#[test]
fn offsets_of_kvq_codebook_info() {
    assert_eq!(offset!(kvq_codebook_info, struct_size), 0);
    assert_eq!(offset!(kvq_codebook_info, n_layers), 4);
    assert_eq!(offset!(kvq_codebook_info, layers_present), 8);
    assert_eq!(offset!(kvq_codebook_info, kv_heads), 12);
    assert_eq!(offset!(kvq_codebook_info, head_dim), 16);
    assert_eq!(offset!(kvq_codebook_info, rope), 20);
    assert_eq!(offset!(kvq_codebook_info, key_stages), 24);
    assert_eq!(offset!(kvq_codebook_info, key_codes), 28);
    assert_eq!(offset!(kvq_codebook_info, key_group), 32);
    assert_eq!(offset!(kvq_codebook_info, key_norms), 36);
    assert_eq!(offset!(kvq_codebook_info, value_bits), 40);
    assert_eq!(offset!(kvq_codebook_info, value_scope), 44);
    assert_eq!(offset!(kvq_codebook_info, key_true_bits), 48);
    assert_eq!(offset!(kvq_codebook_info, value_true_bits), 56);
    assert_eq!(offset!(kvq_codebook_info, key_error), 64);
    assert_eq!(offset!(kvq_codebook_info, value_error), 72);
    assert_eq!(offset!(kvq_codebook_info, tokens), 80);
    assert_eq!(offset!(kvq_codebook_info, seed), 88);
    assert_eq!(offset!(kvq_codebook_info, model_id), 96);
    assert_eq!(offset!(kvq_codebook_info, bytes), 104);
    assert_eq!(offset!(kvq_codebook_info, note), 112);
}

#[test]
fn offsets_of_kvq_codebook_layer_info() {
    assert_eq!(offset!(kvq_codebook_layer_info, struct_size), 0);
    assert_eq!(offset!(kvq_codebook_layer_info, present), 4);
    assert_eq!(offset!(kvq_codebook_layer_info, tokens), 8);
    assert_eq!(offset!(kvq_codebook_layer_info, key_error), 16);
    assert_eq!(offset!(kvq_codebook_layer_info, value_error), 24);
    assert_eq!(offset!(kvq_codebook_layer_info, key_stage_errors), 32);
}

#[test]
fn offsets_of_kvq_centres_info() {
    assert_eq!(offset!(kvq_centres_info, struct_size), 0);
    assert_eq!(offset!(kvq_centres_info, n_layers), 4);
    assert_eq!(offset!(kvq_centres_info, layers_present), 8);
    assert_eq!(offset!(kvq_centres_info, kv_heads), 12);
    assert_eq!(offset!(kvq_centres_info, head_dim), 16);
    assert_eq!(offset!(kvq_centres_info, rope), 20);
    assert_eq!(offset!(kvq_centres_info, key_centres), 24);
    assert_eq!(offset!(kvq_centres_info, value_centres), 28);
    assert_eq!(offset!(kvq_centres_info, key_residual), 32);
    assert_eq!(offset!(kvq_centres_info, value_residual), 40);
    assert_eq!(offset!(kvq_centres_info, tokens), 48);
    assert_eq!(offset!(kvq_centres_info, seed), 56);
    assert_eq!(offset!(kvq_centres_info, model_id), 64);
    assert_eq!(offset!(kvq_centres_info, bytes), 72);
    assert_eq!(offset!(kvq_centres_info, note), 80);
}

#[test]
fn offsets_of_kvq_centres_layer_info() {
    assert_eq!(offset!(kvq_centres_layer_info, struct_size), 0);
    assert_eq!(offset!(kvq_centres_layer_info, present), 4);
    assert_eq!(offset!(kvq_centres_layer_info, tokens), 8);
    assert_eq!(offset!(kvq_centres_layer_info, key_residual), 16);
    assert_eq!(offset!(kvq_centres_layer_info, value_residual), 24);
}

#[test]
fn offsets_of_kvq_router_info() {
    assert_eq!(offset!(kvq_router_info, struct_size), 0);
    assert_eq!(offset!(kvq_router_info, n_layers), 4);
    assert_eq!(offset!(kvq_router_info, kv_heads), 8);
    assert_eq!(offset!(kvq_router_info, head_dim), 12);
    assert_eq!(offset!(kvq_router_info, rope), 16);
    assert_eq!(offset!(kvq_router_info, sharing), 20);
    assert_eq!(offset!(kvq_router_info, groups), 24);
    assert_eq!(offset!(kvq_router_info, n_experts), 28);
    assert_eq!(offset!(kvq_router_info, method), 32);
    assert_eq!(offset!(kvq_router_info, reserved), 36);
    assert_eq!(offset!(kvq_router_info, loss_weight), 40);
    assert_eq!(offset!(kvq_router_info, mean_bits), 48);
    assert_eq!(offset!(kvq_router_info, tolerance), 56);
    assert_eq!(offset!(kvq_router_info, accuracy), 64);
    assert_eq!(offset!(kvq_router_info, tokens), 72);
    assert_eq!(offset!(kvq_router_info, seed), 80);
    assert_eq!(offset!(kvq_router_info, model_id), 88);
    assert_eq!(offset!(kvq_router_info, bytes), 96);
    assert_eq!(offset!(kvq_router_info, experts), 104);
    assert_eq!(offset!(kvq_router_info, note), 112);
}

#[test]
fn offsets_of_kvq_router_group_info() {
    assert_eq!(offset!(kvq_router_group_info, struct_size), 0);
    assert_eq!(offset!(kvq_router_group_info, first_layer), 4);
    assert_eq!(offset!(kvq_router_group_info, last_layer), 8);
    assert_eq!(offset!(kvq_router_group_info, reserved), 12);
    assert_eq!(offset!(kvq_router_group_info, mean_bits), 16);
    assert_eq!(offset!(kvq_router_group_info, accuracy), 24);
    assert_eq!(offset!(kvq_router_group_info, shares), 32);
}

#[test]
fn offsets_of_kvq_cache_options() {
    assert_eq!(offset!(kvq_cache_options, struct_size), 0);
    assert_eq!(offset!(kvq_cache_options, n_layers), 4);
    assert_eq!(offset!(kvq_cache_options, q_heads), 8);
    assert_eq!(offset!(kvq_cache_options, kv_heads), 12);
    assert_eq!(offset!(kvq_cache_options, head_dim), 16);
    assert_eq!(offset!(kvq_cache_options, rope), 20);
    assert_eq!(offset!(kvq_cache_options, rotary_dim), 24);
    assert_eq!(offset!(kvq_cache_options, rope_base), 28);
    assert_eq!(offset!(kvq_cache_options, inv_freq), 32);
    assert_eq!(offset!(kvq_cache_options, scale), 40);
    assert_eq!(offset!(kvq_cache_options, reserved), 44);
    assert_eq!(offset!(kvq_cache_options, max_bytes), 48);
    assert_eq!(offset!(kvq_cache_options, model_id), 56);
    assert_eq!(offset!(kvq_cache_options, codebook), 64);
    assert_eq!(offset!(kvq_cache_options, router), 72);
    assert_eq!(offset!(kvq_cache_options, centres), 80);
}

#[test]
fn offsets_of_kvq_cache_info() {
    assert_eq!(offset!(kvq_cache_info, struct_size), 0);
    assert_eq!(offset!(kvq_cache_info, n_layers), 4);
    assert_eq!(offset!(kvq_cache_info, q_heads), 8);
    assert_eq!(offset!(kvq_cache_info, kv_heads), 12);
    assert_eq!(offset!(kvq_cache_info, head_dim), 16);
    assert_eq!(offset!(kvq_cache_info, rope), 20);
    assert_eq!(offset!(kvq_cache_info, rotary_dim), 24);
    assert_eq!(offset!(kvq_cache_info, scale), 28);
    assert_eq!(offset!(kvq_cache_info, sink), 32);
    assert_eq!(offset!(kvq_cache_info, recent), 36);
    assert_eq!(offset!(kvq_cache_info, eviction_budget), 40);
    assert_eq!(offset!(kvq_cache_info, eviction_window), 44);
    assert_eq!(offset!(kvq_cache_info, max_bytes), 48);
    assert_eq!(offset!(kvq_cache_info, model_id), 56);
}

#[test]
fn offsets_of_kvq_layer_info() {
    assert_eq!(offset!(kvq_layer_info, struct_size), 0);
    assert_eq!(offset!(kvq_layer_info, n_formats), 4);
    assert_eq!(offset!(kvq_layer_info, formats), 8);
}

#[test]
fn offsets_of_kvq_append_batch() {
    assert_eq!(offset!(kvq_append_batch, struct_size), 0);
    assert_eq!(offset!(kvq_append_batch, n_sequences), 4);
    assert_eq!(offset!(kvq_append_batch, sequences), 8);
    assert_eq!(offset!(kvq_append_batch, token_counts), 16);
    assert_eq!(offset!(kvq_append_batch, positions), 24);
    assert_eq!(offset!(kvq_append_batch, k), 32);
    assert_eq!(offset!(kvq_append_batch, v), 40);
    assert_eq!(offset!(kvq_append_batch, dtype), 48);
    assert_eq!(offset!(kvq_append_batch, reserved), 52);
    assert_eq!(offset!(kvq_append_batch, k_token_stride), 56);
    assert_eq!(offset!(kvq_append_batch, k_head_stride), 64);
    assert_eq!(offset!(kvq_append_batch, v_token_stride), 72);
    assert_eq!(offset!(kvq_append_batch, v_head_stride), 80);
}

#[test]
fn offsets_of_kvq_compress_options() {
    assert_eq!(offset!(kvq_compress_options, struct_size), 0);
    assert_eq!(offset!(kvq_compress_options, budget), 4);
    assert_eq!(offset!(kvq_compress_options, kept), 8);
    assert_eq!(offset!(kvq_compress_options, bytes_freed), 16);
}

#[test]
fn offsets_of_kvq_attend_batch() {
    assert_eq!(offset!(kvq_attend_batch, struct_size), 0);
    assert_eq!(offset!(kvq_attend_batch, n_sequences), 4);
    assert_eq!(offset!(kvq_attend_batch, sequences), 8);
    assert_eq!(offset!(kvq_attend_batch, query_counts), 16);
    assert_eq!(offset!(kvq_attend_batch, query_positions), 24);
    assert_eq!(offset!(kvq_attend_batch, q), 32);
    assert_eq!(offset!(kvq_attend_batch, q_dtype), 40);
    assert_eq!(offset!(kvq_attend_batch, output_dtype), 44);
    assert_eq!(offset!(kvq_attend_batch, output), 48);
    assert_eq!(offset!(kvq_attend_batch, sliding_window), 56);
    assert_eq!(offset!(kvq_attend_batch, logit_softcap), 60);
    assert_eq!(offset!(kvq_attend_batch, q_token_stride), 64);
    assert_eq!(offset!(kvq_attend_batch, q_head_stride), 72);
    assert_eq!(offset!(kvq_attend_batch, output_token_stride), 80);
    assert_eq!(offset!(kvq_attend_batch, output_head_stride), 88);
    assert_eq!(offset!(kvq_attend_batch, lse), 96);
    assert_eq!(offset!(kvq_attend_batch, sinks), 104);
}

#[test]
fn offsets_of_kvq_usage() {
    assert_eq!(offset!(kvq_usage, struct_size), 0);
    assert_eq!(offset!(kvq_usage, reserved), 4);
    assert_eq!(offset!(kvq_usage, scalars), 8);
    assert_eq!(offset!(kvq_usage, sealed_bytes), 16);
    assert_eq!(offset!(kvq_usage, fp16_bytes), 24);
    assert_eq!(offset!(kvq_usage, metadata_bytes), 32);
    assert_eq!(offset!(kvq_usage, workspace_bytes), 40);
    assert_eq!(offset!(kvq_usage, total_bytes), 48);
    assert_eq!(offset!(kvq_usage, plain_fp16_bytes), 56);
    assert_eq!(offset!(kvq_usage, sealed_pages), 64);
    assert_eq!(offset!(kvq_usage, fp16_pages), 72);
    assert_eq!(offset!(kvq_usage, shared_pages), 80);
    assert_eq!(offset!(kvq_usage, bits_per_scalar), 88);
}

#[test]
fn offsets_of_qp_quantize_options() {
    assert_eq!(offset!(qp_quantize_options, struct_size), 0);
    assert_eq!(offset!(qp_quantize_options, dtype), 4);
    assert_eq!(offset!(qp_quantize_options, scheme), 8);
    assert_eq!(offset!(qp_quantize_options, seed), 16);
    assert_eq!(offset!(qp_quantize_options, hessian), 24);
    assert_eq!(offset!(qp_quantize_options, rounding), 32);
    assert_eq!(offset!(qp_quantize_options, reserved), 36);
    assert_eq!(offset!(qp_quantize_options, damping), 40);
    assert_eq!(offset!(qp_quantize_options, bias), 48);
    assert_eq!(offset!(qp_quantize_options, progress), 56);
    assert_eq!(offset!(qp_quantize_options, progress_user), 64);
}

#[test]
fn offsets_of_qp_matrix_info() {
    assert_eq!(offset!(qp_matrix_info, struct_size), 0);
    assert_eq!(offset!(qp_matrix_info, has_bias), 4);
    assert_eq!(offset!(qp_matrix_info, rows), 8);
    assert_eq!(offset!(qp_matrix_info, columns), 16);
    assert_eq!(offset!(qp_matrix_info, bytes), 24);
    assert_eq!(offset!(qp_matrix_info, bits), 32);
    assert_eq!(offset!(qp_matrix_info, error), 40);
    assert_eq!(offset!(qp_matrix_info, proxy_error), 48);
    assert_eq!(offset!(qp_matrix_info, scheme), 56);
}

#[cfg(feature = "experimental")]
#[test]
fn offsets_of_kvq_codebook_trainer_options() {
    assert_eq!(offset!(kvq_codebook_trainer_options, struct_size), 0);
    assert_eq!(offset!(kvq_codebook_trainer_options, n_layers), 4);
    assert_eq!(offset!(kvq_codebook_trainer_options, kv_heads), 8);
    assert_eq!(offset!(kvq_codebook_trainer_options, head_dim), 12);
    assert_eq!(offset!(kvq_codebook_trainer_options, rope), 16);
    assert_eq!(offset!(kvq_codebook_trainer_options, key_stages), 20);
    assert_eq!(offset!(kvq_codebook_trainer_options, key_codes), 24);
    assert_eq!(offset!(kvq_codebook_trainer_options, key_group), 28);
    assert_eq!(offset!(kvq_codebook_trainer_options, key_norms), 32);
    assert_eq!(offset!(kvq_codebook_trainer_options, value_bits), 36);
    assert_eq!(offset!(kvq_codebook_trainer_options, value_scope), 40);
    assert_eq!(offset!(kvq_codebook_trainer_options, key_rounds), 44);
    assert_eq!(offset!(kvq_codebook_trainer_options, value_rounds), 48);
    assert_eq!(offset!(kvq_codebook_trainer_options, value_method), 52);
    assert_eq!(offset!(kvq_codebook_trainer_options, seed), 56);
    assert_eq!(offset!(kvq_codebook_trainer_options, model_id), 64);
    assert_eq!(offset!(kvq_codebook_trainer_options, max_bytes), 72);
    assert_eq!(offset!(kvq_codebook_trainer_options, note), 80);
}

#[cfg(feature = "experimental")]
#[test]
fn offsets_of_kvq_centres_trainer_options() {
    assert_eq!(offset!(kvq_centres_trainer_options, struct_size), 0);
    assert_eq!(offset!(kvq_centres_trainer_options, n_layers), 4);
    assert_eq!(offset!(kvq_centres_trainer_options, kv_heads), 8);
    assert_eq!(offset!(kvq_centres_trainer_options, head_dim), 12);
    assert_eq!(offset!(kvq_centres_trainer_options, rope), 16);
    assert_eq!(offset!(kvq_centres_trainer_options, key_centres), 20);
    assert_eq!(offset!(kvq_centres_trainer_options, value_centres), 24);
    assert_eq!(offset!(kvq_centres_trainer_options, rounds), 28);
    assert_eq!(offset!(kvq_centres_trainer_options, seed), 32);
    assert_eq!(offset!(kvq_centres_trainer_options, model_id), 40);
    assert_eq!(offset!(kvq_centres_trainer_options, max_bytes), 48);
    assert_eq!(offset!(kvq_centres_trainer_options, note), 56);
}

#[cfg(feature = "experimental")]
#[test]
fn offsets_of_kvq_router_trainer_options() {
    assert_eq!(offset!(kvq_router_trainer_options, struct_size), 0);
    assert_eq!(offset!(kvq_router_trainer_options, method), 4);
    assert_eq!(offset!(kvq_router_trainer_options, sharing), 8);
    assert_eq!(offset!(kvq_router_trainer_options, epochs), 12);
    assert_eq!(offset!(kvq_router_trainer_options, mean_bits), 16);
    assert_eq!(offset!(kvq_router_trainer_options, loss_weight), 24);
    assert_eq!(offset!(kvq_router_trainer_options, learning_rate), 32);
    assert_eq!(offset!(kvq_router_trainer_options, seed), 40);
    assert_eq!(offset!(kvq_router_trainer_options, max_bytes), 48);
    assert_eq!(offset!(kvq_router_trainer_options, note), 56);
}

#[cfg(feature = "experimental")]
#[test]
fn offsets_of_kvq_plan_problem() {
    assert_eq!(offset!(kvq_plan_problem, struct_size), 0);
    assert_eq!(offset!(kvq_plan_problem, goal), 4);
    assert_eq!(offset!(kvq_plan_problem, n_choices), 8);
    assert_eq!(offset!(kvq_plan_problem, reserved), 12);
    assert_eq!(offset!(kvq_plan_problem, option_counts), 16);
    assert_eq!(offset!(kvq_plan_problem, bytes), 24);
    assert_eq!(offset!(kvq_plan_problem, seconds), 32);
    assert_eq!(offset!(kvq_plan_problem, loss), 40);
    assert_eq!(offset!(kvq_plan_problem, max_bytes), 48);
    assert_eq!(offset!(kvq_plan_problem, max_seconds), 56);
    assert_eq!(offset!(kvq_plan_problem, max_loss), 64);
    assert_eq!(offset!(kvq_plan_problem, tolerance), 72);
}

#[cfg(feature = "experimental")]
#[test]
fn offsets_of_kvq_plan_costs() {
    assert_eq!(offset!(kvq_plan_costs, struct_size), 0);
    assert_eq!(offset!(kvq_plan_costs, reserved), 4);
    assert_eq!(offset!(kvq_plan_costs, bytes), 8);
    assert_eq!(offset!(kvq_plan_costs, seconds), 16);
    assert_eq!(offset!(kvq_plan_costs, loss), 24);
    assert_eq!(offset!(kvq_plan_costs, bound), 32);
}

#[cfg(feature = "experimental")]
#[test]
fn offsets_of_kvq_plan_fusion_options() {
    assert_eq!(offset!(kvq_plan_fusion_options, struct_size), 0);
    assert_eq!(offset!(kvq_plan_fusion_options, n_members), 4);
    assert_eq!(offset!(kvq_plan_fusion_options, n_schemes), 8);
    assert_eq!(offset!(kvq_plan_fusion_options, n_groups), 12);
    assert_eq!(offset!(kvq_plan_fusion_options, groups), 16);
    assert_eq!(offset!(kvq_plan_fusion_options, bytes), 24);
    assert_eq!(offset!(kvq_plan_fusion_options, loss), 32);
    assert_eq!(offset!(kvq_plan_fusion_options, seconds), 40);
}

#[cfg(feature = "experimental")]
#[test]
fn offsets_of_kvq_plan_fusion_info() {
    assert_eq!(offset!(kvq_plan_fusion_info, struct_size), 0);
    assert_eq!(offset!(kvq_plan_fusion_info, n_members), 4);
    assert_eq!(offset!(kvq_plan_fusion_info, n_groupings), 8);
    assert_eq!(offset!(kvq_plan_fusion_info, reserved), 12);
}

#[cfg(feature = "experimental")]
#[test]
fn offsets_of_kvq_plan_grouping_info() {
    assert_eq!(offset!(kvq_plan_grouping_info, struct_size), 0);
    assert_eq!(offset!(kvq_plan_grouping_info, reserved), 4);
    assert_eq!(offset!(kvq_plan_grouping_info, bytes), 8);
    assert_eq!(offset!(kvq_plan_grouping_info, seconds), 16);
    assert_eq!(offset!(kvq_plan_grouping_info, loss), 24);
    assert_eq!(offset!(kvq_plan_grouping_info, groups), 32);
    assert_eq!(offset!(kvq_plan_grouping_info, schemes), 48);
}

#[cfg(feature = "experimental")]
#[test]
fn offsets_of_kvq_plan_content() {
    assert_eq!(offset!(kvq_plan_content, struct_size), 0);
    assert_eq!(offset!(kvq_plan_content, n_matrices), 4);
    assert_eq!(offset!(kvq_plan_content, names), 8);
    assert_eq!(offset!(kvq_plan_content, schemes), 16);
    assert_eq!(offset!(kvq_plan_content, policy), 24);
    assert_eq!(offset!(kvq_plan_content, bytes), 32);
    assert_eq!(offset!(kvq_plan_content, seconds), 40);
    assert_eq!(offset!(kvq_plan_content, loss), 48);
    assert_eq!(offset!(kvq_plan_content, note), 56);
}

#[cfg(feature = "experimental")]
#[test]
fn offsets_of_kvq_plan_info() {
    assert_eq!(offset!(kvq_plan_info, struct_size), 0);
    assert_eq!(offset!(kvq_plan_info, n_matrices), 4);
    assert_eq!(offset!(kvq_plan_info, has_policy), 8);
    assert_eq!(offset!(kvq_plan_info, reserved), 12);
    assert_eq!(offset!(kvq_plan_info, bytes), 16);
    assert_eq!(offset!(kvq_plan_info, seconds), 24);
    assert_eq!(offset!(kvq_plan_info, loss), 32);
    assert_eq!(offset!(kvq_plan_info, note), 40);
}

#[cfg(feature = "experimental")]
#[test]
fn offsets_of_kvq_plan_matrix_info() {
    assert_eq!(offset!(kvq_plan_matrix_info, struct_size), 0);
    assert_eq!(offset!(kvq_plan_matrix_info, reserved), 4);
    assert_eq!(offset!(kvq_plan_matrix_info, name), 8);
    assert_eq!(offset!(kvq_plan_matrix_info, scheme), 16);
}
