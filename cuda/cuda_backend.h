#pragma once

#include "backend/plugin.h"
#include "device_memory.h"

#include <cuda_runtime_api.h>

#include <mutex>
#include <optional>

namespace kvq::cuda {

/// Pages and kernels on one GPU. Work is issued to one stream and waited for only where the host reads results.
class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const DeviceOptions& options);
  ~CudaBackend() override;

  const char* name() const override { return "cuda"; }
  const char* isa() const override { return isa_; }
  void set_stream(void* stream) override;

  std::byte* allocate(Allocator& allocator, size_t bytes) override;
  void release(Allocator& allocator, std::byte* data, size_t bytes) noexcept override;
  void read(const PageFormat& format, const std::byte* data, std::byte* host) override;
  void write(const PageFormat& format, const std::byte* host, std::byte* data) override;

  Owned<LayerMirror> make_mirror(Allocator& allocator, int32_t kv_heads) override;
  void check(const TokenBatch& tokens) override;
  void append(const TokenBatch& tokens, std::span<const PageWrite> writes, LayerMirror* mirror,
              Allocator& scratch) override;

  Owned<Workspace> make_workspace(Allocator& allocator) override;
  void attend(const AttendBatch& batch, Workspace& workspace) override;

  // For the objects that live on this device.
  cudaStream_t stream() const { return stream_; }
  Staging& staging() { return *staging_; }
  void* allocate_device(Allocator& account, size_t bytes);
  void release_device(Allocator& account, void* pointer, size_t bytes) noexcept;

 private:
  /// One call at a time, on the right device; throws what the device reported since the last one.
  class Call;

  int32_t device_;
  cudaStream_t stream_;
  int32_t multiprocessors_ = 0;
  int32_t shared_limit_ = 0;  // bytes of a block
  char isa_[16] = {};
  std::mutex mutex_;
  std::optional<DeviceMemory> memory_;
  std::optional<Staging> staging_;
  int32_t* status_ = nullptr;  // page-locked; kernels set it to 1 when a value did not fit FP16
  cudaError_t broken_ = cudaSuccess;
};

}  // namespace kvq::cuda
