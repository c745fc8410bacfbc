#pragma once

#include "device/cuda_error.h"
#include "device/device_memory.h"

#include <cuda_runtime_api.h>

#include <mutex>
#include <optional>

namespace kvq::cuda {

/// Makes a device current for the calling thread, and the previous one again at the end.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) noexcept;
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  /// Throws if the device could not be made current.
  void require() const { check(status_, "cudaSetDevice"); }

 private:
  int device_;
  int previous_;
  cudaError_t status_;
};

/// One GPU, which all facets share. Work is issued to one stream and waited for only where the host reads results.
class Device {
 public:
  explicit Device(const DeviceOptions& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const char* isa() const { return isa_; }
  int32_t index() const { return index_; }
  int32_t compute_capability() const { return compute_capability_; }  // 10 · major + minor
  int32_t multiprocessors() const { return multiprocessors_; }
  /// Bytes of shared memory that a block may have.
  int32_t shared_limit() const { return shared_limit_; }

  cudaStream_t stream() const { return stream_; }
  void set_stream(cudaStream_t next);
  bool is_capturing() const;

  void* allocate(Allocator& account, size_t bytes) { return memory_->allocate(account, bytes, stream_); }
  void release(Allocator& account, void* pointer, size_t bytes) noexcept;
  Staging& staging() { return *staging_; }

  /// Page-locked [2], set by kernels: a value did not fit FP16; a list had no room.
  int32_t* status() const { return status_; }

  /// Issues work where nothing may be thrown; a later Call reports its failure.
  template <typename Work>
  void issue(const Work& work) noexcept {
    const std::lock_guard lock(mutex_);
    if (broken_ != cudaSuccess) return;
    const DeviceGuard guard(index_);
    broken_ = work();
  }

 private:
  friend class Call;

  int32_t index_;
  cudaStream_t stream_;
  int32_t compute_capability_ = 0;
  int32_t multiprocessors_ = 0;
  int32_t shared_limit_ = 0;
  char isa_[16] = {};
  std::mutex mutex_;
  std::optional<DeviceMemory> memory_;
  std::optional<Staging> staging_;
  int32_t* status_ = nullptr;
  cudaError_t broken_ = cudaSuccess;
};

/// One call at a time, with the device current.
class Call {
 public:
  enum class Reports { kNothing, kEarlierCalls };
  /// Throws if the context is broken, or what the device reported about earlier calls.
  explicit Call(Device& device, Reports reports = Reports::kEarlierCalls);

  cudaStream_t stream() const { return device_.stream(); }
  /// Throws unless `status` is success. Failures that lose the device's state break the context.
  void require(cudaError_t status, const char* call) const;

 private:
  std::lock_guard<std::mutex> lock_;
  DeviceGuard guard_;
  Device& device_;
};

}  // namespace kvq::cuda
