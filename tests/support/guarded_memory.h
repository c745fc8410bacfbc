// Memory in front of an unreadable page: a kernel that reads one vector too far crashes on any instruction set, without
// a sanitizer.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "support/system.h"

namespace kvq_test {

class GuardedBlock {
 public:
  // The block's end is as close to the guard as its alignment allows.
  GuardedBlock(size_t bytes, size_t alignment) {
    const size_t page = page_bytes();
    const size_t payload = (bytes + alignment - 1) / alignment * alignment;
    mapped_ = (payload + page - 1) / page * page + page;
    base_ = map_guarded(mapped_);
    if (base_ != nullptr) data_ = base_ + mapped_ - page - payload;
  }
  GuardedBlock(const GuardedBlock&) = delete;
  GuardedBlock& operator=(const GuardedBlock&) = delete;
  ~GuardedBlock() {
    if (base_ != nullptr) unmap_guarded(base_, mapped_);
  }

  void* data() const { return data_; }  // null if there is no memory

 private:
  std::byte* base_ = nullptr;
  size_t mapped_ = 0;
  std::byte* data_ = nullptr;
};

// A copy of an array right in front of a guard.
template <typename T>
class GuardedArray {
 public:
  explicit GuardedArray(std::span<const T> values) : block_(values.size_bytes(), alignof(T)), size_(values.size()) {
    std::memcpy(block_.data(), values.data(), values.size_bytes());
  }
  T* data() { return static_cast<T*>(block_.data()); }
  std::span<T> values() { return {data(), size_}; }

 private:
  GuardedBlock block_;
  size_t size_;
};

}  // namespace kvq_test
