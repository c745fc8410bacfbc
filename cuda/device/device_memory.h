#pragma once

#include "backend/plugin.h"
#include "core/memory.h"

#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

namespace kvq::cuda {

/// Device memory in stream order: from the caller's hooks, or from the context's own pool, which keeps its memory so
/// that allocating is cheap and waits for nothing. The device must be current.
class DeviceMemory {
 public:
  explicit DeviceMemory(const DeviceOptions& options);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Counted by `account`.
  void* allocate(Allocator& account, size_t bytes, cudaStream_t stream);
  void release(Allocator& account, void* pointer, size_t bytes, cudaStream_t stream) noexcept;

 private:
  DeviceOptions options_;
  cudaMemPool_t pool_ = nullptr;
};

/// Page-locked host memory that kernels read directly. take() reuses memory once the stream has run the work issued
/// before its done().
class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  void* take(size_t bytes);
  /// Call after issuing the work that reads the memory taken last.
  void done(cudaStream_t stream);

 private:
  struct Block {
    void* memory;
    size_t bytes;
    cudaEvent_t read;
    bool in_flight;
  };
  std::vector<Block> blocks_;
  size_t current_ = 0;
};

}  // namespace kvq::cuda
