#include "core/memory.h"

#include "core/error.h"

namespace kvq {

void* AllocatorHooks::call_allocate(size_t bytes, size_t alignment) const noexcept {
  if (allocate == nullptr) return ::operator new(bytes, std::align_val_t(alignment), std::nothrow);
  try {
    return allocate(user, bytes, alignment);
  } catch (...) {
    return nullptr;
  }
}

void AllocatorHooks::call_free(void* pointer, size_t bytes, size_t alignment) const noexcept {
  if (free == nullptr) return ::operator delete(pointer, std::align_val_t(alignment));
  try {
    free(user, pointer, bytes, alignment);
  } catch (...) {  // released all the same
  }
}

void Allocator::reserve(uint64_t bytes) {
  const uint64_t before = bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (limit_ != 0 && (before + bytes > limit_ || before + bytes < before)) {
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    fail(KVQ_E_LIMIT, "max_bytes of the %s is %llu: %llu bytes are in use and %llu more were needed", owner_,
         static_cast<unsigned long long>(limit_), static_cast<unsigned long long>(before),
         static_cast<unsigned long long>(bytes));
  }
  if (parent_ != nullptr) {
    try {
      parent_->reserve(bytes);
    } catch (...) {
      bytes_.fetch_sub(bytes, std::memory_order_relaxed);
      throw;
    }
  }
  uint64_t peak = peak_.load(std::memory_order_relaxed);
  while (before + bytes > peak && !peak_.compare_exchange_weak(peak, before + bytes, std::memory_order_relaxed)) {
  }
}

void Allocator::unreserve(uint64_t bytes) noexcept {
  for (Allocator* each = this; each != nullptr; each = each->parent_) {
    each->bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  }
}

void* Allocator::allocate(size_t bytes, size_t alignment) {
  reserve(bytes);
  void* pointer = root().hooks_.call_allocate(bytes, alignment);
  if (pointer == nullptr) {
    unreserve(bytes);
    fail(KVQ_E_MEMORY, "the allocator returned NULL for %zu bytes", bytes);
  }
  return pointer;
}

void Allocator::release(void* pointer, size_t bytes, size_t alignment) noexcept {
  if (pointer == nullptr) return;
  root().hooks_.call_free(pointer, bytes, alignment);
  unreserve(bytes);
}

}  // namespace kvq
