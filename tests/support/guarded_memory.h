// Memory in front of an unreadable page: a kernel that reads one vector too far crashes on any instruction set, without
// a sanitizer.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace kvq_test {

class GuardedBlock {
 public:
  // The block's end is as close to the guard as its alignment allows.
  GuardedBlock(size_t bytes, size_t alignment) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t payload = (bytes + alignment - 1) / alignment * alignment;
    mapped_ = (payload + page - 1) / page * page + page;
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) {
      base_ = nullptr;
      return;
    }
    std::byte* const guard = static_cast<std::byte*>(base_) + mapped_ - page;
    mprotect(guard, page, PROT_NONE);
    data_ = guard - payload;
  }
  GuardedBlock(const GuardedBlock&) = delete;
  GuardedBlock& operator=(const GuardedBlock&) = delete;
  ~GuardedBlock() {
    if (base_ != nullptr) munmap(base_, mapped_);
  }

  void* data() const { return data_; }  // null if there is no memory

 private:
  void* base_ = nullptr;
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
