#pragma once

#include "cuda_backend.h"
#include "kernels/attend.h"

namespace kvq::cuda {

/// Memory of attend, kept from call to call; its device memory only grows. What a CUDA graph knows is kept until the
/// end.
class AttendWorkspace final : public Workspace {
 public:
  AttendWorkspace(CudaBackend& backend, Allocator& allocator);
  ~AttendWorkspace() override;

  /// The cache's frequencies, which never change, in device memory. Throws if `recorded` and they are not there.
  const float* inv_freq(const Rope& rope, bool recorded);
  /// Throws if `recorded` and memory would be needed.
  void reserve(const AttendPlan& plan, bool recorded);

  /// Counts what a call takes beside.
  Allocator& allocator() const { return allocator_; }
  float* partials() const { return static_cast<float*>(partials_.memory); }
  int32_t* tickets() const { return static_cast<int32_t*>(tickets_.memory); }

 private:
  struct Block {
    void* memory = nullptr;
    size_t bytes = 0;
  };
  /// Have a block of at least `bytes`, zeroed if asked.
  void grow(Block& block, size_t bytes, bool zeroed, bool recorded);

  CudaBackend& backend_;
  Allocator& allocator_;
  Block inv_freq_;
  Block partials_;
  Block tickets_;
  bool in_graphs_ = false;
  Vector<Block> outgrown_;  // by calls after a graph took them
};

}  // namespace kvq::cuda
