/* Made by bindings/generate/generate.py from include/kvq.h; edit that instead. */
#ifndef KVQ_GO_SHIMS_H
#define KVQ_GO_SHIMS_H

#include <kvq.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A list of pointers could not be made. */
static inline kvq_status kvq_go_no_memory(const char* name, kvq_error* error) {
  if (error != NULL) {
    error->code = KVQ_E_MEMORY;
    error->backend_code = 0;
    strcpy(error->message, "no memory for the list ");
    strcat(error->message, name);
  }
  return KVQ_E_MEMORY;
}

#if UINTPTR_MAX == 0xffffffffffffffffu
_Static_assert(sizeof(kvq_error) == 268, "kvq_error");
_Static_assert(offsetof(kvq_error, struct_size) == 0, "kvq_error.struct_size");
_Static_assert(offsetof(kvq_error, code) == 4, "kvq_error.code");
_Static_assert(offsetof(kvq_error, backend_code) == 8, "kvq_error.backend_code");
_Static_assert(offsetof(kvq_error, message) == 12, "kvq_error.message");

_Static_assert(sizeof(kvq_context_options) == 152, "kvq_context_options");
_Static_assert(offsetof(kvq_context_options, struct_size) == 0, "kvq_context_options.struct_size");
_Static_assert(offsetof(kvq_context_options, device) == 4, "kvq_context_options.device");
_Static_assert(offsetof(kvq_context_options, n_threads) == 8, "kvq_context_options.n_threads");
_Static_assert(offsetof(kvq_context_options, reserved) == 12, "kvq_context_options.reserved");
_Static_assert(offsetof(kvq_context_options, max_bytes) == 16, "kvq_context_options.max_bytes");
_Static_assert(offsetof(kvq_context_options, cpu_isa) == 24, "kvq_context_options.cpu_isa");
_Static_assert(offsetof(kvq_context_options, allocate) == 32, "kvq_context_options.allocate");
_Static_assert(offsetof(kvq_context_options, free) == 40, "kvq_context_options.free");
_Static_assert(offsetof(kvq_context_options, allocator_user) == 48, "kvq_context_options.allocator_user");
_Static_assert(offsetof(kvq_context_options, log) == 56, "kvq_context_options.log");
_Static_assert(offsetof(kvq_context_options, log_user) == 64, "kvq_context_options.log_user");
_Static_assert(offsetof(kvq_context_options, parallel_for) == 72, "kvq_context_options.parallel_for");
_Static_assert(offsetof(kvq_context_options, parallel_for_user) == 80, "kvq_context_options.parallel_for_user");
_Static_assert(offsetof(kvq_context_options, device_index) == 88, "kvq_context_options.device_index");
_Static_assert(offsetof(kvq_context_options, reserved2) == 92, "kvq_context_options.reserved2");
_Static_assert(offsetof(kvq_context_options, plugin) == 96, "kvq_context_options.plugin");
_Static_assert(offsetof(kvq_context_options, stream) == 104, "kvq_context_options.stream");
_Static_assert(offsetof(kvq_context_options, device_allocate) == 112, "kvq_context_options.device_allocate");
_Static_assert(offsetof(kvq_context_options, device_free) == 120, "kvq_context_options.device_free");
_Static_assert(offsetof(kvq_context_options, device_allocator_user) == 128, "kvq_context_options.device_allocator_user");
_Static_assert(offsetof(kvq_context_options, released) == 136, "kvq_context_options.released");
_Static_assert(offsetof(kvq_context_options, released_user) == 144, "kvq_context_options.released_user");

_Static_assert(sizeof(kvq_context_info) == 56, "kvq_context_info");
_Static_assert(offsetof(kvq_context_info, struct_size) == 0, "kvq_context_info.struct_size");
_Static_assert(offsetof(kvq_context_info, device) == 4, "kvq_context_info.device");
_Static_assert(offsetof(kvq_context_info, n_threads) == 8, "kvq_context_info.n_threads");
_Static_assert(offsetof(kvq_context_info, reserved) == 12, "kvq_context_info.reserved");
_Static_assert(offsetof(kvq_context_info, backend) == 16, "kvq_context_info.backend");
_Static_assert(offsetof(kvq_context_info, isa) == 24, "kvq_context_info.isa");
_Static_assert(offsetof(kvq_context_info, bytes) == 32, "kvq_context_info.bytes");
_Static_assert(offsetof(kvq_context_info, peak_bytes) == 40, "kvq_context_info.peak_bytes");
_Static_assert(offsetof(kvq_context_info, max_bytes) == 48, "kvq_context_info.max_bytes");

_Static_assert(sizeof(kvq_device_info) == 152, "kvq_device_info");
_Static_assert(offsetof(kvq_device_info, struct_size) == 0, "kvq_device_info.struct_size");
_Static_assert(offsetof(kvq_device_info, n_devices) == 4, "kvq_device_info.n_devices");
_Static_assert(offsetof(kvq_device_info, name) == 8, "kvq_device_info.name");
_Static_assert(offsetof(kvq_device_info, compute_capability) == 136, "kvq_device_info.compute_capability");
_Static_assert(offsetof(kvq_device_info, driver_version) == 140, "kvq_device_info.driver_version");
_Static_assert(offsetof(kvq_device_info, memory_bytes) == 144, "kvq_device_info.memory_bytes");

_Static_assert(sizeof(kvq_policy_info) == 16, "kvq_policy_info");
_Static_assert(offsetof(kvq_policy_info, struct_size) == 0, "kvq_policy_info.struct_size");
_Static_assert(offsetof(kvq_policy_info, eviction_budget) == 4, "kvq_policy_info.eviction_budget");
_Static_assert(offsetof(kvq_policy_info, eviction_window) == 8, "kvq_policy_info.eviction_window");
_Static_assert(offsetof(kvq_policy_info, reserved) == 12, "kvq_policy_info.reserved");

_Static_assert(sizeof(kvq_codebook_info) == 120, "kvq_codebook_info");
_Static_assert(offsetof(kvq_codebook_info, struct_size) == 0, "kvq_codebook_info.struct_size");
_Static_assert(offsetof(kvq_codebook_info, n_layers) == 4, "kvq_codebook_info.n_layers");
_Static_assert(offsetof(kvq_codebook_info, layers_present) == 8, "kvq_codebook_info.layers_present");
_Static_assert(offsetof(kvq_codebook_info, kv_heads) == 12, "kvq_codebook_info.kv_heads");
_Static_assert(offsetof(kvq_codebook_info, head_dim) == 16, "kvq_codebook_info.head_dim");
_Static_assert(offsetof(kvq_codebook_info, rope) == 20, "kvq_codebook_info.rope");
_Static_assert(offsetof(kvq_codebook_info, key_stages) == 24, "kvq_codebook_info.key_stages");
_Static_assert(offsetof(kvq_codebook_info, key_codes) == 28, "kvq_codebook_info.key_codes");
_Static_assert(offsetof(kvq_codebook_info, key_group) == 32, "kvq_codebook_info.key_group");
_Static_assert(offsetof(kvq_codebook_info, key_norms) == 36, "kvq_codebook_info.key_norms");
_Static_assert(offsetof(kvq_codebook_info, value_bits) == 40, "kvq_codebook_info.value_bits");
_Static_assert(offsetof(kvq_codebook_info, value_scope) == 44, "kvq_codebook_info.value_scope");
_Static_assert(offsetof(kvq_codebook_info, key_true_bits) == 48, "kvq_codebook_info.key_true_bits");
_Static_assert(offsetof(kvq_codebook_info, value_true_bits) == 56, "kvq_codebook_info.value_true_bits");
_Static_assert(offsetof(kvq_codebook_info, key_error) == 64, "kvq_codebook_info.key_error");
_Static_assert(offsetof(kvq_codebook_info, value_error) == 72, "kvq_codebook_info.value_error");
_Static_assert(offsetof(kvq_codebook_info, tokens) == 80, "kvq_codebook_info.tokens");
_Static_assert(offsetof(kvq_codebook_info, seed) == 88, "kvq_codebook_info.seed");
_Static_assert(offsetof(kvq_codebook_info, model_id) == 96, "kvq_codebook_info.model_id");
_Static_assert(offsetof(kvq_codebook_info, bytes) == 104, "kvq_codebook_info.bytes");
_Static_assert(offsetof(kvq_codebook_info, note) == 112, "kvq_codebook_info.note");

_Static_assert(sizeof(kvq_codebook_layer_info) == 544, "kvq_codebook_layer_info");
_Static_assert(offsetof(kvq_codebook_layer_info, struct_size) == 0, "kvq_codebook_layer_info.struct_size");
_Static_assert(offsetof(kvq_codebook_layer_info, present) == 4, "kvq_codebook_layer_info.present");
_Static_assert(offsetof(kvq_codebook_layer_info, tokens) == 8, "kvq_codebook_layer_info.tokens");
_Static_assert(offsetof(kvq_codebook_layer_info, key_error) == 16, "kvq_codebook_layer_info.key_error");
_Static_assert(offsetof(kvq_codebook_layer_info, value_error) == 24, "kvq_codebook_layer_info.value_error");
_Static_assert(offsetof(kvq_codebook_layer_info, key_stage_errors) == 32, "kvq_codebook_layer_info.key_stage_errors");

_Static_assert(sizeof(kvq_centres_info) == 88, "kvq_centres_info");
_Static_assert(offsetof(kvq_centres_info, struct_size) == 0, "kvq_centres_info.struct_size");
_Static_assert(offsetof(kvq_centres_info, n_layers) == 4, "kvq_centres_info.n_layers");
_Static_assert(offsetof(kvq_centres_info, layers_present) == 8, "kvq_centres_info.layers_present");
_Static_assert(offsetof(kvq_centres_info, kv_heads) == 12, "kvq_centres_info.kv_heads");
_Static_assert(offsetof(kvq_centres_info, head_dim) == 16, "kvq_centres_info.head_dim");
_Static_assert(offsetof(kvq_centres_info, rope) == 20, "kvq_centres_info.rope");
_Static_assert(offsetof(kvq_centres_info, key_centres) == 24, "kvq_centres_info.key_centres");
_Static_assert(offsetof(kvq_centres_info, value_centres) == 28, "kvq_centres_info.value_centres");
_Static_assert(offsetof(kvq_centres_info, key_residual) == 32, "kvq_centres_info.key_residual");
_Static_assert(offsetof(kvq_centres_info, value_residual) == 40, "kvq_centres_info.value_residual");
_Static_assert(offsetof(kvq_centres_info, tokens) == 48, "kvq_centres_info.tokens");
_Static_assert(offsetof(kvq_centres_info, seed) == 56, "kvq_centres_info.seed");
_Static_assert(offsetof(kvq_centres_info, model_id) == 64, "kvq_centres_info.model_id");
_Static_assert(offsetof(kvq_centres_info, bytes) == 72, "kvq_centres_info.bytes");
_Static_assert(offsetof(kvq_centres_info, note) == 80, "kvq_centres_info.note");

_Static_assert(sizeof(kvq_centres_layer_info) == 32, "kvq_centres_layer_info");
_Static_assert(offsetof(kvq_centres_layer_info, struct_size) == 0, "kvq_centres_layer_info.struct_size");
_Static_assert(offsetof(kvq_centres_layer_info, present) == 4, "kvq_centres_layer_info.present");
_Static_assert(offsetof(kvq_centres_layer_info, tokens) == 8, "kvq_centres_layer_info.tokens");
_Static_assert(offsetof(kvq_centres_layer_info, key_residual) == 16, "kvq_centres_layer_info.key_residual");
_Static_assert(offsetof(kvq_centres_layer_info, value_residual) == 24, "kvq_centres_layer_info.value_residual");

_Static_assert(sizeof(kvq_router_info) == 120, "kvq_router_info");
_Static_assert(offsetof(kvq_router_info, struct_size) == 0, "kvq_router_info.struct_size");
_Static_assert(offsetof(kvq_router_info, n_layers) == 4, "kvq_router_info.n_layers");
_Static_assert(offsetof(kvq_router_info, kv_heads) == 8, "kvq_router_info.kv_heads");
_Static_assert(offsetof(kvq_router_info, head_dim) == 12, "kvq_router_info.head_dim");
_Static_assert(offsetof(kvq_router_info, rope) == 16, "kvq_router_info.rope");
_Static_assert(offsetof(kvq_router_info, sharing) == 20, "kvq_router_info.sharing");
_Static_assert(offsetof(kvq_router_info, groups) == 24, "kvq_router_info.groups");
_Static_assert(offsetof(kvq_router_info, n_experts) == 28, "kvq_router_info.n_experts");
_Static_assert(offsetof(kvq_router_info, method) == 32, "kvq_router_info.method");
_Static_assert(offsetof(kvq_router_info, reserved) == 36, "kvq_router_info.reserved");
_Static_assert(offsetof(kvq_router_info, loss_weight) == 40, "kvq_router_info.loss_weight");
_Static_assert(offsetof(kvq_router_info, mean_bits) == 48, "kvq_router_info.mean_bits");
_Static_assert(offsetof(kvq_router_info, tolerance) == 56, "kvq_router_info.tolerance");
_Static_assert(offsetof(kvq_router_info, accuracy) == 64, "kvq_router_info.accuracy");
_Static_assert(offsetof(kvq_router_info, tokens) == 72, "kvq_router_info.tokens");
_Static_assert(offsetof(kvq_router_info, seed) == 80, "kvq_router_info.seed");
_Static_assert(offsetof(kvq_router_info, model_id) == 88, "kvq_router_info.model_id");
_Static_assert(offsetof(kvq_router_info, bytes) == 96, "kvq_router_info.bytes");
_Static_assert(offsetof(kvq_router_info, experts) == 104, "kvq_router_info.experts");
_Static_assert(offsetof(kvq_router_info, note) == 112, "kvq_router_info.note");

_Static_assert(sizeof(kvq_router_group_info) == 96, "kvq_router_group_info");
_Static_assert(offsetof(kvq_router_group_info, struct_size) == 0, "kvq_router_group_info.struct_size");
_Static_assert(offsetof(kvq_router_group_info, first_layer) == 4, "kvq_router_group_info.first_layer");
_Static_assert(offsetof(kvq_router_group_info, last_layer) == 8, "kvq_router_group_info.last_layer");
_Static_assert(offsetof(kvq_router_group_info, reserved) == 12, "kvq_router_group_info.reserved");
_Static_assert(offsetof(kvq_router_group_info, mean_bits) == 16, "kvq_router_group_info.mean_bits");
_Static_assert(offsetof(kvq_router_group_info, accuracy) == 24, "kvq_router_group_info.accuracy");
_Static_assert(offsetof(kvq_router_group_info, shares) == 32, "kvq_router_group_info.shares");

_Static_assert(sizeof(kvq_cache_options) == 88, "kvq_cache_options");
_Static_assert(offsetof(kvq_cache_options, struct_size) == 0, "kvq_cache_options.struct_size");
_Static_assert(offsetof(kvq_cache_options, n_layers) == 4, "kvq_cache_options.n_layers");
_Static_assert(offsetof(kvq_cache_options, q_heads) == 8, "kvq_cache_options.q_heads");
_Static_assert(offsetof(kvq_cache_options, kv_heads) == 12, "kvq_cache_options.kv_heads");
_Static_assert(offsetof(kvq_cache_options, head_dim) == 16, "kvq_cache_options.head_dim");
_Static_assert(offsetof(kvq_cache_options, rope) == 20, "kvq_cache_options.rope");
_Static_assert(offsetof(kvq_cache_options, rotary_dim) == 24, "kvq_cache_options.rotary_dim");
_Static_assert(offsetof(kvq_cache_options, rope_base) == 28, "kvq_cache_options.rope_base");
_Static_assert(offsetof(kvq_cache_options, inv_freq) == 32, "kvq_cache_options.inv_freq");
_Static_assert(offsetof(kvq_cache_options, scale) == 40, "kvq_cache_options.scale");
_Static_assert(offsetof(kvq_cache_options, reserved) == 44, "kvq_cache_options.reserved");
_Static_assert(offsetof(kvq_cache_options, max_bytes) == 48, "kvq_cache_options.max_bytes");
_Static_assert(offsetof(kvq_cache_options, model_id) == 56, "kvq_cache_options.model_id");
_Static_assert(offsetof(kvq_cache_options, codebook) == 64, "kvq_cache_options.codebook");
_Static_assert(offsetof(kvq_cache_options, router) == 72, "kvq_cache_options.router");
_Static_assert(offsetof(kvq_cache_options, centres) == 80, "kvq_cache_options.centres");

_Static_assert(sizeof(kvq_cache_info) == 64, "kvq_cache_info");
_Static_assert(offsetof(kvq_cache_info, struct_size) == 0, "kvq_cache_info.struct_size");
_Static_assert(offsetof(kvq_cache_info, n_layers) == 4, "kvq_cache_info.n_layers");
_Static_assert(offsetof(kvq_cache_info, q_heads) == 8, "kvq_cache_info.q_heads");
_Static_assert(offsetof(kvq_cache_info, kv_heads) == 12, "kvq_cache_info.kv_heads");
_Static_assert(offsetof(kvq_cache_info, head_dim) == 16, "kvq_cache_info.head_dim");
_Static_assert(offsetof(kvq_cache_info, rope) == 20, "kvq_cache_info.rope");
_Static_assert(offsetof(kvq_cache_info, rotary_dim) == 24, "kvq_cache_info.rotary_dim");
_Static_assert(offsetof(kvq_cache_info, scale) == 28, "kvq_cache_info.scale");
_Static_assert(offsetof(kvq_cache_info, sink) == 32, "kvq_cache_info.sink");
_Static_assert(offsetof(kvq_cache_info, recent) == 36, "kvq_cache_info.recent");
_Static_assert(offsetof(kvq_cache_info, eviction_budget) == 40, "kvq_cache_info.eviction_budget");
_Static_assert(offsetof(kvq_cache_info, eviction_window) == 44, "kvq_cache_info.eviction_window");
_Static_assert(offsetof(kvq_cache_info, max_bytes) == 48, "kvq_cache_info.max_bytes");
_Static_assert(offsetof(kvq_cache_info, model_id) == 56, "kvq_cache_info.model_id");

_Static_assert(sizeof(kvq_layer_info) == 264, "kvq_layer_info");
_Static_assert(offsetof(kvq_layer_info, struct_size) == 0, "kvq_layer_info.struct_size");
_Static_assert(offsetof(kvq_layer_info, n_formats) == 4, "kvq_layer_info.n_formats");
_Static_assert(offsetof(kvq_layer_info, formats) == 8, "kvq_layer_info.formats");

_Static_assert(sizeof(kvq_append_batch) == 88, "kvq_append_batch");
_Static_assert(offsetof(kvq_append_batch, struct_size) == 0, "kvq_append_batch.struct_size");
_Static_assert(offsetof(kvq_append_batch, n_sequences) == 4, "kvq_append_batch.n_sequences");
_Static_assert(offsetof(kvq_append_batch, sequences) == 8, "kvq_append_batch.sequences");
_Static_assert(offsetof(kvq_append_batch, token_counts) == 16, "kvq_append_batch.token_counts");
_Static_assert(offsetof(kvq_append_batch, positions) == 24, "kvq_append_batch.positions");
_Static_assert(offsetof(kvq_append_batch, k) == 32, "kvq_append_batch.k");
_Static_assert(offsetof(kvq_append_batch, v) == 40, "kvq_append_batch.v");
_Static_assert(offsetof(kvq_append_batch, dtype) == 48, "kvq_append_batch.dtype");
_Static_assert(offsetof(kvq_append_batch, reserved) == 52, "kvq_append_batch.reserved");
_Static_assert(offsetof(kvq_append_batch, k_token_stride) == 56, "kvq_append_batch.k_token_stride");
_Static_assert(offsetof(kvq_append_batch, k_head_stride) == 64, "kvq_append_batch.k_head_stride");
_Static_assert(offsetof(kvq_append_batch, v_token_stride) == 72, "kvq_append_batch.v_token_stride");
_Static_assert(offsetof(kvq_append_batch, v_head_stride) == 80, "kvq_append_batch.v_head_stride");

_Static_assert(sizeof(kvq_compress_options) == 24, "kvq_compress_options");
_Static_assert(offsetof(kvq_compress_options, struct_size) == 0, "kvq_compress_options.struct_size");
_Static_assert(offsetof(kvq_compress_options, budget) == 4, "kvq_compress_options.budget");
_Static_assert(offsetof(kvq_compress_options, kept) == 8, "kvq_compress_options.kept");
_Static_assert(offsetof(kvq_compress_options, bytes_freed) == 16, "kvq_compress_options.bytes_freed");

_Static_assert(sizeof(kvq_attend_batch) == 112, "kvq_attend_batch");
_Static_assert(offsetof(kvq_attend_batch, struct_size) == 0, "kvq_attend_batch.struct_size");
_Static_assert(offsetof(kvq_attend_batch, n_sequences) == 4, "kvq_attend_batch.n_sequences");
_Static_assert(offsetof(kvq_attend_batch, sequences) == 8, "kvq_attend_batch.sequences");
_Static_assert(offsetof(kvq_attend_batch, query_counts) == 16, "kvq_attend_batch.query_counts");
_Static_assert(offsetof(kvq_attend_batch, query_positions) == 24, "kvq_attend_batch.query_positions");
_Static_assert(offsetof(kvq_attend_batch, q) == 32, "kvq_attend_batch.q");
_Static_assert(offsetof(kvq_attend_batch, q_dtype) == 40, "kvq_attend_batch.q_dtype");
_Static_assert(offsetof(kvq_attend_batch, output_dtype) == 44, "kvq_attend_batch.output_dtype");
_Static_assert(offsetof(kvq_attend_batch, output) == 48, "kvq_attend_batch.output");
_Static_assert(offsetof(kvq_attend_batch, sliding_window) == 56, "kvq_attend_batch.sliding_window");
_Static_assert(offsetof(kvq_attend_batch, logit_softcap) == 60, "kvq_attend_batch.logit_softcap");
_Static_assert(offsetof(kvq_attend_batch, q_token_stride) == 64, "kvq_attend_batch.q_token_stride");
_Static_assert(offsetof(kvq_attend_batch, q_head_stride) == 72, "kvq_attend_batch.q_head_stride");
_Static_assert(offsetof(kvq_attend_batch, output_token_stride) == 80, "kvq_attend_batch.output_token_stride");
_Static_assert(offsetof(kvq_attend_batch, output_head_stride) == 88, "kvq_attend_batch.output_head_stride");
_Static_assert(offsetof(kvq_attend_batch, lse) == 96, "kvq_attend_batch.lse");
_Static_assert(offsetof(kvq_attend_batch, sinks) == 104, "kvq_attend_batch.sinks");

_Static_assert(sizeof(kvq_usage) == 96, "kvq_usage");
_Static_assert(offsetof(kvq_usage, struct_size) == 0, "kvq_usage.struct_size");
_Static_assert(offsetof(kvq_usage, reserved) == 4, "kvq_usage.reserved");
_Static_assert(offsetof(kvq_usage, scalars) == 8, "kvq_usage.scalars");
_Static_assert(offsetof(kvq_usage, sealed_bytes) == 16, "kvq_usage.sealed_bytes");
_Static_assert(offsetof(kvq_usage, fp16_bytes) == 24, "kvq_usage.fp16_bytes");
_Static_assert(offsetof(kvq_usage, metadata_bytes) == 32, "kvq_usage.metadata_bytes");
_Static_assert(offsetof(kvq_usage, workspace_bytes) == 40, "kvq_usage.workspace_bytes");
_Static_assert(offsetof(kvq_usage, total_bytes) == 48, "kvq_usage.total_bytes");
_Static_assert(offsetof(kvq_usage, plain_fp16_bytes) == 56, "kvq_usage.plain_fp16_bytes");
_Static_assert(offsetof(kvq_usage, sealed_pages) == 64, "kvq_usage.sealed_pages");
_Static_assert(offsetof(kvq_usage, fp16_pages) == 72, "kvq_usage.fp16_pages");
_Static_assert(offsetof(kvq_usage, shared_pages) == 80, "kvq_usage.shared_pages");
_Static_assert(offsetof(kvq_usage, bits_per_scalar) == 88, "kvq_usage.bits_per_scalar");

_Static_assert(sizeof(qp_quantize_options) == 72, "qp_quantize_options");
_Static_assert(offsetof(qp_quantize_options, struct_size) == 0, "qp_quantize_options.struct_size");
_Static_assert(offsetof(qp_quantize_options, dtype) == 4, "qp_quantize_options.dtype");
_Static_assert(offsetof(qp_quantize_options, scheme) == 8, "qp_quantize_options.scheme");
_Static_assert(offsetof(qp_quantize_options, seed) == 16, "qp_quantize_options.seed");
_Static_assert(offsetof(qp_quantize_options, hessian) == 24, "qp_quantize_options.hessian");
_Static_assert(offsetof(qp_quantize_options, rounding) == 32, "qp_quantize_options.rounding");
_Static_assert(offsetof(qp_quantize_options, reserved) == 36, "qp_quantize_options.reserved");
_Static_assert(offsetof(qp_quantize_options, damping) == 40, "qp_quantize_options.damping");
_Static_assert(offsetof(qp_quantize_options, bias) == 48, "qp_quantize_options.bias");
_Static_assert(offsetof(qp_quantize_options, progress) == 56, "qp_quantize_options.progress");
_Static_assert(offsetof(qp_quantize_options, progress_user) == 64, "qp_quantize_options.progress_user");

_Static_assert(sizeof(qp_matrix_info) == 64, "qp_matrix_info");
_Static_assert(offsetof(qp_matrix_info, struct_size) == 0, "qp_matrix_info.struct_size");
_Static_assert(offsetof(qp_matrix_info, has_bias) == 4, "qp_matrix_info.has_bias");
_Static_assert(offsetof(qp_matrix_info, rows) == 8, "qp_matrix_info.rows");
_Static_assert(offsetof(qp_matrix_info, columns) == 16, "qp_matrix_info.columns");
_Static_assert(offsetof(qp_matrix_info, bytes) == 24, "qp_matrix_info.bytes");
_Static_assert(offsetof(qp_matrix_info, bits) == 32, "qp_matrix_info.bits");
_Static_assert(offsetof(qp_matrix_info, error) == 40, "qp_matrix_info.error");
_Static_assert(offsetof(qp_matrix_info, proxy_error) == 48, "qp_matrix_info.proxy_error");
_Static_assert(offsetof(qp_matrix_info, scheme) == 56, "qp_matrix_info.scheme");

#endif

static inline void kvq_go_kvq_error_init(uint8_t* it) {
  kvq_error_init((kvq_error*)it, sizeof(kvq_error));
}

static inline const char* kvq_go_kvq_status_name(kvq_status status) {
  return kvq_status_name(status);
}

static inline int32_t kvq_go_kvq_api_version(void) {
  return kvq_api_version();
}

static inline const char* kvq_go_kvq_version_string(void) {
  return kvq_version_string();
}

static inline void kvq_go_kvq_context_options_init(uint8_t* it) {
  kvq_context_options_init((kvq_context_options*)it, sizeof(kvq_context_options));
}

static inline kvq_status kvq_go_kvq_context_create(int32_t options_given, kvq_device options_device, int32_t options_n_threads, int32_t options_reserved, uint64_t options_max_bytes, const char* options_cpu_isa, kvq_allocate_hook options_allocate, kvq_free_hook options_free, uintptr_t options_allocator_user, kvq_log_hook options_log, uintptr_t options_log_user, kvq_parallel_for_hook options_parallel_for, uintptr_t options_parallel_for_user, int32_t options_device_index, int32_t options_reserved2, const char* options_plugin, uintptr_t options_stream, kvq_device_allocate_hook options_device_allocate, kvq_device_free_hook options_device_free, uintptr_t options_device_allocator_user, kvq_released_hook options_released, uintptr_t options_released_user, uint8_t* result, kvq_error* error) {
  kvq_context_options options = {0};
  options.struct_size = sizeof(kvq_context_options);
  options.device = options_device;
  options.n_threads = options_n_threads;
  options.reserved = options_reserved;
  options.max_bytes = options_max_bytes;
  options.cpu_isa = options_cpu_isa;
  options.allocate = options_allocate;
  options.free = options_free;
  options.allocator_user = (void*)options_allocator_user;
  options.log = options_log;
  options.log_user = (void*)options_log_user;
  options.parallel_for = options_parallel_for;
  options.parallel_for_user = (void*)options_parallel_for_user;
  options.device_index = options_device_index;
  options.reserved2 = options_reserved2;
  options.plugin = options_plugin;
  options.stream = (void*)options_stream;
  options.device_allocate = options_device_allocate;
  options.device_free = options_device_free;
  options.device_allocator_user = (void*)options_device_allocator_user;
  options.released = options_released;
  options.released_user = (void*)options_released_user;
  return kvq_context_create(options_given ? &options : NULL, (kvq_context**)result, error);
}

static inline void kvq_go_kvq_context_destroy(uint8_t* context) {
  kvq_context_destroy((kvq_context*)context);
}

static inline kvq_status kvq_go_kvq_context_describe(uint8_t* context, uint8_t* info, kvq_error* error) {
  return kvq_context_describe((const kvq_context*)context, (kvq_context_info*)info, error);
}

static inline kvq_status kvq_go_kvq_context_set_stream(uint8_t* context, uintptr_t stream, kvq_error* error) {
  return kvq_context_set_stream((kvq_context*)context, (void*)stream, error);
}

static inline kvq_status kvq_go_kvq_device_describe(kvq_device device, int32_t index, const char* plugin, kvq_device_info* info, kvq_error* error) {
  return kvq_device_describe(device, index, plugin, info, error);
}

static inline int32_t kvq_go_kvq_cpu_isa_count(void) {
  return kvq_cpu_isa_count();
}

static inline const char* kvq_go_kvq_cpu_isa_name(int32_t index) {
  return kvq_cpu_isa_name(index);
}

static inline kvq_status kvq_go_kvq_policy_load(uint8_t* context, const char* yaml, size_t length, uint8_t* result, kvq_error* error) {
  return kvq_policy_load((kvq_context*)context, yaml, length, (kvq_policy**)result, error);
}

static inline kvq_status kvq_go_kvq_policy_with_eviction(uint8_t* context, uint8_t* policy, const char* method, int32_t budget, uint8_t* result, kvq_error* error) {
  return kvq_policy_with_eviction((kvq_context*)context, (const kvq_policy*)policy, method, budget, (kvq_policy**)result, error);
}

static inline kvq_status kvq_go_kvq_policy_with_layer(uint8_t* context, uint8_t* policy, int32_t first_layer, int32_t last_layer, const char* keys, const char* values, uint8_t* result, kvq_error* error) {
  return kvq_policy_with_layer((kvq_context*)context, (const kvq_policy*)policy, first_layer, last_layer, keys, values, (kvq_policy**)result, error);
}

static inline kvq_status kvq_go_kvq_policy_save(uint8_t* policy, char* buffer, size_t capacity, size_t* size, kvq_error* error) {
  return kvq_policy_save((const kvq_policy*)policy, buffer, capacity, size, error);
}

static inline kvq_status kvq_go_kvq_policy_describe(uint8_t* policy, kvq_policy_info* info, kvq_error* error) {
  return kvq_policy_describe((const kvq_policy*)policy, info, error);
}

static inline void kvq_go_kvq_policy_destroy(uint8_t* policy) {
  kvq_policy_destroy((kvq_policy*)policy);
}

static inline kvq_status kvq_go_kvq_codebook_load(uint8_t* context, uint8_t* buffer, size_t size, uint8_t* result, kvq_error* error) {
  return kvq_codebook_load((kvq_context*)context, (const void*)buffer, size, (kvq_codebook**)result, error);
}

static inline kvq_status kvq_go_kvq_codebook_save(uint8_t* codebook, uint8_t* buffer, size_t capacity, size_t* size, kvq_error* error) {
  return kvq_codebook_save((const kvq_codebook*)codebook, (void*)buffer, capacity, size, error);
}

static inline kvq_status kvq_go_kvq_codebook_describe(uint8_t* codebook, uint8_t* info, kvq_error* error) {
  return kvq_codebook_describe((const kvq_codebook*)codebook, (kvq_codebook_info*)info, error);
}

static inline kvq_status kvq_go_kvq_codebook_describe_layer(uint8_t* codebook, int32_t layer, kvq_codebook_layer_info* info, kvq_error* error) {
  return kvq_codebook_describe_layer((const kvq_codebook*)codebook, layer, info, error);
}

static inline void kvq_go_kvq_codebook_destroy(uint8_t* codebook) {
  kvq_codebook_destroy((kvq_codebook*)codebook);
}

static inline kvq_status kvq_go_kvq_centres_load(uint8_t* context, uint8_t* buffer, size_t size, uint8_t* result, kvq_error* error) {
  return kvq_centres_load((kvq_context*)context, (const void*)buffer, size, (kvq_centres**)result, error);
}

static inline kvq_status kvq_go_kvq_centres_save(uint8_t* centres, uint8_t* buffer, size_t capacity, size_t* size, kvq_error* error) {
  return kvq_centres_save((const kvq_centres*)centres, (void*)buffer, capacity, size, error);
}

static inline kvq_status kvq_go_kvq_centres_describe(uint8_t* centres, uint8_t* info, kvq_error* error) {
  return kvq_centres_describe((const kvq_centres*)centres, (kvq_centres_info*)info, error);
}

static inline kvq_status kvq_go_kvq_centres_describe_layer(uint8_t* centres, int32_t layer, kvq_centres_layer_info* info, kvq_error* error) {
  return kvq_centres_describe_layer((const kvq_centres*)centres, layer, info, error);
}

static inline void kvq_go_kvq_centres_destroy(uint8_t* centres) {
  kvq_centres_destroy((kvq_centres*)centres);
}

static inline kvq_status kvq_go_kvq_router_load(uint8_t* context, uint8_t* buffer, size_t size, uint8_t* result, kvq_error* error) {
  return kvq_router_load((kvq_context*)context, (const void*)buffer, size, (kvq_router**)result, error);
}

static inline kvq_status kvq_go_kvq_router_save(uint8_t* router, uint8_t* buffer, size_t capacity, size_t* size, kvq_error* error) {
  return kvq_router_save((const kvq_router*)router, (void*)buffer, capacity, size, error);
}

static inline kvq_status kvq_go_kvq_router_describe(uint8_t* router, uint8_t* info, kvq_error* error) {
  return kvq_router_describe((const kvq_router*)router, (kvq_router_info*)info, error);
}

static inline kvq_status kvq_go_kvq_router_describe_group(uint8_t* router, int32_t group, kvq_router_group_info* info, kvq_error* error) {
  return kvq_router_describe_group((const kvq_router*)router, group, info, error);
}

static inline void kvq_go_kvq_router_destroy(uint8_t* router) {
  kvq_router_destroy((kvq_router*)router);
}

static inline void kvq_go_kvq_cache_options_init(uint8_t* it) {
  kvq_cache_options_init((kvq_cache_options*)it, sizeof(kvq_cache_options));
}

static inline kvq_status kvq_go_kvq_cache_create(uint8_t* context, int32_t options_given, int32_t options_n_layers, int32_t options_q_heads, int32_t options_kv_heads, int32_t options_head_dim, kvq_rope options_rope, int32_t options_rotary_dim, float options_rope_base, const float* options_inv_freq, float options_scale, int32_t options_reserved, uint64_t options_max_bytes, uint64_t options_model_id, uint8_t* options_codebook, uint8_t* options_router, uint8_t* options_centres, uint8_t* policy, uint8_t* result, kvq_error* error) {
  kvq_cache_options options = {0};
  options.struct_size = sizeof(kvq_cache_options);
  options.n_layers = options_n_layers;
  options.q_heads = options_q_heads;
  options.kv_heads = options_kv_heads;
  options.head_dim = options_head_dim;
  options.rope = options_rope;
  options.rotary_dim = options_rotary_dim;
  options.rope_base = options_rope_base;
  options.inv_freq = options_inv_freq;
  options.scale = options_scale;
  options.reserved = options_reserved;
  options.max_bytes = options_max_bytes;
  options.model_id = options_model_id;
  options.codebook = (const kvq_codebook*)options_codebook;
  options.router = (const kvq_router*)options_router;
  options.centres = (const kvq_centres*)options_centres;
  return kvq_cache_create((kvq_context*)context, options_given ? &options : NULL, (const kvq_policy*)policy, (kvq_cache**)result, error);
}

static inline void kvq_go_kvq_cache_destroy(uint8_t* cache) {
  kvq_cache_destroy((kvq_cache*)cache);
}

static inline kvq_status kvq_go_kvq_cache_describe(uint8_t* cache, kvq_cache_info* info, kvq_error* error) {
  return kvq_cache_describe((const kvq_cache*)cache, info, error);
}

static inline kvq_status kvq_go_kvq_cache_describe_layer(uint8_t* cache, int32_t layer, kvq_layer_info* info, kvq_error* error) {
  return kvq_cache_describe_layer((const kvq_cache*)cache, layer, info, error);
}

static inline kvq_context* kvq_go_kvq_cache_context(uint8_t* cache) {
  return kvq_cache_context((const kvq_cache*)cache);
}

static inline kvq_status kvq_go_kvq_sequence_create(uint8_t* cache, uint8_t* result, kvq_error* error) {
  return kvq_sequence_create((kvq_cache*)cache, (kvq_sequence**)result, error);
}

static inline kvq_status kvq_go_kvq_sequence_fork(uint8_t* cache, uint8_t* parent, uint8_t* result, kvq_error* error) {
  return kvq_sequence_fork((kvq_cache*)cache, (const kvq_sequence*)parent, (kvq_sequence**)result, error);
}

static inline kvq_status kvq_go_kvq_sequence_truncate(uint8_t* cache, uint8_t* sequence, int32_t length, kvq_error* error) {
  return kvq_sequence_truncate((kvq_cache*)cache, (kvq_sequence*)sequence, length, error);
}

static inline void kvq_go_kvq_sequence_destroy(uint8_t* sequence) {
  kvq_sequence_destroy((kvq_sequence*)sequence);
}

static inline kvq_cache* kvq_go_kvq_sequence_cache(uint8_t* sequence) {
  return kvq_sequence_cache((const kvq_sequence*)sequence);
}

static inline kvq_status kvq_go_kvq_sequence_reserve(uint8_t* cache, uint8_t* sequence, int32_t tokens, kvq_error* error) {
  return kvq_sequence_reserve((kvq_cache*)cache, (kvq_sequence*)sequence, tokens, error);
}

static inline kvq_status kvq_go_kvq_sequence_room(uint8_t* sequence, int32_t layer, int32_t* room, kvq_error* error) {
  return kvq_sequence_room((const kvq_sequence*)sequence, layer, room, error);
}

static inline kvq_status kvq_go_kvq_sequence_length(uint8_t* sequence, int32_t layer, int32_t* length, kvq_error* error) {
  return kvq_sequence_length((const kvq_sequence*)sequence, layer, length, error);
}

static inline kvq_status kvq_go_kvq_sequence_slots(uint8_t* sequence, int32_t layer, int32_t kv_head, int32_t* slots, kvq_error* error) {
  return kvq_sequence_slots((const kvq_sequence*)sequence, layer, kv_head, slots, error);
}

static inline kvq_status kvq_go_kvq_sequence_save(uint8_t* cache, uint8_t* sequence, uint8_t* buffer, size_t capacity, size_t* size, kvq_error* error) {
  return kvq_sequence_save((kvq_cache*)cache, (const kvq_sequence*)sequence, (void*)buffer, capacity, size, error);
}

static inline kvq_status kvq_go_kvq_sequence_load(uint8_t* cache, uint8_t* buffer, size_t size, uint8_t* result, kvq_error* error) {
  return kvq_sequence_load((kvq_cache*)cache, (const void*)buffer, size, (kvq_sequence**)result, error);
}

static inline kvq_status kvq_go_kvq_append(uint8_t* cache, uint8_t* sequence, int32_t layer, int32_t n, uint8_t* k, uint8_t* v, kvq_dtype dtype, const int32_t* positions, kvq_error* error) {
  return kvq_append((kvq_cache*)cache, (kvq_sequence*)sequence, layer, n, (const void*)k, (const void*)v, dtype, positions, error);
}

static inline void kvq_go_kvq_append_batch_init(uint8_t* it) {
  kvq_append_batch_init((kvq_append_batch*)it, sizeof(kvq_append_batch));
}

static inline kvq_status kvq_go_kvq_append_sequences(uint8_t* cache, int32_t layer, int32_t batch_given, int32_t batch_n_sequences, uint8_t* batch_sequences, const int32_t* batch_token_counts, const int32_t* batch_positions, uint8_t* batch_k, uint8_t* batch_v, kvq_dtype batch_dtype, int32_t batch_reserved, int64_t batch_k_token_stride, int64_t batch_k_head_stride, int64_t batch_v_token_stride, int64_t batch_v_head_stride, kvq_error* error) {
  kvq_append_batch batch = {0};
  batch.struct_size = sizeof(kvq_append_batch);
  batch.n_sequences = batch_n_sequences;
  batch.sequences = (kvq_sequence* const*)batch_sequences;
  batch.token_counts = batch_token_counts;
  batch.positions = batch_positions;
  batch.k = (const void*)batch_k;
  batch.v = (const void*)batch_v;
  batch.dtype = batch_dtype;
  batch.reserved = batch_reserved;
  batch.k_token_stride = batch_k_token_stride;
  batch.k_head_stride = batch_k_head_stride;
  batch.v_token_stride = batch_v_token_stride;
  batch.v_head_stride = batch_v_head_stride;
  return kvq_append_sequences((kvq_cache*)cache, layer, batch_given ? &batch : NULL, error);
}

static inline kvq_status kvq_go_kvq_sequence_decode(uint8_t* cache, uint8_t* sequence, int32_t layer, int32_t kv_head, int32_t begin, int32_t n, float* k, float* v, int32_t* positions, kvq_error* error) {
  return kvq_sequence_decode((const kvq_cache*)cache, (const kvq_sequence*)sequence, layer, kv_head, begin, n, k, v, positions, error);
}

static inline void kvq_go_kvq_compress_options_init(uint8_t* it) {
  kvq_compress_options_init((kvq_compress_options*)it, sizeof(kvq_compress_options));
}

static inline kvq_status kvq_go_kvq_compress(uint8_t* cache, uint8_t* sequence, int32_t options_given, int32_t options_budget, int32_t* options_kept, uint64_t* options_bytes_freed, kvq_error* error) {
  kvq_compress_options options = {0};
  options.struct_size = sizeof(kvq_compress_options);
  options.budget = options_budget;
  options.kept = options_kept;
  options.bytes_freed = options_bytes_freed;
  return kvq_compress((kvq_cache*)cache, (kvq_sequence*)sequence, options_given ? &options : NULL, error);
}

static inline void kvq_go_kvq_attend_batch_init(uint8_t* it) {
  kvq_attend_batch_init((kvq_attend_batch*)it, sizeof(kvq_attend_batch));
}

static inline kvq_status kvq_go_kvq_attend(uint8_t* cache, int32_t layer, int32_t batch_given, int32_t batch_n_sequences, uint8_t* batch_sequences, const int32_t* batch_query_counts, const int32_t* batch_query_positions, uint8_t* batch_q, kvq_dtype batch_q_dtype, kvq_dtype batch_output_dtype, uint8_t* batch_output, int32_t batch_sliding_window, float batch_logit_softcap, int64_t batch_q_token_stride, int64_t batch_q_head_stride, int64_t batch_output_token_stride, int64_t batch_output_head_stride, float* batch_lse, const float* batch_sinks, kvq_error* error) {
  kvq_attend_batch batch = {0};
  batch.struct_size = sizeof(kvq_attend_batch);
  batch.n_sequences = batch_n_sequences;
  batch.sequences = (const kvq_sequence* const*)batch_sequences;
  batch.query_counts = batch_query_counts;
  batch.query_positions = batch_query_positions;
  batch.q = (const void*)batch_q;
  batch.q_dtype = batch_q_dtype;
  batch.output_dtype = batch_output_dtype;
  batch.output = (void*)batch_output;
  batch.sliding_window = batch_sliding_window;
  batch.logit_softcap = batch_logit_softcap;
  batch.q_token_stride = batch_q_token_stride;
  batch.q_head_stride = batch_q_head_stride;
  batch.output_token_stride = batch_output_token_stride;
  batch.output_head_stride = batch_output_head_stride;
  batch.lse = batch_lse;
  batch.sinks = batch_sinks;
  return kvq_attend((kvq_cache*)cache, layer, batch_given ? &batch : NULL, error);
}

static inline kvq_status kvq_go_kvq_cache_usage(uint8_t* cache, uint8_t* sequence, kvq_usage* usage, kvq_error* error) {
  return kvq_cache_usage((const kvq_cache*)cache, (const kvq_sequence*)sequence, usage, error);
}

static inline kvq_status kvq_go_kvq_cache_predict_usage(uint8_t* cache, int32_t sequences, int32_t tokens, int32_t queries, kvq_usage* usage, kvq_error* error) {
  return kvq_cache_predict_usage((const kvq_cache*)cache, sequences, tokens, queries, usage, error);
}

static inline int32_t kvq_go_qp_scheme_count(void) {
  return qp_scheme_count();
}

static inline const char* kvq_go_qp_scheme_name(int32_t index) {
  return qp_scheme_name(index);
}

static inline double kvq_go_qp_scheme_bits(const char* name) {
  return qp_scheme_bits(name);
}

static inline void kvq_go_qp_quantize_options_init(uint8_t* it) {
  qp_quantize_options_init((qp_quantize_options*)it, sizeof(qp_quantize_options));
}

static inline kvq_status kvq_go_qp_quantize(uint8_t* context, int32_t options_given, kvq_dtype options_dtype, const char* options_scheme, uint64_t options_seed, const float* options_hessian, qp_rounding options_rounding, int32_t options_reserved, double options_damping, const float* options_bias, kvq_progress_hook options_progress, uintptr_t options_progress_user, uint8_t* w, int64_t rows, int64_t columns, uint8_t* result, kvq_error* error) {
  qp_quantize_options options = {0};
  options.struct_size = sizeof(qp_quantize_options);
  options.dtype = options_dtype;
  options.scheme = options_scheme;
  options.seed = options_seed;
  options.hessian = options_hessian;
  options.rounding = options_rounding;
  options.reserved = options_reserved;
  options.damping = options_damping;
  options.bias = options_bias;
  options.progress = options_progress;
  options.progress_user = (void*)options_progress_user;
  return qp_quantize((kvq_context*)context, options_given ? &options : NULL, (const void*)w, rows, columns, (qp_matrix**)result, error);
}

static inline kvq_status kvq_go_qp_matrix_dequantize(uint8_t* matrix, int64_t first_row, int64_t rows, float* w, kvq_error* error) {
  return qp_matrix_dequantize((const qp_matrix*)matrix, first_row, rows, w, error);
}

static inline kvq_status kvq_go_qp_linear(uint8_t* matrix, uint8_t* x, int32_t batch, uint8_t* y, kvq_dtype dtype, kvq_error* error) {
  return qp_linear((const qp_matrix*)matrix, (const void*)x, batch, (void*)y, dtype, error);
}

static inline kvq_status kvq_go_qp_linear_shared(uint8_t* matrices, int32_t n, uint8_t* x, int32_t batch, uint8_t* y, const int64_t* y_offsets, kvq_dtype dtype, kvq_error* error) {
  void** y_list = NULL;
  if (y_offsets != NULL && n > 0) {
    y_list = (void**)malloc((size_t)n * sizeof(void*));
    if (y_list == NULL) return kvq_go_no_memory("y", error);
    for (int32_t i = 0; i < n; ++i) y_list[i] = (void*)((uintptr_t)y + (uintptr_t)y_offsets[i]);
  }
  kvq_status answer = qp_linear_shared((const qp_matrix* const*)matrices, n, (const void*)x, batch, y_list, dtype, error);
  free((void*)y_list);
  return answer;
}

static inline kvq_status kvq_go_qp_matrix_describe(uint8_t* matrix, uint8_t* info, kvq_error* error) {
  return qp_matrix_describe((const qp_matrix*)matrix, (qp_matrix_info*)info, error);
}

static inline kvq_status kvq_go_qp_matrix_save(uint8_t* matrices, uint8_t* names, const int64_t* names_offsets, int32_t n, uint8_t* buffer, size_t capacity, size_t* size, kvq_error* error) {
  const char** names_list = NULL;
  if (names_offsets != NULL && n > 0) {
    names_list = (const char**)malloc((size_t)n * sizeof(const char*));
    if (names_list == NULL) return kvq_go_no_memory("names", error);
    for (int32_t i = 0; i < n; ++i) names_list[i] = (const char*)((uintptr_t)names + (uintptr_t)names_offsets[i]);
  }
  kvq_status answer = qp_matrix_save((const qp_matrix* const*)matrices, names_list, n, (void*)buffer, capacity, size, error);
  free((void*)names_list);
  return answer;
}

static inline kvq_status kvq_go_qp_matrix_load(uint8_t* context, uint8_t* buffer, size_t size, const char* name, uint8_t* result, kvq_error* error) {
  return qp_matrix_load((kvq_context*)context, (const void*)buffer, size, name, (qp_matrix**)result, error);
}

static inline void kvq_go_qp_matrix_destroy(uint8_t* matrix) {
  qp_matrix_destroy((qp_matrix*)matrix);
}

static inline kvq_status kvq_go_qp_matrix_predict_bytes(const char* scheme, int64_t rows, int64_t columns, int32_t has_bias, uint64_t* bytes, uint64_t* allocated, kvq_error* error) {
  return qp_matrix_predict_bytes(scheme, rows, columns, has_bias, bytes, allocated, error);
}

static inline void* kvq_go_call_kvq_allocate_hook(kvq_allocate_hook hook, uintptr_t user, size_t bytes, size_t alignment) {
  return hook((void*)user, bytes, alignment);
}

static inline void kvq_go_call_kvq_free_hook(kvq_free_hook hook, uintptr_t user, uintptr_t pointer, size_t bytes, size_t alignment) {
  hook((void*)user, (void*)pointer, bytes, alignment);
}

static inline void kvq_go_call_kvq_log_hook(kvq_log_hook hook, uintptr_t user, kvq_log_level level, const char* message) {
  hook((void*)user, level, message);
}

static inline void kvq_go_call_kvq_parallel_body(kvq_parallel_body hook, uintptr_t argument, int32_t index) {
  hook((void*)argument, index);
}

static inline int32_t kvq_go_call_kvq_parallel_for_hook(kvq_parallel_for_hook hook, uintptr_t user, int32_t n, kvq_parallel_body body, uintptr_t argument) {
  return hook((void*)user, n, body, (void*)argument);
}

static inline void kvq_go_call_kvq_released_hook(kvq_released_hook hook, uintptr_t user) {
  hook((void*)user);
}

static inline void* kvq_go_call_kvq_device_allocate_hook(kvq_device_allocate_hook hook, uintptr_t user, size_t bytes, uintptr_t stream) {
  return hook((void*)user, bytes, (void*)stream);
}

static inline void kvq_go_call_kvq_device_free_hook(kvq_device_free_hook hook, uintptr_t user, uintptr_t pointer, size_t bytes, uintptr_t stream) {
  hook((void*)user, (void*)pointer, bytes, (void*)stream);
}

static inline int32_t kvq_go_call_kvq_progress_hook(kvq_progress_hook hook, uintptr_t user, double done) {
  return hook((void*)user, done);
}

#endif
