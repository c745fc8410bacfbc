#pragma once

#include "backend/backend.h"

#include <utility>

namespace kvq {

/// Memory of the backend's device.
class BackendMemory {
 public:
  BackendMemory(Backend& backend, Allocator& allocator) noexcept : backend_(&backend), allocator_(&allocator) {}
  ~BackendMemory() { release(); }
  BackendMemory(BackendMemory&& other) noexcept
      : backend_(other.backend_),
        allocator_(other.allocator_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  BackendMemory& operator=(BackendMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  /// Allocate anew; drops the contents.
  void make(uint64_t bytes) {
    release();
    if (bytes == 0) return;
    data_ = backend_->pages().allocate(*allocator_, size(bytes));
    bytes_ = size(bytes);
  }
  void release() noexcept {
    if (data_ != nullptr) backend_->pages().release(*allocator_, data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
  }

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  bool empty() const { return bytes_ == 0; }
  Backend& backend() const { return *backend_; }
  Allocator& allocator() const { return *allocator_; }

 private:
  Backend* backend_;
  Allocator* allocator_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace kvq
