// Test helpers for kvq.hpp: contexts by device name, caches with random codes, and copies to the device on a GPU.
#pragma once

#include "kvq.hpp"
#include "support/centres.h"
#include "support/codebook.h"
#include "support/device.h"
#include "support/tensor.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvq_test {

namespace api = KVQ_NAMESPACE;  // unit tests rename it, because the library's classes are in kvq
using api::Cache;
using api::Centres;
using api::checked;
using api::Codebook;
using api::Context;
using api::cpu_isa_names;
using api::Error;
using api::initialised;
using api::Matrix;
using api::Policy;
using api::Router;
using api::Sequence;
using Snapshot = std::vector<std::byte>;

// Creates a context on a CPU with an instruction set, or on the GPU.
inline Context make_context(const char* isa = nullptr, int32_t n_threads = 1) {
  auto options = initialised<kvq_context_options>();
  const std::string_view name = isa != nullptr ? isa : "";
  if (name.starts_with(kCuda)) {  // with /sm_80 behind it: kernels of such GPUs
    options.device = KVQ_DEVICE_CUDA;
    if (const size_t slash = name.find('/'); slash != name.npos) options.cpu_isa = isa + slash + 1;
  } else {
    options.cpu_isa = isa;
  }
  options.n_threads = n_threads;
  return Context(options);
}

// Loads a policy whose pages have no scales unless it says so: stored bytes then depend on formats alone.
inline Policy load_plain_policy(kvq_context* context, std::string_view text) {
  Policy policy = Policy::load(context, text);
  if (policy.describe().calibrates == 0 || text.find("calibrate:") != std::string_view::npos) return policy;
  return Policy::load(context, policy.save() + "calibrate: none\n");
}

// Creates a cache; a policy that needs centres gets random ones, which the cache keeps.
inline Cache make_cache(kvq_context* context, kvq_cache_options options, std::string_view policy,
                        const CentreCounts& counts = {}) {
  Centres centres = nullptr;
  if (wants_centres(policy) && options.centres == nullptr) {
    centres = Centres::load(context, test_centres(options, counts));
    options.centres = centres;
  }
  Cache cache(context, options, load_plain_policy(context, policy));
  return cache;
}

// Creates a cache with random codes and keeps what it needs of the codebook.
inline Cache make_cache(kvq_context* context, kvq_cache_options options, std::string_view policy, const Codes& codes) {
  const Codebook codebook = Codebook::load(context, test_codebook(options, codes).file());
  options.codebook = codebook;
  return make_cache(context, options, policy);
}

inline kvq_cache_options cache_options(int32_t q_heads, int32_t kv_heads, int32_t head_dim, int32_t n_layers = 1) {
  auto options = initialised<kvq_cache_options>();
  options.n_layers = n_layers;
  options.q_heads = q_heads;
  options.kv_heads = kv_heads;
  options.head_dim = head_dim;
  return options;
}

// Keys and values of n tokens, [n, kv_heads, head_dim], and their positions (empty: consecutive).
inline void append(kvq_sequence* sequence, int32_t layer, int32_t n, const void* k, const void* v,
                   kvq_dtype dtype = KVQ_F32, std::span<const int32_t> positions = {}) {
  kvq_cache* const cache = kvq_sequence_cache(sequence);
  const int32_t* const given = positions.empty() ? nullptr : positions.data();
  if (const std::optional<Shape> shape = device_shape(cache, layer)) {
    const size_t rows = static_cast<size_t>(n) * shape->kv_heads;
    const DeviceCopy keys(k, rows * shape->key_dim * dtype_bytes(dtype));
    const DeviceCopy values(v, rows * shape->value_dim * dtype_bytes(dtype));
    checked(kvq_append, cache, sequence, layer, n, keys.data(), values.data(), dtype, given);
    return;
  }
  checked(kvq_append, cache, sequence, layer, n, k, v, dtype, given);
}

inline void append_sequences(kvq_cache* cache, int32_t layer, const kvq_append_batch& batch) {
  if (const std::optional<Shape> shape = device_shape(cache, layer)) {
    size_t tokens = 0;
    for (int32_t i = 0; i < batch.n_sequences; ++i) {
      tokens += batch.token_counts != nullptr ? static_cast<size_t>(batch.token_counts[i]) : 1;
    }
    const Rows k{tokens, shape->kv_heads, shape->key_dim, batch.k_token_stride, batch.k_head_stride};
    const Rows v{tokens, shape->kv_heads, shape->value_dim, batch.v_token_stride, batch.v_head_stride};
    const DeviceCopy keys(batch.k, k.extent() * dtype_bytes(batch.dtype));
    const DeviceCopy values(batch.v, v.extent() * dtype_bytes(batch.dtype));
    kvq_append_batch on_device = batch;
    on_device.k = keys.data();
    on_device.v = values.data();
    const DeviceCopy positions(batch.rope_positions, tokens * 3 * sizeof(int32_t));
    on_device.rope_positions = static_cast<const int32_t*>(positions.data());
    checked(kvq_append_sequences, cache, layer, &on_device);
    return;
  }
  checked(kvq_append_sequences, cache, layer, &batch);
}

// Words of a mask's row.
inline size_t mask_words(int32_t mask_slots) { return (static_cast<size_t>(mask_slots) + 31) / 32; }

inline void attend(kvq_cache* cache, int32_t layer, const kvq_attend_batch& batch) {
  if (const std::optional<Shape> shape = device_shape(cache, layer)) {
    size_t queries = 0;
    for (int32_t i = 0; i < batch.n_sequences; ++i) {
      queries += batch.query_counts != nullptr ? static_cast<size_t>(batch.query_counts[i]) : 1;
    }
    const Rows q{queries, shape->q_heads, shape->key_dim, batch.q_token_stride, batch.q_head_stride};
    const Rows out{queries, shape->q_heads, shape->value_dim, batch.output_token_stride, batch.output_head_stride};
    const size_t sums = queries * shape->q_heads;
    const DeviceCopy device_q(batch.q, q.extent() * dtype_bytes(batch.q_dtype));
    const DeviceCopy device_out(batch.output, out.extent() * dtype_bytes(batch.output_dtype));
    const DeviceCopy lse(batch.lse, sums * sizeof(float));
    const DeviceCopy sinks(batch.sinks, shape->q_heads * sizeof(float));
    const DeviceCopy mask(batch.mask, queries * mask_words(batch.mask_slots) * sizeof(uint32_t));
    const DeviceCopy positions(batch.rope_positions, queries * 3 * sizeof(int32_t));
    kvq_attend_batch on_device = batch;
    on_device.rope_positions = static_cast<const int32_t*>(positions.data());
    on_device.mask = static_cast<const uint32_t*>(mask.data());
    on_device.q = device_q.data();
    on_device.output = device_out.data();
    on_device.lse = static_cast<float*>(lse.data());
    on_device.sinks = static_cast<const float*>(sinks.data());
    checked(kvq_attend, cache, layer, &on_device);
    device_out.read(batch.output);
    lse.read(batch.lse);
    return;
  }
  checked(kvq_attend, cache, layer, &batch);
}

inline void extend(kvq_cache* cache, int32_t layer, const kvq_extend_batch& batch) {
  if (const std::optional<Shape> shape = device_shape(cache, layer)) {
    size_t tokens = 0;
    for (int32_t i = 0; i < batch.n_sequences; ++i) {
      tokens += batch.token_counts != nullptr ? static_cast<size_t>(batch.token_counts[i]) : 1;
    }
    const Rows k{tokens, shape->kv_heads, shape->key_dim, batch.k_token_stride, batch.k_head_stride};
    const Rows v{tokens, shape->kv_heads, shape->value_dim, batch.v_token_stride, batch.v_head_stride};
    const Rows q{tokens, shape->q_heads, shape->key_dim, batch.q_token_stride, batch.q_head_stride};
    const Rows out{tokens, shape->q_heads, shape->value_dim, batch.output_token_stride, batch.output_head_stride};
    const DeviceCopy device_k(batch.k, k.extent() * dtype_bytes(batch.dtype));
    const DeviceCopy device_v(batch.v, v.extent() * dtype_bytes(batch.dtype));
    const DeviceCopy device_q(batch.q, q.extent() * dtype_bytes(batch.q_dtype));
    const DeviceCopy device_out(batch.output, out.extent() * dtype_bytes(batch.output_dtype));
    const DeviceCopy lse(batch.lse, tokens * shape->q_heads * sizeof(float));
    const DeviceCopy sinks(batch.sinks, shape->q_heads * sizeof(float));
    const DeviceCopy mask(batch.mask, tokens * mask_words(batch.mask_slots) * sizeof(uint32_t));
    const DeviceCopy positions(batch.rope_positions, tokens * 3 * sizeof(int32_t));
    kvq_extend_batch on_device = batch;
    on_device.rope_positions = static_cast<const int32_t*>(positions.data());
    on_device.mask = static_cast<const uint32_t*>(mask.data());
    on_device.lse = static_cast<float*>(lse.data());
    on_device.sinks = static_cast<const float*>(sinks.data());
    on_device.k = device_k.data();
    on_device.v = device_v.data();
    on_device.q = device_q.data();
    on_device.output = device_out.data();
    checked(kvq_extend, cache, layer, &on_device);
    device_out.read(batch.output);
    lse.read(batch.lse);
    return;
  }
  checked(kvq_extend, cache, layer, &batch);
}

// Stored tokens of one KV head as attention reads them.
struct Decoded {
  std::vector<float> k;  // [n, channels]
  std::vector<float> v;  // [n, channels]
  std::vector<int32_t> positions;
};

inline Decoded decode(const Sequence& sequence, int32_t layer, int32_t kv_head, int32_t begin, int32_t n,
                      int32_t head_dim) {
  const size_t scalars = static_cast<size_t>(n) * static_cast<size_t>(head_dim);
  Decoded result{std::vector<float>(scalars), std::vector<float>(scalars),
                 std::vector<int32_t>(static_cast<size_t>(n))};
  if (n > 0) sequence.decode(layer, kv_head, begin, n, result.k, result.v, result.positions);
  return result;
}

// All devices: the CPU's instruction sets, and the GPU if there is one.
inline std::vector<std::string> backends() {
  static const bool kHasCuda = why_no_cuda().empty();
  std::vector<std::string> names = cpu_isa_names();
  if (kHasCuda) names.emplace_back(kCuda);
  return names;
}

// Names for make_context: the CPU's best instruction set, and the GPU if there is one.
inline std::vector<const char*> devices() {
  std::vector<const char*> names = {nullptr};
  if (why_no_cuda().empty()) names.push_back(kCuda);
  return names;
}

}  // namespace kvq_test
