#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "error.h"
#include "kvq.h"

namespace llama {

struct HandleDeleter {
  void operator()(kvq_context* handle) const { kvq_context_destroy(handle); }
  void operator()(kvq_policy* handle) const { kvq_policy_destroy(handle); }
  void operator()(kvq_cache* handle) const { kvq_cache_destroy(handle); }
  void operator()(kvq_sequence* handle) const { kvq_sequence_destroy(handle); }
  void operator()(kvq_codebook* handle) const { kvq_codebook_destroy(handle); }
  void operator()(kvq_codebook_trainer* handle) const { kvq_codebook_trainer_destroy(handle); }
  void operator()(kvq_router* handle) const { kvq_router_destroy(handle); }
  void operator()(kvq_router_trainer* handle) const { kvq_router_trainer_destroy(handle); }
  void operator()(qp_matrix* handle) const { qp_matrix_destroy(handle); }
};

using ContextHandle = std::unique_ptr<kvq_context, HandleDeleter>;
using PolicyHandle = std::unique_ptr<kvq_policy, HandleDeleter>;
using CacheHandle = std::unique_ptr<kvq_cache, HandleDeleter>;
using SequenceHandle = std::unique_ptr<kvq_sequence, HandleDeleter>;
using CodebookHandle = std::unique_ptr<kvq_codebook, HandleDeleter>;
using CodebookTrainerHandle = std::unique_ptr<kvq_codebook_trainer, HandleDeleter>;
using RouterHandle = std::unique_ptr<kvq_router, HandleDeleter>;
using RouterTrainerHandle = std::unique_ptr<kvq_router_trainer, HandleDeleter>;
using MatrixHandle = std::unique_ptr<qp_matrix, HandleDeleter>;

/// Run `call(kvq_error*)` and turn a failure into an Error with the library's message.
template <class Call>
void checked(Call&& call) {
  kvq_error error;
  kvq_error_init(&error, sizeof(error));
  const kvq_status status = std::forward<Call>(call)(&error);
  if (status == KVQ_OK) return;
  throw Error(error.message[0] != '\0' ? std::string(error.message) : std::string(kvq_status_name(status)));
}

/// What `create(arguments..., &handle, error)` makes.
template <class Handle, class Create, class... Arguments>
Handle made(Create create, Arguments... arguments) {
  typename Handle::pointer handle = nullptr;
  checked([&](kvq_error* error) { return create(arguments..., &handle, error); });
  return Handle(handle);
}

/// What `describe(arguments..., &info, error)` says.
template <class Info, class Describe, class... Arguments>
Info described(Describe describe, Arguments... arguments) {
  Info info{};
  info.struct_size = sizeof(info);
  checked([&](kvq_error* error) { return describe(arguments..., &info, error); });
  return info;
}

/// What `save(arguments..., buffer, capacity, &size, error)` writes.
template <class Save, class... Arguments>
std::vector<std::byte> saved(Save save, Arguments... arguments) {
  size_t size = 0;
  checked([&](kvq_error* error) { return save(arguments..., nullptr, 0, &size, error); });
  std::vector<std::byte> bytes(size);
  checked([&](kvq_error* error) { return save(arguments..., bytes.data(), bytes.size(), &size, error); });
  return bytes;
}

inline ContextHandle make_context(const kvq_context_options& options) {
  return made<ContextHandle>(kvq_context_create, &options);
}

inline PolicyHandle load_policy(kvq_context* context, const std::string& text) {
  return made<PolicyHandle>(kvq_policy_load, context, text.data(), text.size());
}

/// `policy` with a method of eviction.
inline PolicyHandle with_eviction(kvq_context* context, const kvq_policy* policy, const std::string& method,
                                  int32_t budget) {
  return made<PolicyHandle>(kvq_policy_with_eviction, context, policy, method.c_str(), budget);
}

inline kvq_policy_info describe_policy(const kvq_policy* policy) {
  return described<kvq_policy_info>(kvq_policy_describe, policy);
}

/// How a cache stores pages. All may be null, and are only needed while a cache is made.
struct CacheFormat {
  CacheFormat(const kvq_policy* of_pages = nullptr, const kvq_codebook* of_codes = nullptr,
              const kvq_router* that_chooses = nullptr)
      : policy(of_pages), codebook(of_codes), router(that_chooses) {}

  const kvq_policy* policy;
  const kvq_codebook* codebook;
  const kvq_router* router;
};

inline CacheHandle make_cache(kvq_context* context, kvq_cache_options options, const CacheFormat& format) {
  options.codebook = format.codebook;
  options.router = format.router;
  return made<CacheHandle>(kvq_cache_create, context, &options, format.policy);
}

inline SequenceHandle make_sequence(kvq_cache* cache) { return made<SequenceHandle>(kvq_sequence_create, cache); }

inline SequenceHandle fork_sequence(kvq_cache* cache, const kvq_sequence* parent) {
  return made<SequenceHandle>(kvq_sequence_fork, cache, parent);
}

inline std::vector<std::byte> save_sequence(kvq_cache* cache, const kvq_sequence* sequence) {
  return saved(kvq_sequence_save, cache, sequence);
}

inline SequenceHandle load_sequence(kvq_cache* cache, std::span<const std::byte> snapshot) {
  return made<SequenceHandle>(kvq_sequence_load, cache, snapshot.data(), snapshot.size());
}

inline CodebookHandle load_codebook(kvq_context* context, std::span<const std::byte> file) {
  return made<CodebookHandle>(kvq_codebook_load, context, file.data(), file.size());
}

inline std::vector<std::byte> save_codebook(const kvq_codebook* codebook) { return saved(kvq_codebook_save, codebook); }

inline kvq_codebook_info describe_codebook(const kvq_codebook* codebook) {
  return described<kvq_codebook_info>(kvq_codebook_describe, codebook);
}

inline kvq_codebook_layer_info describe_codebook_layer(const kvq_codebook* codebook, int32_t layer) {
  return described<kvq_codebook_layer_info>(kvq_codebook_describe_layer, codebook, layer);
}

inline CodebookTrainerHandle make_codebook_trainer(kvq_context* context, const kvq_codebook_trainer_options& options) {
  return made<CodebookTrainerHandle>(kvq_codebook_trainer_create, context, &options);
}

/// The layers finished so far.
inline CodebookHandle trainer_result(const kvq_codebook_trainer* trainer) {
  return made<CodebookHandle>(kvq_codebook_trainer_result, trainer);
}

inline RouterHandle load_router(kvq_context* context, std::span<const std::byte> file) {
  return made<RouterHandle>(kvq_router_load, context, file.data(), file.size());
}

inline std::vector<std::byte> save_router(const kvq_router* router) { return saved(kvq_router_save, router); }

inline kvq_router_info describe_router(const kvq_router* router) {
  return described<kvq_router_info>(kvq_router_describe, router);
}

inline kvq_router_group_info describe_router_group(const kvq_router* router, int32_t group) {
  return described<kvq_router_group_info>(kvq_router_describe_group, router, group);
}

inline RouterTrainerHandle make_router_trainer(kvq_context* context, const kvq_cache_options& cache,
                                               const kvq_policy* policy, const kvq_router_trainer_options& options) {
  return made<RouterTrainerHandle>(kvq_router_trainer_create, context, &cache, policy, &options);
}

inline RouterHandle trainer_result(const kvq_router_trainer* trainer) {
  return made<RouterHandle>(kvq_router_trainer_result, trainer);
}

/// `w`: `[out, in]` floats.
inline MatrixHandle quantize_matrix(kvq_context* context, const qp_quantize_options& options, std::span<const float> w,
                                    int64_t out, int64_t in) {
  return made<MatrixHandle>(qp_quantize, context, &options, w.data(), out, in);
}

/// A file of one matrix.
inline std::vector<std::byte> save_matrix(const qp_matrix* matrix, const std::string& name) {
  const char* const names = name.c_str();
  return saved(qp_matrix_save, &matrix, &names, 1);
}

inline MatrixHandle load_matrix(kvq_context* context, std::span<const std::byte> file, const std::string& name) {
  return made<MatrixHandle>(qp_matrix_load, context, file.data(), file.size(), name.c_str());
}

inline qp_matrix_info describe_matrix(const qp_matrix* matrix) {
  return described<qp_matrix_info>(qp_matrix_describe, matrix);
}

/// Bytes of one sequence, or of the whole cache when `sequence` is NULL.
inline kvq_usage usage_of(const kvq_cache* cache, const kvq_sequence* sequence) {
  return described<kvq_usage>(kvq_cache_usage, cache, sequence);
}

}  // namespace llama
