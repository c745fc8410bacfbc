// Copies tensors for caches of CUDA contexts, which take device memory: tests always pass host memory.
#pragma once

#include "kvq.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(KVQ_TEST_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace kvq_test {

// Name of the GPU in the tests' list of instruction sets.
inline constexpr const char* kCuda = "cuda";

struct Shape {
  size_t q_heads;
  size_t kv_heads;
  size_t head_dim;
};

// A tensor [tokens, heads, head_dim] with the API's strides; 0 is dense.
struct Rows {
  size_t tokens;
  size_t heads;
  size_t head_dim;
  int64_t token_stride = 0;
  int64_t head_stride = 0;

  // First element of a row.
  size_t at(size_t token, size_t head) const {
    const size_t of_head = head_stride != 0 ? static_cast<size_t>(head_stride) : head_dim;
    const size_t of_token = token_stride != 0 ? static_cast<size_t>(token_stride) : heads * head_dim;
    return token * of_token + head * of_head;
  }
  // Elements from the first row to the end of the last one.
  size_t extent() const { return at(tokens - 1, heads - 1) + head_dim; }
};

// Existing and former caches of CUDA contexts: a new cache replaces an old one at the same address.
struct DeviceCaches {
  std::mutex mutex;
  std::map<const kvq_cache*, Shape> shapes;
};

inline DeviceCaches& device_caches() {
  static DeviceCaches caches;
  return caches;
}

inline void note_cache(const kvq_context* context, const kvq_cache* cache, const kvq_cache_options& options) {
  auto info = KVQ_NAMESPACE::initialised<kvq_context_info>();
  KVQ_NAMESPACE::checked(kvq_context_describe, context, &info);
  DeviceCaches& caches = device_caches();
  const std::lock_guard lock(caches.mutex);
  caches.shapes.erase(cache);
  if (info.device != KVQ_DEVICE_CUDA) return;
  caches.shapes[cache] = {static_cast<size_t>(options.q_heads), static_cast<size_t>(options.kv_heads),
                          static_cast<size_t>(options.head_dim)};
}

inline const Shape* device_shape(const kvq_cache* cache) {
  DeviceCaches& caches = device_caches();
  const std::lock_guard lock(caches.mutex);
  const auto found = caches.shapes.find(cache);
  return found == caches.shapes.end() ? nullptr : &found->second;
}

inline size_t dtype_bytes(kvq_dtype dtype) { return dtype == KVQ_F32 ? 4 : 2; }

// Device copy of a host tensor with the same alignment; no memory for no bytes.
class DeviceCopy {
 public:
  DeviceCopy(const void* host, size_t bytes) : bytes_(bytes) {
#if defined(KVQ_TEST_CUDA)
    if (bytes == 0) return;
    const size_t shift = reinterpret_cast<uintptr_t>(host) % 16;
    check(cudaMalloc(&memory_, bytes + shift));
    data_ = static_cast<std::byte*>(memory_) + shift;
    check(cudaMemcpy(data_, host, bytes, cudaMemcpyHostToDevice));
#else
    (void)host;
    throw std::logic_error("these tests were built without CUDA");
#endif
  }
  ~DeviceCopy() {
#if defined(KVQ_TEST_CUDA)
    cudaFree(memory_);
#endif
  }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  void* data() const { return data_; }
  void read(void* host) const {
#if defined(KVQ_TEST_CUDA)
    if (bytes_ > 0) check(cudaMemcpy(host, data_, bytes_, cudaMemcpyDeviceToHost));
#else
    (void)host;
#endif
  }

 private:
#if defined(KVQ_TEST_CUDA)
  static void check(cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
  }
#endif
  [[maybe_unused]] void* memory_ = nullptr;
  void* data_ = nullptr;
  [[maybe_unused]] size_t bytes_;
};

// Empty if contexts can be created on the GPU, otherwise the reason.
inline std::string why_no_cuda() {
#if defined(KVQ_TEST_CUDA)
  try {
    KVQ_NAMESPACE::device_describe(KVQ_DEVICE_CUDA, 0);
    return "";
  } catch (const KVQ_NAMESPACE::Error& error) {
    return error.what();
  }
#else
  return "built without CUDA";
#endif
}

}  // namespace kvq_test
