#pragma once

#include "cuda_backend.h"

namespace kvq::cuda {

/// Device memory that is kept from call to call and only grows. What a CUDA graph knows is kept until the end.
class DeviceBlocks {
 public:
  struct Block {
    void* memory = nullptr;
    size_t bytes = 0;
  };

  /// \param call  what needs the memory, for messages; kept.
  DeviceBlocks(CudaBackend& backend, Allocator& allocator, const char* call)
      : backend_(backend), allocator_(allocator), call_(call), outgrown_(StlAllocator<Block>(allocator)) {}
  ~DeviceBlocks();
  DeviceBlocks(const DeviceBlocks&) = delete;
  DeviceBlocks& operator=(const DeviceBlocks&) = delete;

  Allocator& allocator() const { return allocator_; }
  /// Have a block of at least `bytes`, zeroed if asked. Throws if the call is recorded and memory would be needed.
  void grow(Block& block, size_t bytes, bool zeroed, bool recorded);
  /// A graph may know all blocks from now on.
  void keep() { in_graphs_ = true; }
  void release(const Block& block) noexcept { backend_.release_device(allocator_, block.memory, block.bytes); }

 private:
  CudaBackend& backend_;
  Allocator& allocator_;
  const char* call_;
  bool in_graphs_ = false;
  Vector<Block> outgrown_;  // by calls after a graph took them
};

}  // namespace kvq::cuda
