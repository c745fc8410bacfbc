#include "device/device_memory.h"

#include "core/error.h"
#include "device/cuda_error.h"

#include <algorithm>

namespace kvq::cuda {

DeviceMemory::DeviceMemory(const DeviceOptions& options) : options_(options) {
  if (options_.allocate != nullptr) return;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = options_.index;
  check(cudaMemPoolCreate(&pool_, &properties), "cudaMemPoolCreate");
  uint64_t keep = UINT64_MAX;
  check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute");
}

DeviceMemory::~DeviceMemory() {
  if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
}

void* DeviceMemory::allocate(Allocator& account, size_t bytes, cudaStream_t stream) {
  account.reserve(bytes);
  try {
    void* pointer = nullptr;
    if (options_.allocate != nullptr) {
      pointer = options_.allocate(options_.user, bytes, stream);
      if (pointer == nullptr) fail(KVQ_E_MEMORY, "device_allocate returned NULL for %zu bytes", bytes);
    } else {
      check(cudaMallocFromPoolAsync(&pointer, bytes, pool_, stream), "cudaMallocFromPoolAsync");
    }
    return pointer;
  } catch (...) {
    account.unreserve(bytes);
    throw;
  }
}

void DeviceMemory::release(Allocator& account, void* pointer, size_t bytes, cudaStream_t stream) noexcept {
  if (pointer == nullptr) return;
  if (options_.free != nullptr) {
    options_.free(options_.user, pointer, bytes, stream);
  } else {
    cudaFreeAsync(pointer, stream);
  }
  account.unreserve(bytes);
}

Staging::~Staging() {
  for (const Block& block : blocks_) {
    cudaEventSynchronize(block.read);
    cudaEventDestroy(block.read);
    cudaFreeHost(block.memory);
  }
}

void* Staging::take(size_t bytes) {
  for (current_ = 0; current_ < blocks_.size(); ++current_) {
    Block& block = blocks_[current_];
    if (block.bytes < bytes) continue;
    if (block.in_flight) {
      const cudaError_t status = cudaEventQuery(block.read);
      if (status == cudaErrorNotReady) continue;
      check(status, "cudaEventQuery");
      block.in_flight = false;
    }
    return block.memory;
  }
  constexpr size_t kLeast = size_t{64} << 10U;
  Block block{nullptr, std::max(bytes + bytes / 4, kLeast), nullptr, false};
  check(cudaEventCreateWithFlags(&block.read, cudaEventDisableTiming), "cudaEventCreate");
  const cudaError_t status = cudaHostAlloc(&block.memory, block.bytes, cudaHostAllocDefault);
  if (status != cudaSuccess) {
    cudaEventDestroy(block.read);
    check(status, "cudaHostAlloc");
  }
  blocks_.push_back(block);
  return block.memory;
}

void Staging::done(cudaStream_t stream) {
  Block& block = blocks_[current_];
  check(cudaEventRecord(block.read, stream), "cudaEventRecord");
  block.in_flight = true;
}

}  // namespace kvq::cuda
