#include "failing_new.h"

#include <cstddef>
#include <cstdint>
#include <new>

#include "support/system.h"

namespace {

thread_local int64_t left = 0;  // allocations until one fails; 0: never
thread_local bool has_failed = false;

/// Returns null if this allocation must fail or there is no memory.
void* allocate(std::size_t size, std::size_t alignment = alignof(std::max_align_t)) noexcept {
  if (left > 0 && --left == 0) {
    has_failed = true;
    return nullptr;
  }
  if (size > PTRDIFF_MAX - alignment) return nullptr;
  return kvq_test::allocate_aligned(alignment, (size + alignment) / alignment * alignment);
}

void* require(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

std::size_t number(std::align_val_t alignment) { return static_cast<std::size_t>(alignment); }

}  // namespace

// All forms: a sanitizer replaces missing ones and then reports mismatched pairs.
void* operator new(std::size_t size) { return require(allocate(size)); }
void* operator new[](std::size_t size) { return require(allocate(size)); }
void* operator new(std::size_t size, std::align_val_t to) { return require(allocate(size, number(to))); }
void* operator new[](std::size_t size, std::align_val_t to) { return require(allocate(size, number(to))); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void* operator new(std::size_t size, std::align_val_t to, const std::nothrow_t&) noexcept {
  return allocate(size, number(to));
}
void* operator new[](std::size_t size, std::align_val_t to, const std::nothrow_t&) noexcept {
  return allocate(size, number(to));
}
void operator delete(void* memory) noexcept { kvq_test::free_aligned(memory); }
void operator delete[](void* memory) noexcept { kvq_test::free_aligned(memory); }
void operator delete(void* memory, std::size_t) noexcept { kvq_test::free_aligned(memory); }
void operator delete[](void* memory, std::size_t) noexcept { kvq_test::free_aligned(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { kvq_test::free_aligned(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { kvq_test::free_aligned(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { kvq_test::free_aligned(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { kvq_test::free_aligned(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { kvq_test::free_aligned(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { kvq_test::free_aligned(memory); }
void operator delete(void* memory, std::align_val_t, const std::nothrow_t&) noexcept { kvq_test::free_aligned(memory); }
void operator delete[](void* memory, std::align_val_t, const std::nothrow_t&) noexcept {
  kvq_test::free_aligned(memory);
}

namespace kvq_test {

FailingNew::FailingNew(int64_t n) noexcept {
  left = n;
  has_failed = false;
}

FailingNew::~FailingNew() { left = 0; }

bool FailingNew::failed() const noexcept { return has_failed; }

}  // namespace kvq_test
