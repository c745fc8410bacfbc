#include "core/memory.h"

#include "core/error.h"

#include <algorithm>
#include <cassert>

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

void Allocator::check_limit(uint64_t bytes, uint64_t more) const {
  const uint64_t kept_back = kept_back_.load(std::memory_order_relaxed);
  if (limit_ == 0 || (bytes >= more && bytes + kept_back >= bytes && bytes + kept_back <= limit_)) return;
  const auto number = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  if (kept_back == 0) {
    fail(KVQ_E_LIMIT, "max_bytes of the %s is %llu: %llu bytes are in use and %llu more were needed", owner_,
         number(limit_), number(bytes - more), number(more));
  }
  fail(KVQ_E_LIMIT,
       "max_bytes of the %s is %llu: %llu bytes are in use, %llu are kept for kvq_compress and %llu more were needed",
       owner_, number(limit_), number(bytes - more), number(kept_back), number(more));
}

void Allocator::keep_back(uint64_t bytes) {
  kept_back_.fetch_add(bytes, std::memory_order_relaxed);
  try {
    if (limit_ != 0) check_limit(bytes_.load(std::memory_order_relaxed), 0);
    if (parent_ != nullptr) parent_->keep_back(bytes);
  } catch (...) {
    kept_back_.fetch_sub(bytes, std::memory_order_relaxed);
    throw;
  }
}

void Allocator::give_back(uint64_t bytes) noexcept {
  for (Allocator* each = this; each != nullptr; each = each->parent_) {
    each->kept_back_.fetch_sub(bytes, std::memory_order_relaxed);
  }
}

void Allocator::reserve(uint64_t bytes) {
  const uint64_t before = bytes_.fetch_add(bytes, std::memory_order_relaxed);
  try {
    check_limit(before + bytes, bytes);
  } catch (...) {
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    throw;
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

void Allocator::keep_block(uint64_t bytes) {
  drop_block();
  if (bytes == 0) return;
  block_ = static_cast<std::byte*>(allocate(size(bytes), kDataAlignment));
  block_bytes_ = size(bytes);
}

void Allocator::drop_block() noexcept {
  assert(newest_piece_ == nullptr);
  const size_t bytes = std::exchange(block_bytes_, 0);  // so that release() does not look into it
  if (block_ != nullptr) release(std::exchange(block_, nullptr), bytes, kDataAlignment);
}

void* Allocator::take_from_block(size_t bytes, size_t alignment) noexcept {
  alignment = std::max(alignment, alignof(BlockPiece));
  assert(alignment <= kDataAlignment);
  const size_t begin = (block_used_ + sizeof(BlockPiece) + alignment - 1) / alignment * alignment;
  if (begin > block_bytes_ || bytes > block_bytes_ - begin) return nullptr;
  void* pointer = block_ + begin;
  newest_piece_ = new (piece_of(pointer)) BlockPiece{newest_piece_, true};
  block_used_ = begin + bytes;
  return pointer;
}

bool Allocator::is_in_block(const void* pointer) const noexcept {
  const auto offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(block_);
  return offset < block_bytes_;
}

/// Pieces that are older than one in use wait for it.
void Allocator::return_to_block(void* pointer) noexcept {
  piece_of(pointer)->in_use = false;
  while (newest_piece_ != nullptr && !newest_piece_->in_use) {
    block_used_ = static_cast<size_t>(reinterpret_cast<std::byte*>(newest_piece_) - block_);
    newest_piece_ = newest_piece_->previous;
  }
}

void* Allocator::allocate(size_t bytes, size_t alignment) {
  if (block_bytes_ > 0) {
    if (void* pointer = take_from_block(bytes, alignment)) return pointer;
  }
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
  if (block_bytes_ > 0 && is_in_block(pointer)) return return_to_block(pointer);
  root().hooks_.call_free(pointer, bytes, alignment);
  unreserve(bytes);
}

}  // namespace kvq
