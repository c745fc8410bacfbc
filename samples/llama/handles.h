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
  kvq_error_init(&error);
  const kvq_status status = std::forward<Call>(call)(&error);
  if (status == KVQ_OK) return;
  throw Error(error.message[0] != '\0' ? std::string(error.message) : std::string(kvq_status_name(status)));
}

inline ContextHandle make_context(const kvq_context_options& options) {
  kvq_context* handle = nullptr;
  checked([&](kvq_error* error) { return kvq_context_create(&options, &handle, error); });
  return ContextHandle(handle);
}

inline PolicyHandle load_policy(kvq_context* context, const std::string& text) {
  kvq_policy* handle = nullptr;
  checked([&](kvq_error* error) { return kvq_policy_load(context, text.data(), text.size(), &handle, error); });
  return PolicyHandle(handle);
}

/// `policy` with a method of eviction.
inline PolicyHandle with_eviction(kvq_context* context, const kvq_policy* policy, const std::string& method,
                                  int32_t budget) {
  kvq_policy* handle = nullptr;
  checked([&](kvq_error* error) {
    return kvq_policy_with_eviction(context, policy, method.c_str(), budget, &handle, error);
  });
  return PolicyHandle(handle);
}

inline kvq_policy_info describe_policy(const kvq_policy* policy) {
  kvq_policy_info info{};
  info.struct_size = sizeof(info);
  checked([&](kvq_error* error) { return kvq_policy_describe(policy, &info, error); });
  return info;
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
  kvq_cache* handle = nullptr;
  checked([&](kvq_error* error) { return kvq_cache_create(context, &options, format.policy, &handle, error); });
  return CacheHandle(handle);
}

inline SequenceHandle make_sequence(kvq_cache* cache) {
  kvq_sequence* handle = nullptr;
  checked([&](kvq_error* error) { return kvq_sequence_create(cache, &handle, error); });
  return SequenceHandle(handle);
}

inline SequenceHandle fork_sequence(kvq_cache* cache, const kvq_sequence* parent) {
  kvq_sequence* handle = nullptr;
  checked([&](kvq_error* error) { return kvq_sequence_fork(cache, parent, &handle, error); });
  return SequenceHandle(handle);
}

inline std::vector<std::byte> save_sequence(kvq_cache* cache, const kvq_sequence* sequence) {
  size_t size = 0;
  checked([&](kvq_error* error) { return kvq_sequence_save(cache, sequence, nullptr, 0, &size, error); });
  std::vector<std::byte> snapshot(size);
  checked([&](kvq_error* error) {
    return kvq_sequence_save(cache, sequence, snapshot.data(), snapshot.size(), &size, error);
  });
  return snapshot;
}

inline SequenceHandle load_sequence(kvq_cache* cache, std::span<const std::byte> snapshot) {
  kvq_sequence* handle = nullptr;
  checked([&](kvq_error* error) { return kvq_sequence_load(cache, snapshot.data(), snapshot.size(), &handle, error); });
  return SequenceHandle(handle);
}

inline CodebookHandle load_codebook(kvq_context* context, std::span<const std::byte> file) {
  kvq_codebook* handle = nullptr;
  checked([&](kvq_error* error) { return kvq_codebook_load(context, file.data(), file.size(), &handle, error); });
  return CodebookHandle(handle);
}

inline std::vector<std::byte> save_codebook(const kvq_codebook* codebook) {
  size_t size = 0;
  checked([&](kvq_error* error) { return kvq_codebook_save(codebook, nullptr, 0, &size, error); });
  std::vector<std::byte> file(size);
  checked([&](kvq_error* error) { return kvq_codebook_save(codebook, file.data(), file.size(), &size, error); });
  return file;
}

inline kvq_codebook_info describe_codebook(const kvq_codebook* codebook) {
  kvq_codebook_info info{};
  info.struct_size = sizeof(info);
  checked([&](kvq_error* error) { return kvq_codebook_describe(codebook, &info, error); });
  return info;
}

inline kvq_codebook_layer_info describe_codebook_layer(const kvq_codebook* codebook, int32_t layer) {
  kvq_codebook_layer_info info{};
  info.struct_size = sizeof(info);
  checked([&](kvq_error* error) { return kvq_codebook_describe_layer(codebook, layer, &info, error); });
  return info;
}

inline CodebookTrainerHandle make_codebook_trainer(kvq_context* context, const kvq_codebook_trainer_options& options) {
  kvq_codebook_trainer* handle = nullptr;
  checked([&](kvq_error* error) { return kvq_codebook_trainer_create(context, &options, &handle, error); });
  return CodebookTrainerHandle(handle);
}

/// The layers finished so far.
inline CodebookHandle trainer_result(const kvq_codebook_trainer* trainer) {
  kvq_codebook* handle = nullptr;
  checked([&](kvq_error* error) { return kvq_codebook_trainer_result(trainer, &handle, error); });
  return CodebookHandle(handle);
}

inline RouterHandle load_router(kvq_context* context, std::span<const std::byte> file) {
  kvq_router* handle = nullptr;
  checked([&](kvq_error* error) { return kvq_router_load(context, file.data(), file.size(), &handle, error); });
  return RouterHandle(handle);
}

inline std::vector<std::byte> save_router(const kvq_router* router) {
  size_t size = 0;
  checked([&](kvq_error* error) { return kvq_router_save(router, nullptr, 0, &size, error); });
  std::vector<std::byte> file(size);
  checked([&](kvq_error* error) { return kvq_router_save(router, file.data(), file.size(), &size, error); });
  return file;
}

inline kvq_router_info describe_router(const kvq_router* router) {
  kvq_router_info info{};
  info.struct_size = sizeof(info);
  checked([&](kvq_error* error) { return kvq_router_describe(router, &info, error); });
  return info;
}

inline kvq_router_group_info describe_router_group(const kvq_router* router, int32_t group) {
  kvq_router_group_info info{};
  info.struct_size = sizeof(info);
  checked([&](kvq_error* error) { return kvq_router_describe_group(router, group, &info, error); });
  return info;
}

inline RouterTrainerHandle make_router_trainer(kvq_context* context, const kvq_cache_options& cache,
                                               const kvq_policy* policy, const kvq_router_trainer_options& options) {
  kvq_router_trainer* handle = nullptr;
  checked(
      [&](kvq_error* error) { return kvq_router_trainer_create(context, &cache, policy, &options, &handle, error); });
  return RouterTrainerHandle(handle);
}

inline RouterHandle trainer_result(const kvq_router_trainer* trainer) {
  kvq_router* handle = nullptr;
  checked([&](kvq_error* error) { return kvq_router_trainer_result(trainer, &handle, error); });
  return RouterHandle(handle);
}

/// `w`: `[out, in]` floats.
inline MatrixHandle quantize_matrix(kvq_context* context, const qp_quantize_options& options, std::span<const float> w,
                                    int64_t out, int64_t in) {
  qp_matrix* handle = nullptr;
  checked([&](kvq_error* error) { return qp_quantize(context, &options, w.data(), out, in, &handle, error); });
  return MatrixHandle(handle);
}

/// A file of one matrix.
inline std::vector<std::byte> save_matrix(const qp_matrix* matrix, const std::string& name) {
  const char* const names = name.c_str();
  size_t size = 0;
  checked([&](kvq_error* error) { return qp_matrix_save(&matrix, &names, 1, nullptr, 0, &size, error); });
  std::vector<std::byte> file(size);
  checked([&](kvq_error* error) { return qp_matrix_save(&matrix, &names, 1, file.data(), file.size(), &size, error); });
  return file;
}

inline MatrixHandle load_matrix(kvq_context* context, std::span<const std::byte> file, const std::string& name) {
  qp_matrix* handle = nullptr;
  checked([&](kvq_error* error) {
    return qp_matrix_load(context, file.data(), file.size(), name.c_str(), &handle, error);
  });
  return MatrixHandle(handle);
}

inline qp_matrix_info describe_matrix(const qp_matrix* matrix) {
  qp_matrix_info info{};
  info.struct_size = sizeof(info);
  checked([&](kvq_error* error) { return qp_matrix_describe(matrix, &info, error); });
  return info;
}

/// Bytes of one sequence, or of the whole cache when `sequence` is NULL.
inline kvq_usage usage_of(const kvq_cache* cache, const kvq_sequence* sequence) {
  kvq_usage usage{};
  usage.struct_size = sizeof(usage);
  checked([&](kvq_error* error) { return kvq_cache_usage(cache, sequence, &usage, error); });
  return usage;
}

}  // namespace llama
