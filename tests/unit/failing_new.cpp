#include "failing_new.h"

#include <cstdlib>
#include <new>

namespace {

thread_local int64_t left = 0;  // until one fails; 0: none will
thread_local bool has_failed = false;

void count_allocation() {
  if (left == 0 || --left > 0) return;
  has_failed = true;
  throw std::bad_alloc();
}

void* require(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  count_allocation();
  return require(std::malloc(size > 0 ? size : 1));
}

void* operator new(std::size_t size, std::align_val_t alignment) {
  count_allocation();
  const auto to = static_cast<std::size_t>(alignment);
  return require(std::aligned_alloc(to, (size + to - 1) / to * to));
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/, std::align_val_t /*alignment*/) noexcept { std::free(memory); }

namespace kvq_test {

FailingNew::FailingNew(int64_t n) noexcept {
  left = n;
  has_failed = false;
}

FailingNew::~FailingNew() { left = 0; }

bool FailingNew::failed() const noexcept { return has_failed; }

}  // namespace kvq_test
