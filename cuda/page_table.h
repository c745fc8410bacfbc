#pragma once

#include "backend/backend.h"
#include "kernels/device_page.h"

#include <cuda_runtime_api.h>

namespace kvq::cuda {

class CudaBackend;

/// The page table of one layer of one sequence in device memory. Appending enters pages by kernel; whatever else
/// happened to a list (fork, truncate, load) is caught up with before the next attention.
class PageTable final : public LayerMirror {
 public:
  PageTable(CudaBackend& backend, Allocator& allocator, int32_t kv_heads);
  ~PageTable() override;

  void invalidate(int32_t head, int32_t first_page) noexcept override;
  uint64_t bytes() const noexcept override;

  /// Room for lists of `pages` pages.
  void reserve(int32_t pages);
  /// Page `index` of a head is being entered by a kernel; the list ends with it if `ends_list`.
  void entered(int32_t head, int32_t index, bool ends_list) noexcept;
  /// Upload what kernels did not enter of lists `[kv_heads]`.
  void catch_up(const Page* const* const* lists, const int32_t* counts);

  SequenceView view() const { return {pages_, counts_, positions_, capacity_}; }

 private:
  struct Head {
    int32_t valid = 0;  // leading entries that are right
    int32_t count = 0;  // what the device believes to be the list's length
  };

  void upload(int32_t head, const Page* const* list, int32_t count);
  void make_positions();

  CudaBackend& backend_;
  Allocator& allocator_;
  Vector<Head> heads_;
  int32_t capacity_ = 0;
  void* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  int32_t* counts_ = nullptr;     // [kv_heads], at the beginning of the memory
  DevicePage* pages_ = nullptr;   // [kv_heads][capacity]
  int32_t* positions_ = nullptr;  // [kv_heads][capacity][32], made when a page's positions have gaps
};

}  // namespace kvq::cuda
