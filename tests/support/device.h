// Copies tensors for caches of CUDA contexts, which take device memory: tests always pass host memory.
#pragma once

#include "kvq.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(KVQ_TEST_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace kvq_test {

// Name of the GPU in the tests' list of instruction sets.
inline constexpr const char* kCuda = "cuda";

// Of a layer.
struct Shape {
  size_t q_heads;
  size_t kv_heads;
  size_t key_dim;
  size_t value_dim;
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

// Shape of a layer of a cache on a GPU; none on a CPU.
inline std::optional<Shape> device_shape(const kvq_cache* cache, int32_t layer) {
  auto context = KVQ_NAMESPACE::initialised<kvq_context_info>();
  KVQ_NAMESPACE::checked(kvq_context_describe, kvq_cache_context(cache), &context);
  if (context.device != KVQ_DEVICE_CUDA) return std::nullopt;
  auto info = KVQ_NAMESPACE::initialised<kvq_layer_info>();
  KVQ_NAMESPACE::checked(kvq_cache_describe_layer, cache, layer, &info);
  return Shape{static_cast<size_t>(info.q_heads), static_cast<size_t>(info.kv_heads), static_cast<size_t>(info.key_dim),
               static_cast<size_t>(info.value_dim)};
}

inline size_t dtype_bytes(kvq_dtype dtype) { return dtype == KVQ_F32 ? 4 : 2; }

// Device copy of a host tensor with the same alignment; no memory for none.
class DeviceCopy {
 public:
  DeviceCopy(const void* host, size_t bytes) : bytes_(host != nullptr ? bytes : 0) {
#if defined(KVQ_TEST_CUDA)
    if (bytes_ == 0) return;
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
