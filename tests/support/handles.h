// The C API with exceptions and ownership, for tests and benchmarks.
#pragma once

#include "kvq.h"
#include "support/codebook.h"
#include "support/device.h"
#include "support/router.h"
#include "support/tensor.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvq_test {

class Failure : public std::runtime_error {
 public:
  Failure(kvq_status status, const kvq_error& error)
      : std::runtime_error(std::string(kvq_status_name(status)) + ": " + error.message), status_(status) {}
  kvq_status status() const { return status_; }

 private:
  kvq_status status_;
};

// Calls `call(kvq_error*)` and throws what it reports.
template <typename Call>
void require(Call&& call) {
  kvq_error error;
  kvq_error_init(&error, sizeof(error));
  const kvq_status status = call(&error);
  if (status != KVQ_OK) throw Failure(status, error);
}

struct Destroy {
  void operator()(kvq_context* context) const { kvq_context_destroy(context); }
  void operator()(kvq_policy* policy) const { kvq_policy_destroy(policy); }
  void operator()(kvq_codebook* codebook) const { kvq_codebook_destroy(codebook); }
  void operator()(kvq_router* router) const { kvq_router_destroy(router); }
  void operator()(kvq_cache* cache) const { kvq_cache_destroy(cache); }
  void operator()(kvq_sequence* sequence) const { kvq_sequence_destroy(sequence); }
};

using Context = std::unique_ptr<kvq_context, Destroy>;
using Policy = std::unique_ptr<kvq_policy, Destroy>;
using Codebook = std::unique_ptr<kvq_codebook, Destroy>;
using Router = std::unique_ptr<kvq_router, Destroy>;
using Cache = std::unique_ptr<kvq_cache, Destroy>;
using Sequence = std::unique_ptr<kvq_sequence, Destroy>;
using Snapshot = std::vector<std::byte>;

inline Context make_context(const kvq_context_options& options) {
  kvq_context* context = nullptr;
  require([&](kvq_error* error) { return kvq_context_create(&options, &context, error); });
  return Context(context);
}

// On a CPU with an instruction set, or on the GPU.
inline Context make_context(const char* isa = nullptr, int32_t n_threads = 1) {
  kvq_context_options options;
  kvq_context_options_init(&options, sizeof(options));
  if (isa != nullptr && std::string_view(isa) == kCuda) {
    options.device = KVQ_DEVICE_CUDA;
  } else {
    options.cpu_isa = isa;
  }
  options.n_threads = n_threads;
  return make_context(options);
}

inline Policy make_policy(kvq_context* context, std::string_view yaml) {
  kvq_policy* policy = nullptr;
  require([&](kvq_error* error) { return kvq_policy_load(context, yaml.data(), yaml.size(), &policy, error); });
  return Policy(policy);
}

inline Cache make_cache(kvq_context* context, const kvq_cache_options& options, std::string_view policy_yaml) {
  const Policy policy = make_policy(context, policy_yaml);
  kvq_cache* cache = nullptr;
  require([&](kvq_error* error) { return kvq_cache_create(context, &options, policy.get(), &cache, error); });
  note_cache(context, cache, options);
  return Cache(cache);
}

inline Codebook load_codebook(kvq_context* context, std::span<const std::byte> file) {
  kvq_codebook* codebook = nullptr;
  require([&](kvq_error* error) { return kvq_codebook_load(context, file.data(), file.size(), &codebook, error); });
  return Codebook(codebook);
}

inline Router load_router(kvq_context* context, std::span<const std::byte> file) {
  kvq_router* router = nullptr;
  require([&](kvq_error* error) { return kvq_router_load(context, file.data(), file.size(), &router, error); });
  return Router(router);
}

// With random codes. The cache keeps what it needs of the codebook.
inline Cache make_cache(kvq_context* context, kvq_cache_options options, std::string_view policy_yaml,
                        const Codes& codes) {
  const Codebook codebook = load_codebook(context, test_codebook(options, codes).file());
  options.codebook = codebook.get();
  return make_cache(context, options, policy_yaml);
}

inline kvq_cache_options cache_options(int32_t q_heads, int32_t kv_heads, int32_t head_dim, int32_t n_layers = 1) {
  kvq_cache_options options;
  kvq_cache_options_init(&options, sizeof(options));
  options.n_layers = n_layers;
  options.q_heads = q_heads;
  options.kv_heads = kv_heads;
  options.head_dim = head_dim;
  return options;
}

inline Sequence make_sequence(kvq_cache* cache) {
  kvq_sequence* sequence = nullptr;
  require([&](kvq_error* error) { return kvq_sequence_create(cache, &sequence, error); });
  return Sequence(sequence);
}

inline Sequence fork(kvq_cache* cache, const kvq_sequence* parent) {
  kvq_sequence* sequence = nullptr;
  require([&](kvq_error* error) { return kvq_sequence_fork(cache, parent, &sequence, error); });
  return Sequence(sequence);
}

inline void truncate(kvq_cache* cache, kvq_sequence* sequence, int32_t length) {
  require([&](kvq_error* error) { return kvq_sequence_truncate(cache, sequence, length, error); });
}

inline int32_t length(const kvq_sequence* sequence, int32_t layer = 0) {
  int32_t n = 0;
  require([&](kvq_error* error) { return kvq_sequence_length(sequence, layer, &n, error); });
  return n;
}

inline Snapshot save(kvq_cache* cache, const kvq_sequence* sequence) {
  size_t size = 0;
  require([&](kvq_error* error) { return kvq_sequence_save(cache, sequence, nullptr, 0, &size, error); });
  Snapshot bytes(size);
  require(
      [&](kvq_error* error) { return kvq_sequence_save(cache, sequence, bytes.data(), bytes.size(), &size, error); });
  return bytes;
}

inline Sequence load(kvq_cache* cache, std::span<const std::byte> bytes) {
  kvq_sequence* sequence = nullptr;
  require([&](kvq_error* error) { return kvq_sequence_load(cache, bytes.data(), bytes.size(), &sequence, error); });
  return Sequence(sequence);
}

inline kvq_usage usage(const kvq_cache* cache, const kvq_sequence* sequence = nullptr) {
  kvq_usage result{};
  result.struct_size = sizeof result;
  require([&](kvq_error* error) { return kvq_cache_usage(cache, sequence, &result, error); });
  return result;
}

// Keys and values of n tokens, [n, kv_heads, head_dim], and their positions (empty: consecutive).
inline void append(kvq_cache* cache, kvq_sequence* sequence, int32_t layer, int32_t n, const void* k, const void* v,
                   kvq_dtype dtype = KVQ_F32, std::span<const int32_t> positions = {}) {
  const int32_t* const given = positions.empty() ? nullptr : positions.data();
  if (const Shape* shape = device_shape(cache)) {
    const size_t bytes = static_cast<size_t>(n) * shape->kv_heads * shape->head_dim * dtype_bytes(dtype);
    const DeviceCopy keys(k, bytes);
    const DeviceCopy values(v, bytes);
    require([&](kvq_error* error) {
      return kvq_append(cache, sequence, layer, n, keys.data(), values.data(), dtype, given, error);
    });
    return;
  }
  require([&](kvq_error* error) { return kvq_append(cache, sequence, layer, n, k, v, dtype, given, error); });
}

inline void append_sequences(kvq_cache* cache, int32_t layer, const kvq_append_batch& batch) {
  if (const Shape* shape = device_shape(cache)) {
    size_t tokens = 0;
    for (int32_t i = 0; i < batch.n_sequences; ++i) {
      tokens += batch.token_counts != nullptr ? static_cast<size_t>(batch.token_counts[i]) : 1;
    }
    const Rows k{tokens, shape->kv_heads, shape->head_dim, batch.k_token_stride, batch.k_head_stride};
    const Rows v{tokens, shape->kv_heads, shape->head_dim, batch.v_token_stride, batch.v_head_stride};
    const DeviceCopy keys(batch.k, k.extent() * dtype_bytes(batch.dtype));
    const DeviceCopy values(batch.v, v.extent() * dtype_bytes(batch.dtype));
    kvq_append_batch on_device = batch;
    on_device.k = keys.data();
    on_device.v = values.data();
    require([&](kvq_error* error) { return kvq_append_sequences(cache, layer, &on_device, error); });
    return;
  }
  require([&](kvq_error* error) { return kvq_append_sequences(cache, layer, &batch, error); });
}

inline void attend(kvq_cache* cache, int32_t layer, const kvq_attend_batch& batch) {
  if (const Shape* shape = device_shape(cache)) {
    size_t queries = 0;
    for (int32_t i = 0; i < batch.n_sequences; ++i) {
      queries += batch.query_counts != nullptr ? static_cast<size_t>(batch.query_counts[i]) : 1;
    }
    const Rows q{queries, shape->q_heads, shape->head_dim, batch.q_token_stride, batch.q_head_stride};
    const Rows out{queries, shape->q_heads, shape->head_dim, batch.output_token_stride, batch.output_head_stride};
    const size_t sums = queries * shape->q_heads;
    const DeviceCopy device_q(batch.q, q.extent() * dtype_bytes(batch.q_dtype));
    const DeviceCopy device_out(batch.output, out.extent() * dtype_bytes(batch.output_dtype));
    const DeviceCopy lse(batch.lse, batch.lse != nullptr ? sums * sizeof(float) : 0);
    const DeviceCopy sinks(batch.sinks, batch.sinks != nullptr ? shape->q_heads * sizeof(float) : 0);
    kvq_attend_batch on_device = batch;
    on_device.q = device_q.data();
    on_device.output = device_out.data();
    on_device.lse = static_cast<float*>(lse.data());
    on_device.sinks = static_cast<const float*>(sinks.data());
    require([&](kvq_error* error) { return kvq_attend(cache, layer, &on_device, error); });
    device_out.read(batch.output);
    lse.read(batch.lse);
    return;
  }
  require([&](kvq_error* error) { return kvq_attend(cache, layer, &batch, error); });
}

// The stored tokens of one KV head as attention sees them.
struct Decoded {
  std::vector<float> k;  // [n, head_dim]
  std::vector<float> v;  // [n, head_dim]
  std::vector<int32_t> positions;
};

inline Decoded decode(const kvq_cache* cache, const kvq_sequence* sequence, int32_t layer, int32_t kv_head,
                      int32_t begin, int32_t n, int32_t head_dim) {
  const size_t scalars = static_cast<size_t>(n) * static_cast<size_t>(head_dim);
  Decoded result{std::vector<float>(scalars), std::vector<float>(scalars),
                 std::vector<int32_t>(static_cast<size_t>(n))};
  if (n == 0) return result;
  require([&](kvq_error* error) {
    return kvq_sequence_decode(cache, sequence, layer, kv_head, begin, n, result.k.data(), result.v.data(),
                               result.positions.data(), error);
  });
  return result;
}

inline std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (int32_t i = 0; i < kvq_cpu_isa_count(); ++i) names.emplace_back(kvq_cpu_isa_name(i));
  return names;
}

// Everything that computes here: the CPU's instruction sets, and the GPU if there is one.
inline std::vector<std::string> backends() {
  static const bool kHasCuda = why_no_cuda().empty();
  std::vector<std::string> names = instruction_sets();
  if (kHasCuda) names.emplace_back(kCuda);
  return names;
}

}  // namespace kvq_test
